"""Where replicas come to, on real Ray with GPUs that are only counted: engines on several of them, on one node and over
two, and what becomes of it all when a replica or a node goes.

One cluster: a head without room, a node with 16 GPUs, and from the middle of the file on a second one. No engine runs,
but for the fake one at the end.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util import placement_group_table

from regen.data.profiles import AnswerFormat
from regen.errors import EngineDied, EngineStartFailed, NodeLost
from regen.records import Left, WorkerId
from regen.run import cluster as ray_cluster
from regen.run.cluster import RayCluster, RayCoordinator, RayWorker
from regen.run.session import standing
from regen.run.setup import CONFIGURED, OFF, Assignment, RunSetup, WorkerSetup
from regen.spec import RunSpec, SpeculationSpec, dump_spec
from regen.store.local import LocalStorage
from tests.chaos.ray_cluster import ENVIRONMENT, REPLICA, RayHead, RayNode
from tests.heads import eagle3
from tests.placed_actor import Given, PlacedActor
from tests.processes import REGEN, end, kill, reached, regen, started, wait_until
from tests.runs import make_spec, shard_table

pytestmark = pytest.mark.ray

# As the tests' own process has it, which joins the cluster itself.
TOKEN = {"RAY_AUTH_MODE": "token"}
# A node that goes without a word is found out in 2 s instead of 15.
SOON = {"RAY_health_check_initial_delay_ms": "0", "RAY_health_check_period_ms": "500"}
# Ray's own default is 15.
NICER = {"RAY_worker_niceness": "7"}
OVER_NODES = {"distributed_executor_backend": "ray"}


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    head = RayHead(tmp_path_factory.mktemp("cluster"), more={**TOKEN, **SOON}, cpus=0)
    yield head
    head.end()


@pytest.fixture(scope="module")
def first(head: RayHead) -> Iterator[str]:
    """A node of 16 GPUs, and this process in the cluster. Its id."""
    with joined(head, cpus=4, gpus=16, more=NICER):
        ray.init(address=head.address, log_to_driver=False, configure_logging=False)
        try:
            wait_until(lambda: len(nodes_with_gpus()) == 1, seconds=120)
            yield nodes_with_gpus()[0]
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def other_tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second node's temporary folder."""
    return tmp_path_factory.mktemp("other")


@pytest.fixture(scope="module")
def second(head: RayHead, first: str, other_tmp: Path) -> Iterator[RayNode]:
    """One like it, from here on."""
    with joined(head, cpus=4, gpus=16, more={"TMPDIR": str(other_tmp)}) as node:
        wait_until(lambda: len(nodes_with_gpus()) == 2, seconds=120)
        yield node


@contextmanager
def joined(head: RayHead, cpus: int, gpus: int = 0, more: dict[str, str] | None = None) -> Iterator[RayNode]:
    node = RayNode(head, cpus, gpus, {**TOKEN, **(more or {})})
    try:
        yield node
    finally:
        node.end()


def nodes_with_gpus() -> list[str]:
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]


def free() -> tuple[float, float]:
    """GPUs and CPUs that nobody holds."""
    available = ray.available_resources()
    return available.get("GPU", 0.0), round(available.get("CPU", 0.0), 3)


def setup_of(
    spec: RunSpec,
    gpus: float,
    args: dict[str, Any],
    slot: int = 0,
    speculation: SpeculationSpec | None = None,
    cpus: float = 0.1,
) -> WorkerSetup:
    """A worker of this run, with an engine on so many GPUs."""
    raw = spec.model_dump(mode="json")
    raw["engine"] = {"kind": "vllm", "gpus_per_replica": gpus, "cpus_per_replica": cpus, "replicas": 4, "args": args}
    spec = RunSpec.model_validate(raw)
    run = RunSetup(spec, spec.output, "s", "f", "host", "boot", 1, "now", take_over=False)
    assignment = Assignment(CONFIGURED if speculation else OFF, speculation)
    folder = Path(spec.target.model)
    return WorkerSetup(run, WorkerId(slot, 0), assignment, folder, str(folder), None, {}, (1,), AnswerFormat())


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return make_spec(tmp_path)


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Placed:
    """Starts workers without engines."""
    monkeypatch.setattr(ray_cluster, "ReplicaActor", PlacedActor)
    return Placed()


