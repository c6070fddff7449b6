"""Acceptance arithmetic and the bitmap."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regen.errors import Fenced, RowFailed, RowRefused
from regen.ordinals import OrdinalSet
from regen.records import Acceptance


def test_accept_length_is_one_when_every_draft_token_is_rejected() -> None:
    assert Acceptance(drafts=1000, drafted=3000, accepted=0).accept_length == 1.0


def test_accept_length_is_unknown_before_any_step_and_never_zero() -> None:
    assert Acceptance().accept_length is None


def test_acceptances_of_different_depth_add_up() -> None:
    total = Acceptance(10, 30, 8, (5, 2, 1)) + Acceptance(10, 10, 4, (4,))
    assert total == Acceptance(20, 40, 12, (9, 2, 1))
    assert total.accept_length == pytest.approx(1.6)


@given(st.integers(0, 70).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, max(0, size - 1))))))
def test_an_ordinal_set_is_a_set(given_set: tuple[int, set[int]]) -> None:
    size, members = given_set
    members = {member for member in members if member < size}
    made = OrdinalSet(size, members)
    assert list(made) == sorted(members)
    assert len(made) == len(members)
    assert made.first_absent(0) == next((i for i in range(size) if i not in members), size)
    assert list(OrdinalSet.from_text(size, made.to_text())) == sorted(members)
    for start in {0, 1, 7, 8, 9, size // 2, size}:
        assert list(made.absent(start)) == [i for i in range(start, size) if i not in members]


def test_an_ordinal_outside_the_plan_is_refused() -> None:
    with pytest.raises(IndexError, match="outside a plan of 3 rows"):
        OrdinalSet(3).add(3)


@pytest.mark.parametrize("error", [RowRefused("render", "template_refused", "x"), RowFailed("a", "b"), Fenced("who")])
def test_errors_cross_processes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))
