"""Verdicts over counters of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from regen.records import Acceptance
from regen.served import Asked, Counters, Fate, Phase, Probe, Route, ServerFacts, ServerKind, Speculation
from regen.speculative.doctor.counts import count
from regen.speculative.doctor.diagnosis import Diagnosis, Verdict, diagnose
from regen.speculative.doctor.draft_files import DraftFiles
from regen.speculative.doctor.visit import Expected, Visit
from regen.speculative.evidence import Finding, Severity

VLLM = ServerFacts("http://h:1", ServerKind.VLLM, "target")
CHAIN = {"speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
EAGLE3 = Speculation("EAGLE3", "head", 3, CHAIN)
SGLANG = ServerFacts("http://h:1", ServerKind.SGLANG, "target", speculation=EAGLE3)
REFUSED = Probe("min_p", Fate.REFUSED, "not with speculation", blames_speculation=True)
NOTHING = Counters(is_reported=True)


def visit(facts: ServerFacts, phases: Sequence[Phase], **more: object) -> Visit:
    made = Visit(facts, Route.CHAT, (), tuple(phases), count(phases))
    return replace(made, **more)  # type: ignore[arg-type]


def totals(*ranks: Acceptance, tokens: int = 900) -> list[Phase]:
    """A vLLM server whose totals grew by this."""
    before = Counters(True, {str(number): Acceptance() for number in range(len(ranks))}, 0)
    after = Counters(True, {str(number): rank for number, rank in enumerate(ranks)}, tokens)
    return [Phase(0.0, before, after, (Asked(0.0, tokens),))]


def answers(*requests: Asked, averages: dict[str, float | None] | None = None) -> list[Phase]:
    """An SGLang server's counts, request by request."""
    return [Phase(0.0, NOTHING, Counters(True, averages=averages or {}), requests)]


def codes(diagnosis: Diagnosis) -> set[str]:
    return {finding.code for finding in diagnosis.findings}


@pytest.mark.parametrize(
    ("drafts", "accepted", "verdict"),
    [
        (1000, 0, Verdict.DEAD),
        (500, 25, Verdict.DEAD),
        (500, 26, Verdict.HEALTHY),
        (499, 0, Verdict.UNDECIDED),
        (499, 800, Verdict.UNDECIDED),
        (0, 0, Verdict.UNDECIDED),
        (1000, 1100, Verdict.HEALTHY),
    ],
)
def test_a_draft_is_judged_over_enough_verifications(drafts: int, accepted: int, verdict: Verdict) -> None:
    assert diagnose(visit(VLLM, totals(Acceptance(drafts, 3 * drafts, accepted)))).verdict is verdict


def test_a_dead_draft_with_short_answers_is_dead_although_the_server_says_more() -> None:
    """20 tokens of an answer, 19 verifications: SGLang divides them and says 1.05; 10 tokens would read 1.11."""
    short = [Asked(0.0, 10, Acceptance(9, 27, 0), said_accept_length=10 / 9) for _ in range(60)]
    diagnosis = diagnose(visit(SGLANG, answers(*short)))
    assert diagnosis.verdict is Verdict.DEAD
    assert "accept length 1.00" in diagnosis.because
    (dead,) = [finding for finding in diagnosis.findings if finding.code == "draft-dead"]
    assert "the server's own figure for these answers is 1.11" in dead.found


def test_one_dead_rank_of_eight_is_not_hidden_by_the_mean() -> None:
    good, dead = Acceptance(600, 1800, 660), Acceptance(600, 1800, 0)
    diagnosis = diagnose(visit(VLLM, totals(*[good] * 3, dead, *[good] * 4)))
    assert diagnosis.verdict is Verdict.DEAD
    assert diagnosis.because.startswith("rank 3:")
    assert "rank-dead" in codes(diagnosis)
    assert "draft-dead" not in codes(diagnosis)


