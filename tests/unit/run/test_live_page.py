"""The page while a run lives: made now and then for everybody, with what the store knows of the past."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from regen.errors import StoreUnavailable
from regen.observe.page.facts import Fact
from regen.records import (
    CoordinatorStatus,
    EngineCounters,
    Eta,
    EtaState,
    Phase,
    ReplicaState,
    ReplicaStats,
    Status,
    Totals,
)
from regen.run.page.facts import About
from regen.run.page.live import FRESH_SECONDS, MOST_MOMENTS, NOTE_SECONDS, Glance, LivePage
from regen.spec import RunSpec
from regen.store.reopened import Reopened, reopened
from tests import virtual_time
from tests.memory_storage import MemoryStorage
from tests.output_rows import output_row
from tests.runs import make_spec
from tests.unit.store.journals import published

AT = 1_796_000_000.0


class World:
    """What the coordinator would be asked for, and a clock."""

    def __init__(self, spec: RunSpec) -> None:
        self.now, self.glances, self.tokens = 0.0, 0, 0
        self.state = ReplicaState.RUNNING
        self.is_busy = False
        about = About(spec, "/run", "f", {"chat": 100}, {}, (Fact("target", "org/model"),))
        self.page = LivePage(about, "s2", self.glance, lambda: self.now)

    def glance(self) -> Glance:
        if self.is_busy:
            raise TimeoutError("the loop is busy")
        self.glances += 1
        totals = Totals({("chat", Status.OK): self.tokens // 10}, output_tokens=self.tokens)
        counters = EngineCounters(output_tokens=self.tokens)
        stats = ReplicaStats(self.state, 8, 3, 0.0, counters, counted_at=self.now)
        status = CoordinatorStatus(
            "i", Phase.RUNNING, 100, totals, 3, 0, 1, {0: stats}, 0, 0, 0, 0, self.now, useful_tokens_per_second=77.0
        )
        return Glance(AT + self.now, status, (), None)

    def main(self) -> str:
        return self.page.routes()["/main"]().body.decode()

    def chart(self) -> str:
        """What the first chart says in words."""
        (said,) = re.findall(r'aria-label="(Useful tokens a second[^"]*)"', self.main())
        return str(said)


@pytest.fixture
def world(tmp_path) -> World:
    return World(make_spec(tmp_path, 3))


def nothing_reopened() -> Reopened:
    return reopened((), 100, lambda ordinal: 0)


def test_it_is_made_now_and_then_however_many_ask(world):
    with ThreadPoolExecutor(8) as many:
        bodies = list(many.map(lambda _: world.main(), range(40)))
    assert world.glances == 1
    assert len(set(bodies)) == 1
    world.now += FRESH_SECONDS
    assert world.main() != bodies[0]
    assert world.glances == 2


def test_the_whole_page_and_its_part_are_of_one_moment(world):
    whole = world.page.routes()["/"]()
    assert world.main() in whole.body.decode()
    assert world.glances == 1
    assert whole.content_type == "text/html; charset=utf-8"
    assert "connect-src 'self'" in whole.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in whole.headers["Content-Security-Policy"]


def test_a_glance_that_fails_is_that_requests_error_and_no_other(world):
    world.is_busy = True
    with pytest.raises(TimeoutError):
        world.main()
    world.is_busy = False
    assert "running" in world.main()


def kept(world: World, storage: MemoryStorage, seconds: float, step: int = 0, samples: bool = False) -> None:
    """The coordinator's loop for so long; engines sample `step` tokens a second."""

    async def live() -> None:
        keeping = asyncio.ensure_future(world.page.keep(storage, world.glance, nothing_reopened, samples))
        for _ in range(int(seconds)):
            await asyncio.sleep(1)
            world.now += 1
            world.tokens += step
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    virtual_time.run(live())


def test_what_was_before_this_coordinator_comes_from_the_journal(world):
    storage = MemoryStorage()
    published(storage, [[output_row(1)], [output_row(2)]])
    assert "session s1 began" not in world.main()
    kept(world, storage, 3)
    world.now += FRESH_SECONDS
    assert "session s1 began" in world.main()
    assert "session s2 began" in world.main()


def test_it_keeps_its_own_history(world):
    kept(world, MemoryStorage(), 60, step=10)
    assert "lowest 10, highest 10, last 10" in world.chart()


def test_a_long_history_is_thinned_and_says_the_same(world):
    kept(world, MemoryStorage(), NOTE_SECONDS * MOST_MOMENTS * 1.5, step=10)
    assert "lowest 10, highest 10, last 10" in world.chart()


def test_a_store_that_is_away_only_costs_the_past(world):
    class Away(MemoryStorage):
        def list(self, prefix):
            if world.now < 30:
                raise StoreUnavailable("503")
            return super().list(prefix)

    storage = Away()
    world.now = 30
    published(storage, [[output_row(1)]])
    world.now = 0
    kept(world, storage, 15, step=10)
    assert "lowest 10, highest 10" in world.chart()
    assert "session s1 began" not in world.main()
    kept(world, storage, 45, step=10)
    assert "session s1 began" in world.main()


def test_a_store_that_cannot_be_understood_costs_the_past_and_is_said(world, capfd):
    class Odd(MemoryStorage):
        def list(self, prefix):
            raise KeyError("odd")

    kept(world, Odd(), 45, step=10)
    assert "lowest 10, highest 10" in world.chart()
    assert capfd.readouterr().err.count("KeyError: 'odd'") == 1


@pytest.mark.parametrize("samples", [True, False])
def test_prompts_and_answers_are_shown_only_when_asked_for(world, samples):
    storage = MemoryStorage()
    published(storage, [[output_row(1, text="the answer of row one")]])
    kept(world, storage, 3, samples=samples)
    world.now += FRESH_SECONDS
    assert ("the answer of row one" in world.main()) is samples
    assert ("metrics.samples: true" in world.main()) is not samples


def test_an_engines_rate_is_of_its_last_minute_and_ends_with_it(world):
    def rate() -> str:
        (found,) = re.findall(r"<td>3 of 8</td><td>0</td><td>([^<]*)</td>", world.main())
        return str(found)

    assert rate() == "n/a"
    for _ in range(10):
        world.now, world.tokens = world.now + 10, world.tokens + 1000
        assert rate() == "100"
    world.tokens = 0  # another engine
    world.now += 10
    assert rate() == "n/a"
    world.state = ReplicaState.STOPPED
    world.now += 10
    assert rate() == "n/a"


@pytest.mark.parametrize(
    ("phase", "told"),
    [(Phase.DRAINING, "it drains"), (Phase.DRAINED, "nobody runs it"), (Phase.FAILED, "nobody runs it")],
)
def test_a_session_that_ends_before_its_rows_tells_no_time_to_go(world, phase, told):
    running: Callable[[], Glance] = world.glance

    def glance() -> Glance:
        seen = running()
        eta = Eta(EtaState.ESTIMATING, 3600.0, 7200.0, 9000.0)
        return replace(seen, status=replace(seen.status, phase=phase, eta=eta))

    world.page._glance = glance
    assert told in world.main()
    assert "2 h 00 min" not in world.main()
