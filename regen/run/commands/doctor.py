"""`regen doctor`: visits what serves a model, asks it a little, and judges. One function per kind of subject.

`examine_server` asks a running server: it changes nothing there, and puts some dozen short prompts beside whatever it
does already. It is bounded by `seconds` as a whole, and every request by what is left of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from regen.checkpoints import Checkpoint, EngineFacts
from regen.data.checkpoint import read_checkpoint
from regen.data.model_files import LocalFiles, model_files
from regen.engines.http import Connection, server_url
from regen.engines.served import ServedModel, recognise
from regen.engines.vllm_facts import vllm_facts
from regen.errors import ExitCode, ServerUnavailable, SpecError
from regen.records import Acceptance
from regen.run.commands.doctor_prompts import PROMPTS
from regen.run.speculation.server_preflight import is_here
from regen.served import Asked, Counters, Phase, ServerFacts, ServerKind
from regen.spec import DRAFTLESS_METHODS
from regen.speculative.doctor.counts import count
from regen.speculative.doctor.diagnosis import Diagnosis, Verdict, diagnose
from regen.speculative.doctor.draft_files import DraftFiles, method_of, read_draft_files
from regen.speculative.doctor.visit import LEAST_DRAFTS, Expected, Visit
from regen.speculative.evidence import Finding

TEMPERATURES = (0.0, 1.0)
CAP_TOKENS = 128
_MOST_ROUNDS = 8
# Kept back for reading the totals after the last request.
_RESERVE_SECONDS = 10.0
_SETTLE_SECONDS = 2.0
_LEAST_SECONDS = 1.0
_CODES = {Verdict.HEALTHY: ExitCode.OK, Verdict.OFF: ExitCode.OK}
_REFUSED = (Verdict.DEAD, Verdict.COUNTERS_ABSENT, Verdict.OFF_PROFILE)


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """How to visit. `draft` is a folder or hub name; `api_key_env` names the variable that holds the key."""

    model: str | None = None
    seconds: float = 120.0
    concurrency: int = 8
    draft: str | None = None
    api_key_env: str | None = None
    expected: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What was seen, and what it comes to."""

    visit: Visit
    diagnosis: Diagnosis
    concurrency: int
    seconds: float

    @property
    def exit_code(self) -> ExitCode:
        """0 healthy or off, 3 for anything that should not be used as it is, 1 where nothing can be said."""
        if self.diagnosis.is_refused or self.diagnosis.verdict in _REFUSED:
            return ExitCode.PREFLIGHT
        return _CODES.get(self.diagnosis.verdict, ExitCode.FAILED)

    def facts(self) -> list[tuple[str, str]]:
        """What the server is, for people. What it does not disclose is said as such."""
        server, said = self.visit.facts, self.visit.facts.speculation
        version = server.version or "version not disclosed"
        context = f", context {server.context_tokens:,} tokens" if server.context_tokens else ""
        found = [
            ("server", f"{server.kind.value} {version} at {server.url}"),
            ("model", f"{server.model}{f' from {server.model_path}' if server.model_path else ''}{context}"),
            ("speculation", self.visit.speculating.value),
        ]
        if said is None:
            found.append(("method", "not disclosed"))
        elif said.method is not None:
            tokens = f", {said.num_tokens} tokens" if said.num_tokens is not None else ""
            found.append(("method", f"{said.method}{tokens}, draft {said.draft or 'not disclosed'}"))
        if self.visit.draft is not None:
            found.append(("draft's config", self.visit.draft.described))
            found.append(("auxiliary layers", self.visit.draft.layers or "none"))
        found += [(probe.parameter, f"{probe.fate.value}. {probe.detail}") for probe in self.visit.probes]
        return [*found, ("asked", self._load())]

    def _load(self) -> str:
        counted = self.visit.counted
        source = "counts are of these requests alone" if counted.is_per_request else "counts are the server's totals"
        return (
            f"{counted.answered + counted.failed} prompts, {self.concurrency} at a time, at most {CAP_TOKENS} tokens"
            f" each, {len(self.visit.phases)} phases at temperature 0 and 1 in turn, {self.seconds:.0f} s; {source}"
        )

    def counts(self) -> list[tuple[str, Acceptance]]:
        """Raw counts by name: all, by temperature, by rank where there are several. Empty where they are absent."""
        counted = self.visit.counted
        if counted.total is None:
            return []
        ranks = counted.by_rank.items() if len(counted.by_rank) > 1 else ()
        return [
            ("all", counted.total),
            *((f"temperature {value:g}", seen) for value, seen in counted.by_temperature.items()),
            *((f"rank {rank}", seen) for rank, seen in ranks),
        ]

    def all_findings(self) -> tuple[Finding, ...]:
        """What its settings and the draft's files have shown."""
        return tuple(self.diagnosis.findings)

    def conclusion(self) -> list[tuple[str, str]]:
        """The verdict, why, and likely causes."""
        return [(self.diagnosis.verdict.value, self.diagnosis.because), *named_causes(self.diagnosis.causes)]

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "verdict": self.diagnosis.verdict.value,
            "because": self.diagnosis.because,
            "causes": list(self.diagnosis.causes),
            "findings": [finding.to_json() for finding in self.diagnosis.findings],
            "server": _server_json(self.visit.facts),
            "speculation": _speculation_json(self.visit),
            "load": self._load_json(),
            "counts": _counts_json(self.visit),
            "sampling": [
                {"parameter": probe.parameter, "fate": probe.fate.value, "detail": probe.detail}
                for probe in self.visit.probes
            ],
        }

    def _load_json(self) -> dict[str, Any]:
        counted = self.visit.counted
        return {
            "answered": counted.answered,
            "failed": counted.failed,
            "concurrency": self.concurrency,
            "cap_tokens": CAP_TOKENS,
            "temperatures": list(TEMPERATURES),
            "route": self.visit.route.value,
            "seconds": round(self.seconds, 1),
            "own_tokens": counted.own_tokens,
            "server_tokens": counted.server_tokens,
            "foreign_tokens": counted.foreign_tokens,
        }


