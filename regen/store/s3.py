"""Bytes under a prefix of a bucket, in S3 or in what speaks its protocol.

Guarantees: of many `create` calls for one key, in any number of processes and hosts, exactly one returns True: the
store itself judges the condition (`If-None-Match: *`), on a plain write as on the completion of one in parts. A write
whose answer was lost is known again by a mark of its own in the object's metadata. A listing is complete, and never a
cached one. What does not end is aborted, and what a killed process has left is swept.
Keeps no more in memory than the object that is written or read whole, or one part of a file.
"""

from __future__ import annotations

import base64
import hashlib
import io
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO

from regen.errors import StoreError, StoreRefused, StoreUnavailable
from regen.protocols import StoredObject
from regen.store import layout
from regen.store.keys import ABANDONED_AFTER_SECONDS, LEFTOVER, PROBE, check_key, own_name
from regen.store.probe import ProbeFailure, probe_storage
from regen.store.s3_client import NoUpload, S3Client, Taken
from regen.store.s3_reader import ObjectReader
from regen.store.s3_settings import CredentialLife, S3Settings, credentials_remark

# What opening an object brings: enough for the footer of most of regen's files.
TAIL_BYTES = 64 * 1024
_MOST_PARTS = 9000
_MARK = "regen-write"
# Names that regen makes: the prefix may be all of a bucket that others use too.
_OWN = (
    layout.RUN,
    layout.PLAN,
    layout.PLAN_PARTS,
    layout.JOURNAL,
    layout.SHARDS,
    layout.HOLDER,
    layout.REPORT,
    layout.PILOT,
    layout.PILOT_PAGE,
)


