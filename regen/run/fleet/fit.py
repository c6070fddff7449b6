"""Would this spec fit on that cluster: what a replica asks for against what nodes have and say. Pure.

It judges the cluster as it is at this moment. It does not know what other jobs will take, whether an autoscaler would
bring nodes, nor how much of a GPU's memory an engine needs beside the weights.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from regen.run.fleet.placement import Placement, own_placement
from regen.spec import DRAFTLESS_METHODS, OpenaiEngineSpec, RunSpec, VllmEngineSpec
from regen.speculative.evidence import Finding, Severity

# So many nodes are named in one finding.
_NAMED = 6
# 7 / 0.07 is a hair below 100, and 7 * 0.1 a hair above 0.7.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Folder:
    """A model's files on one node: how many, their bytes, and a digest over names and sizes (not over contents).

    `missing` are files of weights that its index names and that are not there.
    """

    files: int
    bytes: int
    digest: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Questions:
    """What every node is asked: of these folders, these hub models (name and revision), sources, installed packages.

    `engine_only` are those names that only nodes with an engine of our own need: the draft, vLLM.
    """

    folders: tuple[str, ...]
    hub_models: tuple[tuple[str, str | None], ...]
    sources: tuple[str, ...]
    packages: tuple[str, ...]
    engine_only: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Answers:
    """What one node says. A folder that is not there is None; so is a package.

    `is_offline`: nothing is fetched from the hub there. `gpu_memory_bytes` are its GPUs', where its driver tells.
    """

    python: str
    packages: Mapping[str, str | None]
    folders: Mapping[str, Folder | None] = field(default_factory=dict)
    cached_models: frozenset[str] = frozenset()
    sources_missing: tuple[str, ...] = ()
    is_offline: bool = False
    gpu_memory_bytes: tuple[int, ...] = ()


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
    """What a run asks of a cluster: `fewest` to `most` replicas that Ray has to place, each so.

    `servers` run elsewhere, and who sends rows to one takes no room, on any node. `devices` are those that one engine's
    `parallel` sizes multiply to.
    """

    fewest: int
    most: int
    placement: Placement
    servers: int = 0
    parallel: Mapping[str, int] = field(default_factory=dict)
    devices: int = 1
    is_vllm: bool = False

    @property
    def cpus(self) -> float:
        """Of one replica, on all its nodes together."""
        return self.placement.cpus * max(1, self.placement.bundles)

    @property
    def gpus(self) -> float:
        """Of one replica, on all its nodes together."""
        return self.placement.gpus or float(self.placement.bundles)


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
        """How many replicas the nodes have room for when nobody else is there, up to the most that are asked for."""
        demand, rooms = self.demand, sum(rooms_on(node, self.demand) for node in self.nodes)
        return min(demand.most, rooms // max(1, demand.placement.bundles))

    @property
    def hosts(self) -> list[Node]:
        """Nodes that an engine, or a part of one, could come to; all of them, where none is large enough."""
        return [node for node in self.nodes if rooms_on(node, self.demand)] or list(self.nodes)

    def needing(self, name: str) -> list[Node]:
        """Nodes that must have this folder, model or package."""
        return list(self.nodes) if self.demand.servers and name not in self.questions.engine_only else self.hosts


def demand_of(spec: RunSpec) -> Demand:
    """As run/cluster.py will ask Ray for it."""
    engine, servers = spec.engine, len(spec.engine.endpoints)
    placement = own_placement(engine)
    if isinstance(engine, OpenaiEngineSpec):
        return Demand(servers, servers, placement, servers)
    fewest, most = engine.own.min, engine.own.max
    if not isinstance(engine, VllmEngineSpec):
        return Demand(fewest, most, placement, servers)
    return Demand(fewest, most, placement, servers, engine.parallel, engine.devices, is_vllm=True)


def questions_of(spec: RunSpec) -> Questions:
    """Of a spec whose paths are absolute (`spec.with_absolute_paths`): any other name is a model on the hub."""
    models = [(spec.target.model, spec.target.revision), *_draft(spec)]
    return Questions(
        folders=tuple(name for name, _ in models if name.startswith("/")),
        hub_models=tuple((name, revision) for name, revision in models if not name.startswith("/")),
        sources=tuple(source.path for source in spec.sources if source.path.startswith("/")),
        packages=("regen", "ray", "transformers", *(("vllm",) if isinstance(spec.engine, VllmEngineSpec) else ())),
        engine_only=frozenset({"vllm", *(name for name, _ in _draft(spec))}),
    )


def _draft(spec: RunSpec) -> list[tuple[str, str | None]]:
    """The draft that engines of our own load; a server's is the server's."""
    speculation = spec.speculation
    if speculation is None or speculation.draft is None or speculation.method in DRAFTLESS_METHODS:
        return []
    if isinstance(spec.engine, OpenaiEngineSpec):
        return []
    revision = speculation.args.get("revision")
    return [(speculation.draft, None if revision is None else str(revision))]


def rooms_on(node: Node, demand: Demand) -> int:
    """How many replicas this node has room for, or bundles of one that lies over several; bounded by what is asked for,
    where a replica asks for nothing."""
    placement = demand.placement
    asked = [(node.gpus, 1.0 if placement.bundles else placement.gpus), (node.cpus, placement.cpus)]
    rooms = [math.floor(has / wants + _ROUNDING) for has, wants in asked if wants > 0]
    return min([demand.most * max(1, placement.bundles), *rooms])


def fit(evidence: Evidence) -> list[Finding]:
    """Everything that does not fit or is missing, in the order of `CHECKS`."""
    return [finding for check in CHECKS if (finding := check(evidence)) is not None]


# --- resources -------------------------------------------------------------------------------------


def _replica_too_large(evidence: Evidence) -> Finding | None:
    demand = evidence.demand
    if evidence.places or not evidence.nodes or not demand.most:
        return None
    return Finding(
        "replica-too-large",
        Severity.REFUSE,
        _over_all_nodes(evidence) if demand.placement.bundles else _on_one_node(evidence),
        "Ray would keep every replica waiting, and the run would make nothing.",
        "Lower engine.gpus_per_replica (and with it the parallel sizes) or engine.cpus_per_replica, or add nodes."
        + _could_span(evidence),
    )


def _on_one_node(evidence: Evidence) -> str:
    largest = max(evidence.nodes, key=lambda node: (node.gpus, node.cpus))
    return (
        f"one replica asks for {evidence.demand.placement} on one node, and no node has that; the largest,"
        f" {largest.name}, has {_resources(largest.cpus, largest.gpus)}"
    )


def _over_all_nodes(evidence: Evidence) -> str:
    rooms = sum(rooms_on(node, evidence.demand) for node in evidence.nodes)
    return f"one replica asks for {evidence.demand.placement} and all nodes together have {rooms} such places"


def _could_span(evidence: Evidence) -> str:
    demand = evidence.demand
    total = sum(node.gpus for node in evidence.nodes)
    if demand.placement.bundles or demand.devices < 2 or demand.gpus != demand.devices or total < demand.gpus:
        return ""
    return " With engine.args.distributed_executor_backend: ray one engine may lie over several nodes."


def _too_few_places(evidence: Evidence) -> Finding | None:
    demand, places = evidence.demand, evidence.places
    if not places or places >= demand.fewest:
        return None
    key = "engine.replicas" if demand.fewest == demand.most else "engine.replicas.min"
    return Finding(
        "too-few-places",
        Severity.REFUSE,
        f"{demand.fewest} replicas of {_resources(demand.cpus, demand.gpus)} are asked for, and there is room for"
        f" {places}",
        f"A run would start all the same, and {demand.fewest - places} replicas would wait for a node.",
        f"Set {key} to {places}, or add nodes.",
    )


def _busy_now(evidence: Evidence) -> Finding | None:
    demand = evidence.demand
    wanted = min(demand.fewest, evidence.places)
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
        "vLLM's CPU build leaves them idle. Its GPU build takes the node's first ones, which Ray gives to others too.",
        "Set engine.gpus_per_replica.",
    )


def _tensor_parallel_over_nodes(evidence: Evidence) -> Finding | None:
    size = evidence.demand.parallel.get("tensor_parallel_size", 1)
    most = max((rooms_on(node, evidence.demand) for node in evidence.nodes), default=0)
    if not evidence.demand.placement.bundles or not evidence.places or size <= most:
        return None
    return Finding(
        "tensor-parallel-over-nodes",
        Severity.WARN,
        f"engine.args.tensor_parallel_size is {size}, and no node has room for more than {most} of its GPUs",
        "Every layer's sums cross the network between nodes: many times slower, unless that is InfiniBand or the like.",
        f"Set tensor_parallel_size to {most} at most, and pipeline_parallel_size to the number of nodes.",
    )


def _weights_beyond_memory(evidence: Evidence) -> Finding | None:
    """A sure sign only for weights that are loaded as they are stored."""
    demand, told = evidence.demand, list[str]()
    path = next((path for path in evidence.questions.folders if path not in evidence.questions.engine_only), None)
    for node in evidence.hosts if demand.is_vllm and demand.gpus else []:
        answers = node.answers
        if answers is None or not answers.gpu_memory_bytes or path is None or (folder := answers.folders[path]) is None:
            continue
        has = min(answers.gpu_memory_bytes) * demand.devices / demand.parallel.get("data_parallel_size", 1)
        if folder.bytes > has:
            told.append(f"{path} has {folder.bytes:,} bytes, and {node.name} {has:,.0f} for one copy of them")
    if not told:
        return None
    return Finding(
        "weights-beyond-memory",
        Severity.WARN,
        told[0] + (f", and so on {len(told) - 1} more nodes" if len(told) > 1 else ""),
        "Unless they are quantised while they are loaded, or experts are spread over data-parallel ranks, the engine"
        " ends while it starts.",
        "Raise tensor_parallel_size or pipeline_parallel_size, and engine.gpus_per_replica with them.",
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
    for package in evidence.questions.packages:
        for node in evidence.needing(package):
            if node.answers is not None and node.answers.packages[package] is None:
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
        needing = evidence.needing(path)
        without = [node for node in needing if node.answers is not None and node.answers.folders[path] is None]
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


def _weights_incomplete(evidence: Evidence) -> Finding | None:
    told = list[str]()
    for path in evidence.questions.folders:
        for node in evidence.needing(path):
            folder = node.answers.folders[path] if node.answers is not None else None
            if folder is not None and folder.missing:
                told.append(f"{path} on {node.name} lacks {len(folder.missing)} files: {folder.missing[0]}, ...")
    if not told:
        return None
    return Finding(
        "weights-incomplete",
        Severity.REFUSE,
        "; ".join(told[:_NAMED]),
        "Its index names them: an engine there ends while it loads.",
        "Copy or fetch the folder again, whole.",
    )


def _weights_differ(evidence: Evidence) -> Finding | None:
    told = list[str]()
    for path in evidence.questions.folders:
        groups: dict[Folder, list[Node]] = defaultdict(list)
        for node in evidence.needing(path):
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
    without = [
        (name, node)
        for name, _ in evidence.questions.hub_models
        for node in evidence.needing(name)
        if node.answers is not None and name not in node.answers.cached_models
    ]
    if not without:
        return None
    told = [
        f"{name} is not whole in the cache of {_names([node for other, node in without if other == name])}"
        for name in dict.fromkeys(name for name, _ in without)
    ]
    offline = list({node.name: node for _, node in without if node.answers and node.answers.is_offline}.values())
    return Finding(
        "weights-not-cached",
        Severity.REFUSE if offline else Severity.NOTE,
        "; ".join(told) + (f"; {_names(offline)} may fetch nothing (HF_HUB_OFFLINE)" if offline else ""),
        "An engine there ends while it starts."
        if offline
        else "Each such node fetches it from the hub while its first engine starts.",
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
    _gpus_beyond_parallel,
    _gpus_unused,
    _tensor_parallel_over_nodes,
    _node_silent,
    _package_missing,
    _versions_differ,
    _libraries_differ,
    _weights_missing,
    _weights_incomplete,
    _weights_differ,
    _weights_not_cached,
    _weights_beyond_memory,
    _sources_missing,
)


def facts(evidence: Evidence) -> list[tuple[str, str]]:
    """For people: what is asked for, and each node."""
    demand = evidence.demand
    count = f"{demand.fewest}" if demand.fewest == demand.most else f"{demand.fewest} to {demand.most}"
    asked = f"{count} replicas, each {str(demand.placement).rstrip(',')}"
    if demand.servers:
        asked += "; all of them servers' own" if demand.servers == demand.most else f"; and {demand.servers} servers"
    what = "GPUs of engines" if demand.placement.bundles else "replicas"
    nodes = [
        (
            node.name,
            f"{_resources(node.cpus, node.gpus)}{_told_memory(node)}, room for {rooms_on(node, demand)} {what}"
            + (", head" if node.is_head else ""),
        )
        for node in evidence.nodes
    ]
    return [("asked for", asked), ("room for", str(evidence.places)), *nodes]


def _told_memory(node: Node) -> str:
    memory = node.answers.gpu_memory_bytes if node.answers is not None else ()
    return f" of {min(memory) / 2**30:.0f} GiB" if memory else ""


def _resources(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPUs and {gpus:g} GPUs"


def _parallel(demand: Demand) -> str:
    return " x ".join(f"{name} {size}" for name, size in demand.parallel.items())


def _names(nodes: Sequence[Node]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(node.name for node in nodes[:_NAMED]) + more
