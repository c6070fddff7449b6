"""What a draft is, by its config and by its weights, whatever its folder is called. Pure.

Three voices say what a draft is made for: the names in its config, the shapes of its weights, and the spec. They are
read apart here, so that a check can compare them. From here on EAGLE, SpecForge and `speculators` look alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from regen.checkpoints import Checkpoint, Tensor
from regen.spec import SpeculationSpec

IDS = "eagle_aux_hidden_state_layer_ids"
DEFAULT_STATES = 3
_LEAVING = "dflash_config.target_layer_ids"
_LAYER = re.compile(r"(?:layers\.(\d+)|(midlayer))\.(.+)")
_MEDUSA = re.compile(r"(medusa_heads\.)?(\d+\.\d+\.(linear\.)?(weight|bias)|blocks\.\d+\.layers\.)")
# "eagle3" before "eagle", "peagle" before both: one word is part of the other.
_NAMES: tuple[tuple[str, str], ...] = (
    ("peagle", "eagle3"),
    ("eagle3", "eagle3"),
    ("eagle-3", "eagle3"),
    ("dflash", "dflash"),
    ("lilicorr", "dflash"),
    ("museglimmerassistant", "dflash"),
    ("dspark", "dspark"),
    ("eagle", "eagle"),
    ("medusa", "medusa"),
    ("mlpspeculator", "mlp_speculator"),
    ("mlp_speculator", "mlp_speculator"),
    ("nextn", "mtp"),
    ("mtp", "mtp"),
    ("gemma4assistant", "mtp"),
    ("gemma4_assistant", "mtp"),
    ("gemma4_unified_assistant", "mtp"),
)
# vLLM 0.32 takes these in a draft's path for a method, also when another one is given (draft_model, mtp, medusa).
PATH_WORDS = ("eagle-", "eagle3", "dflash", "dspark")
# How many prediction layers a target has, under every name that families give it.
MTP_LAYER_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")


class Family(StrEnum):
    """What a draft can be made for. The values are the engine's method names."""

    EAGLE3 = "eagle3"
    EAGLE = "eagle"
    MTP = "mtp"
    DFLASH = "dflash"
    DSPARK = "dspark"
    MEDUSA = "medusa"
    MLP_SPECULATOR = "mlp_speculator"
    DRAFT_MODEL = "draft_model"


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config: multimodal families nest it."""
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        nested = config.get(key)
        if isinstance(nested, dict):
            return text_config(nested)
    return config


def whole(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these keys that holds a whole number."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def mtp_layers(config: Mapping[str, Any]) -> int | None:
    """How many multi-token-prediction layers a target says it has; None: it does not say."""
    found = [whole(part, *MTP_LAYER_KEYS) for part in (config, text_config(config), config.get("mtp_config") or {})]
    said = [count for count in found if count is not None]
    return max(said) if said else None


def has_mtp_weights(names: Iterable[str]) -> bool:
    """Whether any tensor belongs to a prediction layer."""
    return any(part == "eh_proj" or part.startswith("mtp") for name in names for part in name.split("."))


@dataclass(frozen=True)
class Draft:
    """A draft checkpoint, read for the spec's `layer_convention`. Config keys are looked up as the engine sees them."""

    checkpoint: Checkpoint
    speculation: SpeculationSpec

    @property
    def asked(self) -> str:
        """The method that the spec asks for."""
        return self.speculation.method

    @cached_property
    def raw(self) -> Mapping[str, Any]:
        return self.checkpoint.config or {}

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """One flat config: `speculators` nests the layer's, and what it says beside it wins."""
        nested = self.raw.get("transformer_layer_config")
        if not isinstance(nested, dict):
            return self.raw if "vocab_size" in self.raw else {**text_config(self.raw), **self.raw}
        return {**nested, **{key: value for key, value in self.raw.items() if value is not None}}

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        names = self.raw.get("architectures")
        return tuple(map(str, names)) if isinstance(names, list) else ()

    @property
    def is_speculators(self) -> bool:
        return bool(self.raw.get("speculators_model_type"))

    @property
    def is_parallel(self) -> bool:
        """P-EAGLE: all tokens drafted at once, which the engine has to be told."""
        words = (self.raw.get("speculators_model_type"), *self.architectures)
        return any("peagle" in str(word).lower() for word in words)

    @property
    def described(self) -> str:
        """What the config says of itself, for people."""
        said = ", ".join(self.architectures) or "no architecture"
        return f"{said} (speculators: {self.raw['speculators_model_type']})" if self.is_speculators else said

    # --- what it is made for ---------------------------------------------------------------------

    @cached_property
    def named_family(self) -> Family | None:
        """By the names in the config; None if they say nothing (an ordinary architecture)."""
        words = [
            str(self.raw.get("speculators_model_type") or ""),
            *self.architectures,
            str(self.raw.get("model_type")),
        ]
        for word in words:
            for name, family in _NAMES:
                if name in word.lower():
                    return Family(family)
        if isinstance(self.raw.get("dflash_config"), dict):
            return Family.DFLASH
        if isinstance(self.raw.get("eagle_config"), dict) or self.raw.get(IDS) or self.raw.get("draft_vocab_size"):
            return Family.EAGLE3
        return None

    @cached_property
    def seen_family(self) -> Family | None:
        """By the weights; None if they are not known, or are of no form that is known here."""
        names = self.tensors
        if any(_MEDUSA.match(name) for name in names):
            return Family.MEDUSA
        if any("markov" in name for name in names):
            return Family.DSPARK
        if any(layer.startswith("hidden_norm.") for _, layer in self.layer_tensors) or self.has_midlayer:
            return Family.EAGLE3
        if has_mtp_weights(names):
            return Family.MTP
        if self.attention_input is not None and self.attention_input == 2 * (self.hidden_size or 0):
            return Family.EAGLE3
        if self.has_fusion:
            return Family.DFLASH if "hidden_norm.weight" in names else Family.EAGLE
        has_body = any(name.startswith("embed_tokens.") for name in names) and bool(self.layer_tensors)
        return Family.DRAFT_MODEL if has_body else None

    @cached_property
    def family(self) -> Family | None:
        """Weights first: they are what runs. For the target's own kind of config, whether it has MTP layers decides."""
        if self.named_family in (Family.MTP, Family.DFLASH, Family.DSPARK, Family.MLP_SPECULATOR):
            return self.named_family
        if self.seen_family is Family.DRAFT_MODEL and self.asked == Family.MTP and mtp_layers(self.raw):
            return Family.MTP
        return self.seen_family or self.named_family or self._bare_family

    @property
    def _bare_family(self) -> Family | None:
        """An ordinary architecture and no weights to look at: a model of more than one layer is a whole model."""
        if not self.architectures or whole(self.config, "num_hidden_layers") == 1:
            return None
        if self.asked == Family.MTP and mtp_layers(self.raw):
            return Family.MTP
        return Family.DRAFT_MODEL

    # --- weights ---------------------------------------------------------------------------------

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """By name, without the prefix that some trainers save."""
        return {name.removeprefix("model."): tensor for name, tensor in self.checkpoint.tensors.items()}

    @cached_property
    def has_weights(self) -> bool:
        return bool(self.tensors)

    @cached_property
    def layer_tensors(self) -> list[tuple[str, str]]:
        """(layer, name inside it) of every tensor of a decoder layer."""
        found = []
        for name in self.tensors:
            if match := _LAYER.match(name):
                found.append((match[1] or "midlayer", match[3]))
        return found

    @property
    def has_midlayer(self) -> bool:
        return any(layer == "midlayer" for layer, _ in self.layer_tensors)

    @property
    def has_fusion(self) -> bool:
        return any(name.startswith("fc.") for name in self.tensors)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a plain matrix or vector; None if it is not there, or is packed by a quantisation."""
        tensor = self.tensors.get(name)
        return tensor.shape if tensor is not None and tensor.dtype.startswith(("F", "BF")) else None

    def in_first_layer(self, name: str) -> tuple[int, ...] | None:
        """The shape of one tensor of the first decoder layer."""
        layers = sorted(
            {layer for layer, _ in self.layer_tensors}, key=lambda layer: int(layer) if layer.isdigit() else -1
        )
        if not layers:
            return None
        prefix = "midlayer" if layers[0] == "midlayer" else f"layers.{layers[0]}"
        return self.shape(f"{prefix}.{name}")

    @cached_property
    def attention_input(self) -> int | None:
        """How wide the first layer's attention reads: twice the hidden size in EAGLE-3 (embedding and hidden state)."""
        names = ("q_proj", "qkv_proj", "q_a_proj", "kv_a_proj_with_mqa")
        for name in names:
            shape = self.in_first_layer(f"self_attn.{name}.weight")
            if shape is not None and len(shape) == 2:
                return shape[1]
        return None

    @property
    def fusion_width(self) -> int | None:
        shape = self.shape("fc.weight")
        return shape[1] if shape is not None and len(shape) == 2 else None

    # --- numbers of the config -------------------------------------------------------------------

    @property
    def hidden_size(self) -> int | None:
        return whole(self.config, "hidden_size")

    @property
    def target_hidden_size(self) -> int | None:
        """How wide the target's states are that it was made for."""
        return whole(self.config, "target_hidden_size") or self.hidden_size

    @property
    def vocab_size(self) -> int | None:
        return whole(self.config, "vocab_size")

    @property
    def draft_vocab_size(self) -> int | None:
        """Of the head's own output; the whole vocabulary where the config names no smaller one."""
        return whole(self.config, "draft_vocab_size") or self.vocab_size

    @property
    def positions(self) -> int | None:
        """How long a sequence it was trained for, rope scaling counted in where the config gives both numbers."""
        own = whole(self.config, "max_position_embeddings")
        scaling = self.config.get("rope_scaling") or self.config.get("rope_parameters")
        if own is None or not isinstance(scaling, dict):
            return own
        original, factor = whole(scaling, "original_max_position_embeddings"), scaling.get("factor")
        is_scaled = original is not None and isinstance(factor, int | float)
        return max(own, int(original * factor)) if is_scaled else own  # type: ignore[operator]

    # --- auxiliary layers ------------------------------------------------------------------------

    @cached_property
    def eagle_config(self) -> Mapping[str, Any]:
        value = self.config.get("eagle_config")
        return value if isinstance(value, dict) else {}

    @property
    def uses_states(self) -> bool:
        """Whether the target's inner states are asked for. vLLM looks into `eagle_config` only; absent is yes."""
        return bool(self.eagle_config.get("use_aux_hidden_state", True))

    @cached_property
    def written_ids(self) -> Mapping[str, object]:
        """Layer ids as the config writes them, by key, the key that wins first. Empty lists count as absent."""
        found = {IDS: self.config.get(IDS), f"eagle_config.{IDS}": self.eagle_config.get(IDS)}
        if self.family is Family.DFLASH:
            nested = self.config.get("dflash_config")
            found = {
                IDS: self.config.get(IDS) or self.config.get("aux_hidden_state_layer_ids"),
                _LEAVING: nested.get("target_layer_ids") if isinstance(nested, dict) else None,
            }
        return {key: value for key, value in found.items() if value not in (None, [], ())}

    @cached_property
    def layer_ids(self) -> tuple[int, ...] | None:
        """Ids as vLLM counts them: by what enters a layer. None: not given, or malformed."""
        for key, value in self.written_ids.items():
            if not is_id_list(value):
                return None
            assert isinstance(value, list | tuple)
            return tuple(number + self._offset(key) for number in value)
        return None

    def _offset(self, key: str) -> int:
        """DFlash's own key counts by what leaves a layer, whatever the spec says of EAGLE-3's keys."""
        if self.family is Family.DFLASH:
            return 1 if key == _LEAVING else 0
        return 1 if self.speculation.layer_convention == "output" else 0

    @property
    def states_without_ids(self) -> int:
        """How many states the engine hands over where no ids are given."""
        if self.family is Family.DFLASH:
            return whole(self.config, "num_hidden_layers") or DEFAULT_STATES
        return whole(self.config, "num_aux_hidden_states") or DEFAULT_STATES


def is_id_list(value: object) -> bool:
    """A list of whole numbers and nothing else."""
    return isinstance(value, list | tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in value)


def default_ids(layers: int) -> tuple[int, ...]:
    """What vLLM takes where the config names none."""
    return (2, layers // 2, layers - 3)


def specforge_ids(layers: int) -> tuple[int, ...]:
    """SpecForge's default: the same layers, counted by what leaves them."""
    return (1, layers // 2 - 1, layers - 4)