class S3Storage:
    """A `Storage` in a bucket. Thread-safe; nothing is asked of the store before the first call."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._client = S3Client(settings)
        self._base = f"{settings.prefix}/" if settings.prefix else ""

    @property
    def url(self) -> str:
        return self._settings.url

    def create(self, key: str, data: bytes) -> bool:
        check_key(key)
        mark = uuid.uuid4().hex
        try:
            self._write(key, _Source(data), mark, {"IfNoneMatch": "*"})
        except Taken:
            return self._bears(key, mark)
        return True

    def replace(self, key: str, data: bytes | Path) -> None:
        check_key(key)
        try:
            self._write(key, _Source(data), uuid.uuid4().hex, {})
        except Taken as error:
            raise StoreRefused(
                f"{self.url}/{key}: this store has refused an unconditional write as conditional"
            ) from error

    def read(self, key: str) -> bytes:
        check_key(key)
        return self._client.call("reading", key, lambda client: _whole(client.get_object(**self._at(key))))

    def open(self, key: str) -> BinaryIO:
        check_key(key)
        size, etag, tail = self._client.call("opening", key, lambda client: self._tail(client, key))

        def fetch(start: int, stop: int) -> bytes:
            return self._range(key, etag, start, stop)

        return io.BufferedReader(ObjectReader(size, tail, fetch))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        folder, _, _ = prefix.rpartition("/")
        if folder:
            check_key(folder)
        last = ""
        for page in self._pages("listing", prefix, "list_objects_v2", "ContinuationToken", "NextContinuationToken"):
            for found in page.get("Contents", ()):
                key = str(found["Key"])[len(self._base) :]
                if key.endswith("/") or not key:  # what consoles make for an empty folder
                    continue
                if key < last:
                    raise StoreRefused(f"{self.url}: this bucket lists its objects out of order; name another `output`")
                last = key
                yield StoredObject(key, int(found["Size"]))

    def delete(self, key: str) -> None:
        check_key(key)
        with suppress(KeyError):
            self._client.call("deleting", key, lambda client: client.delete_object(**self._at(key)))

    def sweep(self) -> int:
        """Uploads in parts that nobody completes, and what a killed probe has left: old, and under names of regen's."""
        return self._sweep_uploads() + self._sweep_probes()

    def probe(self) -> None:
        probe_storage(self, self._advice)
        self._probe_parts()

    def credential_life(self) -> CredentialLife:
        """See `storage.credential_life`."""
        return self._client.credentials()

    def remarks(self, hours: float | None) -> tuple[str, ...]:
        """See `storage.remarks`."""
        life = self._client.credentials()
        described = self._settings.described(life.provider or "nowhere")
        warning = credentials_remark(life, hours, datetime.now(UTC))
        return (described, warning) if warning else (described,)

    # --- writing ---------------------------------------------------------------------------------

    def _write(self, key: str, source: _Source, mark: str, condition: dict[str, str]) -> None:
        if source.size > self._settings.multipart_bytes:
            self._write_parts(key, source, mark, condition)
        else:
            body = source.part(0, source.size)
            what = {**self._at(key), "Body": body, "Metadata": {_MARK: mark}, **condition, **self._digest(body)}
            self._client.call("writing", key, lambda client: client.put_object(**what))

    def _write_parts(self, key: str, source: _Source, mark: str, condition: dict[str, str]) -> None:
        """Raises Taken as a plain write does. Whatever goes wrong, nothing is left behind, or `sweep` finds it."""
        at = {**self._at(key), "Metadata": {_MARK: mark}}
        begun = self._client.call("beginning", key, lambda client: client.create_multipart_upload(**at))
        upload = {**self._at(key), "UploadId": str(begun["UploadId"])}
        try:
            parts = [
                self._write_part(key, upload, number, body) for number, body in source.parts(self._part_bytes(source))
            ]
            whole = {**upload, "MultipartUpload": {"Parts": parts}, **condition}
            self._complete(key, whole, mark)
        except BaseException:
            self._abort(key, upload)
            raise
        self._require_size(key, source.size)

    def _write_part(self, key: str, upload: dict[str, str], number: int, body: bytes) -> dict[str, Any]:
        what = {**upload, "PartNumber": number, "Body": body, **self._digest(body)}
        answer = self._call_upload(key, "writing a part", lambda client: client.upload_part(**what))
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _complete(self, key: str, whole: dict[str, Any], mark: str) -> None:
        """boto3 repeats a completion whose answer was lost, and then hears that there is no such upload (any more)."""
        try:
            self._client.call("completing", key, lambda client: client.complete_multipart_upload(**whole))
        except NoUpload as error:
            if not self._bears(key, mark):
                raise self._gone(key) from error

    def _call_upload(self, key: str, doing: str, work: Any) -> Any:
        try:
            return self._client.call(doing, key, work)
        except (NoUpload, KeyError) as error:
            raise self._gone(key) from error

    def _gone(self, key: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.url}/{key}: the upload in parts is gone: it was aborted; try the same bytes again"
        )

    def _abort(self, key: str, upload: dict[str, str]) -> None:
        """As far as the store lets us: the error that led here is the one to tell, and `sweep` takes what stays."""
        with suppress(StoreError, NoUpload, Taken, KeyError):
            self._client.call("aborting", key, lambda client: client.abort_multipart_upload(**upload))

    def _require_size(self, key: str, size: int) -> None:
        found = self._head(key)
        if found is not None and int(found["ContentLength"]) != size:
            raise StoreRefused(
                f"{self.url}/{key}: {size} bytes were written in parts, and the store has {found['ContentLength']}:"
                " it alters what it is given; name another `output`"
            )

    def _bears(self, key: str, mark: str) -> bool:
        """What is there is of this very call, whose first answer was lost."""
        found = self._head(key)
        return found is not None and found.get("Metadata", {}).get(_MARK) == mark

    def _head(self, key: str) -> dict[str, Any] | None:
        try:
            head: dict[str, Any] = self._client.call(
                "looking at", key, lambda client: client.head_object(**self._at(key))
            )
        except KeyError:
            return None
        return head

    def _part_bytes(self, source: _Source) -> int:
        return max(self._settings.part_bytes, -(-source.size // _MOST_PARTS))

    def _digest(self, body: bytes) -> dict[str, str]:
        """The store compares what has arrived: by boto3's checksum where that is sent, else by MD5, which all know."""
        if self._settings.checksum == "when_supported":
            return {}
        return {"ContentMD5": base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode("ascii")}

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._settings.bucket, "Key": self._base + key}

    # --- reading ---------------------------------------------------------------------------------

    def _tail(self, client: Any, key: str) -> tuple[int, str, bytes]:
        """Size, version and last bytes of an object, by one call; an empty one has no range, and needs another."""
        from botocore.exceptions import ClientError

        try:
            answer = client.get_object(**self._at(key), Range=f"bytes=-{TAIL_BYTES}")
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 416:
                raise
            answer = client.get_object(**self._at(key))
        tail = _whole(answer)
        whole = str(answer.get("ContentRange", "")).rpartition("/")[2]
        return int(whole) if whole else len(tail), str(answer["ETag"]), tail

    def _range(self, key: str, etag: str, start: int, stop: int) -> bytes:
        what = {**self._at(key), "IfMatch": etag, "Range": f"bytes={start}-{stop - 1}"}
        try:
            found = self._client.call("reading", key, lambda client: _whole(client.get_object(**what)))
        except (Taken, KeyError) as error:
            raise StoreUnavailable(f"{self.url}/{key}: was replaced while it was read; read it again") from error
        if len(found) != stop - start:
            raise StoreUnavailable(f"{self.url}/{key}: {stop - start} bytes were asked for, and {len(found)} came")
        return found

    # --- listing and sweeping --------------------------------------------------------------------

    def _pages(self, doing: str, prefix: str, method: str, asked: str, told: str) -> Iterator[dict[str, Any]]:
        what: dict[str, Any] = {"Bucket": self._settings.bucket, "Prefix": self._base + prefix}
        while True:
            page = self._page(doing, prefix, method, what)
            yield page
            if not page.get("IsTruncated"):
                return
            what = {**what, asked: page[told]}
            if "NextUploadIdMarker" in page:
                what["UploadIdMarker"] = page["NextUploadIdMarker"]

    def _page(self, doing: str, prefix: str, method: str, what: dict[str, Any]) -> dict[str, Any]:
        page: dict[str, Any] = self._client.call(doing, prefix, lambda client: getattr(client, method)(**what))
        return page

    def _sweep_uploads(self) -> int:
        removed = 0
        for page in self._pages("sweeping", "", "list_multipart_uploads", "KeyMarker", "NextKeyMarker"):
            for upload in page.get("Uploads", ()):
                key = str(upload["Key"])[len(self._base) :]
                if _is_own(key) and _age_seconds(upload["Initiated"], page) > ABANDONED_AFTER_SECONDS:
                    self._abort(key, {**self._at(key), "UploadId": str(upload["UploadId"])})
                    removed += 1
        return removed

    def _sweep_probes(self) -> int:
        removed = 0
        for page in self._pages("sweeping", PROBE, "list_objects_v2", "ContinuationToken", "NextContinuationToken"):
            for found in page.get("Contents", ()):
                key = str(found["Key"])[len(self._base) :]
                if LEFTOVER.match(key) and _age_seconds(found["LastModified"], page) > ABANDONED_AFTER_SECONDS:
                    self.delete(key)
                    removed += 1
        return removed

    # --- probing ---------------------------------------------------------------------------------

    def _advice(self, failure: ProbeFailure) -> str:
        if failure is ProbeFailure.ALTERS:
            other = "when_required" if self._settings.checksum == "when_supported" else "when_supported"
            return f"set `store.checksum: {other}`, or name another `output`"
        if failure in (ProbeFailure.CREATES_TWICE, ProbeFailure.NEVER_CREATES):
            return "it must know conditional writes (If-None-Match: *): take a newer version of it, or another `output`"
        return "name another `output`"

    def _probe_parts(self) -> None:
        """An upload in parts: what is there is not overwritten, what is aborted is gone, what is listed is complete."""
        key, data = own_name(PROBE), b"regen probe, in parts"
        try:
            self._write_parts(key, _Source(data), uuid.uuid4().hex, {"IfNoneMatch": "*"})
            if self.read(key) != data:
                raise self._unfit(ProbeFailure.ALTERS)
            with suppress(Taken):
                self._write_parts(key, _Source(b"second"), uuid.uuid4().hex, {"IfNoneMatch": "*"})
                raise self._unfit(ProbeFailure.CREATES_TWICE)
            self._page(
                "listing uploads",
                key,
                "list_multipart_uploads",
                {"Bucket": self._settings.bucket, "Prefix": self._base + key},
            )
        except Taken as error:
            raise self._unfit(ProbeFailure.NEVER_CREATES) from error
        finally:
            self.delete(key)

    def _unfit(self, failure: ProbeFailure) -> StoreRefused:
        return StoreRefused(
            f"{self.url}: cannot carry a run: with an upload in parts, {failure.value}; {self._advice(failure)}"
        )


class _Source:
    """Bytes, or a local file, in parts."""

    def __init__(self, data: bytes | Path) -> None:
        self._data = data
        self.size = data.stat().st_size if isinstance(data, Path) else len(data)

    def part(self, start: int, size: int) -> bytes:
        if isinstance(self._data, bytes):
            return self._data[start : start + size]
        with self._data.open("rb") as file:
            file.seek(start)
            return file.read(size)

    def parts(self, part_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Numbered from 1 on."""
        for number, start in enumerate(range(0, self.size, part_bytes), start=1):
            yield number, self.part(start, part_bytes)


def _whole(answer: dict[str, Any]) -> bytes:
    data: bytes = answer["Body"].read()
    return data


def _is_own(key: str) -> bool:
    return key.startswith(_OWN) or LEFTOVER.match(key) is not None


def _age_seconds(since: datetime, page: dict[str, Any]) -> float:
    """By the clock of the store alone."""
    told = page["ResponseMetadata"]["HTTPHeaders"].get("date")
    now = parsedate_to_datetime(told) if told else datetime.now(UTC)
    return (now - since).total_seconds()
