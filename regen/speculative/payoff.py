"""Whether switching speculation off still pays for itself in the time that is left. Pure.

Off means that one engine drains, ends and starts anew. What is gained is the difference of two rates for the time that
remains after that; what is paid is the time in which that engine makes nothing. Both are counted for the one replica
that is replaced: the others go on meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

# How much longer a step takes that also drafts and verifies, where that was not measured. The least loss seen on a real
# engine: prompt lookup made 205 tok/s where none made 229, 1.12 times. A useless EAGLE-3 head cost 2.3 times, a good
# one 1.5 times at one row and 2.7 times at 16. Assuming the least, an engine is restarted on an assumption only where
# drafts are all but useless; for more, calibration has to measure.
ASSUMED_STEP_COST = 1.1
# An engine that drains goes on with fewer and fewer rows: half of what it would have made is lost.
DRAIN_LOST_SHARE = 0.5
# The gain is an estimate, over hours that are an estimate, and a start can fail: it has to be twice the cost.
GAIN_OVER_COST = 2.0


@dataclass(frozen=True, slots=True)
class Payoff:
    """`reason` is a sentence with the figures that decided."""

    pays: bool
    reason: str


def disabling_pays(
    seconds_left: float | None,
    replicas: int,
    start_seconds: float,
    drain_seconds: float,
    rate_on: float | None,
    rate_off: float | None,
    accept_length_now: float | None,
    accept_length_then: float | None,
) -> Payoff:
    """Whether it pays to restart one of `replicas` without speculation.

    Times in seconds. Rates in output tokens per second of one replica, as they were measured: `rate_on` when accept
    length was `accept_length_then`. Accept length now None, since nothing is counted any more, is taken as 1.0. Without
    both rates and lengths an assumption takes their place (`ASSUMED_STEP_COST`). `seconds_left` None: it is not known.
    """
    if seconds_left is None:
        return Payoff(False, "how long the run still takes is not known")
    now = 1.0 if accept_length_now is None else accept_length_now
    faster, how = _times_faster(now, rate_on, rate_off, accept_length_then)
    if faster <= 1.0:
        return Payoff(False, f"without speculation a replica would not be faster: {how}")
    cost_seconds = start_seconds + DRAIN_LOST_SHARE * drain_seconds
    gain_seconds = (faster - 1.0) * max(0.0, seconds_left - drain_seconds - start_seconds)
    pays = gain_seconds >= GAIN_OVER_COST * cost_seconds
    return Payoff(
        pays,
        f"{how}; restarting one of {replicas} costs {cost_seconds:,.0f} s of its work, and in the"
        f" {seconds_left:,.0f} s that are left it gains {gain_seconds:,.0f} s"
        f" ({'at least' if pays else 'less than'} {GAIN_OVER_COST:g} times the cost)",
    )


def _times_faster(
    now: float, rate_on: float | None, rate_off: float | None, accept_length_then: float | None
) -> tuple[float, str]:
    """(rate without speculation over the rate now, where it comes from)."""
    if rate_off is None or not rate_on or accept_length_then is None:
        return ASSUMED_STEP_COST / now, (
            f"not measured: a step without drafts is taken to be {ASSUMED_STEP_COST:g} times as fast, and accept length"
            f" is {now:.2f}"
        )
    rate_now = rate_on * now / accept_length_then
    return rate_off / rate_now, (
        f"measured {rate_off:,.1f} tok/s without; with speculation {rate_on:,.1f} at accept length"
        f" {accept_length_then:.2f}, which is {rate_now:,.1f} at {now:.2f} now"
    )
