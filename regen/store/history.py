"""How a run went: the counts of some of its journal files, in order. Reads footers only.

Guarantees: the first and the newest file that count are among them, and no more than was asked for. What is published
while this reads is left out. Costs one listing, the footers since the newest snapshot, and one footer a point, a few at
a time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

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


def read_history(storage: Storage, points: int = 400) -> tuple[Moment, ...]:
    """At most `points` moments, two or more, evenly spaced by number; none of a journal without files.

    Raises JournalDamaged, StoreUnavailable, StoreRefused; ValueError for fewer than two points.
    """
    if points < 2:
        raise ValueError(f"a history has a first and a last point: {points} are too few")
    files = JournalFiles(storage)
    try:
        footers = _read(files, points)
    except JournalDamaged:  # or else closed meanwhile, or listed while it grew: then it is whole when looked at again
        footers = _read(files, points)
    return _moments(footers)


def _read(files: JournalFiles, points: int) -> list[Footer]:
    numbers = _spread([file.number for file in files.files()], points)
    with ThreadPoolExecutor(READERS, thread_name_prefix="history") as readers:
        return list(readers.map(files.read_footer, numbers))


def _spread(numbers: list[int], points: int) -> list[int]:
    """Both ends, and evenly what is between them."""
    if len(numbers) <= points:
        return numbers
    return [numbers[round(point * (len(numbers) - 1) / (points - 1))] for point in range(points)]


def _moments(footers: list[Footer]) -> tuple[Moment, ...]:
    moments, newest = list[Moment](), None
    for footer in footers:
        newest = _tally_in(footer) or newest
        moments.append(Moment(footer.at, footer.number, footer.session, footer.totals, tally_of(newest)))
    return tuple(moments)


def _tally_in(footer: Footer) -> RunTally | None:
    """A snapshot has it from earlier files too."""
    return newest_tally(footer.records if footer.snapshot is None else footer.snapshot.standing.records)
