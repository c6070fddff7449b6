"""The order of arms over the rounds."""

from collections import Counter
from itertools import combinations

from benchmarks.peers.ordering import groups, order


def test_each_round_has_every_arm_once():
    assert all(sorted(order("abcde", number)) == list("abcde") for number in range(12))


def test_no_arm_stands_before_another_one_more_often():
    before = Counter(pair for number in range(6) for pair in combinations(order("abcde", number), 2))
    assert all(before[first, then] == 3 for first, then in before)


def test_every_arm_comes_first_in_turn():
    assert {order("abc", number)[0] for number in range(6)} == set("abc")


def test_arms_of_one_server_stand_together_in_turn():
    found = [groups(["a", "b", "c", "d"], ("b", "c"), number) for number in range(2)]
    assert found == [[["a"], ["b", "c"], ["d"]], [["d"], ["c", "b"], ["a"]]]


def test_a_server_with_one_arm_or_none_is_no_matter():
    assert groups(["a", "c"], ("b", "c"), 0) == [["a"], ["c"]]
    assert groups(["a"], ("b", "c"), 0) == [["a"]]
    assert groups([], ("b", "c"), 0) == []
