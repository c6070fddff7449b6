"""Which adapter reads which rows: by name, or by the keys that are there. Pure.

A new shape: a reader in a file of its family, its name in `spec.Shape`, a line in `_READERS`, one in `_shape_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from regen.data.adapters.chat import read_messages, read_sharegpt
from regen.data.adapters.functions import read_bfcl
from regen.data.adapters.given import Given, Reading
from regen.data.adapters.prompts import read_alpaca, read_preference, read_prompt, read_question, read_turns
from regen.data.adapters.requests import read_batch
from regen.data.adapters.tokens import read_tokens
from regen.data.reasons import Reason, refuse
from regen.spec import Shape

_READERS: Mapping[Shape, Callable[[Mapping[str, object], Reading], Given]] = {
    "messages": read_messages,
    "sharegpt": read_sharegpt,
    "prompt": read_prompt,
    "question": read_question,
    "turns": read_turns,
    "alpaca": read_alpaca,
    "preference": read_preference,
    "batch": read_batch,
    "bfcl": read_bfcl,
    "tokens": read_tokens,
}
_CONVERSATION_KEYS = ("messages", "conversations", "conversation", "turns")
_PROMPT_KEYS = ("prompt", "question", "instruction")
_SHAPE_OF_KEY: Mapping[str, Shape] = {
    "messages": "messages",
    "conversations": "sharegpt",
    "conversation": "sharegpt",
    "turns": "turns",
    "prompt": "prompt",
    "question": "prompt",
    "instruction": "alpaca",
    "query": "prompt",
    "input_ids": "tokens",
}


def read(value: Mapping[str, object], shape: Shape, reading: Reading) -> Given:
    """The row as its adapter reads it. Raises RowRefused."""
    return _READERS[_shape_of(value, reading) if shape == "auto" else shape](value, reading)


def _shape_of(value: Mapping[str, object], reading: Reading) -> Shape:
    """A conversation wins over a bare prompt; two of a kind are ambiguous. Tokens win only where rows pass through."""
    if reading.keeps_answers and value.get("input_ids") is not None:
        return "tokens"
    if isinstance(value.get("body"), Mapping) and ("custom_id" in value or "url" in value):
        return "batch"
    if isinstance(value.get("question"), list) and not _found(value, _CONVERSATION_KEYS):
        return "bfcl"
    if value.get("chosen") is not None and value.get("rejected") is not None and not _found(value, _CONVERSATION_KEYS):
        return "preference"
    for keys in (_CONVERSATION_KEYS, _PROMPT_KEYS, ("query",), ("input_ids",)):
        found = _found(value, keys)
        if len(found) == 1:
            return _SHAPE_OF_KEY[found[0]]
        if found:
            refuse(Reason.UNKNOWN_SHAPE, f"{' and '.join(found)} are both there: set the source's format")
    keys_seen = ", ".join(sorted(map(str, value))) or "none"
    refuse(Reason.UNKNOWN_SHAPE, f"no messages, conversations, prompt or turns; keys: {keys_seen}")


def _found(value: Mapping[str, object], keys: tuple[str, ...]) -> list[str]:
    return [key for key in keys if value.get(key) is not None]
