"""How long rows are, learned from finished and running ones. Pure; no framework.

Rows come in groups of one kind: a source, or part of one. A group's curve is the share of its rows longer than so many
tokens. Where many rows were seen it follows them, whatever their shape (a life table, in which running rows count as
longer than they are); where few were, it follows a lognormal fitted to all of the group, or a Weibull where that
explains the rows better (a light tail); and where the group has few rows at all, its fit leans on what the other groups
have in common.

Memory: one histogram a group. Cost: tens of microseconds a group for each curve.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from regen.observe import weibull
from regen.observe.length_curve import Curve, bin_of, edges_to
from regen.observe.lognormal import Belief, Evidence, learned, share_above

# So many rows weighs the fitted lognormal in each bin, beside those that were seen there.
_FIT_WEIGHT = 10.0
# How rows end is corrected as it was off in the last bins: so much of each is kept in the next, and so many rows weighs
# that the fit is right.
_TREND_KEPT, _TREND_WEIGHT = 0.7, 4.0
# What is believed of any target before a row was seen: some hundred tokens a turn, give or take a lot.
_ANYTHING = Belief(math.log(500), 0.0, 4.0, 0.0, 0.12)
# How far groups lie from what they have in common: in ln(tokens), and in the log of their spread.
_APART_MU, _APART_SIGMA = 0.8, 0.25
# How far rows may go on otherwise than fitted: in the logarithm of how fast they end.
_MISFIT = 0.3
# Between a lognormal and a Weibull it is decided from so many ended rows on; how far the latter is behind before that,
# in logarithms; and how far off its shape may be, by the root of how many rows have ended.
_FEWEST_FOR_SHAPE, _WEIBULL_ODDS, _SHAPE_SPREAD = 30, -2.0, 0.8
_MOST_ENDING, _NOTHING = 0.95, 1e-280
# Rounds in which the ages of interrupted rows are settled, and how many ages stand for all.
_ROUNDS, _AGES = 3, 12
# Rows in work: tokens so far, and how many.
_Partial = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one kind. `cap_tokens`: no row of it gets longer; `turns`: answers in a row of it, on average.

    `interrupted_of` names the group, of the same cap, that these rows belong to and stand apart from: they were in work
    when an earlier session ended, and are made again. A long row is likelier to be caught so: they are longer than
    others, while rows that were not begun are like all rows of the group together.
    """

    cap_tokens: int
    turns: float = 1.0
    interrupted_of: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """Rows in work: of one group, with `tokens` so far (a row that waits for its first token has 0)."""

    group: str
    tokens: int
    rows: int = 1


class LengthModel(Protocol):
    """Curves of every group, as they may be."""

    def saw(self, group: str, tokens: int, is_earlier: bool, rows: int = 1) -> None:
        """Rows have ended with so many tokens each; `is_earlier`: in an earlier session."""

    def guesses(self, running: Sequence[Running], count: int) -> Iterator[Mapping[str, Curve]]:
        """The middle one first, then `count` as likely as what was seen makes them. Asked again, the same ones."""


@dataclass(slots=True)
class _Seen:
    """One group's ended rows. Those that have reached the cap are in the last bin: cut, they would be longer."""

    group: Group
    edges: list[float]
    ended: list[int] = field(init=False)
    rows: int = 0
    total: float = 0.0
    squares: float = 0.0

    def __post_init__(self) -> None:
        self.ended = [0] * len(self.edges)

    def add(self, tokens: int, rows: int) -> None:
        place = self.place(tokens)
        self.ended[place] += rows
        if place < len(self.edges) - 1:
            log_tokens = math.log(max(1, tokens))
            self.rows += rows
            self.total += rows * log_tokens
            self.squares += rows * log_tokens * log_tokens

    def place(self, tokens: float) -> int:
        if tokens >= self.edges[-1]:
            return len(self.edges) - 1
        return min(len(self.edges) - 2, bin_of(tokens))

    def evidence(self, partial: Sequence[_Partial], per_turn: bool = False) -> Evidence:
        """In ln(tokens), or in ln(tokens a turn); `partial` are (tokens so far, rows)."""
        shift = math.log(self.group.turns) if per_turn else 0.0
        at_least = [(math.log(tokens) - shift, rows) for tokens, rows in partial if tokens >= 1]
        if self.ended[-1]:
            at_least.append((math.log(self.edges[-1]) - shift, self.ended[-1]))
        squares = self.squares - 2 * shift * self.total + self.rows * shift * shift
        return Evidence(self.rows, self.total - self.rows * shift, squares, at_least)


