"""What counters, probes and disclosed settings of a server tell, each as one finding. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regen.records import Acceptance
from regen.served import Fate, Route, ServerKind
from regen.spec import LOSSY_SPECULATION_ARGS
from regen.speculative.doctor.visit import LEAST_DRAFTS, Speculating, Visit
from regen.speculative.evidence import Fault, Finding, Severity
from regen.speculative.gate import DEAD_ACCEPT_LENGTH

REFUSE, WARN, NOTE = Severity.REFUSE, Severity.WARN, Severity.NOTE
_WEAK_LENGTH = 1.2
_FOREIGN_SHARE = 0.02
_FOREIGN_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ServerCheck:
    """One row of the doctor's table."""

    code: str
    severity: Severity
    why: str
    look: Callable[[Visit], Fault | None]

    def finding(self, visit: Visit) -> Finding | None:
        """What this check has to say, if anything."""
        fault = self.look(visit)
        return None if fault is None else Finding(self.code, self.severity, fault.found, self.why, fault.fix)


def is_dead(seen: Acceptance | None) -> bool:
    """Not working: over enough verifications, next to nothing was accepted."""
    length = seen.accept_length if seen is not None else None
    return seen is not None and seen.drafts >= LEAST_DRAFTS and length is not None and length <= DEAD_ACCEPT_LENGTH


def described(seen: Acceptance) -> str:
    """Counts first, the ratio after."""
    length = seen.accept_length
    return f"{seen.accepted:,} of {seen.drafted:,} draft tokens accepted in {seen.drafts:,} verifications" + (
        f", accept length {length:.2f}" if length is not None else ""
    )


# --- counters ------------------------------------------------------------------------------------


def counters_absent(visit: Visit) -> Fault | None:
    counted = visit.counted
    if visit.speculating is not Speculating.ON or counted.total is not None or not counted.own_tokens:
        return None
    if counted.has_restarted:
        return None
    said = visit.facts.speculation
    shown = "it refuses min_p because of speculation" if said is None else f"its method is {said.method!r}"
    return Fault(
        f"speculation is on ({shown}), {counted.own_tokens:,} tokens were decoded, and there is no speculation counter",
        "Look for an engine that lost its drafter, --disable-log-stats, a gateway that hides /metrics, or an engine"
        " that gives no accepted counts.",
    )


def draft_dead(visit: Visit) -> Fault | None:
    total = visit.counted.total
    if total is None or not is_dead(total):
        return None
    said = [request.said_accept_length for phase in visit.phases for request in phase.requests]
    own = [value for value in said if value is not None]
    claim = f"; the server's own figure for these answers is {sum(own) / len(own):.2f}" if own else ""
    return Fault(f"{described(total)}{claim}", "See the causes, most likely first; or serve without speculation.")


def rank_dead(visit: Visit) -> Fault | None:
    dead = {rank: seen for rank, seen in visit.counted.by_rank.items() if is_dead(seen)}
    if not dead or len(visit.counted.by_rank) < 2:
        return None
    rank, seen = next(iter(dead.items()))
    return Fault(
        f"{len(dead)} of {len(visit.counted.by_rank)} ranks are dead: rank {rank} has {described(seen)}",
        "Restart that rank, or take it out.",
    )


def rank_undecided(visit: Visit) -> Fault | None:
    ranks, total = visit.counted.by_rank, visit.counted.total
    few = [rank for rank, seen in ranks.items() if seen.drafts < LEAST_DRAFTS]
    if len(ranks) < 2 or not few or total is None or total.drafts < LEAST_DRAFTS:
        return None
    return Fault(
        f"fewer than {LEAST_DRAFTS} verifications on rank {', '.join(few[:8])}, of {len(ranks)} ranks",
        "Ask again with a higher --concurrency or more --seconds.",
    )


def rank_average_dead(visit: Visit) -> Fault | None:
    """SGLang: an average without a count, so it warns and decides nothing."""
    last = visit.phases[-1].after.averages if visit.phases else {}
    dead = [rank for rank, average in last.items() if average is not None and average <= DEAD_ACCEPT_LENGTH]
    none = [rank for rank, average in last.items() if average is None]
    is_missing = bool(none) and len(none) < len(last)
    if not dead and not is_missing:
        return None
    said = [f"rank {rank}: {'none' if average is None else f'{average:.2f}'}" for rank, average in last.items()]
    return Fault(
        f"the server's averages since its start are {', '.join(said[:16])}",
        "Ask that rank alone: an average has no count beside it, and there is none before the first verification.",
    )


