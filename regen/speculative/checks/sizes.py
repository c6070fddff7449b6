"""Sizes: hidden states, vocabularies, heads, and the tables between the two vocabularies."""

from __future__ import annotations

from itertools import pairwise

from regen.speculative.checks.subject import draft_of, head_of, target_hidden_size, target_vocab_size
from regen.speculative.draft import Draft, Family, whole
from regen.speculative.evidence import Evidence, Fault

# Vocabularies of one tokenizer are padded to multiples of this and more, differently in target and draft.
_PADDING_TOKENS = 1024


def hidden_size(evidence: Evidence) -> Fault | None:
    draft, target = draft_of(evidence), target_hidden_size(evidence)
    reads_states = evidence.method in (Family.EAGLE, Family.EAGLE3, Family.MEDUSA, Family.DFLASH)
    if draft is None or target is None or not reads_states or draft.family != evidence.method:
        return None
    own = draft.target_hidden_size
    if own is not None and own != target:
        key = "target_hidden_size" if whole(draft.config, "target_hidden_size") else "hidden_size"
        return Fault(f"the draft's {key} is {own}, the target's hidden_size is {target}", _OTHER_DRAFT)
    return None


def vocabulary_size(evidence: Evidence) -> Fault | None:
    draft, target = draft_of(evidence), target_vocab_size(evidence)
    if draft is None or target is None or draft.vocab_size is None or evidence.method == Family.MEDUSA:
        return None
    if draft.vocab_size == target or evidence.speculation.args.get("use_heterogeneous_vocab"):
        return None
    is_strict = evidence.method == Family.DRAFT_MODEL  # vLLM refuses any difference
    if not is_strict and abs(draft.vocab_size - target) <= _PADDING_TOKENS:
        return None
    return Fault(f"the draft's vocab_size is {draft.vocab_size}, the target's is {target}", _OTHER_DRAFT)


def vocabulary_padding(evidence: Evidence) -> Fault | None:
    draft, target = head_of(evidence), target_vocab_size(evidence)
    if draft is None or target is None or draft.vocab_size is None:
        return None
    if not 0 < abs(draft.vocab_size - target) <= _PADDING_TOKENS:
        return None
    return Fault(
        f"the draft's vocab_size is {draft.vocab_size}, the target's is {target}: one tokenizer, padded otherwise?",
        "Make sure that the draft was trained for this target.",
    )


def draft_vocabulary(evidence: Evidence) -> Fault | None:
    """The config's two vocabularies, against one another and against the output layer."""
    draft = head_of(evidence)
    if draft is None or draft.draft_vocab_size is None:
        return None
    own, whole_size = draft.draft_vocab_size, draft.vocab_size
    if whole_size is not None and own > whole_size:
        return Fault(
            f"the draft's draft_vocab_size is {own}, its vocab_size is {whole_size}",
            "The draft's own vocabulary cannot be the larger one: correct its config.json.",
        )
    head = draft.shape("lm_head.weight")
    if draft.family is Family.EAGLE3 and head is not None and head[0] != own:
        said = "draft_vocab_size" if whole(draft.config, "draft_vocab_size") else "vocab_size (no draft_vocab_size)"
        return Fault(
            f"the draft's lm_head.weight has {head[0]} rows, its config.json says {said} {own}",
            f"Set draft_vocab_size to {head[0]} if these weights are right.",
        )
    return None


def head_counts(evidence: Evidence) -> Fault | None:
    draft = head_of(evidence)
    heads = whole(draft.config, "num_attention_heads") if draft is not None else None
    if draft is None or not heads:
        return None
    groups = whole(draft.config, "num_key_value_heads") or heads
    if heads % groups:
        return Fault(
            f"the draft's num_attention_heads is {heads}, not a multiple of its num_key_value_heads {groups}",
            "Use the config that was saved with these weights.",
        )
    if draft.in_first_layer("self_attn.kv_a_proj_with_mqa.weight"):
        return None  # latent attention: heads are not rows
    return _rows_by_heads(draft, heads, groups)


def _rows_by_heads(draft: Draft, heads: int, groups: int) -> Fault | None:
    size = whole(draft.config, "head_dim") or (draft.hidden_size or 0) // heads
    for name, count, key in (
        ("q_proj", heads, "num_attention_heads"),
        ("k_proj", groups, "num_key_value_heads"),
        ("v_proj", groups, "num_key_value_heads"),
    ):
        shape = draft.in_first_layer(f"self_attn.{name}.weight")
        if shape is not None and size and shape[0] != count * size:
            return Fault(
                f"the draft's {name}.weight has {shape[0]} rows, its config.json says {key} {count} of {size}"
                f" ({count * size})",
                "Use the config that was saved with these weights.",
            )
    return None


