"""What people read of the result."""

from benchmarks.peers.table import progress, table

FOUND = {
    "output_tokens": 10,
    "whole": 5.0,
    "whole_seconds": 2.0,
    "cut": None,
    "busy_share": None,
    "hit_share": 0.5,
    "start_seconds": 1.0,
    "total_seconds": 4.0,
}


def test_an_arm_without_a_window_has_no_rate_there():
    assert "cut       - tok/s" in progress(0, "chat", FOUND)
    assert any(line.split() == ["chat", "2", "6.0", "9.0", "-", "50.0%"] for line in table(ROUNDS, [], {}))


ROUNDS = [{"chat": FOUND}, {"chat": {**FOUND, "whole": 7.0, "cut": 9.0}}]


def test_what_was_not_measured_is_named_with_its_reason():
    assert (
        list(table(ROUNDS, [], {"ray_data": "exit code 1: ray\nits log"}))[-1]
        == "not measured: ray_data: exit code 1: ray"
    )


def test_a_bound_is_shown_beside_its_aim():
    one = {"arm": "regen", "base": "chat", "measure": "cut", "pairs": 6, "ratio": 0.99, "low": 0.97, "high": 1.01}
    lines = list(table(ROUNDS, [{**one, "aim": 0.98, "reached": False}, {**one, "aim": None, "reached": None}], {}))
    assert lines[-2].endswith("0.970 to 1.010    0.970 <  0.98")
    assert lines[-1].rstrip().endswith("0.970 to 1.010")
