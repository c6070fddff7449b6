"""Claims, commits, fences: one session after the other, and two at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from regen.errors import Fenced, JournalDamaged, StoreRefused, StoreUnavailable
from regen.length_buckets import bucket
from regen.ordinals import OrdinalSet
from regen.protocols import Storage
from regen.records import Acceptance, Status
from regen.rows import SCHEMA, from_table, to_table
from regen.store import footer as footers
from regen.store.control import (
    Claim,
    DriftAccepted,
    Record,
    Released,
    ReleaseReason,
    RowAttempts,
    RowsReopened,
    RunTally,
    SoloKill,
    Standing,
    SuspectGroup,
    SuspectRows,
    from_json,
    to_json,
)
from regen.store.files import JournalFiles
from regen.store.journal import Journal
from regen.store.layout import journal_key, journal_number, shard_key, shard_range
from regen.store.local import LocalStorage
from regen.store.parquet import encode_rows
from regen.store.replay import Replayed, replay
from regen.store.tally import newest_tally
from tests.memory_storage import MemoryStorage
from tests.output_rows import observed, observed_generation, output_row
from tests.unit.store.faulty_storage import FaultyStorage
from tests.unit.store.journals import claim_of, footer_of, opened, published, records_of, rewrite, table_of

PLAN_ROWS = 100


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(MemoryStorage())


def _replayed(storage: Storage, plan_rows: int = PLAN_ROWS) -> Replayed:
    return replay(storage, plan_rows, ())


# --- commits -------------------------------------------------------------------------------------


def test_what_is_committed_is_read_back(storage: FaultyStorage) -> None:
    journal = opened(storage)
    rows = [output_row(7), output_row(3, status=Status.TRUNCATED), output_row(5)]

    done = journal.publish(to_table(rows))

    assert (done.number, done.rows, done.repeated) == (1, 3, ())
    assert done.bytes == len(storage.read(journal_key(1)))
    assert from_table(journal.read_table(1)) == sorted(rows, key=lambda row: row.ordinal)
    assert sorted(journal.done) == [3, 5, 7]
    assert sorted(_replayed(storage).done) == [3, 5, 7]


def test_totals_count_every_token_and_step(storage: FaultyStorage) -> None:
    seen = observed((observed_generation(0, Acceptance(4, 12, 6, (3, 2, 1))), observed_generation(1, None)))
    more = observed((observed_generation(0, Acceptance(2, 2, 1, (1,))),))
    settled = [(90, "chat", Status.REJECTED), (91, "math", Status.NATIVE)]
    journal = opened(storage, settled=settled)
    journal.publish(to_table([output_row(0, turns=2, tokens=10, seen=seen), output_row(1, seen=more)]))
    journal.publish(to_table([output_row(3, status=Status.FAILED, turns=0, seen=observed(()))]))

    totals = journal.totals
    assert totals.outcomes == {
        ("chat", Status.OK): 1,
        ("chat", Status.FAILED): 1,
        ("chat", Status.REJECTED): 1,
        ("math", Status.OK): 1,
        ("math", Status.NATIVE): 1,
    }
    assert (totals.generations, totals.output_tokens) == (3, 10 + 10 + 5)
    assert totals.prompt_tokens == 3 + 4 + 3
    assert totals.acceptance == Acceptance(6, 14, 7, (4, 2, 1))
    assert replay(storage, PLAN_ROWS, settled).totals == totals


def test_an_ordinal_twice_in_a_table_is_refused(storage: FaultyStorage) -> None:
    with pytest.raises(ValueError, match="row 5 is twice"):
        opened(storage).prepare(table_of(5, 4, 5))


@pytest.mark.parametrize("ordinal", [PLAN_ROWS, 50])
def test_rows_that_cannot_have_a_result_are_refused(storage: FaultyStorage, ordinal: int) -> None:
    journal = opened(storage, settled=[(50, "code", Status.REJECTED)])

    with pytest.raises(ValueError, match=f"row {ordinal}"):
        journal.prepare(table_of(1, ordinal))
    assert sorted(journal.publish(table_of(1)).repeated) == []


def test_another_schema_is_refused(storage: FaultyStorage) -> None:
    with pytest.raises(ValueError, match="schema"):
        opened(storage).prepare(table_of(1).drop_columns(["digest"]))


def test_a_second_result_of_a_row_is_left_out_and_named(storage: FaultyStorage) -> None:
    journal = opened(storage)
    journal.publish(to_table([output_row(1, text="first")]))

    again = journal.publish(to_table([output_row(1, text="second"), output_row(2)]))

    assert (again.rows, again.repeated) == (1, (1,))
    assert [row.ordinal for row in from_table(journal.read_table(again.number))] == [2]
    assert journal.totals.done == 2


def test_a_higher_round_takes_the_place_of_a_lower_one(storage: FaultyStorage) -> None:
    journal = opened(storage)
    journal.publish(to_table([output_row(1, status=Status.TRUNCATED, tokens=64), output_row(2)]))
    journal.publish(to_table([output_row(1, round_=1, status=Status.OK, tokens=9)]))
    journal.publish(to_table([output_row(1, round_=2, status=Status.DEGENERATE, tokens=8)]))

    assert journal.publish(table_of(1, round_=1)).repeated == (1,)
    assert journal.totals.by_status()[Status.DEGENERATE] == 1
    assert (journal.totals.done, journal.totals.output_tokens) == (2, 5 + 8)
    assert _replayed(storage).totals == journal.totals


def test_nothing_is_left_of_a_row_that_was_replaced_by_one_without_an_answer(storage: FaultyStorage) -> None:
    journal = opened(storage)
    journal.publish(to_table([output_row(1, tokens=64)]))
    assert journal.totals.by_source["math"].lengths[bucket(64)] == 1

    journal.publish(to_table([output_row(1, round_=1, status=Status.FAILED, turns=0, seen=observed(()))]))

    totals = journal.totals
    assert (totals.by_source, totals.by_replica, totals.by_length) == ({}, {}, {})
    assert totals.acceptance == Acceptance()
    assert _replayed(storage).totals == totals


def _reopen(rows: Sequence[int], round_: int) -> RowsReopened:
    return RowsReopened("s1", round_, OrdinalSet(100, rows).to_text(), len(rows), {}, "{}", "now")


def test_rows_that_are_made_again_cost_one_pass_over_the_files_and_not_one_each(
    storage: FaultyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(storage)
    for ordinal in range(40):
        journal.publish(table_of(ordinal, 99 - ordinal))
    again = [*range(40), *range(60, 100)]
    journal.publish(SCHEMA.empty_table(), (_reopen(again, 1),))
    read: list[int] = []
    real = JournalFiles.read_table

    def read_table(files: JournalFiles, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        read.append(number)
        return real(files, number, columns)

    monkeypatch.setattr(JournalFiles, "read_table", read_table)
    for ordinal in range(40):
        journal.publish(table_of(ordinal, 99 - ordinal, round_=1))
    assert len(read) <= 41 + 2 * 40
    assert journal.totals == _replayed(storage).totals
    assert journal.totals.done == 80


def test_rows_that_are_opened_again_and_again_in_one_session_are_counted_once(storage: FaultyStorage) -> None:
    journal = opened(storage)
    journal.publish(table_of(*range(10)))
    for round_ in range(1, 5):
        wanted = range(round_, 10)
        journal.publish(SCHEMA.empty_table(), (_reopen(wanted, round_),))
        for ordinal in wanted:
            tokens, status = 100 * round_ + ordinal, Status.DEGENERATE if ordinal % 2 else Status.OK
            journal.publish(to_table([output_row(ordinal, round_=round_, tokens=tokens, status=status)]))
        assert not len(journal.reopened().pending)
    # Row 0 was never opened again, rows 1 to 3 last in rounds 1 to 3, all others in round 4.
    last = [100 * min(4, ordinal) + ordinal if ordinal else 5 for ordinal in range(10)]
    assert journal.totals.output_tokens == sum(last)
    assert journal.totals.done == 10
    assert journal.totals == _replayed(storage).totals


def test_nothing_is_published_before_a_claim(storage: FaultyStorage) -> None:
    journal = Journal(storage, "s1", PLAN_ROWS)
    journal.replay(())

    with pytest.raises(RuntimeError, match="claimed"):
        journal.prepare(table_of(1))


def test_a_zero_row_plan_has_a_journal(storage: FaultyStorage) -> None:
    journal = opened(storage, plan_rows=0)

    assert _replayed(storage, 0).next_number == journal.next_number == 1


# --- a store that is away ------------------------------------------------------------------------


def test_a_commit_that_failed_is_repeated_with_the_same_bytes(storage: FaultyStorage) -> None:
    journal = opened(storage)
    prepared = journal.prepare(table_of(1, 2))
    storage.created.clear()
    storage.fail_creates = 2
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            journal.commit(prepared)
        assert sorted(journal.done) == []

    journal.commit(prepared)

    assert len(storage.created) == 3
    assert set(storage.created) == {prepared.data}
    assert sorted(_replayed(storage).done) == [1, 2]


def test_its_own_write_is_not_a_rival(storage: FaultyStorage) -> None:
    journal = opened(storage)
    prepared = journal.prepare(table_of(1))
    storage.lose_answers = 1
    with pytest.raises(StoreUnavailable):
        journal.commit(prepared)
    journal.check_fence()

    assert journal.commit(prepared).number == prepared.number
    assert journal.publish(table_of(2)).number == prepared.number + 1
    assert sorted(_replayed(storage).done) == [1, 2]


def test_what_goes_with_a_claim_is_made_from_what_stands_and_once(storage: FaultyStorage) -> None:
    """An answer that was lost makes no second restart of one."""
    opened(storage).publish(table_of(1), (_tally(1),))
    times = iter(f"2026-01-01T00:00:0{second}.000+00:00" for second in range(10))
    journal = Journal(storage, "s1", PLAN_ROWS, clock=lambda: next(times))
    journal.replay(())

    def one_more(records: Sequence[Record]) -> tuple[RunTally, ...]:
        found = newest_tally(records)
        assert found is not None
        return (_tally(found.coordinator_restarts + 1),)

    storage.lose_answers = 1
    with pytest.raises(StoreUnavailable):
        journal.resume_own(claim_of("s1"), one_more)
    journal.resume_own(claim_of("s1"), one_more)

    assert [record for record in records_of(storage, 3) if isinstance(record, RunTally)] == [_tally(1), _tally(2)]
    assert len(journal.files()) == 3
    assert footer_of(storage, 2).at == "2026-01-01T00:00:00.000+00:00"


def test_what_goes_with_a_claim_knows_what_a_predecessor_published_meanwhile(storage: FaultyStorage) -> None:
    before = opened(storage)
    journal = Journal(storage, "s1", PLAN_ROWS)
    journal.replay(())

    def publish_in_between(key: str) -> None:
        storage.before_create = lambda key: None
        before.publish(table_of(1), (_tally(5),))

    storage.before_create = publish_in_between
    journal.resume_own(claim_of("s1"), lambda records: tuple(one for one in records if isinstance(one, RunTally)))

    assert footer_of(storage, 2).records == (claim_of("s1"), _tally(5))


def _tally(restarts: int) -> RunTally:
    return RunTally("s1", (), (), {}, coordinator_restarts=restarts)


def test_a_claim_whose_answer_was_lost_is_its_own(storage: FaultyStorage) -> None:
    journal = Journal(storage, "s1", PLAN_ROWS)
    journal.replay(())
    storage.lose_answers = 1
    with pytest.raises(StoreUnavailable):
        journal.claim(claim_of("s1"))

    journal.claim(claim_of("s1"))

    assert _replayed(storage).next_number == journal.next_number == 1


def test_what_is_prepared_must_be_committed_before_the_next(storage: FaultyStorage) -> None:
    journal = opened(storage)
    first = journal.prepare(table_of(1))

    with pytest.raises(RuntimeError, match="not committed"):
        journal.prepare(table_of(2))
    assert journal.pending is first


# --- claims and fences ---------------------------------------------------------------------------


def test_of_two_claims_the_second_learns_who_was_first(storage: FaultyStorage) -> None:
    first, second = Journal(storage, "s1", PLAN_ROWS), Journal(storage, "s2", PLAN_ROWS)
    first.replay(())
    second.replay(())
    first.claim(claim_of("s1", pid=4711))

    with pytest.raises(Fenced, match=r"session s1 \(host host-of-s1, coordinator pid 4711, driver pid 4712, started"):
        second.claim(claim_of("s2"))
    with pytest.raises(Fenced):
        second.claim(claim_of("s2"))
    newest = _replayed(storage).newest_claim
    assert newest is not None
    assert newest.session == "s1"


def test_claiming_reads_on_what_the_previous_holder_has_published_since(storage: FaultyStorage) -> None:
    previous = published(storage, [[output_row(1)]])
    journal = Journal(storage, "s2", PLAN_ROWS)
    journal.replay(())
    previous.publish(table_of(2))
    previous.publish(table_of(3), [Released("s1", ReleaseReason.DRAINED, "2026-01-01T00:00:00+00:00")])

    journal.claim(claim_of("s2"))

    assert sorted(journal.done) == [1, 2, 3]
    assert journal.totals.done == 3
    assert journal.publish(table_of(3, 4)).repeated == (3,)
    assert _replayed(storage).totals == journal.totals


def test_a_holder_that_publishes_again_and_again_does_not_keep_a_claim_out(storage: FaultyStorage) -> None:
    previous = opened(storage)
    journal = Journal(storage, "s2", PLAN_ROWS)
    journal.replay(())
    waiting = list(range(5))

    def publish_in_between(key: str) -> None:
        storage.before_create = lambda key: None
        previous.publish(table_of(waiting.pop()))
        storage.before_create = publish_in_between if waiting else lambda key: None

    storage.before_create = publish_in_between
    journal.claim(claim_of("s2", take_over=True))

    assert sorted(journal.done) == [0, 1, 2, 3, 4]
    with pytest.raises(Fenced, match="session s2"):
        previous.publish(table_of(9))


def test_a_fenced_session_never_writes_again(storage: FaultyStorage) -> None:
    old = published(storage, [[output_row(1)]])
    prepared = old.prepare(table_of(2))
    new = opened(storage, "s2")

    with pytest.raises(Fenced, match=r"session s2 .*host-of-s2"):
        old.commit(prepared)
    storage.created.clear()
    for attempt in (lambda: old.commit(prepared), lambda: old.publish(table_of(3)), old.check_fence):
        with pytest.raises(Fenced, match="session s2"):
            attempt()
    with pytest.raises(Fenced, match="session s2"):
        old.claim(claim_of("s1"))
    assert storage.created == []
    assert sorted(new.done) == sorted(_replayed(storage).done) == [1]


def test_an_interval_without_rows_notices_the_fence(storage: FaultyStorage) -> None:
    old = opened(storage)
    old.check_fence()
    opened(storage, "s2")

    with pytest.raises(Fenced, match="session s2"):
        old.check_fence()


def test_a_restarted_coordinator_goes_on_in_its_session(storage: FaultyStorage) -> None:
    published(storage, [[output_row(1)]])
    restarted = Journal(storage, "s1", PLAN_ROWS)
    restarted.replay(())

    restarted.resume_own(claim_of("s1", pid=99))

    assert restarted.publish(table_of(1, 2)).repeated == (1,)
    assert sorted(_replayed(storage).done) == [1, 2]


def test_a_restarted_coordinator_fences_its_predecessor(storage: FaultyStorage) -> None:
    predecessor = opened(storage)
    late = predecessor.prepare(table_of(1))
    restarted = Journal(storage, "s1", PLAN_ROWS)
    restarted.replay(())
    restarted.resume_own(claim_of("s1"))  # the very same claim: the same host and pid

    with pytest.raises(Fenced):
        predecessor.commit(late)
    assert restarted.publish(table_of(1)).rows == 1


def test_two_incarnations_never_take_one_files_bytes_for_their_own(storage: FaultyStorage) -> None:
    twins = [Journal(storage, "s1", PLAN_ROWS) for _ in range(2)]
    for twin in twins:
        twin.replay(())
    twins[0].resume_own(claim_of("s1"))
    twins[1].resume_own(claim_of("s1"))

    assert [footer_of(storage, number).writer for number in range(2)] == [twin._writer for twin in twins]
    assert twins[1].publish(table_of(1)).rows == 1
    with pytest.raises(Fenced, match="a later coordinator of it"):
        twins[0].publish(table_of(2))


def test_a_late_claim_of_the_predecessor_is_claimed_over(storage: FaultyStorage) -> None:
    predecessor, restarted = (Journal(storage, "s1", PLAN_ROWS) for _ in range(2))
    for journal in (predecessor, restarted):
        journal.replay(())
    predecessor.claim(claim_of("s1"))  # it was under way when its process was killed

    restarted.claim(claim_of("s1"))

    assert restarted.publish(table_of(1)).number == 2


def test_a_number_is_used_once_whatever_comes_in_between(storage: FaultyStorage) -> None:
    first = opened(storage)
    storage.fail_creates, storage.lose_answers = 1, 0
    prepared = first.prepare(table_of(1))
    with pytest.raises(StoreUnavailable):
        first.commit(prepared)
    second = opened(storage, "s2")  # takes the number that the first one has prepared
    with pytest.raises(Fenced):
        first.commit(prepared)
    storage.lose_answers = 1
    prepared = second.prepare(table_of(2))
    with pytest.raises(StoreUnavailable):
        second.commit(prepared)
    restarted = Journal(storage, "s2", PLAN_ROWS)
    restarted.replay(())
    restarted.resume_own(claim_of("s2"))

    assert [footer_of(storage, number).session for number in range(4)] == ["s1", "s2", "s2", "s2"]
    assert (restarted.next_number, sorted(restarted.done)) == (4, [2])
    storage.created.clear()
    assert restarted.publish(table_of(1)).number == 4
    assert len(storage.created) == 1


def test_a_late_write_of_the_predecessor_is_taken_in(storage: FaultyStorage) -> None:
    predecessor = opened(storage)
    restarted = Journal(storage, "s1", PLAN_ROWS)
    restarted.replay(())
    predecessor.publish(table_of(1))

    restarted.resume_own(claim_of("s1"))

    assert sorted(restarted.done) == [1]


def test_a_coordinator_restarted_before_its_first_claim_makes_it(storage: FaultyStorage) -> None:
    journal = Journal(storage, "s1", PLAN_ROWS)
    journal.replay(())

    journal.resume_own(claim_of("s1"))

    assert journal.next_number == 1


def test_a_restarted_coordinator_leaves_when_another_session_has_claimed(storage: FaultyStorage) -> None:
    opened(storage)
    opened(storage, "s2")
    restarted = Journal(storage, "s1", PLAN_ROWS)
    restarted.replay(())

    with pytest.raises(Fenced, match="session s2"):
        restarted.resume_own(claim_of("s1"))


# --- control records -----------------------------------------------------------------------------

DRIFT = DriftAccepted("s2", {"sampling.temperature": ("0.6", "0.8")}, "f" * 32, "e" * 32)
SUSPECTS = SuspectRows("s1", (SuspectGroup((3, 7), (0, 1), 1),), (SoloKill(9, 0, True, "x"),), (2,))
LATER_SUSPECTS = SuspectRows("s1", (SuspectGroup((3,), (0,), None),), (), ())
RELEASED = Released("s1", ReleaseReason.DRAINED, "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    "record", [claim_of("s1", take_over=True), RELEASED, DRIFT, RowAttempts(((3, 0, 2), (70, 1, 1))), SUSPECTS]
)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert from_json(to_json(record), "test") == record


@pytest.mark.parametrize("kept_in", ["tail", "snapshot"])
def test_records_outlive_what_they_were_published_with(storage: FaultyStorage, kept_in: str) -> None:
    journal = opened(storage, snapshot_every=4 if kept_in == "snapshot" else 100)
    journal.publish(table_of(1), [DRIFT, RowAttempts(((3, 0, 1), (4, 0, 1), (5, 0, 1))), SUSPECTS])
    journal.publish(table_of(2), [RowAttempts(((4, 1, 2), (5, 0, 0))), LATER_SUSPECTS])
    for ordinal in range(10, 15):
        journal.publish(table_of(ordinal))

    replayed = _replayed(storage)
    assert replayed.records == (DRIFT, RowAttempts(((3, 0, 1), (4, 1, 2))), LATER_SUSPECTS)
    assert replayed.newest_claim == claim_of("s1")
    assert replayed.released is None


def test_suspects_and_attempts_that_are_over_leave_no_record(storage: FaultyStorage) -> None:
    journal = opened(storage)
    journal.publish(table_of(1), [RowAttempts(((3, 0, 1),)), SUSPECTS])
    journal.publish(table_of(3), [RowAttempts(((3, 0, 0),)), SuspectRows("s1", (), (), ())])
    assert journal.records == _replayed(storage).records == ()


def test_a_release_stands_until_the_next_claim(storage: FaultyStorage) -> None:
    opened(storage).publish(table_of(1), [RELEASED])
    assert _replayed(storage).released == RELEASED

    opened(storage, "s2")
    assert _replayed(storage).released is None


def test_another_sessions_release_releases_nothing() -> None:
    assert Standing().after([claim_of("s2"), RELEASED]).released is None


@pytest.mark.parametrize(
    "unknown",
    [
        {"kind": "reopened", "rows": [1, 2]},
        {"kind": "claim", "session": "s1"},
        {**to_json(RELEASED), "more": 1},
        "claim",
    ],
)
def test_a_record_that_is_not_known_stops_a_replay(storage: FaultyStorage, unknown: object) -> None:
    opened(storage)
    values = {**footers.to_json(footer_of(storage, 0)), "records": [unknown]}
    storage.replace(journal_key(0), encode_rows(table_of(), values))

    with pytest.raises(StoreRefused, match=r"00000000\.parquet: a control record of kind .* cannot be understood"):
        _replayed(storage)


def test_another_format_version_stops_a_replay(storage: FaultyStorage) -> None:
    opened(storage)
    values = {**footers.to_json(footer_of(storage, 0)), "version": 3}
    storage.replace(journal_key(0), encode_rows(table_of(), values))

    with pytest.raises(StoreRefused, match="version 3"):
        _replayed(storage)


# --- damage --------------------------------------------------------------------------------------


def test_a_missing_file_stops_a_replay(storage: FaultyStorage) -> None:
    published(storage, [[output_row(ordinal)] for ordinal in range(9)])
    storage.delete(journal_key(2))

    with pytest.raises(JournalDamaged, match=r"00000002\.parquet: it is missing.*regen verify"):
        _replayed(storage)


@pytest.mark.parametrize("number", range(10))
def test_a_truncated_file_stops_a_replay_wherever_it_lies(storage: FaultyStorage, number: int) -> None:
    published(storage, [[output_row(ordinal)] for ordinal in range(9)])
    storage.replace(journal_key(number), storage.read(journal_key(number))[:-20])

    with pytest.raises(JournalDamaged, match=rf"{number:08d}\.parquet"):
        _replayed(storage)


def test_a_file_under_another_number_stops_a_replay(storage: FaultyStorage) -> None:
    published(storage, [[output_row(1)], [output_row(2)]])
    storage.replace(journal_key(2), storage.read(journal_key(1)))

    with pytest.raises(JournalDamaged, match=r"00000002\.parquet: its footer says that it is number 1"):
        _replayed(storage)


def test_other_rows_than_the_footer_was_written_for_stop_a_replay(storage: FaultyStorage) -> None:
    published(storage, [[output_row(1), output_row(2)]])
    footer = footer_of(storage, 1)
    for table in (table_of(1), table_of(1, 3), to_table([output_row(1), output_row(2, text="another")])):
        rewrite(storage, 1, table, footer)

        with pytest.raises(JournalDamaged, match=r"00000001\.parquet"):
            _replayed(storage)


def test_a_footer_that_counts_other_rows_is_not_read(storage: FaultyStorage) -> None:
    journal = published(storage, [[output_row(1), output_row(2)]])
    rewrite(storage, 1, table_of(1), footer_of(storage, 1))

    with pytest.raises(JournalDamaged, match="holds 1 rows and its footer says 2"):
        journal.read_footer(1)
    with pytest.raises(JournalDamaged, match="holds 1 rows and its footer says 2"):
        journal.read_table(1)


def test_a_footer_with_other_ends_stops_a_replay(storage: FaultyStorage) -> None:
    published(storage, [[output_row(1), output_row(2)]])
    rewrite(storage, 1, table_of(1, 2), replace(footer_of(storage, 1), last=3))

    with pytest.raises(JournalDamaged, match="from 1 to 2, not from 1 to 3"):
        _replayed(storage)


def test_an_altered_number_in_a_footer_stops_a_replay(storage: FaultyStorage) -> None:
    published(storage, [[output_row(1), output_row(2)]])
    data = storage.read(journal_key(1))
    storage.replace(journal_key(1), data.replace(b'"output_tokens":10', b'"output_tokens":11'))

    with pytest.raises(JournalDamaged, match=r"00000001\.parquet: the digest of its footer entry"):
        _replayed(storage)


def test_a_file_with_other_columns_stops_a_replay(storage: FaultyStorage) -> None:
    published(storage, [[output_row(1)]])
    sink = pa.BufferOutputStream()
    pq.write_table(table_of(1).drop_columns(["detail"]), sink)
    storage.replace(journal_key(1), sink.getvalue().to_pybytes())

    with pytest.raises(JournalDamaged, match=r"00000001\.parquet: its columns"):
        _replayed(storage)


def test_the_journal_of_another_plan_stops_a_replay(storage: FaultyStorage) -> None:
    published(storage, [[output_row(1)]])

    with pytest.raises(JournalDamaged, match="plan of 100 rows, and this plan has 99"):
        _replayed(storage, 99)
    with pytest.raises(JournalDamaged, match="row 1, which the plan refuses"):
        replay(storage, PLAN_ROWS, [(1, "math", Status.REJECTED)])


def test_rows_of_a_session_that_did_not_hold_the_run_stop_a_replay(storage: FaultyStorage) -> None:
    published(storage, [[output_row(1)]])
    rewrite(storage, 1, table_of(1), replace(footer_of(storage, 1), session="s9"))

    with pytest.raises(JournalDamaged, match="session s9 while session s1 held the run"):
        _replayed(storage)


def test_an_empty_store_replays_to_nothing() -> None:
    replayed = replay(MemoryStorage(), 3, [(2, "code", Status.REJECTED)])

    assert sorted(replayed.done) == [2]
    assert replayed.totals.outcomes == {("code", Status.REJECTED): 1}
    assert (replayed.next_number, replayed.newest_claim, replayed.released) == (0, None, None)


def test_the_journal_works_on_a_local_folder(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "run")
    journal = published(storage, [[output_row(1)], [output_row(2)]])

    assert [file.key for file in journal.files()] == [journal_key(number) for number in range(3)]
    assert sorted(_replayed(storage).done) == [1, 2]


@pytest.mark.parametrize(
    "key", ["journal/1.parquet", "journal/000000001.parquet", "journal/00000001.parquet.tmp", "x/00000001.parquet"]
)
def test_only_exact_names_are_journal_files(key: str) -> None:
    assert journal_number(key) is None


def test_names_have_a_way_back() -> None:
    assert journal_number(journal_key(42)) == 42
    assert shard_range(shard_key(0, 1999)) == (0, 1999)
    assert shard_key(0, 1999) == "shards/shard-00000000-00001999.parquet"
    assert shard_range("shards/shard-00000009-00000001.parquet") is None
    assert isinstance(claim_of("s1"), Claim)


def test_a_claim_that_was_frozen_until_the_journal_was_deleted_begins_nothing_anew(storage: FaultyStorage) -> None:
    published(storage, [[output_row(0)]])
    frozen = Journal(storage, "frozen", PLAN_ROWS)
    frozen.replay(())
    opened(storage, "other")
    for number in range(2):  # `regen clean --journal` of a run that is finished meanwhile
        storage.delete(journal_key(number))
    storage.delete(journal_key(2))

    with pytest.raises(JournalDamaged, match=rf"{journal_key(1)}: it is gone"):
        frozen.claim(claim_of("frozen"))
    assert list(storage.list("journal/")) == []
