"""One configuration out of spec, environment and AWS configuration; what is said of credentials."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from regen.errors import SpecError
from regen.spec import StoreSpec, output_shaping, parse_spec
from regen.store.s3_client import aws_config
from regen.store.s3_settings import CredentialLife, S3Settings, credentials_remark, resolve
from regen.store.storage import with_resolved_store
from tests.runs import make_spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENDPOINT = "http://127.0.0.1:9000"


def resolved(
    environ: Mapping[str, str] | None = None, config: Mapping[str, Any] | None = None, **given: Any
) -> StoreSpec:
    return resolve(StoreSpec(**given), environ or {}, lambda profile: config or {})


def test_without_a_word_it_is_aws() -> None:
    assert resolved() == StoreSpec(
        endpoint="aws", region="us-east-1", addressing="auto", checksum="when_supported", profile=None
    )
    assert S3Settings.of("s3://bucket/run", resolved()).endpoint is None


def test_another_endpoint_is_addressed_by_path_and_gets_no_checksums_it_did_not_ask_for() -> None:
    found = resolved({"AWS_ENDPOINT_URL_S3": ENDPOINT})

    assert (found.endpoint, found.addressing, found.checksum) == (ENDPOINT, "path", "when_required")


@pytest.mark.parametrize(
    ("environ", "config", "given", "expected"),
    [
        ({"AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_S3": "http://s3"}, {}, {}, {"endpoint": "http://s3"}),
        ({"AWS_ENDPOINT_URL_S3": "http://s3"}, {}, {"endpoint": "http://spec"}, {"endpoint": "http://spec"}),
        ({"AWS_ENDPOINT_URL_S3": "http://s3"}, {}, {"endpoint": "aws"}, {"endpoint": "aws", "addressing": "auto"}),
        (
            {},
            {"services": {"s3": {"endpoint_url": "http://a"}}, "endpoint_url": "http://b"},
            {},
            {"endpoint": "http://a"},
        ),
        ({}, {"endpoint_url": "http://b"}, {}, {"endpoint": "http://b"}),
        (
            {"AWS_ENDPOINT_URL": "http://all", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
            {},
            {},
            {"endpoint": "aws"},
        ),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, {"region": "x"}, {}, {"region": "eu-west-1"}),
        ({}, {"region": "eu-north-1"}, {}, {"region": "eu-north-1"}),
        ({"REGEN_S3_ADDRESSING": "virtual"}, {}, {}, {"addressing": "virtual"}),
        ({"REGEN_S3_ADDRESSING": "virtual"}, {}, {"addressing": "path"}, {"addressing": "path"}),
        ({}, {"s3": {"addressing_style": "path"}}, {}, {"addressing": "path"}),
        ({"AWS_REQUEST_CHECKSUM_CALCULATION": "WHEN_REQUIRED"}, {}, {}, {"checksum": "when_required"}),
        ({}, {"request_checksum_calculation": "when_required"}, {}, {"checksum": "when_required"}),
        ({"AWS_PROFILE": "work"}, {}, {}, {"profile": "work"}),
        ({"AWS_PROFILE": "work"}, {}, {"profile": "spec"}, {"profile": "spec"}),
    ],
)
def test_the_nearest_word_counts(
    environ: dict[str, str], config: dict[str, Any], given: dict[str, str], expected: dict[str, str]
) -> None:
    found = resolved(environ, config, **given).model_dump()

    assert {name: found[name] for name in expected} == expected


def test_what_is_resolved_stays_so_in_another_environment() -> None:
    here = resolved({"AWS_DEFAULT_REGION": "eu-west-1"})

    assert resolved({"AWS_ENDPOINT_URL": ENDPOINT, "AWS_DEFAULT_REGION": "x"}, **here.model_dump()) == here


@pytest.mark.parametrize("endpoint", ["localhost:9000", "minio", "ftp://host"])
def test_an_endpoint_says_how_it_is_spoken_to(endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="http:// or https://"):
        resolved({"AWS_ENDPOINT_URL_S3": endpoint})
    with pytest.raises(SpecError, match=r"store: .*http:// or https://"):
        make_spec(tmp_path, output="s3://bucket/run", store={"endpoint": endpoint})


@pytest.mark.parametrize("endpoint", ["http://user:a-secret@host", "user:a-secret@host:9000"])
def test_a_secret_in_an_endpoint_is_refused_and_not_repeated(endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="a user's name") as of_environment:
        resolved({"AWS_ENDPOINT_URL_S3": endpoint})
    with pytest.raises(SpecError, match="a user's name") as of_spec:
        make_spec(tmp_path, output="s3://bucket/run", store={"endpoint": endpoint})
    assert "a-secret" not in f"{of_environment.value}{of_spec.value}"


@pytest.mark.parametrize(
    ("name", "value"), [("REGEN_S3_ADDRESSING", "dns"), ("AWS_REQUEST_CHECKSUM_CALCULATION", "no")]
)
def test_a_word_of_the_environment_that_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(SpecError, match=value):
        resolved({name: value})


def test_the_aws_configuration_is_read_by_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text(
        "[default]\nregion = a\n[profile work]\nregion = b\nservices = mine\ns3 =\n  addressing_style = virtual\n"
        f"[services mine]\ns3 =\n  endpoint_url = {ENDPOINT}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    found = resolve(StoreSpec(profile="work"), {}, aws_config)
    assert (found.endpoint, found.region, found.addressing) == (ENDPOINT, "b", "virtual")
    assert resolve(StoreSpec(), {}, aws_config).region == "a"
    assert resolve(StoreSpec(profile="none"), {}, aws_config).endpoint == "aws"
    (tmp_path / "config").write_text("[default\nregion")
    with pytest.raises(SpecError, match="AWS configuration cannot be read"):
        aws_config(None)


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///x", "s3://b", "s3://bucket/a//b", "s3://bucket/../x", "s3://bu cket/x"]
)
def test_a_url_names_a_bucket_and_a_plain_prefix(url: str) -> None:
    with pytest.raises(SpecError, match="s3://bucket/prefix"):
        S3Settings.of(url, resolved())


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [("s3://bucket", "bucket", ""), ("s3://bucket/", "bucket", ""), ("s3://bkt/a/b/", "bkt", "a/b")],
)
def test_a_url_may_end_in_a_slash(url: str, bucket: str, prefix: str) -> None:
    found = S3Settings.of(url, resolved())

    assert (found.bucket, found.prefix) == (bucket, prefix)
    assert found.url == url.rstrip("/")


def test_the_configuration_is_described_in_one_line() -> None:
    found = S3Settings.of("s3://bucket/run", resolved(profile="work", endpoint=ENDPOINT))

    assert found.described("sso") == (
        f"s3://bucket/run: endpoint {ENDPOINT}, region us-east-1, addressing path, checksums when_required,"
        " credentials from sso (profile work)"
    )


@pytest.mark.parametrize(
    ("life", "hours", "expected"),
    [
        (CredentialLife("env"), 55, None),
        (CredentialLife("iam-role", True, True, NOW + timedelta(hours=1)), 55, None),
        (CredentialLife("env", True, False, NOW + timedelta(hours=12)), 10, None),
        (CredentialLife("env", True, False, NOW + timedelta(hours=12)), 55, "end in 12.0 h"),
        (CredentialLife("env", True, False, NOW + timedelta(hours=12)), None, "limits.hours is not set"),
        (CredentialLife("shared-credentials-file", True), 1, "nothing says when they end"),
    ],
)
def test_credentials_that_end_before_the_run_are_spoken_of(
    life: CredentialLife, hours: float | None, expected: str | None
) -> None:
    said = credentials_remark(life, hours, NOW)

    assert said is None if expected is None else expected in (said or "")


def test_how_the_store_is_reached_shapes_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(tmp_path, output="s3://bucket/run", store={"region": "a"})
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", ENDPOINT)

    both = [with_resolved_store(spec), spec.model_copy(update={"store": None})]
    assert both[0].store is not None
    assert both[0].store.endpoint == ENDPOINT
    assert output_shaping(both[0]) == output_shaping(both[1])


def test_a_store_section_needs_s3(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    with pytest.raises(SpecError, match="store: it says how S3 is reached"):
        parse_spec({**spec.model_dump(mode="json"), "store": {"region": "a"}}, origin="test")
