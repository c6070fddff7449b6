"""A fuzzer over damaged run folders: every reader works rightly or says which file is wrong, and what can be mended is.

Each case is one seed, so a failure is found again by its number. `REGEN_DAMAGE_CASES` sets how many there are.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from regen.data.plan import open_plan
from regen.errors import JournalDamaged, RegenError
from regen.protocols import Storage
from regen.run import held
from regen.run.commands.check import Checked, check
from regen.run.commands.repair import repair
from regen.run.commands.report import report
from regen.run.held import control_records, refuse_if_held
from regen.run.look import look
from regen.run.record import require_record
from regen.run.session import seal_complete, standing
from regen.store.committed import CommittedRows
from regen.store.control import FilesVoided
from regen.store.findings import Code
from regen.store.layout import HOLDER, PLAN, RUN, journal_key, journal_number
from regen.store.shards import committed
from tests.memory_storage import MemoryStorage
from tests.small_folders import Folder, complete, planned, run_folder, winners

CASES = int(os.environ.get("REGEN_DAMAGE_CASES", "60"))
LEFT_ALONE = {Code.UNKNOWN_FILE, Code.SHARD_RANGE}

Damage = Callable[[random.Random, dict[str, bytes]], str]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Folder]:
    plan = planned(tmp_path_factory.mktemp("run"))
    return [run_folder(plan, is_complete) for is_complete in (True, False)]


@pytest.fixture(autouse=True)
def _nobody_is_watched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "WATCH_SECONDS", 0)


@pytest.mark.parametrize("seed", range(CASES))
def test_a_damaged_folder_is_named_repaired_and_completed(folders: list[Folder], seed: int) -> None:
    rng = random.Random(seed)
    storage = rng.choice(folders).storage()
    for times in range(2 if rng.random() < 0.3 else 1):
        before = Folder(dict(storage.objects))
        told = [rng.choice(DAMAGES)(rng, storage.objects) for _ in range(rng.randint(1, 3))]
        case = _Case(before, storage, "; ".join(told))
        case.read_with_every_reader()
        if not case.repair():
            return
        case.complete(f"later-{times}")


@dataclass
class _Case:
    before: Folder
    storage: MemoryStorage
    told: str

    def read_with_every_reader(self) -> None:
        for reader in READERS:
            copy = MemoryStorage()
            copy.objects.update(self.storage.objects)
            try:
                reader(copy)
            except RegenError as error:
                self._require_named(error)

    def repair(self) -> bool:
        """False where the folder cannot be repaired, and that was said."""
        faulty = self._changed_journal_files()
        damaged_files = {key: data for key, data in self.storage.objects.items() if journal_number(key) is not None}
        try:
            repair(self.storage)
        except JournalDamaged as error:
            if HOLDER in str(error):
                del self.storage.objects[HOLDER]  # as it says
                return self.repair()
            self._require_hopeless(error)
            return False
        assert _voided(self.storage) == faulty | _voided(self.before.storage()), self.told
        assert repair(self.storage).faults == (), self.told
        self._require_clean("after the repair")
        assert damaged_files.items() <= self.storage.objects.items(), self.told  # nothing deleted, nothing overwritten
        return True

    def _require_named(self, error: RegenError) -> None:
        assert any(name in str(error) for name in (*self.storage.objects, *self.before.objects)), (self.told, error)

    def _require_hopeless(self, error: RegenError) -> None:
        assert "cannot be repaired" in str(error), (self.told, error)
        assert self._is_changed(RUN, PLAN, "plan/"), (self.told, error)

    def complete(self, session: str) -> None:
        plan = open_plan(self.storage)
        kept = winners(self.before.storage(), plan)
        now = winners(self.storage, plan)
        sound = [o for o in range(plan.count) if now.number_of(o) is not None and now.round_of(o) == kept.round_of(o)]
        complete(self.storage, session)
        if not self._require_clean("after completion", may_need_seal=True).is_right:
            repair(self.storage)
        found = self._require_clean("at the end")
        assert found.verification is not None
        assert found.verification.missing == found.verification.reopened == 0, self.told
        assert found.verification.planned == sum(found.verification.outcomes.values()) == plan.count, self.told
        after = winners(self.storage, plan)
        for ordinal in sound:
            assert after.digest_of(ordinal) == kept.digest_of(ordinal), (self.told, ordinal)
        ordinals = [o for table in committed(self.storage, plan, 7) for o in table["ordinal"].to_pylist()]
        assert ordinals == list(range(plan.count)), self.told

    def _require_clean(self, when: str, may_need_seal: bool = False) -> Checked:
        found = check(self.storage)
        shards = {Code.SHARD_DAMAGED, Code.SHARD_ROWS, Code.ROW_DIGEST}
        left = [one for one in found.findings if one.code not in LEFT_ALONE]
        if when == "after the repair":  # the journal's newest files are gone without a trace but in the shards
            left = [one for one in left if "has rows that the journal does not have" not in one.message]
        assert not left or (may_need_seal and {one.code for one in left} <= shards), (self.told, when, left)
        for one in found.findings:
            if one.code in LEFT_ALONE:
                self.storage.objects.pop(one.where, None)
        return check(self.storage) if found.findings else found

    def _changed_journal_files(self) -> set[int]:
        now = {
            number: data for key, data in self.storage.objects.items() if (number := journal_number(key)) is not None
        }
        newest = max(now, default=-1)
        changed = {number for number, data in now.items() if self.before.objects.get(journal_key(number)) != data}
        return changed | {number for number in range(newest) if number not in now}

    def _is_changed(self, *prefixes: str) -> bool:
        keys = {*self.storage.objects, *self.before.objects}
        return any(
            self.storage.objects.get(key) != self.before.objects.get(key) for key in keys if key.startswith(prefixes)
        )


def _voided(storage: Storage) -> set[int]:
    ranges = [numbers for one in control_records(storage) if isinstance(one, FilesVoided) for numbers in one.numbers]
    return {number for first, last in ranges for number in range(first, last + 1)}


def _read_rows(storage: Storage) -> None:
    plan = open_plan(storage)
    rows = CommittedRows(storage, plan.count)
    ordinals = [row.ordinal for row in rows.rows(range(plan.count))]
    assert len(ordinals) == len(set(ordinals))


def _read_all(storage: Storage) -> None:
    plan = open_plan(storage)
    for _ in committed(storage, plan, require_record(storage).spec.checkpoint.rows_per_shard):
        pass


READERS: tuple[Callable[[Storage], object], ...] = (
    look,
    control_records,
    standing,
    lambda storage: refuse_if_held(storage, take_over=False),
    _read_rows,
    _read_all,
    seal_complete,
    report,
    check,
)


def _pick(rng: random.Random, objects: dict[str, bytes]) -> str:
    """Half of them in the journal; of the rest any."""
    journal = [key for key in objects if journal_number(key) is not None]
    return rng.choice(journal if journal and rng.random() < 0.5 else sorted(objects))


def _truncated(rng: random.Random, objects: dict[str, bytes]) -> str:
    key = _pick(rng, objects)
    objects[key] = objects[key][: rng.randrange(max(1, len(objects[key])))]
    return f"{key} truncated to {len(objects[key])}"


def _flipped(rng: random.Random, objects: dict[str, bytes]) -> str:
    key = _pick(rng, objects)
    data, at = bytearray(objects[key] or b"?"), 0
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    objects[key] = bytes(data)
    return f"{key} flipped at {at}"


def _zeroed(rng: random.Random, objects: dict[str, bytes]) -> str:
    key = _pick(rng, objects)
    data = objects[key]
    at = rng.randrange(len(data) + 1)
    length = min(rng.choice((1, 16, 4096)), len(data) - at)
    objects[key] = data[:at] + bytes(length) + data[at + length :]
    return f"{key} zeroed at {at}, {length} bytes"


def _deleted(rng: random.Random, objects: dict[str, bytes]) -> str:
    key = _pick(rng, objects)
    del objects[key]
    return f"{key} deleted"


def _duplicated(rng: random.Random, objects: dict[str, bytes]) -> str:
    key = _pick(rng, objects)
    newest = max((journal_number(key) or 0 for key in objects), default=0)
    names = [f"{key}.bak", journal_key(newest + rng.choice((1, 1, 2, 5))), "shards/shard-00000003-00000009.parquet"]
    name = rng.choice(names)
    objects[name] = objects[key]
    return f"{key} copied to {name}"


def _swapped(rng: random.Random, objects: dict[str, bytes]) -> str:
    one, other = _pick(rng, objects), _pick(rng, objects)
    objects[one], objects[other] = objects[other], objects[one]
    return f"{one} and {other} swapped"


def _emptied(rng: random.Random, objects: dict[str, bytes]) -> str:
    key = _pick(rng, objects)
    objects[key] = b""
    return f"{key} emptied"


def _garbage(rng: random.Random, objects: dict[str, bytes]) -> str:
    name = rng.choice(("journal/notes.txt", "journal/.DS_Store", "shards/x", _pick(rng, objects)))
    objects[name] = rng.randbytes(rng.randrange(200))
    return f"{name} garbage"


def _grown(rng: random.Random, objects: dict[str, bytes]) -> str:
    key = _pick(rng, objects)
    objects[key] += rng.randbytes(rng.choice((1, 8, 1000)))
    return f"{key} grown"


DAMAGES: tuple[Damage, ...] = (
    _truncated,
    _flipped,
    _flipped,
    _zeroed,
    _deleted,
    _duplicated,
    _swapped,
    _emptied,
    _garbage,
    _grown,
)
