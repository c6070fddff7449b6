import pytest

from regen.observe.eta_text import duration, eta_text
from regen.records import Eta, EtaState

RANGE = (6000.0, 7500.0, 11_400.0, 900.0)


@pytest.mark.parametrize(
    ("eta", "text"),
    [
        (Eta(EtaState.ESTIMATING, *RANGE), "about 2h05m left (1h40m to 3h10m)"),
        (Eta(EtaState.STALLED, *RANGE), "stalled; then about 2h05m left (1h40m to 3h10m)"),
        (Eta(EtaState.STALLED), "stalled"),
        (Eta(EtaState.WARMING, naive_seconds=900.0), "too early to say when it ends"),
        (Eta(EtaState.FINISHED, 0.0, 0.0, 0.0, 0.0), "finished"),
    ],
)
def test_an_eta_in_words(eta: Eta, text: str) -> None:
    assert eta_text(eta) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0s"), (95, "1m35s"), (3599.7, "1h00m"), (7300, "2h02m")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
