"""A real Prometheus for tests, and its promtool: what is on the PATH, or Debian's package below `.cache/prometheus`.

Unpacked only: nothing is installed, no service starts. Needs `apt-get` and `dpkg`, but not root. Costs seconds and
100 MB, once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.processes import end, free_port, wait_until

REPOSITORY = Path(__file__).resolve().parent.parent
FETCH_SECONDS = 300
Series = Mapping[str, str]


class NoPrometheus(Exception):
    """It is not installed, and Debian's package cannot be fetched here."""


@dataclass(frozen=True, slots=True)
class Programs:
    prometheus: Path
    promtool: Path


def programs() -> Programs:
    """What is on the PATH, or Debian's package. Raises NoPrometheus."""
    found = shutil.which("prometheus"), shutil.which("promtool")
    if found[0] and found[1]:
        return Programs(Path(found[0]), Path(found[1]))
    folder = REPOSITORY / ".cache" / "prometheus"
    binaries = folder / "usr" / "bin"
    if not (folder / "is-complete").exists():
        _unpack(folder)
        (folder / "is-complete").touch()
    return Programs(binaries / "prometheus", binaries / "promtool")


def _unpack(folder: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise NoPrometheus("prometheus and promtool are not on the PATH, and this is no Debian to get them from")
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True)
    # Lists and archives of its own: the machine's may be missing, old, or root's.
    own = ["-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder}"]
    _said(["apt-get", *own, "-qq", "update"], folder)
    _said(["apt-get", *own, "-qq", "download", "prometheus"], folder)
    (package,) = folder.glob("prometheus_*.deb")
    _said(["dpkg", "-x", str(package), str(folder)], folder)
    shutil.rmtree(folder / "lists")


def _said(words: Sequence[str], folder: Path) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS)
    if done.returncode:
        raise NoPrometheus(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")


class Prometheus:
    """A running server. Times are seconds since the epoch."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def asked(self, path: str, **words: str | Sequence[str]) -> Any:
        """The answer's `data`. Raises AssertionError with what the server says when it is no success."""
        body = urllib.parse.urlencode(words, doseq=True).encode()
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{body.decode()}", timeout=30) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {words}: {error.read().decode(errors='replace')}") from error
        return said["data"]

    def values(self, expr: str, start: float, end: float, step: float) -> list[tuple[Series, list[float]]]:
        """The series that an expression gives over a time, each with its values; not-a-number is among them."""
        found = self.asked("query_range", query=expr, start=f"{start}", end=f"{end}", step=f"{step}")
        return [(one["metric"], [float(value) for _, value in one["values"]]) for one in found["result"]]

    def raw(self, selector: str, start: float, end: float) -> list[tuple[Series, list[float]]]:
        """The samples as they were scraped."""
        found = self.asked("query", query=f"{selector}[{round(end - start)}s]", time=f"{end}")
        return [(one["metric"], [float(value) for _, value in one["values"]]) for one in found["result"]]

    def now(self, expr: str) -> dict[tuple[str, ...], float]:
        """By the values of all labels but the name's."""
        found = self.asked("query", query=expr)["result"]
        return {
            tuple(value for label, value in sorted(one["metric"].items()) if label != "__name__"): float(
                one["value"][1]
            )
            for one in found
        }

    @property
    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                return True
        except OSError:
            return False


@contextmanager
def prometheus(found: Programs, folder: Path, target_port: int, rules: Path | None = None) -> Iterator[Prometheus]:
    """A server that scrapes one port of loopback each second as job `regen`; ended, by pid, when the block ends."""
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)] if rules else [],
        "scrape_configs": [{"job_name": "regen", "static_configs": [{"targets": [f"127.0.0.1:{target_port}"]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    port = free_port()
    words: list[str | Path] = [
        found.prometheus,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    server = Prometheus(port)
    try:
        wait_until(lambda: server.is_ready or process.poll() is not None)
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield server
    finally:
        end(process)
