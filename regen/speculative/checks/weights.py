"""The draft's files and what is in them: there, whole, complete, of the right shapes, numbers."""

from __future__ import annotations

from collections.abc import Iterator

from regen.checkpoints import FileFault, FileProblem
from regen.speculative.checks.subject import draft_of, head_of, target_hidden_size
from regen.speculative.draft import Draft, Family, whole
from regen.speculative.evidence import Evidence, Fault

_CONFIG = "config.json"
_GET_AGAIN = "Get the checkpoint again."
# One of each group has to be there, in each layer; a quantised matrix has other endings, so beginnings are compared.
_ATTENTION = (("self_attn.qkv_proj.", "self_attn.q_proj.", "self_attn.q_a_proj.", "self_attn.fused_qkv_a_proj"),)
_MLP = (("mlp.gate_up_proj.", "mlp.gate_proj.", "mlp.experts."), ("mlp.down_proj.", "mlp.experts."))
_PLAIN_ATTENTION = (("self_attn.k_proj.",), ("self_attn.v_proj.",), ("self_attn.o_proj.",))
_NORMS = (("hidden_norm.",), ("input_layernorm.",), ("post_attention_layernorm.",))
# Names of Mistral's own format, which vLLM renames.
_OTHER_NAMING = "attention.w"
_MATRICES = ("fc.weight", "lm_head.weight", "embed_tokens.weight", "_proj.weight")


def _problem(evidence: Evidence, *faults: FileFault) -> FileProblem | None:
    problems = evidence.draft.problems if evidence.draft is not None else ()
    return next((item for item in problems if item.fault in faults and item.file != _CONFIG), None)


def config_unusable(evidence: Evidence) -> Fault | None:
    problems = evidence.draft.problems if evidence.draft is not None else ()
    problem = next((item for item in problems if item.file == _CONFIG), None)
    return None if problem is None else Fault(f"the draft's {problem.file} {problem.detail}", _GET_AGAIN)


def weights_absent(evidence: Evidence) -> Fault | None:
    problem = _problem(evidence, FileFault.ABSENT)
    return None if problem is None else Fault(f"the draft's {problem.file} {problem.detail}", _GET_AGAIN)


def weights_pointer(evidence: Evidence) -> Fault | None:
    problem = _problem(evidence, FileFault.POINTER)
    if problem is None:
        return None
    return Fault(
        f"the draft's {problem.file} {problem.detail}, not the file", "Fetch the file: git lfs pull, or hf download."
    )


def weights_damaged(evidence: Evidence) -> Fault | None:
    problem = _problem(evidence, FileFault.EMPTY, FileFault.TRUNCATED, FileFault.DAMAGED)
    return None if problem is None else Fault(f"the draft's {problem.file} {problem.detail}", _GET_AGAIN)


def weights_unread(evidence: Evidence) -> Fault | None:
    if evidence.draft is None or not evidence.draft.has_unread_weights:
        return None
    problem = _problem(evidence, FileFault.UNREADABLE)
    what = (
        f"{problem.file} {problem.detail}" if problem is not None else "weights are in a form that is not looked into"
    )
    return Fault(f"the draft's {what}", "Save them as safetensors to have shapes and tables checked.")


def weights_incomplete(evidence: Evidence) -> Fault | None:
    draft = head_of(evidence)
    if draft is None or not draft.has_weights or any(_OTHER_NAMING in name for name in draft.tensors):
        return None
    missing = list(_missing(draft))
    if not missing:
        return None
    more = f" and {len(missing) - 1} more" if missing[1:] else ""
    return Fault(f"the draft's weights have no {missing[0]}{more}, which an {draft.family} head needs", _GET_AGAIN)


def _missing(draft: Draft) -> Iterator[str]:
    is_eagle3 = draft.family is Family.EAGLE3
    if not draft.has_fusion and (draft.uses_states or not is_eagle3):
        yield "fc.weight"
    if is_eagle3 and not any(name.startswith("norm.") for name in draft.tensors):
        yield "norm.weight"
    layers: dict[str, list[str]] = {}
    for layer, name in draft.layer_tensors:
        layers.setdefault(layer, []).append(name)
    if not layers:
        yield "decoder layer"
    for number, (layer, names) in enumerate(sorted(layers.items())):
        yield from (f"{layer}.{group[0]}weight" for group in _groups(names, is_eagle3, number == 0) if group)


