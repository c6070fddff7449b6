"""How conversations look to Kimi-K2.5: its control tokens over a byte-level vocabulary, and a template in its manner.

The names of the tokens are those that vLLM's `kimi_k2` parsers look for, and those of Kimi's published template.
Which of them are special is from what is known of its tokenizer; the file was not seen. The template here is written
for the tests. Ids 0..255 are bytes, so ASCII text is its own ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.toy_target import byte_characters

CALLS_BEGIN, CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS_BEGIN = "<|tool_call_argument_begin|>"
THINK, END_THINK = "<think>", "</think>"
TURN_END = "<|im_end|>"
SPECIAL = (
    "[BOS]",
    "[EOS]",
    TURN_END,
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_end|>",
    "<|media_pad|>",
    "[UNK]",
    "[PAD]",
)
# Tokens of Kimi's vocabulary too, but not special ones: who decodes an answer finds them in its text.
ADDED = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, ARGUMENTS_BEGIN, CALL_END, THINK, END_THINK)
IDS = {token: 256 + number for number, token in enumerate((*SPECIAL, *ADDED))}
VOCABULARY = 256 + len(IDS)
END_ID, EOS_ID, BOS_ID, PAD_ID, MEDIA_ID = (IDS[t] for t in (TURN_END, "[EOS]", "[BOS]", "[PAD]", "<|media_pad|>"))
TEMPLATE = """\
{%- macro opened(kind, name) -%}{{ '<|im_' + kind + '|>' + name + '<|im_middle|>' }}{%- endmacro -%}
{%- if tools -%}
{{ opened('system', 'tool_declare') }}{{ tools | tojson(separators=(',', ':')) }}<|im_end|>
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{ opened('assistant', 'assistant') }}<think>{{ message.reasoning_content or '' }}</think>{{ message.content or '' }}
{%- if message.tool_calls -%}
<|tool_calls_section_begin|>
{%- for call in message.tool_calls -%}
<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>
{%- if call.function.arguments is string -%}
{{ call.function.arguments }}
{%- else -%}
{{ call.function.arguments | tojson }}
{%- endif -%}
<|tool_call_end|>
{%- endfor -%}
<|tool_calls_section_end|>
{%- endif -%}
{%- elif message.role == 'tool' -%}
{{ opened('system', message.name or 'tool') }}{{ '## Return of ' + message.tool_call_id + '\\n' + message.content }}
{%- else -%}
{{ opened('user' if message.role == 'user' else 'system', message.role) }}{{ message.content }}
{%- endif -%}
<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ opened('assistant', 'assistant') }}{% if thinking is false %}<think></think>{% else %}<think>{% endif %}
{%- endif -%}
"""


def write_kimi_chat(folder: Path) -> Path:
    """Tokenizer, template and the defaults of sampling; `folder` is made."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder / "tokenizer.json")
    write_json(
        folder / "tokenizer_config.json",
        {
            "bos_token": "[BOS]",
            "eos_token": "[EOS]",
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "additional_special_tokens": [token for token in SPECIAL if token.startswith("<|")],
            "clean_up_tokenization_spaces": False,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    write_json(folder / "generation_config.json", {"eos_token_id": END_ID, "max_length": 262_144})
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def ids_of(text: str) -> list[int]:
    """What Kimi's engine would sample for this text, control tokens in it as tokens."""
    ids, rest = list[int](), text
    while rest:
        token = next((token for token in IDS if rest.startswith(token)), None)
        ids += list(rest[0].encode()) if token is None else [IDS[token]]
        rest = rest[1 if token is None else len(token) :]
    return ids


def call_text(name: str, number: int, arguments: Any) -> str:
    """One call, as Kimi writes it."""
    return f"{CALL_BEGIN}functions.{name}:{number}{ARGUMENTS_BEGIN}{json.dumps(arguments)}{CALL_END}"


def calls_text(*calls: str) -> str:
    return CALLS_BEGIN + "".join(calls) + CALLS_END


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _write_tokenizer(path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {char: byte for byte, char in byte_characters().items()} | IDS
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    tokenizer.save(str(path))
