"""What `plan.json` says: its creation is the plan's commit. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from regen.data.raw import SourceFile

PLAN_KEY = "plan.json"
VERSION = 2


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
    `prompt_tokens` is the sum over first prompts, `turns` the sum of assistant turns that the target is asked for.
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


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The plan as a whole: `rows` ordinals, of which `refused` and `native` are terminal from the start."""

    session: str
    rows: int
    refused: int
    digest: str
    parts: tuple[PlanPart, ...]
    sources: tuple[SourceSummary, ...]
    native: int = 0
    version: int = VERSION

    def to_json(self) -> bytes:
        return (json.dumps(asdict(self), indent=1, ensure_ascii=True) + "\n").encode("ascii")

    @classmethod
    def from_json(cls, data: bytes) -> PlanSummary:
        """Raises ValueError, KeyError or TypeError on anything that is not a summary of this version."""
        values: dict[str, Any] = json.loads(data)
        if values["version"] != VERSION:
            raise ValueError(f"plan.json has version {values['version']}, this regen reads {VERSION}")
        parts = tuple(PlanPart(**part) for part in values.pop("parts"))
        sources = tuple(_source(source) for source in values.pop("sources"))
        return cls(parts=parts, sources=sources, **values)


def _source(values: dict[str, Any]) -> SourceSummary:
    files = tuple(SourceFile(**file) for file in values.pop("files"))
    first = {reason: RejectedRow(**row) for reason, row in values.pop("first_rejected", {}).items()}
    return SourceSummary(files=files, first_rejected=first, **values)
