"""Answers as they are stored: nothing that no file takes, nothing cut that is not a stop string."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regen.protocols import ToolCall
from regen.records import Completion, FinishReason, Sampling
from regen.run.conversations.reading import _storable, _without_stop_string

SAMPLING = Sampling(10, 0.0, 1.0, 0, 0.0, 0.0, 0.0, 1.0, ("END",), ())
STOPPED = Completion((1, 2), FinishReason.STOP, "END", None, 0.0, 0.0, 0.0)


def test_half_a_character_in_a_call_is_folded_into_its_escape_again() -> None:
    kept = _storable(ToolCall("lo\ud83dok", '{"x": "\ud83d", "y": "\U0001f600é"}'))
    assert kept == ToolCall("lo\\ud83dok", '{"x": "\\ud83d", "y": "\U0001f600é"}')
    kept.arguments.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "content"), [("hello END", "hello "), ("END and END", "END and "), ("hello", "hello")]
)
def test_a_stop_string_is_cut_where_it_stands_and_nothing_where_it_does_not(text: str, content: str) -> None:
    assert _without_stop_string(text, STOPPED, SAMPLING) == content
    assert _without_stop_string(text, replace(STOPPED, stop_reason=None), SAMPLING) == text
