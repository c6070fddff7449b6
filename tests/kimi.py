"""Kimi-K2.5 and an EAGLE-3 head for it without weights: configs and headers of the true shapes, a byte-level tokenizer.

From what is public: the target's sizes by vLLM's and transformers' classes and by what was published with it, the
head's by the configs that public trainers of such heads have for it, its layers by the run that this project was made
for. The weights themselves were not seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kimi_chat import BOS_ID, EOS_ID, write_json, write_kimi_chat

HIDDEN, LAYERS, VOCABULARY, DRAFT_VOCABULARY = 7168, 61, 163_840, 32_000
HEADS, HEAD_SIZE = 64, 128
AUXILIARY_LAYERS = [2, 30, 58]
TEXT_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": HIDDEN,
    "intermediate_size": 18_432,
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
    "intermediate_size": 12_288,
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
