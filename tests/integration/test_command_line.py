"""The command line without engines: what it prints, what it ends with, what it does not load."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from regen.run.local import LocalCluster
from regen.run.session import seal_run, standing
from regen.run.start import StartOptions, resume
from regen.spec import dump_spec, load_spec
from tests import virtual_time
from tests.chaos.ray_cluster import ENVIRONMENT, RayHead
from tests.listening import is_loopback, listening
from tests.processes import REGEN, environment, regen, regen_here
from tests.runs import begin_run, conversations, drive, make_spec, write_jsonl
from tests.toy_target import build_toy_target


def finished_run(folder: Path) -> Path:
    """A sealed run in `folder`/run, made without Ray."""
    begun = begin_run(make_spec(folder, rows=[*conversations(20), {"messages": []}]))
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    return folder / "run"


def test_retry_opens_rows_again_and_says_what_is_next(tmp_path: Path) -> None:
    begun = begin_run(make_spec(tmp_path, rows=20, sampling={"max_tokens": 12}))
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    opened = regen_here("retry", "run", "--status", "truncated", "--max-tokens", "100", cwd=tmp_path)
    assert opened.returncode == 0, opened.stderr
    seen = json.loads(regen_here("status", "run", "--json", cwd=tmp_path).stdout)
    assert 0 < seen["reopened"] == seen["outcomes"]["truncated"]
    assert not seen["is_finished"]
    assert sum(seen["outcomes_by_replica"]["0"].values()) == 20
    assert seen["labels_by_source"]["rows"]["cut_in_answer"] >= seen["reopened"]
    assert f"{seen['reopened']} rows opened again (round 1)" in opened.stdout
    assert regen_here("verify", "run", cwd=tmp_path).returncode == 0
    again = regen_here("retry", "run", "--status", "truncated", "--max-tokens", "99999", cwd=tmp_path)
    assert again.returncode == 2
    assert "leaves no room" in again.stderr
    assert regen_here("retry", "run", "--status", "nothing", cwd=tmp_path).returncode == 2


def written(folder: Path, **sections: object) -> str:
    (folder / "spec.yaml").write_text(dump_spec(make_spec(folder, **sections)), encoding="utf-8")  # type: ignore[arg-type]
    return "spec.yaml"


def test_help_and_version_load_neither_ray_nor_vllm_nor_arrow() -> None:
    code = (
        "import sys\n"
        "from regen.cli import app\n"
        "app(['--help'], standalone_mode=False)\n"
        "print(sorted({'aiohttp', 'ray', 'vllm', 'pyarrow', 'transformers', 'torch', 'datasets'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr


def test_plan_status_and_verify_need_neither_ray_nor_an_engine(tmp_path: Path) -> None:
    """As on a machine where neither is installed: any import of them fails."""
    finished_run(tmp_path)
    spec = written(tmp_path)
    code = (
        "import sys\n"
        "sys.modules['ray'] = sys.modules['vllm'] = None\n"
        "from regen.cli import app\n"
        f"for words in (['plan', {spec!r}], ['status', 'run'], ['verify', 'run'], ['seal', 'run']):\n"
        "    app(words, standalone_mode=False)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_init_writes_a_spec_that_parses_and_overwrites_nothing(tmp_path: Path) -> None:
    assert regen_here("init", cwd=tmp_path).returncode == 0
    assert load_spec(tmp_path / "regen.yaml").name == "my-run"
    again = regen_here("init", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists" in again.stderr


def test_a_bad_key_ends_with_2_and_its_path(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("name: x\nouptut: y\n", encoding="utf-8")
    done = regen_here("run", "spec.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "spec.yaml: ouptut: unknown key" in done.stderr


def test_plan_prints_every_source_and_is_deterministic(tmp_path: Path) -> None:
    rows = [*conversations(9), {"messages": []}, {"prompt": 5}]
    spec = written(tmp_path, rows=rows)
    one, other = (json.loads(regen_here("plan", spec, "--json", cwd=tmp_path).stdout) for _ in range(2))
    assert one["digest"] == other["digest"]
    (source,) = one["sources"]
    assert (source["rows"], source["accepted"]) == (11, 9)
    assert sum(source["rejected"].values()) == 2
    table = regen_here("plan", spec, cwd=tmp_path).stdout
    assert "empty_conversation 1" in table
    assert not (tmp_path / "run").exists()


def test_status_and_verify_agree_on_a_finished_run(tmp_path: Path) -> None:
    finished_run(tmp_path)
    status = json.loads(regen_here("status", "run", "--json", cwd=tmp_path).stdout)
    verified = regen_here("verify", "run", "--json", cwd=tmp_path)
    found = json.loads(verified.stdout)
    assert verified.returncode == 0
    assert found["is_right"]
    assert status["planned"] == status["done"] == found["planned"] == sum(found["outcomes"].values()) == 21
    assert status["outcomes"] == found["outcomes"]
    assert status["reasons"]["rejected"] == {"empty_conversation": 1}


@pytest.mark.parametrize("victim", ["journal/*.parquet", "shards/*.parquet", "plan/*/*.parquet"])
def test_verify_names_a_damaged_file_and_ends_with_1(tmp_path: Path, victim: str) -> None:
    path = sorted(finished_run(tmp_path).glob(victim))[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0x20
    path.write_bytes(content)
    done = regen_here("verify", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert path.name in done.stdout


def test_an_unfinished_run_does_not_verify_and_says_how_much_is_missing(tmp_path: Path) -> None:
    begin_run(make_spec(tmp_path, rows=5))
    done = regen_here("verify", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert "5 of 5 rows have no outcome yet" in done.stdout


def test_a_folder_without_a_run_is_said_to_be_none(tmp_path: Path) -> None:
    done = regen_here("status", "nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert "holds no run" in done.stderr


def test_changed_sampling_is_refused_with_a_diff(tmp_path: Path) -> None:
    finished_run(tmp_path)
    refused = regen_here("run", written(tmp_path, sampling={"temperature": 0.8}), cwd=tmp_path)
    assert refused.returncode == 5
    assert "sampling.temperature: was None, is 0.8" in refused.stderr


@pytest.mark.ray
def test_changed_logistics_are_free(tmp_path: Path, ray_head: RayHead) -> None:
    finished_run(tmp_path)
    spec = written(tmp_path, engine={"replicas": 3}, checkpoint={"interval_seconds": 9})
    free = regen("run", spec, "--address", ray_head.address, cwd=tmp_path, more=ENVIRONMENT)
    assert free.returncode == 10


def test_a_run_is_continued_from_its_folder_alone_wherever_the_command_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    build_toy_target(tmp_path / "target")
    begin_run(make_spec(tmp_path, rows=5, target={"model": "target"}, output="run"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = resume("../run", StartOptions(processes=1), say=lambda text: None)
    virtual_time.run(drive(LocalCluster(), again))
    assert standing(again.storage).is_finished


def test_an_edited_run_json_is_found(tmp_path: Path) -> None:
    path = finished_run(tmp_path) / "run.json"
    path.write_text(path.read_text().replace('"max_tokens": 100', '"max_tokens": 900'), encoding="utf-8")
    done = regen_here("verify", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert "run_altered: run.json" in done.stdout


def test_the_frozen_plan_cannot_be_drifted_away(tmp_path: Path) -> None:
    finished_run(tmp_path)
    write_jsonl(tmp_path / "more.jsonl", [{"prompt": "more"}])
    sources = [{"name": name, "path": str(tmp_path / f"{name}.jsonl")} for name in ("rows", "more")]
    refused = regen_here("run", written(tmp_path, sources=sources), "--accept-drift", cwd=tmp_path)
    assert refused.returncode == 5
    assert "sources.more" in refused.stderr


@pytest.mark.ray
def test_a_closed_pipe_does_not_end_the_run_and_nothing_listens_beyond_loopback(tmp_path: Path) -> None:
    spec = written(tmp_path, rows=30)
    seen: set[tuple[str, str]] = set()
    command = [*REGEN, "run", spec]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            seen |= listening(process.pid)
            time.sleep(0.05)
        assert process.wait(timeout=1) == 0
    assert {"gcs_server", "raylet", "ray::DashboardAgent"} <= {program for program, _ in seen}, "all of it was seen"
    assert [one for one in seen if not is_loopback(one[1])] == []
    assert json.loads(regen_here("status", "run", "--json", cwd=tmp_path).stdout)["is_finished"]


def test_changed_input_is_refused_with_a_diff_of_rows(tmp_path: Path) -> None:
    finished_run(tmp_path)
    write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "new"}, *conversations(20), {"messages": []}, {"prompt": 7}])
    refused = regen_here("run", written(tmp_path), cwd=tmp_path)
    assert refused.returncode == 5
    assert "1 rows added" in refused.stderr
    assert "1 rows now rejected" in refused.stderr
    assert "removed" not in refused.stderr


def test_the_founding_fault_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}), encoding="utf-8")
    speculation = {"method": "eagle", "draft": str(draft), "num_tokens": 3}
    spec = written(tmp_path, speculation=speculation)
    for command in ("preflight", "run"):
        done = regen_here(command, spec, cwd=tmp_path)
        assert done.returncode == 3
        assert "'eagle'" in done.stderr
        assert "LlamaForCausalLMEagle3" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_examples_of_the_repository_can_be_planned(repository: Path, smollm2: Path, tmp_path: Path) -> None:
    raw = yaml.safe_load((repository / "examples" / "demo.yaml").read_text(encoding="utf-8"))
    raw["target"]["model"] = str(smollm2)
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    done = regen_here("plan", str(tmp_path / "demo.yaml"), "--json", cwd=repository)
    sources = json.loads(done.stdout)["sources"]
    assert sum(source["accepted"] for source in sources) >= 48
    assert sum(source["rows"] - source["accepted"] for source in sources) == 2
