"""What `plan.json` says, and `plan-0001.json` of a plan that was extended: its creation is the commit. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from regen.data.raw import SourceFile
from regen.records import PlanStage

PLAN_KEY = "plan.json"
VERSION = 2
_PART_KEY = re.compile(r"^plan/[\w-]+/[\w-]+\.parquet$", re.ASCII)
_EXTENSION_KEY = re.compile(r"^plan-(\d{4})\.json$", re.ASCII)
EXTENSIONS = "plan-"


def extension_key(number: int) -> str:
    """The name of the plan after so many extensions, counted from 1."""
    if not 1 <= number <= 9999:
        raise ValueError(f"a plan has the extensions 1 to 9999, not {number}")
    return f"{EXTENSIONS}{number:04d}.json"


def extension_number(key: str) -> int | None:
    """The inverse of `extension_key`; None for any other name."""
    found = _EXTENSION_KEY.match(key)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class PlanPart:
    """One Parquet file of the plan. `digest` is BLAKE2b over its bytes."""

    key: str
    rows: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """Where a rejected row is, and what is wrong with it. Both are bounded."""

    location: str
    detail: str


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """One source's numbers. `rejected` by reason, `notes` by what was changed; tokens and turns of accepted rows only.

    `accepted` are all rows that are not rejected; `native` of them pass through, and `changed` of them have a note.
    `left_out` are source rows that are not in the plan, by why (those after `limit` are not looked at, nor counted).
    `first_rejected` is the first row rejected for each reason, in the source's order.
    `prompt_tokens` is the sum over first prompts, `turns` the sum of assistant turns that the target is asked for,
    `most_turns` the most that one row asks for (0 in plans that do not say).
    """

    name: str
    rows: int
    accepted: int
    rejected: Mapping[str, int]
    notes: Mapping[str, int]
    prompt_tokens: int
    longest_prompt_tokens: int
    turns: int
    files: tuple[SourceFile, ...]
    first_rejected: Mapping[str, RejectedRow] = field(default_factory=dict)
    native: int = 0
    changed: int = 0
    eval_rows: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    most_turns: int = 0


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The plan as a whole: `rows` ordinals, of which `refused` and `native` are terminal from the start.

    Of an extended plan it covers the rows before too: `before` is what the plan was before each extension, oldest
    first, `session` made the newest, and `source_specs` is the spec's section that it was made with, as plain data.
    """

    session: str
    rows: int
    refused: int
    digest: str
    parts: tuple[PlanPart, ...]
    sources: tuple[SourceSummary, ...]
    native: int = 0
    version: int = VERSION
    before: tuple[PlanStage, ...] = ()
    source_specs: tuple[Mapping[str, Any], ...] = ()

    @property
    def stages(self) -> tuple[PlanStage, ...]:
        """What the plan was before each extension, and what it is now."""
        return (*self.before, PlanStage(self.rows, self.digest))

    @property
    def key(self) -> str:
        """The name that this summary has in the run folder."""
        return extension_key(len(self.before)) if self.before else PLAN_KEY

    def continues(self, earlier: PlanSummary) -> bool:
        """Whether this is `earlier` with one extension."""
        return self.before == earlier.stages and self.parts[: len(earlier.parts)] == earlier.parts

    def to_json(self) -> bytes:
        return (json.dumps(asdict(self), indent=1, ensure_ascii=True) + "\n").encode("ascii")

    @classmethod
    def from_json(cls, data: bytes) -> PlanSummary:
        """Raises ValueError, KeyError or TypeError on anything that is not a summary of this version."""
        values: dict[str, Any] = json.loads(data)
        if values["version"] != VERSION:
            raise ValueError(f"plan.json has version {values['version']}, this regen reads {VERSION}")
        parts = tuple(PlanPart(**part) for part in values.pop("parts"))
        if strange := [part.key for part in parts if not _PART_KEY.match(part.key)]:
            raise ValueError(f"{strange[0]!r} is no name of a part")
        sources = tuple(_source(source) for source in values.pop("sources"))
        before = tuple(PlanStage(**stage) for stage in values.pop("before", ()))
        specs = tuple(values.pop("source_specs", ()))
        return cls(parts=parts, sources=sources, before=before, source_specs=specs, **values)


def _source(values: dict[str, Any]) -> SourceSummary:
    files = tuple(SourceFile(**file) for file in values.pop("files"))
    first = {reason: RejectedRow(**row) for reason, row in values.pop("first_rejected", {}).items()}
    return SourceSummary(files=files, first_rejected=first, **values)
