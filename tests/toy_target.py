"""A loadable target without weights: byte-level tokenizer, strict ChatML template, configs.

Ids are byte values, except that ids 0, 1 and 2 are the special tokens and the bytes 0, 1 and 2 have the ids 256, 257
and 258. So the ids 97..122 decode to a..z, and id 1 (`END_ID`) ends a turn: what the fake engine answers with.
Costs a few milliseconds to build and nothing to download.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

ENDOFTEXT, END, START = "<|endoftext|>", "<|im_end|>", "<|im_start|>"
ENDOFTEXT_ID, END_ID, START_ID = 0, 1, 2
VOCAB_SIZE = 259
CONTEXT_TOKENS = 8192

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['content'] is not string -%}
{{ raise_exception('content must be a string') }}
{%- endif -%}
{%- if message['role'] == 'system' and not loop.first -%}
{{ raise_exception('a system message must be the first one') }}
{%- endif -%}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\n' }}
{%- endif -%}
"""

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": START_ID,
    "eos_token_id": END_ID,
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": CONTEXT_TOKENS,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": VOCAB_SIZE,
}
GENERATION_CONFIG = {"eos_token_id": END_ID, "temperature": 0.7, "top_p": 0.9}
TOKENIZER_CONFIG = {
    "bos_token": START,
    "eos_token": END,
    "pad_token": ENDOFTEXT,
    "unk_token": ENDOFTEXT,
    "clean_up_tokenization_spaces": False,
    "model_max_length": CONTEXT_TOKENS,
    "tokenizer_class": "PreTrainedTokenizerFast",
}


def build_toy_target(folder: Path) -> Path:
    """Write the toy target into `folder` (made if absent) and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder / "tokenizer.json")
    _write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    _write_json(folder / "config.json", CONFIG)
    _write_json(folder / "generation_config.json", GENERATION_CONFIG)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return folder


def _write_tokenizer(path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {ENDOFTEXT: ENDOFTEXT_ID, END: END_ID, START: START_ID}
    vocabulary.update({char: byte if byte > 2 else 256 + byte for byte, char in byte_characters().items()})
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (ENDOFTEXT, END, START)])
    tokenizer.save(str(path))


def byte_characters() -> dict[int, str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