@pytest.fixture
def impatient(placed: Placed, monkeypatch: pytest.MonkeyPatch) -> Placed:
    """And says soon of one that it still waits."""
    monkeypatch.setattr(ray_cluster, "PLACEMENT_SECONDS", 3.0)
    return placed


class Placed:
    """`RayCluster` without a coordinator, and what it says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.cluster = RayCluster(self.said.append)
        self.cluster._coordinator = RayCoordinator(None)

    def during(self, act: Callable[[Placed], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(act(self))

    async def start(self, setup: WorkerSetup) -> tuple[RayWorker, asyncio.Task[Any]]:
        worker = await self.cluster.start_worker(setup)
        return worker, asyncio.ensure_future(worker.run())

    async def all_free(self, gpus: float, cpus: float) -> None:
        await until(lambda: free() == (gpus, cpus))


async def given(worker: RayWorker) -> Given:
    answer: Given = await worker.actor.given.remote()
    await until(lambda: bool(worker.nodes))
    return answer


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.1)


async def end_of(worker: RayWorker, running: asyncio.Task[Any]) -> BaseException | None:
    """As the driver ends a worker."""
    await asyncio.wait((running,), timeout=60)
    await worker.kill()
    return running.exception()


async def end_all(*workers: tuple[RayWorker, asyncio.Task[Any]]) -> None:
    for worker, running in workers:
        await worker.kill()
        await asyncio.wait((running,), timeout=60)
        assert isinstance(running.exception(), EngineDied)


def test_an_engine_is_built_when_its_imports_are_through(monkeypatch: pytest.MonkeyPatch, spec: RunSpec) -> None:
    """Two threads that import transformers at once find it half made."""
    events: list[str] = []

    class Built:
        async def run(self) -> Left:
            return Left.STOPPED

    def imported(spec: RunSpec, slot: int) -> None:
        time.sleep(0.2)
        events.append("imported")

    def built(setup: WorkerSetup, exchange: object) -> Built:
        events.append("built")
        return Built()

    monkeypatch.setattr(ray_cluster, "import_engine", imported)
    monkeypatch.setattr(ray_cluster, "build_worker", built)
    monkeypatch.setattr("regen.run.fleet.leash.tie", lambda mark: None)
    replica = ray_cluster.ReplicaActor.__ray_metadata__.modified_class()  # type: ignore[attr-defined]

    async def act() -> None:
        await asyncio.gather(replica.get_ready(spec, 0), replica.run(setup_of(spec, 0, {}), None))

    asyncio.run(act())
    assert events == ["imported", "built"]


# --- on one node -----------------------------------------------------------------------------------


def test_two_engines_of_eight_gpus_share_a_node_and_see_only_their_own(
    first: str, placed: Placed, spec: RunSpec
) -> None:
    async def act(placed: Placed) -> None:
        workers = [await placed.start(setup_of(spec, 8, {"tensor_parallel_size": 8}, slot)) for slot in range(2)]
        seen = [await given(worker) for worker, _ in workers]
        assert {one.node for one in seen} == {first}
        for one in seen:
            assert one.visible == ",".join(map(str, one.gpu_ids))
            assert len(one.gpu_ids) == 8
            assert (one.resources["GPU"], one.resources["CPU"], one.group) == (8, 0.1, None)
        assert {gpu for one in seen for gpu in one.gpu_ids} == set(range(16))
        assert workers[0][0].nodes == {first}
        await placed.all_free(0, 3.8)
        kill(seen[0].pid)
        error = await end_of(*workers[0])
        assert isinstance(error, EngineDied), "its node lives"
        await placed.all_free(8, 3.9)
        await end_all(workers[1])
        await placed.all_free(16, 4)

    placed.during(act)
    (said,) = placed.said
    assert "7 steps nicer" in said, "once for both, and nothing else"


def test_a_process_made_ahead_that_has_died_since_is_made_anew(first: str, placed: Placed, spec: RunSpec) -> None:
    async def act(placed: Placed) -> None:
        setup = setup_of(spec, 1, {})
        dead, living = (ray_cluster._make_replica(setup.run.spec, slot) for slot in (0, 1))
        ray.kill(dead.actor)
        placed.cluster._made_ahead = {0: dead, 1: living}
        anew = await placed.start(setup)
        kept = await placed.start(setup_of(spec, 1, {}, slot=1))
        assert (anew[0].actor == dead.actor, kept[0].actor == living.actor) == (False, True)
        assert [(await given(worker)).node for worker, _ in (anew, kept)] == [first, first]
        await end_all(anew, kept)
        await placed.all_free(16, 4)

    placed.during(act)


def test_a_group_that_never_gets_ready_leaves_nothing_behind(first: str, impatient: Placed, spec: RunSpec) -> None:
    """Else Ray would give it the GPUs of a node that comes later."""

    async def act(placed: Placed) -> None:
        sizes = {"tensor_parallel_size": 8, "pipeline_parallel_size": 4}
        worker, running = await placed.start(setup_of(spec, 32, {**sizes, **OVER_NODES}, cpus=0))
        group = worker.group
        assert group is not None
        await until(lambda: bool(placed.said))
        assert placement_group_table(group)["state"] == "PENDING"
        assert not running.done()
        await end_all((worker, running))
        await until(lambda: placement_group_table(group)["state"] == "REMOVED")
        fits = await placed.start(setup_of(spec, 16, {"tensor_parallel_size": 16, **OVER_NODES}, cpus=0))
        await given(fits[0])
        await end_all(fits)
        await placed.all_free(16, 4)

    impatient.during(act)
    assert "replica 0 still waits for 32 times 1 GPU and 0 CPUs, over any nodes," in impatient.said[0]


# --- over two ----------------------------------------------------------------------------------------


def test_an_engine_over_two_nodes_holds_a_bundle_for_each_gpu(
    second: RayNode, first: str, placed: Placed, spec: RunSpec
) -> None:
    """The actor sees no GPUs of its own and hides none: vLLM takes `CUDA_VISIBLE_DEVICES=""` for a machine without."""

    async def act(placed: Placed) -> None:
        sizes = {"tensor_parallel_size": 8, "pipeline_parallel_size": 3}
        worker, running = await placed.start(setup_of(spec, 24, {**sizes, **OVER_NODES}))
        seen = await given(worker)
        assert worker.group is not None
        table = placement_group_table(worker.group)
        assert set(table["bundles"]) == set(range(24))
        assert {tuple(sorted(bundle.items())) for bundle in table["bundles"].values()} == {(("CPU", 0.1), ("GPU", 1.0))}
        assert table["strategy"] == "PACK"
        lies_on = list(table["bundles_to_node_id"].values())
        assert sorted(lies_on.count(node) for node in nodes_with_gpus()) == [8, 16]
        assert (seen.visible, seen.gpu_ids, seen.group) == (None, (), worker.group.id.hex())
        assert seen.node == table["bundles_to_node_id"][0], "vLLM wants its front where one of its workers is"
        assert worker.nodes == set(nodes_with_gpus())
        await placed.all_free(8, 5.6)
        kill(seen.pid)
        error = await end_of(worker, running)
        assert isinstance(error, EngineDied)
        await placed.all_free(32, 8)

    placed.during(act)


def test_engines_that_fill_more_than_half_a_node_come_to_one_each(
    second: RayNode, first: str, impatient: Placed, spec: RunSpec
) -> None:
    async def act(placed: Placed) -> None:
        workers = [await placed.start(setup_of(spec, 10, {"tensor_parallel_size": 10}, slot)) for slot in range(3)]
        seen = [await given(worker) for worker, _ in workers[:2]]
        assert {one.node for one in seen} == set(nodes_with_gpus())
        await until(lambda: any("replica 2" in line for line in placed.said))
        await placed.all_free(12, 7.8)
        await end_all(*workers)
        await placed.all_free(32, 8)

    impatient.during(act)
    assert "replica 2 still waits for 0.1 CPUs and 10 GPUs" in impatient.said[-1]


def test_the_draft_is_laid_down_on_each_node_of_an_engine_and_must_be_at_one_path(
    second: RayNode, other_tmp: Path, tmp_path: Path, spec: RunSpec
) -> None:
    """The second node has another temporary folder. vLLM, which is given one path, is not started."""
    eagle3().write(tmp_path / "head")
    drafted = SpeculationSpec(method="eagle3", draft=str(tmp_path / "head"), num_tokens=3)
    sizes = {"pipeline_parallel_size": 2}
    setup = setup_of(spec, 2, {**sizes, **OVER_NODES}, speculation=drafted, cpus=3)

    async def act(placed: Placed) -> None:
        worker, running = await placed.start(setup)
        error = await end_of(worker, running)
        assert isinstance(error, EngineStartFailed)
        assert "Set TMPDIR alike on all nodes" in str(error)
        await placed.all_free(32, 8)

    Placed().during(act)
    assert len(list(other_tmp.glob("regen-drafts-*/*/draft/config.json"))) == 1


def test_check_asks_both_nodes(second: RayNode, head: RayHead, tmp_path: Path, spec: RunSpec) -> None:
    folder = Path(spec.target.model)
    sizes = {"tensor_parallel_size": 8, "pipeline_parallel_size": 3}
    fits = setup_of(spec, 24, {**sizes, **OVER_NODES}).run.spec.model_copy(update={"output": str(tmp_path / "run")})
    raw = fits.model_dump(mode="json")
    raw["engine"]["replicas"] = 1
    (tmp_path / "spec.yaml").write_text(dump_spec(RunSpec.model_validate(raw)), encoding="utf-8")
    command = ("check", "spec.yaml", "--cluster", head.address)
    said = regen(*command, cwd=tmp_path, more={**ENVIRONMENT, **TOKEN})
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("room for 16 GPUs of engines") == 2
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    raw["engine"]["replicas"] = {"min": 2, "max": 5}
    (tmp_path / "spec.yaml").write_text(dump_spec(RunSpec.model_validate(raw)), encoding="utf-8")
    said = regen(*command, "--json", cwd=tmp_path, more={**ENVIRONMENT, **TOKEN})
    assert said.returncode == 3
    assert [found["code"] for found in json.loads(said.stdout)] == ["too-few-places", "weights-incomplete"]


def test_a_node_that_goes_is_told_from_an_engine_that_dies(
    second: RayNode, first: str, placed: Placed, spec: RunSpec
) -> None:
    """For the actor that was there, and for an engine of which only a part was."""

    async def act(placed: Placed) -> None:
        over = await placed.start(setup_of(spec, 18, {"pipeline_parallel_size": 18, **OVER_NODES}))
        seen = [await given(over[0])]
        there = await placed.start(setup_of(spec, 14, {"tensor_parallel_size": 14}, 1))
        seen.append(await given(there[0]))
        assert over[0].nodes == set(nodes_with_gpus())
        if first not in (seen[0].node, seen[1].node):
            pytest.fail("both came to the second node")
        lost = next(node for node in nodes_with_gpus() if node != first)
        second.end()
        if seen[0].node == first:
            await over[0].actor.fail.remote()
        for worker, running in (over, there):
            if lost in worker.nodes:
                error = await end_of(worker, running)
                assert isinstance(error, NodeLost), error
                assert lost[:8] in str(error)
            else:
                await end_all((worker, running))
        await placed.all_free(16, 4)

    placed.during(act)


# --- a run -------------------------------------------------------------------------------------------


def done(folder: Path) -> int:
    return standing(LocalStorage(folder / "run")).totals.done if (folder / "run" / "plan.json").exists() else 0


def test_a_run_loses_a_node_and_gets_another(first: str, head: RayHead, tmp_path: Path) -> None:
    """`restarts: 0`: an engine's death would be its replica's end."""
    engine = {"replicas": 2, "slots": 4, "step_seconds": 0.03, "restarts": 0, "cpus_per_replica": 3}
    folder = tmp_path / "run"
    (tmp_path / "spec.yaml").write_text(dump_spec(make_spec(tmp_path, rows=60, engine={**engine, "answer_tokens": 25})))
    command = [*REGEN, "run", "spec.yaml", "--address", head.address]
    with joined(head, cpus=3) as node, started(command, cwd=tmp_path, more={**ENVIRONMENT, **TOKEN}) as process:
        reached(lambda: bool(node.titled(REPLICA)) and done(tmp_path) > 0, process)
        node.end()
        with joined(head, cpus=3) as another:
            reached(lambda: bool(another.titled(REPLICA)) or done(tmp_path) == 60, process)
            output, _ = process.communicate(timeout=120)
            end(process)
    assert process.returncode == 0, output
    assert "through no fault of its own: NodeLost" in output
    assert "restarts left" not in output
    rows = shard_table(folder).to_pylist()
    assert [row["ordinal"] for row in rows] == list(range(60))
    assert {row["observed"]["attempts"] for row in rows} == {1}
