"""How a run went: the counts of some of its journal files, in order. Reads footers only.

Guarantees: the first and the newest file that count are among them, and no more than was asked for. What is published
while this reads is left out. Costs one listing, the footers since the newest snapshot, and one footer a point, a few at
a time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from regen.errors import JournalDamaged
from regen.protocols import Storage
from regen.records import Tally, Totals
from regen.store.control import RunTally
from regen.store.files import JournalFiles
from regen.store.footer import Footer
from regen.store.tally import newest_tally, tally_of

READERS = 8


@dataclass(frozen=True, slots=True)
class Moment:
    """What was counted when journal file `number` was built. `at` is ISO 8601 text, by the clock of whoever wrote it:
    see `Footer`, it may go back.

    `totals` are of the journal's rows: what the plan has settled is in none. `tally` is the newest that this file or
    one among the earlier moments holds. Both may fall where a repair has voided files.
    """

    at: str
    number: int
    session: str
    totals: Totals
    tally: Tally


@dataclass(frozen=True, slots=True)
class _Told:
    """What one footer says; its moment has no tally yet."""

    moment: Moment
    tally: RunTally | None


def read_history(storage: Storage, points: int = 400) -> tuple[Moment, ...]:
    """At most `points` moments, two or more, evenly spaced by number; none of a journal without files.

    Raises JournalDamaged, StoreUnavailable, StoreRefused; ValueError for fewer than two points.
    """
    if points < 2:
        raise ValueError(f"a history has a first and a last point: {points} are too few")
    files = JournalFiles(storage)
    try:
        found = _read(files, points)
    except JournalDamaged:  # or else closed meanwhile, or listed while it grew: then it is whole when looked at again
        found = _read(files, points)
    return _moments(found)


def _read(files: JournalFiles, points: int) -> list[_Told]:
    """No footer is kept: in a snapshot are all rounds of the run, a hundred megabytes where many were made again."""
    numbers = _spread([file.number for file in files.files()], points)
    with ThreadPoolExecutor(READERS, thread_name_prefix="history") as readers:
        return list(readers.map(lambda number: _told(files.read_footer(number)), numbers))


def _spread(numbers: list[int], points: int) -> list[int]:
    """Both ends, and evenly what is between them."""
    if len(numbers) <= points:
        return numbers
    return [numbers[round(point * (len(numbers) - 1) / (points - 1))] for point in range(points)]


def _told(footer: Footer) -> _Told:
    return _Told(Moment(footer.at, footer.number, footer.session, footer.totals, Tally()), _tally_in(footer))


def _moments(found: list[_Told]) -> tuple[Moment, ...]:
    moments, newest = list[Moment](), None
    for told in found:
        newest = told.tally or newest
        moments.append(replace(told.moment, tally=tally_of(newest)))
    return tuple(moments)


def _tally_in(footer: Footer) -> RunTally | None:
    """A snapshot has it from earlier files too."""
    return newest_tally(footer.records if footer.snapshot is None else footer.snapshot.standing.records)
