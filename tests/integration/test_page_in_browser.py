"""The page in a real browser: at three widths, light and dark, hostile, live, and through a coordinator's death."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from regen.observe.page.page import main_part, whole_page
from regen.run.local import LocalCluster
from tests.browser import Browser, Page
from tests.page_facts import HOSTILE, NOW, empty, made_up
from tests.processes import free_port, wait_until
from tests.runs import begin_run, drive, make_spec
from tests.scrapes import scraped

WIDTHS = (360, 768, 1440)
# What is wider than the page and does not scroll in a box of its own.
TOO_WIDE = """
    [...document.querySelectorAll('body *')].filter((one) => {
      const box = one.getBoundingClientRect();
      return box.right > innerWidth + 1 && !one.closest('.wide') && !one.closest('.skip');
    }).map((one) => one.outerHTML.slice(0, 80))
"""
# The contrast of every text with what is behind it, as WCAG 2 counts it: those below AA.
LOW_CONTRAST = """
    (() => {
      const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
      const rgb = (colour) => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
      };
      const light = (colour) => {
        const [r, g, b] = rgb(colour).slice(0, 3).map((one) => {
          const share = one / 255;
          return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const behind = (one) => {
        for (let at = one; at; at = at.parentElement) {
          const colour = getComputedStyle(at).backgroundColor;
          if (rgb(colour)[3] === 255) return colour;
        }
        return 'white';
      };
      const found = new Set();
      for (const one of document.querySelectorAll('body *')) {
        if (![...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
        if (['TITLE', 'SCRIPT', 'STYLE'].includes(one.tagName.toUpperCase())) continue;
        const style = getComputedStyle(one);
        const [a, b] = [light(one instanceof SVGElement ? style.fill : style.color), light(behind(one))].sort();
        if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5) found.add(one.outerHTML.slice(0, 80));
      }
      return [...found];
    })()
"""


def file_of(folder: Path, text: str) -> str:
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_and_asks_for_nothing(browser: Browser, tmp_path, width, scheme):
    url = file_of(tmp_path, whole_page(made_up(sources=12, replicas=8, hostile=HOSTILE)))
    with browser.page(width, scheme=scheme) as page:
        page.open(url)
        assert page.value("document.scrollingElement.scrollWidth") <= width
        assert page.value(TOO_WIDE) == []
        assert page.complaints() == []
        assert page.requests() == [url]
        assert page.value("window.ran") is None
        assert page.value("document.querySelectorAll('script').length") == 1
        assert page.value("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 23, 26)"
        )
        assert page.value(LOW_CONTRAST) == []


def test_the_reader_chooses_the_colours(browser: Browser, tmp_path):
    with browser.page(scheme="light") as page:
        page.open(file_of(tmp_path, whole_page(empty())))
        for choice, colour in (("dark", "rgb(21, 23, 26)"), ("light", "rgb(255, 255, 255)")):
            page.value(f"document.getElementById('scheme-{choice}').click()")
            assert page.value("getComputedStyle(document.body).backgroundColor") == colour


def test_without_its_script_it_says_the_same(browser: Browser, tmp_path):
    url = file_of(tmp_path, whole_page(made_up()))
    with browser.page() as page:
        page.open(url)
        text = page.value("document.getElementById('main').innerText")
        page.call("Emulation.setScriptExecutionDisabled", value=True)
        page.open(url)
        assert page.value("document.getElementById('main').innerText") == text


class Site:
    """Serves a page as the coordinator's endpoint does, and can be put away and put back on its port."""

    def __init__(self) -> None:
        self.facts = made_up(is_live=True)
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.put_back()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def put_back(self) -> None:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                made = {"/": whole_page, "/main": main_part}[self.path](site.facts).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(made)))
                self.end_headers()
                self.wfile.write(made)

            def log_message(self, format, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def put_away(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@pytest.fixture
def site() -> Iterator[Site]:
    one = Site()
    yield one
    one.put_away()


def shows(text: str) -> str:
    return f"document.body.innerText.includes({text!r})"


def hurried(page: Page) -> None:
    """Let the page's waits be short: its script asks for them by setTimeout."""
    page.call(
        "Page.addScriptToEvaluateOnNewDocument",
        source="const wait = window.setTimeout; window.setTimeout = (work, ms) => wait(work, Math.min(ms, 100));",
    )


def test_a_live_page_keeps_itself_up_to_date_and_what_the_reader_has_open(browser: Browser, site):
    with browser.page(height=400) as page:
        hurried(page)
        page.open(site.url)
        page.value("document.querySelector('#samples details').open = true")
        page.value("document.querySelector('#table-rows-by-source-and-outcome').focus({ preventScroll: true })")
        page.value("window.scrollTo(0, 700); window.mark = 1")
        site.facts = replace(site.facts, at=NOW + 60, phase="draining")
        page.wait_for(shows("draining"))
        assert page.value("document.querySelector('#samples details').open")
        assert not page.value("document.querySelectorAll('#samples details')[1].open")
        assert page.value("document.activeElement.id") == "table-rows-by-source-and-outcome"
        assert page.value("Math.round(scrollY)") == 700
        assert page.value("window.mark") == 1
        assert page.value("document.getElementById('updated').textContent").endswith("00:54:20 UTC")
        assert page.complaints() == []


def test_a_live_page_outlives_its_server(browser: Browser, site):
    with browser.page() as page:
        hurried(page)
        page.open(site.url)
        page.wait_for(shows("live updated 2026-11-30 00:53:20 UTC"))
        site.put_away()
        page.wait_for(shows("connection lost last update 2026-11-30 00:53:20 UTC"))
        assert page.value(shows("kimi-k25-v4"))
        site.facts = replace(site.facts, at=NOW + 60)
        site.put_back()
        page.wait_for(shows("live updated 2026-11-30 00:54:20 UTC"))


def test_the_end_of_a_run_is_no_lost_connection(browser: Browser, site):
    with browser.page() as page:
        hurried(page)
        site.facts = replace(site.facts, phase="finished", has_ended=True)
        page.open(site.url)
        page.wait_for(shows("live updated"))
        site.put_away()
        page.wait_for(shows("the run has ended last update"))


@pytest.mark.parametrize("change", [{"version": "9.9"}, {"key": "another run"}])
def test_another_build_or_run_on_the_port_is_loaded_as_a_whole(browser: Browser, site, change):
    with browser.page() as page:
        hurried(page)
        page.open(site.url)
        page.value("window.mark = 1")
        site.facts = replace(site.facts, name="other", **change)
        page.wait_for("window.mark === undefined && document.title.startsWith('other')")


def test_a_live_page_obeys_nothing_that_a_row_says(browser: Browser, site):
    with browser.page() as page:
        hurried(page)
        site.facts = made_up(hostile=HOSTILE, is_live=True)
        page.open(site.url)
        site.facts = replace(site.facts, phase="draining", at=NOW + 1)
        page.wait_for(shows("draining"))
        assert page.value("window.ran") is None
        assert page.value("document.querySelectorAll('script, img').length") == 1
        assert page.complaints() == []
        assert {url.removeprefix(site.url) for url in page.requests()} == {"", "main"}


async def _all_cancelled() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """In a thread of its own: this one is the browser's."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(_all_cancelled(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_the_coordinators_page_outlives_the_coordinator(browser: Browser, tmp_path):
    port = free_port()
    engine = {"replicas": 2, "slots": 2, "step_seconds": 0.02}
    begun = begin_run(make_spec(tmp_path, rows=400, engine=engine, metrics={"port": port, "samples": True}))
    cluster = LocalCluster()
    with event_loop() as loop, browser.page() as page:
        running = asyncio.run_coroutine_threadsafe(drive(cluster, begun), loop)
        wait_until(lambda: scraped(port) != "", 20)
        hurried(page)
        page.open(f"http://127.0.0.1:{port}/")
        page.wait_for(shows("running"))
        page.wait_for("document.querySelectorAll('#samples details').length > 0")
        assert cluster.coordinator is not None
        asyncio.run_coroutine_threadsafe(cluster.coordinator.restart(), loop).result(20)
        page.value("window.mark = 1; window.seen = document.getElementById('main').dataset.at")
        page.wait_for("document.getElementById('main').dataset.at > window.seen")
        page.wait_for("document.querySelector('#faults dd:nth-of-type(4)').textContent === '1'")
        assert page.value("window.mark") == 1
        assert [said for said in page.complaints() if "net::ERR" not in said] == []
        asyncio.run_coroutine_threadsafe(cluster.coordinator.drain(10), loop).result(20)
        running.result(30)
