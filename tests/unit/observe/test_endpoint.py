"""The endpoint over loopback: what it answers, what clients cannot do to it, and who is waited for at the end."""

from __future__ import annotations

import gzip
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from regen.errors import UserError
from regen.observe import http_server
from regen.observe.endpoint import Endpoint, Page, told_awaited
from regen.observe.process_metrics import serve_process_metrics
from regen.observe.snapshot import Snapshot
from tests.snapshots import parsed, scraped, served, snapshot

HTML = Page("text/html; charset=utf-8", b"<p>here</p>" * 200, {"Content-Security-Policy": "default-src 'none'"})


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint("127.0.0.1", 0, snapshot, {"/": lambda: HTML})
    yield endpoint
    endpoint.close()


def port_of(endpoint: Endpoint) -> int:
    port = urlsplit(endpoint.url).port
    assert port is not None
    return port


def asked(endpoint: Endpoint, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=10)) as connection:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


# --- what it answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "begins"),
    [
        ("", "text/plain; version=0.0.4"),
        ("text/plain;version=1.0.0", "text/plain; version=1.0.0"),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "application/openmetrics-text; version=1.0.0"),
    ],
)
def test_every_format_reads_back_the_same(endpoint: Endpoint, accept: str, begins: str) -> None:
    _, headers, _ = asked(endpoint, "/metrics", Accept=accept)
    assert headers["Content-Type"].startswith(begins)
    assert parsed(scraped(endpoint, accept)).keys() == parsed(scraped(endpoint)).keys()


def test_it_sees_whether_its_own_table_is_there(endpoint: Endpoint) -> None:
    endpoint.check()
    endpoint.close()
    with pytest.raises(UserError, match="does not answer"):
        endpoint.check()


def test_a_table_with_a_series_missing_fails_loudly(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    from regen.observe import endpoint as module
    from regen.observe.metrics import SERIES, Kind, Series

    more = (*SERIES, Series("regen_rows", Kind.GAUGE, "A name that others begin with.", (), lambda now: []))
    monkeypatch.setattr(module, "SERIES", more)
    with pytest.raises(UserError, match=r"does not show regen_rows$"):
        endpoint.check()


def test_pages_beside_the_metrics_have_their_own_headers(endpoint: Endpoint) -> None:
    status, headers, body = asked(endpoint, "/?x=1")
    assert (status, body) == (200, HTML.body)
    assert headers["Content-Security-Policy"] == "default-src 'none'"
    assert headers["Content-Type"] == HTML.content_type


def test_head_is_get_without_the_body(endpoint: Endpoint) -> None:
    with socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=10) as connection:
        connection.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(partial(connection.recv, 10_000), b""))
    assert answer.startswith(b"HTTP/1.0 200 ")
    assert answer.endswith(b"\r\n\r\n")
    assert f"Content-Length: {len(HTML.body)}\r\n".encode() in answer


def test_who_takes_gzip_gets_it(endpoint: Endpoint) -> None:
    _, headers, body = asked(endpoint, "/", Accept_Encoding="gzip, br")
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == HTML.body


def test_only_what_is_asked_for_by_name(endpoint: Endpoint) -> None:
    _, _, body = asked(endpoint, "/metrics?name[]=regen_rows_queued")
    assert {name for name, _ in parsed(body.decode())} == {"regen_rows_queued"}


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/elsewhere", "GET", 404), ("/metrics/", "GET", 404), ("/metrics", "POST", 405), ("/metrics", "PUT", 501)],
)
def test_there_is_nothing_else(endpoint: Endpoint, path: str, method: str, status: int) -> None:
    assert asked(endpoint, path, method)[0] == status


def test_it_answers_at_ipv6_too() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with closing(Endpoint("::1", 0, snapshot, {})) as endpoint:
        assert endpoint.url.startswith("http://[::1]:")
        endpoint.check()


# --- what clients cannot do to it ------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", "localhost.evil:80"])
def test_on_loopback_no_other_name_is_answered(endpoint: Endpoint, host: str) -> None:
    assert asked(endpoint, "/metrics", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST", "127.0.0.1:9464", "[::1]:9464", "[::1]"])
def test_on_loopback_its_own_names_are(endpoint: Endpoint, host: str) -> None:
    assert asked(endpoint, "/metrics", Host=host)[0] == 200


def test_off_loopback_any_name_is() -> None:
    with closing(Endpoint("0.0.0.0", 0, snapshot, {})) as endpoint:
        assert asked(endpoint, "/metrics", Host="coordinator:9464")[0] == 200


def test_a_snapshot_that_cannot_be_had_is_that_scrapes_error(capfd: pytest.CaptureFixture[str]) -> None:
    works = [False]

    def moment() -> Snapshot:
        if not works[0]:
            raise RuntimeError("secret detail")
        return snapshot()

    with closing(Endpoint("127.0.0.1", 0, moment, {})) as endpoint:
        with pytest.raises(HTTPError) as caught, urlopen(endpoint.url, timeout=10):
            pass
        with caught.value as error:
            assert error.code == 500
            assert b"secret" not in error.read()
        assert "secret detail" in capfd.readouterr().err
        with pytest.raises(HTTPError) as again, urlopen(endpoint.url, timeout=10):
            pass
        again.value.close()
        assert "secret detail" not in capfd.readouterr().err, "each scrape of two days would print it"
        works[0] = True
        endpoint.check()


def test_who_sends_nothing_holds_up_nobody_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        endpoint = stack.enter_context(closing(Endpoint("127.0.0.1", 0, snapshot, {})))
        for _ in range(http_server.MOST_REQUESTS - 1):
            stack.enter_context(socket.create_connection(("127.0.0.1", port_of(endpoint))))
        endpoint.check()
        began = time.monotonic()
        endpoint.close()
        assert time.monotonic() - began < 2


def test_who_takes_too_long_is_cut_off_whatever_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.2)
    with (
        closing(Endpoint("127.0.0.1", 0, snapshot, {})) as endpoint,
        socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=10) as slow,
    ):
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        until(lambda: is_cut_off(slow))


