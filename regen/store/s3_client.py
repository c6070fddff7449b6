"""A client of S3 that outlives its credentials, and patience for what passes by itself within seconds.

Guarantees: an error leaves here as StoreUnavailable, StoreRefused, KeyError, or one of the two answers that a writer
has to judge (`Taken`, `NoUpload`); with expired credentials everything is built anew, from the environment and the
files as they are then, and the call is tried once more. Thread-safe: boto3's clients are, its sessions are not, and so
one is only used under the lock. The only file that imports boto3.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from regen.errors import SpecError, StoreRefused, StoreUnavailable
from regen.store.s3_errors import Fault, FaultKind, fault_of, library_errors
from regen.store.s3_settings import CredentialLife, S3Settings

T = TypeVar("T")

_CONNECTIONS = 16
# What a missing object can be an answer to. To anything else 404 is the word of a gateway that has lost its store.
_OF_ONE_OBJECT = frozenset({"reading", "opening", "looking at", "deleting", "aborting"})
_RENEWING = frozenset(
    {
        "iam-role",
        "container-role",
        "assume-role",
        "assume-role-with-web-identity",
        "custom-process",
        "sso",
        "login",
    }
)


class Taken(Exception):
    """The condition of a write does not hold: something is there under this key, or it is not any more."""


class NoUpload(Exception):
    """The multipart upload is not there (any more): completed, aborted, or swept."""


class S3Client:
    """Calls for one place in a bucket."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._client: Any = None

    def call(self, doing: str, key: str, work: Callable[[Any], T]) -> T:
        """What `work` makes with boto3's client. `doing` and `key` are for messages."""
        patience = _Patience(self._settings)
        while True:
            client = None
            try:
                client = self._current()
                return work(client)
            except library_errors() as error:
                fault = fault_of(error)
                if fault.kind is FaultKind.CREDENTIALS and patience.may_renew():
                    self._drop(client)
                elif not patience.may_repeat(fault):
                    raise self._translated(fault, doing, key) from error

    def credentials(self) -> CredentialLife:
        """Where they come from and how long they last, as far as boto3 knows. Asks nothing of the store itself.

        Raises StoreUnavailable if they cannot be had.
        """
        try:
            return _life(_session(self._settings.profile).get_credentials())
        except library_errors() as error:
            raise self._translated(fault_of(error), "looking for credentials", "") from error

    def _current(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = _new_client(self._settings)
            return self._client

    def _drop(self, client: Any) -> None:
        """Unless another thread has done so already."""
        with self._lock:
            if self._client is client:
                self._client = None

    def _translated(self, fault: Fault, doing: str, key: str) -> Exception:
        if fault.kind is FaultKind.MISSING and doing in _OF_ONE_OBJECT:
            return KeyError(key)
        if fault.kind is FaultKind.TAKEN:
            return Taken(key)
        if fault.kind is FaultKind.NO_UPLOAD:
            return NoUpload(key)
        where = f"{self._settings.url}/{key}" if key else self._settings.url
        message = f"{where}: {doing}: {fault.what}: {fault.advice}"
        is_for_good = fault.kind in (FaultKind.DENIED, FaultKind.REFUSED)
        return StoreRefused(message) if is_for_good else StoreUnavailable(message)


class _Patience:
    """How often one call is tried again here, for what boto3 does not repeat by itself."""

    def __init__(self, settings: S3Settings) -> None:
        self._left = settings.attempts - 1
        self._pause_seconds = settings.pause_seconds
        self._has_renewed = False

    def may_renew(self) -> bool:
        """Once."""
        self._has_renewed, had = True, self._has_renewed
        return not had

    def may_repeat(self, fault: Fault) -> bool:
        """Waits before it says yes."""
        if fault.kind not in (FaultKind.DENIED, FaultKind.CONFLICT, FaultKind.CUT) or not self._left:
            return False
        self._left -= 1
        time.sleep(self._pause_seconds * random.uniform(0.5, 1.5))
        self._pause_seconds *= 2
        return True


def aws_config(profile: str | None) -> Mapping[str, Any]:
    """What the AWS configuration says for a profile (see `s3_settings.AwsConfig`). Nothing for one that is not there:
    whoever asks for its credentials hears of it. Raises SpecError for one that cannot be read.
    """
    import botocore.session

    try:
        config = botocore.session.Session().full_config
    except library_errors() as error:
        raise SpecError(f"the AWS configuration cannot be read: {error}") from error
    chosen = dict(config.get("profiles", {}).get(profile or "default", {}))
    if "services" in chosen:
        chosen["services"] = config.get("services", {}).get(chosen["services"], {})
    return chosen


def _session(profile: str | None) -> Any:
    import boto3

    return boto3.session.Session(profile_name=profile)


def _new_client(settings: S3Settings) -> Any:
    from botocore.config import Config
    from botocore.exceptions import NoCredentialsError

    session = _session(settings.profile)
    if session.get_credentials() is None:
        raise NoCredentialsError()
    return session.client(
        "s3",
        region_name=settings.region,
        endpoint_url=settings.endpoint,
        config=Config(
            connect_timeout=settings.connect_timeout_seconds,
            read_timeout=settings.read_timeout_seconds,
            retries={"mode": "standard", "total_max_attempts": settings.attempts},
            max_pool_connections=_CONNECTIONS,
            ignore_configured_endpoint_urls=True,
            request_checksum_calculation=settings.checksum,
            response_checksum_validation=settings.checksum,
            s3={"addressing_style": settings.addressing},
        ),
    )


def _life(credentials: Any) -> CredentialLife:
    if credentials is None:
        return CredentialLife(None)
    # boto3 has no public name for it. Static credentials have none.
    ends_at: datetime | None = getattr(credentials, "_expiry_time", None)
    method = str(credentials.method)
    is_temporary = ends_at is not None or bool(credentials.get_frozen_credentials().token)
    return CredentialLife(method, is_temporary, method in _RENEWING, ends_at)
