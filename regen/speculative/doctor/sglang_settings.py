"""What an SGLang server's own settings tell of its speculation, each as one finding. Pure.

Known of SGLang 0.5's source, which says none of it at its door: /server_info holds the settings as they are after its
start, so its own corrections (NEXTN is EAGLE, a chain's draft tokens are steps + 1) are in them already. Whatever does
not fit them after that is another version, a gateway, or an edited answer. Settings of vLLM are not looked at here.
"""

from __future__ import annotations

from regen.records import Acceptance
from regen.served import ServerKind
from regen.speculative.doctor.checks import ServerCheck, is_dead
from regen.speculative.doctor.draft_files import SGLANG_METHODS
from regen.speculative.doctor.visit import LEAST_DRAFTS, Visit
from regen.speculative.evidence import Fault, Severity

STEPS, TOPK, DRAFT_TOKENS = "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"
_LOAD_FORMAT = "speculative_draft_load_format"
_TOKEN_MAP = "speculative_token_map"
_ADAPTIVE = "speculative_adaptive"
_EAGLE_FAMILY = ("EAGLE", "EAGLE3", "STANDALONE")
_WITH_DRAFT = (*_EAGLE_FAMILY, "DFLASH")
# Beyond what the first token of an answer, which nothing verified, adds to 64 verifications.
_SAID_TOLERANCE = 0.03


def _method(visit: Visit) -> str | None:
    """SGLang's word, None where speculation is off, not disclosed or somebody else's."""
    said = visit.facts.speculation
    return said.method if said is not None and visit.facts.kind is ServerKind.SGLANG else None


def _setting(visit: Visit, name: str) -> object:
    return visit.facts.speculation.settings.get(name) if visit.facts.speculation is not None else None


