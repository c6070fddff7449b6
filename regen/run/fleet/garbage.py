"""Does one replica give more garbage than the others do? Told from finished rows, as they come. Pure.

Garbage is a row with an answer that its labels call none: a loop, a wall, nothing (`Label.is_degenerate`). Each
replica has a sum of log likelihood ratios over its rows (CUSUM): "its share is far above the usual one" against "it is
the usual one". At zero the replica is in line; the rows since then are its *stretch*. Doubtful, after an alarm, are the
rows of the stretch and `MARGIN_ROWS` before it.

Guarantees, for rows that are independent of one another: one false alarm in more than `exp(ALARM)`, 10^10, rows; an
engine whose answers all turn to garbage is noticed within some 20 rows, or half its slots where that is more.
- The usual share is that of the latest `HISTORY_ROWS` rows of all replicas in line, at the upper end of its interval:
  with little seen it takes more.
- An alarm is checked against what the *others* have made since the stretch began: a source full of bad rows, or loops
  that reach the cap together, come to all of them at the same time.
- A replica alone is held against the past, and only a large rise counts: there, nothing tells the rows from the engine.
- Garbage everywhere from the start is no replica's fault: `too_much_garbage` ends such a session.

Memory: 8 bytes for each row of a stretch, `MOST_DOUBTFUL` rows of each replica at most, and the latest labels.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from regen.errors import RegenError
from regen.records import Label, WorkerId

# Nats of evidence for an alarm.
ALARM = 23.0
# What is looked for lies so much of the way from the usual share to garbage alone; and a usual share counts as at least
# so much, or a single loop among good rows would be a finding.
RISE, FLOOR = 0.15, 0.01
ALONE_RISE, ALONE_FLOOR = 0.5, 0.2
HISTORY_ROWS = 2000
FEWEST_ROWS = 8
# A stretch is told to begin somewhat late where only some answers are garbage: so many rows before it are doubtful too.
MARGIN_ROWS = 32
# How many rows of others say that a stretch is nothing of this replica's own.
EVIDENCE_ROWS = 32
MOST_DOUBTFUL = 65_536
# Standard errors to the upper end of a share's interval.
_ERRORS = 2.0
_HIGHEST_USUAL = 0.9

# The breaker looks at so many of the latest rows, once there are enough.
LATEST_ROWS, BREAKER_ROWS = 1000, 200
_LABELS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Alarm:
    """One replica's answers are garbage. `doubtful`: what it has made since it was in line, and some before.

    `found` goes on after "replica 3: ".
    """

    worker: WorkerId
    doubtful: tuple[int, ...]
    garbage: int
    found: str


@dataclass(slots=True)
class _Share:
    """Rows, and how many of them are garbage; decayed ones are fractions."""

    rows: float = 0.0
    garbage: float = 0.0

    @property
    def highest(self) -> float:
        """The upper end of the share's interval (Wilson); 1 without a row."""
        rows, squared = self.rows, _ERRORS * _ERRORS
        if not rows:
            return 1.0
        share = self.garbage / rows
        half_width = _ERRORS * math.sqrt(share * (1 - share) / rows + squared / (4 * rows * rows))
        return (share + squared / (2 * rows) + half_width) / (1 + squared / rows)

    def add(self, rows: float, garbage: float) -> None:
        self.rows += rows
        self.garbage += garbage

    def since(self, before: _Share) -> _Share:
        return _Share(self.rows - before.rows, self.garbage - before.garbage)


@dataclass(slots=True)
class _Stretch:
    """What one replica has made since it was last in line. `others_before`: what the others had made until then."""

    others_before: _Share
    score: float = 0.0
    garbage: int = 0
    ordinals: array[int] = field(default_factory=lambda: array("q"))
    labels: Counter[Label] = field(default_factory=Counter)