def test_a_rank_that_verified_too_little_is_named() -> None:
    diagnosis = diagnose(visit(VLLM, totals(Acceptance(600, 1800, 660), Acceptance(20, 60, 0))))
    assert diagnosis.verdict is Verdict.HEALTHY
    assert "rank-undecided" in codes(diagnosis)


def test_averages_per_rank_warn_and_decide_nothing() -> None:
    fine = [Asked(0.0, 128, Acceptance(70, 210, 57)) for _ in range(10)]
    alike = diagnose(visit(SGLANG, answers(*fine, averages={"0": 1.8, "1": 1.9})))
    assert "rank-average-dead" not in codes(alike)
    for second in (1.0, None):
        diagnosis = diagnose(visit(SGLANG, answers(*fine, averages={"0": 1.8, "1": second})))
        assert diagnosis.verdict is Verdict.HEALTHY
        assert "rank-average-dead" in codes(diagnosis)


def test_absent_counters_are_a_verdict_of_their_own() -> None:
    gone = diagnose(visit(SGLANG, answers(Asked(0.0, 128), Asked(0.0, 128))))
    assert gone.verdict is Verdict.COUNTERS_ABSENT
    assert "counters-absent" in codes(gone)
    assert gone.is_refused
    zero = diagnose(visit(VLLM, totals(Acceptance())))
    assert zero.verdict is Verdict.UNDECIDED
    assert "no-drafts" in codes(zero)
    assert "counters-absent" not in codes(zero)


def test_vllm_without_the_series_has_speculation_off_unless_it_refuses_min_p_because_of_it() -> None:
    phases = [Phase(0.0, NOTHING, NOTHING, (Asked(0.0, 900),))]
    assert diagnose(visit(VLLM, phases)).verdict is Verdict.OFF
    assert diagnose(visit(VLLM, phases, probes=(REFUSED,))).verdict is Verdict.COUNTERS_ABSENT
    on = replace(VLLM, speculation=Speculation("eagle3", "head", 3))
    assert diagnose(visit(on, phases)).verdict is Verdict.COUNTERS_ABSENT


def test_without_metrics_and_without_a_word_nothing_can_be_told() -> None:
    silent = [Phase(0.0, Counters(False), Counters(False), (Asked(0.0, 900),))]
    assert diagnose(visit(VLLM, silent)).verdict is Verdict.CANNOT_TELL
    off = replace(VLLM, speculation=Speculation(method=None))
    assert diagnose(visit(off, silent)).verdict is Verdict.OFF


def test_a_server_that_says_off_and_counts_drafts_is_judged_by_the_counts() -> None:
    off = replace(VLLM, speculation=Speculation(method=None))
    assert diagnose(visit(off, totals(Acceptance(900, 2700, 0)))).verdict is Verdict.DEAD


def test_no_answer_and_a_restart_tell_nothing() -> None:
    failed = [Phase(0.0, NOTHING, NOTHING, (Asked(0.0, error="status 500"),))]
    diagnosis = diagnose(visit(SGLANG, failed))
    assert diagnosis.verdict is Verdict.CANNOT_TELL
    assert "requests-failed" in codes(diagnosis)
    (phase,) = totals(Acceptance(900, 2700, 900))
    back = replace(phase, before=phase.after, after=phase.before)
    assert diagnose(visit(VLLM, [back])).verdict is Verdict.CANNOT_TELL


def test_a_profile_that_falls_short_at_position_0_is_off() -> None:
    """A4: layer ids off by one. The mean says 1.123, which is alive."""
    weak = visit(VLLM, totals(Acceptance(1000, 3000, 123, (100, 20, 3))))
    assert diagnose(weak).verdict is Verdict.HEALTHY
    assert "acceptance-weak" in codes(diagnose(weak))
    diagnosis = diagnose(replace(weak, expected=Expected((0.45, 0.2, 0.07))))
    assert diagnosis.verdict is Verdict.OFF_PROFILE
    assert "position 0: 0.10" in str(diagnosis.findings)
    fine = visit(VLLM, totals(Acceptance(1000, 3000, 700, (450, 190, 60))), expected=Expected((0.45, 0.2, 0.07)))
    assert diagnose(fine).verdict is Verdict.HEALTHY


