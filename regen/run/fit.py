"""Would this spec fit on that cluster: what a replica asks for against what nodes have and say. Pure.

It judges the cluster as it is at this moment. It does not know what other jobs will take, whether an autoscaler would
bring nodes, nor whether the weights fit into a GPU's memory.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from regen.spec import DRAFTLESS_METHODS, RunSpec, VllmEngineSpec
from regen.speculative.evidence import Finding, Severity

# Each multiplies the devices that one vLLM engine drives; vLLM's names.
PARALLEL_ARGS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
)
# So many nodes are named in one finding.
_NAMED = 6
# 7 / 0.07 is a hair below 100, and 7 * 0.1 a hair above 0.7.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Folder:
    """A model's files on one node: how many, their bytes, and a digest over names and sizes (not over contents)."""

    files: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Questions:
    """What every node is asked: of these folders, these hub models (name and revision), sources, installed packages."""

    folders: tuple[str, ...]
    hub_models: tuple[tuple[str, str | None], ...]
    sources: tuple[str, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """What one node says. A folder that is not there is None; so is a package."""

    python: str
    packages: Mapping[str, str | None]
    folders: Mapping[str, Folder | None] = field(default_factory=dict)
    cached_models: frozenset[str] = frozenset()
    sources_missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One live node. `answers` is None where it gave none, and `error` says why then."""

    name: str
    cpus: float
    gpus: float
    is_head: bool = False
    answers: Answers | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a run asks of a cluster. `devices` are those that one engine's parallel sizes multiply to."""

    replicas: int
    cpus: float
    gpus: float
    devices: int
    parallel: Mapping[str, int]
    executor: str | None
    is_vllm: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the checks look at."""

    demand: Demand
    questions: Questions
    nodes: Sequence[Node]
    free_cpus: float
    free_gpus: float

    @property
    def places(self) -> int:
        """How many replicas the nodes have room for, each on one node, when nobody else is there."""
        return sum(places_on(node, self.demand) for node in self.nodes)

    @property
    def hosts(self) -> list[Node]:
        """Nodes that a replica could come to; all of them, where none is large enough."""
        return [node for node in self.nodes if places_on(node, self.demand)] or list(self.nodes)


def demand_of(spec: RunSpec) -> Demand:
    """As run/cluster.py will ask Ray for it."""
    engine = spec.engine
    if not isinstance(engine, VllmEngineSpec):
        return Demand(engine.own.max or engine.most_replicas, engine.cpus_per_replica, 0.0, 1, {}, None, is_vllm=False)
    parallel = {name: size for name in PARALLEL_ARGS if isinstance(size := engine.args.get(name), int) and size > 1}
    executor = engine.args.get("distributed_executor_backend")
    return Demand(
        engine.own.max,
        engine.cpus_per_replica,
        engine.gpus_per_replica,
        math.prod(parallel.values()),
        parallel,
        None if executor is None else str(executor),
        is_vllm=True,
    )


def questions_of(spec: RunSpec) -> Questions:
    """Of a spec whose paths are absolute (`spec.with_absolute_paths`): any other name is a model on the hub."""
    models = [(spec.target.model, spec.target.revision)]
    speculation = spec.speculation
    if speculation is not None and speculation.draft is not None and speculation.method not in DRAFTLESS_METHODS:
        revision = speculation.args.get("revision")
        models.append((speculation.draft, None if revision is None else str(revision)))
    return Questions(
        folders=tuple(name for name, _ in models if name.startswith("/")),
        hub_models=tuple((name, revision) for name, revision in models if not name.startswith("/")),
        sources=tuple(source.path for source in spec.sources if source.path.startswith("/")),
        packages=("regen", "ray", "transformers", *(("vllm",) if isinstance(spec.engine, VllmEngineSpec) else ())),
    )


def places_on(node: Node, demand: Demand) -> int:
    """How many replicas this node has room for; the number asked for where a replica asks for nothing."""
    asked = [(node.gpus, demand.gpus), (node.cpus, demand.cpus)]
    rooms = [math.floor(has / wants + _ROUNDING) for has, wants in asked if wants > 0]
    return min([demand.replicas, *rooms])


def fit(evidence: Evidence) -> list[Finding]:
    """Everything that does not fit or is missing, in the order of `CHECKS`."""
    return [finding for check in CHECKS if (finding := check(evidence)) is not None]


# --- resources -------------------------------------------------------------------------------------


def _replica_too_large(evidence: Evidence) -> Finding | None:
    demand = evidence.demand
    if evidence.places or not evidence.nodes:
        return None
    largest = max(evidence.nodes, key=lambda node: (node.gpus, node.cpus))
    return Finding(
        "replica-too-large",
        Severity.REFUSE,
        f"one replica asks for {_resources(demand.cpus, demand.gpus)} on one node, and no node has that; the largest,"
        f" {largest.name}, has {_resources(largest.cpus, largest.gpus)}",
        "Ray would keep every replica waiting, and the run would make nothing.",
        "Lower engine.gpus_per_replica (and with it the parallel sizes) or engine.cpus_per_replica, or add nodes.",
    )


def _too_few_places(evidence: Evidence) -> Finding | None:
    demand, places = evidence.demand, evidence.places
    if not places or places >= demand.replicas:
        return None
    return Finding(
        "too-few-places",
        Severity.REFUSE,
        f"{demand.replicas} replicas of {_resources(demand.cpus, demand.gpus)} are asked for, and there is room for"
        f" {places}",
        f"A run would start all the same, and {demand.replicas - places} replicas would wait for a node.",
        f"Set engine.replicas to {places}, or add nodes.",
    )


def _busy_now(evidence: Evidence) -> Finding | None:
    demand = evidence.demand
    wanted = min(demand.replicas, evidence.places)
    cpus, gpus = wanted * demand.cpus, wanted * demand.gpus
    if cpus <= evidence.free_cpus + _ROUNDING and gpus <= evidence.free_gpus + _ROUNDING:
        return None
    return Finding(
        "busy-now",
        Severity.WARN,
        f"{wanted} replicas take {_resources(cpus, gpus)}, and {_resources(evidence.free_cpus, evidence.free_gpus)} of"
        " the whole cluster are free at this moment",
        "Replicas wait until others give back what they hold.",
        "`ray status` shows what is taken.",
    )


# --- what an engine does with its GPUs ---------------------------------------------------------------


def _parallel_beyond_gpus(evidence: Evidence) -> Finding | None:
    demand = evidence.demand
    if not demand.gpus or demand.devices <= max(demand.gpus, 1):
        return None
    return Finding(
        "parallel-beyond-gpus",
        Severity.REFUSE,
        f"engine.args ask for {_parallel(demand)} = {demand.devices} devices, and engine.gpus_per_replica is"
        f" {demand.gpus:g}",
        "The engine sees only the GPUs that Ray has reserved for it, and would end while it starts.",
        f"Set engine.gpus_per_replica to {demand.devices}, or lower the parallel sizes.",
    )


def _gpus_beyond_parallel(evidence: Evidence) -> Finding | None:
    demand = evidence.demand
    if demand.gpus <= max(demand.devices, 1):
        return None
    parallel = _parallel(demand) or "no parallel size"
    return Finding(
        "gpus-beyond-parallel",
        Severity.WARN,
        f"engine.gpus_per_replica is {demand.gpus:g}, and engine.args ask for {parallel}: the engine drives"
        f" {demand.devices}",
        "The other GPUs are reserved, and paid for, and do nothing.",
        f"Set tensor_parallel_size in engine.args, or engine.gpus_per_replica to {demand.devices}.",
    )


def _gpus_unused(evidence: Evidence) -> Finding | None:
    gpus = sum(node.gpus for node in evidence.nodes)
    if not evidence.demand.is_vllm or evidence.demand.gpus or not gpus:
        return None
    return Finding(
        "gpus-unused",
        Severity.WARN,
        f"engine.gpus_per_replica is 0, and the cluster has {gpus:g} GPUs",
        "Ray hides GPUs from whoever reserves none: only vLLM's CPU build starts so.",
        "Set engine.gpus_per_replica.",
    )


def _executor_over_nodes(evidence: Evidence) -> Finding | None:
    if evidence.demand.executor != "ray":
        return None
    return Finding(
        "executor-over-nodes",
        Severity.REFUSE,
        "engine.args.distributed_executor_backend is 'ray'",
        "vLLM would place its workers by itself and wait for GPUs that the replica's own actor holds.",
        "Leave it out: an engine's processes run on its replica's node. An engine over several nodes is not supported.",
    )


# --- what nodes say ----------------------------------------------------------------------------------


def _node_silent(evidence: Evidence) -> Finding | None:
    silent = [node for node in evidence.nodes if node.answers is None]
    if not silent:
        return None
    return Finding(
        "node-silent",
        Severity.REFUSE,
        f"no answer from {_names(silent)}: {silent[0].error}",
        "Nothing is known of what is installed and stored there, and a replica may come to it.",
        "Install this version of regen there, in the environment that `ray start` was called from.",
    )


def _package_missing(evidence: Evidence) -> Finding | None:
    missing: dict[str, list[Node]] = defaultdict(list)
    for node in evidence.hosts:
        for package, version in (node.answers.packages if node.answers else {}).items():
            if version is None:
                missing[package].append(node)
    if not missing:
        return None
    told = "; ".join(f"{package} on {_names(nodes)}" for package, nodes in missing.items())
    return Finding(
        "package-missing",
        Severity.REFUSE,
        f"not installed: {told}",
        "A replica that comes there ends while it starts.",
        "Install the same environment on every node.",
    )


def _versions_differ(evidence: Evidence) -> Finding | None:
    """Of what decides answers or crosses processes: one replica must be like the other."""
    return _differing(
        evidence,
        "versions-differ",
        Severity.REFUSE,
        ("python", "regen", "ray", "vllm"),
        "Values are handed from process to process by their classes, and replicas of one run must answer alike.",
    )


def _libraries_differ(evidence: Evidence) -> Finding | None:
    return _differing(
        evidence,
        "libraries-differ",
        Severity.WARN,
        ("transformers",),
        "Each replica renders later turns by its own node's tokenizer code.",
    )


def _differing(evidence: Evidence, code: str, severity: Severity, packages: Iterable[str], why: str) -> Finding | None:
    told = [text for package in packages if (text := _told_versions(evidence.nodes, package)) is not None]
    if not told:
        return None
    return Finding(code, severity, "; ".join(told), why, "Install the same environment on every node.")


def _told_versions(nodes: Iterable[Node], package: str) -> str | None:
    """Which nodes have which version; None where all have the same."""
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        version = _version(node, package)
        if version is not None:
            groups[version].append(node)
    if len(groups) < 2:
        return None
    most_first = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return f"{package} is " + ", ".join(f"{version} on {_names(group)}" for version, group in most_first)


def _version(node: Node, package: str) -> str | None:
    if node.answers is None:
        return None
    return node.answers.python if package == "python" else node.answers.packages.get(package)


def _weights_missing(evidence: Evidence) -> Finding | None:
    told = list[str]()
    for path in evidence.questions.folders:
        without = [node for node in evidence.hosts if node.answers is not None and node.answers.folders[path] is None]
        if without:
            told.append(f"{path} is not on {_names(without)}")
    if not told:
        return None
    return Finding(
        "weights-missing",
        Severity.REFUSE,
        "; ".join(told),
        "A replica that comes there ends while it starts, and uses up its restarts.",
        "Mount or copy the folder to the same path on every node, or name a model on the hub.",
    )


def _weights_differ(evidence: Evidence) -> Finding | None:
    told = list[str]()
    for path in evidence.questions.folders:
        groups: dict[Folder, list[Node]] = defaultdict(list)
        for node in evidence.hosts:
            folder = node.answers.folders[path] if node.answers is not None else None
            if folder is not None:
                groups[folder].append(node)
        if len(groups) > 1:
            found = [f"{one.files} files, {one.bytes:,} bytes on {_names(nodes)}" for one, nodes in groups.items()]
            told.append(f"{path}: " + "; ".join(found))
    if not told:
        return None
    return Finding(
        "weights-differ",
        Severity.REFUSE,
        "; ".join(told) + " (by names and sizes of files)",
        "Replicas would answer from different weights, or end while they read half a copy.",
        "Copy the folder again, whole.",
    )


def _weights_not_cached(evidence: Evidence) -> Finding | None:
    told = list[str]()
    for name, _ in evidence.questions.hub_models:
        without = [node for node in evidence.hosts if node.answers and name not in node.answers.cached_models]
        if without:
            told.append(f"{name} is not in the cache of {_names(without)}")
    if not told:
        return None
    return Finding(
        "weights-not-cached",
        Severity.NOTE,
        "; ".join(told),
        "Each such node fetches it from the hub while its first engine starts.",
        "Fetch it before, or put it on shared storage and give its path.",
    )


def _sources_missing(evidence: Evidence) -> Finding | None:
    """Planning is done where the driver is: of a job, the head."""
    heads = [node for node in evidence.nodes if node.is_head and node.answers is not None]
    missing = [path for node in heads for path in (node.answers.sources_missing if node.answers else ())]
    if not missing:
        return None
    return Finding(
        "sources-missing",
        Severity.REFUSE,
        f"not on the head ({_names(heads)}): {', '.join(missing)}",
        "The driver of a job runs there, and plans.",
        "Mount or copy them to the same path on the head. A run that is planned already does not read them.",
    )


CHECKS: tuple[Callable[[Evidence], Finding | None], ...] = (
    _replica_too_large,
    _too_few_places,
    _busy_now,
    _parallel_beyond_gpus,
    _gpus_beyond_parallel,
    _gpus_unused,
    _executor_over_nodes,
    _node_silent,
    _package_missing,
    _versions_differ,
    _libraries_differ,
    _weights_missing,
    _weights_differ,
    _weights_not_cached,
    _sources_missing,
)


def facts(evidence: Evidence) -> list[tuple[str, str]]:
    """For people: what is asked for, and each node."""
    demand = evidence.demand
    asked = f"{demand.replicas} replicas, each {_resources(demand.cpus, demand.gpus)}"
    nodes = [
        (
            node.name,
            f"{_resources(node.cpus, node.gpus)}, room for {places_on(node, demand)}"
            + (", head" if node.is_head else ""),
        )
        for node in evidence.nodes
    ]
    return [("asked for", asked), ("room for", str(evidence.places)), *nodes]


def _resources(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPUs and {gpus:g} GPUs"


def _parallel(demand: Demand) -> str:
    return " x ".join(f"{name} {size}" for name, size in demand.parallel.items())


def _names(nodes: Sequence[Node]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(node.name for node in nodes[:_NAMED]) + more
