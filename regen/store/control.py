"""Control records: all that must last besides finished rows, as frozen values in the footers of journal files.

A new kind is one dataclass with its own `kind`, and its place in `Record`. A kind or field that is not known stops
whoever reads it: skipping a record could undo a decision that it carries. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from regen.errors import StoreRefused
from regen.records import RetryReason

_STRICT = ConfigDict(extra="forbid")


class ReleaseReason(StrEnum):
    """Why a session let go of the run."""

    FINISHED = "finished"
    DRAINED = "drained"
    FAILED = "failed"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class Claim:
    """From here on the run is this session's. `pid` is the coordinator's; `started_at` is ISO 8601 text."""

    session: str
    host: str
    pid: int
    driver_pid: int
    started_at: str
    take_over: bool = False
    kind: Literal["claim"] = "claim"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class Released:
    """The session has stopped by itself and will not publish again. `at` is ISO 8601 text."""

    session: str
    reason: ReleaseReason
    at: str
    kind: Literal["released"] = "released"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class DriftAccepted:
    """The user went on although what shapes outputs had changed.

    `fields` has, by dotted name, what it was and what it is now, each as JSON text.
    """

    session: str
    fields: Mapping[str, tuple[str, str]]
    fingerprint_before: str
    fingerprint_after: str
    kind: Literal["drift_accepted"] = "drift_accepted"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class RowAttempts:
    """How often rows that are not done yet were tried so far: (ordinal, round, attempts).

    A later record replaces single entries; 0 attempts: the row is done. In another round a row begins anew.
    """

    attempts: tuple[tuple[int, int, int], ...]
    kind: Literal["row_attempts"] = "row_attempts"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class SuspectGroup:
    """Rows that run together and with nobody else; `slots` are where engines died with them, `home` is to run them."""

    rows: tuple[int, ...]
    slots: tuple[int, ...]
    home: int | None


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class SoloKill:
    """An engine died while it had this row alone. `told` for people."""

    ordinal: int
    slot: int
    is_stall: bool
    told: str


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class SuspectRows:
    """All rows that are suspected of killing engines (run/fleet); it replaces the one before. Done rows are none.

    Deaths on `distrusted` slots of this session blame no row.
    """

    session: str
    groups: tuple[SuspectGroup, ...]
    kills: tuple[SoloKill, ...]
    distrusted: tuple[int, ...]
    kind: Literal["suspect_rows"] = "suspect_rows"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class RowsReopened:
    """From here on these rows are wanted once more, in round `round`, above any that they were made in.

    `rows` is an `OrdinalSet`'s text, `count` its size; `sampling` are fields by name, over what the row was sampled
    with before. `asked` says by what the rows were chosen, as JSON text. A row's old result counts until the new one.
    """

    session: str
    round: int
    rows: str
    count: int
    sampling: Mapping[str, float | int]
    asked: str
    at: str
    kind: Literal["rows_reopened"] = "rows_reopened"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class RetriesEnded:
    """Rows whose retry has no answer: the older result stays. `rows`: (ordinal, round, status, reason) of the retry."""

    session: str
    rows: tuple[tuple[int, int, str, str], ...]
    kind: Literal["retries_ended"] = "retries_ended"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class PlanExtended:
    """The plan has `rows` more, and `plan_rows` with them; `digest` is the plan's from here on.

    The rows, and the sources that they come from, are in the plan's own summary.
    """

    session: str
    rows: int
    plan_rows: int
    digest: str
    at: str
    kind: Literal["plan_extended"] = "plan_extended"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class RunClosed:
    """Nothing is ever made for this run again: its rows, `rows` of them, are in its shards, which were verified.

    It is in the last file of the journal, number `number`, together with a snapshot: the files before it do not count
    any more, and may be deleted.
    """

    session: str
    number: int
    rows: int
    shards: int
    at: str
    kind: Literal["run_closed"] = "run_closed"


class DecidedBy(StrEnum):
    """Who decided about speculation."""

    GATE = "gate"
    CALIBRATION = "calibration"
    GUARD = "guard"


class Verdict(StrEnum):
    """What calibration says; the gate and the guard have words of their own."""

    MEASURED = "measured"
    UNMEASURED = "unmeasured"
    LEFT_OUT = "left_out"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class SpeculationConfigured:
    """From here on the user wants this: `speculation` is the spec's section as JSON text, None for off."""

    session: str
    speculation: str | None
    kind: Literal["speculation_configured"] = "speculation_configured"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class SpeculationDecided:
    """With what engines are started from here on.

    `slot` None: all of them. `speculation` is a spec's section as JSON text, None for off; `subject` is the digest of
    what the decision was made about (the configured speculation and all that its speed depends on): with another one it
    does not hold. `verdict` is a closed word, `reason` a sentence, `evidence` JSON text.
    """

    session: str
    by: DecidedBy
    subject: str
    slot: int | None
    arm: str
    speculation: str | None
    verdict: str
    reason: str
    evidence: str
    at: str
    kind: Literal["speculation_decided"] = "speculation_decided"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class ArmMeasured:
    """One engine's stretch of calibration: windows with full slots only. `subject` as in `SpeculationDecided`."""

    session: str
    subject: str
    slot: int
    arm: str
    speculation: str | None
    stage: int
    seconds: float
    output_tokens: int
    rates: tuple[float, ...]
    drafts: int
    accepted: int
    prompt_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    start_seconds: float
    kind: Literal["arm_measured"] = "arm_measured"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class FilesVoided:
    """These journal files do not count, whatever lies under their names: their rows are not done by them.

    `numbers` are ranges, both ends included, each with its reason. The file that carries this has a snapshot of what
    the other files amount to, so that no reader needs a voided one.
    """

    session: str
    numbers: tuple[tuple[int, int], ...]
    reasons: tuple[str, ...]
    at: str
    kind: Literal["files_voided"] = "files_voided"


