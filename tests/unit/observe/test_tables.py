"""Tables fit a terminal of 80 columns."""

from __future__ import annotations

import io
from dataclasses import dataclass

from rich.console import Console

from regen.data.plan_summary import SourceSummary
from regen.observe.tables import calibration_table, facts_table, plan_table


@dataclass(frozen=True)
class Choice:
    arm: str
    reason: str
    arms: list[dict[str, object]]


def test_a_calibration_of_four_arms_fits_80_columns_whole() -> None:
    figures = {
        "tokens_per_second": 12_345.6,
        "low": 12_000.0,
        "high": 12_700.0,
        "accept_length": 2.31,
        "prefix_hit_rate": None,
        "prefill_tokens": 1_234_567,
        "preemptions": 0,
        "seconds": 123.4,
        "engines": 3,
    }
    arms: list[dict[str, object]] = [{"arm": name, **figures} for name in ("configured", "off", "tokens=1", "tokens=5")]
    out = io.StringIO()
    Console(file=out, width=80).print(calibration_table(Choice("off", "it is faster", arms)))
    lines = out.getvalue().splitlines()
    assert "…" not in out.getvalue()
    assert max(map(len, lines)) <= 80
    for word in (
        "configured",
        "tokens per second",
        "12,346",
        "1234567",
        "prefix hit rate",
        "chosen: off. it is faster",
    ):
        assert word in out.getvalue()


def test_a_plan_of_a_hundred_million_tokens_loses_no_digit_in_80_columns() -> None:
    source = SourceSummary(
        name="preference",
        rows=83_288,
        accepted=83_288,
        rejected={},
        notes={},
        files=(),
        changed=83_288,
        turns=173_288,
        prompt_tokens=115_000_000,
        longest_prompt_tokens=8_192,
    )
    out = io.StringIO()
    Console(file=out, width=80).print(plan_table([source], "d"))
    assert "…" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "preference" in out.getvalue()
    for number in ("83,288", "173,288", "115,000,000", "8,192"):
        assert out.getvalue().count(number) >= 2, "in its line, and in the last"


def test_what_strangers_wrote_moves_no_cursor() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, _environ={"TERM": "xterm", "NO_COLOR": "1"})
    console.print(facts_table("Run", [("trouble", "died: \x1b[2J\x9b31m\x1b]0;owned\x07")]))
    console.print(calibration_table(Choice("off", "it said \x1b[2J", [])))
    assert "died:" in out.getvalue()
    assert not {"\x9b", "\x07"} & set(out.getvalue())
    assert "\x1b[2J" not in out.getvalue()
    assert "\x1b]" not in out.getvalue()
