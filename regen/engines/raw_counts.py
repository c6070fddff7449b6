"""Raw speculation counts of one request, out of a JSON answer that may hold anything. Pure.

Accept length is 1 + accepted / verifications. No server's own average is used: SGLang divides completion tokens by
verifications, so a dead draft with 20-token answers reads 1.05 there.
"""

from __future__ import annotations

from itertools import accumulate

from regen.records import Acceptance

_MOST_POSITIONS = 1024


def whole(value: object) -> int | None:
    """A count: a whole number, not negative."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def acceptance(drafts: object, accepted: object, drafted: object, histogram: object) -> Acceptance | None:
    """None unless verifications and accepted tokens are both told, one way or another, and can be true.

    `histogram[j]` counts the verifications that accepted exactly j draft tokens.
    """
    exactly = _counts(histogram)
    steps, tokens, proposed = whole(drafts), whole(accepted), whole(drafted)
    if tokens is None and exactly:
        tokens = sum(number * count for number, count in enumerate(exactly))
    if steps is None or tokens is None or (proposed is not None and tokens > proposed):
        return None
    if steps == 0 and tokens:
        return None
    return Acceptance(steps, proposed or 0, tokens, _by_position(exactly) if sum(exactly) == steps else ())


def _counts(value: object) -> list[int]:
    if not isinstance(value, list) or len(value) > _MOST_POSITIONS:
        return []
    found = [count for entry in value if (count := whole(entry)) is not None]
    return found if len(found) == len(value) else []


def _by_position(exactly: list[int]) -> tuple[int, ...]:
    """At least one, at least two, ... from exactly none, exactly one, ..."""
    at_least = list(accumulate(reversed(exactly)))[::-1]
    return tuple(at_least[1:])