class SlotCounts(NamedTuple):
    """One slot's `SlotTally`. Times in tenths of a second, cut off: small on disk, and never more than there was."""

    slot: int
    engine_tenths: int = 0
    sampled_tokens: int = 0
    computed_prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    starts: int = 0
    restarts: int = 0
    stalls: int = 0
    busy_tenths: int = 0
    starved_tenths: int = 0
    held_back_tenths: int = 0
    no_rows_tenths: int = 0
    starting_tenths: int = 0
    gone_tenths: int = 0
    gpu_tenths: int = 0
    released_tenths: int = 0


class SlotReading(NamedTuple):
    """Of one slot the newest engine that was heard of, and what it had counted: its part of `SlotCounts`."""

    slot: int
    incarnation: int
    is_gone: bool = False
    sampled_tokens: int = 0
    computed_prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class RunTally:
    """What has happened in this run so far that no row tells (`records.Tally`); it replaces the one before.

    `seen` is from where a later coordinator of `session` goes on; in another session all engines are new. `retries` are
    failed attempts by reason.
    """

    session: str
    slots: tuple[SlotCounts, ...]
    seen: tuple[SlotReading, ...]
    retries: Mapping[RetryReason, int]
    store_errors: int = 0
    coordinator_restarts: int = 0
    kind: Literal["run_tally"] = "run_tally"


Record = (
    Claim
    | Released
    | DriftAccepted
    | RowAttempts
    | SuspectRows
    | RowsReopened
    | RetriesEnded
    | PlanExtended
    | RunClosed
    | SpeculationConfigured
    | SpeculationDecided
    | ArmMeasured
    | FilesVoided
    | RunTally
)
_ADAPTER: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


@dataclass(frozen=True, slots=True)
class Standing:
    """What all records up to some file amount to.

    `released` is set only if the session of `claim` has let go. `records` are all other records that still matter, in
    order, with `RowAttempts` merged into one, and the last `SuspectRows` and `RunTally` only.
    """

    claim: Claim | None = None
    released: Released | None = None
    records: tuple[Record, ...] = field(default=())

    def after(self, records: Iterable[Record]) -> Standing:
        """This, and then those."""
        standing = self
        for record in records:
            standing = standing._after(record)
        return standing

    def _after(self, record: Record) -> Standing:
        match record:
            case Claim():
                return replace(self, claim=record, released=None)
            case Released():
                is_holder = self.claim is not None and self.claim.session == record.session
                return replace(self, released=record) if is_holder else self
            case RowAttempts():
                return replace(self, records=_with_attempts(self.records, record))
            case SuspectRows():
                others = _without(SuspectRows, self.records)
                is_over = not (record.groups or record.kills or record.distrusted)
                return replace(self, records=others if is_over else (*others, record))
            case RunTally():
                return replace(self, records=(*_without(RunTally, self.records), record))
            case _:
                return replace(self, records=(*self.records, record))

    def to_json(self) -> list[dict[str, Any]]:
        """For a snapshot: records that amount to this standing."""
        present = [record for record in (self.claim, self.released) if record is not None]
        return [to_json(record) for record in (*present, *self.records)]


class Voided:
    """Numbers of journal files that do not count. A few ranges: asking costs as many comparisons."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._ranges = [numbers for record in records for numbers in _without_count(record)]

    def __contains__(self, number: int) -> bool:
        return any(number in numbers for numbers in self._ranges)

    def __bool__(self) -> bool:
        return bool(self._ranges)


def _without_count(record: Record) -> Iterator[range]:
    if isinstance(record, FilesVoided):
        yield from (range(first, last + 1) for first, last in record.numbers)
    elif isinstance(record, RunClosed):
        yield range(record.number)


def to_json(record: Record) -> dict[str, Any]:
    """Plain data for a footer."""
    return asdict(record)


def from_json(values: object, where: str) -> Record:
    """The inverse of `to_json`. Raises StoreRefused, naming `where`, for a kind or shape that is not known here."""
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        kind = values.get("kind") if isinstance(values, dict) else values
        first = error.errors(include_url=False)[0]
        raise StoreRefused(
            f"{where}: a control record of kind {kind!r} cannot be understood ({first['msg']});"
            " it was written by another version of regen: use that version, nothing was changed"
        ) from error


def _without(kind: type[Record], records: tuple[Record, ...]) -> tuple[Record, ...]:
    return tuple(record for record in records if not isinstance(record, kind))


def _with_attempts(records: tuple[Record, ...], new: RowAttempts) -> tuple[Record, ...]:
    merged: dict[int, tuple[int, int]] = {}
    for record in (*records, new):
        if isinstance(record, RowAttempts):
            merged.update({ordinal: (round_, attempts) for ordinal, round_, attempts in record.attempts})
    kept = tuple((ordinal, round_, attempts) for ordinal, (round_, attempts) in sorted(merged.items()) if attempts)
    others = _without(RowAttempts, records)
    return (*others, RowAttempts(kept)) if kept else others
