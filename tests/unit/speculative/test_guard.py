"""The guard: what is bad, what is not, for how long, and against what. Deterministic rows; noise has its own file."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regen.records import Acceptance
from regen.spec import ExpectedAcceptance, SpeculationSpec
from regen.speculative.counted import (
    ABSENT_TOKENS,
    COLLAPSE_DRAFTS,
    COLLAPSE_ROWS,
    COLLAPSE_ROWS_ON_MATCHES,
    LIFT_WINDOWS,
    RAISE_WINDOWS,
)
from regen.speculative.guard import Cell, Guard, GuardVerdict, ReplicaVerdict
from regen.speculative.like_with_like import SOURCES

HEAD = SpeculationSpec(method="eagle3", draft="head", num_tokens=3)
LOOKUP = SpeculationSpec(method="ngram", num_tokens=4)
GOOD = (53, 21, 7)
WEAK = (32, 4, 1)
DEAD = (0, 0, 0)


def of(shares: tuple[int, ...], drafts: int = 100) -> Acceptance:
    """So many drafts of which each hundred accept `shares`."""
    by_position = tuple(share * drafts // 100 for share in shares)
    return Acceptance(drafts, drafts * len(shares), sum(by_position), by_position)


@dataclass
class Fleet:
    """Engines under one guard: what is decoded shows in counters and, row by row, in generations."""

    speculation: SpeculationSpec = HEAD
    replicas: int = 1
    now: float = 0.0
    tokens: dict[int, int] = field(default_factory=dict)
    totals: dict[int, Acceptance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.guard = Guard(self.speculation, range(self.replicas))
        for slot in range(self.replicas):
            self.start(slot)

    def start(self, slot: int, arm_speculates: bool = True, warmup: Acceptance | None = None) -> None:
        self.tokens[slot], self.totals[slot] = 0, Acceptance()
        self.guard.engine_started(slot, self.now, arm_speculates, warmup)

    def count(self, slot: int, tokens: int, new: Acceptance) -> None:
        """Counters alone."""
        self.now += 1
        self.tokens[slot] += tokens
        self.totals[slot] += new
        self.guard.counters(slot, self.now, self.tokens[slot], self.totals[slot])

    def rows(self, slot: int, rows: int, *row: Acceptance, source: str = "math", prompt: int = 100) -> None:
        """Finished rows, of the given kinds in turn."""
        for index in range(rows):
            acceptance = row[index % len(row)]
            self.guard.generation(slot, source, prompt, acceptance)
            self.count(slot, acceptance.drafts + acceptance.accepted + 1, acceptance)

    def verdict(self, slot: int = 0) -> ReplicaVerdict:
        return self.guard.verdicts(self.now)[slot]

    def is_(self, verdict: GuardVerdict, slot: int = 0) -> bool:
        return self.verdict(slot).verdict is verdict

    def cell(self, axis: str, value: str) -> Cell:
        return next(cell for cell in self.guard.cells() if (cell.axis, cell.value) == (axis, value))


# --- too little to say --------------------------------------------------------------------------------


def test_few_drafts_are_unknown_and_enough_are_healthy() -> None:
    fleet = Fleet()
    assert fleet.is_(GuardVerdict.UNKNOWN)
    fleet.count(0, 700, of(GOOD, 400))
    assert fleet.is_(GuardVerdict.UNKNOWN)
    assert fleet.verdict().accept_length is None
    fleet.count(0, 200, of(GOOD, 100))
    assert fleet.is_(GuardVerdict.HEALTHY)
    assert fleet.verdict().accept_length == pytest.approx(1.81)


def test_an_engine_without_speculation_is_not_judged() -> None:
    fleet = Fleet()
    fleet.start(0, arm_speculates=False)
    fleet.now += 1
    fleet.guard.counters(0, fleet.now, 1_000_000, None)
    fleet.guard.generation(0, "math", 100, None)
    assert fleet.is_(GuardVerdict.UNKNOWN)
    assert "without speculation" in fleet.verdict().found


def test_nothing_is_judged_before_an_engine_is_announced() -> None:
    guard = Guard(HEAD, [0])
    guard.counters(0, 1.0, 1_000_000, None)
    guard.generation(0, "math", 100, of(DEAD))
    assert guard.changes(1.0) == ()


def test_idle_is_not_bad() -> None:
    fleet = Fleet()
    fleet.rows(0, 10, of(GOOD))
    since = fleet.verdict().since
    for _ in range(1000):
        fleet.count(0, 0, Acceptance())
    assert fleet.is_(GuardVerdict.HEALTHY)
    assert fleet.verdict().since == since


# --- collapse -----------------------------------------------------------------------------------------


def collapsed(speculation: SpeculationSpec = HEAD) -> Fleet:
    fleet = Fleet(speculation)
    fleet.rows(0, 20, of(GOOD))
    fleet.rows(0, 5 * max(RAISE_WINDOWS + 1, COLLAPSE_ROWS_ON_MATCHES), of(DEAD))
    return fleet


def test_a_dead_draft_has_collapsed_after_some_windows_and_not_before() -> None:
    fleet = Fleet()
    fleet.rows(0, 20, of(GOOD))
    fleet.rows(0, 20 * (RAISE_WINDOWS - 1), of(DEAD, 25))
    assert fleet.is_(GuardVerdict.HEALTHY)
    fleet.rows(0, 20, of(DEAD, 25))
    assert fleet.is_(GuardVerdict.COLLAPSED)
    assert fleet.verdict().accept_length == 1.0
    assert "accept length 1.00 over the last 1,500 drafts" in fleet.verdict().found


def test_the_founding_fault_from_the_first_token_on_has_collapsed() -> None:
    """Accept length 1.04."""
    fleet = Fleet()
    fleet.rows(0, 5 * RAISE_WINDOWS, of((4, 0, 0)))
    assert fleet.is_(GuardVerdict.COLLAPSED)


def test_weak_is_not_collapsed() -> None:
    fleet = Fleet()
    fleet.rows(0, 200, of((6, 0, 0)))
    assert fleet.is_(GuardVerdict.HEALTHY)


def test_two_bad_windows_over_and_over_are_noise() -> None:
    fleet = Fleet()
    for _ in range(50):
        fleet.rows(0, 20 * (RAISE_WINDOWS - 1), of(DEAD, 25))
        fleet.rows(0, 5, of((6, 0, 0)))
        assert not fleet.verdict().verdict.is_bad


def test_one_long_row_that_the_draft_cannot_follow_is_no_collapse() -> None:
    fleet = Fleet()
    fleet.rows(0, 20, of(GOOD))
    for _ in range(16_000 // 500):
        fleet.count(0, 500, of(DEAD, 500))
    assert fleet.is_(GuardVerdict.HEALTHY)
    for _ in range(COLLAPSE_DRAFTS // 500):
        fleet.count(0, 500, of(DEAD, 500))
    assert fleet.is_(GuardVerdict.COLLAPSED)


def test_rows_count_by_their_drafts() -> None:
    """Many short rows beside one long one do not make it many rows."""
    fleet = Fleet()
    fleet.rows(0, 20, of(GOOD))
    fleet.rows(0, 1, of(DEAD, 2_000))
    for _ in range(4):
        fleet.rows(0, 1, of(DEAD, 2_000))
        fleet.rows(0, 20, of(DEAD, 1))
    assert fleet.is_(GuardVerdict.HEALTHY)


def test_prompt_lookup_needs_more_rows() -> None:
    fleet = Fleet(LOOKUP)
    fleet.rows(0, 20, of((50, 40, 30, 20)))
    fleet.rows(0, COLLAPSE_ROWS_ON_MATCHES - 2, of((0, 0, 0, 0)))
    assert fleet.is_(GuardVerdict.HEALTHY)
    assert COLLAPSE_ROWS_ON_MATCHES > 2 * COLLAPSE_ROWS
    fleet.rows(0, 10, of((0, 0, 0, 0)))
    assert fleet.is_(GuardVerdict.COLLAPSED)


def test_a_collapse_is_lifted_later_than_it_is_raised() -> None:
    fleet = collapsed()
    fleet.rows(0, 5 * (LIFT_WINDOWS - 1), of(GOOD))
    assert fleet.is_(GuardVerdict.COLLAPSED)
    assert LIFT_WINDOWS > RAISE_WINDOWS
    fleet.rows(0, 5, of(GOOD))
    assert fleet.is_(GuardVerdict.HEALTHY)


def test_an_engine_just_above_the_line_does_not_lift_it() -> None:
    fleet = collapsed()
    fleet.rows(0, 500, of((7, 0, 0)))
    assert fleet.is_(GuardVerdict.COLLAPSED)


def test_good_windows_must_follow_one_another() -> None:
    fleet = collapsed()
    for _ in range(10):
        fleet.rows(0, 5 * (LIFT_WINDOWS - 1), of(GOOD))
        fleet.rows(0, 5, of(DEAD))
    assert fleet.is_(GuardVerdict.COLLAPSED)


def test_only_the_replica_that_is_bad_is_bad() -> None:
    """A8: replica 3 of 8."""
    fleet = Fleet(replicas=8)
    for _ in range(60):
        for slot in range(8):
            fleet.rows(slot, 1, of(DEAD if slot == 3 else GOOD))
    verdicts = [verdict.verdict for verdict in fleet.guard.verdicts(fleet.now)]
    assert verdicts == [GuardVerdict.COLLAPSED if slot == 3 else GuardVerdict.HEALTHY for slot in range(8)]


# --- absent counters ----------------------------------------------------------------------------------


def test_counters_that_never_come_are_absent() -> None:
    fleet = Fleet()
    fleet.guard.counters(0, 1.0, ABSENT_TOKENS - 1, None)
    assert fleet.is_(GuardVerdict.UNKNOWN)
    fleet.guard.counters(0, 2.0, ABSENT_TOKENS, None)
    assert fleet.is_(GuardVerdict.ABSENT)
    assert "2,000 tokens were decoded with drafts due, and the drafts counter is missing" in fleet.verdict().found


def test_a_counter_that_stands_still_is_absent_and_not_zero() -> None:
    fleet = Fleet()
    fleet.rows(0, 20, of(GOOD))
    fleet.count(0, ABSENT_TOKENS, Acceptance())
    assert fleet.is_(GuardVerdict.ABSENT)
    assert fleet.verdict().accept_length is None, "what was counted before says nothing of now"
    assert "stands still at 2,000" in fleet.verdict().found


def test_tokens_without_drafts_count_only_since_the_last_draft() -> None:
    fleet = Fleet()
    for _ in range(20):
        fleet.count(0, ABSENT_TOKENS - 1, Acceptance())
        fleet.count(0, 1, of(GOOD))
    assert not fleet.verdict().verdict.is_bad


def test_one_token_answers_need_no_drafts() -> None:
    fleet = Fleet()
    for _ in range(3 * ABSENT_TOKENS):
        fleet.guard.generation(0, "labels", 100, Acceptance())
        fleet.count(0, 1, Acceptance())
    assert fleet.is_(GuardVerdict.UNKNOWN)


@pytest.mark.parametrize(
    "speculation",
    [
        LOOKUP,
        SpeculationSpec(method="suffix", num_tokens=4),
        HEAD.model_copy(update={"args": {"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 0]]}}),
        HEAD.model_copy(update={"args": {"max_model_len": 2048}}),
    ],
)
def test_who_may_draft_nothing_is_not_absent(speculation: SpeculationSpec) -> None:
    fleet = Fleet(speculation)
    fleet.rows(0, 20, of(GOOD))
    fleet.count(0, 100 * ABSENT_TOKENS, Acceptance())
    assert fleet.is_(GuardVerdict.HEALTHY)


def test_a_schedule_that_always_drafts_may_not_stand_still() -> None:
    schedule = {"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 1]]}
    fleet = Fleet(HEAD.model_copy(update={"args": schedule}))
    fleet.rows(0, 20, of(GOOD))
    fleet.count(0, ABSENT_TOKENS, Acceptance())
    assert fleet.is_(GuardVerdict.ABSENT)


@pytest.mark.parametrize("after", [None, Acceptance(3, 9, 1, (1, 0, 0))])
@pytest.mark.parametrize("speculation", [HEAD, LOOKUP])
def test_a_counter_that_vanishes_or_falls_is_absent_whatever_the_method(
    speculation: SpeculationSpec, after: Acceptance | None
) -> None:
    fleet = Fleet(speculation)
    fleet.rows(0, 20, of(GOOD))
    fleet.guard.counters(0, fleet.now, fleet.tokens[0] + ABSENT_TOKENS, after)
    assert fleet.is_(GuardVerdict.ABSENT)
    assert ("it stood at 2,000" if after is None else "fell from 2,000 to 3") in fleet.verdict().found


def test_what_is_counted_after_a_fall_is_counted() -> None:
    fleet = Fleet(LOOKUP)
    fleet.rows(0, 20, of(GOOD))
    fleet.totals[0] = Acceptance()
    fleet.count(0, 1, Acceptance())
    fleet.count(0, 600, of((10, 0, 0), 1500))
    assert fleet.verdict().accept_length == pytest.approx(1 + (2 * 500 * 0.81 + 1500 * 0.1) / 2500)


def test_absent_is_lifted_when_drafts_are_counted_again_for_a_while() -> None:
    fleet = Fleet()
    fleet.rows(0, 20, of(GOOD))
    fleet.count(0, ABSENT_TOKENS, Acceptance())
    fleet.rows(0, 5 * (LIFT_WINDOWS - 1), of(GOOD))
    assert fleet.is_(GuardVerdict.ABSENT)
    fleet.rows(0, 5, of(GOOD))
    assert fleet.is_(GuardVerdict.HEALTHY)


# --- a new engine -------------------------------------------------------------------------------------


def test_a_new_engine_begins_anew() -> None:
    fleet = collapsed()
    fleet.now += 1
    fleet.start(0)
    assert fleet.is_(GuardVerdict.UNKNOWN)
    assert fleet.verdict().since == fleet.now
    fleet.rows(0, 5, of(GOOD))
    assert fleet.is_(GuardVerdict.HEALTHY)


def test_a_new_engine_is_unknown_since_it_started() -> None:
    fleet = Fleet()
    fleet.now = 50.0
    fleet.start(0)
    assert fleet.verdict().since == 50.0


def test_an_engine_that_started_again_in_silence_begins_anew() -> None:
    fleet = collapsed()
    fleet.tokens[0], fleet.totals[0] = 0, Acceptance()
    fleet.rows(0, 1, of(GOOD))
    assert fleet.is_(GuardVerdict.UNKNOWN)
    fleet.rows(0, 20, of(GOOD))
    assert fleet.is_(GuardVerdict.HEALTHY)


# --- decay --------------------------------------------------------------------------------------------


def settled(replicas: int = 1, speculation: SpeculationSpec = HEAD) -> Fleet:
    """Two sources that differ by half, well known."""
    fleet = Fleet(speculation, replicas)
    for slot in range(replicas):
        fleet.rows(slot, 200, of((48, 18, 6)), of((58, 24, 8)))
        fleet.rows(slot, 200, of((29, 3, 1)), of((35, 5, 1)), source="chat")
    return fleet


def test_less_than_such_rows_have_shown_is_decay() -> None:
    fleet = settled()
    fleet.rows(0, 200, of((37, 14, 5)))
    verdict = fleet.verdict()
    assert verdict.verdict is GuardVerdict.DECAYED
    assert verdict.accept_length == pytest.approx(1.56)
    assert verdict.reference_length == pytest.approx(1.81, abs=0.01)
    assert "0.56 accepted tokens a draft, 0.81 of such rows before (69%" in verdict.found


def test_a_little_less_is_no_decay() -> None:
    fleet = settled()
    fleet.rows(0, 1000, of((45, 18, 6)))
    assert fleet.is_(GuardVerdict.HEALTHY)


def test_other_rows_are_no_decay() -> None:
    """Only math before, only chat now: accept length 1.81 becomes 1.37."""
    fleet = settled()
    fleet.rows(0, 1000, of((48, 18, 6)), of((58, 24, 8)))
    fleet.rows(0, 1000, of((29, 3, 1)), of((35, 5, 1)), source="chat")
    assert fleet.is_(GuardVerdict.HEALTHY)


def test_a_source_not_seen_before_is_no_decay() -> None:
    fleet = settled()
    fleet.rows(0, 1000, of((10, 2, 0)), of((15, 3, 1)), source="poems")
    assert fleet.is_(GuardVerdict.HEALTHY)


@pytest.mark.parametrize(("prompt", "drafts"), [(5000, 100), (100, 2000)])
def test_other_lengths_are_no_decay(prompt: int, drafts: int) -> None:
    fleet = settled()
    fleet.rows(0, 300, of((10, 2, 0), drafts), of((15, 3, 1), drafts), prompt=prompt)
    assert fleet.is_(GuardVerdict.HEALTHY)


def test_a_decay_shows_through_another_mix() -> None:
    """More math than before lifts accept length while each source has lost a third."""
    fleet = Fleet()
    for _ in range(4):
        fleet.rows(0, 50, of((48, 18, 6)), of((58, 24, 8)))
        fleet.rows(0, 250, of((29, 3, 1)), of((35, 5, 1)), source="chat")
    fleet.rows(0, 300, of((35, 14, 5)))
    assert fleet.verdict().accept_length == pytest.approx(1.54)
    assert fleet.is_(GuardVerdict.DECAYED)


def test_a_decay_is_lifted_when_it_is_over() -> None:
    fleet = settled()
    fleet.rows(0, 200, of((37, 14, 5)))
    fleet.rows(0, 32 * (LIFT_WINDOWS - 1), of((53, 21, 7)))
    assert fleet.is_(GuardVerdict.DECAYED)
    fleet.rows(0, 64, of((53, 21, 7)))
    assert fleet.is_(GuardVerdict.HEALTHY)


def test_what_a_bad_replica_shows_teaches_nothing() -> None:
    fleet = Fleet(replicas=2)
    fleet.rows(0, 100, of(DEAD), source="new")
    fleet.rows(0, 1500, of(DEAD, 180))
    fleet.rows(1, 200, of((48, 18, 6)), of((58, 24, 8)))
    fleet.rows(1, 200, of((30, 12, 4)))
    assert fleet.is_(GuardVerdict.DECAYED, 1)


def test_a_bad_replica_is_no_example_for_the_others() -> None:
    """One is dead, one good, one a third below it from the start."""
    fleet = Fleet(replicas=3)
    fleet.rows(0, 100, of(DEAD), source="new")
    for _ in range(300):
        fleet.rows(0, 1, of(DEAD, 180))
        fleet.rows(1, 1, of((53, 21, 7)))
        fleet.rows(2, 1, of((37, 14, 5)))
    verdicts = [verdict.verdict for verdict in fleet.guard.verdicts(fleet.now)]
    assert verdicts == [GuardVerdict.COLLAPSED, GuardVerdict.HEALTHY, GuardVerdict.DECAYED]


def test_an_engine_started_again_is_held_against_what_the_rows_had_shown() -> None:
    fleet = settled()
    fleet.start(0)
    fleet.rows(0, 200, of((37, 14, 5)))
    assert fleet.is_(GuardVerdict.DECAYED)


def test_a_replica_unlike_the_others_has_decayed() -> None:
    """All get better rows; one does not."""
    fleet = settled(replicas=4)
    for _ in range(600):
        for slot in range(4):
            fleet.rows(slot, 1, of((53, 21, 7) if slot == 2 else (80, 50, 30)))
    assert [slot for slot in range(4) if fleet.verdict(slot).verdict.is_bad] == []
    for _ in range(600):
        for slot in range(4):
            fleet.rows(slot, 1, of((46, 18, 6) if slot == 2 else (80, 50, 30)))
    assert [slot for slot in range(4) if fleet.is_(GuardVerdict.DECAYED, slot)] == [2]
    assert "by the other replicas on such rows" in fleet.verdict(2).found


def test_replicas_that_have_left_are_nobodys_fellows_and_one_that_comes_begins_anew() -> None:
    fleet = settled(replicas=4)
    for _ in range(600):
        for slot in range(4):
            fleet.rows(slot, 1, of((53, 21, 7) if slot == 2 else (80, 50, 30)))
    for slot in (0, 1, 3):
        fleet.guard.left(slot, fleet.now)
    fleet.rows(2, 1200, of((46, 18, 6)))
    assert not fleet.verdict(2).verdict.is_bad, "nobody is there to hold it against"
    assert fleet.is_(GuardVerdict.UNKNOWN, 0)
    fleet.start(0)
    fleet.rows(0, 4, of(DEAD))
    assert fleet.is_(GuardVerdict.UNKNOWN, 0), "what its slot had shown before is not its own"


def test_a_fleet_that_decays_together_has_decayed() -> None:
    fleet = settled(replicas=2)
    for _ in range(300):
        for slot in range(2):
            fleet.rows(slot, 1, of((37, 14, 5)))
    assert fleet.is_(GuardVerdict.DECAYED, 0)
    assert fleet.is_(GuardVerdict.DECAYED, 1)


def test_a_later_position_alone_can_decay() -> None:
    fleet = settled()
    fleet.rows(0, 200, of((53, 3, 0)))
    assert fleet.is_(GuardVerdict.DECAYED)


def test_where_the_depth_follows_the_load_only_first_tokens_are_compared() -> None:
    schedule = {"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 1]]}
    fleet = settled(speculation=HEAD.model_copy(update={"args": schedule}))
    fleet.rows(0, 1000, of((53, 0, 0)))
    assert fleet.is_(GuardVerdict.HEALTHY)
    fleet.rows(0, 1000, of((33, 0, 0)))
    assert fleet.is_(GuardVerdict.DECAYED)
    assert "first tokens" in fleet.verdict().found


def test_engines_with_other_settings_are_not_compared() -> None:
    """Arms of calibration side by side."""
    fleet = Fleet(replicas=2)
    shallow = HEAD.model_copy(update={"num_tokens": 1})
    fleet.guard.engine_started(1, 0.0, True, None, shallow)
    for source in ("a", "b", "c", "d"):
        fleet.rows(0, 200, of((48, 18, 6)), source=source)
    for source in ("a", "b", "c", "d"):
        fleet.rows(1, 60, of((48,)), source=source)
    assert [verdict.verdict for verdict in fleet.guard.verdicts(fleet.now)] == [GuardVerdict.HEALTHY] * 2


def test_short_of_the_promised_profile_is_decay() -> None:
    """A4: first-position acceptance of a tenth where 45 % are promised, though accept length is not 1."""
    promised = HEAD.model_copy(update={"expected": ExpectedAcceptance(by_position=[0.45], tolerance=0.3)})
    fleet = Fleet(promised)
    fleet.rows(0, 2000, of((10, 2, 1)))
    assert fleet.is_(GuardVerdict.DECAYED)
    assert "0.10 accepted first tokens a draft, 0.45 as speculation.expected promises" in fleet.verdict().found
    kept = Fleet(promised)
    kept.rows(0, 2000, of((35, 12, 3)))
    assert kept.is_(GuardVerdict.HEALTHY)


def test_far_below_the_warm_up_is_decay_before_rows_are_known() -> None:
    fleet = Fleet()
    fleet.start(0, warmup=of(GOOD, 1000))
    for index in range(2000):
        fleet.rows(0, 1, of((12, 4, 1)), source=f"s{index % 60}")
    assert fleet.is_(GuardVerdict.DECAYED)
    assert "at warm-up" in fleet.verdict().found


def test_rows_alone_can_make_half_of_the_warm_up() -> None:
    fleet = Fleet()
    fleet.start(0, warmup=of(GOOD, 1000))
    for index in range(2000):
        fleet.rows(0, 1, of((25, 3, 1)), source=f"s{index % 60}")
    assert fleet.is_(GuardVerdict.HEALTHY)


# --- what is told -------------------------------------------------------------------------------------


def test_each_change_is_told_once() -> None:
    fleet = Fleet(replicas=2)
    fleet.rows(0, 20, of(GOOD))
    assert [(change.slot, change.verdict) for change in fleet.guard.changes(fleet.now)] == [(0, GuardVerdict.HEALTHY)]
    assert fleet.guard.changes(fleet.now) == ()
    fleet.rows(0, 30, of(DEAD))
    changes = fleet.guard.changes(fleet.now)
    assert [(change.slot, change.verdict) for change in changes] == [(0, GuardVerdict.COLLAPSED)]
    assert changes[0] == fleet.verdict(0)
    assert fleet.guard.changes(fleet.now) == ()


def test_a_verdict_keeps_the_time_it_began() -> None:
    fleet = Fleet()
    fleet.rows(0, 5, of(GOOD))
    began = fleet.now
    fleet.rows(0, 50, of(GOOD))
    assert fleet.verdict().since == began < fleet.now


event = st.tuples(
    st.sampled_from(["count", "vanish", "row", "start", "off"]),
    st.integers(0, 2),
    st.integers(0, 3000),
    st.integers(0, 1500),
    st.integers(0, 100),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(event, max_size=60))
def test_whatever_happens_the_changes_told_add_up_to_the_verdicts(events: list[tuple[str, int, int, int, int]]) -> None:
    """And a bad verdict never comes without its evidence."""
    fleet = Fleet(replicas=3)
    told = dict.fromkeys(range(3), GuardVerdict.UNKNOWN)
    drafts = dict.fromkeys(range(3), 0)
    undrafted = dict.fromkeys(range(3), 0)
    for kind, slot, tokens, new, share in events:
        if kind == "count":
            fleet.count(slot, tokens, of((share,), new))
            drafts[slot] += new
            undrafted[slot] = 0 if new else undrafted[slot] + tokens
        elif kind == "vanish":
            fleet.tokens[slot] += tokens
            fleet.guard.counters(slot, fleet.now, fleet.tokens[slot], None)
            undrafted[slot] += tokens
        elif kind == "row":
            fleet.guard.generation(slot, "math", tokens, of((share,), new))
        else:
            fleet.start(slot, arm_speculates=kind == "start")
            drafts[slot] = undrafted[slot] = 0
        told.update((change.slot, change.verdict) for change in fleet.guard.changes(fleet.now))
        for verdict in fleet.guard.verdicts(fleet.now):
            assert verdict.verdict is told[verdict.slot]
            assert verdict.found
            if verdict.verdict is GuardVerdict.COLLAPSED:
                assert drafts[verdict.slot] >= 500 * RAISE_WINDOWS
            if verdict.verdict is GuardVerdict.ABSENT and undrafted[verdict.slot]:
                assert fleet.tokens[verdict.slot] >= ABSENT_TOKENS


# --- where drafts are weak ----------------------------------------------------------------------------


def test_cells_show_where_drafts_are_weak() -> None:
    """A7: a draft that was made for short prompts."""
    fleet = settled(replicas=2)
    fleet.rows(1, 100, of((3, 0, 0)), of((2, 0, 0)), prompt=9000)
    long, short = fleet.cell("prompt_length", "8192-32767"), fleet.cell("prompt_length", "<512")
    assert long.verdict is GuardVerdict.COLLAPSED
    assert long.recent == pytest.approx(1.025)
    assert short.verdict is GuardVerdict.HEALTHY
    assert short.drafts == 80_000
    chat = fleet.cell("source", "chat")
    assert chat.recent == pytest.approx(1.37)
    assert chat.reference == pytest.approx(1.37, abs=0.01)
    first = fleet.cell("position", "1")
    assert first.recent is not None
    assert 0.37 < first.recent < 0.39
    assert first.verdict is GuardVerdict.HEALTHY


def test_a_cell_that_has_decayed_says_so_and_the_others_do_not() -> None:
    fleet = settled()
    fleet.rows(0, 600, of((20, 3, 1), 110), source="chat")
    assert fleet.cell("source", "chat").verdict is GuardVerdict.DECAYED
    assert fleet.cell("source", "math").verdict is GuardVerdict.HEALTHY


def test_a_cell_that_lost_a_little_has_not_decayed() -> None:
    fleet = settled()
    fleet.rows(0, 600, of((48, 18, 6)))
    assert fleet.cell("source", "math").verdict is GuardVerdict.HEALTHY


def test_a_cell_that_chance_can_explain_has_not_decayed() -> None:
    """Rows that are drafted wholly or not at all: 12 of 32 instead of half."""
    fleet = Fleet()
    fleet.rows(0, 600, of((0,), 200), of((100,), 200))
    fleet.start(0)
    fleet.rows(0, 12, of((100,), 200))
    fleet.rows(0, 20, of((0,), 200))
    cell = fleet.cell("source", "math")
    assert cell.recent == pytest.approx(1.375)
    assert cell.reference == pytest.approx(1.5)
    assert cell.verdict is GuardVerdict.HEALTHY


def test_cells_are_of_the_configured_speculation() -> None:
    fleet = settled(replicas=2)
    fleet.start(1)
    fleet.guard.engine_started(1, fleet.now, True, None, HEAD.model_copy(update={"num_tokens": 1}))
    fleet.rows(1, 400, of((20,)), source="other arm")
    assert {cell.value for cell in fleet.guard.cells() if cell.axis == "source"} == {"math", "chat"}


def test_a_cell_of_few_rows_is_unknown() -> None:
    fleet = settled()
    fleet.rows(0, 5, of(DEAD), source="rare")
    assert fleet.cell("source", "rare").verdict is GuardVerdict.UNKNOWN


def test_a_position_short_of_its_promise_has_decayed() -> None:
    promised = HEAD.model_copy(update={"expected": ExpectedAcceptance(by_position=[0.5, 0.4], tolerance=0.3)})
    fleet = Fleet(promised)
    fleet.rows(0, 400, of((50, 20, 5)))
    verdicts = [fleet.cell("position", str(position)).verdict for position in (1, 2, 3)]
    assert verdicts == [GuardVerdict.HEALTHY, GuardVerdict.DECAYED, GuardVerdict.HEALTHY]


def test_sources_beyond_a_bound_are_taken_together() -> None:
    fleet = Fleet()
    for index in range(10 * SOURCES):
        fleet.rows(0, 1, of(GOOD), source=f"source {index}")
    names = [cell.value for cell in fleet.guard.cells() if cell.axis == "source"]
    assert len(names) == SOURCES + 1
    assert "(other)" in names
