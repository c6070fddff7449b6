"""A pilot as one HTML page: what it found by source, what the whole run will take, and every answer with its tokens.

Pure: plain values in, text out. The page loads nothing and runs nothing (a policy in it forbids both), follows the
reader's choice of dark or light, and works by keyboard. Nothing that a row says is markup: all of it is escaped, and
control characters are shown as signs. Kinds of tokens differ in more than their colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from itertools import groupby


class TokenKind(StrEnum):
    """How a token came, and whether it is trained on: masked ones are not."""

    MASKED = "masked"
    ACCEPTED = "accepted"  # drafted, and accepted
    CORRECTED = "corrected"  # the target's own, where a drafted token was rejected
    OWN = "own"  # the target's own, and no draft was rejected for it
    SAMPLED = "sampled"  # the target's answer; how it came is not known


_SAID = {
    TokenKind.MASKED: "masked: given to the target, no loss",
    TokenKind.ACCEPTED: "drafted and accepted",
    TokenKind.CORRECTED: "the target's own where a draft token was rejected",
    TokenKind.OWN: "the target's own, no draft token rejected",
    TokenKind.SAMPLED: "sampled by the target; drafts not told apart",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """One token's text. `closes`: it ended the answer."""

    text: str
    kind: TokenKind
    closes: bool = False


@dataclass(frozen=True, slots=True)
class AnswerView:
    """One generation. `prompt` is its end, `pieces` its beginning, as far as they are shown.

    `note` says why drafts are not told apart, or nothing; `accept_length` is None without counters.
    """

    turn: int
    prompt_tokens: int
    prompt: str
    is_prompt_cut: bool
    tokens: int
    pieces: tuple[Piece, ...]
    finish: str
    labels: tuple[str, ...]
    accept_length: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class RowView:
    """One row of the sample that is done. `reason` is empty for good ones."""

    row_id: str
    source: str
    location: str
    status: str
    reason: str
    answers: tuple[AnswerView, ...]


@dataclass(frozen=True, slots=True)
class SourceView:
    """One source: `rows` that the target is to make, `sampled` of them, `done`; how these ended, and their tokens.

    The shares are of `done`. `tokens` are output tokens a row: mean, median, most; None if there are none.
    """

    source: str
    rows: int
    sampled: int
    done: int
    truncated: int
    degenerate: int
    lost: int
    partial: int
    tokens: tuple[float, float, int] | None
    accept_length: float | None


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and its value, both for people."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class PilotView:
    """All that the page shows. `outlook` is about the whole run; `notes` are what to mind about it."""

    title: str
    facts: tuple[Fact, ...]
    outlook: tuple[Fact, ...]
    notes: tuple[str, ...]
    sources: tuple[SourceView, ...]
    rows: tuple[RowView, ...]


SOURCE_COLUMNS = (
    "source",
    "rows",
    "sampled",
    "done",
    "truncated",
    "degenerate",
    "partial",
    "no answer",
    "tokens a row",
    "median",
    "most",
    "accept length",
)


def source_cells(source: SourceView) -> tuple[str, ...]:
    """In the order of `SOURCE_COLUMNS`, for the page and for terminals."""
    tokens = ("", "", "")
    if source.tokens is not None:
        mean, median, most = source.tokens
        tokens = (f"{mean:,.0f}", f"{median:,.0f}", f"{most:,}")
    return (
        source.source,
        *(f"{count:,}" for count in (source.rows, source.sampled, source.done)),
        *(_share(n, source.done) for n in (source.truncated, source.degenerate, source.partial, source.lost)),
        *tokens,
        "" if source.accept_length is None else f"{source.accept_length:.2f}",
    )


def pilot_page(view: PilotView) -> str:
    """The whole document."""
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            f"<head>{_HEAD}<title>{_text(view.title)}</title></head>",
            '<body><a class="skip" href="#answers">To the answers</a>',
            f"<header><h1>{_text(view.title)}</h1>{_facts(view.facts)}</header><main>",
            f'<section><h2>The whole run</h2>{_facts(view.outlook)}<ul class="notes">',
            *(f"<li>{_text(note)}</li>" for note in view.notes),
            "</ul></section>",
            f"<section><h2>By source</h2>{_source_table(view.sources)}</section>",
            f'<section id="answers"><h2>Answers</h2>{_legend()}',
            *(_row(row) for row in view.rows),
            "</section></main></body></html>\n",
        )
    )


def _facts(facts: Sequence[Fact]) -> str:
    return "<dl>" + "".join(f"<dt>{_text(one.name)}</dt><dd>{_text(one.value)}</dd>" for one in facts) + "</dl>"


