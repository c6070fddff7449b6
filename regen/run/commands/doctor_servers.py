"""`regen doctor SPEC` where the spec has servers: each of them is visited as `regen doctor URL` would, one by one.

Then one engine of the spec's own, if it may have any. A server that does not answer is told, and does not keep the
others from being looked at. Costs `seconds` for each server; nothing of a run is planned or written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from regen.data.target import resolve_target
from regen.errors import ExitCode, RegenError
from regen.records import Acceptance
from regen.run.commands.doctor import DoctorOptions, Report, examine_server
from regen.run.commands.doctor_spec import SpecReport, examine_spec
from regen.run.speculation.preflight import examine
from regen.spec import RunSpec
from regen.speculative.evidence import Finding, Severity
from regen.store.storage import open_storage

_CONCURRENCY = 8
# The worst first.
_CODES = (ExitCode.PREFLIGHT, ExitCode.USAGE, ExitCode.ENGINE, ExitCode.FAILED, ExitCode.OK)


@dataclass(frozen=True, slots=True)
class Visited:
    """One server: its report, or why there is none."""

    url: str
    report: Report | None
    error: RegenError | None = None

    @property
    def exit_code(self) -> ExitCode:
        if self.error is not None:
            return self.error.exit_code
        return self.report.exit_code if self.report is not None else ExitCode.FAILED

    def facts(self) -> list[tuple[str, str]]:
        """For people."""
        return self.report.facts() if self.report is not None else [("server", f"{self.url}: not examined")]

    def conclusion(self) -> list[tuple[str, str]]:
        """What it comes to."""
        return self.report.conclusion() if self.report is not None else [("not examined", str(self.error))]


@dataclass(frozen=True, slots=True)
class ServersReport:
    """What the spec's files say, its servers in their order, and an engine of its own (None: it has none)."""

    findings: tuple[Finding, ...]
    servers: tuple[Visited, ...]
    own: SpecReport | None

    @property
    def exit_code(self) -> ExitCode:
        """The worst of all."""
        found = {visited.exit_code for visited in self.servers}
        found |= {self.own.exit_code} if self.own is not None else set()
        found |= {ExitCode.PREFLIGHT} if any(one.severity is Severity.REFUSE for one in self.findings) else set()
        return next((code for code in _CODES if code in found), ExitCode.OK)

    def facts(self) -> list[tuple[str, str]]:
        """For people, one after the other."""
        found = [fact for visited in self.servers for fact in visited.facts()]
        return [*found, *(self.own.facts() if self.own is not None else ())]

    def counts(self) -> list[tuple[str, Acceptance]]:
        """Raw counts by server."""
        found = [
            (f"{visited.url}: {name}", seen)
            for visited in self.servers
            for name, seen in (visited.report.counts() if visited.report is not None else ())
        ]
        return [*found, *(self.own.counts() if self.own is not None else ())]

    def all_findings(self) -> tuple[Finding, ...]:
        """Of files, then of each server; the same one of several servers once."""
        reports = [visited.report for visited in self.servers if visited.report is not None]
        found = [*self.findings, *(finding for report in reports for finding in report.all_findings())]
        return tuple(dict.fromkeys(found))

    def conclusion(self) -> list[tuple[str, str]]:
        """A verdict for each."""
        found = [(visited.url, f"{name}: {text}") for visited in self.servers for name, text in visited.conclusion()]
        return [*found, *(self.own.conclusion() if self.own is not None else ())]

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "findings": [finding.to_json() for finding in self.findings],
            "servers": [
                visited.report.to_json()
                if visited.report is not None
                else {"server": {"url": visited.url}, "verdict": None, "error": str(visited.error)}
                for visited in self.servers
            ],
            "engine": self.own.to_json() if self.own is not None else None,
        }


def examine_servers(spec: RunSpec, seconds: float, say: Callable[[str], None]) -> ServersReport:
    """`seconds` for each server. Raises SpecError for the spec's own part, EngineError for its own engine's."""
    findings = examine(spec, resolve_target(spec.target), open_storage(spec.output, spec.store))
    is_readable = not any(finding.code == "draft-unread" for finding in findings)
    servers = tuple(_visited(slot, spec, is_readable, seconds, say) for slot in range(len(spec.engine.endpoints)))
    own = examine_spec(spec, seconds, say) if spec.engine.own.max else None
    return ServersReport(tuple(findings), servers, own)


def _visited(slot: int, spec: RunSpec, is_readable: bool, seconds: float, say: Callable[[str], None]) -> Visited:
    endpoint, speculation = spec.engine.endpoints[slot], spec.speculation
    expected = speculation.expected if speculation is not None else None
    options = DoctorOptions(
        model=endpoint.model,
        seconds=seconds,
        concurrency=min(spec.engine.slots_of(slot), _CONCURRENCY),
        draft=speculation.draft if speculation is not None and is_readable else None,
        api_key_env=endpoint.api_key_env,
        expected=tuple(expected.by_position) if expected is not None else None,
    )
    try:
        return Visited(endpoint.url, examine_server(endpoint.url, options, say))
    except RegenError as error:
        say(f"{endpoint.url}: {error}")
        return Visited(endpoint.url, None, error)
