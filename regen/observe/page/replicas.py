"""The engines: what each does now, what it has made, and what its slots were doing."""

from __future__ import annotations

from regen.observe.page import figures
from regen.observe.page.acceptance import positions_told
from regen.observe.page.charts import bar
from regen.observe.page.facts import PageFacts, ReplicaFacts
from regen.observe.page.html import Element, Node
from regen.observe.page.parts import remark, section, table
from regen.records import SlotState

_NOW = (
    "replica", "engine", "state", "rows", "waiting", "tokens/s", "KV cache", "speculation", "verdict", "accept length",
    "by position, %", "loop lag",
)  # fmt: skip
_SINCE = (
    "replica", "rows made", "output tokens", "accept length", "starts", "restarts", "stalls", "preemptions",
)  # fmt: skip
_DOING = (
    (SlotState.BUSY, "busy"),
    (SlotState.STARVED, "starved"),
    (SlotState.HELD_BACK, "held back"),
    (SlotState.NO_ROWS, "no rows"),
    (SlotState.STARTING, "starting"),
    (SlotState.GONE, "gone"),
    (SlotState.RELEASED, "released"),
)


def replicas_section(facts: PageFacts) -> Element:
    replicas = facts.replicas
    lives = any(replica.state is not None for replica in replicas)
    return section(
        "replicas",
        "Replicas",
        table(
            "Engines now",
            _NOW,
            [_now(replica) for replica in replicas],
            left=("engine", "state", "speculation", "verdict"),
        )
        if lives
        else None,
        table("Engines since the run began", _SINCE, [_since(replica) for replica in replicas]),
        _slots(replicas),
    )


def _now(replica: ReplicaFacts) -> tuple[Node, ...]:
    counted = replica.counted
    return (
        str(replica.slot),
        replica.engine or figures.UNKNOWN,
        replica.state or figures.UNKNOWN,
        f"{figures.count(replica.running_rows)} of {figures.count(replica.slots)}",
        figures.count(replica.waiting),
        figures.count(replica.tokens_per_second),
        figures.share(replica.kv_usage),
        replica.arm or figures.UNKNOWN,
        (replica.verdict or figures.UNKNOWN).replace("_", " "),
        figures.ratio(counted.accept_length if counted is not None else None),
        positions_told(counted) if counted is not None else figures.UNKNOWN,
        f"{figures.ratio(replica.loop_lag_seconds)} s",
    )


def _since(replica: ReplicaFacts) -> tuple[Node, ...]:
    counts = (replica.starts, replica.restarts, replica.stalls, replica.preemptions)
    return (
        str(replica.slot),
        f"{replica.rows:,}",
        f"{replica.output_tokens:,}",
        figures.ratio(replica.committed.accept_length),
        *(f"{count:,}" for count in counts),
    )


def _slots(replicas: tuple[ReplicaFacts, ...]) -> tuple[Element, ...]:
    """A slot that is not busy is money: `starved` is ours to mend, `held back` is the store, `no rows` is the tail."""
    known = [replica for replica in replicas if sum(replica.slot_seconds.values()) > 0]
    if not known:
        return ()
    columns = ("replica", "so far", *(name for _, name in _DOING), "slot time")
    return (
        table("What the slots were doing", columns, [_doing(replica) for replica in known], left=("so far",)),
        remark(
            "Starved: free while rows wait. Held back: free since the store is away or uncommitted bytes are at their"
            " cap. No rows: free in the tail or in a drain. Released: no engine was wanted there, and none was held."
        ),
    )


def _doing(replica: ReplicaFacts) -> tuple[Node, ...]:
    whole = sum(replica.slot_seconds.values())
    seconds = [(state, name, replica.slot_seconds.get(state, 0.0)) for state, name in _DOING]
    said = ", ".join(f"{name} {figures.share(one, whole)}" for _, name, one in seconds if one)
    return (
        str(replica.slot),
        bar([(f"d-{state}", one / whole) for state, _, one in seconds], said),
        *(figures.share(one, whole) for _, _, one in seconds),
        figures.duration(whole),
    )