def _source_table(sources: Iterable[SourceView]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in SOURCE_COLUMNS)
    lines = []
    for source in sources:
        name, *figures = map(_text, source_cells(source))
        lines.append(f'<tr><th scope="row">{name}</th>' + "".join(f"<td>{one}</td>" for one in figures) + "</tr>")
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="By source">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _legend() -> str:
    kinds = "".join(f'<li><span class="{kind}">token</span> {said}</li>' for kind, said in _SAID.items())
    return f'<ul class="legend">{kinds}<li><span class="own closes">token</span> ends the answer</li></ul>'


def _row(row: RowView) -> str:
    reason = f", {_text(row.reason)}" if row.reason else ""
    tokens = sum(answer.tokens for answer in row.answers)
    summary = (
        f'<b class="status {_text(row.status)}">{_text(row.status)}</b>{reason} · <bdi>{_text(row.source)}</bdi>'
        f" · {tokens:,} tokens · <bdi>{_text(row.location)}</bdi> · <code>{_text(row.row_id)}</code>"
    )
    answers = "".join(map(_answer, row.answers)) or "<p>No answer.</p>"
    return f"<details><summary>{summary}</summary>{answers}</details>"


def _answer(answer: AnswerView) -> str:
    facts = [f"turn {answer.turn}", f"{answer.prompt_tokens:,} prompt tokens", f"{answer.tokens:,} tokens"]
    facts.append(f"finished: {answer.finish}")
    if answer.accept_length is not None:
        facts.append(f"accept length {answer.accept_length:.2f}")
    if answer.labels:
        facts.append(", ".join(answer.labels))
    left = answer.tokens - len(answer.pieces)
    more = f'<p class="note">and {left:,} more tokens</p>' if left else ""
    note = f'<p class="note">{_text(answer.note)}</p>' if answer.note else ""
    start = "… " if answer.is_prompt_cut else ""
    prompt = f'<span class="masked">{start}{_text(answer.prompt)}</span>'
    text = f'<pre dir="auto">{prompt}{"".join(_runs(answer.pieces))}</pre>'
    return f"<article><h3>{_text(' · '.join(facts))}</h3>{note}{text}{more}</article>"


def _runs(pieces: Sequence[Piece]) -> Iterator[str]:
    """Neighbours of one kind share an element: drafts are told apart, single tokens are not."""
    for (kind, closes), run in groupby(pieces, key=lambda piece: (piece.kind, piece.closes)):
        text = "".join(piece.text for piece in run)
        yield f'<span class="{kind}{" closes" if closes else ""}">{_text(text)}</span>'


def _text(text: str) -> str:
    """Escaped; what a browser would not show, or would obey, becomes a sign."""
    return escape("".join(map(_sign, text)), quote=True)


def _sign(char: str) -> str:
    code = ord(char)
    if char in "\n\t":
        return char
    if code < 0x20:
        return chr(0x2400 + code)
    # Writing direction that is turned by a character stays turned behind it; half a surrogate pair is no character.
    is_unsafe = 0x7F <= code < 0xA0 or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069 or 0xD800 <= code < 0xE000
    return f"[U+{code:04X}]" if is_unsafe else char


def _share(count: int, of: int) -> str:
    return f"{count:,} ({count / of:.0%})" if of and count else f"{count:,}"


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --soft: #666; --line: #ccc;
  --accepted: #c9efd0; --corrected: #ffd9b8; --own: #dbe6ff; --sampled: #eee; --bad: #a4000f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #161616; --soft: #a0a0a0; --line: #444;
  --accepted: #1d4a29; --corrected: #6b3a0e; --own: #24365f; --sampled: #2e2e2e; --bad: #ff8a8a; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 72rem; padding: 1rem; }
.skip { position: absolute; left: -99rem; } .skip:focus { left: 1rem; background: var(--paper); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; } h3 { font-size: .9rem; color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; } .wide { overflow-x: auto; } table { border-collapse: collapse; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; } details { border-top: 1px solid var(--line); padding: .4rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; } :focus-visible { outline: 3px solid #4a7dff; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line); padding: .6rem; }
.note, .notes { color: var(--soft); font-size: .9rem; } .legend { list-style: none; padding: 0; }
.masked { color: var(--soft); font-style: italic; } .accepted { background: var(--accepted); }
.corrected { background: var(--corrected); text-decoration: underline dotted; }
.own { background: var(--own); text-decoration: underline; } .sampled { background: var(--sampled); }
.closes { outline: 1px solid var(--ink); }
.truncated, .degenerate, .rejected, .failed, .partial { color: var(--bad); }
"""
_HEAD = (
    '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    f"<style>{_STYLE}</style>"
)
