"""The main job on real vLLM under real Ray: killed, continued, verified, loaded as a trainer loads it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from regen.records import Status
from regen.run.commands.export import ExportOptions, export
from regen.run.session import standing
from regen.spec import dump_spec, parse_spec
from regen.store.local import LocalStorage
from tests.processes import REGEN, descendants, exists, free_port, kill, reached, regen, started, titled, wait_until
from tests.runs import conversations, shard_table, write_jsonl
from tests.scrapes import sample, scraped

pytestmark = [pytest.mark.engine, pytest.mark.ray]


def write_spec(folder: Path, model: Path, rows: int, engine_port: int) -> str:
    write_jsonl(folder / "rows.jsonl", conversations(rows))
    raw: dict[str, Any] = {
        "name": "real",
        "output": "run",
        "target": {"model": str(model)},
        "engine": {
            "kind": "vllm",
            "slots": 8,
            "max_model_len": 1024,
            "args": {"enforce_eager": True, "kv_cache_memory_bytes": 2**28},
        },
        "speculation": {"method": "ngram", "num_tokens": 3, "args": {"prompt_lookup_max": 4, "prompt_lookup_min": 2}},
        "sampling": {"max_tokens": 64, "temperature": 0.0},
        "sources": [{"name": "rows", "path": "rows.jsonl"}],
        "checkpoint": {"interval_seconds": 1, "rows_per_shard": 10},
        "metrics": {"port": None, "engine_port": engine_port},
    }
    spec = parse_spec(raw, origin="test")
    (folder / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    return "spec.yaml"


def has_done(folder: Path, rows: int) -> bool:
    return (folder / "plan.json").exists() and standing(LocalStorage(folder)).totals.done >= rows


def test_killed_twice_and_continued_the_run_is_whole_and_reads_back(tmp_path: Path, smollm2: Path) -> None:
    """First a replica's process, whose engine must go with it; then the driver. Two engine starts after the first."""
    port = free_port()
    spec = write_spec(tmp_path, smollm2, rows=45, engine_port=port)
    with started([*REGEN, "run", spec], cwd=tmp_path) as process:
        reached(partial(has_done, tmp_path / "run", 5), process)
        check_own_series(port)
        (replica,) = titled(process.pid, "ray::ReplicaActor")
        engine = descendants(replica)
        assert engine, "vLLM's engine runs in processes of its own"
        kill(replica)
        wait_until(lambda: not any(exists(pid) for pid in engine), seconds=30)
        reached(partial(has_done, tmp_path / "run", 20), process)
        check_own_series(port)  # of the next engine, at the same port
        process.kill()
    done = regen("resume", "run", cwd=tmp_path, timeout_seconds=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert regen("verify", "run", cwd=tmp_path).returncode == 0
    check_rows(tmp_path / "run", smollm2)
    check_trainer_view(tmp_path / "run")
    check_exports(tmp_path / "run", smollm2, tmp_path / "exports")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["accept_length"] > 1.0


def check_own_series(port: int) -> None:
    """vLLM's, from the process that holds `AsyncLLM`, although its engine runs in others."""
    text = scraped(port)
    assert sample(text, "vllm:generation_tokens_total") > 0
    assert sample(text, "vllm:spec_decode_num_drafts_total") > 0
    assert sample(text, "vllm:num_requests_running") >= 0


def check_rows(run: Path, model: Path) -> None:
    from regen.data.template import load_template

    template = load_template(model, False, {})
    rows = shard_table(run).to_pylist()
    assert [row["ordinal"] for row in rows] == list(range(45))
    assert "OLD ANSWER" not in json.dumps(rows)
    for row in rows:
        assert row["generations"]
        for generation in row["generations"]:
            ids = tuple(generation["completion_token_ids"])
            assert generation["text"] == template.decode(ids)
            assert generation["finish_reason"] in {"stop", "length"}
            assert len(ids) <= generation["cap"] == 64
        for message in row["messages"]:
            if message["role"] == "user":
                assert message["content"] in template.decode(tuple(row["generations"][-1]["prompt_token_ids"]))
        assert all(seen["drafts"] is not None for seen in row["observed"]["generations"])


def check_trainer_view(run: Path) -> None:
    import datasets

    loaded = datasets.load_dataset(
        "parquet", data_files=str(run / "shards" / "*.parquet"), cache_dir=str(run.parent / "cache"), split="train"
    )
    assert len(loaded) == 45
    assert len(set(loaded["row_id"])) == 45


def check_exports(run: Path, model: Path, out: Path) -> None:
    """A real tokenizer on what a real engine sampled: ids as they were, and text only where it gives them."""
    from transformers import AutoTokenizer

    rows = {row["row_id"]: row for row in shard_table(run).to_pylist()}
    for name in ("speculators", "messages"):
        options = ExportOptions(name, str(out / name), statuses=frozenset({Status.TRUNCATED}))
        done = export(str(run), options, say=lambda text: None)
        assert done.tally.rows_seen == len(rows)
    ids = {line["id"]: line for line in exported_lines(out / "speculators")}
    # A small model at temperature 0 loops now and then: such rows are labelled, and left out.
    generations = {
        f"{row_id}-{turn['turn']}": turn["prompt_token_ids"] + turn["completion_token_ids"]
        for row_id, row in rows.items()
        for turn in row["generations"]
        if row["status"] in ("ok", "truncated")
    }
    assert len(generations) > 30
    assert {name: line["input_ids"] for name, line in ids.items()} == generations
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    for line in exported_lines(out / "messages"):
        rendered = tokenizer.apply_chat_template(line["messages"], tokenize=True, return_dict=True)["input_ids"]
        for turn in rows[line["id"]]["generations"]:
            said = turn["prompt_token_ids"] + turn["completion_token_ids"]
            assert rendered[: len(said)] == said


def exported_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
