"""Repair: exactly the rows of damaged files are opened again, and nothing else changes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regen.cli import app
from regen.data.plan import RunPlan, open_plan
from regen.errors import ExitCode, Fenced, JournalDamaged, RunHeld, StoreUnavailable
from regen.ordinals import OrdinalSet
from regen.protocols import Storage
from regen.records import Status
from regen.rows import to_table
from regen.run import held
from regen.run.commands.check import check
from regen.run.commands.repair import ranges, repair
from regen.run.commands.report import report
from regen.run.commands.retry import retry
from regen.run.held import control_records, refuse_if_held
from regen.run.look import look
from regen.run.session import seal_complete, standing
from regen.store.choosing import Wanted
from regen.store.committed import CommittedRows
from regen.store.control import Claim, DriftAccepted, FilesVoided, RowsReopened
from regen.store.files import JournalFiles
from regen.store.findings import Code
from regen.store.holder import Holder, HolderState, read_holder, write_holder
from regen.store.layout import HOLDER, PLAN, RUN, journal_key, journal_number, shard_key
from regen.store.local import LocalStorage
from regen.store.parquet import RowsFile, content_digest, integers, texts
from regen.store.repair import examine, void
from regen.store.replay import Replayed, replay
from tests.memory_storage import MemoryStorage
from tests.small_folders import AT, Folder, complete, planned, release, run_folder, session, table, winners
from tests.unit.store.faulty_storage import FaultyStorage
from tests.unit.store.journals import footer_of, rewrite

FILES = 15


@pytest.fixture(scope="module")
def plan_only(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return planned(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def whole(plan_only: Folder) -> Folder:
    folder = run_folder(plan_only, is_complete=True)
    assert max(_numbers(folder.storage())) == FILES - 1
    return folder


@pytest.fixture(autouse=True)
def _nobody_is_watched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "WATCH_SECONDS", 0)


# --- which rows are opened again -------------------------------------------------------------------


@pytest.mark.parametrize("number", range(FILES))
def test_exactly_the_rows_of_a_truncated_file_are_made_again(whole: Folder, number: int) -> None:
    storage = whole.storage()
    plan, before = open_plan(storage), winners(storage, open_plan(storage))
    of_file = {ordinal for ordinal in range(plan.count) if before.number_of(ordinal) == number}
    _truncate(storage, number)
    damaged = storage.read(journal_key(number))

    done = repair(storage)

    assert [(fault.first, fault.last) for fault in done.faults] == [(number, number)]
    assert done.examined is not None
    named = {*done.examined.lost, *done.examined.older}
    assert named == (of_file if number < 11 else set())  # no snapshot after that one names them
    assert done.examined.unnamed == (2 if number == 11 else 0)
    assert done.checked.findings == ()
    assert all(winners(storage, plan).number_of(ordinal) != number for ordinal in of_file)
    complete(storage, "later")
    assert check(storage).is_right
    after = winners(storage, plan)
    for ordinal in set(range(plan.count)) - of_file:
        assert after.digest_of(ordinal) == before.digest_of(ordinal)
    for ordinal in of_file:
        assert after.digest_of(ordinal) != before.digest_of(ordinal)
    assert storage.read(journal_key(number)) == damaged


@pytest.mark.parametrize("numbers", [(0, 1), (FILES - 1, FILES - 2), (3, 7), (11,), tuple(range(FILES))])
def test_several_files_the_newest_ones_the_snapshots_or_all(whole: Folder, numbers: tuple[int, ...]) -> None:
    storage = whole.storage()
    for index, number in enumerate(numbers):
        if index % 2 and number != FILES - 1:
            storage.delete(journal_key(number))
        else:
            _truncate(storage, number)

    done = repair(storage)

    voided = {number for fault in done.faults for number in range(fault.first, fault.last + 1)}
    assert voided == set(numbers)
    assert done.checked.findings == ()
    assert repair(storage).faults == ()
    complete(storage, "later")
    assert check(storage).is_right


def test_a_row_that_has_an_older_result_keeps_that_and_is_wanted_again(whole: Folder) -> None:
    storage = whole.storage()
    plan = open_plan(storage)
    number = _file_of_round(storage, plan, 1)
    retried = [ordinal for ordinal in range(plan.count) if winners(storage, plan).round_of(ordinal) == 1]
    _flip(storage, number, 300)

    done = repair(storage)

    assert done.examined is not None
    assert (list(done.examined.lost), list(done.examined.older)) == ([], retried)
    replayed = _replayed(storage)
    assert list(replayed.reopened.pending) == retried
    assert all(winners(storage, plan).round_of(ordinal) == 0 for ordinal in retried)
    complete(storage, "later")
    assert check(storage).is_right
    assert all(winners(storage, plan).round_of(ordinal) == 1 for ordinal in retried)


def test_a_row_that_lost_every_result_is_missing_and_made_in_the_round_it_was_opened_for(whole: Folder) -> None:
    storage = whole.storage()
    plan = open_plan(storage)
    newest = _file_of_round(storage, plan, 1)
    retried = [ordinal for ordinal in range(plan.count) if winners(storage, plan).round_of(ordinal) == 1]
    first = next(number for number in range(1, FILES) if retried[0] in _ordinals(storage, number))
    _truncate(storage, first)
    _truncate(storage, newest)

    repair(storage)

    replayed = _replayed(storage)
    assert retried[0] not in replayed.done
    assert retried[0] not in replayed.reopened.pending
    assert replayed.reopened.round_of(retried[0]) == 1
    complete(storage, "later")
    assert check(storage).is_right
    assert winners(storage, plan).round_of(retried[0]) == 1


def test_totals_after_a_repair_are_those_of_the_rows_that_count(whole: Folder) -> None:
    storage = whole.storage()
    _truncate(storage, 2)
    _truncate(storage, 13)
    repair(storage)
    replayed = _replayed(storage)
    rows = list(CommittedRows(storage, open_plan(storage).count).rows(range(open_plan(storage).count)))

    assert replayed.totals.done == len(rows) + len(_settled(open_plan(storage)))
    assert replayed.totals.generations == sum(len(row.generations) for row in rows)
    assert replayed.totals.output_tokens == sum(len(g.completion_token_ids) for row in rows for g in row.generations)
    complete(storage, "later")  # whose running totals `verify` compares with the rows
    assert check(storage).is_right


def test_what_was_published_stays_so_through_a_repair(whole: Folder) -> None:
    storage = whole.storage()
    before = footer_of(storage, FILES - 1)
    assert before.published != before.totals, "the folder has rows that were made again"
    _truncate(storage, 3)

    repair(storage)

    after = footer_of(storage, FILES)
    assert after.totals != before.totals
    assert after.published == before.published
    complete(storage, "later")
    assert check(storage).is_right
    newest = max(_numbers(storage))
    later = footer_of(storage, newest)
    assert later.published.done > before.published.done
    data = RowsFile(storage.read(journal_key(newest)), "test")
    rewrite(storage, newest, data.table(), replace(later, published=before.published))
    (finding,) = check(storage).findings
    assert (finding.code, finding.where) == (Code.JOURNAL_TOTALS, journal_key(newest))


def test_a_retry_after_a_repair_replaces_rows_in_the_totals(whole: Folder) -> None:
    storage = whole.storage()
    _truncate(storage, 2)
    repair(storage)
    complete(storage, "s3")
    assert retry(storage, Wanted(frozenset({Status.TRUNCATED})), {}).rows > 0
    complete(storage, "s4")

    assert check(storage).is_right


# --- control records -------------------------------------------------------------------------------


def test_records_of_a_damaged_file_are_kept_where_its_footer_or_a_later_snapshot_has_them(plan_only: Folder) -> None:
    storage = plan_only.storage()
    plan = open_plan(storage)
    journal = session(storage, plan, "s1")  # number 0; snapshots in 3, 7
    drift = DriftAccepted("s1", {"seed": ("1", "2")}, "a", "b")
    journal.publish(table(plan, [0, 1], "s1"), (drift,))
    _flip(storage, 1, 300)
    done = repair(storage)
    assert done.examined is not None
    assert done.examined.records_lost_in == ()
    assert drift in control_records(storage)

    storage = plan_only.storage()
    journal = session(storage, plan, "s1")
    journal.publish(table(plan, [0, 1], "s1"), (drift,))
    for ordinal in range(2, 5):
        journal.publish(table(plan, [ordinal], "s1"))
    _truncate(storage, 1)
    done = repair(storage)
    assert done.examined is not None
    assert done.examined.records_lost_in == ()
    assert drift in control_records(storage)


def test_records_that_nothing_holds_any_more_are_spoken_of(plan_only: Folder) -> None:
    storage = plan_only.storage()
    plan = open_plan(storage)
    journal = session(storage, plan, "s1")
    rows = OrdinalSet(plan.count, [0])
    journal.publish(table(plan, [0, 1], "s1"))
    journal.publish(to_table(()), (RowsReopened("s1", 1, rows.to_text(), 1, {}, "{}", AT),))
    _truncate(storage, 2)

    done = repair(storage)

    assert done.examined is not None
    assert done.examined.records_lost_in == (2,)
    assert done.examined.is_open_ended
    assert any("control records in the files 2 " in line for line in done.lines("RUN"))
    assert not len(_replayed(storage).reopened.pending)


def test_rows_that_only_a_count_tells_of_are_counted(plan_only: Folder) -> None:
    storage = plan_only.storage()
    plan = open_plan(storage)
    journal = session(storage, plan, "s1")
    journal.publish(table(plan, [0, 1, 2], "s1"))
    journal.publish(table(plan, [3], "s1"))
    _truncate(storage, 1)

    done = repair(storage)

    assert done.examined is not None
    assert (len(done.examined.lost), done.examined.unnamed, done.examined.is_open_ended) == (0, 3, False)
    assert any("3 rows more" in line for line in done.lines("RUN"))


# --- again, and in the middle ----------------------------------------------------------------------


def test_a_damaged_repair_is_repaired(whole: Folder) -> None:
    storage = whole.storage()
    _truncate(storage, 2)
    repair(storage)
    _truncate(storage, FILES)  # the repair's own file
    with pytest.raises(JournalDamaged, match=journal_key(FILES)):
        standing(storage)

    done = repair(storage)

    assert [fault.first for fault in done.faults] == [2, FILES]
    complete(storage, "later")
    assert check(storage).is_right


def test_a_second_damage_is_a_second_repair(whole: Folder) -> None:
    storage = whole.storage()
    _truncate(storage, 2)
    repair(storage)
    _truncate(storage, 5)

    done = repair(storage)

    assert [fault.first for fault in done.faults] == [5]
    voided = [record for record in control_records(storage) if isinstance(record, FilesVoided)]
    assert [record.numbers for record in voided] == [((2, 2),), ((5, 5),)]
    complete(storage, "later")
    assert check(storage).is_right


def test_a_repair_that_cannot_be_written_changes_nothing_and_one_that_was_is_whole(whole: Folder) -> None:
    memory = whole.storage()
    _truncate(memory, 2)
    before = dict(memory.objects)
    storage = FaultyStorage(memory)
    storage.fail_creates = 1
    with pytest.raises(StoreUnavailable):
        repair(storage)
    assert memory.objects == before

    storage.lose_answers = 1
    with pytest.raises(StoreUnavailable):
        repair(storage)
    assert check(storage).findings == ()
    assert repair(storage).faults == ()


def test_the_same_bytes_again_are_no_rival_and_anybody_elses_are(whole: Folder) -> None:
    storage = whole.storage()
    _truncate(storage, 2)
    plan = open_plan(storage)
    examined = examine(storage, plan)
    storage.objects[journal_key(FILES)] = b"another's"

    with pytest.raises(RunHeld, match=journal_key(FILES)):
        void(storage, examined, Claim("s9", "host", 1, 2, AT), AT)


def test_somebody_who_runs_the_folder_is_left_alone(whole: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = whole.storage()
    _truncate(storage, FILES - 1)  # which had its release
    monkeypatch.setattr(held, "WATCH_SECONDS", 1)

    def beat(seconds: float) -> None:
        holder = read_holder(storage)
        assert holder is not None
        write_holder(storage, replace(holder, beat=holder.beat + 1))

    monkeypatch.setattr("regen.run.held.time.sleep", beat)
    before = set(storage.objects)
    with pytest.raises(RunHeld, match="session s2"):
        repair(storage)
    assert set(storage.objects) == before


def test_an_older_release_says_nothing_where_a_later_claim_may_be_lost(
    plan_only: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = plan_only.storage()
    plan = open_plan(storage)
    release(session(storage, plan, "s1"), "s1")
    session(storage, plan, "s2")
    _truncate(storage, 2)  # the claim of s2, which runs
    write_holder(storage, Holder("s2", "host", "b" * 8, 1, 2, AT, 1, AT, HolderState.RUNNING))
    monkeypatch.setattr(held, "WATCH_SECONDS", 1)

    def beat(seconds: float) -> None:
        write_holder(storage, Holder("s2", "host", "b" * 8, 1, 2, AT, 2, AT, HolderState.RUNNING))

    monkeypatch.setattr("regen.run.held.time.sleep", beat)
    with pytest.raises(RunHeld, match="session s2"):
        repair(storage)


def test_a_well_formed_file_in_the_place_of_another_is_voided_and_its_neighbours_are_not(whole: Folder) -> None:
    storage = whole.storage()
    plan, footer = open_plan(storage), footer_of(storage, 4)
    other = table(plan, _ordinals(storage, 4), "somebody-else")
    forged = replace(footer, digest=content_digest(_ordinals(storage, 4), texts(other, "digest")), previous_digest="?")
    rewrite(storage, 4, other, forged)

    done = repair(storage)

    assert [(fault.first, fault.last) for fault in done.faults] == [(4, 4)]
    complete(storage, "later")
    assert check(storage).is_right


# --- fencing ---------------------------------------------------------------------------------------


def test_a_session_whose_successors_claim_is_damaged_is_fenced_all_the_same(plan_only: Folder) -> None:
    storage = plan_only.storage()
    plan = open_plan(storage)
    frozen = session(storage, plan, "s1")
    session(storage, plan, "s2")
    _truncate(storage, 1)

    prepared = frozen.prepare(table(plan, [0], "s1"))
    with pytest.raises(Fenced, match=journal_key(1)):
        frozen.commit(prepared)
    with pytest.raises(Fenced):
        frozen.commit(prepared)
    repair(storage)
    with pytest.raises(Fenced):
        frozen.commit(prepared)


def test_what_a_frozen_session_writes_under_a_voided_number_does_not_count(plan_only: Folder) -> None:
    storage = plan_only.storage()
    plan = open_plan(storage)
    frozen = session(storage, plan, "s1")
    second = session(storage, plan, "s2")
    second.publish(table(plan, [1], "s2"))
    storage.delete(journal_key(1))  # the claim of s2
    repair(storage)

    frozen.publish(table(plan, [0], "s1"))  # takes the number that was free again
    with pytest.raises(Fenced, match="session s2"):
        frozen.publish(table(plan, [2], "s1"))

    assert 0 not in _replayed(storage).done
    assert check(storage).findings == ()
    complete(storage, "later")
    assert check(storage).is_right


def test_a_session_whose_journal_vanished_does_not_begin_another(tmp_path: Path, plan_only: Folder) -> None:
    storage = _on_disk(plan_only, tmp_path / "run")
    plan = open_plan(storage)
    journal = session(storage, plan, "s1")
    (tmp_path / "run" / journal_key(0)).unlink()

    with pytest.raises(JournalDamaged, match=journal_key(0)):
        journal.publish(table(plan, [0], "s1"))
    assert not list(storage.list("journal/"))


# --- shards ----------------------------------------------------------------------------------------


def test_damaged_and_missing_shards_are_written_anew_and_no_others(whole: Folder) -> None:
    storage = whole.storage()
    cut, gone, altered = shard_key(0, 6), shard_key(7, 13), shard_key(14, 20)
    storage.objects[cut] = storage.objects[cut][:500]
    del storage.objects[gone]
    data = bytearray(storage.objects[altered])
    data[200] ^= 1  # in a page: its footer still says the right thing
    storage.objects[altered] = bytes(data)
    before = dict(storage.objects)

    done = repair(storage)

    assert set(done.sealed) == {cut, gone, altered}
    assert done.faults == ()
    assert done.checked.is_right
    assert {key for key in storage.objects if storage.objects[key] != before.get(key)} == {cut, gone, altered}
    assert repair(storage).sealed == ()


def test_a_shard_that_has_more_rows_than_the_journal_is_left_until_they_are_made(whole: Folder) -> None:
    storage = whole.storage()
    _truncate(storage, 2)
    before = {key: data for key, data in storage.objects.items() if key.startswith("shards/")}

    done = repair(storage)

    assert done.sealed == ()
    assert done.checked.verification is not None
    assert done.checked.verification.shards_outdated > 0
    assert before.items() <= storage.objects.items()


def test_a_shard_damaged_with_its_journal_file_is_right_in_the_end_also_if_rows_come_out_the_same(
    whole: Folder,
) -> None:
    storage = whole.storage()
    key = shard_key(0, 6)
    data = bytearray(storage.objects[key])
    data[200] ^= 1
    storage.objects[key] = bytes(data)
    plan = open_plan(storage)
    number = winners(storage, plan).number_of(2)
    assert number is not None
    ordinals = _ordinals(storage, number)
    _truncate(storage, number)
    repair(storage)
    journal = session(storage, plan, "s3")
    journal.publish(table(plan, ordinals, "s1"))  # as in the beginning
    release(journal, "s3")
    seal_complete(storage)

    assert check(storage).is_right


# --- what cannot be repaired -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "damage"),
    [
        (RUN, None),
        (RUN, lambda data: data[:100]),
        (RUN, lambda data: data.replace(b'"max_model_len": 2048', b'"max_model_len": 4096', 1)),
        (PLAN, lambda data: data[:50]),
        (PLAN, lambda data: data.replace(b'"rows": 30', b'"rows": 31', 1)),
        ("plan/", lambda data: data[:-1]),
        ("plan/", lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:]),
    ],
)
def test_the_plan_and_run_json_are_not_repaired_and_that_is_said(
    whole: Folder, key: str, damage: Callable[[bytes], bytes] | None
) -> None:
    storage = whole.storage()
    (key,) = [found for found in storage.objects if found.startswith(key)]
    if damage is None:
        del storage.objects[key]
    else:
        storage.objects[key] = damage(storage.objects[key])
    _truncate(storage, 2)
    before = dict(storage.objects)

    with pytest.raises(JournalDamaged, match="cannot be repaired") as raised:
        repair(storage)

    assert key in str(raised.value) or PLAN in str(raised.value)
    assert raised.value.exit_code is ExitCode.DAMAGED
    assert storage.objects == before


def test_an_unknown_file_is_named_and_left_alone(whole: Folder) -> None:
    storage = whole.storage()
    storage.objects["journal/notes.txt"] = b"mine"

    done = repair(storage)

    assert done.exit_code is ExitCode.FAILED
    assert [found.code for found in done.checked.findings] == [Code.UNKNOWN_FILE]
    assert any("journal/notes.txt" in line for line in done.lines("RUN"))
    assert storage.objects["journal/notes.txt"] == b"mine"


def test_a_file_under_a_number_far_ahead_is_to_be_moved_away(whole: Folder) -> None:
    storage = whole.storage()
    stray = journal_key(99_999_999)
    storage.objects[stray] = storage.objects[journal_key(3)]
    with pytest.raises(JournalDamaged, match=f"{stray}.*[Mm]ove it out of journal/"):
        repair(storage)
    assert len(check(storage).findings) < 20

    storage.delete(stray)
    assert repair(storage).faults == ()


def test_a_damaged_holder_file_is_named_with_what_to_do(whole: Folder) -> None:
    storage = whole.storage()
    _truncate(storage, 2)
    storage.objects[HOLDER] = b"{"
    with pytest.raises(JournalDamaged, match=r"holder\.json.*delete it"):
        repair(storage)


# --- every byte ------------------------------------------------------------------------------------


def test_every_truncation_of_a_file_stops_a_start_with_its_name(whole: Folder) -> None:
    """In each place of the journal: the first, one before and one after the newest snapshot, the newest."""
    for number in (0, 5, FILES - 2, FILES - 1):
        storage = whole.storage()
        key, data = journal_key(number), storage.objects[journal_key(number)]
        where = JournalFiles(storage).where(number)
        for length in range(len(data)):
            with pytest.raises(JournalDamaged, match=key):
                RowsFile(data[:length], where)  # what every reader does first
        for length in _some(len(data), 25):
            storage.objects[key] = data[:length]
            with pytest.raises(JournalDamaged, match=key):
                replay(storage, 30, ())


def test_every_flipped_bit_is_found(whole: Folder) -> None:
    """Every byte of a file without rows, and many of one with rows: by what `verify` asks of every file."""
    storage = whole.storage()
    for number, step in ((6, 1), (2, 7)):
        data = bytearray(storage.objects[journal_key(number)])
        for at in range(0, len(data), step):
            data[at] ^= 1 << at % 8
            with pytest.raises(JournalDamaged, match=journal_key(number)):
                RowsFile(bytes(data), JournalFiles(storage).where(number)).check_bytes()
            data[at] ^= 1 << at % 8
        RowsFile(bytes(data), "as it was").check_bytes()


@pytest.mark.parametrize("at_percent", [0, 3, 30, 50, 70, 85, 95, 99])
def test_after_a_flipped_bit_a_repair_opens_exactly_the_files_rows(whole: Folder, at_percent: int) -> None:
    storage = whole.storage()
    size = len(storage.objects[journal_key(9)])
    _flip(storage, 9, size * at_percent // 100)
    plan = open_plan(storage)
    of_file = {ordinal for ordinal in range(plan.count) if winners(whole.storage(), plan).number_of(ordinal) == 9}

    assert not check(storage).is_right
    done = repair(storage)

    assert done.examined is not None
    assert set(done.examined.lost) == of_file
    assert [fault.first for fault in done.faults] == [9]


@pytest.mark.parametrize(
    "start",
    [
        look,
        standing,
        report,
        seal_complete,
        control_records,
        lambda storage: refuse_if_held(storage, take_over=True),
        lambda storage: retry(storage, Wanted(frozenset({Status.OK})), {}),
    ],
)
def test_a_start_on_a_damaged_journal_names_the_file_and_the_repair(
    whole: Folder, start: Callable[[Storage], object]
) -> None:
    storage = whole.storage()
    _truncate(storage, 2)
    before = dict(storage.objects)

    with pytest.raises(JournalDamaged, match=f"{journal_key(2)}.*regen verify {storage.url} --repair") as raised:
        start(storage)

    assert raised.value.exit_code is ExitCode.DAMAGED
    assert storage.objects == before


def test_a_column_that_is_called_otherwise_is_damage_also_where_only_that_column_is_read(whole: Folder) -> None:
    """Parquet's own schema altered by a bit, while Arrow's, in the same footer, says what it always said."""
    storage = whole.storage()
    data = bytearray(storage.objects[shard_key(0, 6)])
    at = data.rindex(b"\x0bgenerations") + 1
    data[at] ^= 1
    storage.objects[shard_key(0, 6)] = bytes(data)

    report(storage)  # reads the journal instead of a shard that is not right
    assert repair(storage).sealed == (shard_key(0, 6),)


# --- the command -----------------------------------------------------------------------------------


def test_the_command_says_what_was_found_done_and_is_next(whole: Folder, tmp_path: Path) -> None:
    storage = _on_disk(whole, tmp_path / "run")
    path = tmp_path / "run" / journal_key(9)
    path.write_bytes(path.read_bytes()[:100])
    run = CliRunner()

    assert run.invoke(app, ["verify", storage.url]).exit_code == ExitCode.FAILED
    done = run.invoke(app, ["verify", storage.url, "--repair"])

    assert done.exit_code == ExitCode.OK, done.output
    assert f"voided: {journal_key(9)}" in done.output
    assert "rows to be made again: 4 (18-21)" in done.output
    assert f"regen resume {storage.url}" in done.output
    again = run.invoke(app, ["verify", storage.url, "--repair", "--json"])
    assert again.exit_code == ExitCode.OK
    told = json.loads(again.output)
    assert (told["voided"], told["rows_lost"], told["checked"]["missing"]) == ([], 0, 4)


def test_ranges_are_of_neighbours() -> None:
    assert list(ranges(OrdinalSet(20, [0, 1, 2, 5, 9, 10]))) == [(0, 2), (5, 5), (9, 10)]
    assert list(ranges(OrdinalSet(20))) == []


# --- helpers ---------------------------------------------------------------------------------------


def _truncate(storage: MemoryStorage, number: int) -> None:
    storage.objects[journal_key(number)] = storage.objects[journal_key(number)][:700]


def _flip(storage: MemoryStorage, number: int, at: int) -> None:
    data = bytearray(storage.objects[journal_key(number)])
    data[at] ^= 4
    storage.objects[journal_key(number)] = bytes(data)


def _some(size: int, count: int) -> Iterator[int]:
    rng = random.Random(1)
    yield from (0, 1, size - 1, *(rng.randrange(size) for _ in range(count)))


def _numbers(storage: MemoryStorage) -> list[int]:
    return [number for key in storage.objects if (number := journal_number(key)) is not None]


def _ordinals(storage: Storage, number: int) -> list[int]:
    return integers(JournalFiles(storage).read_table(number, ["ordinal"]), "ordinal")


def _file_of_round(storage: Storage, plan: RunPlan, round_: int) -> int:
    found = winners(storage, plan)
    numbers = {found.number_of(o) for o in range(plan.count) if found.round_of(o) == round_}
    (number,) = numbers
    assert number is not None
    return number


def _settled(plan: RunPlan) -> set[int]:
    return {ordinal for ordinal, _, _ in plan.settled()}


def _replayed(storage: Storage) -> Replayed:
    plan = open_plan(storage)
    return replay(storage, plan.count, plan.settled())


def _on_disk(folder: Folder, path: Path) -> LocalStorage:
    storage = LocalStorage(path)
    for key, data in folder.objects.items():
        storage.create(key, data)
    return storage
