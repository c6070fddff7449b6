"""A server that speaks S3 for tests: moto in a process of its own on loopback, or any other by environment variables.

REGEN_TEST_S3_ENDPOINT names another server, REGEN_TEST_S3_BUCKET a bucket there (made if it is not there), and the
usual AWS_* variables its keys. Every test works under a prefix of its own, which stays behind there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from regen.store.s3 import S3Storage
from regen.store.s3_settings import S3Settings
from tests.processes import end, free_port

START_SECONDS = 60
BUCKET = "regen-tests"
# What every test's environment holds, so that no real account is ever asked. Servers of tests take any.
KEYS = {"AWS_ACCESS_KEY_ID": "regen-test-key", "AWS_SECRET_ACCESS_KEY": "regen-test-secret-never-shown"}


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where it answers. `is_moto`: it is ours, and its clock and leftovers are nobody else's."""

    endpoint: str
    bucket: str
    is_moto: bool

    def fresh_url(self) -> str:
        """A place that nobody has used."""
        return f"s3://{self.bucket}/{uuid.uuid4().hex}/run"

    def settings(self, url: str | None = None, **changes: Any) -> S3Settings:
        """For `S3Storage`; patience is short, and `changes` are over that."""
        bucket, _, prefix = (url or self.fresh_url()).removeprefix("s3://").partition("/")
        quick = S3Settings(
            bucket=bucket,
            prefix=prefix,
            endpoint=self.endpoint,
            region="us-east-1",
            addressing="path",
            checksum="when_required",
            profile=None,
            connect_timeout_seconds=2.0,
            read_timeout_seconds=10.0,
            pause_seconds=0.01,
        )
        return replace(quick, **changes)

    def storage(self, url: str | None = None, **changes: Any) -> S3Storage:
        return S3Storage(self.settings(url, **changes))

    def client(self) -> Any:
        """boto3's own, to look at the store from outside."""
        import boto3

        return boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1")


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """The server that the environment names, else moto for as long as the block runs."""
    if named := os.environ.get("REGEN_TEST_S3_ENDPOINT"):
        server = S3Server(named, os.environ.get("REGEN_TEST_S3_BUCKET", BUCKET), is_moto=False)
        _make_bucket(server)
        yield server
        return
    with moto() as server:
        yield server


@contextmanager
def moto() -> Iterator[S3Server]:
    """moto with an empty bucket, in a process of its own, ended with the block."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("moto_server.py")), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        server = S3Server(f"http://127.0.0.1:{port}", BUCKET, is_moto=True)
        _wait_for(server.endpoint, process)
        _make_bucket(server)
        yield server
    finally:
        end(process)


def _make_bucket(server: S3Server) -> None:
    client = server.client()
    if server.bucket not in [found["Name"] for found in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=server.bucket)


def _wait_for(endpoint: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            urlopen(f"{endpoint}/moto-api/", timeout=1).close()
            return
        except (URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"moto does not come up at {endpoint}") from error
            time.sleep(0.1)