class GarbageWatch:
    """One per coordinator. `slots` are rows that a replica works on at once."""

    def __init__(self, slots: int) -> None:
        self._fewest = max(FEWEST_ROWS, slots // 2)
        self._workers: dict[int, WorkerId] = {}
        self._history = _Share()
        self._made: dict[int, _Share] = {}
        self._made_by_all = _Share()
        self._stretches: dict[int, _Stretch] = {}
        self._before: dict[int, deque[int]] = {}
        self._latest: deque[tuple[int, Label | None]] = deque(maxlen=LATEST_ROWS)

    def finished(self, worker: WorkerId, rows: Iterable[tuple[int, Label | None]]) -> Alarm | None:
        """Rows as they arrive from one replica: ordinal, and the label that makes one garbage. At most one alarm."""
        if self._workers.get(worker.slot) != worker:
            self._end_stretch(worker.slot)
            self._workers[worker.slot] = worker
            self._before[worker.slot] = deque(maxlen=MARGIN_ROWS)
        for ordinal, label in rows:
            self._take(worker.slot, ordinal, label)
        return self._alarm(worker)

    def gone(self, worker: WorkerId) -> None:
        """This engine has ended."""
        if self._workers.get(worker.slot) == worker:
            del self._workers[worker.slot]
            self._end_stretch(worker.slot)

    def too_much_garbage(self, allowed_share: float | None, replicas: int = 1) -> RegenError | None:
        """The error that ends the session, if too many of the latest rows of all replicas are garbage.

        `replicas` there are now, or will be soon: with two, it is waited for what the other one makes.
        """
        labels = Counter(label for _, label in self._latest if label is not None)
        garbage, rows = labels.total(), len(self._latest)
        if allowed_share is None or rows < BREAKER_ROWS or garbage <= allowed_share * rows:
            return None
        if (replicas > 1 or self._is_of_several) and not self._is_shared(allowed_share):
            return None
        return RegenError(
            f"{garbage} of the latest {rows} rows are garbage, more than limits.degenerate_share ({allowed_share:g})"
            f" allows; commonest: {_commonest(labels)}. Look at some: a wrong template, sampling or quantisation does"
            " this. Mend the cause, continue the run and open these rows again with `regen retry`; or raise the"
            " limit."
        )

    @property
    def _is_of_several(self) -> bool:
        """The latest rows are: a replica that has left may have made them."""
        return len({slot for slot, _ in self._latest}) > 1

    def _is_shared(self, allowed_share: float) -> bool:
        """Not the doing of one replica: one whose answers are all empty has made hundreds before others make one."""
        worst = Counter(slot for slot, label in self._latest if label is not None).most_common(1)[0][0]
        others = [label for slot, label in self._latest if slot != worst]
        return len(others) >= EVIDENCE_ROWS and sum(map(bool, others)) > allowed_share * len(others)

    @property
    def remembered(self) -> int:
        """Ordinals that are held in memory."""
        held = (*(stretch.ordinals for stretch in self._stretches.values()), *self._before.values())
        return sum(map(len, held))

    def _take(self, slot: int, ordinal: int, label: Label | None) -> None:
        self._latest.append((slot, label))
        stretch = self._stretches.get(slot)
        if stretch is None:
            stretch = _Stretch(self._others(slot))
        usual, looked_for = self._shares(slot)
        stretch.score += _evidence(1, label is not None, usual, looked_for)
        stretch.ordinals.append(ordinal)
        self._made.setdefault(slot, _Share()).add(1, label is not None)
        self._made_by_all.add(1, label is not None)
        if label is not None:
            stretch.garbage += 1
            stretch.labels[label] += 1
        self._stretches[slot] = stretch
        if stretch.score <= 0 or len(stretch.ordinals) >= MOST_DOUBTFUL:
            self._end_stretch(slot)

    def _alarm(self, worker: WorkerId) -> Alarm | None:
        stretch = self._stretches.get(worker.slot)
        if stretch is None or stretch.score < ALARM or len(stretch.ordinals) < self._fewest:
            return None
        if self._is_alone(worker.slot):
            past, self._history = self._history, _Share()  # what comes now is measured against itself, not this past
            return self._raise(worker, stretch, f"where the past had {past.garbage:.0f} of {past.rows:.0f}")
        others = self._others(worker.slot).since(stretch.others_before)
        usual = min(_HIGHEST_USUAL, max(FLOOR, others.highest))
        evidence = _evidence(len(stretch.ordinals), stretch.garbage, usual, _risen(usual, RISE))
        if evidence >= ALARM:
            found = f"where the other replicas had {others.garbage:.0f} of {others.rows:.0f} in the same time"
            return self._raise(worker, stretch, found)
        if evidence <= 0 and others.rows >= EVIDENCE_ROWS:
            self._end_stretch(worker.slot)
        return None

    def _raise(self, worker: WorkerId, stretch: _Stretch, beside: str) -> Alarm:
        del self._stretches[worker.slot]
        del self._workers[worker.slot]
        kept = [made for made in self._latest if made[0] != worker.slot]  # the rest is this replica's alone
        self._latest = deque(kept, maxlen=LATEST_ROWS)
        found = (
            f"{stretch.garbage} of its latest {len(stretch.ordinals)} rows are garbage ({_commonest(stretch.labels)}),"
            f" {beside}"
        )
        return Alarm(worker, (*self._before.pop(worker.slot), *stretch.ordinals), stretch.garbage, found)

    def _end_stretch(self, slot: int) -> None:
        """Its rows were nothing out of line: they become part of what is usual."""
        if (stretch := self._stretches.pop(slot, None)) is None:
            return
        rows = len(stretch.ordinals)
        self._before[slot].extend(stretch.ordinals[-MARGIN_ROWS:])
        kept = (1 - 1 / HISTORY_ROWS) ** rows
        self._history = _Share(self._history.rows * kept, self._history.garbage * kept)
        self._history.add(rows, stretch.garbage)

    def _shares(self, slot: int) -> tuple[float, float]:
        """The usual share, and the one that is looked for."""
        is_alone = self._is_alone(slot)
        floor, rise = (ALONE_FLOOR, ALONE_RISE) if is_alone else (FLOOR, RISE)
        usual = min(_HIGHEST_USUAL, max(floor, self._history.highest))
        return usual, _risen(usual, rise)

    def _is_alone(self, slot: int) -> bool:
        return not any(other != slot for other in self._workers)

    def _others(self, slot: int) -> _Share:
        """All that the other slots have made in this session."""
        return self._made_by_all.since(self._made.get(slot, _Share()))


def _risen(usual: float, rise: float) -> float:
    return usual + rise * (1 - usual)


def _evidence(rows: int, garbage: int, usual: float, looked_for: float) -> float:
    """Nats for the share that is looked for, against the usual one."""
    good = rows - garbage
    return garbage * math.log(looked_for / usual) + good * math.log((1 - looked_for) / (1 - usual))


def _commonest(labels: Mapping[Label, int]) -> str:
    ordered = sorted(labels.items(), key=lambda item: -item[1])[:_LABELS_SHOWN]
    return ", ".join(f"{label.value} {count}" for label, count in ordered)
