"""The storage that a URL names: a local folder, or a prefix in a bucket of S3 or of what speaks its protocol."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from regen.errors import SpecError
from regen.protocols import Storage
from regen.spec import RunSpec, StoreSpec
from regen.store.local import LocalStorage
from regen.store.near import NearStorage
from regen.store.s3 import S3Storage
from regen.store.s3_client import aws_config
from regen.store.s3_settings import CredentialLife, S3Settings, resolve

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


def open_storage(url: str, store: StoreSpec | None = None) -> Storage:
    """The storage under `url`: a folder's path, or `s3://bucket/prefix`. Nothing is asked of the store yet.

    `store` is how S3 is reached; what it leaves open is taken from the environment and the AWS configuration.
    Raises SpecError for a kind of store not known here.
    """
    if not url:
        raise SpecError("output is empty; name a local folder, or s3://bucket/prefix")
    scheme = _SCHEME.match(url)
    if scheme is None:
        return LocalStorage(Path(url).expanduser())
    if scheme[1] != "s3":
        raise SpecError(
            f"output {url!r}: unknown kind of store {scheme[1]!r}; name a local folder, or s3://bucket/prefix"
        )
    return S3Storage(S3Settings.of(url, _resolved(store)))


def with_resolved_store(spec: RunSpec) -> RunSpec:
    """The spec as every process of its run must read it: with its S3 settings resolved here and now, once.

    The environment of other processes may say something else. Raises SpecError.
    """
    if not spec.output.startswith("s3://"):
        return spec
    return spec.model_copy(update={"store": _resolved(spec.store)})


def remarks(storage: Storage, hours: float | None) -> tuple[str, ...]:
    """What a person should know of this place before a run of so many hours (None: open). Nothing of it is secret.

    Raises StoreUnavailable when no credentials can be had.
    """
    return storage.remarks(hours) if isinstance(storage, S3Storage) else ()


def credential_life(storage: Storage) -> Callable[[], CredentialLife] | None:
    """How to ask how long this place's credentials last: in a thread, it may take a second. None: it needs none.

    Asked, it raises StoreUnavailable when they cannot be had.
    """
    return storage.credential_life if isinstance(storage, S3Storage) else None


def near(storage: Storage) -> Storage:
    """The same place, but what is opened there is copied once: for what never changes, and is needed at any time."""
    return NearStorage(storage) if isinstance(storage, S3Storage) else storage


def _resolved(store: StoreSpec | None) -> StoreSpec:
    return resolve(store or StoreSpec(), os.environ, aws_config)
