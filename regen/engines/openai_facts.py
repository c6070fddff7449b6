"""A server against the spec: what must agree before a row is sent to it, and what is lost with it. Pure."""

from __future__ import annotations

from regen.served import ServerFacts, ServerKind
from regen.spec import EndpointSpec, SpeculationSpec

# SGLang's words for methods, as the spec has them; it runs a target's own MTP layers as EAGLE. Others use vLLM's.
_METHODS = {"EAGLE": ("eagle", "mtp"), "NEXTN": ("mtp",), "STANDALONE": ("draft_model",)}
_SEEDS = {
    None: "seeds have an effect only where it runs with --enable-deterministic-inference, and it does not say",
    False: "it runs without --enable-deterministic-inference: seeds have no effect, a row made again differs",
}
_SEEDS_OF_DRAFTS = "it speculates: seeds have no effect there, a row made again differs"


def disagreements(
    facts: ServerFacts,
    endpoint: EndpointSpec,
    target: str,
    max_model_len: int,
    speculation: SpeculationSpec | None,
) -> tuple[str, ...]:
    """What must be changed before this server is used; empty: nothing."""
    found = [_model(facts, endpoint, target), _context(facts, max_model_len), _version(facts, endpoint)]
    return tuple(text for text in (*found, _speculation(facts, speculation)) if text is not None)


def losses(
    facts: ServerFacts, gives_ids: bool, gives_counters: bool, shows_tokenizer: bool, is_sampled: bool
) -> tuple[str, ...]:
    """What this server does not give, one sentence each; empty: nothing is lost. `is_sampled`: not greedy."""
    found = []
    if not gives_ids:
        found.append(
            "it gives no ids: those of its text are taken where they give the text back and are as many as it counted,"
            " other answers fail; the id that closed an answer is taken to be the target's first end-of-turn id"
        )
    if facts.kind is ServerKind.OTHER:
        found.append(
            "it cannot rate tokens, so that no canary looks whether speculation changes answers; and which ids end an"
            " answer is its own affair"
        )
    if not shows_tokenizer:
        found.append("it does not show its tokenizer (/tokenize): that it is the target's is taken on trust")
    if facts.kind is ServerKind.SGLANG and is_sampled:
        found.extend(_seeds(facts))
    if facts.context_tokens is None:
        found.append("its longest context is not disclosed: engine.max_model_len is taken on trust")
    if not gives_counters:
        found.append("it gives no counters of speculation: nothing can be said of accept length")
    return tuple(found)


def _seeds(facts: ServerFacts) -> tuple[str, ...]:
    if speculates(facts, False):
        return (_SEEDS_OF_DRAFTS,)
    return () if facts.is_deterministic else (_SEEDS[facts.is_deterministic],)


def draft_of(facts: ServerFacts, speculation: SpeculationSpec | None) -> str | None:
    """What a row records as its draft: the spec's name for it, else the server's."""
    if speculation is not None:
        return speculation.draft_name
    if facts.speculation is None or facts.speculation.method is None:
        return None
    return facts.speculation.draft or facts.speculation.method.lower()


def speculates(facts: ServerFacts, has_counters: bool) -> bool:
    """As far as it discloses; counters of it are there from the start where it is on."""
    return has_counters or (facts.speculation is not None and facts.speculation.method is not None)


def _model(facts: ServerFacts, endpoint: EndpointSpec, target: str) -> str | None:
    if endpoint.model is not None or target in (facts.model, facts.model_path):
        return None
    where = f" from {facts.model_path!r}" if facts.model_path else ""
    return (
        f"it serves {facts.model!r}{where}, and target.model is {target!r}: if they are the same weights, set this"
        f" endpoint's model to {facts.model!r}"
    )


def _context(facts: ServerFacts, max_model_len: int) -> str | None:
    if facts.context_tokens is None or facts.context_tokens >= max_model_len:
        return None
    return (
        f"its context is {facts.context_tokens} tokens, and engine.max_model_len is {max_model_len}: lower that, or"
        " start the server with more"
    )


def _version(facts: ServerFacts, endpoint: EndpointSpec) -> str | None:
    wanted = endpoint.version
    if wanted is None or (facts.version is not None and f"{facts.version}.".startswith(f"{wanted}.")):
        return None
    return f"its version is {facts.version or 'not disclosed'}, and this endpoint's version is {wanted!r}"


def _speculation(facts: ServerFacts, wanted: SpeculationSpec | None) -> str | None:
    """Only what it discloses is held against it. With nothing in the spec, whatever it does is its own affair."""
    said = facts.speculation
    if wanted is None or said is None:
        return None
    if said.method is None:
        return f"its speculation is off, and speculation.method is {wanted.method!r}: start the server with it"
    if wanted.method not in _METHODS.get(said.method, (said.method.lower(),)):
        return f"it speculates with {said.method!r}, and speculation.method is {wanted.method!r}"
    if said.num_tokens is not None and said.num_tokens != wanted.num_tokens:
        return f"it drafts {said.num_tokens} tokens, and speculation.num_tokens is {wanted.num_tokens}"
    return None
