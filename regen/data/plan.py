"""Reading the frozen plan from a run folder.

Guarantees: what `plan.json` says is what the parts hold (sizes at opening, row counts when a part is first read), or
JournalDamaged names the part. Memory: a few decoded row groups, however large the plan. Safe to use from many threads.
Costs: a row group (512 rows) is decoded for the first row asked of it, some milliseconds.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import PurePosixPath
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from regen.data.plan_rows import from_values
from regen.data.plan_summary import EXTENSIONS, PLAN_KEY, PlanPart, PlanSummary, extension_key, extension_number
from regen.errors import JournalDamaged, StoreUnavailable
from regen.own_thread import open_parquet, read_parquet, read_row_group
from regen.protocols import Storage
from regen.records import PlannedRow, PlanStage, Status

_GROUPS_KEPT = 16
_PARTS_KEPT = 4


def read_summary(storage: Storage) -> PlanSummary | None:
    """The plan as it is now, with all extensions; None if there is no plan yet.

    Raises JournalDamaged: a summary cannot be read, is missing in the sequence, or does not continue the one before.
    """
    summary = _read(storage, PLAN_KEY)
    if summary is None:
        return None
    found = sorted(filter(None, (extension_number(stored.key) for stored in storage.list(EXTENSIONS))))
    for number in range(1, max(found, default=0) + 1):
        extended = _read(storage, extension_key(number))
        if extended is None:
            raise JournalDamaged(f"{storage.url}/{extension_key(number)} is missing, and later extensions are there")
        if not extended.continues(summary):
            raise JournalDamaged(f"{storage.url}/{extended.key} does not continue {summary.key}: one was altered")
        summary = extended
    return summary


def _read(storage: Storage, key: str) -> PlanSummary | None:
    try:
        data = storage.read(key)
    except KeyError:
        return None
    try:
        return PlanSummary.from_json(data)
    except (ValueError, KeyError, TypeError) as error:
        raise JournalDamaged(f"{storage.url}/{key} is not a plan that this version reads: {error}") from error


def open_plan(storage: Storage) -> RunPlan:
    """The plan of a run folder. Raises JournalDamaged: no plan there, or a part is missing or has another size."""
    summary = read_summary(storage)
    if summary is None:
        raise JournalDamaged(
            f"{storage.url} has no {PLAN_KEY}: it is no run folder, or planning never ended; `regen run` makes the plan"
        )
    if summary.rows != sum(part.rows for part in summary.parts):
        raise JournalDamaged(
            f"{storage.url}/{summary.key} says {summary.rows} rows, and its parts have others together"
        )
    require_parts(storage, summary)
    return RunPlan(storage, summary)


def require_parts(storage: Storage, summary: PlanSummary) -> None:
    """Raises JournalDamaged unless every part is there and has its size."""
    folders = dict.fromkeys(str(PurePosixPath(part.key).parent) for part in summary.parts)
    sizes = {stored.key: stored.size for folder in folders for stored in storage.list(f"{folder}/")}
    for part in summary.parts:
        if part.key not in sizes:
            raise JournalDamaged(f"{part.key} is missing in {storage.url}, and {summary.key} names it")
        if sizes[part.key] != part.bytes:
            raise JournalDamaged(
                f"{part.key} in {storage.url} has {sizes[part.key]} bytes, {summary.key} says {part.bytes}"
            )


def damaged_parts(storage: Storage, summary: PlanSummary) -> list[str]:
    """What is wrong with the plan's parts, one sentence each; reads every byte. Empty: all as planned."""
    problems = []
    for part in summary.parts:
        try:
            digest = hashlib.blake2b(storage.read(part.key), digest_size=16).hexdigest()
        except KeyError:
            problems.append(f"{part.key} is missing")
            continue
        if digest != part.digest:
            problems.append(f"{part.key} has the digest {digest}, {PLAN_KEY} says {part.digest}")
    return problems


