"""Finished rows as plain values, as an export reads them, with what not every schema has (calls, split)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from regen.rows import to_values
from regen.store.export.selection import Row
from tests.output_rows import output_row

PROMPT = (1, 2, 3)


def message(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "reasoning": None, **more}


def generation(turn: int = 0, ids: Sequence[int] = (7, 8, 9), **more: Any) -> dict[str, Any]:
    """Its prompt is all that came before, its sampling stops at 9."""
    made = dict(to_values(output_row(0))["generations"][0])
    sampling = {**json.loads(made["sampling"]), "stop_token_ids": [9]}
    return {
        **made,
        "turn": turn,
        "prompt_token_ids": [*PROMPT, *[4] * turn],
        "completion_token_ids": list(ids),
        "sampling": json.dumps(sampling),
        **more,
    }


def finished(turns: int = 1, **more: Any) -> Row:
    """An `ok` row of so many turns; `more` replaces columns."""
    messages = []
    for turn in range(turns):
        messages += [message("user", f"q{turn}"), message("assistant", f"a{turn}")]
    return {
        **to_values(output_row(0)),
        "messages": messages,
        "generations": [generation(turn) for turn in range(turns)],
        **more,
    }
