"""A frozen plan with the rows that its sources have gained: further parts, further ordinals.

Guarantees: no ordinal, id or row that is planned changes; a row that is planned already is not planned again, wherever
its source has it now; among themselves the new rows are interleaved, deduplicated and split as in one plan. The new
summary is created last and only if absent: that is the commit, and until then nothing is extended.
Costs what planning costs, without rendering what is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from regen.data.known_rows import KnownRows
from regen.data.plan import RunPlan, require_parts
from regen.data.plan_summary import PlanSummary, SourceSummary
from regen.data.plan_writer import PlanWriter
from regen.data.planning import Progress, spooled, write_interleaved
from regen.data.target import Target
from regen.protocols import Storage
from regen.spec import RunSpec, SourceSpec


@dataclass(frozen=True, slots=True)
class Extension:
    """Rows that are written and not committed. `summary` is the plan with them, None if there are none.

    `added` has the new rows of each source; `known` rows are in the plan and still in the sources, `gone` ones are not
    in the sources any more and stay planned.
    """

    summary: PlanSummary | None
    added: Mapping[str, int]
    known: int
    gone: int


def plan_extension(
    spec: RunSpec,
    target: Target,
    storage: Storage,
    plan: RunPlan,
    session: str,
    processes: int,
    progress: Progress | None = None,
    kept: Sequence[SourceSpec] | None = None,
) -> Extension:
    """Plan what the sources have and the plan does not, and write its parts. See `planning.build_plan`.

    `kept`: the sources as the run is to remember them, with paths that mean the same everywhere; without, the spec's.
    """
    remembered = spec.sources if kept is None else kept
    known = KnownRows(plan)
    with spooled(spec, target, processes, progress, known) as spools:
        new = [spool.summary for spool in spools]
        summary = None
        if any(one.rows for one in new):
            with PlanWriter(storage, session, first=plan.count, digest_before=plan.digest) as writer:
                write_interleaved(spools, writer)
                parts, digest = writer.finish()
            summary = PlanSummary(
                session=session,
                rows=plan.count + sum(one.rows for one in new),
                refused=plan.summary.refused + sum(one.rows - one.accepted for one in new),
                native=plan.summary.native + sum(one.native for one in new),
                digest=digest,
                parts=(*plan.summary.parts, *parts),
                sources=_merged(plan.summary.sources, new),
                before=plan.stages,
                source_specs=tuple(source.model_dump(mode="json", exclude_unset=True) for source in remembered),
            )
    return Extension(summary, {one.name: one.rows for one in new if one.rows}, known.met, plan.count - known.met)


def commit_extension(storage: Storage, summary: PlanSummary) -> bool:
    """Make the new rows a part of the plan; False if another extension was quicker: nothing has changed then.

    Raises JournalDamaged if a part is not there any more, and what `storage` raises.
    """
    require_parts(storage, summary)
    data = summary.to_json()
    return storage.create(summary.key, data) or storage.read(summary.key) == data


def _merged(before: Iterable[SourceSummary], new: Iterable[SourceSummary]) -> tuple[SourceSummary, ...]:
    """Each source's numbers over the whole plan; of files, and of what was left out, what was seen last."""
    merged = {one.name: one for one in before}
    for one in new:
        merged[one.name] = _sum(merged[one.name], one) if one.name in merged else one
    return tuple(merged.values())


def _sum(before: SourceSummary, new: SourceSummary) -> SourceSummary:
    return SourceSummary(
        name=before.name,
        rows=before.rows + new.rows,
        accepted=before.accepted + new.accepted,
        rejected=_added(before.rejected, new.rejected),
        notes=_added(before.notes, new.notes),
        prompt_tokens=before.prompt_tokens + new.prompt_tokens,
        longest_prompt_tokens=max(before.longest_prompt_tokens, new.longest_prompt_tokens),
        turns=before.turns + new.turns,
        files=new.files,
        first_rejected={**new.first_rejected, **before.first_rejected},
        native=before.native + new.native,
        changed=before.changed + new.changed,
        eval_rows=before.eval_rows + new.eval_rows,
        left_out=new.left_out,
        most_turns=max(before.most_turns, new.most_turns),
    )


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted((Counter(one) + Counter(other)).items()))
