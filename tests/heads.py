"""Tiny checkpoints on disk, whole and broken: configs, and safetensors written by hand.

The target has 12 layers, width 32, 128 tokens; the EAGLE-3 head fuses three states and drafts 64 tokens: kilobytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regen.checkpoints import EngineFacts
from regen.data.checkpoint import read_checkpoint
from regen.data.model_files import model_files
from regen.engines.vllm_facts import LAYER_ID_KEYS, REFUSED_SAMPLING
from regen.spec import SamplingSpec, SpeculationSpec
from regen.speculative.evidence import Evidence, Finding, Prompts
from regen.speculative.preflight import preflight

HIDDEN, LAYERS, VOCABULARY, DRAFT_VOCABULARY, INNER = 32, 12, 128, 64, 48
HEADS, GROUPS, HEAD_SIZE = 4, 2, 8
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "BOOL": 1, "U8": 1}
SMALL = {"BF16": b"\x80\x3c", "F16": b"\x00\x24", "F32": b"\x00\x00\x80\x3c", "U8": b"\x01"}
TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "max_position_embeddings": 4096,
    "vocab_size": VOCABULARY,
}
ENGINE = EngineFacts(
    engine="vllm",
    version="0.32.0",
    target_feeds_eagle3=True,
    draft_architectures=frozenset(
        {
            "LlamaForCausalLM",
            "EagleLlamaForCausalLM",
            "LlamaForCausalLMEagle3",
            "Eagle3LlamaForCausalLM",
            "Eagle3DeepseekV2ForCausalLM",
        }
    ),
    layer_id_keys=LAYER_ID_KEYS,
    refused_sampling=REFUSED_SAMPLING,
)


@dataclass
class Values:
    """One tensor's content; None: small numbers."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None = None

    def bytes(self) -> bytes:
        return SMALL[self.dtype] * math.prod(self.shape) if self.data is None else self.data


def weight(*shape: int) -> Values:
    return Values("BF16", shape)


def long_table(numbers: list[int]) -> Values:
    return Values("I64", (len(numbers),), struct.pack(f"<{len(numbers)}q", *numbers))


def mask(marked: set[int], size: int = VOCABULARY) -> Values:
    return Values("BOOL", (size,), bytes(number in marked for number in range(size)))


def write_safetensors(path: Path, tensors: Mapping[str, Values]) -> None:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        content = values.bytes()
        entries[name] = {
            "dtype": values.dtype,
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


@dataclass
class Head:
    """A draft before it is written. `files` are written as they are, None removes one."""

    config: dict[str, Any]
    tensors: dict[str, Values]
    files: dict[str, bytes | None] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        if self.tensors:
            write_safetensors(folder / "model.safetensors", self.tensors)
        for name, content in self.files.items():
            if content is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(content)
        return folder


def layer(prefix: str, attention_input: int = HIDDEN) -> dict[str, Values]:
    """A Llama layer: attention and MLP, and the norm between them."""
    return {
        f"{prefix}.self_attn.q_proj.weight": weight(HEADS * HEAD_SIZE, attention_input),
        f"{prefix}.self_attn.k_proj.weight": weight(GROUPS * HEAD_SIZE, attention_input),
        f"{prefix}.self_attn.v_proj.weight": weight(GROUPS * HEAD_SIZE, attention_input),
        f"{prefix}.self_attn.o_proj.weight": weight(HIDDEN, HEADS * HEAD_SIZE),
        f"{prefix}.mlp.gate_proj.weight": weight(INNER, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": weight(INNER, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": weight(HIDDEN, INNER),
        f"{prefix}.post_attention_layernorm.weight": weight(HIDDEN),
    }


def eagle3() -> Head:
    """A whole EAGLE-3 head, in the form of the EAGLE authors' own."""
    reached = [2 * number for number in range(DRAFT_VOCABULARY)]
    config = {
        **TARGET,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "eagle_aux_hidden_state_layer_ids": [2, 6, 9],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9], "use_aux_hidden_state": True},
    }
    tensors = {
        "d2t": long_table([target - number for number, target in enumerate(reached)]),
        "t2d": mask(set(reached)),
        "fc.weight": weight(HIDDEN, 3 * HIDDEN),
        **layer("midlayer", 2 * HIDDEN),
        "midlayer.hidden_norm.weight": weight(HIDDEN),
        "midlayer.input_layernorm.weight": weight(HIDDEN),
        "norm.weight": weight(HIDDEN),
        "lm_head.weight": weight(DRAFT_VOCABULARY, HIDDEN),
    }
    return Head(config, tensors)


def eagle() -> Head:
    """A whole EAGLE head, in the form of the EAGLE authors' own: the architecture's name says nothing."""
    tensors = {
        "fc.weight": weight(HIDDEN, 2 * HIDDEN),
        "embed_tokens.weight": weight(VOCABULARY, HIDDEN),
        **layer("layers.0"),
    }
    return Head({**TARGET, "num_hidden_layers": 1}, tensors)


def whole_model(layers: int = 2) -> Head:
    """A small model of the target's family."""
    tensors = {
        "model.embed_tokens.weight": weight(VOCABULARY, HIDDEN),
        "model.norm.weight": weight(HIDDEN),
        "lm_head.weight": weight(VOCABULARY, HIDDEN),
    }
    for number in range(layers):
        tensors |= layer(f"model.layers.{number}")
        tensors[f"model.layers.{number}.input_layernorm.weight"] = weight(HIDDEN)
    return Head({**TARGET, "num_hidden_layers": layers}, tensors)


def judge(
    target: Path, draft: Path | None, speculation: Mapping[str, Any], sampling: Mapping[str, Any], **options: Any
) -> list[Finding]:
    """Preflight over real files, with the facts of a known engine."""
    given = {"method": "eagle3", "num_tokens": 3, **speculation}
    if draft is not None:
        given["draft"] = str(draft)
    return preflight(
        Evidence(
            speculation=SpeculationSpec.model_validate(given),
            sampling=SamplingSpec.model_validate({"max_tokens": 8, **sampling}),
            target=read_checkpoint(str(target), model_files(str(target)), with_samples=False, with_vocabulary=True),
            draft=None if draft is None else read_checkpoint(str(draft), model_files(str(draft)), with_vocabulary=True),
            engine=options.pop("engine", ENGINE),
            max_model_len=options.pop("max_model_len", 2048),
            prompts=Prompts(*options.pop("prompts")) if "prompts" in options else None,
            **options,
        )
    )
