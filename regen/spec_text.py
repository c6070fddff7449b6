"""The commented spec of `regen init`, made from the explanations that stand beside the fields. Pure."""

from __future__ import annotations

import json
import types
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from regen.spec import (
    CheckpointSpec,
    EndpointSpec,
    LimitsSpec,
    MetricsSpec,
    PoliciesSpec,
    PriceSpec,
    RowsSpec,
    SamplingSpec,
    SourceSpec,
    SpeculationSpec,
    StoreSpec,
    TargetSpec,
    VllmEngineSpec,
)

_HEAD = """\
# One run of regen. Every key is here; keys that are commented out show their default.
# Check it with `regen plan FILE`, start or continue it with `regen run FILE`.
name: my-run
output: runs/my-run                         # the run folder, also s3://bucket/prefix
"""
_TAIL = "sources:                                    # any number of datasets\n"
_SECTIONS: tuple[tuple[str, type[BaseModel], dict[str, object]], ...] = (
    ("target", TargetSpec, {"model": "HuggingFaceTB/SmolLM2-135M-Instruct"}),
    ("engine", VllmEngineSpec, {"kind": "vllm", "replicas": 1, "slots": 64, "max_model_len": 4096}),
    ("speculation", SpeculationSpec, {"method": "ngram", "num_tokens": 4}),
    ("sampling", SamplingSpec, {"max_tokens": 1024}),
)
_LATER: tuple[tuple[str, type[BaseModel]], ...] = (
    ("rows", RowsSpec),
    ("policies", PoliciesSpec),
    ("checkpoint", CheckpointSpec),
    ("limits", LimitsSpec),
    ("metrics", MetricsSpec),
    ("price", PriceSpec),
    ("store", StoreSpec),
)
_COLUMN = 44


def commented_spec() -> str:
    """A whole spec as YAML text; it parses as it is."""
    parts = [_HEAD]
    parts += [_section(name, model, given) for name, model, given in _SECTIONS]
    parts.append(_TAIL + _source({"name": "first", "path": "data/*.jsonl"}))
    parts += [_section(name, model, {}) for name, model in _LATER]
    return "\n".join(parts)


def _section(name: str, model: type[BaseModel], given: dict[str, object]) -> str:
    summary = (model.__doc__ or "").strip().splitlines()[0]
    head = _with_comment(f"{name}:" if given else f"# {name}:", summary)
    return "\n".join([head, *(_field(key, info, given, "  ") for key, info in model.model_fields.items())]) + "\n"


def _source(given: dict[str, object]) -> str:
    lines = [_field(key, info, given, "    ") for key, info in SourceSpec.model_fields.items()]
    return "\n".join(["  - " + lines[0].lstrip(), *lines[1:]]) + "\n"


def _field(name: str, info: FieldInfo, given: dict[str, object], indent: str) -> str:
    if isinstance(info.default, BaseModel):
        return _subsection(name, info, info.default, indent)
    if get_args(info.annotation)[:1] == (EndpointSpec,):
        return _first_item(name, info, EndpointSpec, {"url": "http://HOST:PORT"}, indent)
    comment = _comment(info)
    if name in given:
        return _with_comment(f"{indent}{name}: {_text(given[name])}", comment)
    return _with_comment(f"{indent}# {name}: {_text(_default(info))}", comment)


def _subsection(name: str, info: FieldInfo, default: BaseModel, indent: str) -> str:
    fields = [_field(key, inner, {}, indent + "  ") for key, inner in type(default).model_fields.items()]
    return "\n".join([_with_comment(f"{indent}# {name}:", info.description or ""), *fields])


def _first_item(name: str, info: FieldInfo, model: type[BaseModel], given: dict[str, object], indent: str) -> str:
    """A list, commented out, with one item that shows its keys."""
    lines = [
        _with_comment(
            f"{indent}#   {'- ' if key in given else '  '}{key}: {_text(given.get(key, _default(inner)))}",
            _comment(inner),
        )
        for key, inner in model.model_fields.items()
    ]
    return "\n".join([_with_comment(f"{indent}# {name}:", info.description or ""), *lines])


def _comment(info: FieldInfo) -> str:
    text = info.description or ""
    choices = _choices(info.annotation)
    return f"{' | '.join(choices)}. {text}" if len(choices) > 1 else text


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [choice for part in get_args(annotation) for choice in _choices(part)]
    arguments = get_args(annotation)
    return [str(choice) for choice in arguments] if arguments and all(isinstance(a, str) for a in arguments) else []


def _default(info: FieldInfo) -> object:
    if info.default_factory is not None:
        return info.default_factory()  # type: ignore[call-arg]
    return None if info.default is PydanticUndefined else info.default


def _text(value: object) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    return value if isinstance(value, str) else json.dumps(value)


def _with_comment(text: str, comment: str) -> str:
    return f"{text:<{_COLUMN - 1}} # {comment}" if comment else text
