"""A checkpoint as its files tell it, without its weights: values that reading makes and preflight judges. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FileFault(StrEnum):
    """What can be wrong with a file before anybody looks at what it says."""

    ABSENT = "absent"
    EMPTY = "empty"
    POINTER = "pointer"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class FileProblem:
    """One file that is not what it should be. `detail` is half a sentence that follows the file's name."""

    file: str
    fault: FileFault
    detail: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor by its header. `dtype` in the words of safetensors: BF16, I64, BOOL."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer's tokens and their ids, `added` ones (special tokens and such) apart from the model's own."""

    tokens: Mapping[str, int]
    added: Mapping[str, int]

    @property
    def size(self) -> int:
        """Tokens, added ones included."""
        return len(self.tokens.keys() | self.added.keys())


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One model folder.

    `config` is None where there is none to read. `tensors` is by name, from headers. `tensor_names` may know more: an
    index lists the names of files that were not opened. `integers` holds the whole content of small integer tensors
    (d2t, t2d). `not_finite` and `all_zero` name tensors whose samples hold NaN or infinity, or nothing but zeros.
    `has_unread_weights`: weights in a form that is not read here, so that an empty `tensors` says nothing.
    """

    name: str
    config: Mapping[str, Any] | None
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    tensor_names: frozenset[str] = frozenset()
    integers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    not_finite: tuple[str, ...] = ()
    all_zero: tuple[str, ...] = ()
    problems: tuple[FileProblem, ...] = ()
    has_unread_weights: bool = False
    vocabulary: Vocabulary | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine that will run does with a draft. Empty or None: not known, for example not installed here.

    `layer_id_keys`: per runner, the config keys that it takes auxiliary layer ids from, the first that is set winning.
    """

    engine: str
    version: str | None = None
    target_feeds_eagle3: bool | None = None
    draft_architectures: frozenset[str] = frozenset()
    layer_id_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refused_sampling: tuple[str, ...] = ()
    speculation_args: frozenset[str] = frozenset()
