"""No secret of the environment is in a run folder, nor in what commands say of it: nor where an error quotes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from regen.engines.fake import FakeEngine
from regen.errors import RowFailed, RowRefused
from regen.records import Completion, GenerationRequest, Stage
from regen.run.cluster import job_environment
from regen.run.local import LocalCluster
from regen.run.session import seal_run
from regen.spec import dump_spec
from tests import virtual_time
from tests.processes import regen_here
from tests.runs import begin_run, conversations, drive, make_spec, shard_table

NEEDLE = "n33dle-n33dle"
SECRETS = {
    name: f"{NEEDLE}-{number}"
    for number, name in enumerate(
        ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "RAY_AUTH_TOKEN", "OPENAI_API_KEY", "DB_PASSWORD")
    )
}
COMMANDS = (
    ("status", "run", "--json"),
    ("verify", "run", "--json"),
    ("report", "run"),
    ("export", "run", "--to", "automodel", "--out", "out"),
    ("estimate", "run"),
)


def everything_in(folder: Path) -> dict[str, str]:
    """What each file holds, Parquet with its rows, its footer and its schema's metadata."""
    found = {}
    for path in folder.rglob("*"):
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            found[str(path)] = f"{table.to_pylist()}{table.schema.metadata}{pq.read_metadata(path).metadata}"
        elif path.is_file():
            found[str(path)] = path.read_bytes().decode("utf-8", "replace")
    return found


def quoting(answer: Callable[..., object]) -> Callable[..., object]:
    """An engine whose errors quote every secret there is: of one row it refuses, of another it fails at each time."""

    async def generate(engine: FakeEngine, request: GenerationRequest, on_tokens: Callable[[int], None]) -> Completion:
        quoted = f"GET https://user:{' '.join(SECRETS.values())}@host/ failed"
        prompt = bytes(id_ for id_ in request.prompt_token_ids if id_ < 256)
        for words, error in (
            (b"say 3", RowRefused(Stage.GENERATE, "engine_refused", quoted)),
            (b"name 2", RowFailed("engine_error", quoted)),
            (b"say 6", RuntimeError(quoted)),
        ):
            if words in prompt:
                raise error
        return await answer(engine, request, on_tokens)  # type: ignore[misc, no-any-return]

    return generate


def test_secrets_of_the_environment_stay_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(FakeEngine, "generate", quoting(FakeEngine.generate))
    said: list[str] = []
    spec = make_spec(tmp_path, rows=[*conversations(9), {"messages": []}])
    (tmp_path / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    begun = begin_run(spec, said)
    virtual_time.run(drive(LocalCluster(), begun))
    seal_run(begun.storage, begun.worker_setup.run)
    for command in COMMANDS:
        done = regen_here(*command, cwd=tmp_path)
        said += [done.stdout, done.stderr]
    found = everything_in(tmp_path)
    assert len(found) > 10
    details = [row["detail"] for row in shard_table(tmp_path / "run").to_pylist()]
    assert sum("[HF_TOKEN]" in (detail or "") for detail in details) == 3, "what was quoted is shown by its name"
    assert [name for name, text in found.items() if NEEDLE in text] == []
    assert [text for text in said if NEEDLE in text] == []
    # A Ray job's environment and entrypoint are shown by `ray job list`, what workers are made of by Ray's dashboard.
    assert NEEDLE not in f"{job_environment()}{begun.worker_setup!r}"
