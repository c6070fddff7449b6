"""Replay against a model in plain Python, for any sequence of commits, sessions and snapshots."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from regen.records import Acceptance, OutputRow, Status, Totals
from regen.rows import to_table
from regen.store.journal import Journal
from regen.store.replay import replay
from tests.memory_storage import MemoryStorage
from tests.output_rows import observed, observed_generation, output_row
from tests.unit.store.journals import claim_of

PLAN_ROWS = 12
SETTLED = [(10, "chat", Status.REJECTED), (11, "math", Status.NATIVE)]

acceptances = st.none() | st.builds(
    Acceptance,
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
)
rows = st.builds(
    lambda ordinal, status, round_, tokens, turns, acceptance: output_row(
        ordinal,
        status=status,
        round_=round_,
        tokens=tokens,
        turns=turns,
        seen=observed(tuple(observed_generation(turn, acceptance) for turn in range(turns))),
    ),
    st.integers(0, PLAN_ROWS - 3),
    st.sampled_from(Status),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.integers(0, 7),
    st.integers(0, 3),
    acceptances,
)
batches = st.lists(rows, max_size=5, unique_by=lambda row: row.ordinal)
histories = st.lists(st.one_of(batches, st.just("new session")), max_size=8)


class Model:
    """The winning rows, kept whole."""

    def __init__(self) -> None:
        self.rows: dict[int, OutputRow] = {}

    def add(self, batch: list[OutputRow]) -> set[int]:
        """The ordinals that count."""
        counted = set()
        for row in batch:
            if row.ordinal not in self.rows or row.round > self.rows[row.ordinal].round:
                self.rows[row.ordinal] = row
                counted.add(row.ordinal)
        return counted

    def totals(self) -> Totals:
        outcomes: dict[tuple[str, Status], int] = {}
        for source, status in [(row.source, row.status) for row in self.rows.values()] + [
            (source, status) for _, source, status in SETTLED
        ]:
            outcomes[source, status] = outcomes.get((source, status), 0) + 1
        generations = [made for row in self.rows.values() for made in row.generations]
        acceptance = Acceptance()
        for row in self.rows.values():
            for seen in row.observed.generations:
                acceptance += seen.acceptance or Acceptance()
        return Totals(
            outcomes=outcomes,
            prompt_tokens=sum(len(made.prompt_token_ids) for made in generations),
            output_tokens=sum(len(made.completion_token_ids) for made in generations),
            generations=len(generations),
            acceptance=acceptance,
        )


def _without_trailing_zeros(totals: Totals) -> tuple[object, ...]:
    """Positions that no step reached any more may stay as zeros after a row was replaced."""
    positions = list(totals.acceptance.accepted_by_position)
    while positions and positions[-1] == 0:
        positions.pop()
    acceptance = totals.acceptance
    return (
        totals.outcomes,
        totals.prompt_tokens,
        totals.output_tokens,
        totals.generations,
        (acceptance.drafts, acceptance.drafted, acceptance.accepted, positions),
    )


@settings(max_examples=60, deadline=None)
@given(history=histories, snapshot_every=st.sampled_from([1, 2, 3, 1000]))
def test_replay_is_what_the_rows_amount_to(history: list[list[OutputRow] | str], snapshot_every: int) -> None:
    storage, model = MemoryStorage(), Model()
    session = 0

    def opened() -> Journal:
        journal = Journal(storage, f"s{session}", PLAN_ROWS, snapshot_every=snapshot_every)
        journal.replay(SETTLED)
        journal.claim(claim_of(f"s{session}"))
        return journal

    journal = opened()
    for step in history:
        if isinstance(step, str):
            session += 1
            journal = opened()
            continue
        counted = model.add(step)
        result = journal.publish(to_table(step))
        assert set(result.repeated) == {row.ordinal for row in step} - counted

        replayed = replay(storage, PLAN_ROWS, SETTLED)
        assert replayed.done == journal.done
        assert sorted(replayed.done) == sorted({*model.rows, 10, 11})
        assert replayed.totals == journal.totals
        assert _without_trailing_zeros(replayed.totals) == _without_trailing_zeros(model.totals())
        assert replayed.next_number == journal.next_number == len(journal.files())
    newest = replay(storage, PLAN_ROWS, SETTLED).newest_claim
    assert newest == claim_of(f"s{session}")