def test_dead_at_one_temperature_only_is_said() -> None:
    good, dead = Asked(0.0, 900, Acceptance(2000, 6000, 1900)), Asked(1.0, 900, Acceptance(600, 1800, 3))
    diagnosis = diagnose(visit(SGLANG, answers(good, dead)))
    assert "dead-at-temperature" in codes(diagnosis)
    assert diagnosis.verdict is Verdict.HEALTHY


def test_somebody_elses_traffic_is_named() -> None:
    (phase,) = totals(Acceptance(600, 1800, 600), tokens=2000)
    busy = visit(VLLM, [replace(phase, requests=(Asked(0.0, 1200),))])
    (finding,) = [finding for finding in diagnose(busy).findings if finding.code == "foreign-traffic"]
    assert finding.found.startswith("800 of the 2,000 tokens")
    quiet = visit(VLLM, [replace(phase, requests=(Asked(0.0, 1990),))])
    assert "foreign-traffic" not in codes(diagnose(quiet))


@pytest.mark.parametrize(
    "settings",
    [
        {"speculative_accept_threshold_single": 0.9},
        {"speculative_accept_threshold_acc": 0.5},
        {"rejection_sample_method": "synthetic"},
        {"posterior_alpha": 0.3},
    ],
)
def test_lossy_verification_is_refused_by_name(settings: dict[str, object]) -> None:
    lossy = replace(SGLANG, speculation=replace(Speculation("EAGLE3"), settings=settings))
    diagnosis = diagnose(visit(lossy, answers(Asked(0.0, 900, Acceptance(600, 1800, 600)))))
    assert diagnosis.verdict is Verdict.HEALTHY
    assert diagnosis.is_refused
    assert next(iter(settings)) in str(diagnosis.findings)


def test_lossless_settings_are_not_refused() -> None:
    settings = {"speculative_accept_threshold_single": 1.0, "rejection_sample_method": "standard"}
    fine = replace(SGLANG, speculation=replace(EAGLE3, settings=CHAIN | settings))
    assert not diagnose(visit(fine, answers(Asked(0.0, 900, Acceptance(600, 1800, 600))))).findings


def test_what_becomes_of_sampling_parameters_is_said() -> None:
    ignored, taken = Probe("min_p", Fate.IGNORED), Probe("min_p", Fate.TAKEN)
    on = totals(Acceptance(600, 1800, 600))
    assert "sampling-refused" in codes(diagnose(visit(VLLM, on, probes=(REFUSED,))))
    assert "sampling-taken" in codes(diagnose(visit(VLLM, on, probes=(taken,))))
    answered = answers(Asked(0.0, 900, Acceptance(600, 1800, 600)))
    assert "sampling-ignored" in codes(diagnose(visit(SGLANG, answered, probes=(ignored,))))
    off = [Phase(0.0, NOTHING, NOTHING, (Asked(0.0, 900),))]
    assert not codes(diagnose(visit(VLLM, off, probes=(taken,))))


def test_causes_begin_with_what_the_files_show() -> None:
    fault = Finding("method-mismatch", Severity.REFUSE, "EAGLE for an EAGLE-3 draft", "", "")
    phases = answers(Asked(0.0, 900, Acceptance(600, 1800, 0)))
    known = diagnose(visit(SGLANG, phases, draft=DraftFiles("x", None, (fault,))))
    assert known.causes[0] == "method-mismatch: EAGLE for an EAGLE-3 draft"
    unknown = diagnose(visit(SGLANG, phases))
    assert unknown.causes[0].startswith("the method is not the draft's")
    ngram = replace(SGLANG, speculation=Speculation("NGRAM"))
    assert len(diagnose(visit(ngram, phases)).causes) == 1


def test_some_answers_without_counts_are_said() -> None:
    some = answers(Asked(0.0, 900, Acceptance(600, 1800, 600)), Asked(0.0, 100))
    assert "counters-partial" in codes(diagnose(visit(SGLANG, some)))
