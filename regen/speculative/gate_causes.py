"""What to look at when speculation does not work, most likely first: by trouble, method and settings. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from regen.spec import SpeculationSpec


class Trouble(StrEnum):
    DEAD = "dead"
    ABSENT = "absent"
    OFF_PROFILE_AT_FIRST = "off_profile_at_first"
    OFF_PROFILE_LATER = "off_profile_later"
    GARBAGE = "garbage"


_OTHER_TARGET = "the draft {draft} was trained for another target, or another revision of it"
_DEAD = {
    "eagle": (
        "the draft {draft} is an EAGLE-3 head and runs as `eagle`: the target's auxiliary states are never captured;"
        " set speculation.method to eagle3",
        _OTHER_TARGET,
        "the draft's weights are not the trained ones (an optimizer's start, a failed conversion)",
    ),
    "eagle3": (
        "the auxiliary states do not reach the draft {draft}: layer ids that this engine's runner does not read, or"
        " `use_aux_hidden_state: false`",
        "the layer ids are those of another convention (speculation.layer_convention) or another target",
        "the draft is an EAGLE head; set speculation.method to eagle",
        "the table from draft ids to target ids (d2t) is missing, or belongs to other weights",
        "the draft's weights are not the trained ones (an optimizer's start, a failed conversion)",
        _OTHER_TARGET,
    ),
    "mtp": (
        "the target's MTP weights are not in this checkpoint, or were lost when it was quantised or fine-tuned",
        "the engine's MTP class for this target does not load them by their names here",
    ),
    "draft_model": (
        "the draft model {draft} has another tokenizer than the target: its ids mean other words",
        "{draft} is an EAGLE head and runs as an independent model; set speculation.method to what its config says",
        "{draft} is a base model, or was trained on another chat template",
    ),
    "dflash": (
        "the target's states do not reach the draft {draft}: layer ids of another convention or another target",
        _OTHER_TARGET,
    ),
    "medusa": (_OTHER_TARGET, "the heads' weights are not the trained ones"),
    "ngram": (
        "these answers hardly repeat earlier text: n-gram drafts are guesses here; leave speculation out",
        "speculation.args.prompt_lookup_min is so low that single words match anywhere",
    ),
    "suffix": ("these answers hardly repeat earlier text: leave speculation out",),
}
_ABSENT = (
    "the engine does not draft: see in its log which speculative config it runs with",
    "every prompt is longer than what the draft takes, so that it is left out",
    "the engine's version drafts and does not count: another version is needed, or gate: warn",
)
_ABSENT_MTP = "the target's config names no MTP layers, so that the engine has none to run"
_OFF_AT_FIRST = (
    "the draft's layer ids are off by one: they count what leaves a layer where the engine counts what enters it, or"
    " the other way round (speculation.layer_convention)",
    "the layer ids are not the ones that the draft {draft} was trained with",
)
_OFF_AT_FIRST_ANY = (
    _OTHER_TARGET,
    "the target runs quantised, or with another chat template, than the draft was trained with",
    "speculation.expected was measured on other rows: compare on the same ones",
)
_OFF_LATER = (
    "the draft's own recurrence is broken (its norm, its rotary positions, how its state is fed back)",
    "speculation.num_tokens is more than the draft {draft} was trained to unroll",
    "speculation.expected was measured on other rows: compare on the same ones",
)
_GARBAGE = (
    "the engine's speculation mixes up requests of one batch; try engine.args.async_scheduling: false",
    "a fault of the engine in verifying drafts with this attention backend or cache format",
    "the engine is set to accept drafts that the target would not have sampled (lossy verification)",
    "a cache in a low-precision format rounds more than speculation.warmup.canary_margin allows for",
)
_SAMPLED_DRAFT = "the draft proposes greedily and the run samples at temperature {temperature:g} (draft_sample_method)"
_SAMPLED_FIGURES = "speculation.expected was measured greedily; this is temperature {temperature:g}"


def causes_of(trouble: Trouble, speculation: SpeculationSpec, temperature: float) -> tuple[str, ...]:
    """Candidate causes, most likely first."""
    draft = repr(speculation.draft_name)
    return tuple(
        cause.format(draft=draft, temperature=temperature) for cause in _candidates(trouble, speculation, temperature)
    )


def _candidates(trouble: Trouble, speculation: SpeculationSpec, temperature: float) -> Iterator[str]:
    reads_layers = speculation.method in ("eagle3", "dflash")
    match trouble:
        case Trouble.DEAD:
            yield from _DEAD[speculation.method]
        case Trouble.ABSENT:
            if speculation.method == "mtp":
                yield _ABSENT_MTP
            yield from _ABSENT
        case Trouble.OFF_PROFILE_AT_FIRST:
            if speculation.method == "eagle":
                yield _DEAD["eagle"][0]
            yield from (*(_OFF_AT_FIRST if reads_layers else ()), *_OFF_AT_FIRST_ANY)
        case Trouble.OFF_PROFILE_LATER:
            yield from _OFF_LATER
        case Trouble.GARBAGE:
            yield from _GARBAGE
    if temperature and trouble is Trouble.DEAD:
        yield _SAMPLED_DRAFT
    if temperature and trouble in (Trouble.OFF_PROFILE_AT_FIRST, Trouble.OFF_PROFILE_LATER):
        yield _SAMPLED_FIGURES