class _Shapes:
    """The shares above each edge of one group: by a lognormal and by a Weibull, as far as the rows speak for each."""

    def __init__(self, seen: _Seen, belief: Belief, partial: Sequence[_Partial]) -> None:
        self._edges, self._belief = seen.edges, belief
        lognormal = self._lognormal(*belief.at(0.0, 0.0))
        self.middle, self._weight = lognormal, 0.0
        self._rows = sum(seen.ended[:-1])
        if self._rows < _FEWEST_FOR_SHAPE:
            return
        ended = [
            (math.log(math.sqrt(max(1.0, low) * high)), float(rows))
            for low, high, rows in zip(seen.edges[:-1], seen.edges[1:], seen.ended[:-1], strict=True)
            if rows
        ]
        self._shape, self._scale = weibull.fitted(ended, seen.evidence(partial).at_least)
        other = self._weibull(self._shape, self._scale)
        odds = _likelihood(seen, partial, other) - _likelihood(seen, partial, lognormal)
        self._weight = 1 / (1 + math.exp(-min(max(odds + _WEIBULL_ODDS, -50.0), 50.0)))
        self.middle = [
            (1 - self._weight) * one + self._weight * another for one, another in zip(lognormal, other, strict=True)
        ]

    def drawn(self, draw: random.Random) -> list[float]:
        """One of those that it may be."""
        first, second = draw.gauss(), draw.gauss()
        if draw.random() >= self._weight:
            return self._lognormal(*self._belief.at(first, second))
        apart = 1 / math.sqrt(self._rows)
        shape = self._shape * math.exp(_SHAPE_SPREAD * apart * first)
        return self._weibull(shape, self._scale * math.exp(apart / self._shape * second))

    def _lognormal(self, mu: float, sigma: float) -> list[float]:
        return [1.0, *(share_above(mu, sigma, math.log(edge)) for edge in self._edges[1:])]

    def _weibull(self, shape: float, scale: float) -> list[float]:
        return [1.0, *(weibull.share_above(shape, scale, edge) for edge in self._edges[1:])]


def _likelihood(seen: _Seen, partial: Sequence[_Partial], above: Sequence[float]) -> float:
    """The log of it, but for what is the same for all shapes."""
    curve = Curve(seen.edges, above)
    total = 0.0
    for place, rows in enumerate(seen.ended[:-1]):
        if rows:
            total += rows * math.log(max(above[place] - above[place + 1], _NOTHING))
    total += seen.ended[-1] * math.log(max(above[-1], _NOTHING))
    return total + sum(rows * math.log(max(curve.above(tokens), _NOTHING)) for tokens, rows in partial)


class Lengths:
    """`LengthModel` of what is seen. Rows of earlier sessions may be told too: they are as good as any here."""

    def __init__(self, groups: Mapping[str, Group]) -> None:
        """Raises KeyError where a group that is named is not there."""
        self._whole = {name: group.interrupted_of or name for name, group in groups.items()}
        caps = {name: groups[whole].cap_tokens for name, whole in self._whole.items()}
        self._seen = {name: _Seen(group, edges_to(caps[name])) for name, group in groups.items()}
        self._longest_earlier = 1
        self._wholes = {name: self._seen[name] for name in self._whole.values()}

    def saw(self, group: str, tokens: int, is_earlier: bool, rows: int = 1) -> None:
        if is_earlier:
            self._longest_earlier = max(self._longest_earlier, tokens)
        for name in {group, self._whole[group]}:
            self._seen[name].add(tokens, rows)

    def guesses(self, running: Sequence[Running], count: int) -> Iterator[Mapping[str, Curve]]:
        running = gathered(running)
        beliefs, partial = self._settled(running)
        tables = {name: _at_risk(seen, partial[name]) for name, seen in self._seen.items()}
        draw = random.Random(0)
        shapes = {name: _Shapes(seen, beliefs[name], partial[name]) for name, seen in self._wholes.items()}
        for guess in range(count + 1):
            curves: dict[str, Curve] = {}
            for name, seen in self._wholes.items():
                fitted = shapes[name].drawn(draw) if guess else shapes[name].middle
                curves[name] = _curve(seen, tables[name], fitted, draw if guess else None)
            for name, whole in self._whole.items():
                if name != whole:
                    fitted = _above_if_caught(curves[whole], self._longest_earlier)
                    curves[name] = _curve(self._seen[name], tables[name], fitted, draw if guess else None)
            yield curves

    def _fitted(self, name: str, beliefs: Mapping[str, Belief], partial: Mapping[str, Sequence[_Partial]]) -> Curve:
        seen = self._wholes[name]
        return _curve(seen, _at_risk(seen, partial[name]), _Shapes(seen, beliefs[name], partial[name]).middle)

    def _settled(self, running: Sequence[Running]) -> tuple[dict[str, Belief], dict[str, list[_Partial]]]:
        """What is believed of each whole group, and the rows in work that this rests on.

        An interrupted row had come farther than it has by now. How far, follows from how long rows are: a few rounds,
        in which part of what the ended rows hide is found again. What this session sees of these rows does the rest.
        """
        partial = self._partial(running, None)
        beliefs = self._beliefs(partial)
        if any(self._whole[one.group] != one.group for one in running):
            for _ in range(_ROUNDS):
                curves = {name: self._fitted(name, beliefs, partial) for name in self._wholes}
                partial = self._partial(running, curves)
                beliefs = self._beliefs(partial)
        return beliefs, partial

    def _partial(self, running: Sequence[Running], curves: Mapping[str, Curve] | None) -> dict[str, list[_Partial]]:
        partial: dict[str, list[_Partial]] = {name: [] for name in self._seen}
        for one in running:
            partial[one.group].append((one.tokens, one.rows))
            if (whole := self._whole[one.group]) != one.group:
                longest = self._seen[one.group].edges[-1] - 1
                before = [0.0] if curves is None else _when_caught(curves[whole], self._longest_earlier)
                partial[whole] += [(min(max(one.tokens, age), longest), one.rows / len(before)) for age in before]
        return partial

    def _beliefs(self, partial: Mapping[str, Sequence[_Partial]]) -> dict[str, Belief]:
        """Of each whole group, leaning on what all have in common a turn."""
        each = [seen.evidence(partial[name], per_turn=True) for name, seen in self._wholes.items()]
        together = Evidence(
            sum(one.ended for one in each),
            sum(one.total for one in each),
            sum(one.squares for one in each),
            [pair for one in each for pair in one.at_least],
        )
        common = learned(_ANYTHING, together)
        return {
            name: learned(_apart(common, seen.group.turns), seen.evidence(partial[name]))
            for name, seen in self._wholes.items()
        }


