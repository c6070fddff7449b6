"""EAGLE-3 heads of true size without weights: real headers, real tables, and files that are sparse.

Gigabytes by their sizes, some hundred kilobytes on disk. Every tensor begins with a few small numbers, since one that
is all zeros is a fault.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tests.heads import SIZES, SMALL, Values, long_table, mask, weight

FUSED_LAYERS = 3


def head_tensors(config: dict[str, Any], fused_layers: int = FUSED_LAYERS) -> dict[str, Values]:
    """What belongs to this config: one Llama layer over the fused states, two widths of them going in."""
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    own, every = config["draft_vocab_size"], config["vocab_size"] // config["draft_vocab_size"]
    return {
        "d2t": long_table([(every - 1) * number for number in range(own)]),
        "t2d": mask({every * number for number in range(own)}, config["vocab_size"]),
        "fc.weight": weight(hidden, fused_layers * hidden),
        "midlayer.self_attn.q_proj.weight": weight(queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": weight(keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": weight(keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": weight(hidden, queries),
        "midlayer.mlp.gate_proj.weight": weight(inner, hidden),
        "midlayer.mlp.up_proj.weight": weight(inner, hidden),
        "midlayer.mlp.down_proj.weight": weight(hidden, inner),
        "midlayer.hidden_norm.weight": weight(hidden),
        "midlayer.input_layernorm.weight": weight(hidden),
        "midlayer.post_attention_layernorm.weight": weight(hidden),
        "norm.weight": weight(hidden),
        "lm_head.weight": weight(own, hidden),
    }


def write_sparse_head(folder: Path, config: dict[str, Any], tensors: dict[str, Values] | None = None) -> Path:
    """`tensors` None: those that belong to the config. `folder` is made."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _write_sparse(folder / "model.safetensors", head_tensors(config) if tensors is None else tensors)
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
