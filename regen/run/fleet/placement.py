"""What Ray is asked for one replica: resources on one node, or a placement group over several. Pure.

- An engine of our own lies on one node, with all its processes: one actor that reserves its CPUs and GPUs. Ray shows it
  just those GPUs (`CUDA_VISIBLE_DEVICES`), and vLLM's workers are its children.
- With vLLM's executor `ray` it may lie over several: a group with one bundle for each GPU, packed onto as few nodes as
  Ray can. The actor sits in the first and reserves no GPU, since vLLM makes one worker in each bundle, and refuses
  bundles with more than one GPU. Ray shows this actor no GPUs of its own, and hides none (its `CUDA_VISIBLE_DEVICES`
  stays as it was): vLLM would take an empty list for a machine without GPUs.
- One that sends rows to a server reserves nothing but the CPUs of a spec that has servers alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from regen.spec import EngineSpec, OpenaiEngineSpec, VllmEngineSpec

# As few nodes as possible; Ray has no strategy that keeps the workers of one tensor-parallel group together.
STRATEGY = "PACK"


@dataclass(frozen=True, slots=True)
class Placement:
    """`cpus` and `gpus` are the actor's own. `bundles` is the size of its group, 0 without; each holds one GPU."""

    cpus: float
    gpus: float
    bundles: int = 0

    @property
    def options(self) -> dict[str, float]:
        """Ray's, for the actor."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}

    @property
    def bundle(self) -> dict[str, float]:
        """What one bundle of the group reserves. The actor's CPUs are those of the first."""
        return {"GPU": 1.0, **({"CPU": self.cpus} if self.cpus else {})}

    def __str__(self) -> str:
        if self.bundles:
            return f"{self.bundles} times 1 GPU and {self.cpus:g} CPUs, over any nodes,"
        return f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"


def placement_of(engine: EngineSpec, slot: int) -> Placement:
    """Of the replica in this slot."""
    if engine.endpoint_of(slot) is not None:
        return Placement(engine.cpus_per_replica if isinstance(engine, OpenaiEngineSpec) else 0.0, 0.0)
    return own_placement(engine)


def own_placement(engine: EngineSpec) -> Placement:
    """Of an engine of our own, in any slot."""
    if not isinstance(engine, VllmEngineSpec):
        return Placement(engine.cpus_per_replica, 0.0)
    if engine.spans_nodes:
        return Placement(engine.cpus_per_replica, 0.0, bundles=engine.devices)
    return Placement(engine.cpus_per_replica, engine.gpus_per_replica)
