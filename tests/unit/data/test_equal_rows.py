from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from regen.data.equal_rows import EqualRows


@given(st.lists(st.sampled_from([bytes([a, b]) * 8 for a in range(3) for b in range(3)])))
def test_counts_how_many_came_before(digests):
    equal, seen = EqualRows(), Counter[bytes]()
    for digest in digests:
        assert equal.count(digest) == seen[digest]
        seen[digest] += 1


def test_an_entry_across_two_others_is_not_taken_for_one():
    equal = EqualRows()
    equal.count(b"\0\0" + b"aaaabbbb" + b"\0" * 6)
    equal.count(b"\0\0" + b"ccccdddd" + b"\0" * 6)
    assert equal.count(b"\0\0" + b"bbbbcccc" + b"\0" * 6) == 0
