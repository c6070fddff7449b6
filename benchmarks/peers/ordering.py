"""In which order the arms of a round run. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def order(arms: Sequence[str], number: int) -> list[str]:
    """The arms' order in one round: rotated by the round, and backwards in every other one.

    Over an even number of rounds each arm stands before each other one as often as after it.
    """
    if not arms:
        return []
    shift = (number // 2) % len(arms)
    turned = [*arms[shift:], *arms[:shift]]
    return turned if number % 2 == 0 else turned[::-1]


def groups(arms: Sequence[str], together: Sequence[str], number: int) -> list[list[str]]:
    """The order of one round, with the arms that share a server side by side in one group."""
    shared = [arm for arm in arms if arm in together]
    units = order([arm for arm in arms if arm not in shared[1:]], number)
    return [order(shared, number) if unit in shared else [unit] for unit in units]
