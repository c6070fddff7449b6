"""How S3 is reached: one resolved configuration for every client. Pure: environment and AWS configuration come in.

No secret passes through here. Keys are boto3's own affair: it looks for them in its own chain, again whenever they have
expired.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from regen.errors import SpecError
from regen.spec import AWS_ENDPOINT, StoreSpec

ADDRESSING_VARIABLE = "REGEN_S3_ADDRESSING"
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES = ("AWS_DEFAULT_REGION", "AWS_REGION")
_PROFILE_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_CHECKSUM_NAME = "request_checksum_calculation"
# What signs a request when nobody has named a region. Other stores than AWS do not look at it.
_ANY_REGION = "us-east-1"
_URL = re.compile(r"^s3://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,254})(?:/(?P<prefix>.*))?$")

# The AWS configuration of a profile (None: the default one): its own keys, and those of its `services` section.
AwsConfig = Callable[[str | None], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class S3Settings:
    """A place in a bucket, how it is reached, and with how much patience. `endpoint` None: AWS's own.

    boto3 repeats a call `attempts` times by itself; a refusal, a conflict or a cut answer is tried again as often, with
    pauses that begin at `pause_seconds`. Whoever calls the storage has more patience than that. A store that hangs is
    given up after `attempts` time-outs, before a worker that waits is taken for hung (run/schedule.py). Objects above
    `multipart_bytes` travel in parts of `part_bytes`.
    """

    bucket: str
    prefix: str
    endpoint: str | None
    region: str
    addressing: str
    checksum: str
    profile: str | None
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 20.0
    attempts: int = 3
    pause_seconds: float = 0.5
    multipart_bytes: int = 32 * 2**20
    part_bytes: int = 16 * 2**20

    @classmethod
    def of(cls, url: str, store: StoreSpec) -> S3Settings:
        """From a URL and resolved settings. Raises SpecError for a URL that names no place in a bucket."""
        found = _URL.match(url)
        prefix = (found["prefix"] or "").strip("/") if found else ""
        if found is None or (prefix and any(part in ("", ".", "..") for part in prefix.split("/"))):
            raise SpecError(f"output {url!r}: s3://bucket/prefix is wanted, with plain names between slashes")
        endpoint = None if store.endpoint == AWS_ENDPOINT else store.endpoint
        return cls(
            found["bucket"], prefix, endpoint, str(store.region), store.addressing, store.checksum, store.profile
        )

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def described(self, credentials: str) -> str:
        """One line for a person, without secrets; `credentials` names who provides them."""
        parts = [
            f"endpoint {self.endpoint or 'of AWS'}",
            f"region {self.region}",
            f"addressing {self.addressing}",
            f"checksums {self.checksum}",
            f"credentials from {credentials}",
        ]
        return f"{self.url}: {', '.join(parts)}" + (f" (profile {self.profile})" if self.profile else "")


def resolve(store: StoreSpec, environ: Mapping[str, str], config_of: AwsConfig) -> StoreSpec:
    """Every open setting filled in: from the environment, then the AWS configuration, then by the kind of endpoint.

    Resolving again changes nothing, whatever the environment says then. Raises SpecError.
    """
    profile = store.profile or _first(environ, _PROFILE_VARIABLES)
    config = config_of(profile)
    endpoint = store.endpoint or _endpoint(environ, config) or AWS_ENDPOINT
    is_aws = endpoint == AWS_ENDPOINT
    return _checked(
        {
            "profile": profile,
            "endpoint": endpoint,
            "region": store.region or _first(environ, _REGION_VARIABLES) or config.get("region") or _ANY_REGION,
            "addressing": _addressing(store, environ, config) or ("auto" if is_aws else "path"),
            "checksum": _checksum(store, environ, config) or ("when_supported" if is_aws else "when_required"),
        }
    )


@dataclass(frozen=True, slots=True)
class CredentialLife:
    """How long credentials last, as far as boto3 knows. `provider`: its name for where they come from, None: nowhere.

    `renews`: new ones are fetched by themselves before the end. `ends_at` has a time zone.
    """

    provider: str | None
    is_temporary: bool = False
    renews: bool = False
    ends_at: datetime | None = None


def credentials_remark(life: CredentialLife, hours: float | None, now: datetime) -> str | None:
    """What is to be said before a run that may take so many hours (None: open). None: they last."""
    if life.renews or not life.is_temporary:
        return None
    what_then = "the run waits then, and goes on when there are new ones"
    if life.ends_at is None:
        return (
            f"warning: the credentials from {life.provider} are temporary, and nothing says when they end: {what_then}"
        )
    left_hours = (life.ends_at - now).total_seconds() / 3600
    if hours is not None and left_hours >= hours:
        return None
    run = f"limits.hours is {hours:g}" if hours is not None else "limits.hours is not set"
    at = life.ends_at.isoformat(timespec="minutes")
    return (
        f"warning: the credentials from {life.provider} end in {max(0.0, left_hours):.1f} h, at {at}, and {run}:"
        f" {what_then}; ones that renew themselves (a role, a credential_process) need nobody"
    )


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _endpoint(environ: Mapping[str, str], config: Mapping[str, Any]) -> str | None:
    """In boto3's own order."""
    if (environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or "").lower() == "true":
        return None
    services = config.get("services")
    of_service = services.get("s3", {}).get("endpoint_url") if isinstance(services, Mapping) else None
    return _first(environ, _ENDPOINT_VARIABLES) or of_service or config.get("endpoint_url")


def _addressing(store: StoreSpec, environ: Mapping[str, str], config: Mapping[str, Any]) -> str | None:
    section = config.get("s3")
    of_config = section.get("addressing_style") if isinstance(section, Mapping) else None
    return _unless_auto(store.addressing, environ.get(ADDRESSING_VARIABLE), of_config)


def _checksum(store: StoreSpec, environ: Mapping[str, str], config: Mapping[str, Any]) -> str | None:
    of_environment = environ.get(f"AWS_{_CHECKSUM_NAME.upper()}")
    of_config = config.get(_CHECKSUM_NAME)
    return _unless_auto(store.checksum, of_environment and of_environment.lower(), of_config and of_config.lower())


def _unless_auto(*values: str | None) -> str | None:
    return next((value for value in values if value and value != "auto"), None)


def _checked(values: dict[str, Any]) -> StoreSpec:
    """The environment is judged as the spec is."""
    from pydantic import ValidationError

    try:
        return StoreSpec.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        given = f", {name} = {values.get(name)!r}" if name else ""
        raise SpecError(f"S3{given}, from the spec, the environment or the AWS configuration: {message}") from None