def test_an_address_that_is_none_is_refused_without_a_trace(
    endpoint: Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", urlsplit(endpoint.url).port or 0)) as client:
        client.sendall(b"GET http://[ HTTP/1.0\r\n\r\n")
        assert client.makefile("rb").readline().startswith(b"HTTP/1.0 400 ")
    assert capfd.readouterr().err == ""


def test_no_more_than_so_many_are_answered_at_once(endpoint: Endpoint) -> None:
    with ExitStack() as stack:
        for _ in range(http_server.MOST_REQUESTS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port_of(endpoint))))
        # It is not merely cut off for its silence, later.
        soon = http_server.SILENCE_SECONDS / 2
        with socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=soon) as one_too_many:
            assert one_too_many.recv(100) == b""
    until(lambda: answers(endpoint))


def test_who_goes_away_is_no_error(endpoint: Endpoint, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port_of(endpoint))) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            gone.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    endpoint.check()
    assert "Traceback" not in capfd.readouterr().err


def is_cut_off(slow: socket.socket) -> bool:
    """After one byte more."""
    try:
        slow.sendall(b"x")
        slow.settimeout(0.05)
        return slow.recv(100) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def until(condition: Callable[[], object]) -> None:
    """A scrape is noted when it was answered, which is after the client has the answer."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def answers(endpoint: Endpoint) -> bool:
    try:
        endpoint.check()
    except UserError:
        return False
    return True


# --- its port --------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port}.*metrics\.port"):
            Endpoint("127.0.0.1", port, snapshot, {})


def test_a_host_that_is_none_is_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.invalid"):
        Endpoint("nowhere.invalid", 0, snapshot, {})


def test_a_run_that_is_over_gives_up_its_port_and_no_other_does(endpoint: Endpoint) -> None:
    with pytest.raises(UserError, match="cannot listen"):
        Endpoint("127.0.0.1", port_of(endpoint), snapshot, {})
    endpoint.check()
    endpoint.release()
    endpoint.check()
    assert endpoint.farewell(60) is not None
    with closing(Endpoint("127.0.0.1", port_of(endpoint), snapshot, {})) as newcomer:
        newcomer.check()
        assert endpoint.farewell(60) is None


def test_a_stranger_is_not_asked_for_its_port() -> None:
    """It is asked what it is, and no more."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            connection, _ = stranger.accept()
            with connection:
                heard.append(connection.recv(1000))
                connection.sendall(b"HTTP/1.0 200 OK\r\nServer: other\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UserError, match="cannot listen"):
            Endpoint("127.0.0.1", stranger.getsockname()[1], snapshot, {})
        thread.join()
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):  # it was connected to once
            stranger.accept()
    assert [request.split(b" ")[0] for request in heard] == [b"HEAD"]


# --- the end ---------------------------------------------------------------------------------------


def test_it_is_held_until_the_final_numbers_were_scraped(endpoint: Endpoint) -> None:
    scraped(endpoint)
    until(lambda: endpoint.farewell(None))
    scraped(endpoint)
    until(lambda: endpoint.farewell(None) is None)


def test_its_own_check_and_a_look_at_the_page_are_no_scrapes(endpoint: Endpoint) -> None:
    endpoint.check()
    asked(endpoint, "/")
    asked(endpoint, "/metrics", "HEAD")
    assert endpoint.farewell(None) is None
    assert endpoint.farewell(30) is not None
    endpoint.check()
    awaited = endpoint.farewell(30)
    assert awaited is not None
    assert not awaited.names


def test_it_is_said_who_is_waited_for(endpoint: Endpoint) -> None:
    asked(endpoint, "/metrics", User_Agent="Prometheus/2.42\x1b[31m")
    until(lambda: endpoint.farewell(None))
    awaited = endpoint.farewell(None)
    assert awaited is not None
    said = told_awaited(endpoint.url, awaited)
    assert "127.0.0.1 (Prometheus/2.42[31m)" in said
    assert "60 s" in said


def test_a_scrape_that_failed_has_seen_nothing() -> None:
    works = [True]

    def moment() -> Snapshot:
        if not works[0]:
            raise RuntimeError("not now")
        return snapshot()

    with closing(Endpoint("127.0.0.1", 0, moment, {})) as endpoint:
        scraped(endpoint)
        until(lambda: endpoint.farewell(None))
        works[0] = False
        with pytest.raises(HTTPError) as caught:
            scraped(endpoint)
        caught.value.close()
        assert endpoint.farewell(None) is not None


# --- a process' own --------------------------------------------------------------------------------


def own(server: http_server.HttpServer) -> str:
    with closing(server), urlopen(f"{server.url}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_what_a_process_has_registered_is_served() -> None:
    assert "python_info" in own(serve_process_metrics("127.0.0.1", 0))


def test_or_what_lies_in_the_folder_for_many_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert own(serve_process_metrics("127.0.0.1", 0)) == ""


def test_served_closes() -> None:
    with served(snapshot()) as endpoint:
        port = port_of(endpoint)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
