"""`make bench-calibration`: what `regen calibrate` chooses on the real engine, against a longer look at each setting.

For every number of slots asked for: `regen calibrate` decides on its own; then each setting makes the same rows by
itself, in a fresh run with calibration off, twice, in the order A B C ... C B A, so that a drifting machine hits all
alike. The loss is how much slower the chosen setting was than the best one in that second measurement.

Costs three to six engine starts for calibration, and two for every setting. Give it a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

RESULTS = Path(__file__).parent / "results" / "calibration.json"
COMMAND_TIMEOUT_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Setting:
    """One arm, and its output tokens per second in each of its own runs."""

    arm: str
    speculation: dict[str, Any] | None
    tokens_per_second: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        return sum(self.tokens_per_second) / len(self.tokens_per_second)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`loss` is the chosen arm's share below the best one, 0 if it was the best."""

    slots: int
    chosen: str
    reason: str
    settings: tuple[Setting, ...]
    loss: float


def main() -> None:
    asked = _arguments()
    outcomes = [_outcome(asked, slots) for slots in asked.slots]
    for outcome in outcomes:
        print(
            f"{outcome.slots} slots: chose {outcome.chosen}, {100 * outcome.loss:.1f} % below the best."
            f" {outcome.reason}"
        )
        for setting in outcome.settings:
            print(
                f"  {setting.arm:12} {setting.mean:8.1f} tok/s  {[round(one, 1) for one in setting.tokens_per_second]}"
            )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="the target's folder")
    parser.add_argument("--head", type=Path, required=True, help="an EAGLE-3 head for it")
    parser.add_argument("--prompts", type=Path, required=True, help="a source file with enough rows")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--num-tokens", type=int, default=3)
    parser.add_argument("--arms", type=int, default=2)
    parser.add_argument("--window-seconds", type=float, default=15.0)
    parser.add_argument("--rows-per-slot", type=int, default=12, help="rows of the second measurement, by slot")
    return parser.parse_args()


def _outcome(asked: argparse.Namespace, slots: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        choice = _calibrated(asked, slots, Path(folder))
        settings = list(_known(asked, choice))
        rates: dict[str, list[float]] = {setting.arm: [] for setting in settings}
        for number, setting in enumerate([*settings, *reversed(settings)]):
            rates[setting.arm].append(_rate(asked, slots, setting, Path(folder) / f"alone-{number}"))
        measured = tuple(Setting(one.arm, one.speculation, tuple(rates[one.arm])) for one in settings)
        means = {setting.arm: setting.mean for setting in measured}
        loss = 1 - means[choice["arm"]] / max(means.values())
        return Outcome(slots, choice["arm"], choice["reason"], measured, loss)


def _calibrated(asked: argparse.Namespace, slots: int, folder: Path) -> dict[str, Any]:
    calibration = {"arms": asked.arms, "window_seconds": asked.window_seconds}
    speculation = {**_configured(asked), "calibrate": "required", "calibration": calibration}
    spec = _spec(asked, slots, folder, speculation, limit=None)
    choice: dict[str, Any] = json.loads(_regen(["calibrate", "--json", spec.name], folder))
    return choice


def _known(asked: argparse.Namespace, choice: dict[str, Any]) -> Iterator[Setting]:
    """What was compared, off and the configured one first; a grid's setting only if it was chosen."""
    yield Setting("off", None)
    yield Setting("configured", _configured(asked))
    if choice["arm"] not in ("off", "configured"):
        yield Setting(choice["arm"], choice["speculation"])


def _configured(asked: argparse.Namespace) -> dict[str, Any]:
    return {"method": "eagle3", "draft": str(asked.head.resolve()), "num_tokens": asked.num_tokens}


def _rate(asked: argparse.Namespace, slots: int, setting: Setting, folder: Path) -> float:
    """Output tokens per second from the first request to the last answer, as the run's report has them."""
    folder.mkdir()
    speculation = None if setting.speculation is None else {**setting.speculation, "calibrate": "off", "gate": "warn"}
    spec = _spec(asked, slots, folder, speculation, limit=max(24, asked.rows_per_slot * slots))
    _regen(["run", "--allow-rejects", spec.name], folder)
    session = json.loads((folder / "run" / "report.json").read_text(encoding="utf-8"))["session"]
    seconds = session["last_generation_at"] - session["first_generation_at"]
    return float(session["output_tokens"] / seconds)


def _spec(
    asked: argparse.Namespace, slots: int, folder: Path, speculation: dict[str, Any] | None, limit: int | None
) -> Path:
    source = {"name": "rows", "path": str(asked.prompts.resolve()), **({"limit": limit} if limit else {})}
    raw: dict[str, Any] = {
        "name": "calibration",
        "output": "run",
        "target": {"model": str(asked.model.resolve())},
        "engine": {
            "kind": "vllm",
            "slots": slots,
            "max_model_len": 1024,
            "args": {"enforce_eager": True, "kv_cache_memory_bytes": 2**29},
        },
        "sampling": {"max_tokens": 128, "temperature": 0.0},
        "sources": [source],
        "metrics": {"port": None},
    }
    if speculation is not None:
        raw["speculation"] = speculation
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return path


def _regen(arguments: Sequence[str], folder: Path) -> str:
    """The standard output of one command that must succeed."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "regen", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        sys.exit(f"regen {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