def named_causes(causes: Iterable[str]) -> list[tuple[str, str]]:
    """For a table of names and values: the likeliest first."""
    return [("or" if place else "likely cause", cause) for place, cause in enumerate(causes)]


def examine_server(address: str, options: DoctorOptions, say: Callable[[str], None]) -> Report:
    """A running vLLM or SGLang server.

    Raises SpecError for an address, key, model or draft that will not do; ServerUnavailable if nobody answers as such a
    server does, or not in time.
    """
    url, key = server_url(address), _api_key(options.api_key_env)
    started = time.monotonic()
    visit = asyncio.run(_visit_in_time(url, key, options, say))
    return Report(visit, diagnose(visit), options.concurrency, time.monotonic() - started)


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise SpecError(f"--api-key-env names {variable!r}, and no such variable is set: export it first")
    return key


async def _visit_in_time(url: str, key: str | None, options: DoctorOptions, say: Callable[[str], None]) -> Visit:
    try:
        async with asyncio.timeout(options.seconds), Connection(url, key) as connection:
            return await _visit(connection, options, say)
    except TimeoutError as error:
        raise ServerUnavailable(f"{url}: not done within {options.seconds:g} s: give more --seconds") from error


async def _visit(connection: Connection, options: DoctorOptions, say: Callable[[str], None]) -> Visit:
    end = asyncio.get_running_loop().time() + options.seconds - min(_RESERVE_SECONDS, options.seconds / 4)
    server = await recognise(connection, options.model)
    say(f"{server.facts.kind.value} {server.facts.version or ''} at {connection.url} serves {server.facts.model}")
    draft, unread = await asyncio.to_thread(_draft_files, server.facts, options.draft)
    route = await server.choose_route(end - asyncio.get_running_loop().time())
    probes = await server.probes()
    phases = tuple([phase async for phase in _phases(server, options.concurrency, end, say)])
    return Visit(
        facts=server.facts,
        route=route,
        probes=probes,
        phases=phases,
        counted=count(phases),
        draft=draft,
        unread_draft=unread,
        expected=Expected(options.expected) if options.expected else None,
    )


# --- load ----------------------------------------------------------------------------------------


async def _phases(
    server: ServedModel, concurrency: int, end: float, say: Callable[[str], None]
) -> AsyncIterator[Phase]:
    """Rounds over all temperatures until there are verifications enough, or the time is used up."""
    phases: list[Phase] = []
    now = asyncio.get_running_loop().time
    for number in range(_MOST_ROUNDS * len(TEMPERATURES)):
        temperature, began = TEMPERATURES[number % len(TEMPERATURES)], now()
        is_first = number < len(TEMPERATURES)
        # Each temperature of the first round gets its share of what is left, however slow the server.
        until = began + (end - began) / (len(TEMPERATURES) - number) if is_first else end
        phase = await _phase(server, temperature, concurrency, until)
        phases.append(phase)
        yield phase
        say(f"temperature {temperature:g}: {len(phase.requests)} prompts in {now() - began:.0f} s")
        is_round_done = (number + 1) % len(TEMPERATURES) == 0
        if end - now() < _LEAST_SECONDS or (is_round_done and (_is_enough(phases) or end - now() < now() - began)):
            return


def _is_enough(phases: list[Phase]) -> bool:
    """Also where more would not help: no counters, not one draft."""
    counted = count(phases)
    if counted.total is None or counted.total.drafts == 0:
        return True
    return all(seen.drafts >= LEAST_DRAFTS for seen in (counted.total, *counted.by_rank.values()))


async def _phase(server: ServedModel, temperature: float, concurrency: int, until: float) -> Phase:
    before = await server.counters()
    requests = await _ask_all(server, temperature, concurrency, until)
    own = sum(request.output_tokens or 0 for request in requests)
    return Phase(temperature, before, await _settled(server, before, own), requests)


