"""An ETA in words: `about 2h05m left (1h40m to 3h10m)`. Pure."""

from __future__ import annotations

from regen.records import Eta, EtaState


def eta_text(eta: Eta) -> str:
    """Short, for one line. A stall is said first, and what would be left without it after."""
    if eta.state is EtaState.FINISHED:
        return "finished"
    left = _left(eta)
    if eta.state is EtaState.STALLED:
        return f"stalled; then {left}" if left else "stalled"
    return left or "too early to say when it ends"


def _left(eta: Eta) -> str:
    if eta.low_seconds is None or eta.mid_seconds is None or eta.high_seconds is None:
        return ""
    low, mid, high = (duration(seconds) for seconds in (eta.low_seconds, eta.mid_seconds, eta.high_seconds))
    return f"about {mid} left ({low} to {high})"


def duration(seconds: float) -> str:
    """`95` -> `1m35s`; `7300` -> `2h02m`."""
    if seconds >= 3599.5:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours}h{minutes:02d}m"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
