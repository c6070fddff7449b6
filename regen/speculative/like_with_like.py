"""Acceptance compared like with like: within source, prompt length and answer length. Pure.

What is accepted moves by half with the rows alone, without any fault (0.81 accepted tokens a draft on GSM8K, 0.37 on
MT-bench, one head). So each row is held against what rows of its own *cell* have shown, and the sum of what was
accepted against the sum of what was to be expected of these very rows.

Rows are the unit of chance, not drafts: drafts of one row succeed and fail together. How far rows of a cell lie apart
is learned with the cell, and a comparison is not looked at before it is precise enough for what it is to find. How much
that takes follows from the drafts alone and never from the outcome, so looking often does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, sqrt

from regen.records import Acceptance
from regen.speculative.alarm import Alarm

# Upper bounds in tokens, exclusive: of the prompt and of the answer. The last bucket is open.
PROMPT_BOUNDS = (512, 2048, 8192, 32768)
ANSWER_BOUNDS = (128, 1024)
# Sources beyond so many share one name: memory stays bounded whatever the plan holds.
SOURCES = 64
OTHER_SOURCES = "(other)"

# A cell is compared with when its mean is known to 10 %: a window holds many, whose errors average out. It learns on
# until it is known to 5 %, and then stays as it is, so that a slow decay is seen.
USABLE_ERROR = 0.10
LEARNED_ERROR = 0.05
USABLE_ROWS = 64
USABLE_DRAFTS = 500
# No cell learns for ever.
LEARNED_ROWS = 1024
# A window closes when its error is a third of what it is to find: of a healthy replica one in 700 reaches the limit,
# and three in a row are needed.
SIGMAS = 3.0
WINDOW_ROWS = 32
WINDOW_DRAFTS = 500
RAISE_WINDOWS = 3
LIFT_WINDOWS = 6
# What is found again of the gap, before an alarm is lifted: halfway back from the limit.
RECOVERED_SHARE = 0.5
# Recent rows of a cell, per replica: between one and two of these.
RECENT_ROWS = 256


@dataclass(frozen=True, slots=True)
class RowsLike:
    """A cell: rows of one source, in one bucket of prompt length (tokens) and one of answer length (tokens)."""

    source: str
    prompt_bucket: int
    answer_bucket: int


@dataclass(slots=True)
class Sums:
    """Sums over rows. `measured` is what is compared: accepted tokens, or drafts whose first token was accepted."""

    rows: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)
    drafts: int = 0
    measured: int = 0
    drafts_squared: int = 0
    measured_squared: int = 0
    product: int = 0

    def add(self, acceptance: Acceptance, measured: int) -> None:
        drafts = acceptance.drafts
        self.rows += 1
        self.acceptance += acceptance
        self.drafts += drafts
        self.measured += measured
        self.drafts_squared += drafts * drafts
        self.measured_squared += measured * measured
        self.product += drafts * measured

    def merge(self, other: Sums) -> None:
        self.rows += other.rows
        self.acceptance += other.acceptance
        self.drafts += other.drafts
        self.measured += other.measured
        self.drafts_squared += other.drafts_squared
        self.measured_squared += other.measured_squared
        self.product += other.product

    @property
    def mean(self) -> float:
        """Measured per draft."""
        return self.measured / self.drafts if self.drafts else 0.0

    @property
    def row_variance(self) -> float:
        """Of one row's own rate around the mean, weighted by its drafts squared."""
        return self._residuals / self.drafts_squared if self.drafts_squared else 0.0

    @property
    def mean_variance(self) -> float:
        return self._residuals / self.drafts**2 if self.drafts else 0.0

    @property
    def relative_error(self) -> float:
        return sqrt(self.mean_variance) / self.mean if self.mean else inf

    @property
    def _residuals(self) -> float:
        mean = self.mean
        return max(0.0, self.measured_squared - 2 * mean * self.product + mean * mean * self.drafts_squared)


def is_usable(sums: Sums) -> bool:
    """Precise enough to hold rows against."""
    return sums.rows >= USABLE_ROWS and sums.drafts >= USABLE_DRAFTS and sums.relative_error <= USABLE_ERROR


def is_learned(sums: Sums) -> bool:
    """Nothing more is added to it."""
    return sums.rows >= LEARNED_ROWS or (is_usable(sums) and sums.relative_error <= LEARNED_ERROR)


