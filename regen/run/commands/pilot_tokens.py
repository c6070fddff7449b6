"""Which token of an answer came how: drafted and accepted, the target's own after a rejected draft, or its own. Pure.

A step that drafts gives its accepted tokens and then one of the target's own. Steps that drafted nothing leave no trace
and give one token, and the last step's end may lie behind the answer's: tokens are told apart only where the trace and
the answer's length leave one reading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from regen.observe.pilot_page import TokenKind
from regen.records import StepTrace
from regen.spec import DRAFTLESS_METHODS


def token_kinds(tokens: int, trace: StepTrace, drafts_always: bool) -> list[TokenKind] | None:
    """One kind a token; None where steps cannot be laid on the tokens."""
    given = 1 + sum(1 + accepted for accepted in trace.accepted)
    beyond, last = given - tokens, trace.accepted[-1] if trace.accepted else 0
    if not (0 <= beyond <= last if drafts_always else beyond == last):
        return None
    kinds = [TokenKind.OWN]
    for drafted, accepted in zip(trace.drafted, trace.accepted, strict=True):
        kinds += [TokenKind.ACCEPTED] * accepted
        kinds.append(TokenKind.CORRECTED if accepted < drafted else TokenKind.OWN)
    return kinds[:tokens]


def drafts_always(method: str) -> bool:
    """Whether every step of this method drafts something."""
    return not method.startswith(DRAFTLESS_METHODS)


def token_texts(token_ids: Sequence[int], decode: Callable[[tuple[int, ...]], str]) -> list[str]:
    """The text that each token adds. A character over several tokens is with the last of them.

    Decoded after the tokens before: alone, tokens lose the space in front. Joined it is `decode` of all, but for a
    character that is cut off at the end.
    """
    texts: list[str] = []
    before, read = 0, 0
    for end in range(1, len(token_ids) + 1):
        known, whole = decode(tuple(token_ids[before:read])), decode(tuple(token_ids[before:end]))
        is_open = whole.endswith("\ufffd") and end < len(token_ids)
        texts.append("" if is_open else whole[len(known) :])
        if not is_open:
            before, read = read, end
    return texts
