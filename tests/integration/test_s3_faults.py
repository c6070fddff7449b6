"""What S3 does wrong, each class of it: over a real client, a proxy that goes wrong as scripted, and moto behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from regen.errors import StoreRefused, StoreUnavailable
from regen.store.s3 import S3Storage
from tests.s3_faults import Fault, FaultyProxy, Kind, faulty
from tests.s3_server import KEYS, S3Server
from tests.unit.store.journals import opened, table_of

KEY = "journal/00000000.parquet"
SMALL_PARTS: dict[str, Any] = {"multipart_bytes": 6 * 2**20, "part_bytes": 5 * 2**20}
IN_PARTS = bytes(range(256)) * (12 * 2**20 // 256)


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    if not s3.is_moto:
        pytest.skip("faults are scripted in front of moto, which takes any key")
    with faulty(s3.endpoint) as running:
        yield running


def storage_behind(proxy: FaultyProxy, s3: S3Server, **changes: Any) -> S3Storage:
    """boto3 itself tries nothing again, unless `attempts` says so."""
    return s3.storage(endpoint=proxy.endpoint, **{"attempts": 1, **changes})


def pending_uploads(s3: S3Server, storage: S3Storage) -> list[str]:
    bucket, _, prefix = storage.url.removeprefix("s3://").partition("/")
    found = s3.client().list_multipart_uploads(Bucket=bucket, Prefix=prefix)
    return [upload["Key"] for upload in found.get("Uploads", [])]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(Kind.ANSWER, "PUT", status=503, code="SlowDown"),
        Fault(Kind.ANSWER, "PUT", status=500, code="InternalError"),
        Fault(Kind.ANSWER, "PUT", status=400, code="RequestTimeout"),
        Fault(Kind.ANSWER, "PUT", status=403, code="RequestTimeTooSkewed"),
        Fault(Kind.ANSWER, "PUT", status=409, code="ConditionalRequestConflict"),
        Fault(Kind.ANSWER, "PUT", status=507, code="XMinioStorageFull"),
        Fault(Kind.DROP, "PUT"),
        Fault(Kind.HANG, "PUT"),
        Fault(Kind.LOSE_REPLY, "PUT"),
    ],
    ids=lambda fault: f"{fault.kind.name} {fault.code if fault.kind is Kind.ANSWER else ''}",
)
def test_what_passes_is_for_the_caller_to_try_again_with_the_same_bytes(
    fault: Fault, proxy: FaultyProxy, s3: S3Server
) -> None:
    storage = storage_behind(proxy, s3, read_timeout_seconds=0.3)
    proxy.add(Fault(fault.kind, "PUT", status=fault.status, code=fault.code))

    with pytest.raises(StoreUnavailable, match=r"same bytes|clock|room"):
        storage.create(KEY, b"rows")

    was_written = fault.kind is Kind.LOSE_REPLY
    assert storage.create(KEY, b"rows") is not was_written
    assert storage.read(KEY) == b"rows"


def test_a_lost_reply_that_boto3_repeats_by_itself_is_no_rival(proxy: FaultyProxy, s3: S3Server) -> None:
    storage = storage_behind(proxy, s3, attempts=3)
    proxy.add(Fault(Kind.LOSE_REPLY, "PUT"))

    assert storage.create(KEY, b"rows")
    assert not storage.create(KEY, b"rows")


def test_a_journal_knows_its_own_file_whose_reply_was_lost(proxy: FaultyProxy, s3: S3Server) -> None:
    journal = opened(storage_behind(proxy, s3))
    prepared = journal.prepare(table_of(1, 2), [])
    proxy.add(Fault(Kind.LOSE_REPLY, "PUT", key="*/journal/*"))

    with pytest.raises(StoreUnavailable):
        journal.commit(prepared)
    journal.commit(prepared)

    assert journal.next_number == 2
    assert sorted(journal.done) == [1, 2]


@pytest.mark.parametrize("fault", [(403, "AccessDenied"), (409, "ConditionalRequestConflict"), (503, "SlowDown")])
def test_a_refusal_that_is_none_is_tried_again_at_once(
    fault: tuple[int, str], proxy: FaultyProxy, s3: S3Server
) -> None:
    storage = storage_behind(proxy, s3, attempts=3)
    proxy.add(Fault(Kind.ANSWER, "PUT", status=fault[0], code=fault[1]))

    assert storage.create(KEY, b"rows")


def test_a_lasting_refusal_names_key_and_bucket(proxy: FaultyProxy, s3: S3Server) -> None:
    storage = storage_behind(proxy, s3, attempts=3)
    proxy.add(Fault(Kind.ANSWER, "PUT", status=403, code="AccessDenied", times=None))

    with pytest.raises(StoreRefused, match=rf"{storage.url}/{KEY}: writing: AccessDenied"):
        storage.create(KEY, b"rows")
    assert len(proxy.struck) == 3


def test_a_bucket_that_is_not_there_is_refused(s3: S3Server) -> None:
    storage = s3.storage("s3://no-such-bucket-here/run")

    for call in (lambda: storage.create(KEY, b""), lambda: storage.read(KEY), lambda: list(storage.list(""))):
        with pytest.raises(StoreRefused, match="NoSuchBucket"):
            call()


def test_a_lost_number_is_lost(proxy: FaultyProxy, s3: S3Server) -> None:
    storage = storage_behind(proxy, s3)
    proxy.add(Fault(Kind.ANSWER, "PUT", status=412, code="PreconditionFailed"))

    assert not storage.create(KEY, b"rows")


@pytest.mark.parametrize("query", ["uploads", "partNumber=1", "partNumber=2"])
def test_a_fault_of_an_upload_in_parts_leaves_nothing(query: str, proxy: FaultyProxy, s3: S3Server) -> None:
    storage = storage_behind(proxy, s3, **SMALL_PARTS)
    proxy.add(Fault(Kind.ANSWER, "P*", query=query, status=503))

    with pytest.raises(StoreUnavailable):
        storage.create(KEY, IN_PARTS)

    assert list(storage.list("")) == []
    assert pending_uploads(s3, storage) == []
    assert storage.create(KEY, IN_PARTS)
    assert storage.read(KEY) == IN_PARTS


def test_a_completion_whose_reply_was_lost_is_no_rival(proxy: FaultyProxy, s3: S3Server) -> None:
    storage = storage_behind(proxy, s3, attempts=3, **SMALL_PARTS)
    proxy.add(Fault(Kind.LOSE_REPLY, "POST", query="uploadId"))

    assert storage.create(KEY, IN_PARTS)
    assert not storage.create(KEY, IN_PARTS)
    assert pending_uploads(s3, storage) == []


def test_a_file_in_parts_replaces_whatever_is_there(s3: S3Server, tmp_path: Path) -> None:
    storage = s3.storage(**SMALL_PARTS)
    storage.create("shards/one", b"old")
    local = tmp_path / "local"
    local.write_bytes(IN_PARTS)

    storage.replace("shards/one", local)

    assert storage.read("shards/one") == IN_PARTS
    assert pending_uploads(s3, storage) == []


@pytest.mark.parametrize("times", [1, None])
def test_an_answer_that_is_cut_off_is_never_taken_for_whole(
    times: int | None, proxy: FaultyProxy, s3: S3Server
) -> None:
    storage = storage_behind(proxy, s3, attempts=2)
    storage.create(KEY, IN_PARTS)
    proxy.add(Fault(Kind.TRUNCATE, "GET", key=f"*{KEY}", times=times))

    if times is not None:
        assert storage.read(KEY) == IN_PARTS
    else:
        with pytest.raises(StoreUnavailable, match="cut off"):
            storage.read(KEY)


def test_a_file_that_cannot_be_read_on_is_away_and_not_damaged(proxy: FaultyProxy, s3: S3Server) -> None:
    """pyarrow reads through its own threads and errors: what the store says must come out again."""
    storage = storage_behind(proxy, s3)
    journal = opened(storage)
    journal.publish(table_of(*range(50)))
    assert journal.read_table(1).num_rows == 50
    proxy.add(Fault(Kind.ANSWER, "GET", key="*00000001.parquet", status=503, times=None))

    with pytest.raises(StoreUnavailable):
        journal.read_table(1)


def test_a_large_parquet_file_is_read_in_ranges(proxy: FaultyProxy, s3: S3Server, tmp_path: Path) -> None:
    import pyarrow as pa

    storage = storage_behind(proxy, s3)
    numbers = list(range(400_000))
    pq.write_table(pa.table({"a": numbers, "b": [str(number) for number in numbers]}), tmp_path / "file")
    storage.replace("shards/one", tmp_path / "file")
    proxy.seen.clear()

    with storage.open("shards/one") as source, pq.ParquetFile(source) as file:
        assert file.read(columns=["a"])["a"].to_pylist() == numbers
    assert 1 < len(proxy.seen) < 10

    with storage.open("shards/one") as source, pq.ParquetFile(source) as file:
        proxy.add(Fault(Kind.DROP, "GET", times=None))
        with pytest.raises(StoreUnavailable):
            file.read()


def test_an_object_that_was_replaced_is_not_mixed_with_the_new_one(s3: S3Server) -> None:
    storage = s3.storage()
    storage.replace("holder.json", b"a" * 500_000)

    with storage.open("holder.json") as source:
        storage.replace("holder.json", b"b" * 500_000)
        with pytest.raises(StoreUnavailable, match="was replaced"):
            source.read()


def test_a_body_that_is_stored_with_its_chunk_markers_fails_the_probe(proxy: FaultyProxy, s3: S3Server) -> None:
    proxy.add(Fault(Kind.ALTER, "PUT", times=None))

    with pytest.raises(StoreRefused, match=r"what is read back is not what was written; set `store\.checksum"):
        storage_behind(proxy, s3).probe()


def test_a_store_without_conditional_writes_fails_the_probe(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = s3.storage()
    write = storage._write
    monkeypatch.setattr(storage, "_write", lambda key, source, mark, condition: write(key, source, mark, {}))

    with pytest.raises(StoreRefused, match=r"second create of the same name succeeded.*If-None-Match"):
        storage.probe()


def test_a_store_that_wants_a_length_is_told_apart(proxy: FaultyProxy, s3: S3Server) -> None:
    proxy.add(Fault(Kind.ANSWER, "PUT", status=411, code="MissingContentLength", times=None))

    with pytest.raises(StoreRefused, match=r"store\.checksum: when_required"):
        storage_behind(proxy, s3).probe()


def test_the_probe_leaves_nothing_when_it_fails(proxy: FaultyProxy, s3: S3Server) -> None:
    storage = storage_behind(proxy, s3)
    proxy.add(Fault(Kind.ANSWER, "POST", query="uploadId", status=501, code="NotImplemented", times=None))

    with pytest.raises(StoreRefused, match="NotImplemented"):
        storage.probe()

    assert list(storage.list("")) == []
    assert pending_uploads(s3, storage) == []


def write_credentials(path: Path, access_key: str) -> None:
    path.write_text(
        f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = a-secret\n"
        "aws_session_token = a-session-token\n"
    )


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where boto3 finds keys; nothing is there yet."""
    path = tmp_path / "credentials"
    for name in KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    return path


