"""A server against the spec, and the statement of what is lost with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regen.engines.openai_facts import disagreements, draft_of, losses
from regen.served import ServerFacts, ServerKind, Speculation
from regen.spec import EndpointSpec, SpeculationSpec

FACTS = ServerFacts("http://h:1", ServerKind.VLLM, "target", "0.32.0", "/models/target", 4096)
EAGLE3 = SpeculationSpec(method="eagle3", draft="head", num_tokens=3, calibrate="off")
ON = Speculation("EAGLE3", "head", 3)


def found(facts: ServerFacts = FACTS, speculation: SpeculationSpec | None = None, **endpoint: Any) -> tuple[str, ...]:
    return disagreements(facts, EndpointSpec(url="http://h:1", **endpoint), "/models/target", 4096, speculation)


def test_a_server_that_agrees_is_taken() -> None:
    assert found() == ()
    assert found(version="0.32") == ()
    assert found(replace(FACTS, model_path="elsewhere"), model="target") == ()
    assert found(replace(FACTS, context_tokens=None)) == ()


@pytest.mark.parametrize(
    ("facts", "endpoint", "said"),
    [
        (replace(FACTS, model_path="/models/other"), {}, "it serves 'target' from '/models/other'"),
        (replace(FACTS, context_tokens=4095), {}, "its context is 4095"),
        (FACTS, {"version": "0.3"}, "its version is 0.32.0"),
        (replace(FACTS, version=None), {"version": "0.32"}, "its version is not disclosed"),
    ],
)
def test_what_does_not_agree_is_named(facts: ServerFacts, endpoint: dict[str, Any], said: str) -> None:
    (text,) = found(facts, **endpoint)
    assert text.startswith(said)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Speculation(None), "its speculation is off"),
        (Speculation("EAGLE", "head", 3), "it speculates with 'EAGLE'"),
        (Speculation("EAGLE3", "head", 5), "it drafts 5 tokens"),
    ],
)
def test_its_speculation_must_be_the_specs(said: Speculation, words: str) -> None:
    (text,) = found(replace(FACTS, speculation=said), EAGLE3)
    assert text.startswith(words)


def test_what_is_not_disclosed_or_not_in_the_spec_is_not_held_against_it() -> None:
    assert found(FACTS, EAGLE3) == ()
    assert found(replace(FACTS, speculation=ON), EAGLE3) == ()
    assert found(replace(FACTS, speculation=Speculation("EAGLE", None, 3))) == ()
    mtp = SpeculationSpec(method="mtp", num_tokens=3, calibrate="off")
    assert found(replace(FACTS, speculation=Speculation("EAGLE", None, 3)), mtp) == ()


def test_the_draft_of_a_row_is_the_specs_or_the_servers() -> None:
    assert draft_of(FACTS, None) is None
    assert draft_of(FACTS, EAGLE3) == "head"
    assert draft_of(replace(FACTS, speculation=ON), None) == "head"
    assert draft_of(replace(FACTS, speculation=Speculation("NGRAM")), None) == "ngram"


@pytest.mark.parametrize(
    ("speculation", "is_deterministic", "said"),
    [(None, True, None), (None, False, "--enable-deterministic-inference"), (ON, True, "it speculates: seeds")],
)
def test_what_becomes_of_seeds_at_an_sglang_server(
    speculation: Speculation | None, is_deterministic: bool, said: str | None
) -> None:
    facts = replace(FACTS, kind=ServerKind.SGLANG, speculation=speculation, is_deterministic=is_deterministic)
    assert losses(facts, True, True, True, is_sampled=False) == ()
    text = " ".join(losses(facts, True, True, True, is_sampled=True))
    assert (said in text) if said else text == ""


def test_losses_are_said_and_nothing_else() -> None:
    assert losses(FACTS, gives_ids=True, gives_counters=True, shows_tokenizer=True, is_sampled=True) == ()
    other = replace(FACTS, kind=ServerKind.OTHER, context_tokens=None)
    text = " ".join(losses(other, gives_ids=False, gives_counters=False, shows_tokenizer=False, is_sampled=True))
    for word in ("no ids", "cannot rate", "context", "counters"):
        assert word in text
