"""Where drafts are weak: recent rows by source, prompt length and position, beside what such rows have shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import sqrt
from typing import TypeAlias

from regen.spec import ExpectedAcceptance
from regen.speculative.counted import COLLAPSED_LENGTH, WINDOW_DRAFTS
from regen.speculative.like_with_like import (
    PROMPT_BOUNDS,
    WINDOW_ROWS,
    Recent,
    RowsLike,
    Sums,
    bucket_name,
    is_usable,
)
from regen.speculative.verdicts import Cell, GuardVerdict
from regen.speculative.watched import DECAY_LIMIT

# Many kinds of rows are looked at, again and again: more certain than a window of the guard.
CELL_SIGMAS = 4.0

_Sums: TypeAlias = Mapping[RowsLike, Sums]


def cells(
    replicas: Iterable[Mapping[RowsLike, Recent]], references: _Sums, expected: ExpectedAcceptance | None
) -> tuple[Cell, ...]:
    """By source, then prompt length, then position. `references` count where they are precise enough."""
    recent = _together(replicas)
    learned = {like: sums for like, sums in references.items() if is_usable(sums)}
    return (*_by_source(recent, learned), *_by_prompt_length(recent, learned), *_by_position(recent, learned, expected))


def _together(replicas: Iterable[Mapping[RowsLike, Recent]]) -> dict[RowsLike, Sums]:
    together: dict[RowsLike, Sums] = {}
    for replica in replicas:
        for like, recent in replica.items():
            recent.into(together.setdefault(like, Sums()))
    return together


def _by_source(recent: _Sums, learned: _Sums) -> Iterator[Cell]:
    for source in sorted({like.source for like in recent}):
        rows = {like: sums for like, sums in recent.items() if like.source == source}
        yield _cell("source", source, rows, learned)


def _by_prompt_length(recent: _Sums, learned: _Sums) -> Iterator[Cell]:
    for index in sorted({like.prompt_bucket for like in recent}):
        rows = {like: sums for like, sums in recent.items() if like.prompt_bucket == index}
        yield _cell("prompt_length", bucket_name(index, PROMPT_BOUNDS), rows, learned)


def _cell(axis: str, value: str, rows: _Sums, learned: _Sums) -> Cell:
    whole = _merged(rows.values())
    length = whole.acceptance.accept_length
    compared = {like: sums for like, sums in rows.items() if like in learned}
    drafts = sum(sums.drafts for sums in compared.values())
    accepted = sum(
        sums.drafts * learned[like].acceptance.accepted / learned[like].drafts for like, sums in compared.items()
    )
    if whole.rows < WINDOW_ROWS or whole.drafts < WINDOW_DRAFTS:
        verdict = GuardVerdict.UNKNOWN
    elif length is not None and length <= COLLAPSED_LENGTH:
        verdict = GuardVerdict.COLLAPSED
    else:
        verdict = GuardVerdict.DECAYED if _has_decayed(compared, learned) else GuardVerdict.HEALTHY
    return Cell(axis, value, verdict, length, 1.0 + accepted / drafts if drafts else None, whole.drafts)


def _has_decayed(rows: _Sums, learned: _Sums) -> bool:
    """Clearly and substantially below what these rows should show."""
    measured = sum(sums.measured for sums in rows.values())
    expected = sum(sums.drafts * learned[like].mean for like, sums in rows.items())
    variance = sum(
        sums.drafts_squared * learned[like].row_variance + sums.drafts**2 * learned[like].mean_variance
        for like, sums in rows.items()
    )
    return measured <= DECAY_LIMIT * expected and expected - measured > CELL_SIGMAS * sqrt(variance)


def _by_position(recent: _Sums, learned: _Sums, promised: ExpectedAcceptance | None) -> Iterator[Cell]:
    whole = _merged(recent.values())
    for position, count in enumerate(whole.acceptance.accepted_by_position):
        rate = count / whole.drafts
        reference, limit = _expected_at(position, recent, learned), DECAY_LIMIT
        if promised is not None and position < len(promised.by_position):
            reference, limit = promised.by_position[position], 1.0 - promised.tolerance
        verdict = _at_position(position, rate, whole, reference, limit)
        yield Cell("position", str(position + 1), verdict, rate, reference, whole.drafts)


def _expected_at(position: int, recent: _Sums, learned: _Sums) -> float | None:
    drafts, expected = 0, 0.0
    for like, sums in recent.items():
        if like in learned:
            taught = learned[like]
            drafts += sums.drafts
            expected += sums.drafts * _at(taught.acceptance.accepted_by_position, position) / taught.drafts
    return expected / drafts if drafts else None


def _at_position(position: int, rate: float, whole: Sums, reference: float | None, limit: float) -> GuardVerdict:
    if whole.rows < WINDOW_ROWS or whole.drafts < WINDOW_DRAFTS:
        return GuardVerdict.UNKNOWN
    if position == 0 and 1.0 + rate <= COLLAPSED_LENGTH:
        return GuardVerdict.COLLAPSED
    if reference is None or rate > limit * reference:
        return GuardVerdict.HEALTHY
    # Rows as far apart as a share allows: the error is never larger.
    error = sqrt(reference * (1.0 - reference) * whole.drafts_squared) / whole.drafts
    return GuardVerdict.DECAYED if reference - rate > CELL_SIGMAS * error else GuardVerdict.HEALTHY


def _merged(parts: Iterable[Sums]) -> Sums:
    whole = Sums()
    for part in parts:
        whole.merge(part)
    return whole


def _at(counts: tuple[int, ...], position: int) -> int:
    return counts[position] if position < len(counts) else 0