def test_expired_credentials_are_looked_for_again(proxy: FaultyProxy, s3: S3Server, credentials: Path) -> None:
    write_credentials(credentials, "first")
    storage = storage_behind(proxy, s3)
    storage.create("run.json", b"{}")
    proxy.expire("first")

    with pytest.raises(StoreUnavailable, match=r"ExpiredToken.*nothing is lost"):
        storage.read("run.json")
    write_credentials(credentials, "second")

    assert storage.read("run.json") == b"{}"
    assert {request.access_key for request in proxy.seen} == {"first", "second"}


@pytest.mark.parametrize("status", [400, 403])
def test_a_look_that_is_refused_without_a_word_waits_for_credentials(
    status: int, proxy: FaultyProxy, s3: S3Server
) -> None:
    """HEAD has no body: of expired credentials S3 says no more there than `400 Bad Request`."""
    storage = storage_behind(proxy, s3)
    storage.create(KEY, b"rows")
    proxy.add(Fault(Kind.ANSWER, "HEAD", status=status, code="NotHeard", times=None))

    with pytest.raises(StoreUnavailable, match="as with expired credentials"):
        storage.create(KEY, b"rows")
    proxy.clear()
    assert not storage.create(KEY, b"rows")


def test_a_gateway_that_has_lost_its_store_is_away(proxy: FaultyProxy, s3: S3Server) -> None:
    """404 to a write or a listing is no missing object."""
    storage = storage_behind(proxy, s3)
    proxy.add(Fault(Kind.ANSWER, status=404, code="404", times=2))

    with pytest.raises(StoreUnavailable):
        storage.create(KEY, b"rows")
    with pytest.raises(StoreUnavailable):
        list(storage.list(""))
    assert storage.create(KEY, b"rows")


