"""The history of a run: which moments, and what each tells, whatever else happens to the journal."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import count, pairwise
from threading import Lock

import pytest

from regen.errors import JournalDamaged
from regen.protocols import Storage, StoredObject
from regen.records import RetryReason, SlotState, SlotTally, Tally
from regen.rows import to_table
from regen.store.control import RunTally
from regen.store.files import JournalFiles
from regen.store.footer import Footer
from regen.store.history import READERS, read_history
from regen.store.journal import Journal
from regen.store.layout import JOURNAL, journal_key
from regen.store.replay import replay
from regen.store.tally import newest_tally, slot_counts, tally_of
from tests.memory_storage import MemoryStorage
from tests.output_rows import output_row
from tests.unit.store.journals import claim_of, footer_of, table_of


def a_tally(sampled: int, session: str = "s1") -> RunTally:
    slot = SlotTally(sampled_tokens=sampled, starts=1, slot_seconds={SlotState.BUSY: 1.5})
    return RunTally(session, (slot_counts(0, slot),), (), {RetryReason.STALLED: 1}, store_errors=2)


def a_journal(storage: Storage, clock: Callable[[], str], session: str = "s1") -> Journal:
    journal = Journal(storage, session, 500, snapshot_every=4, clock=clock)
    journal.replay(())
    journal.claim(claim_of(session))
    return journal


def a_clock() -> Callable[[], str]:
    times = count()
    return lambda: f"2026-01-01T00:00:{next(times):02d}.000+00:00"


def a_run(files: int, storage: MemoryStorage | None = None) -> MemoryStorage:
    """The claim, and then one row a file."""
    storage = storage or MemoryStorage()
    journal = a_journal(storage, a_clock())
    for number in range(1, files):
        journal.publish(table_of(number), (a_tally(number),))
    return storage


@pytest.mark.parametrize(("files", "points"), [(1, 2), (2, 2), (7, 7), (7, 50), (8, 7), (50, 2), (50, 3), (50, 49)])
def test_both_ends_are_there_and_the_rest_is_spread_evenly(files: int, points: int) -> None:
    found = [moment.number for moment in read_history(a_run(files), points)]

    assert len(found) == min(files, points)
    assert (found[0], found[-1]) == (0, files - 1)
    steps = {after - before for before, after in pairwise(found)}
    assert not steps or (min(steps) >= 1 and max(steps) - min(steps) <= 1)


def test_each_moment_tells_what_its_footer_does() -> None:
    storage = a_run(6)
    for moment in read_history(storage):
        footer = footer_of(storage, moment.number)
        assert (moment.at, moment.session, moment.totals) == (footer.at, footer.session, footer.totals)
        assert moment.at == f"2026-01-01T00:00:{moment.number:02d}.000+00:00"
        assert moment.tally == tally_of(a_tally(moment.number) if moment.number else None)
    assert [moment.totals.done for moment in read_history(storage)] == [0, 1, 2, 3, 4, 5]


class Held(Footer):
    """One that can be waited for to go."""


def test_no_footer_is_kept_while_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot has all rounds of the run: four hundred of them at a time would be more than a machine has."""
    read, storage = JournalFiles.read_footer, a_run(60)
    held, most, lock = list[weakref.ref[Held]](), list[int](), Lock()

    def watched(files: JournalFiles, number: int) -> Footer:
        footer = read(files, number)
        told = Held(*(getattr(footer, each.name) for each in fields(footer)))
        with lock:
            held.append(weakref.ref(told))
            most.append(sum(one() is not None for one in held))
        return told

    monkeypatch.setattr(JournalFiles, "read_footer", watched)
    assert len(read_history(storage)) == 60 <= len(most)
    assert max(most) <= READERS + 1


def test_a_journal_without_files_has_no_history() -> None:
    assert read_history(MemoryStorage()) == ()
    with pytest.raises(ValueError, match="1 are too few"):
        read_history(MemoryStorage(), 1)


def test_a_file_without_a_tally_has_that_of_an_earlier_moment_or_of_its_snapshot() -> None:
    storage = MemoryStorage()
    journal = a_journal(storage, a_clock())
    journal.publish(table_of(1), (a_tally(10),))
    journal.publish(table_of(2))
    journal.publish(table_of(3))  # number 3, with a snapshot

    told = {moment.number: moment.tally for moment in read_history(storage)}
    assert told == {0: Tally(), **dict.fromkeys((1, 2, 3), tally_of(a_tally(10)))}
    ends = {moment.number: moment.tally for moment in read_history(storage, 2)}
    assert ends == {0: Tally(), 3: tally_of(a_tally(10))}


def test_a_clock_that_is_put_back_changes_nothing_but_what_is_told() -> None:
    storage = MemoryStorage()
    times = iter(["2026-01-02T00:00:00.000+00:00", "2026-01-01T00:00:00.000+00:00", "2025-01-01T00:00:00.000+00:00"])
    journal = a_journal(storage, lambda: next(times))
    journal.publish(table_of(1))
    journal.publish(table_of(2))

    assert replay(storage, 500, ()).done == journal.done
    assert [(moment.number, moment.at[:10]) for moment in read_history(storage)] == [
        (0, "2026-01-02"),
        (1, "2026-01-01"),
        (2, "2025-01-01"),
    ]


class _Growing(MemoryStorage):
    """Whoever lists the journal is overtaken by `then`, while the list is read."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], None] = lambda: None

    def list(self, prefix: str) -> Iterator[StoredObject]:
        listed = [*super().list(prefix)]
        if prefix == JOURNAL:
            then, self.then = self.then, lambda: None
            then()
        return iter(listed)


def test_what_is_published_meanwhile_is_left_out() -> None:
    storage = _Growing()
    journal = a_journal(storage, a_clock())
    journal.publish(table_of(1))

    def publish_more() -> None:
        for number in (2, 3, 4):
            journal.publish(table_of(number))

    storage.then = publish_more
    assert [moment.number for moment in read_history(storage)] == [0, 1]
    assert [moment.number for moment in read_history(storage)] == [0, 1, 2, 3, 4]


def test_a_journal_with_a_gap_is_looked_at_once_more() -> None:
    storage = _Growing()
    a_run(5, storage)
    whole = dict(storage.objects)
    del storage.objects[journal_key(2)]

    def make_whole() -> None:
        storage.objects = whole

    with pytest.raises(JournalDamaged, match=r"00000002\.parquet: it is missing"):
        read_history(storage)
    storage.then = make_whole
    assert len(read_history(storage)) == 5


def test_the_newest_tally_replaces_the_one_before_and_outlives_snapshots_and_sessions() -> None:
    storage = a_run(9)
    journal = a_journal(storage, a_clock(), "s2")
    journal.publish(to_table([output_row(100)]), (a_tally(50, "s2"),))

    records = replay(storage, 500, ()).records
    assert [record for record in records if isinstance(record, RunTally)] == [a_tally(50, "s2")]
    assert newest_tally(records) == a_tally(50, "s2")
