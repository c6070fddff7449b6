"""Auxiliary layers of an EAGLE-3 head: which, how many, who reads them, how they are counted."""

from __future__ import annotations

from regen.speculative.checks.subject import head_of, target_hidden_size, target_layers
from regen.speculative.draft import Draft, Family, default_ids, is_id_list, specforge_ids, whole
from regen.speculative.evidence import Evidence, Fault


def _with_states(evidence: Evidence, *families: Family) -> Draft | None:
    draft = head_of(evidence, Family.EAGLE3, *families)
    return draft if draft is not None and draft.uses_states else None


def ids_missing(evidence: Evidence) -> Fault | None:
    draft, layers = _with_states(evidence), target_layers(evidence)
    if draft is None or draft.written_ids:
        return None
    taken = f"takes {default_ids(layers)}, of {layers}" if layers else "takes its own default"
    return Fault(
        f"the draft's config.json names no auxiliary layers, so the engine {taken}",
        "Right if the head was trained on these; else write eagle_aux_hidden_state_layer_ids into its config.json.",
    )


def ids_malformed(evidence: Evidence) -> Fault | None:
    draft = _with_states(evidence, Family.DFLASH)
    for key, value in draft.written_ids.items() if draft is not None else ():
        if not is_id_list(value):
            return Fault(f"the draft's config.json has {key}: {value!r}", "A list of whole numbers is wanted.")
    return None


def ids_out_of_range(evidence: Evidence) -> Fault | None:
    draft, layers = _with_states(evidence, Family.DFLASH), target_layers(evidence)
    ids = draft.layer_ids if draft is not None else None
    if draft is None or ids is None:
        return None
    written = f"{_written(draft)}{_counted(draft)}"
    if len(set(ids)) < len(ids):
        return Fault(f"the draft's auxiliary layers {written} name a layer twice", "Name each layer once.")
    if layers is None or all(0 <= number <= layers for number in ids):
        return None
    return Fault(
        f"the draft's auxiliary layers are {written}, the target has {layers} layers (ids 0 to {layers})",
        "Name the draft that was trained for this target, or correct its layer ids.",
    )


def ids_count(evidence: Evidence) -> Fault | None:
    draft = _with_states(evidence, Family.DFLASH)
    width = draft.fusion_width if draft is not None else None
    if draft is None or width is None:
        return None
    hidden = draft.target_hidden_size or target_hidden_size(evidence)
    if not hidden or width % hidden:
        return None  # hidden_size and weights_shape speak of that
    states, given = width // hidden, draft.layer_ids
    count = len(given) if given is not None else draft.states_without_ids
    if count == states:
        return _said_otherwise(draft, states)
    said = f"names {count} ({_written(draft)})" if given is not None else f"names none, which means {count}"
    return Fault(
        f"the fusion layer fc.weight reads {width} = {states} x {hidden}: {states} auxiliary layers; the config {said}",
        f"Name {states} layers in eagle_aux_hidden_state_layer_ids.",
    )


def _said_otherwise(draft: Draft, states: int) -> Fault | None:
    said = whole(draft.config, "num_aux_hidden_states")
    if said is None or said == states:
        return None
    return Fault(
        f"the draft's config.json says num_aux_hidden_states {said}, its fusion layer reads {states} states",
        f"Set num_aux_hidden_states to {states}.",
    )


def ids_conflict(evidence: Evidence) -> Fault | None:
    draft = _with_states(evidence)
    values = list(draft.written_ids.values()) if draft is not None else []
    if len(values) < 2 or not all(is_id_list(value) for value in values) or _sorted(values[0]) == _sorted(values[1]):
        return None
    if _is_shifted(values[0], values[1]):
        return None  # one layer list in two conventions: layer-convention speaks of it
    keys = list(draft.written_ids) if draft is not None else []
    return Fault(
        f"the draft's config.json has {keys[0]} {values[0]} and {keys[1]} {values[1]}",
        "Keep the one that the head was trained with.",
    )


