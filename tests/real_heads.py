"""EAGLE-3 heads for SmolLM2 that cost nothing: random weights of the right shapes. Nothing is accepted."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.heads import Values, long_table, mask, write_safetensors

DRAFT_VOCABULARY = 2048
# Random bytes as small BF16 numbers: the sign and the low bits are random, the exponent is that of about 0.02.
_HIGH = (0x3C, 0xBC)


def build_random_head(model: Path, folder: Path, **config: Any) -> Path:
    """A random EAGLE-3 head for the Llama model in `model`; preflight has nothing against it."""
    target = json.loads((model / "config.json").read_text(encoding="utf-8"))
    hidden, inner = target["hidden_size"], target["intermediate_size"]
    layers, size = target["num_hidden_layers"], target.get("head_dim") or hidden // target["num_attention_heads"]
    queries, keys = target["num_attention_heads"] * size, target["num_key_value_heads"] * size
    draw = random.Random(1)
    reached = sorted(draw.sample(range(target["vocab_size"]), DRAFT_VOCABULARY))
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "lm_head.weight": (DRAFT_VOCABULARY, hidden),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "norm.weight": (hidden,),
    }
    tensors = {name: random_values(shape, draw) for name, shape in shapes.items()}
    tensors["d2t"] = long_table([token - number for number, token in enumerate(reached)])
    tensors["t2d"] = mask(set(reached), target["vocab_size"])
    folder.mkdir(parents=True)
    ids = [2, layers // 2, layers - 3]
    written = {
        **target,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "eagle_aux_hidden_state_layer_ids": ids,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True},
        **config,
    }
    (folder / "config.json").write_text(json.dumps(written), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def random_values(shape: tuple[int, ...], draw: random.Random) -> Values:
    count = 1
    for length in shape:
        count *= length
    data = bytearray(draw.randbytes(2 * count))
    signs = draw.randbytes(count)
    data[1::2] = bytes(_HIGH[sign & 1] for sign in signs)
    return Values("BF16", shape, bytes(data))
