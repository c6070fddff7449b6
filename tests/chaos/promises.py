"""What must be true of a run after all trouble. Each check says what it saw; a broken promise is one line."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from regen.protocols import Storage
from tests.chaos.made import Loss, Outage, made_twice, most_made_twice, parse_log
from tests.chaos.ray_cluster import Identity, still_there
from tests.processes import regen, wait_until


@dataclass(slots=True)
class Verdict:
    """The table's lines for one round, and what was promised and not kept."""

    facts: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def expect(self, is_kept: bool, promise: str) -> None:
        if not is_kept:
            self.broken.append(promise)


def sealed_rows(storage: Storage) -> pa.Table:
    """All sealed rows, in the order of their shards."""
    tables = [pq.read_table(io.BytesIO(storage.read(one.key))) for one in storage.list("shards/")]
    return pa.concat_tables(tables)


def check_rows(verdict: Verdict, storage: Storage, reference: pa.Table) -> dict[str, int]:
    """Every planned row once, each with the content of an undisturbed run. How many turns each row has."""
    rows = sealed_rows(storage)
    ordinals = rows["ordinal"].to_pylist()
    verdict.expect(
        ordinals == list(range(reference.num_rows)), f"every row once: {len(ordinals)} rows, or not in order"
    )
    same = rows["digest"].to_pylist() == reference["digest"].to_pylist()
    verdict.expect(same, "the content of an undisturbed run")
    verdict.facts["rows"] = f"{len(ordinals)} of {reference.num_rows}"
    generations = pc.list_value_length(rows["generations"]).to_pylist()
    return {str(row_id): int(count or 0) for row_id, count in zip(rows["row_id"].to_pylist(), generations, strict=True)}


def check_made_twice(
    verdict: Verdict, log: Path, turns: dict[str, int], losses: Iterable[Loss], outages: list[Outage]
) -> None:
    """No generation was made twice for another reason than a process that was ended by trouble."""
    made = parse_log(log.read_text(encoding="utf-8").splitlines())
    twice, most = made_twice(made), most_made_twice(made, turns, losses, outages)
    verdict.facts["generations"] = f"{len(made)} made, {sum(turns.values())} needed"
    verdict.facts["made twice"] = f"{twice}, at most {most}"
    verdict.expect(twice <= most, f"generations made twice: {twice}, and at most {most} may be")


def check_verify(verdict: Verdict, url: str, folder: Path, environment: dict[str, str]) -> None:
    checked = regen("verify", url, cwd=folder, more=environment)
    verdict.expect(checked.returncode == 0, f"verify is clean: exit {checked.returncode}: {checked.stdout[-500:]}")


def check_processes(verdict: Verdict, started: set[Identity]) -> None:
    """Of everything that was ever started, nothing is left."""
    with suppress(TimeoutError):
        wait_until(lambda: not any(still_there(one) for one in started), seconds=30)
    left = [one[0] for one in started if still_there(one)]
    verdict.facts["processes"] = f"{len(started)} started, {len(left)} left"
    verdict.expect(not left, f"no process left: {left}")