# --- the tables between the draft's vocabulary and the target's ---------------------------------------


def _reduced(evidence: Evidence) -> tuple[Draft, int, int] | None:
    """(draft, its own vocabulary, the whole one), if there is a table to expect and weights to look at."""
    draft = head_of(evidence, Family.EAGLE3, Family.DFLASH)
    own = draft.draft_vocab_size if draft is not None else None
    full = target_vocab_size(evidence) or (draft.vocab_size if draft is not None else None)
    if draft is None or own is None or full is None or own >= (draft.vocab_size or full) or not draft.has_weights:
        return None
    return draft, own, full


def _has_table(draft: Draft, name: str) -> bool:
    return any(tensor.rpartition(".")[2] == name for tensor in draft.tensors)


def d2t_missing(evidence: Evidence) -> Fault | None:
    found = _reduced(evidence)
    if found is None or _has_table(found[0], "d2t"):
        return None
    return Fault(
        f"the draft's draft_vocab_size is {found[1]}, the vocabulary {found[2]}, and there is no d2t in its weights",
        "Get the checkpoint with the table, or save it again: draft id + d2t[draft id] is the target's id.",
    )


def d2t_length(evidence: Evidence) -> Fault | None:
    found = _reduced(evidence)
    table = found[0].checkpoint.integers.get("d2t") if found is not None else None
    if found is None or table is None or len(table) == found[1]:
        return None
    return Fault(f"the draft's d2t has {len(table)} entries, its draft_vocab_size is {found[1]}", _OTHER_TABLE)


def d2t_all_zero(evidence: Evidence) -> Fault | None:
    found = _reduced(evidence)
    table = found[0].checkpoint.integers.get("d2t") if found is not None else None
    if found is None or not table or any(table):
        return None
    return Fault(
        f"the draft's d2t holds {len(table)} zeros, with a vocabulary of {found[1]} out of {found[2]}",
        _OTHER_TABLE,
    )


def d2t_out_of_range(evidence: Evidence) -> Fault | None:
    found = _reduced(evidence)
    table = found[0].checkpoint.integers.get("d2t") if found is not None else None
    if found is None or not table:
        return None
    for number, offset in enumerate(table):
        if not 0 <= number + offset < found[2]:
            hint = " It looks like ids where offsets belong." if list(table) == sorted(set(table)) else ""
            return Fault(
                f"the draft's d2t sends draft id {number} to {number} + {offset} = {number + offset}, the target's"
                f" vocabulary has {found[2]} ids",
                _OTHER_TABLE + hint,
            )
    return None


def d2t_unsorted(evidence: Evidence) -> Fault | None:
    found = _reduced(evidence)
    table = found[0].checkpoint.integers.get("d2t") if found is not None else None
    for number, (one, other) in enumerate(pairwise(table or ())):
        if other + 1 < one:  # target ids number + one and number + 1 + other
            return Fault(
                f"the draft's d2t sends draft id {number} to {number + one} and draft id {number + 1} to"
                f" {number + 1 + other}: not in order",
                "Compare it with the mapping that the head was trained with.",
            )
    return None


def tables_disagree(evidence: Evidence) -> Fault | None:
    found = _reduced(evidence)
    if found is None:
        return None
    draft, _, full = found
    table, mask = draft.checkpoint.integers.get("d2t"), draft.checkpoint.integers.get("t2d")
    reached = {number + offset for number, offset in enumerate(table)} if table and any(table) else None
    if reached is not None and table is not None and len(reached) < len(table):
        return Fault(f"the draft's d2t sends {len(table)} draft ids to {len(reached)} target ids", _OTHER_TABLE)
    if mask is None:
        return None
    if len(mask) not in (full, draft.vocab_size):
        return Fault(f"the draft's t2d has {len(mask)} entries, the target's vocabulary {full} ids", _OTHER_TABLE)
    if reached is None or set(mask) - {0, 1}:
        return None
    marked = {number for number, flag in enumerate(mask) if flag}
    if marked == reached:
        return None
    return Fault(
        f"the draft's t2d marks {len(marked)} target ids, its d2t reaches {len(reached)}, and {len(marked ^ reached)}"
        " of them are in one only",
        _OTHER_TABLE,
    )


def output_layer_missing(evidence: Evidence) -> Fault | None:
    draft = head_of(evidence, Family.EAGLE3)
    if draft is None or not draft.has_weights or any("lm_head" in name for name in draft.tensors):
        return None
    return Fault(
        f"the draft has no lm_head of its own (draft_vocab_size {draft.draft_vocab_size})",
        "Nothing to do: the engine gives it the target's.",
    )


_OTHER_DRAFT = "Name the draft that was trained for this target."
_OTHER_TABLE = "Save d2t and t2d again, from the mapping that the head was trained with."