def _groups(names: list[str], is_eagle3: bool, is_first: bool) -> Iterator[tuple[str, ...]]:
    """The groups of which no member is there."""
    is_plain = any(name.startswith("self_attn.q_proj.") for name in names) and not any("kv_a_proj" in n for n in names)
    wanted = [*_ATTENTION, *_MLP, _NORMS[2]]
    wanted += _PLAIN_ATTENTION if is_plain else ()
    wanted += _NORMS[:2] if is_eagle3 and is_first else ()
    for group in wanted:
        if not any(name.startswith(group) for name in names):
            yield group


def layer_count(evidence: Evidence) -> Fault | None:
    draft = head_of(evidence)
    said = whole(draft.config, "num_hidden_layers") if draft is not None else None
    seen = len({layer for layer, _ in draft.layer_tensors}) if draft is not None else 0
    if said is None or not seen or said == seen:
        return None
    return Fault(
        f"the draft's config.json says num_hidden_layers {said}, its weights have {seen}",
        "Use the config that was saved with these weights.",
    )


def weights_shape(evidence: Evidence) -> Fault | None:
    draft = head_of(evidence)
    if draft is None:
        return None
    for name, expected, because in _expected_shapes(draft, target_hidden_size(evidence)):
        shape = draft.shape(name)
        if shape is not None and any(
            want is not None and got != want for got, want in zip(shape, expected, strict=False)
        ):
            wanted = [("any" if want is None else want) for want in expected]
            return Fault(
                f"the draft's {name} is {list(shape)}, {because} asks for {wanted}".replace("'any'", "any"), _FIT
            )
    width, hidden = draft.fusion_width, draft.target_hidden_size
    if draft.family is Family.EAGLE3 and draft.uses_states and width is not None and hidden and width % hidden:
        return Fault(f"the draft's fc.weight reads {width}, which is no multiple of the hidden size {hidden}", _FIT)
    return None


_FIT = "Use the config that was saved with these weights, or the weights that belong to it."
_Expected = tuple[str, tuple[int | None, ...], str]


def _expected_shapes(draft: Draft, target_hidden: int | None) -> Iterator[_Expected]:
    hidden, own, inner = draft.hidden_size, draft.draft_vocab_size, whole(draft.config, "intermediate_size")
    if hidden is None:
        return
    is_eagle3 = draft.family is Family.EAGLE3
    because = f"hidden_size {hidden}"
    yield "fc.weight", (hidden, None if is_eagle3 else 2 * hidden), because
    yield "norm.weight", (hidden,), because
    if is_eagle3:
        yield "lm_head.weight", (own, hidden), f"draft_vocab_size {own} and {because}"
    yield "embed_tokens.weight", (draft.vocab_size, hidden), f"vocab_size {draft.vocab_size} and {because}"
    first = min((layer for layer, _ in draft.layer_tensors), default="")
    for layer in {layer for layer, _ in draft.layer_tensors}:
        width = 2 * hidden if is_eagle3 and layer == first else hidden
        prefix = "midlayer" if layer == "midlayer" else f"layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj"):
            yield f"{prefix}.self_attn.{name}.weight", (None, width), because
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, None), because
        for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{name}.weight", (hidden,), because
        for name in ("gate_proj", "up_proj"):
            yield f"{prefix}.mlp.{name}.weight", (inner, hidden), f"{because}, intermediate_size {inner}"
        yield f"{prefix}.mlp.down_proj.weight", (hidden, inner), f"{because}, intermediate_size {inner}"


def weights_not_finite(evidence: Evidence) -> Fault | None:
    names = evidence.draft.not_finite if evidence.draft is not None else ()
    if not names:
        return None
    more = f" and {len(names) - 1} more" if names[1:] else ""
    return Fault(f"the draft's {names[0]}{more} holds NaN or infinity", "Get a checkpoint of an earlier training step.")


def weights_zero(evidence: Evidence) -> Fault | None:
    draft = draft_of(evidence)
    if draft is None:
        return None
    names = [name for name in draft.checkpoint.all_zero if name.endswith(_MATRICES)]
    if not names:
        return None
    more = f" and {len(names) - 1} more" if names[1:] else ""
    return Fault(f"the draft's {names[0]}{more} holds nothing but zeros", _GET_AGAIN)
