"""Addresses, and what of an answer may reach a terminal."""

from __future__ import annotations

import pytest

from regen.engines.http import Connection, Reply, plain_settings, plain_text, server_url
from regen.errors import SpecError


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/v1/", "http://h:8000"),
        ("https://h/team/a/v1", "https://h/team/a"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_address_with_or_without_v1(given: str, url: str) -> None:
    assert server_url(given) == url


@pytest.mark.parametrize("given", ["h:8000", "run.yaml", "ftp://h", "http://", "http://h:port", "http://h?key=1", ""])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(SpecError):
        server_url(given)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(SpecError) as caught:
        server_url("http://me:secret@h:8000")
    assert "secret" not in str(caught.value)


def test_what_a_server_says_is_one_short_line_without_control_characters() -> None:
    assert plain_text("a\x1b[2Jb\nc") == "a [2Jb c"
    assert len(plain_text("x" * 10**6)) < 400


def test_a_key_that_is_sent_back_is_not_shown() -> None:
    assert Connection("http://h:1", "sesame").shown("bad key: sesame!") == "bad key: [key]!"


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"a":', b"[" * 100_000, b"\xff"])
def test_an_answer_that_is_no_json_object_has_no_fields(body: bytes) -> None:
    assert Reply(200, body).fields() == {}


def test_only_plain_settings_are_kept() -> None:
    said = {"a": 1.0, "b": "word", "c": [1, 2], "d": {"x": 1}, "e": None, "f": [{}], "g": list(range(1000)), "h": 1e400}
    assert plain_settings(said) == {"a": 1.0, "b": "word", "c": [1, 2]}