def _size(visit: Visit, name: str) -> int | None:
    value = _setting(visit, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# --- the draft -----------------------------------------------------------------------------------


def draft_random(visit: Visit) -> Fault | None:
    if _method(visit) is None or _setting(visit, _LOAD_FORMAT) != "dummy":
        return None
    return Fault(
        f"{_LOAD_FORMAT} is 'dummy': the draft's weights are random, whatever its files hold",
        f"Restart the server without {_flag(_LOAD_FORMAT)}.",
    )


def draft_unnamed(visit: Visit) -> Fault | None:
    method, said = _method(visit), visit.facts.speculation
    if method not in _WITH_DRAFT or said is None or said.draft is not None:
        return None
    return Fault(
        f"speculative_algorithm is {method!r} and speculative_draft_model_path is empty: SGLang then loads the"
        " target's own checkpoint as the draft",
        "Restart the server with --speculative-draft-model-path.",
    )


def draft_is_target(visit: Visit) -> Fault | None:
    """EAGLE may: prediction layers lie in the target's own checkpoint, and SGLang writes that path itself."""
    method, said = _method(visit), visit.facts.speculation
    if method not in ("EAGLE3", "STANDALONE", "DFLASH") or said is None or said.draft is None:
        return None
    if said.draft.rstrip("/") != (visit.facts.model_path or "").rstrip("/"):
        return None
    return Fault(
        f"speculative_draft_model_path and model_path are both {said.draft!r}, under {method!r}",
        "Name the draft's own checkpoint with --speculative-draft-model-path.",
    )


def token_map_ignored(visit: Visit) -> Fault | None:
    if _method(visit) != "EAGLE3" or _setting(visit, _TOKEN_MAP) is None:
        return None
    return Fault(
        f"{_TOKEN_MAP} is {_setting(visit, _TOKEN_MAP)!r}: under EAGLE3 SGLang ignores it and takes the draft's d2t",
        f"Leave {_flag(_TOKEN_MAP)} out.",
    )


def algorithm_unknown(visit: Visit) -> Fault | None:
    method = _method(visit)
    if method is None or method in SGLANG_METHODS:
        return None
    return Fault(
        f"speculative_algorithm is {method!r}; known here are {', '.join(SGLANG_METHODS)}",
        "Judge it by the counts alone.",
    )


# --- sizes ---------------------------------------------------------------------------------------


def sizes_missing(visit: Visit) -> Fault | None:
    if _method(visit) not in _EAGLE_FAMILY:
        return None
    missing = [name for name in (STEPS, TOPK, DRAFT_TOKENS) if _size(visit, name) is None]
    if not missing:
        return None
    return Fault(
        f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in the server's answer",
        "Read the start command, and give them there: SGLang chooses them by the target's architecture otherwise.",
    )


def sizes_odd(visit: Visit) -> Fault | None:
    steps, topk, tokens = (_size(visit, name) for name in (STEPS, TOPK, DRAFT_TOKENS))
    if _method(visit) not in _EAGLE_FAMILY or steps is None or topk is None or tokens is None:
        return None
    said = f"{STEPS} is {steps}, {TOPK} is {topk}, {DRAFT_TOKENS} is {tokens}"
    if steps < 1 or topk < 1 or tokens < 2:
        return Fault(f"{said}: nothing can be drafted", f"Restart the server with {_flag(STEPS)} 3 or so.")
    if topk == 1 and tokens != steps + 1:
        return Fault(f"{said}: a chain of {steps} steps has {steps + 1}", f"Leave {_flag(DRAFT_TOKENS)} out.")
    most = topk + (steps - 1) * topk**2
    if tokens - 1 > most:
        return Fault(
            f"{said}: such a tree has no more than {most} nodes to choose from", f"Lower {_flag(DRAFT_TOKENS)}."
        )
    return None


def draft_tree(visit: Visit) -> Fault | None:
    topk = _size(visit, TOPK)
    if _method(visit) not in _EAGLE_FAMILY or topk is None or topk < 2:
        return None
    return Fault(
        f"{TOPK} is {topk}: each verification proposes a tree, of which one path at most is accepted",
        "Compare accept lengths, not shares of proposed tokens, with a draft's card.",
    )


def adaptive_depth(visit: Visit) -> Fault | None:
    if _method(visit) is None or _setting(visit, _ADAPTIVE) is not True:
        return None
    return Fault(
        f"{_ADAPTIVE} is true: the number of steps follows what is accepted",
        f"Leave {_flag(_ADAPTIVE)} out to compare with a draft's card.",
    )


# --- counts --------------------------------------------------------------------------------------


def counts_contradict(visit: Visit) -> Fault | None:
    """More than the settings allow. Fewer are right: a proposal may be cut."""
    total, tokens = visit.counted.total, _size(visit, DRAFT_TOKENS)
    if _method(visit) is None or total is None or not total.drafts or tokens is None:
        return None
    if _setting(visit, _ADAPTIVE) is True:
        return None
    deepest = max((at + 1 for at, count in enumerate(total.accepted_by_position) if count), default=0)
    if total.drafted <= total.drafts * (tokens - 1) and deepest <= tokens - 1:
        return None
    return Fault(
        f"{DRAFT_TOKENS} is {tokens}, and {_per_verification(total)} were proposed, up to {deepest} accepted at once",
        "Look whether another server answers behind this address than the one that tells its settings.",
    )


def _per_verification(seen: Acceptance) -> str:
    return f"{seen.drafted / seen.drafts:.1f} tokens a verification"


def said_length_differs(visit: Visit) -> Fault | None:
    """SGLang divides completion tokens by verifications: too much by one over the verifications of each answer."""
    total = visit.counted.total
    length = total.accept_length if total is not None else None
    said = [
        request.said_accept_length
        for phase in visit.phases
        for request in phase.requests
        if request.said_accept_length is not None
    ]
    if not said or total is None or length is None or total.drafts < LEAST_DRAFTS or is_dead(total):
        return None
    mean = sum(said) / len(said)
    if abs(mean - length) < _SAID_TOLERANCE:
        return None
    return Fault(
        f"the server's own figure for these answers is {mean:.2f}, their raw counts give {length:.2f}",
        "Use spec_verify_ct and spec_num_correct_drafts, never spec_accept_length.",
    )


_REFUSE, _WARN, _NOTE = Severity.REFUSE, Severity.WARN, Severity.NOTE

SETTING_CHECKS = (
    ServerCheck("draft-random", _REFUSE, "Every draft token is rejected, and nothing fails.", draft_random),
    ServerCheck("draft-unnamed", _WARN, "A whole model, or an absent head, is no draft.", draft_unnamed),
    ServerCheck(
        "draft-is-target", _WARN, "A target's checkpoint holds no such draft, or one as slow.", draft_is_target
    ),
    ServerCheck("sizes-missing", _WARN, "Counts cannot be held against what should be drafted.", sizes_missing),
    ServerCheck("sizes-odd", _WARN, "SGLang corrects these at its start, so something else answers.", sizes_odd),
    ServerCheck("token-map-ignored", _NOTE, "It has no effect.", token_map_ignored),
    ServerCheck("algorithm-unknown", _NOTE, "Method and draft cannot be compared.", algorithm_unknown),
    ServerCheck("draft-tree", _NOTE, "Most proposed tokens are alternatives of one another.", draft_tree),
    ServerCheck("adaptive-depth", _NOTE, "Counts of different depths are added up.", adaptive_depth),
)
COUNT_CHECKS = (
    ServerCheck("counts-contradict", _WARN, "Settings and counts are not of one server.", counts_contradict),
    ServerCheck("said-length-differs", _NOTE, "The difference grows as answers get shorter.", said_length_differs),
)
SGLANG_CHECKS = (*SETTING_CHECKS, *COUNT_CHECKS)
