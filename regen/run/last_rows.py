"""The end of a run: rows that wait where all is busy, or are made where all is slow, while others are idle. Pure.

A schedule tells it all that workers list, and asks once its queue is empty. Two kinds of rows may go elsewhere: those
that wait in an engine's queue without a token (moved: nothing is lost), and those in work on a replica that is much
slower than the one that asks (made twice: the first result wins). A replica's speed is that of one row, in tokens per
second, over MARK_SECONDS or until there is enough to tell by: some engines tell many tokens at a time. A row without a
token beyond an engine's slots waits: engines serve in order.

Memory: a number for each row in flight. Costs some microseconds a report; what may go elsewhere is looked for at most
every LOOK_SECONDS, and only then is every row in flight looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

MARK_SECONDS = 10.0
LOOK_SECONDS = 1.0
# Between two marks a row must have got so many times what comes at once: else a pause between two portions looks like
# a slow replica. After so long it is one all the same.
PORTIONS = 4
LONGEST_MARK_SECONDS = 60.0
# A row that has been long in work is about half done, as far as anybody knows: made anew at twice the speed, it ends at
# the same time as here.
SLOW_SHARE = 0.5
# Rows reach an engine in about the order in which they were leased, not quite: which of them wait shows when the others
# have tokens.
FULL_SHARE = 0.9


@dataclass(slots=True)
class _Heard:
    """One slot, as it was last heard. `marked` is what it listed at `marked_at`; `portion` the most tokens that its
    first row has got from one list to the next since.
    """

    running: Sequence[int]
    tokens: Sequence[int]
    slots: int
    marked_at: float
    marked: dict[int, int]
    portion: int = 0
    speed: float | None = None


class LastRows:
    """Give it every list; ask it when there is nothing in the queue."""

    def __init__(self) -> None:
        self._heard: dict[int, _Heard] = {}
        self._waiting: list[tuple[int, int]] = []
        self._slow: list[tuple[int, int, int]] = []
        self._looked_at = float("-inf")

    def listed(self, slot: int, running: Sequence[int], tokens: Sequence[int], slots: int, now: float) -> None:
        """What this slot has in work, in the order that it was leased, and the tokens of each; `slots` at once."""
        heard = self._heard.get(slot)
        if heard is None:
            self._heard[slot] = _Heard(running, tokens, slots, now, dict(zip(running, tokens, strict=True)))
            return
        if running and heard.running and running[0] == heard.running[0]:
            heard.portion = max(heard.portion, tokens[0] - heard.tokens[0])
        heard.running, heard.tokens, heard.slots = running, tokens, slots
        if now - heard.marked_at >= MARK_SECONDS:
            self._measure(heard, now)

    def gone(self, slot: int) -> None:
        """Nothing is in work there any more, or nobody knows."""
        self._heard.pop(slot, None)

    def is_better_left(self, slot: int, queued: int) -> bool:
        """The queue is so short that others will have ended its rows before this slow slot has."""
        if not self.is_slow(slot) or not (heard := self._heard[slot]).running:
            return False
        others = sum(one.slots for number, one in self._heard.items() if number != slot)
        return queued * (heard.speed or 0.0) < others * self._usual_speed()

    def is_slow(self, slot: int) -> bool:
        """Much slower than the others are."""
        heard = self._heard.get(slot)
        return heard is not None and heard.speed is not None and heard.speed < SLOW_SHARE * self._usual_speed()

    def waiting(self, slot: int, now: float) -> Iterator[tuple[int, int]]:
        """(row, who has it) of rows that wait with others, by what these have said last. Each is told once a look."""
        self._look(now)
        while self._waiting:
            ordinal, holder = self._waiting.pop()
            if holder != slot and self._waits_at(holder, ordinal):
                yield ordinal, holder

    def late(self, slot: int, queued_tokens: float, now: float) -> Iterator[tuple[int, int]]:
        """(row, who has it) of rows on slow replicas that would end last: whoever asks checks that it is still so.

        Until the queue is empty each slot has `queued_tokens` to make, of rows that have not begun.
        """
        if not self.is_slow(slot):
            self._look(now)
            late, self._slow = self._slow, []
            for ordinal, holder, tokens in late:
                if holder != slot and 2 * tokens >= queued_tokens:
                    yield ordinal, holder
                else:
                    self._slow.append((ordinal, holder, tokens))

    # --- steps -----------------------------------------------------------------------------------

    @staticmethod
    def _measure(heard: _Heard, now: float) -> None:
        listed = dict(zip(heard.running, heard.tokens, strict=True))
        made = [
            listed[row] - before for row, before in heard.marked.items() if before and listed.get(row, -1) >= before
        ]
        seconds, tokens = now - heard.marked_at, sum(made) / max(1, len(made))
        is_enough = heard.portion and tokens >= PORTIONS * heard.portion
        if made and not is_enough and seconds < LONGEST_MARK_SECONDS:
            return
        if made:
            heard.speed = tokens / seconds
        heard.marked_at, heard.marked, heard.portion = now, listed, 0

    @property
    def slots(self) -> int:
        """Of all that were heard."""
        return sum(heard.slots for heard in self._heard.values())

    def _waits_at(self, slot: int, ordinal: int) -> bool:
        heard = self._heard.get(slot)
        if heard is None:
            return False
        beyond = zip(heard.running[heard.slots :], heard.tokens[heard.slots :], strict=True)
        return any(row == ordinal and not tokens for row, tokens in beyond)

    def _usual_speed(self) -> float:
        speeds = [heard.speed for heard in self._heard.values() if heard.speed is not None]
        return median(speeds) if speeds else 0.0

    def _look(self, now: float) -> None:
        """What waits, the best to take last: on slow slots, and far behind. What is in work on slow slots."""
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        usual = self._usual_speed()
        waiting: list[tuple[bool, int, int, int]] = []
        self._slow = []
        for slot, heard in self._heard.items():
            speed = usual if heard.speed is None else heard.speed
            is_slow = speed < SLOW_SHARE * usual
            if sum(map(bool, heard.tokens)) >= FULL_SHARE * heard.slots:
                beyond = range(heard.slots, len(heard.running))
                waiting += [(is_slow, place, heard.running[place], slot) for place in beyond if not heard.tokens[place]]
            if is_slow:
                self._slow += [(row, slot, made) for row, made in zip(heard.running, heard.tokens, strict=True)]
        self._waiting = [(row, slot) for _, _, row, slot in sorted(waiting)]
