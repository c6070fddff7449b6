"""The draft of a running server, judged by its files: preflight's own checks, and what is in effect there. Pure.

Preflight speaks of a spec and of an engine that regen starts; here the fix is the server's own flag. Checks whose fix
is something that regen would do for its own engine are left out or said anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

from regen.checkpoints import Checkpoint, EngineFacts
from regen.served import ServerFacts, ServerKind
from regen.spec import DRAFTLESS_METHODS, Method, SamplingSpec, SpeculationSpec
from regen.speculative.checks.subject import target_layers
from regen.speculative.draft import IDS, Draft, Family, default_ids, specforge_ids
from regen.speculative.evidence import Evidence, Finding, Severity
from regen.speculative.preflight import CHECKS, preflight

SGLANG_METHODS = {
    "EAGLE3": "eagle3",
    "EAGLE": "eagle",
    "NEXTN": "mtp",
    "STANDALONE": "draft_model",
    "NGRAM": "ngram",
    "DFLASH": "dflash",
}
_METHODS = frozenset(get_args(Method))
_OTHER_CODES = frozenset(
    {
        "weights-contradict-config",
        "draft-architecture-unknown",
        "target-cannot-feed-draft",
        "mtp-absent",
        "verifier-mismatch",
        "aux-states-off",
        "hidden-size",
        "vocabulary-size",
        "vocabulary-padding",
        "draft-vocabulary",
        "head-count",
        "draft-config-unusable",
        "layer-count",
        "draft-positions",
        "tokenizer-mismatch",
        "tokenizer-of-other-target",
        "layer-ids-malformed",
        "layer-ids-out-of-range",
        "layer-ids-count",
        "layer-ids-conflict",
        "layer-ids-unusual",
    }
)
_CHECKS = tuple(check for check in CHECKS if check.code in _OTHER_CODES or check.code.startswith(("d2t-", "weights-")))
_POSITIONS_FIX = "Expect little acceptance beyond; serve a shorter context, or use a draft made for this one."


@dataclass(frozen=True, slots=True)
class DraftFiles:
    """What the files say. `layers` is a sentence on the auxiliary layers in effect, None for a draft that has none."""

    described: str
    layers: str | None
    findings: tuple[Finding, ...]


def method_of(facts: ServerFacts) -> str | None:
    """The server's method in regen's words; None: off, not disclosed, or a word that is not known here."""
    said = facts.speculation.method if facts.speculation is not None else None
    if said is None:
        return None
    if facts.kind is ServerKind.SGLANG:
        return SGLANG_METHODS.get(said)
    return "mtp" if said.endswith("_mtp") else said if said in _METHODS else None


def read_draft_files(
    facts: ServerFacts, draft: Checkpoint, target: Checkpoint | None, engine: EngineFacts
) -> DraftFiles:
    """`target` is None where its files are out of reach; `engine` is empty unless the server's version is known."""
    method = method_of(facts)
    plain = Draft(draft, SpeculationSpec(method="draft_model", draft=draft.name, num_tokens=1))
    if method == "eagle" and facts.kind is ServerKind.SGLANG and plain.family is Family.MTP:
        method = "mtp"  # SGLang runs prediction layers as EAGLE
    judged = method if method in _METHODS and method not in DRAFTLESS_METHODS else None
    family = plain.family.value if plain.family is not None and plain.family.value in _METHODS else None
    if (as_if := judged or family) is None:
        return DraftFiles(plain.described, None, ())
    evidence = _evidence(as_if, facts, draft, target, engine)
    head = Draft(draft, evidence.speculation)
    findings = [*_mismatch(facts, judged, head), *_other_draft(facts, draft), *_from_preflight(evidence, facts)]
    if head.family is Family.EAGLE3:
        findings += _layer_findings(facts, head, target_layers(evidence))
    return DraftFiles(plain.described, _layers(facts, judged, head, evidence), tuple(findings))


def _evidence(
    method: str, facts: ServerFacts, draft: Checkpoint, target: Checkpoint | None, engine: EngineFacts
) -> Evidence:
    tokens = facts.speculation.num_tokens if facts.speculation is not None else None
    spec = SpeculationSpec.model_validate({"method": method, "draft": draft.name, "num_tokens": tokens or 1})
    return Evidence(
        speculation=spec,
        sampling=SamplingSpec.model_validate({"max_tokens": 1}),
        target=target if target is not None else Checkpoint(facts.model, config=None),
        draft=draft,
        engine=engine,
        max_model_len=facts.context_tokens or 0,
    )


def _from_preflight(evidence: Evidence, facts: ServerFacts) -> list[Finding]:
    own = _own_word(facts)
    found = []
    for finding in preflight(evidence, _CHECKS):
        text = finding.found.replace("speculation.method", own).replace("engine.max_model_len", "the server's context")
        fix = _POSITIONS_FIX if finding.code == "draft-positions" else finding.fix
        found.append(replace(finding, found=text, fix=fix))
    return found


