"""What the checks ask of evidence: the draft, and whether it is a head of the method that was asked for. Pure."""

from __future__ import annotations

from regen.speculative.draft import Draft, Family, text_config, whole
from regen.speculative.evidence import Evidence

_HEADS = (Family.EAGLE, Family.EAGLE3)


def draft_of(evidence: Evidence) -> Draft | None:
    """The draft with a config that could be read; None where the method takes none."""
    if evidence.draft is None or evidence.draft.config is None:
        return None
    return Draft(evidence.draft, evidence.speculation)


def head_of(evidence: Evidence, *families: Family) -> Draft | None:
    """The draft if it is an EAGLE or EAGLE-3 head and was asked for as such: else other checks speak."""
    draft = draft_of(evidence)
    if draft is None or draft.family is None or draft.family != evidence.method:
        return None
    return draft if draft.family in (families or _HEADS) else None


def target_number(evidence: Evidence, *keys: str) -> int | None:
    """A whole number of the target's language model."""
    return whole(text_config(evidence.target.config or {}), *keys) or whole(evidence.target.config or {}, *keys)


def target_layers(evidence: Evidence) -> int | None:
    return target_number(evidence, "num_hidden_layers", "n_layer", "n_layers")


def target_hidden_size(evidence: Evidence) -> int | None:
    return target_number(evidence, "hidden_size", "n_embd", "d_model")


def target_vocab_size(evidence: Evidence) -> int | None:
    return target_number(evidence, "vocab_size")


def target_described(evidence: Evidence) -> str:
    names = (evidence.target.config or {}).get("architectures") or ["no architecture"]
    return ", ".join(map(str, names))
