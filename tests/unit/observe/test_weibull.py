"""A light-tailed length, learned from rows that were watched for a while."""

import math
import random

import pytest

from regen.observe import weibull
from regen.observe.lengths import Group, Lengths, Running


@pytest.mark.parametrize("shape", [0.7, 1.0, 3.0])
@pytest.mark.parametrize("watched", [500.0, 2000.0, 20_000.0])
def test_shape_and_scale_are_found_however_long_rows_were_watched(shape: float, watched: float) -> None:
    draw = random.Random(1)
    lengths = [draw.weibullvariate(1000, shape) for _ in range(3000)]
    ended = [(math.log(tokens), 1.0) for tokens in lengths if tokens < watched]
    longer = [(math.log(watched), float(len(lengths) - len(ended)))]
    found, scale = weibull.fitted(ended, longer)
    assert found == pytest.approx(shape, rel=0.08)
    assert scale == pytest.approx(1000, rel=0.12)
    assert weibull.share_above(found, scale, scale) == pytest.approx(math.exp(-1))


def test_one_row_or_equal_ones_leave_numbers() -> None:
    for ended in ([(5.0, 1.0)], [(5.0, 500.0)]):
        shape, scale = weibull.fitted(ended, [])
        assert math.isfinite(shape)
        assert scale == pytest.approx(math.exp(5), rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_the_tail_of_exponential_lengths_is_not_taken_for_a_heavy_one(seed: int) -> None:
    """Rows of 2,000 tokens on average, each watched for 2,000. A lognormal alone says 1.6 times as much."""
    draw = random.Random(seed)
    lengths = Lengths({"a": Group(32_768)})
    running = []
    for _ in range(600):
        tokens = draw.expovariate(1 / 2000)
        if tokens < 2000:
            lengths.saw("a", round(tokens), is_earlier=False)
        else:
            running.append(Running("a", 2000))
    curve = next(lengths.guesses(running, 0))["a"]
    assert curve.made(math.inf) == pytest.approx(2000, rel=0.15)


@pytest.mark.parametrize("seed", range(5))
def test_that_of_a_lognormal_is_not_taken_for_a_light_one(seed: int) -> None:
    draw = random.Random(seed)
    lengths = Lengths({"a": Group(32_768)})
    for _ in range(600):
        lengths.saw("a", min(32_768, max(1, round(draw.lognormvariate(math.log(1000), 1.2)))), is_earlier=False)
    curve = next(lengths.guesses([], 0))["a"]
    assert curve.above(8000) == pytest.approx(0.5 * math.erfc(math.log(8) / 1.2 / math.sqrt(2)), rel=0.5)