def ids_unread(evidence: Evidence) -> Fault | None:
    """By the installed engine's runners: regen's copy of the config says it where each of them looks."""
    draft = _with_states(evidence)
    keys = tuple(draft.written_ids) if draft is not None else ()
    blind = [runner for runner, read in evidence.engine.layer_id_keys.items() if keys and not set(read) & set(keys)]
    if not blind or draft is None:
        return None
    return Fault(
        f"the draft's config.json has layer ids only as {keys[0]}, which runner {', '.join(blind)} of"
        f" {evidence.engine.engine} {evidence.engine.version or ''} does not read".replace("  ", " "),
        f"Nothing to do: regen gives the engine a copy of the config with {draft.layer_ids} where each runner looks.",
    )


def convention(evidence: Evidence) -> Fault | None:
    draft, layers = _with_states(evidence), target_layers(evidence)
    values = list(draft.written_ids.values()) if draft is not None else []
    if draft is None or layers is None or not values or not is_id_list(values[0]):
        return None
    if len(values) == 2 and is_id_list(values[1]) and _is_shifted(values[0], values[1]):
        return Fault(
            f"the draft's config.json names the layers twice, one apart: {values[0]} and {values[1]}",
            f"The engine takes {draft.layer_ids}. If that is wrong, remove the other one and set"
            " speculation.layer_convention.",
        )
    written, is_output = _sorted(values[0]), evidence.speculation.layer_convention == "output"
    if written == specforge_ids(layers) and not is_output:
        return Fault(
            f"the draft's auxiliary layers {written} are SpecForge's default for {layers} layers, counted by what"
            f" leaves them; speculation.layer_convention is 'input'",
            f"If the head was trained with SpecForge, set speculation.layer_convention to 'output': the engine then"
            f" takes {default_ids(layers)}.",
        )
    if written == default_ids(layers) and is_output:
        return Fault(
            f"the draft's auxiliary layers {written} are vLLM's default for {layers} layers, counted by what enters"
            f" them; speculation.layer_convention is 'output', so the engine gets {draft.layer_ids}",
            "If the head was trained with vLLM's counting, set speculation.layer_convention to 'input'.",
        )
    return None


def ids_unusual(evidence: Evidence) -> Fault | None:
    """Trainers take a low, a middle and a high layer: ids side by side are another target's, or a mistake."""
    draft, layers = _with_states(evidence), target_layers(evidence)
    ids = draft.layer_ids if draft is not None else None
    if draft is None or not ids or layers is None or max(ids) - min(ids) >= layers // 3:
        return None
    return Fault(
        f"the draft's auxiliary layers {_written(draft)} lie within {max(ids) - min(ids) + 1} of the target's {layers}",
        f"Compare with how the head was trained; {default_ids(layers)} is usual.",
    )


def states_switched_off(evidence: Evidence) -> Fault | None:
    draft = head_of(evidence, Family.EAGLE3)
    if draft is None or draft.uses_states or not draft.has_fusion:
        return None
    return Fault(
        "the draft's eagle_config.use_aux_hidden_state is false, and its weights have a fusion layer"
        f" (fc.weight {list(draft.shape('fc.weight') or ())})",
        "Set eagle_config.use_aux_hidden_state to true in the draft's config.json.",
    )


def _written(draft: Draft) -> str:
    return str(next(iter(draft.written_ids.values()), None))


def _counted(draft: Draft) -> str:
    is_counted = str(list(draft.layer_ids or ())) != _written(draft)
    return f" ({list(draft.layer_ids or ())} as the engine counts)" if is_counted else ""


def _sorted(value: object) -> tuple[int, ...]:
    assert isinstance(value, list | tuple)
    return tuple(sorted(value))


def _is_shifted(one: object, other: object) -> bool:
    left, right = _sorted(one), _sorted(other)
    return len(left) == len(right) and {a - b for a, b in zip(left, right, strict=True)} in ({1}, {-1})
