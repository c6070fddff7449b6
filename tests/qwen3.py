"""Qwen3-8B and an EAGLE-3 head for it without weights: configs and headers of the true shapes over a toy tokenizer.

From what is public: the target's sizes as published with it, the head's as the config that public trainers of such
heads have for it. That config names no layers, and then vLLM's default is meant: what enters 2, 18 and 33. The weights
themselves were not seen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.toy_target import END_ID, build_toy_target

HIDDEN, LAYERS, VOCABULARY = 4096, 36, 151_936
AUXILIARY_LAYERS = [2, 18, 33]
_SHAPE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 12_288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "vocab_size": VOCABULARY,
    "eos_token_id": END_ID,
}
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": LAYERS,
    **_SHAPE,
}
HEAD_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "draft_vocab_size": 32_000,
    **_SHAPE,
}
TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif -%}
"""


def build_qwen3_target(folder: Path) -> Path:
    """Qwen3-8B's config and a template with its switch; ids are the toy target's. `folder` is made."""
    build_toy_target(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder
