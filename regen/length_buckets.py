"""Buckets for lengths in tokens: two to an octave, so that a middle is within a quarter of what is in it. Pure.

Bucket 0 holds 0 and 1; bucket `i` from `lowest(i)` up to, and without, `lowest(i + 1)`.
"""

from __future__ import annotations

import math
from bisect import bisect_right

# 2**20 tokens are more than any context holds; the last bucket is open above.
COUNT = 40
_LOWEST = (0, *(math.ceil(2 ** (index / 2)) for index in range(2, COUNT + 2)))


def bucket(tokens: int) -> int:
    """The bucket of a length. Raises ValueError on a negative one."""
    if tokens < 0:
        raise ValueError(f"a length of {tokens} tokens")
    return min(bisect_right(_LOWEST, tokens) - 1, COUNT - 1)


def lowest(index: int) -> int:
    """The smallest length in this bucket."""
    return _LOWEST[index]


def middle(index: int) -> int:
    """A length that stands for all in this bucket: the geometric middle."""
    if index == 0:
        return 1
    return round(math.sqrt(_LOWEST[index] * (_LOWEST[index + 1] - 1)))
