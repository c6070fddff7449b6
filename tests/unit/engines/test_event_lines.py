"""Streams cut anywhere, and what is no event."""

from __future__ import annotations

import pytest

from regen.engines.event_lines import LONGEST_LINE_BYTES, EventLines

STREAM = b': ping\n\ndata: {"a": 1}\r\n\nevent: x\ndata:{"b": "\xc3\xa9"}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("size", [1, 2, 7, len(STREAM)])
def test_payloads_do_not_depend_on_how_the_bytes_are_cut(size: int) -> None:
    lines, found = EventLines(), []
    for start in range(0, len(STREAM), size):
        found += lines.feed(STREAM[start : start + size])
    assert found == [b'{"a": 1}', '{"b": "é"}'.encode(), b"[DONE]"]
    assert not lines.is_cut


def test_a_last_line_without_an_end_is_cut() -> None:
    lines = EventLines()
    assert lines.feed(b'data: {"a"') == []
    assert lines.is_cut


def test_a_line_without_an_end_is_given_up() -> None:
    with pytest.raises(ValueError, match="8 MiB"):
        EventLines().feed(b"x" * (LONGEST_LINE_BYTES + 1))
