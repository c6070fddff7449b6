"""What a chat template writes around an answer, found by rendering one small conversation."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from regen.data.template import TokenizerTemplate
from regen.errors import RowRefused

_MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_USER: dict[str, object] = {"role": "user", "content": "x"}
_ANSWER: dict[str, object] = {"role": "assistant", "content": "y"}


@dataclass(frozen=True, slots=True)
class TurnMarkers:
    """Text around an answer: `before` is what asks for it, `closing` what the target itself ends it with, `behind` what
    the template writes after that, `behind_tokens` ids long. `marks_answers`: the template says where they are.
    """

    before: str
    closing: str
    behind: str
    behind_tokens: int
    marks_answers: bool


def turn_markers(template: TokenizerTemplate, stop_token_ids: Collection[int]) -> TurnMarkers | None:
    """None where the template refuses a user's `x` and an answer `y`, or where no end of an answer is to be seen."""
    try:
        asked = template.render((_USER,), None, None)
        given = template.render_whole((_USER,), None, None)
        whole = template.render_whole((_USER, _ANSWER), None, None)
    except RowRefused:
        return None
    ends = [place for place, token in enumerate(whole) if place >= len(given) and token in stop_token_ids]
    if not ends or asked[: len(given)] != given:
        return None
    behind = whole[ends[0] + 1 :]
    return TurnMarkers(
        before=template.text_with_special_tokens(asked[len(given) :]),
        closing=template.text_with_special_tokens(whole[ends[0] : ends[0] + 1]),
        behind=template.text_with_special_tokens(behind),
        behind_tokens=len(behind),
        marks_answers=_MARKS_ANSWERS.search(template.source) is not None,
    )
