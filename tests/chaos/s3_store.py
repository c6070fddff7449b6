"""A run folder on moto's S3, behind a proxy that goes wrong: refused, cut, late and lost answers; keys that expire."""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from regen.protocols import Storage
from tests.s3_faults import Fault, Kind, faulty
from tests.s3_server import KEYS, S3Server, moto

# What strikes, and for how long nothing may be committed because of it: the store's own patience included.
_FAULTS: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("503 to every write", 8.0, {"kind": Kind.ANSWER, "method": "PUT", "status": 503, "code": "SlowDown", "times": 6}),
    ("500 to anything", 8.0, {"kind": Kind.ANSWER, "status": 500, "code": "InternalError", "times": 8}),
    (
        "412 without a rival",
        8.0,
        {"kind": Kind.ANSWER, "method": "PUT", "key": "*/journal/*", "status": 412, "code": "PreconditionFailed"},
    ),
    (
        "409 to writes",
        8.0,
        {
            "kind": Kind.ANSWER,
            "method": "PUT",
            "status": 409,
            "code": "ConditionalRequestConflict",
            "times": 3,
        },
    ),
    ("lost replies to writes", 8.0, {"kind": Kind.LOSE_REPLY, "method": "PUT", "key": "*/journal/*", "times": 2}),
    ("cut connections", 8.0, {"kind": Kind.DROP, "times": 10}),
    ("answers cut in half", 8.0, {"kind": Kind.TRUNCATE, "method": "GET", "times": 3}),
    ("a write that hangs", 80.0, {"kind": Kind.HANG, "method": "PUT", "key": "*/journal/*", "seconds": 10.0}),
    ("slow writes", 15.0, {"kind": Kind.DELAY, "method": "PUT", "seconds": 2.0, "times": 4}),
)
_EXPIRED_SECONDS = 15.0


class S3Store:
    """`stores.Store` over a moto of its own."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._credentials = folder / "credentials"
        self._keys = 0
        self._renew()
        os.environ.update(AWS_SHARED_CREDENTIALS_FILE=str(self._credentials), AWS_EC2_METADATA_DISABLED="true")
        for name in KEYS:  # they would win over the file, here and in every process below
            os.environ.pop(name, None)
        self._server: S3Server = self._stack.enter_context(moto())
        self._proxy = self._stack.enter_context(faulty(self._server.endpoint))
        self._url = self._server.fresh_url()

    @property
    def url(self) -> str:
        return self._url

    @property
    def spec_sections(self) -> dict[str, Any]:
        return {"store": {"endpoint": self._proxy.endpoint, "region": "us-east-1"}}

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self._proxy.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @property
    def has_troubles(self) -> bool:
        return True

    def storage(self) -> Storage:
        return self._server.storage(self._url)

    def trouble(self, draw: random.Random) -> tuple[str, float] | None:
        """Faults wait for the requests that they strike."""
        choice = draw.randrange(len(_FAULTS) + 2)
        if choice >= len(_FAULTS):
            old = self._key
            self._proxy.expire(old)
            self._renew()  # a new one lies in the credentials file at once; who holds the old one must look
            return f"key {old} has expired", _EXPIRED_SECONDS
        said, seconds, fault = _FAULTS[choice]
        self._proxy.add(Fault(**fault))
        return said, seconds

    def settle(self) -> None:
        self._proxy.clear()

    def leftovers(self, before: float) -> list[str]:
        """Uploads in parts that were begun and neither completed nor aborted, and probes."""
        client = self._server.client()
        uploads = client.list_multipart_uploads(Bucket=self._server.bucket).get("Uploads", [])
        return [one["Key"] for one in uploads if one["Initiated"].timestamp() < before]

    def close(self) -> None:
        self._stack.close()

    @property
    def _key(self) -> str:
        return f"key-{self._keys}"

    def _renew(self) -> None:
        self._keys += 1
        fresh = self._credentials.with_suffix(".new")
        fresh.write_text(
            f"[default]\naws_access_key_id = {self._key}\naws_secret_access_key = {KEYS['AWS_SECRET_ACCESS_KEY']}\n",
            encoding="utf-8",
        )
        fresh.replace(self._credentials)