def test_a_number_that_is_taken_and_not_there_is_tried_again(proxy: FaultyProxy, s3: S3Server) -> None:
    """Some stores judge the condition before they can be read; it is no damage, and no rival."""
    journal = opened(storage_behind(proxy, s3))
    prepared = journal.prepare(table_of(1))
    proxy.add(Fault(Kind.ANSWER, "PUT", status=412, code="PreconditionFailed"))

    with pytest.raises(StoreUnavailable, match="does not give it"):
        journal.commit(prepared)
    assert journal.commit(prepared).rows == 1


def test_without_any_credentials_the_run_waits_for_them(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name)

    with pytest.raises(StoreUnavailable, match="no valid credentials"):
        s3.storage().read("run.json")


def test_sweep_takes_old_uploads_of_regen_under_its_prefix_and_nothing_else(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = s3.storage()
    bucket, _, prefix = storage.url.removeprefix("s3://").partition("/")
    client = s3.client()
    for key in (f"{prefix}/{KEY}", f"{prefix}/shards/one", f"{prefix}/notes/mine", f"{prefix}-other/{KEY}"):
        client.create_multipart_upload(Bucket=bucket, Key=key)

    monkeypatch.setattr("regen.store.s3.ABANDONED_AFTER_SECONDS", 1e12)  # moto says of every upload that it is old
    assert storage.sweep() == 0
    monkeypatch.setattr("regen.store.s3.ABANDONED_AFTER_SECONDS", -1e12)
    assert storage.sweep() == 2
    assert sorted(pending_uploads(s3, storage)) == [f"{prefix}-other/{KEY}", f"{prefix}/notes/mine"]


def test_many_threads_share_one_storage_while_its_credentials_expire(proxy: FaultyProxy, s3: S3Server) -> None:
    storage = storage_behind(proxy, s3, attempts=3)
    created: list[int] = []

    def create(number: int) -> None:
        if storage.create(f"journal/{number:08d}.parquet", b"rows"):
            created.append(number)

    proxy.add(Fault(Kind.ANSWER, "PUT", status=400, code="ExpiredToken", after=5))
    threads = [threading.Thread(target=create, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(created) == list(range(20))


def test_no_secret_shows(proxy: FaultyProxy, s3: S3Server, credentials: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_credentials(credentials, "an-access-key")
    storage = storage_behind(proxy, s3)
    storage.create("run.json", b"{}")
    said = [*storage.remarks(None), repr(s3.settings())]
    for status, code in ((403, "AccessDenied"), (400, "ExpiredToken"), (403, "SignatureDoesNotMatch")):
        proxy.add(Fault(Kind.ANSWER, "GET", status=status, code=code, times=None))
        with pytest.raises((StoreUnavailable, StoreRefused)) as failed:
            storage.read("run.json")
        said += [repr(failed.value), repr(failed.value.__cause__)]
        proxy.clear()

    said += caplog.messages
    assert "shared-credentials-file" in said[0]
    for secret in ("an-access-key", "a-secret", "a-session-token"):
        assert not [line for line in said if secret in line]
