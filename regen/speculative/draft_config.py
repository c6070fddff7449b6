"""The config that the engine is given for a draft: what was checked, said where every runner reads it. Pure.

Nothing is corrected here that preflight would refuse. Added are: the auxiliary layers, as vLLM counts them, at the top
level and in `eagle_config` (runner V2 reads only the former, the head's own code counts the latter), also where they
are the engine's default; and `use_aux_hidden_state`, which absence means too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regen.speculative.draft import IDS, Draft, Family, default_ids


def engine_config(draft: Draft, target_layers: int | None) -> dict[str, Any]:
    """The draft's config for the engine; equal to the draft's own where nothing is to be said."""
    config = dict(draft.raw)
    if draft.family is not Family.EAGLE3 or draft.asked != Family.EAGLE3:
        return config
    eagle = {**draft.eagle_config, "use_aux_hidden_state": draft.uses_states}
    ids = _layer_ids(draft, target_layers) if draft.uses_states else None
    if ids is not None:
        eagle[IDS] = config[IDS] = list(ids)
    return _with_eagle_config(config, eagle)


def _layer_ids(draft: Draft, target_layers: int | None) -> tuple[int, ...] | None:
    if draft.written_ids:
        return draft.layer_ids
    return default_ids(target_layers) if target_layers is not None and target_layers > 5 else None


def _with_eagle_config(config: dict[str, Any], eagle: Mapping[str, Any]) -> dict[str, Any]:
    """Where the head's own code finds it: for `speculators`, only the layer's config reaches that code."""
    nested = config.get("transformer_layer_config")
    if isinstance(nested, dict):
        return {**config, "transformer_layer_config": {**nested, "eagle_config": dict(eagle)}}
    return {**config, "eagle_config": dict(eagle)}
