"""The result as people read it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any


def progress(number: int, arm: str, found: Mapping[str, Any]) -> str:
    cut = "      -" if found["cut"] is None else f"{found['cut']:>7.1f}"
    busy = "     -" if found["busy_share"] is None else f"{found['busy_share']:>6.1%}"
    return (
        f"round {number}  {arm:<11}  {found['output_tokens']:>6} tokens  whole {found['whole']:>6.1f} tok/s in"
        f" {found['whole_seconds']:>5.1f} s  cut {cut} tok/s  slots busy {busy}"
        f"  prefix hits {found['hit_share']:>5.1%}  (start {found['start_seconds']:.0f} s,"
        f" process {found['total_seconds']:.0f} s)"
    )


def table(
    rounds: Sequence[Mapping[str, Any]], compared: Sequence[Mapping[str, Any]], skipped: Mapping[str, str]
) -> Iterator[str]:
    yield ""
    yield f"{'arm':<11}  {'rounds':>6}  {'whole tok/s':>11}  {'cut tok/s':>9}  {'slots busy':>10}  {'prefix hits':>11}"
    for arm in dict.fromkeys(arm for one in rounds for arm in one):
        yield _arm_line(arm, [one[arm] for one in rounds if arm in one])
    yield ""
    yield f"{'over':<25}  {'measure':<7}  {'pairs':>5}  {'ratio':>6}  {'95 % interval':<16}  lower bound and aim"
    yield from map(_comparison_line, compared)
    for arm, reason in skipped.items():
        yield f"not measured: {arm}: {reason.splitlines()[0]}"


def _arm_line(arm: str, found: Sequence[Mapping[str, Any]]) -> str:
    cuts = [one["cut"] for one in found if one["cut"] is not None]
    busy = [one["busy_share"] for one in found if one["busy_share"] is not None]
    return (
        f"{arm:<11}  {len(found):>6}  {mean(one['whole'] for one in found):>11.1f}"
        f"  {f'{mean(cuts):.1f}' if cuts else '-':>9}  {f'{mean(busy):.1%}' if busy else '-':>10}"
        f"  {mean(one['hit_share'] for one in found):>11.1%}"
    )


def _comparison_line(one: Mapping[str, Any]) -> str:
    aim = "" if one["aim"] is None else f"{one['low']:.3f} {'>=' if one['reached'] else '< '} {one['aim']:.2f}"
    over = f"{one['arm']} / {one['base']}"
    interval = f"{one['low']:.3f} to {one['high']:.3f}"
    return f"{over:<25}  {one['measure']:<7}  {one['pairs']:>5}  {one['ratio']:>6.3f}  {interval:<16}  {aim}"
