"""What is sent: every sampling field, by each kind's own names; and what is never sent because it would be dropped."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from regen.engines.openai_bodies import generation_body, not_taken
from regen.records import GenerationRequest, Sampling
from regen.served import ServerKind

NEUTRAL = Sampling(64, 1.0, 1.0, 0, 0.0, 0.0, 0.0, 1.0, (), ())
ODD = Sampling(64, 0.7, 0.9, 20, 0.05, 0.1, 0.2, 1.1, ("END",), (2, 7), 32, 2, 5)
ASKED = GenerationRequest("r1", (5, 6, 7), ODD, cap=50, seed=2**40 + 3)
VLLM, SGLANG, OTHER = ServerKind.VLLM, ServerKind.SGLANG, ServerKind.OTHER


def test_vllm_is_sent_every_field() -> None:
    body = generation_body(VLLM, "target", ASKED)
    assert (body["model"], body["prompt"], body["max_tokens"], body["seed"]) == ("target", [5, 6, 7], 50, 2**40 + 3)
    same = {"temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"}
    assert {name: body[name] for name in same} == {name: getattr(ODD, name) for name in same}
    assert (body["stop"], body["stop_token_ids"]) == (["END"], [2, 7])
    assert body["repetition_detection"] == {"max_pattern_size": 32, "min_pattern_size": 2, "min_count": 5}
    assert body["return_token_ids"] is True
    assert body["watermarking"] is False  # unset means on, where the server has one
    assert body["stream_options"] == {"include_usage": True}


def test_sglang_is_sent_every_field_by_its_own_names() -> None:
    body = generation_body(SGLANG, "target", ASKED)
    sent = body["sampling_params"]
    assert body["input_ids"] == [5, 6, 7]
    assert (sent["max_new_tokens"], sent["top_k"], sent["min_p"]) == (50, 20, 0.05)
    assert (sent["stop"], sent["stop_token_ids"]) == (["END"], [2, 7])
    assert 0 <= sent["sampling_seed"] < 2**31


def test_sglangs_word_for_no_limit_is_minus_one() -> None:
    asked = replace(ASKED, sampling=NEUTRAL, seed=None)
    sent = generation_body(SGLANG, "target", asked)["sampling_params"]
    assert sent["top_k"] == -1
    assert "sampling_seed" not in sent


def test_another_server_is_sent_openais_fields_only() -> None:
    body = generation_body(OTHER, "target", replace(ASKED, sampling=replace(NEUTRAL, stop_token_ids=(2,))))
    assert not body.keys() & {"top_k", "min_p", "repetition_penalty", "stop_token_ids", "repetition_detection", "stop"}
    assert (body["temperature"], body["top_p"], body["seed"]) == (1.0, 1.0, 2**40 + 3)


def test_every_field_of_a_sampling_is_sent_or_refused() -> None:
    """A field that is added to `Sampling` must be added here: nothing is dropped without a word."""
    odd: dict[str, object] = {
        "max_tokens": None,  # the cap is sent in its place
        "repetition_min_pattern_tokens": None,  # goes with the longest
        "repetition_min_count": None,
        **{"temperature": 0.3, "top_p": 0.5, "top_k": 9, "min_p": 0.2, "presence_penalty": 0.4},
        **{"frequency_penalty": 0.6, "repetition_penalty": 1.3, "stop": ("X",), "stop_token_ids": (9,)},
        "repetition_max_pattern_tokens": 8,
    }
    assert odd.keys() == {field.name for field in fields(Sampling)}
    for kind in ServerKind:
        plain = generation_body(kind, "m", replace(ASKED, sampling=NEUTRAL))
        for name, value in odd.items():
            if value is None or (kind is OTHER and name == "stop_token_ids"):  # said in the statement of losses
                continue
            changed = replace(NEUTRAL, **{name: value})  # type: ignore[arg-type]
            is_sent = generation_body(kind, "m", replace(ASKED, sampling=changed)) != plain
            assert is_sent or not_taken(kind, "0.5", False, changed), (kind, name)


@pytest.mark.parametrize(
    ("kind", "version", "speculates", "sampling", "said"),
    [
        (VLLM, "0.32.0", True, replace(NEUTRAL, min_p=0.1), "min_p"),
        (SGLANG, "0.5.5", True, replace(NEUTRAL, min_p=0.1), "min_p"),
        (SGLANG, "0.5.5", False, replace(NEUTRAL, repetition_max_pattern_tokens=8), "repetition_detection"),
        (VLLM, "0.11.0", False, replace(NEUTRAL, repetition_max_pattern_tokens=8), "repetition_detection"),
        (VLLM, None, False, replace(NEUTRAL, repetition_max_pattern_tokens=8), "repetition_detection"),
        (SGLANG, "0.5.5", False, replace(NEUTRAL, repetition_penalty=1.05), "repetition_penalty"),
        (SGLANG, "0.5.5", True, replace(NEUTRAL, presence_penalty=0.5), "presence_penalty"),
        (SGLANG, "0.5.5", True, replace(NEUTRAL, frequency_penalty=-0.5), "frequency_penalty"),
        (OTHER, None, False, replace(NEUTRAL, top_k=20), "top_k"),
        (OTHER, None, False, replace(NEUTRAL, min_p=0.1), "min_p"),
        (OTHER, None, False, replace(NEUTRAL, repetition_penalty=1.1), "repetition_penalty"),
        (OTHER, None, False, replace(NEUTRAL, stop=tuple("abcde")), "stop"),
    ],
)
def test_what_a_server_would_drop_is_named(
    kind: ServerKind, version: str | None, speculates: bool, sampling: Sampling, said: str
) -> None:
    (found,) = not_taken(kind, version, speculates, sampling)
    assert found.startswith(said)
    assert not_taken(kind, version, speculates, NEUTRAL) == ()


def test_what_a_server_takes_is_not_named() -> None:
    assert not_taken(VLLM, "0.32.0", False, ODD) == ()
    assert not_taken(VLLM, "1.0.2rc1", False, ODD) == ()
    assert not_taken(SGLANG, "0.5.5", False, replace(NEUTRAL, min_p=0.1, top_k=20)) == ()
    penalties = replace(NEUTRAL, presence_penalty=0.5, frequency_penalty=0.5)
    assert not_taken(SGLANG, "0.5.5", False, penalties) == ()
    assert not_taken(VLLM, "0.32.0", True, replace(penalties, repetition_penalty=1.05)) == ()


def test_a_penalty_that_the_target_brings_along_is_said_with_what_turns_it_off() -> None:
    (found,) = not_taken(SGLANG, "0.5.5", False, replace(NEUTRAL, repetition_penalty=1.05))
    assert "sampling.repetition_penalty: 1" in found
    assert "generation_config.json" in found
