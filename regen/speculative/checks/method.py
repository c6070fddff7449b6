"""Does the method fit the draft, the target and the engine."""

from __future__ import annotations

import re

from regen.speculative.checks.subject import draft_of, head_of, target_described
from regen.speculative.draft import PATH_WORDS, Draft, Family, has_mtp_weights, mtp_layers, text_config, whole
from regen.speculative.evidence import Evidence, Fault

_KNOWN_BY_WEIGHTS = (Family.EAGLE3, Family.EAGLE, Family.MEDUSA, Family.DRAFT_MODEL)
_NOT_OFFERED = (Family.DSPARK, Family.MLP_SPECULATOR)
_LAYER_NUMBER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# vLLM takes no other layer types for a `speculators` head of these two kinds.
_SPECULATORS_LAYERS = ("qwen3", "llama")


def method_mismatch(evidence: Evidence) -> Fault | None:
    draft, asked = draft_of(evidence), evidence.method
    if draft is None or draft.family is None or draft.family == asked:
        return None
    fix = f"Set speculation.method to {draft.family.value!r}, or name another draft."
    if draft.family in _NOT_OFFERED:
        fix = f"regen has no method {draft.family.value!r}: name another draft."
    by = "" if draft.named_family is draft.family else ", by the shapes of its weights"
    return Fault(
        f"speculation.method is {asked!r}, the draft's config.json says {draft.described}"
        f" (made for {draft.family.value!r}{by})",
        fix,
    )


def weights_contradict_config(evidence: Evidence) -> Fault | None:
    draft = draft_of(evidence)
    if draft is None or draft.named_family not in _KNOWN_BY_WEIGHTS or draft.seen_family not in _KNOWN_BY_WEIGHTS:
        return None
    if draft.named_family is draft.seen_family:
        return None
    return Fault(
        f"the draft's config.json says {draft.described} ({draft.named_family.value!r}), its weights have the form"
        f" of {draft.seen_family.value!r}",
        "Use the config that was saved with these weights.",
    )


def draft_architecture_unknown(evidence: Evidence) -> Fault | None:
    draft, known = draft_of(evidence), evidence.engine.draft_architectures
    if draft is None or not known or "auto_map" in draft.raw or draft.family not in (None, evidence.method):
        return None
    if not draft.architectures and not draft.is_speculators and draft.family is not Family.MEDUSA:
        return Fault(
            "the draft's config.json names no architecture",
            "Write `architectures` into it: LlamaForCausalLMEagle3 for an EAGLE-3 head of Llama layers.",
        )
    names = _engine_architectures(draft)
    if not names or known.intersection(names):
        return None
    return Fault(
        f"the draft's config.json says {draft.described}, which {_engine(evidence)} would load as {', '.join(names)},"
        " and it has no such class",
        "Set `architectures` in the draft's config.json to a class that this engine has for this kind of draft.",
    )


def _engine_architectures(draft: Draft) -> list[str]:
    """The class names that vLLM makes of the config's; empty where it rewrites them by other rules."""
    method, names = draft.asked, draft.architectures
    model_type = str(draft.config.get("model_type") or "")
    if draft.is_speculators:
        wanted = _SPECULATORS_LAYERS if draft.named_family is Family.EAGLE3 else (model_type,)
        return (
            [] if model_type in (*wanted, "") else [f"{draft.raw['speculators_model_type']} over {model_type!r} layers"]
        )
    if model_type == "eagle" or model_type.startswith("deepseek"):
        return []
    if method == Family.EAGLE3:
        return [name if name.startswith("Eagle3") or name.endswith("Eagle3") else f"Eagle3{name}" for name in names]
    if method == Family.EAGLE:
        return [name if name.startswith("Eagle") else f"Eagle{name}" for name in names]
    return list(names) if method == Family.DRAFT_MODEL else []


def target_cannot_feed(evidence: Evidence) -> Fault | None:
    draft = draft_of(evidence)
    wants_states = evidence.method in (Family.EAGLE3, Family.DFLASH) and (draft is None or draft.uses_states)
    if not wants_states or evidence.engine.target_feeds_eagle3 is not False:
        return None
    return Fault(
        f"speculation.method is {evidence.method!r}, and in {_engine(evidence)} the target's class"
        f" ({target_described(evidence)}) hands over no hidden states of inner layers (SupportsEagle3)",
        "Use a method that needs none (ngram, draft_model), or an engine version whose class has it.",
    )


def mtp_absent(evidence: Evidence) -> Fault | None:
    if evidence.method != Family.MTP:
        return None
    source, what = (evidence.target, "the target") if evidence.draft is None else (evidence.draft, "the draft")
    if source.config is None:
        return None
    said, names = mtp_layers(source.config), source.tensor_names
    if evidence.draft is not None and Draft(evidence.draft, evidence.speculation).named_family is Family.MTP:
        return None
    if said == 0 or (said is None and not has_mtp_weights(names)):
        count = "names no prediction layers" if said is None else "says that it has 0 prediction layers"
        return Fault(
            f"speculation.method is 'mtp' and {what}'s config.json {count}",
            "Use another method, or name a draft that has the layers.",
        )
    if names and not _has_prediction_layers(names, whole(text_config(source.config), "num_hidden_layers")):
        return Fault(
            f"{what}'s config.json says {said} prediction layers, and none of its {len(names):,} tensors is of one",
            "Get the checkpoint that has them: converted and quantised copies often leave them out.",
        )
    return None


def _has_prediction_layers(names: frozenset[str], layers: int | None) -> bool:
    if has_mtp_weights(names):
        return True
    numbers = (int(match[1]) for name in names if (match := _LAYER_NUMBER.search(name)))
    return layers is None or any(number >= layers for number in numbers)


def path_decides_method(evidence: Evidence) -> Fault | None:
    """Only where the target itself is the draft: drafts are given to the engine under a neutral path."""
    if evidence.method != Family.MTP or evidence.draft is not None:
        return None
    words = [word for word in PATH_WORDS if word in evidence.target_path.lower()]
    if not words:
        return None
    return Fault(
        f"speculation.method is 'mtp' and the target's path {evidence.target_path!r} holds {words[0]!r}",
        "Move or link the target to a path without that word.",
    )


def parallel_head(evidence: Evidence) -> Fault | None:
    draft = head_of(evidence, Family.EAGLE3)
    is_asked = bool(evidence.speculation.args.get("parallel_drafting"))
    if draft is None or draft.is_parallel == is_asked:
        return None
    if draft.is_parallel:
        return Fault(
            f"the draft's config.json says {draft.described}, and speculation.args.parallel_drafting is not set",
            "Set speculation.args.parallel_drafting to true.",
        )
    return Fault(
        f"speculation.args.parallel_drafting is set, and the draft's config.json says {draft.described}",
        "Leave parallel_drafting out: this head was not trained for it.",
    )


def verifier_mismatch(evidence: Evidence) -> Fault | None:
    draft = draft_of(evidence)
    said = draft.raw.get("speculators_config") if draft is not None else None
    verifier = said.get("verifier") if isinstance(said, dict) else None
    names = verifier.get("architectures") if isinstance(verifier, dict) else None
    own = (evidence.target.config or {}).get("architectures")
    if not isinstance(names, list) or not names or not isinstance(own, list) or set(names) & set(own):
        return None
    return Fault(
        f"the draft's config.json says that it was trained for {', '.join(map(str, names))}, the target is"
        f" {target_described(evidence)}",
        "Name the draft that was trained for this target.",
    )


def _engine(evidence: Evidence) -> str:
    return f"{evidence.engine.engine} {evidence.engine.version or ''}".strip()
