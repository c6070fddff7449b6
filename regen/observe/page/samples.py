"""Some committed rows: what was asked, what the target answered. All of it is text of strangers."""

from __future__ import annotations

from regen.observe.page.facts import PageFacts, SampleFacts, TurnFacts
from regen.observe.page.html import Element, e
from regen.observe.page.parts import name_of, remark, section


def samples_section(facts: PageFacts) -> Element:
    note = remark(facts.samples_note) if facts.samples_note else None
    if facts.samples is None:
        return section("samples", "Sampled rows", note or remark("Switched off: prompts and answers are not shown."))
    return section("samples", "Sampled rows", note, [_sample(sample) for sample in facts.samples])


def _sample(sample: SampleFacts) -> Element:
    reason = f" ({sample.reason})" if sample.reason else ""
    return e(
        "details",
        e(
            "summary",
            e("b", sample.status),
            f"{reason}, ",
            name_of(sample.source),
            f", {sample.output_tokens:,} tokens, ",
            name_of(sample.location),
        ),
        [_turn(turn) for turn in sample.turns],
        remark(f"And {sample.cut:,} more messages.") if sample.cut else None,
        e("p", "row ", e("code", sample.row_id), class_="soft"),
        id=f"row-{sample.row_id}",
    )


def _turn(turn: TurnFacts) -> Element:
    about = f": {turn.about}" if turn.about else ""
    return e(
        "div",
        e("h3", turn.role, about),
        e("pre", turn.text or "(empty)", dir="auto", class_="answer" if turn.is_answer else None),
        remark(f"And {turn.cut:,} more characters.") if turn.cut else None,
    )
