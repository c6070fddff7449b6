"""One run under trouble: a Ray cluster, a driver that is started again whenever it has ended, a deck of troubles."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from regen.run.fleet.leash import marked_processes
from regen.spec import RunSpec, dump_spec
from tests.chaos.made import Loss, Outage
from tests.chaos.ray_cluster import COORDINATOR, ENVIRONMENT, REPLICA, Identity, RayHead, below, identities
from tests.chaos.stores import Store
from tests.processes import REGEN, descendants, environment, kill

INTERVALS_SECONDS = (0.3, 1.0, 2.0)
REPLICAS = (4, 7)
# The journal is looked at so often, to see when commits go on.
_JOURNAL_SECONDS = 1.0
QUIET_LIMIT_SECONDS = 300.0
_OK, _HELD, _STORE_AWAY, _DRAINED = 0, 4, 7, 9
# What a driver may end with besides, after trouble of this kind: the cluster went away, or the coordinator too often.
_AFTER_CLUSTER_LOSS = "the cluster was ended below it"
_COORDINATOR_TOO_OFTEN = "times without publishing anything in between"


@dataclass(slots=True)
class Started:
    """One `regen run` of ours. `excuse` says why it may end otherwise than by itself."""

    process: subprocess.Popen[bytes]
    interval_seconds: float
    log: Path
    at: float
    excuse: str | None = None

    @property
    def lives(self) -> bool:
        return self.process.poll() is None


@dataclass(slots=True)
class Round:
    """See the module. `spec` gives a spec for so many replicas and such an interval."""

    folder: Path
    store: Store
    spec: Callable[[int, float], RunSpec]
    draw: random.Random
    say: Callable[[str], None]
    losses: list[Loss] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    seen: set[Identity] = field(default_factory=set)
    last_start_at: float = 0.0
    _head: RayHead | None = None
    _drivers: list[Started] = field(default_factory=list)
    _deck: list[str] = field(default_factory=list)
    _thaw: list[tuple[float, int]] = field(default_factory=list)
    _starts: int = 0
    _is_finished: bool = False
    _made_then: int = -1
    _broken_since: list[tuple[float, float]] = field(default_factory=list)
    _journal_files: int = 0
    _journal_seen_at: float = 0.0
    _workers: dict[int, float] = field(default_factory=dict)
    _doomed: set[int] = field(default_factory=set)

    def run(self, until: float) -> None:
        """Trouble until then (monotonic), or until the run is finished; then quiet, to its end."""
        next_trouble = time.monotonic() + self._gap()
        try:
            while not self._is_finished and time.monotonic() < until:
                self._keep_going()
                if time.monotonic() > next_trouble:
                    next_trouble = time.monotonic() + (self._gap() if self._trouble() else 0.2)
                time.sleep(0.1)
            self._finish()
        finally:
            self._end_all()

    # --- the run's own life ------------------------------------------------------------------------

    def _finish(self) -> None:
        self.store.settle()
        self._thaw_all()
        deadline = time.monotonic() + QUIET_LIMIT_SECONDS
        while not self._is_finished or any(driver.lives for driver in self._drivers):
            self._keep_going()
            if time.monotonic() > deadline:
                self.unexpected.append(f"the run did not come to its end in {QUIET_LIMIT_SECONDS:g} quiet seconds")
                return
            time.sleep(0.1)

    def _keep_going(self) -> None:
        self._look()
        for at, pid in [one for one in self._thaw if time.monotonic() > one[0]]:
            kill(pid, signal.SIGCONT)
            self._thaw.remove((at, pid))
        for driver in [one for one in self._drivers if not one.lives]:
            self._drivers.remove(driver)
            self._judge(driver)
        if not self._is_finished and not self._drivers:
            self._start()

    def _look(self) -> None:
        """Who is there now; a worker that is gone went at about this moment."""
        self._look_at_journal()
        now, living = time.time(), set(self._head.titled(REPLICA)) if self._head else set()
        interval = max((driver.interval_seconds for driver in self._drivers), default=max(INTERVALS_SECONDS))
        self._workers.update(dict.fromkeys(living - set(self._workers), interval))
        for pid in set(self._workers) - living:
            interval = self._workers.pop(pid)
            if pid in self._doomed:
                self.losses.append(Loss(pid, now, interval))
        if self._head is not None:
            self.seen.update(identities(self._head.pids))
        for driver in self._drivers:
            self.seen.update(identities(below(driver.process.pid)))
        self.seen.update(identities(marked_processes(self.store.url)))

    def _start(self, *options: str) -> Started:
        if self._head is None or not self._head.lives:
            self._head = RayHead(self.folder, self.store.environment)
        self._starts += 1
        replicas, interval = self.draw.choice(REPLICAS), self.draw.choice(INTERVALS_SECONDS)
        spec = self.folder / f"spec-{self._starts}.yaml"
        spec.write_text(dump_spec(self.spec(replicas, interval)), encoding="utf-8")
        log = self.folder / f"driver-{self._starts}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*REGEN, "run", str(spec), "--address", self._head.address, *options],
                cwd=self.folder,
                env={**environment(), **ENVIRONMENT, **self.store.environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        started = Started(process, interval, log, time.monotonic())
        self._drivers.append(started)
        self.last_start_at = time.time()
        return started

    def _judge(self, driver: Started) -> None:
        code, text = driver.process.returncode, driver.log.read_text(encoding="utf-8", errors="replace")
        self.say(f"driver {driver.process.pid} ended with {code}" + (f" ({driver.excuse})" if driver.excuse else ""))
        if code == _OK:
            self._is_finished = True
        elif driver.excuse is None and code not in self._ordinary_ends and _COORDINATOR_TOO_OFTEN not in text:
            self.unexpected.append(f"a driver ended with {code}, {driver.log}: ...{text[-400:]}")

    @property
    def _ordinary_ends(self) -> tuple[int, ...]:
        return (_HELD, _DRAINED, _STORE_AWAY) if self.store.has_troubles else (_HELD, _DRAINED)

    # --- troubles ------------------------------------------------------------------------------------

    def _gap(self) -> float:
        return 0.5 + self.draw.expovariate(1 / 3.5)

    def _trouble(self) -> bool:
        """The next of the deck. False: it has found nobody to hit and is put off."""
        if not self._deck:
            self._deck = [kind for kind, (times, _) in _TROUBLES.items() for _ in range(times)]
            self.draw.shuffle(self._deck)
        kind = self._deck.pop()
        said = _TROUBLES[kind][1](self) if kind not in _SLOW or self._has_got_on() else None
        if said is None:
            if kind != _STORE or self.store.has_troubles:
                self._deck.insert(0, kind)
            return False
        if kind in _SLOW:
            self._made_then = self._made_bytes
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.say(f"{kind}: {said}")
        return True

    def _has_got_on(self) -> bool:
        """Since the last trouble from which it takes long to recover: else the run would never come to work."""
        return self._made_bytes > self._made_then

    @property
    def _made_bytes(self) -> int:
        log = self.folder / "made.jsonl"
        return log.stat().st_size if log.exists() else 0

    def _one(self, title: str) -> int | None:
        pids = self._head.titled(title) if self._head is not None else []
        return self.draw.choice(pids) if pids else None

    def _strike_driver(self, excuse: str, number: signal.Signals) -> str | None:
        if not (living := [one for one in self._drivers if one.lives]):
            return None
        self._doom()
        victim = self.draw.choice(living)
        victim.excuse = excuse
        victim.process.send_signal(number)
        return f"{number.name} {victim.process.pid}"

    def _doom(self) -> None:
        """Whatever works now may lose what is not committed."""
        self._look()
        self._doomed.update(self._workers)

    def replica(self) -> str | None:
        if (pid := self._one(REPLICA)) is None:
            return None
        self._doomed.add(pid)
        kill(pid)
        return f"kill -9 {pid}"

    def child(self) -> str | None:
        """The engine's own process, or the one that looks after it."""
        if (replica := self._one(REPLICA)) is None or not (children := descendants(replica)):
            return None
        self._doomed.add(replica)
        kill(pid := self.draw.choice(children))
        return f"kill -9 {pid} of replica {replica}"

    def coordinator(self) -> str | None:
        if (pid := self._one(COORDINATOR)) is None:
            return None
        kill(pid)
        self._nothing_commits()
        return f"kill -9 {pid}"

    def driver(self) -> str | None:
        return self._strike_driver("killed", signal.SIGKILL)

    def starting_driver(self) -> str | None:
        """At planning, claiming, the engines' start: wherever it is by then."""
        self.driver()
        for driver in self._drivers:
            driver.process.wait()
        self._keep_going()
        time.sleep(self.draw.uniform(0.0, 6.0))
        return self.driver()

    def drain(self) -> str | None:
        return self._strike_driver("SIGTERM", signal.SIGTERM)

    def rival(self) -> str | None:
        """A second start beside whoever is there, or within a second of the first."""
        return f"started {self._start().process.pid}"

    def take_over(self) -> str | None:
        self._doom()
        return f"started {self._start('--take-over').process.pid} with --take-over"

    def frozen_coordinator(self) -> str | None:
        seconds = self.draw.uniform(1.0, 12.0)
        self._nothing_commits(seconds)
        return self._freeze(self._one(COORDINATOR), seconds)

    def frozen_replica(self) -> str | None:
        return self._freeze(self._one(REPLICA), self.draw.uniform(1.0, 8.0))

    def frozen_and_taken_over(self) -> str | None:
        """A zombie: its coordinator wakes up when another session has the run."""
        seconds = self.draw.uniform(8.0, 16.0)
        self._nothing_commits(seconds)
        said = self._freeze(self._one(COORDINATOR), seconds)
        return None if said is None else f"{said}, {self.take_over()}"

    def frozen_driver(self) -> str | None:
        living = [one.process.pid for one in self._drivers if one.lives]
        return self._freeze(self.draw.choice(living) if living else None, self.draw.uniform(1.0, 6.0))

    def head(self) -> str | None:
        """The head node is gone, and the driver with it: the next start is on another cluster."""
        if self._head is None or not self._drivers:
            return None
        self._doom()
        for driver in self._drivers:
            driver.excuse = _AFTER_CLUSTER_LOSS
            driver.process.kill()
        self._head.end()
        self._head = None
        return "kill -9 of every process of the cluster, and of the driver"

    def of_the_store(self) -> str | None:
        if (trouble := self.store.trouble(self.draw)) is None:
            return None
        said, seconds = trouble
        self._nothing_commits(seconds)
        return said

    def _freeze(self, pid: int | None, seconds: float) -> str | None:
        if pid is None:
            return None
        kill(pid, signal.SIGSTOP)
        self._thaw.append((time.monotonic() + seconds, pid))
        return f"SIGSTOP {pid} for {seconds:.1f} s"

    def _nothing_commits(self, seconds: float = 0.0) -> None:
        """From now on, for so long at least, and until the journal grows again."""
        self._broken_since.append((time.time(), time.time() + seconds))

    def _look_at_journal(self) -> None:
        now = time.time()
        if now - self._journal_seen_at < _JOURNAL_SECONDS:
            return
        self._journal_seen_at = now
        files = len(list(self.store.storage().list("journal/")))
        if files > self._journal_files:
            self.outages += [Outage(begun, now) for begun, until in self._broken_since if now > until]
            self._broken_since = [one for one in self._broken_since if now <= one[1]]
        self._journal_files = files

    # --- the end -------------------------------------------------------------------------------------

    def _thaw_all(self) -> None:
        for _, pid in self._thaw:
            kill(pid, signal.SIGCONT)
        self._thaw.clear()

    def _end_all(self) -> None:
        """What is ended here is the harness's own: the cluster, and drivers if something went wrong."""
        self._thaw_all()
        self._look()
        self.outages += [Outage(begun, time.time()) for begun, _ in self._broken_since]
        for driver in self._drivers:
            driver.process.kill()
            driver.process.wait()
        if self._head is not None:
            self._head.end()


_STORE = "store"
_SLOW = ("driver", "starting driver", "drain", "take-over", "frozen and taken over", "head")
_Trouble = Callable[[Round], str | None]
# How often each is in the deck.
_TROUBLES: dict[str, tuple[int, _Trouble]] = {
    "replica": (4, Round.replica),
    "child": (3, Round.child),
    "coordinator": (2, Round.coordinator),
    "driver": (2, Round.driver),
    "starting driver": (1, Round.starting_driver),
    "drain": (1, Round.drain),
    "rival": (2, Round.rival),
    "take-over": (1, Round.take_over),
    "frozen coordinator": (1, Round.frozen_coordinator),
    "frozen replica": (2, Round.frozen_replica),
    "frozen and taken over": (1, Round.frozen_and_taken_over),
    "frozen driver": (1, Round.frozen_driver),
    "head": (1, Round.head),
    _STORE: (4, Round.of_the_store),
}
