from hypothesis import given
from hypothesis import strategies as st

from regen.data.text import canonical_json, digest_of, has_surrogate, printable


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_printable_text_can_always_be_stored(text):
    shown = printable(text)
    shown.encode("utf-8")
    assert has_surrogate(text) is (shown != text)


def test_a_surrogate_is_written_out():
    assert printable("a\ud83db") == "a\\ud83db"


def test_a_long_detail_is_cut_and_says_so():
    assert printable("x" * 600, 500) == "x" * 497 + "..."


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_two_lists_of_parts_have_one_digest_only_if_equal(left, right):
    assert (digest_of(*left) == digest_of(*right)) is (left == right)


def test_canonical_json_keeps_types_and_not_the_order_of_keys():
    assert len({canonical_json(value) for value in (1, 1.0, "1", True, None, 2**70, -0.0, 0.0)}) == 8
    assert canonical_json({"b": 1, "a": 2}) == canonical_json({"a": 2, "b": 1})
