"""vLLM's own server beside a vLLM engine of our own, in one run under Ray: each is killed with -9 once, and comes back.

Greedy, with n-gram speculation on both sides. Costs two starts of either.
"""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from regen.data.template import load_template
from regen.run.held import control_records
from regen.run.session import standing
from regen.spec import dump_spec, parse_spec
from regen.store.local import LocalStorage
from regen.store.tally import newest_tally, tally_of
from tests.processes import REGEN, descendants, exists, kill, reached, regen, said, started, titled, wait_until
from tests.real_vllm_server import RealServer
from tests.runs import shard_table, write_jsonl

pytestmark = [pytest.mark.engine, pytest.mark.ray]

ROWS, PROMPTS, CAP = 100, 4, 32
SERVER, OWN = 0, 1
NGRAM = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}


def write_spec(folder: Path, model: Path, url: str) -> str:
    asked = [f"Name {number + 2} things that one finds in a kitchen, one a line." for number in range(PROMPTS)]
    write_jsonl(folder / "rows.jsonl", [{"prompt": asked[number % PROMPTS]} for number in range(ROWS)])
    raw: dict[str, Any] = {
        "name": "mixed",
        "output": "run",
        "target": {"model": str(model)},
        "engine": {
            "kind": "vllm",
            "slots": 1,
            "max_model_len": 1024,
            "args": {"enforce_eager": True, "kv_cache_memory_bytes": 2**28},
            "endpoints": [{"url": url, "model": "target"}],
            "outage_seconds": 3,
        },
        "speculation": {
            "method": "ngram",
            "num_tokens": 3,
            "args": NGRAM,
            "calibrate": "off",
            "gate": "warn",
            "guard": "warn",
            "warmup": {"rows": 8, "drafts": 16, "max_tokens": 48, "canary_rows": 1},
        },
        "sampling": {"max_tokens": CAP, "temperature": 0.0},
        "sources": [{"name": "rows", "path": "rows.jsonl"}],
        "checkpoint": {"interval_seconds": 1, "rows_per_shard": 60},
        "metrics": {"port": None},
    }
    (folder / "spec.yaml").write_text(dump_spec(parse_spec(raw, origin="test")), encoding="utf-8")
    return "spec.yaml"


def made_by(run: Path, slot: int) -> int:
    """Rows that this replica has committed."""
    if not (run / "plan.json").exists():
        return 0
    return sum(rows for (replica, _), rows in standing(LocalStorage(run)).totals.replicas.items() if replica == slot)


def has_made(run: Path, slot: int, rows: int) -> bool:
    return made_by(run, slot) >= rows


def own_replica(driver: int) -> int:
    """The replica with an engine below it; the one of the server has none."""
    (found,) = [pid for pid in titled(driver, "ray::ReplicaActor") if titled(pid, "VLLM::EngineCore")]
    return found


@contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    """They do nothing, and keep their connections."""
    for pid in pids:
        kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            kill(pid, signal.SIGCONT)


def test_either_is_killed_and_comes_back_and_every_row_is_there_once(tmp_path: Path, smollm2: Path) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3, **NGRAM}
    more = ["--speculative-config", json.dumps(config), "--per-request-spec-decode-metrics", "summary"]
    run = tmp_path / "run"
    server = RealServer(smollm2, tmp_path / "server.log", more)
    spec = write_spec(tmp_path, smollm2, server.url)
    try:
        server.start()
        server.wait()  # or the engine of our own makes all rows while it starts
        with started([*REGEN, "run", spec], cwd=tmp_path) as process:
            reached(partial(has_made, run, SERVER, 3), process)
            with frozen(server.pids):  # or it makes all rows while the other starts
                reached(partial(has_made, run, OWN, 5), process)
                server.kill()
            replica = own_replica(process.pid)
            engine = descendants(replica)
            before = made_by(run, SERVER)
            with frozen(engine):
                server.start()
                server.wait()
                reached(partial(has_made, run, SERVER, before + 5), process)
            before = made_by(run, OWN)
            with frozen(server.pids):
                kill(replica)
                wait_until(lambda: not any(exists(pid) for pid in engine))
                reached(partial(has_made, run, OWN, before + 3), process)
            told = said(process)
            assert process.wait(timeout=300) == 0, told
    finally:
        server.end()
    assert regen("verify", "run", cwd=tmp_path).returncode == 0
    rows = shard_table(run).to_pylist()
    assert [row["ordinal"] for row in rows] == list(range(ROWS))
    check_ids(rows, smollm2)
    check_counters(rows)
    check_agreement(rows)
    tally = tally_of(newest_tally(control_records(LocalStorage(run))))
    assert not tally.retries, "nobody's death costs a row an attempt"
    assert tally.slots[OWN].restarts == 1
    assert tally.slots[SERVER].gpu_seconds == 0


def check_ids(rows: list[dict[str, Any]], model: Path) -> None:
    template = load_template(model, False, {})
    for row in rows:
        (made,) = row["generations"]
        ids = tuple(made["completion_token_ids"])
        assert made["text"] == template.decode(ids)
        assert made["finish_reason"] in {"stop", "length"}
        assert 0 < len(ids) <= CAP
        assert row["messages"][0]["content"] in template.decode(tuple(made["prompt_token_ids"]))


def check_counters(rows: list[dict[str, Any]]) -> None:
    """Each request's own, on either side."""
    drafts: dict[bool, int] = defaultdict(int)
    for row in rows:
        (seen,) = row["observed"]["generations"]
        assert seen["drafts"] is not None
        drafts[row["observed"]["engine"].endswith("(server)")] += seen["drafts"]
    assert all(count > 0 for count in drafts.values()), drafts
    assert set(drafts) == {True, False}


def check_agreement(rows: list[dict[str, Any]]) -> None:
    """Greedy answers to one prompt are mostly the same ids, whoever gave them; other batches round otherwise."""
    given: dict[str, dict[bool, list[tuple[int, ...]]]] = defaultdict(lambda: {True: [], False: []})
    for row in rows:
        ids = tuple(row["generations"][0]["completion_token_ids"])
        given[row["messages"][0]["content"]][row["observed"]["engine"].endswith("(server)")].append(ids)
    pairs = [(ours, theirs) for both in given.values() for ours in both[False] for theirs in both[True]]
    same = sum(ours == theirs for ours, theirs in pairs)
    assert len(pairs) > 20
    assert same / len(pairs) > 0.6, f"{same} of {len(pairs)}"
