"""What servers tell of themselves that decides what they are sent, and how their answers are read."""

from __future__ import annotations

from typing import Any

import pytest

from regen.engines.served import _answers_as, _Card
from regen.engines.served_sglang import longest_tokens
from regen.served import ServerKind

EAGLE = {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 16}


@pytest.mark.parametrize(
    ("context", "info", "speculates", "longest"),
    [
        (4096, {}, False, 4094),
        (4096, {"max_req_input_len": 4090}, False, 4094),
        (4096, {"max_req_input_len": 1000}, False, 1004),
        (None, {"max_req_input_len": 1000}, False, 1004),
        (None, {}, True, None),
        (4096, EAGLE, False, 4094),
        (4096, EAGLE, True, 4094 - 16),
        (4096, {**EAGLE, "speculative_num_draft_tokens": 4}, True, 4094 - 12),
        (4096, {"speculative_num_steps": 3, "speculative_eagle_topk": None}, True, 4094 - 3),
        (4096, {}, True, 4094),
    ],
)
def test_prompt_and_cap_that_an_sglang_server_takes(
    context: int | None, info: dict[str, Any], speculates: bool, longest: int | None
) -> None:
    assert longest_tokens(context, info, speculates) == longest


def card(name: str, path: str | None = "/models/target", is_adapter: bool = False) -> _Card:
    return _Card(name, "vllm", path, 4096, is_adapter)


FIRST, SECOND, ADAPTER, OTHER = card("a"), card("b"), card("c", is_adapter=True), card("d", "/models/other")


@pytest.mark.parametrize(
    ("kind", "asked", "name"),
    [
        (ServerKind.VLLM, FIRST, "a"),
        (ServerKind.VLLM, SECOND, "a"),
        (ServerKind.VLLM, ADAPTER, None),
        (ServerKind.VLLM, OTHER, "d"),
        (ServerKind.SGLANG, SECOND, None),
        (ServerKind.OTHER, SECOND, None),
    ],
)
def test_vllm_answers_by_the_first_name_of_a_model(kind: ServerKind, asked: _Card, name: str | None) -> None:
    assert _answers_as(kind, asked, [ADAPTER, OTHER, FIRST, SECOND]) == name
