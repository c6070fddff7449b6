"""The pilot's page: what rows say stays text, counts are right, and nothing is loaded or run."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

from regen.observe.pilot_page import AnswerView, Fact, Piece, PilotView, RowView, SourceView, TokenKind, pilot_page

HOSTILE = "</pre><script>alert('x')</script><img src=x onerror=\"y\">&amp;\x00\x1b[31m\u202eabc\ud800\x85"
ANSWER = AnswerView(
    turn=0,
    prompt_tokens=1200,
    prompt="hello",
    is_prompt_cut=True,
    tokens=5,
    pieces=(
        Piece("one", TokenKind.OWN),
        Piece(" two", TokenKind.ACCEPTED),
        Piece(" three", TokenKind.ACCEPTED),
        Piece("<end>", TokenKind.CORRECTED, closes=True),
    ),
    finish="stop",
    labels=(),
    accept_length=2.125,
)
SOURCE = SourceView("chat", 1000, 20, 8, 2, 1, 0, 1, (120.5, 90.0, 4000), 2.125)
ROW = RowView("ab" * 16, "chat", "rows.jsonl:3", "ok", "", (ANSWER,))
VIEW = PilotView("Pilot of x", (Fact("run", "runs/x"),), (Fact("hours", "2 to 3"),), ("mind this",), (SOURCE,), (ROW,))


class Elements(HTMLParser):
    """Elements, attributes, and the text inside each."""

    VOID = ("meta", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.texts: list[tuple[str, str, str]] = []  # element, class, text
        self._classes: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)
            self._classes.append(dict(attrs).get("class") or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._classes.pop()

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], self._classes[-1], data))

    def of(self, element: str, class_: str) -> list[str]:
        return [text for found, classes, text in self.texts if (found, classes) == (element, class_)]


def test_elements_are_balanced_and_nothing_is_loaded_or_run() -> None:
    page = pilot_page(VIEW)
    found = Elements(page)
    assert found.open == []
    assert not found.tags.keys() & {"script", "img", "link", "iframe", "object"}
    assert not {name for name in found.attributes if name.startswith("on")} | (found.attributes & {"src"})
    assert "default-src 'none'" in page
    assert "http" not in re.sub(r"http-equiv", "", page)
    assert "url(" not in page


def test_whatever_a_row_says_is_text() -> None:
    hostile = replace(
        ANSWER,
        prompt=HOSTILE,
        pieces=(Piece(HOSTILE, TokenKind.OWN),),
        finish=HOSTILE,
        labels=(HOSTILE,),
        note=HOSTILE,
    )
    view = PilotView(
        title=HOSTILE,
        facts=(Fact(HOSTILE, HOSTILE),),
        outlook=(Fact(HOSTILE, HOSTILE),),
        notes=(HOSTILE,),
        sources=(replace(SOURCE, source=HOSTILE),),
        rows=(RowView(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, (hostile,)),),
    )
    page = pilot_page(view)
    plain = Elements(pilot_page(replace(VIEW, rows=(replace(ROW, reason="r", answers=(replace(ANSWER, note="n"),)),))))
    found = Elements(page)
    assert found.open == []
    assert found.tags.keys() == plain.tags.keys()
    assert found.attributes == plain.attributes
    assert "<script" not in page
    page.encode("utf-8")
    assert not set(page) & set("\x00\x1b\u202e\x85")
    assert any("alert('x')" in text and "[U+202E]abc[U+D800]" in text for text in found.of("span", "own"))


def test_tokens_of_a_kind_stand_together_under_their_kind() -> None:
    found = Elements(pilot_page(VIEW))
    assert found.of("span", "masked")[1:] == ["… hello"]
    assert found.of("span", "accepted")[1:] == [" two three"]
    assert found.of("span", "corrected closes") == ["<end>"]
    assert "and 1 more tokens" in found.of("p", "note")


def test_figures_by_source() -> None:
    page = pilot_page(VIEW)
    cells = re.findall(r"<td>(.*?)</td>", page)
    assert cells == ["1,000", "20", "8", "2 (25%)", "1 (12%)", "1 (12%)", "0", "120", "90", "4,000", "2.12"]
    nothing = replace(SOURCE, done=0, truncated=0, degenerate=0, lost=0, partial=0, tokens=None, accept_length=None)
    cells = re.findall(r"<td>(.*?)</td>", pilot_page(replace(VIEW, sources=(nothing,))))
    assert cells == ["1,000", "20", "0", "0", "0", "0", "0", "", "", "", ""]


def test_a_row_without_answers_says_so() -> None:
    lost = replace(ROW, status="failed", reason="stalled", answers=())
    page = pilot_page(replace(VIEW, rows=(lost,)))
    assert "No answer." in page
    assert ", stalled" in page