class Recent:
    """The last rows of a cell: at least `RECENT_ROWS` of them once there were so many, and at most twice that."""

    def __init__(self) -> None:
        self._before = Sums()
        self._now = Sums()

    def add(self, acceptance: Acceptance, measured: int) -> None:
        if self._now.rows >= RECENT_ROWS:
            self._before, self._now = self._now, Sums()
        self._now.add(acceptance, measured)

    def into(self, sums: Sums) -> None:
        sums.merge(self._before)
        sums.merge(self._now)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a row is held against: measured per draft, its variance from row to row, and how uncertain it is itself.

    Rows that share one expectation (`key`) share its error.
    """

    key: object
    mean: float
    row_variance: float
    mean_variance: float

    @classmethod
    def of(cls, key: object, sums: Sums) -> Expectation:
        return cls(key, sums.mean, sums.row_variance, sums.mean_variance)

    @classmethod
    def of_share(cls, key: object, share: float) -> Expectation:
        """For a share of drafts of which nothing else is known: rows as far apart as a share allows."""
        return cls(key, share, share * (1.0 - share), 0.0)


@dataclass(frozen=True, slots=True)
class Compared:
    """One closed window: measured per draft, what was expected of the same rows, and how many drafts."""

    measured: float
    expected: float
    drafts: int
    rows: int

    @property
    def ratio(self) -> float:
        return self.measured / self.expected


class Comparison:
    """Rows against their expectations, in windows; raised when `limit` of what was expected is not reached any more."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._allowed_error = (1.0 - limit) / SIGMAS
        self._good_ratio = limit + RECOVERED_SHARE * (1.0 - limit)
        self._alarm = Alarm(RAISE_WINDOWS, LIFT_WINDOWS)
        self.last: Compared | None = None
        self._open()

    @property
    def is_raised(self) -> bool:
        return self._alarm.is_raised

    @property
    def is_fine(self) -> bool:
        """The last window was as good as lifts an alarm."""
        return self.last is not None and self.last.ratio >= self._good_ratio

    def row(self, drafts: int, measured: int, expectation: Expectation, is_excused: bool = False) -> None:
        """A window that ends with an excused row is not bad, whatever it shows."""
        self._rows += 1
        self._drafts += drafts
        self._measured += measured
        self._expected += drafts * expectation.mean
        self._variance += drafts * drafts * expectation.row_variance
        self._share_error(drafts, expectation)
        if self._rows >= WINDOW_ROWS and self._drafts >= WINDOW_DRAFTS and self._is_precise():
            self._close(is_excused)

    def _share_error(self, drafts: int, expectation: Expectation) -> None:
        """Rows of one cell have its error in common: it does not average out as theirs does."""
        before, added = self._shared.get(expectation.key, (0, 0.0))
        now = before + drafts
        error = now * now * expectation.mean_variance
        self._shared[expectation.key] = (now, error)
        self._shared_variance += error - added

    def _is_precise(self) -> bool:
        error = sqrt(self._variance + self._shared_variance)
        return self._expected > 0 and error <= self._allowed_error * self._expected

    def _close(self, is_excused: bool) -> None:
        self.last = Compared(self._measured / self._drafts, self._expected / self._drafts, self._drafts, self._rows)
        is_good = is_excused or self.is_fine
        self._alarm.window(bad=self.last.ratio <= self._limit and not is_excused, good=is_good)
        self._open()

    def _open(self) -> None:
        self._rows = 0
        self._drafts = 0
        self._measured = 0
        self._expected = 0.0
        self._variance = 0.0
        self._shared: dict[object, tuple[int, float]] = {}
        self._shared_variance = 0.0


def bucket(tokens: int, bounds: tuple[int, ...]) -> int:
    """Which bucket of `bounds` so many tokens belong to."""
    return sum(1 for bound in bounds if tokens >= bound)


def bucket_name(index: int, bounds: tuple[int, ...]) -> str:
    """`<512`, `512-2047`, `>=32768`."""
    if index == 0:
        return f"<{bounds[0]}"
    if index == len(bounds):
        return f">={bounds[-1]}"
    return f"{bounds[index - 1]}-{bounds[index] - 1}"