def _apart(common: Belief, turns: float) -> Belief:
    """What to expect of a group of which nothing was seen."""
    return Belief(
        common.mu + math.log(turns),
        common.log_sigma,
        common.mu_variance + _APART_MU**2,
        0.0,
        common.log_sigma_variance + _APART_SIGMA**2,
    )


def _when_caught(curve: Curve, longest: float) -> list[float]:
    """How far rows were when their session ended: a few that stand for all. See `_above_if_caught`."""
    begun_late = curve.made(longest)
    every = begun_late + curve.made(math.inf) * curve.above(longest)
    return [
        curve.stopped_after(part * every) if part * every < begun_late else longest
        for part in ((place + 0.5) / _AGES for place in range(_AGES))
    ]


def _above_if_caught(curve: Curve, longest: float) -> list[float]:
    """The shares above each edge of the curve, of rows that were in work when their session ended.

    Rows begin at an even pace, and those that are caught at an age were long enough for it. None was older than
    `longest`, the session's own length in tokens of a sequence; those that began with it are all of that age.
    """
    mean, late, early = curve.made(math.inf), curve.made(longest), curve.above(longest)
    every = late + mean * early
    return [
        (edge * above + late - made + mean * early if edge < longest else (longest + mean) * above) / every
        for edge, above, made in curve.table()
    ]


def gathered(running: Sequence[Running]) -> list[Running]:
    """The same rows, those of one group that are about as long (a bin) as one, with their mean."""
    sums: dict[tuple[str, int], tuple[int, int]] = {}
    for one in running:
        key = (one.group, bin_of(one.tokens))
        tokens, rows = sums.get(key, (0, 0))
        sums[key] = (tokens + one.tokens * one.rows, rows + one.rows)
    return [Running(group, round(tokens / rows), rows) for (group, _), (tokens, rows) in sums.items() if rows]


def _at_risk(seen: _Seen, partial: Sequence[_Partial]) -> list[float]:
    """For each bin, rows that were seen to reach it; those that are in it now count by half."""
    here = [0.0] * len(seen.edges)
    for tokens, rows in partial:
        here[seen.place(tokens)] += rows
    at_risk, reached = [0.0] * len(seen.edges), 0.0
    for place in range(len(seen.edges) - 1, -1, -1):
        reached += seen.ended[place] + here[place]
        at_risk[place] = reached - here[place] / 2
    return at_risk


def _curve(seen: _Seen, at_risk: Sequence[float], fitted: Sequence[float], draw: random.Random | None = None) -> Curve:
    """Bin by bin, the share that ends there: as `fitted` has it (shares above each edge), corrected by what was seen.

    Where rows have lately ended faster or slower than fitted, they are taken to go on so: rows that loop to the cap,
    or a tail that is none of a lognormal's. With `draw` it is one of the curves that it may be instead.
    """
    above, ended, expected = [1.0], 0.0, 0.0
    faster = math.exp(_MISFIT * draw.gauss()) if draw is not None else 1.0
    for place, rows in enumerate(at_risk[:-1]):
        going_on = min(1.0, fitted[place + 1] / fitted[place]) if fitted[place] > _NOTHING else 0.0
        ratio = faster * (ended + _TREND_WEIGHT) / (expected + _TREND_WEIGHT)
        ending = (seen.ended[place] + _FIT_WEIGHT * (1 - going_on**ratio)) / (rows + _FIT_WEIGHT)
        if draw is not None and rows:
            ending += draw.gauss() * math.sqrt(rows * ending * (1 - min(1.0, ending))) / (rows + _FIT_WEIGHT)
        above.append(above[-1] * (1 - min(max(ending, 0.0), _MOST_ENDING)))
        ended = _TREND_KEPT * ended + seen.ended[place]
        expected = _TREND_KEPT * expected + rows * (1 - going_on)
    return Curve(seen.edges, above)
