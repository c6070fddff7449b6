"""A run folder of any size, laid down by the real classes and without engines: for measuring commands on it.

The plan's parts are as PlanWriter writes them, the journal is the real Journal's, its rows have the digests that
`regen verify` recomputes. Rows are short (two messages, some dozen ids): a million take a few hundred megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.made_up import finished, planned, row_id, spec_of, with_columns
from regen.data.plan_rows import SCHEMA as PLAN_SCHEMA
from regen.data.plan_rows import to_table, to_values
from regen.data.plan_summary import PLAN_KEY, PlanPart, PlanSummary, SourceSummary
from regen.data.plan_writer import GROUP_ROWS, PART_ROWS
from regen.data.sources import file_digest, list_files
from regen.data.target import resolve_target
from regen.protocols import Storage
from regen.rows import SCHEMA, determined_digest
from regen.run.record import make_record, write_record
from regen.spec import RunSpec
from regen.store.control import Claim, Released, ReleaseReason
from regen.store.journal import Journal
from regen.store.machine import utc_now
from regen.store.storage import open_storage

# A run of 48 hours with a checkpoint every 30 seconds.
MOST_FILES, FEWEST_FILE_ROWS = 5760, 170
_ANSWER = (*range(97, 122), 1)


@dataclass(frozen=True, slots=True)
class LargeRun:
    """`spec` is over `source`, whose rows are as many as the plan's."""

    count: int
    spec: RunSpec
    source: Path

    @property
    def storage(self) -> Storage:
        return open_storage(self.spec.output)

    @property
    def file_rows(self) -> int:
        """Rows of a journal file, so that a whole run has `MOST_FILES` of them at most."""
        return max(FEWEST_FILE_ROWS, -(-self.count // MOST_FILES))


def with_source(folder: Path, count: int) -> LargeRun:
    """A spec and its one source; no run folder yet."""
    source = folder / "rows.jsonl"
    with source.open("w", encoding="ascii") as file:
        for start in range(0, count, 10_000):
            file.writelines(f'{{"prompt":"say {row}"}}\n' for row in range(start, min(start + 10_000, count)))
    spec = spec_of(folder, source)
    engine = spec.engine.model_copy(update={"replicas": 1})
    return LargeRun(count, spec.model_copy(update={"engine": engine}), source)


def lay_down_plan(run: LargeRun) -> None:
    """run.json and the plan: one part's rows again and again, with ordinals and ids of their own."""
    storage = run.storage
    write_record(storage, make_record(run.spec, resolve_target(run.spec.target)))
    pattern = to_table([to_values(planned(ordinal, f"say {ordinal}")) for ordinal in range(min(PART_ROWS, run.count))])
    parts = tuple(
        _plan_part(storage, run.source.parent, pattern, run.count, at) for at in range(0, run.count, PART_ROWS)
    )
    files = tuple(list_files(run.spec.sources[0]))
    source = SourceSummary("rows", run.count, run.count, {}, {}, 40 * run.count, 40, run.count, files)
    storage.create(PLAN_KEY, PlanSummary("large", run.count, 0, "0" * 32, parts, (source,)).to_json())


def _plan_part(storage: Storage, folder: Path, pattern: pa.Table, count: int, first: int) -> PlanPart:
    ordinals = range(first, min(first + PART_ROWS, count))
    table = pattern.slice(0, len(ordinals))
    table = with_columns(table, PLAN_SCHEMA, {"ordinal": ordinals, "row_id": [row_id(one) for one in ordinals]})
    path = folder / "part.parquet"
    pq.write_table(table, path, compression="zstd", row_group_size=GROUP_ROWS)
    key = f"plan/large/part-{first // PART_ROWS:05d}.parquet"
    part = PlanPart(key, len(ordinals), path.stat().st_size, file_digest(path))
    storage.replace(key, path)
    path.unlink()
    return part


def make_rows(run: LargeRun, most: int, with_digests: bool = True) -> None:
    """Commit the first `most` rows of the plan that are not done, in files of `file_rows`, as one session.

    `with_digests`: those that belong to the rows, for commands that read them. Costs 0.1 ms a row, half of it without.
    """
    storage = run.storage
    journal = Journal(storage, f"laid-down-{utc_now()}", run.count)
    done = journal.replay(()).done
    journal.claim(Claim(journal.session, "nowhere", 1, 1, utc_now()))
    wanted = islice((row for row in range(run.count) if row not in done), most)
    with ProcessPoolExecutor(2) as pool:
        for table in _tables(pool, wanted, run.file_rows, with_digests):
            journal.publish(table)
    journal.publish(SCHEMA.empty_table(), [Released(journal.session, ReleaseReason.DRAINED, utc_now())])


def _tables(pool: ProcessPoolExecutor, wanted: Iterator[int], file_rows: int, with_digests: bool) -> Iterator[pa.Table]:
    """Made by other processes, a few ahead."""
    ahead = []
    while ordinals := list(islice(wanted, file_rows)):
        ahead.append(pool.submit(made_rows, ordinals, with_digests))
        if len(ahead) > 4:
            yield ahead.pop(0).result()
    for future in ahead:
        yield future.result()


def made_rows(ordinals: Sequence[int], with_digests: bool = True) -> pa.Table:
    """Finished rows of the plan of `lay_down_plan`."""
    ids = [row_id(ordinal) for ordinal in ordinals]
    table = finished("say 1", bytes(_ANSWER[:-1]).decode("ascii"), range(40), _ANSWER).take([0] * len(ordinals))
    table = with_columns(table, SCHEMA, {"ordinal": list(ordinals), "row_id": ids})
    digests = [determined_digest(values) for values in table.to_pylist()] if with_digests else ids
    return with_columns(table, SCHEMA, {"digest": digests})
