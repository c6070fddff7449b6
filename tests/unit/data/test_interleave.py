from hypothesis import given
from hypothesis import strategies as st

from regen.data.interleave import interleaved

COUNTS = st.lists(st.integers(0, 60), max_size=6)


@given(COUNTS)
def test_every_row_of_every_source_comes_once(counts):
    order = list(interleaved(counts))
    assert [order.count(source) for source in range(len(counts))] == counts


@given(COUNTS)
def test_each_source_is_always_at_its_share_of_the_way(counts):
    """After the row that stands at t, every source has given t times its rows, give or take half a row."""
    taken = [0] * len(counts)
    for source in interleaved(counts):
        at = (taken[source] + 0.5) / counts[source]
        taken[source] += 1
        assert all(abs(done - at * count) <= 0.5 + 1e-9 for done, count in zip(taken, counts, strict=True))


@given(st.lists(st.integers(1, 200), min_size=1, max_size=3))
def test_any_prefix_is_in_proportion_within_one_row(counts):
    total, taken = sum(counts), [0] * len(counts)
    for length, source in enumerate(interleaved(counts), start=1):
        taken[source] += 1
        assert all(abs(done - length * count / total) <= 1 for done, count in zip(taken, counts, strict=True))


def test_ties_go_by_the_order_of_the_sources():
    assert list(interleaved([2, 2, 1])) == [0, 1, 2, 0, 1]