def temperature_dead(visit: Visit) -> Fault | None:
    dead = [value for value, seen in visit.counted.by_temperature.items() if is_dead(seen)]
    if not dead or is_dead(visit.counted.total):
        return None
    seen = visit.counted.by_temperature[dead[0]]
    return Fault(
        f"at temperature {dead[0]:g}: {described(seen)}",
        "Judge by the temperature that you serve at; vLLM's draft_sample_method and SGLang's tree size matter here.",
    )


def off_profile(visit: Visit) -> Fault | None:
    total, expected = visit.counted.total, visit.expected
    if total is None or expected is None or total.drafts < LEAST_DRAFTS:
        return None
    if not total.accepted_by_position:
        return Fault("a profile is expected, and the server gives no counts by position", "Compare the mean by hand.")
    shares = [count / total.drafts for count in total.accepted_by_position]
    for position, wanted in enumerate(expected.by_position):
        share = shares[position] if position < len(shares) else None
        if share is None or share < wanted * (1 - expected.tolerance):
            seen = "none" if share is None else f"{share:.2f}"
            return Fault(
                f"position {position}: {seen} of the verifications accept it, {wanted:.2f} are expected"
                f" (tolerance {expected.tolerance:.0%})",
                "A profile that falls short at position 0 is a wrong layer or another target's draft.",
            )
    return None


def acceptance_weak(visit: Visit) -> Fault | None:
    total = visit.counted.total
    length = total.accept_length if total is not None else None
    if (
        total is None
        or length is None
        or total.drafts < LEAST_DRAFTS
        or not DEAD_ACCEPT_LENGTH < length <= _WEAK_LENGTH
    ):
        return None
    return Fault(
        described(total),
        "Compare with the draft's card (--expected), and measure whether it pays: most drafts this weak do not.",
    )


def no_drafts(visit: Visit) -> Fault | None:
    total = visit.counted.total
    if total is None or total.drafts or not visit.counted.own_tokens:
        return None
    return Fault(
        f"{visit.counted.own_tokens:,} tokens were decoded and not one draft was made",
        "Right for n-gram drafts without a match, and for a schedule that has zero tokens at this batch size.",
    )


def counters_partial(visit: Visit) -> Fault | None:
    if not visit.counted.uncounted:
        return None
    return Fault(
        f"{visit.counted.uncounted:,} of {visit.counted.answered:,} answers came without speculation counts",
        "Look whether several engines stand behind this address: one of them may not speculate.",
    )


def server_restarted(visit: Visit) -> Fault | None:
    if not visit.counted.has_restarted:
        return None
    return Fault("the server's totals went backwards while it was asked", "Ask again when it has settled.")


def foreign_traffic(visit: Visit) -> Fault | None:
    foreign, total = visit.counted.foreign_tokens, visit.counted.server_tokens
    if foreign is None or not total or foreign <= max(_FOREIGN_TOKENS, _FOREIGN_SHARE * total):
        return None
    effect = (
        "counts per request leave it out" if visit.counted.is_per_request else "it is in the counts that are shown here"
    )
    return Fault(
        f"{foreign:,} of the {total:,} tokens that the server put out meanwhile were not for our requests: {effect}",
        "Ask a server that nobody uses for figures of our prompts alone.",
    )


def requests_failed(visit: Visit) -> Fault | None:
    errors = [request.error for phase in visit.phases for request in phase.requests if request.error is not None]
    if not errors:
        return None
    return Fault(
        f"{len(errors):,} of {len(errors) + visit.counted.answered:,} requests have no answer, the first: {errors[0]}",
        "Lower --concurrency or give more --seconds if they ran out of time; else see the server's log.",
    )


# --- settings ------------------------------------------------------------------------------------


def lossy(visit: Visit) -> Fault | None:
    settings = visit.facts.speculation.settings if visit.facts.speculation is not None else {}
    found = [
        f"{name} is {settings[name]!r}"
        for name, keeps in LOSSY_SPECULATION_ARGS.items()
        if name in settings and settings[name] not in keeps
    ]
    if not found:
        return None
    return Fault(
        f"{', '.join(found)}: drafts are accepted that the target would not sample",
        "Restart the server without it.",
    )