class RunPlan:
    """`protocols.Plan` over the parts in a storage; made by `open_plan`."""

    def __init__(self, storage: Storage, summary: PlanSummary) -> None:
        self.summary = summary
        self._storage = storage
        self._starts = [0, *accumulate(part.rows for part in summary.parts)]
        self._files: OrderedDict[int, _PartFile] = OrderedDict()
        self._groups: OrderedDict[tuple[int, int], list[PlannedRow]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        return self.summary.rows

    @property
    def digest(self) -> str:
        return self.summary.digest

    @property
    def stages(self) -> tuple[PlanStage, ...]:
        return self.summary.stages

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(source.name for source in self.summary.sources)

    def row_ids(self) -> Iterator[list[str]]:
        """The ids of all rows in order, a part at a time; reads one column."""
        for number, part in enumerate(self.summary.parts):
            with self._lock:
                table = self._file(number).read_columns(["row_id"])
            _check_rows(part, table.num_rows)
            yield cast(list[str], table["row_id"].to_pylist())

    def rows(self, ordinals: Sequence[int]) -> list[PlannedRow]:
        """These rows, in the order asked for. Raises IndexError for an ordinal that is not in the plan."""
        with self._lock:
            return [self._row(ordinal) for ordinal in ordinals]

    def scan(self, start: int = 0, stop: int | None = None) -> Iterator[PlannedRow]:
        """Rows `start` to `stop` in order, one row group in memory."""
        stop = self.count if stop is None else min(stop, self.count)
        while start < stop:
            with self._lock:
                group, offset = self._group_of(start)
            chosen = group[offset : offset + stop - start]
            yield from chosen
            start += len(chosen)

    def settled(self) -> Iterator[tuple[int, str, Status]]:
        """(ordinal, source, outcome) of every row that is terminal from the start, in order.

        Reads three columns of the parts that have such rows, and of the others what their footers say.
        """
        for number, part in enumerate(self.summary.parts):
            with self._lock:
                file = self._file(number)
                if not file.may_settle:
                    continue
                table = file.read_columns(["ordinal", "source", "settled"])
            chosen = table.filter(pc.is_valid(table["settled"]))
            _check_rows(part, table.num_rows)
            outcomes = [Status(outcome) for outcome in chosen["settled"].to_pylist() if outcome]
            yield from zip(chosen["ordinal"].to_pylist(), chosen["source"].to_pylist(), outcomes, strict=True)

    def to_make(self) -> Iterator[tuple[int, str, str]]:
        """(ordinal, row id, source) of every row that the target is to make, in order; reads four columns."""
        for number, part in enumerate(self.summary.parts):
            with self._lock:
                table = self._file(number).read_columns(["ordinal", "row_id", "source", "settled"])
            _check_rows(part, table.num_rows)
            chosen = table.filter(pc.is_null(table["settled"]))
            yield from zip(*(chosen[name].to_pylist() for name in ("ordinal", "row_id", "source")), strict=True)

    def sources_of(self, ordinals: Sequence[int]) -> list[str]:
        """The source of each row, in the order asked for; reads one column of the parts that hold them."""
        by_part: dict[int, list[int]] = {}
        for ordinal in ordinals:
            by_part.setdefault(bisect_right(self._starts, ordinal) - 1, []).append(ordinal)
        found: dict[int, str] = {}
        for number, wanted in sorted(by_part.items()):
            with self._lock:
                table = self._file(number).read_columns(["source"])
            _check_rows(self.summary.parts[number], table.num_rows)
            taken = table["source"].take(pa.array([ordinal - self._starts[number] for ordinal in wanted]))
            found.update(zip(wanted, cast(list[str], taken.to_pylist()), strict=True))
        return [found[ordinal] for ordinal in ordinals]

    def prompts_longer_than(self, tokens: int) -> tuple[int, int]:
        """(rows that the target is to make, those of them whose first prompt is longer); reads two columns."""
        planned = longer = 0
        for number in range(len(self.summary.parts)):
            with self._lock:
                table = self._file(number).read_columns(["prompt_tokens", "settled"])
            lengths = table.filter(pc.is_null(table["settled"]))["prompt_tokens"]
            planned += len(lengths)
            longer += sum((length or 0) > tokens for length in lengths.to_pylist())
        return planned, longer

    def _row(self, ordinal: int) -> PlannedRow:
        group, offset = self._group_of(ordinal)
        return group[offset]

    def _group_of(self, ordinal: int) -> tuple[list[PlannedRow], int]:
        """The decoded row group that holds this ordinal, and where in it."""
        if not 0 <= ordinal < self.count:
            raise IndexError(f"ordinal {ordinal} is outside a plan of {self.count} rows")
        part = bisect_right(self._starts, ordinal) - 1
        file = self._file(part)
        index, offset = file.find(ordinal - self._starts[part])
        group = self._groups.get((part, index))
        if group is None:
            group = self._groups[part, index] = file.decode(index)
            if group[offset].ordinal != ordinal:
                raise JournalDamaged(f"{file.part.key} holds ordinal {group[offset].ordinal} where {ordinal} belongs")
            if len(self._groups) > _GROUPS_KEPT:
                self._groups.popitem(last=False)
        self._groups.move_to_end((part, index))
        return group, offset

    def _file(self, number: int) -> _PartFile:
        file = self._files.get(number)
        if file is None:
            file = self._files[number] = _PartFile(self._storage, self.summary.parts[number])
            if len(self._files) > _PARTS_KEPT:
                self._files.popitem(last=False)
        self._files.move_to_end(number)
        return file


class _PartFile:
    """One part: where its row groups begin, and whether any row may be settled. Open only while it is read from."""

    def __init__(self, storage: Storage, part: PlanPart) -> None:
        self.part = part
        self._storage = storage
        with self._opened() as file:
            metadata = file.metadata
            _check_rows(part, metadata.num_rows)
            groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
            self.may_settle = _may_settle(groups)
            counts = [group.num_rows for group in groups]
        self._starts = [0, *accumulate(counts)]

    def find(self, offset: int) -> tuple[int, int]:
        """(row group, row in it) of a row of this part."""
        index = bisect_right(self._starts, offset) - 1
        return index, offset - self._starts[index]

    def decode(self, index: int) -> list[PlannedRow]:
        with self._opened() as file:
            return [from_values(values) for values in read_row_group(file, index).to_pylist()]

    def read_columns(self, columns: list[str]) -> pa.Table:
        with self._opened() as file:
            return read_parquet(file, columns)

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        try:
            with self._storage.open(self.part.key) as stream, open_parquet(stream) as file:
                yield file
        except KeyError:
            raise JournalDamaged(f"{self.part.key} is missing, and {PLAN_KEY} names it") from None
        except OSError as error:
            if error.errno is not None:  # said by the system, not by the reader of the bytes
                raise StoreUnavailable(f"{self.part.key} cannot be read: {error.strerror}") from error
            raise JournalDamaged(f"{self.part.key} cannot be read: {error}") from error
        except (pa.ArrowException, ValueError) as error:
            raise JournalDamaged(f"{self.part.key} cannot be read: {error}") from error


def _check_rows(part: PlanPart, rows: int) -> None:
    if rows != part.rows:
        raise JournalDamaged(f"{part.key} holds {rows} rows, {PLAN_KEY} says {part.rows}")


def _may_settle(groups: Sequence[pq.RowGroupMetaData]) -> bool:
    """Whether any row may be settled: not where the file's own statistics say of all row groups that none is.

    The column is looked for here and not in `file.schema`: that one and the file's metadata hold each other, and those
    of hundreds of parts would wait for a garbage collection, 200 KB each.
    """
    if not groups:
        return False
    names = [groups[0].column(index).path_in_schema for index in range(groups[0].num_columns)]
    place = names.index("settled")
    return any(_unset(group.column(place).statistics) < group.num_rows for group in groups)


def _unset(seen: pq.Statistics | None) -> int:
    """How many rows of a column chunk are sure to have no value."""
    return 0 if seen is None else seen.null_count or 0
