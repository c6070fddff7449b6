"""docker-compose.yml and what it mounts, as far as one gets without containers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from regen.spec import load_spec

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXAMPLES = (ROOT / ".env.example").read_text(encoding="utf-8")
SECRETS = {"STORE_ACCESS_KEY", "STORE_SECRET_KEY", "RAY_AUTH_TOKEN", "GRAFANA_PASSWORD"}
services = pytest.mark.parametrize("name", SERVICES)


def in_profile(profile: str) -> dict[str, dict[str, Any]]:
    return {name: found for name, found in SERVICES.items() if profile in found.get("profiles", [profile])}


@services
def test_every_image_has_a_version(name: str) -> None:
    image = SERVICES[name]["image"]
    if "build" not in SERVICES[name]:
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", image), image


def test_every_base_of_the_images_has_a_version() -> None:
    bases = re.findall(r"^FROM (\S+) AS (\w+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    assert [stage for _, stage in bases] == ["cpu", "gpu"]
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", image) for image, _ in bases), bases
    assert {SERVICES[name]["build"]["target"] for name in SERVICES if "build" in SERVICES[name]} == {"cpu", "gpu"}


@services
def test_every_port_is_on_loopback(name: str) -> None:
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in SERVICES[name].get("ports", []))
    assert SERVICES[name].get("network_mode") != "host"


def test_no_port_is_taken_twice_within_a_profile() -> None:
    for profile in ("cpu", "gpu"):
        ports = [port.rpartition(":")[0] for found in in_profile(profile).values() for port in found.get("ports", [])]
        assert len(set(ports)) == len(ports)


@services
def test_what_is_mounted_exists(name: str) -> None:
    for mount in SERVICES[name].get("volumes", []):
        source = mount.split(":")[0]
        assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], mount
        assert mount.endswith(":ro") or not source.startswith("."), f"{mount}: the checkout is not written to"


@services
def test_secrets_come_from_the_environment_and_stand_in_no_command(name: str) -> None:
    service = SERVICES[name]
    assert "$" not in json.dumps([service.get(key) for key in ("command", "entrypoint", "healthcheck", "build")])
    for variable, value in service.get("environment", {}).items():
        if re.search("KEY|SECRET|TOKEN|PASSWORD", variable):
            assert re.fullmatch(r"\$\{\w+:\?.+\}", value), f"{variable} is not from .env, or not asked for"


def test_every_variable_is_in_the_example_which_holds_no_secret() -> None:
    assert set(re.findall(r"\$\{(\w+)", TEXT)) == SECRETS
    given = dict(re.findall(r"^(\w+)=(.*)$", EXAMPLES, re.MULTILINE))
    assert set(given) == SECRETS | {"COMPOSE_PROFILES"}
    assert {given[name] for name in SECRETS} == {""}
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*", "an image gets what is named, and nothing else"


@services
def test_every_service_that_stays_says_whether_it_is_well(name: str) -> None:
    service = SERVICES[name]
    assert "healthcheck" in service or service["restart"] == "on-failure:3"
    for other, condition in service.get("depends_on", {}).items():
        assert other in SERVICES
        assert set(SERVICES[other].get("profiles", ())) <= set(service.get("profiles", ()))
        if condition["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_the_profiles_are_whole(profile: str) -> None:
    names = {name.removesuffix(f"-{profile}") for name in in_profile(profile)}
    assert names == {"model", "bucket", "head", "worker", "store", "prometheus", "grafana"}
    assert [name for name in in_profile(profile) if "gpu" in name] == ([] if profile == "cpu" else [
        "model-gpu", "bucket-gpu", "head-gpu", "worker-gpu",
    ])  # fmt: skip


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_the_spec_of_each_profile_fits_its_services(profile: str) -> None:
    spec = load_spec(ROOT / "examples" / f"compose-{profile}.yaml")
    head = SERVICES[f"head-{profile}"]
    bucket = SERVICES[f"bucket-{profile}"]["command"][-1]
    assert spec.output.startswith(f"s3://{bucket}/")
    assert spec.store is not None
    assert spec.store.endpoint == head["environment"]["AWS_ENDPOINT_URL_S3"] == "http://store:9000"
    assert spec.metrics.host == "0.0.0.0"
    assert f"127.0.0.1:{spec.metrics.port}:{spec.metrics.port}" in head["ports"]
    assert spec.target.model in " ".join(SERVICES[f"model-{profile}"]["command"])
    for source in spec.sources:
        assert (ROOT / Path(source.path).relative_to("/opt/regen")).exists()


def test_prometheus_scrapes_where_the_coordinator_listens_and_reads_the_rules() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    metrics = load_spec(ROOT / "examples" / "compose-cpu.yaml").metrics
    assert jobs["regen"]["static_configs"] == [{"targets": [f"head:{metrics.port}"]}]
    assert jobs["engine"]["dns_sd_configs"] == [{"names": ["worker"], "type": "A", "port": metrics.engine_port}]
    assert all("worker" in SERVICES[name]["networks"]["default"]["aliases"] for name in ("worker-cpu", "worker-gpu"))
    assert all("head" in SERVICES[name]["networks"]["default"]["aliases"] for name in ("head-cpu", "head-gpu"))
    mounted = {mount.split(":")[1]: ROOT / mount.split(":")[0] for mount in SERVICES["prometheus"]["volumes"]}
    assert [mounted[rules] for rules in config["rule_files"]] == [ROOT / "dashboards" / "alerts.yml"]


def test_grafana_is_given_the_dashboard_and_its_source() -> None:
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "regen.yml").read_text())["providers"]
    mounts = [mount.split(":")[:2] for mount in SERVICES["grafana"]["volumes"]]
    assert ["./dashboards/regen.json", f"{provider['options']['path']}/regen.json"] in mounts


def test_the_images_get_what_they_copy() -> None:
    """The build context is closed but for what .dockerignore opens."""
    opened = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = re.findall(r"^COPY (.+) \S+$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    copied = {path for line in lines for path in line.split()}
    assert copied == opened
    assert all((ROOT / path).exists() for path in copied)