def sampling_refused(visit: Visit) -> Fault | None:
    names = [probe.parameter for probe in visit.probes if probe.fate is Fate.REFUSED and probe.blames_speculation]
    if not names:
        return None
    return Fault(f"the server refuses {' and '.join(names)} while speculation is on", "Leave them out of requests.")


def sampling_ignored(visit: Visit) -> Fault | None:
    names = [probe.parameter for probe in visit.probes if probe.fate is Fate.IGNORED]
    if not names or visit.speculating is not Speculating.ON:
        return None
    return Fault(
        f"with speculation on, {visit.facts.kind.value} takes {' and '.join(names)} without a word and samples without",
        "Leave it out of requests, or serve without speculation.",
    )


def sampling_taken(visit: Visit) -> Fault | None:
    names = [probe.parameter for probe in visit.probes if probe.fate is Fate.TAKEN]
    if not names or visit.speculating is not Speculating.ON:
        return None
    return Fault(
        f"speculation is on, and the server takes {' and '.join(names)}, which vLLM 0.32 would refuse",
        "Find out whether this version applies it to accepted tokens; older ones did not.",
    )


def method_undisclosed(visit: Visit) -> Fault | None:
    if visit.speculating is not Speculating.ON or visit.facts.speculation is not None:
        return None
    more = " vLLM tells it only with VLLM_SERVER_DEV_MODE=1." if visit.facts.kind is ServerKind.VLLM else ""
    return Fault(
        "the server does not tell its speculation method, nor its draft",
        f"Look into its start command, and give the draft with --draft.{more}",
    )


def draft_unread(visit: Visit) -> Fault | None:
    if visit.unread_draft is None or visit.speculating is not Speculating.ON:
        return None
    return Fault(visit.unread_draft, "Give its folder with --draft: its files tell most of what can be wrong.")


def prompts_untemplated(visit: Visit) -> Fault | None:
    if visit.route is not Route.PLAIN or visit.speculating is Speculating.OFF:
        return None
    return Fault(
        "prompts were sent as plain text: the server gives no counts for chat requests, or has no chat template",
        "Expect a little more acceptance for templated prompts, which is what drafts are trained on.",
    )


CHECKS = (
    ServerCheck("draft-dead", REFUSE, "Speculation costs its time and saves nothing.", draft_dead),
    ServerCheck("rank-dead", REFUSE, "The mean over all ranks hides it.", rank_dead),
    ServerCheck(
        "counters-absent", REFUSE, "Nobody can tell whether speculation works; this is not zero.", counters_absent
    ),
    ServerCheck(
        "acceptance-off-profile", REFUSE, "A wrong layer or a wrong target shows so, and as no error.", off_profile
    ),
    ServerCheck("lossy-verification", REFUSE, "Answers are no longer the target's own.", lossy),
    ServerCheck(
        "dead-at-temperature", WARN, "Figures of one temperature do not carry over to another.", temperature_dead
    ),
    ServerCheck(
        "acceptance-weak", WARN, "Alive and useless: a wrong auxiliary layer gave 1.11 for 1.80.", acceptance_weak
    ),
    ServerCheck("rank-undecided", WARN, "The mean over all ranks says nothing about these.", rank_undecided),
    ServerCheck("rank-average-dead", WARN, "The mean over all ranks hides it.", rank_average_dead),
    ServerCheck("no-drafts", WARN, "Speculation is on and does nothing.", no_drafts),
    ServerCheck(
        "counters-partial", WARN, "Without counts nobody can tell whether they were speculated.", counters_partial
    ),
    ServerCheck("server-restarted", WARN, "Differences of its counters mean nothing.", server_restarted),
    ServerCheck("requests-failed", WARN, "What has no answer is in no count of ours.", requests_failed),
    ServerCheck("sampling-ignored", WARN, "What is sampled is not what was asked for.", sampling_ignored),
    ServerCheck("sampling-taken", WARN, "A parameter may not reach tokens that were drafted.", sampling_taken),
    ServerCheck("sampling-refused", NOTE, "Each such request fails.", sampling_refused),
    ServerCheck("foreign-traffic", NOTE, "Counters of a server count everybody.", foreign_traffic),
    ServerCheck("method-undisclosed", NOTE, "Method and draft cannot be compared.", method_undisclosed),
    ServerCheck("draft-unread", NOTE, "Method, layers and weights cannot be checked.", draft_unread),
    ServerCheck("prompts-untemplated", NOTE, "Acceptance depends on the form of the prompts.", prompts_untemplated),
)
