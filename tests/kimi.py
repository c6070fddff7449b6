"""Kimi-K2.5 and an EAGLE-3 head for it without weights: configs and headers of the true shapes, a byte-level tokenizer.

Files are sparse: 2 GB by their sizes, some hundred kilobytes on disk. Every tensor begins with a few small numbers,
since one that is all zeros is a fault.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tests.heads import SIZES, SMALL, Values, long_table, mask, weight
from tests.kimi_chat import BOS_ID, EOS_ID, write_json, write_kimi_chat

HIDDEN, LAYERS, VOCABULARY, DRAFT_VOCABULARY = 7168, 61, 163_840, 32_000
INNER, HEADS, HEAD_SIZE = 18_432, 64, 128
AUXILIARY_LAYERS = [2, 30, 58]
TEXT_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 262_144,
    "vocab_size": VOCABULARY,
    "num_nextn_predict_layers": 0,
}
CONFIG: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": TEXT_CONFIG,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}
HEAD_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD_SIZE,
    "max_position_embeddings": 262_144,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": DRAFT_VOCABULARY,
    "eagle_aux_hidden_state_layer_ids": AUXILIARY_LAYERS,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": AUXILIARY_LAYERS, "use_aux_hidden_state": True},
}


def build_kimi_target(folder: Path) -> Path:
    """Kimi-K2.5's config, its control tokens and a template in its manner; ids are those of tests/kimi_chat.py."""
    write_kimi_chat(folder)
    write_json(folder / "config.json", CONFIG)
    return folder


def head_tensors() -> dict[str, Values]:
    """A Llama layer over the fused states, two widths of them going in."""
    inner = HEADS * HEAD_SIZE
    return {
        "d2t": long_table([4 * number for number in range(DRAFT_VOCABULARY)]),
        "t2d": mask({5 * number for number in range(DRAFT_VOCABULARY)}, VOCABULARY),
        "fc.weight": weight(HIDDEN, len(AUXILIARY_LAYERS) * HIDDEN),
        **{f"midlayer.self_attn.{name}_proj.weight": weight(inner, 2 * HIDDEN) for name in "qkv"},
        "midlayer.self_attn.o_proj.weight": weight(HIDDEN, inner),
        "midlayer.mlp.gate_proj.weight": weight(INNER, HIDDEN),
        "midlayer.mlp.up_proj.weight": weight(INNER, HIDDEN),
        "midlayer.mlp.down_proj.weight": weight(HIDDEN, INNER),
        "midlayer.hidden_norm.weight": weight(HIDDEN),
        "midlayer.input_layernorm.weight": weight(HIDDEN),
        "midlayer.post_attention_layernorm.weight": weight(HIDDEN),
        "norm.weight": weight(HIDDEN),
        "lm_head.weight": weight(DRAFT_VOCABULARY, HIDDEN),
    }


def write_kimi_head(folder: Path, tensors: dict[str, Values] | None = None, **config: Any) -> Path:
    """`config` over the head's own; a key that is None is left out."""
    folder.mkdir(parents=True)
    said = {key: value for key, value in {**HEAD_CONFIG, **config}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(said), encoding="utf-8")
    _write_sparse(folder / "model.safetensors", head_tensors() if tensors is None else tensors)
    return folder


def _write_sparse(path: Path, tensors: dict[str, Values]) -> None:
    entries, end = dict[str, Any](), 0
    for name, values in tensors.items():
        start, end = end, end + math.prod(values.shape) * SIZES[values.dtype]
        entries[name] = {"dtype": values.dtype, "shape": list(values.shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name, values in tensors.items():
            file.seek(8 + len(header) + entries[name]["data_offsets"][0])
            file.write(SMALL[values.dtype] * 4 if values.data is None else values.data)
        file.truncate(8 + len(header) + end)