def _mismatch(facts: ServerFacts, method: str | None, head: Draft) -> Iterator[Finding]:
    """The founding fault: EAGLE for an EAGLE-3 draft, and its like."""
    if method is None or head.family is None or head.family == method:
        return
    said = facts.speculation.method if facts.speculation is not None else None
    yield Finding(
        "method-mismatch",
        Severity.REFUSE,
        f"the server runs {_own_word(facts)} {said!r}, the draft's config.json says {head.described}"
        f" (made for {head.family.value!r})",
        "Nothing fails: auxiliary states are never captured, and every draft token is rejected.",
        _restart(facts, head.family),
    )


def _other_draft(facts: ServerFacts, draft: Checkpoint) -> Iterator[Finding]:
    """Whether the files that are judged are of the draft that the server names: by name, which is all there is."""
    said = facts.speculation.draft if facts.speculation is not None else None
    if said is None or _last_name(said) == _last_name(draft.name):
        return
    yield Finding(
        "draft-other",
        Severity.NOTE,
        f"the server's draft is {said!r}, the files that are judged here are {draft.name!r}",
        "Findings on files hold for these files alone.",
        "Compare the two config.json, or judge the server's own copy.",
    )


def _last_name(path: str) -> str:
    """A folder's or repository's own name; in the hub's cache the repository's, not the snapshot's."""
    parts = [part for part in path.split("/") if part]
    cached = [part for part in parts if part.startswith("models--")]
    return cached[-1].rpartition("--")[2] if cached else parts[-1] if parts else path


def _restart(facts: ServerFacts, family: Family) -> str:
    if facts.kind is ServerKind.SGLANG:
        name = next((name for name, method in SGLANG_METHODS.items() if method == family.value), None)
        return f"Restart it with --speculative-algorithm {name}." if name else "Restart it with another draft."
    return f'Restart it with "method": "{family.value}" in --speculative-config.'


def _own_word(facts: ServerFacts) -> str:
    return "speculative_algorithm" if facts.kind is ServerKind.SGLANG else "speculative_config.method"


# --- auxiliary layers ----------------------------------------------------------------------------


def _layers(facts: ServerFacts, method: str | None, head: Draft, evidence: Evidence) -> str | None:
    if head.family is not Family.EAGLE3:
        return None
    if method is not None and method != Family.EAGLE3:
        return f"none: {_own_word(facts)} {method!r} captures no auxiliary states"
    if not head.uses_states:
        return "none: the draft's eagle_config.use_aux_hidden_state is false"
    number = target_layers(evidence)
    if facts.kind is ServerKind.SGLANG:
        return _sglang_layers(head, evidence)
    if head.layer_ids is not None:
        return f"{list(head.layer_ids)}, by what enters them, as its config names them"
    return f"{list(default_ids(number))}, vLLM's default" if number else "vLLM's default: its config names none"


def _sglang_layers(head: Draft, evidence: Evidence) -> str:
    """SGLang adds one to a config's ids for Llama targets, for DeepSeek and Kimi only if the first of them is 1."""
    ids, number = head.layer_ids, target_layers(evidence)
    names = " ".join(map(str, (evidence.target.config or {}).get("architectures") or ())).lower()
    if ids is None:
        return (
            f"{list(default_ids(number))}, the usual default: its config names none"
            if number
            else "its config names none"
        )
    if "llama" in names or (ids[:1] == (1,) and ("deepseek" in names or "kimi" in names)):
        return f"{[number + 1 for number in ids]} by what enters them: SGLang adds 1 to the config's {list(ids)}"
    if "deepseek" in names or "kimi" in names:
        return f"{list(ids)}, as its config names them"
    return f"{list(ids)} in its config; how SGLang counts them for this target is not known here"


def _layer_findings(facts: ServerFacts, head: Draft, layers: int | None) -> Iterator[Finding]:
    """vLLM only: SGLang counts otherwise. Its GPU runner reads the top-level key and no other."""
    if facts.kind is not ServerKind.VLLM or not head.uses_states or head.layer_ids is None:
        return
    if IDS not in head.written_ids:
        yield Finding(
            "layer-ids-unread",
            Severity.WARN,
            f"the draft's config.json has layer ids only as {next(iter(head.written_ids))}",
            "vLLM's runner for GPUs does not read that key and takes its default layers without a word.",
            f"Write {IDS}: {list(head.layer_ids)} at the top level of the draft's config.json, and restart the server.",
        )
    if layers is not None and tuple(sorted(head.layer_ids)) == specforge_ids(layers):
        yield Finding(
            "layer-convention",
            Severity.WARN,
            f"the draft's layers {list(head.layer_ids)} are SpecForge's default for {layers} layers, counted by what"
            " leaves them; vLLM counts by what enters them",
            "One layer beside the right one halves acceptance and shows as no error (1.11 where 1.80 was right).",
            f"If it was trained with SpecForge, write {list(default_ids(layers))} into its config.json, and restart.",
        )