async def _ask_all(server: ServedModel, temperature: float, concurrency: int, until: float) -> tuple[Asked, ...]:
    """`concurrency` prompts at a time, each bounded by `until`; none is begun after it."""
    texts, answers = iter(_texts(concurrency)), []
    now = asyncio.get_running_loop().time

    async def ask_in_turn() -> None:
        for text in texts:
            left = until - now()
            if left <= 0:
                return
            answers.append(await server.ask(text, temperature, CAP_TOKENS, left))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(ask_in_turn())
    return tuple(answers)


def _texts(concurrency: int) -> Iterator[str]:
    """Every prompt once, and no fewer than two for each of those that run at a time."""
    return islice(cycle(PROMPTS), max(len(PROMPTS), 2 * concurrency))


async def _settled(server: ServedModel, before: Counters, own_tokens: int) -> Counters:
    """The totals, once they hold our own tokens: a server publishes them a step late."""
    now = asyncio.get_running_loop().time
    until = now() + _SETTLE_SECONDS
    while True:
        after = await server.counters()
        if after.output_tokens is None or before.output_tokens is None:
            return after
        if after.output_tokens - before.output_tokens >= own_tokens or now() > until:
            return after
        await asyncio.sleep(0.1)


# --- files ---------------------------------------------------------------------------------------


def _draft_files(facts: ServerFacts, given: str | None) -> tuple[DraftFiles | None, str | None]:
    """What the draft's files say, or why they were not read. Raises SpecError for a given draft that is nowhere."""
    disclosed = facts.speculation.draft if facts.speculation is not None else None
    if given is None and (
        method_of(facts) in DRAFTLESS_METHODS or (facts.speculation and facts.speculation.method is None)
    ):
        return None, None
    if given is None and (disclosed is None or not is_here(facts, disclosed)):
        said = f"its draft is {disclosed!r}, which is out of reach here" if disclosed else "the server names no draft"
        return None, said
    draft = _checkpoint(given or disclosed or "")
    target = _target(facts)
    return read_draft_files(facts, draft, target, _engine_facts(facts, target)), None


def _checkpoint(name: str) -> Checkpoint:
    try:
        files = model_files(name)
    except (OSError, ValueError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SpecError(f"--draft {name!r} is no folder and was not found on the hub: {first_line}") from error
    return read_checkpoint(name, files, with_samples=isinstance(files, LocalFiles))


def _target(facts: ServerFacts) -> Checkpoint | None:
    path = facts.model_path
    if path is None or not is_here(facts, path):
        return None
    return read_checkpoint(path, LocalFiles(Path(path)), with_samples=False, with_headers=False)


def _engine_facts(facts: ServerFacts, target: Checkpoint | None) -> EngineFacts:
    """The installed vLLM's source speaks for the server's only if both are the same version."""
    unknown = EngineFacts(facts.kind.value, facts.version)
    if facts.kind is not ServerKind.VLLM:
        return unknown
    names = ((target.config if target is not None else None) or {}).get("architectures") or ()
    known = vllm_facts(tuple(map(str, names)))
    return known if known.version == facts.version else unknown


# --- JSON ----------------------------------------------------------------------------------------


def _server_json(facts: ServerFacts) -> dict[str, Any]:
    return {
        "url": facts.url,
        "kind": facts.kind.value,
        "version": facts.version,
        "model": facts.model,
        "model_path": facts.model_path,
        "context_tokens": facts.context_tokens,
    }


def _speculation_json(visit: Visit) -> dict[str, Any]:
    said = visit.facts.speculation
    return {
        "state": visit.speculating.value,
        "is_disclosed": said is not None,
        "method": said.method if said is not None else None,
        "draft": said.draft if said is not None else None,
        "num_tokens": said.num_tokens if said is not None else None,
        "settings": dict(said.settings) if said is not None else None,
        "draft_config_says": visit.draft.described if visit.draft is not None else None,
        "auxiliary_layers": visit.draft.layers if visit.draft is not None else None,
    }


def _counts_json(visit: Visit) -> dict[str, Any]:
    counted = visit.counted
    return {
        "is_per_request": counted.is_per_request,
        "total": None if counted.total is None else _acceptance_json(counted.total),
        "by_temperature": {f"{value:g}": _acceptance_json(seen) for value, seen in counted.by_temperature.items()},
        "by_rank": {rank: _acceptance_json(seen) for rank, seen in counted.by_rank.items()},
        "server_averages": dict(visit.phases[-1].after.averages) if visit.phases else {},
    }


def _acceptance_json(seen: Acceptance) -> dict[str, Any]:
    return {
        "drafts": seen.drafts,
        "drafted": seen.drafted,
        "accepted": seen.accepted,
        "accepted_by_position": list(seen.accepted_by_position),
        "accept_length": seen.accept_length,
    }
