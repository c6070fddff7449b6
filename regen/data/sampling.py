"""Effective sampling: every field explicit, where it came from, and each generation's seed. Pure.

An in-process engine and a server fill unset fields in different ways; with every field sent they cannot differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from regen.errors import RowRefused, SpecError
from regen.records import Sampling, Stage
from regen.spec import SamplingSpec, TemperatureShare

SEED_BITS = 48
_NEUTRAL: Mapping[str, float | int] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
_WHOLE = frozenset({"top_k", "max_tokens"})


def effective_sampling(
    spec: SamplingSpec,
    generation_config: Mapping[str, object],
    eos_token_ids: Sequence[int],
    row_id: str,
    overrides: Mapping[str, float | int],
) -> Sampling:
    """What this row is sampled with: the row's overrides, else the spec, else the generation config, else neutral.

    Raises SpecError when generation_config.json holds something that is no number, RowRefused on an unknown override.
    """
    values = {name: _resolved(name, spec, generation_config)[0] for name in _NEUTRAL}
    if isinstance(spec.temperature, list):
        values["temperature"] = _drawn(spec.temperature, row_id)
    made = Sampling(
        max_tokens=spec.max_tokens,
        temperature=float(values["temperature"]),
        top_p=float(values["top_p"]),
        top_k=int(values["top_k"]),
        min_p=float(values["min_p"]),
        presence_penalty=float(values["presence_penalty"]),
        frequency_penalty=float(values["frequency_penalty"]),
        repetition_penalty=float(values["repetition_penalty"]),
        stop=tuple(spec.stop),
        stop_token_ids=_stop_token_ids(spec, eos_token_ids),
        **_repetition(spec),
    )
    return _overridden(made, overrides) if overrides else made


def row_seed(run_seed: int | None, row_id: str, turn: int, round: int) -> int | None:
    """The seed of one generation, below 2**48; None when the run is unseeded. Turns and rounds draw differently."""
    if run_seed is None:
        return None
    return _hashed_bits(f"seed\0{run_seed}\0{row_id}\0{turn}\0{round}", SEED_BITS)


def generation_defaults(
    spec: SamplingSpec, generation_config: Mapping[str, object], eos_token_ids: Sequence[int]
) -> dict[str, dict[str, object]]:
    """For each field its value and where that came from (`spec`, `generation_config`, `neutral`), as plain data."""
    made: dict[str, dict[str, object]] = {"max_tokens": {"value": spec.max_tokens, "from": "spec"}}
    for name in _NEUTRAL:
        value, origin = _resolved(name, spec, generation_config)
        made[name] = {"value": value, "from": origin}
    if isinstance(spec.temperature, list):
        mix = [{"value": part.value, "share": part.share} for part in spec.temperature]
        made["temperature"] = {"value": mix, "from": "spec"}
    made["stop"] = {"value": list(spec.stop), "from": "spec" if spec.stop else "neutral"}
    origin = "spec and target" if spec.stop_token_ids else "target"
    for name, limit in _repetition(spec).items():
        made[name] = {"value": limit, "from": "spec" if spec.repetition_detection else "neutral"}
    made["stop_token_ids"] = {"value": list(_stop_token_ids(spec, eos_token_ids)), "from": origin}
    return made


def _resolved(name: str, spec: SamplingSpec, generation_config: Mapping[str, object]) -> tuple[float | int, str]:
    given = getattr(spec, name)
    if isinstance(given, int | float):
        return given, "spec"
    if name == "temperature" and generation_config.get("do_sample") is False:
        return 0.0, "generation_config"
    inherited = generation_config.get(name)
    if inherited is None:
        return _NEUTRAL[name], "neutral"
    if isinstance(inherited, bool) or not isinstance(inherited, int | float):
        raise SpecError(
            f"target.model: generation_config.json: {name} is {inherited!r}: set sampling.{name} to a number"
        )
    if name == "top_k":
        return max(0, int(inherited)), "generation_config"
    return inherited, "generation_config"


def _stop_token_ids(spec: SamplingSpec, eos_token_ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({*spec.stop_token_ids, *eos_token_ids}))


def _repetition(spec: SamplingSpec) -> dict[str, int]:
    """The fields of `Sampling` for the engine's own detector; zeros: it is off."""
    given = spec.repetition_detection.model_dump() if spec.repetition_detection else {}
    names = ("max_pattern_tokens", "min_pattern_tokens", "min_count")
    return {f"repetition_{name}": given.get(name, 0) for name in names}


def _drawn(mix: Sequence[TemperatureShare], row_id: str) -> float:
    """The row's part of the mix: a point in 0..1 drawn from the row id, looked up in the running sum of shares."""
    point = _hashed_bits(f"temperature\0{row_id}", 53) / 2**53
    reached = 0.0
    for part in mix:
        reached += part.share
        if point < reached:
            return part.value
    return next(part.value for part in reversed(mix) if part.share > 0)


def _overridden(made: Sampling, overrides: Mapping[str, float | int]) -> Sampling:
    if unknown := sorted(overrides.keys() - _NEUTRAL.keys() - {"max_tokens"}):
        raise RowRefused(Stage.NORMALIZE, "unknown_sampling_field", ", ".join(unknown))
    typed = {name: int(value) if name in _WHOLE else float(value) for name, value in overrides.items()}
    return replace(made, **typed)  # type: ignore[arg-type]


def _hashed_bits(text: str, bits: int) -> int:
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - bits)
