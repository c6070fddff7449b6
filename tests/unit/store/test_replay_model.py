"""Replay against a model in plain Python, for any sequence of commits, sessions and snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from regen.length_buckets import COUNT, bucket
from regen.records import Acceptance, OutputRow, ReplicaTotals, SourceTotals, Status, Totals
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
    lambda ordinal, status, round_, tokens, turns, acceptance, replica, seen_turns: output_row(
        ordinal,
        status=status,
        round_=round_,
        tokens=tokens,
        turns=turns,
        seen=observed(tuple(observed_generation(turn, acceptance) for turn in range(seen_turns)), replica=replica),
    ),
    st.integers(0, PLAN_ROWS - 3),
    st.sampled_from(Status),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from([0, 1, 2, 5, 7, 100]),
    st.integers(0, 3),
    acceptances,
    st.integers(0, 2),
    st.integers(0, 3),
)
batches = st.lists(rows, max_size=5, unique_by=lambda row: row.ordinal)
histories = st.lists(st.one_of(batches, st.just("new session")), max_size=8)


class Model:
    """The winning rows, kept whole; and all that ever counted."""

    def __init__(self, rows: Iterable[OutputRow] = ()) -> None:
        self.rows: dict[int, OutputRow] = dict(enumerate(rows))
        self.published: list[OutputRow] = []

    def add(self, batch: list[OutputRow]) -> set[int]:
        """The ordinals that count."""
        counted = set()
        for row in batch:
            if row.ordinal not in self.rows or row.round > self.rows[row.ordinal].round:
                self.rows[row.ordinal] = row
                self.published.append(row)
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
            replicas=Counter((row.observed.replica, row.status) for row in self.rows.values()),
            generations=len(generations),
            acceptance=acceptance,
            by_source=self._by_source(),
            by_replica=self._by_replica(),
            by_length=self._by_length(),
        )

    def _by_source(self) -> dict[str, SourceTotals]:
        found: dict[str, SourceTotals] = {}
        for row in self.rows.values():
            tokens = [len(made.completion_token_ids) for made in row.generations]
            lengths = [0] * COUNT
            if tokens:
                lengths[bucket(sum(tokens))] = 1
            had = found.get(row.source, SourceTotals(lengths=(0,) * COUNT))
            found[row.source] = SourceTotals(
                had.prompt_tokens + sum(len(made.prompt_token_ids) for made in row.generations),
                had.output_tokens + sum(tokens),
                had.generations + len(tokens),
                tuple(one + other for one, other in zip(had.lengths, lengths, strict=True)),
                had.acceptance + (Acceptance() if row.status is Status.DEGENERATE else _seen(row)),
            )
        return found

    def _by_replica(self) -> dict[int, ReplicaTotals]:
        found: dict[int, ReplicaTotals] = {}
        for row in self.rows.values():
            had = found.get(row.observed.replica, ReplicaTotals())
            found[row.observed.replica] = ReplicaTotals(
                had.output_tokens + sum(len(made.completion_token_ids) for made in row.generations),
                had.generations + len(row.generations),
                had.acceptance + _seen(row),
            )
        return found

    def _by_length(self) -> dict[int, Acceptance]:
        found: dict[int, Acceptance] = {}
        for row in self.rows.values():
            if row.status is not Status.DEGENERATE:
                for made, seen in zip(row.generations, row.observed.generations, strict=False):
                    index = bucket(len(made.completion_token_ids))
                    found[index] = found.get(index, Acceptance()) + (seen.acceptance or Acceptance())
        return found


def _seen(row: OutputRow) -> Acceptance:
    return sum((seen.acceptance or Acceptance() for seen in row.observed.generations), Acceptance())


def _as_kept(totals: Totals) -> Totals:
    """Without zeros at an end, and without parts that are empty."""
    sources = {
        source: replace(part, lengths=_trimmed(part.lengths), acceptance=_told(part.acceptance))
        for source, part in totals.by_source.items()
    }
    replicas = {
        replica: replace(part, acceptance=_told(part.acceptance)) for replica, part in totals.by_replica.items()
    }
    lengths = {index: _told(part) for index, part in totals.by_length.items()}
    return replace(
        totals,
        acceptance=_told(totals.acceptance),
        by_source={source: part for source, part in sources.items() if part != SourceTotals()},
        by_replica={replica: part for replica, part in replicas.items() if part != ReplicaTotals()},
        by_length={index: part for index, part in lengths.items() if part != Acceptance()},
    )


def _told(acceptance: Acceptance) -> Acceptance:
    return replace(acceptance, accepted_by_position=_trimmed(acceptance.accepted_by_position))


def _trimmed(counts: tuple[int, ...]) -> tuple[int, ...]:
    while counts and not counts[-1]:
        counts = counts[:-1]
    return counts


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
            before = journal.published
            journal = opened()
            assert journal.published == before
            continue
        counted = model.add(step)
        result = journal.publish(to_table(step))
        assert set(result.repeated) == {row.ordinal for row in step} - counted

        replayed = replay(storage, PLAN_ROWS, SETTLED)
        assert replayed.done == journal.done
        assert sorted(replayed.done) == sorted({*model.rows, 10, 11})
        assert replayed.totals == journal.totals
        assert replayed.totals == _as_kept(model.totals())
        assert journal.published == _as_kept(Model(model.published).totals())
        assert replayed.next_number == journal.next_number == len(journal.files())
    newest = replay(storage, PLAN_ROWS, SETTLED).newest_claim
    assert newest == claim_of(f"s{session}")
