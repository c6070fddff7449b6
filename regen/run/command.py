"""A begun run from its first engine to its exit code: what `run`, `resume`, `calibrate` and `pilot` share.

Prints nothing itself: what is to be said goes to the display or to `say`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from regen.errors import ExitCode, RegenError
from regen.observe.live import Aside, Display
from regen.observe.log import Log
from regen.observe.terminal_facts import facts_of
from regen.records import CoordinatorStatus, Status
from regen.run import session
from regen.run.driver import Cluster
from regen.run.own_cluster import prepare_own_cluster
from regen.run.patience import patiently
from regen.run.progress.run_facts import price_of
from regen.run.session import Standing
from regen.run.start import Begun

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ends: `outcome` is one word for machines, `told` are sentences for people."""

    exit_code: ExitCode
    outcome: str
    told: tuple[str, ...] = ()


def drive(begun: Begun, address: str | None, verbosity: int, shown: Display, log: Log) -> CoordinatorStatus:
    """One session on a Ray cluster, shown while it lives; then report.json. The last status.

    Raises the run's error, after having said where the logs of engines and actors are.
    """
    prepare_own_cluster(address)
    from regen.run import cluster

    log.adopt_loggers()  # Ray's, by now
    logs = cluster.connect(address, verbosity)
    try:
        with Aside(shown) as aside:
            last = conduct(begun, cluster.RayCluster(aside.say), aside, cluster.drain_seconds())
    except RegenError:
        log(f"logs of engines and actors: {logs}")
        raise
    finally:
        cluster.disconnect()
    leave_report(begun, last, log)
    return last


def leave_report(begun: Begun, last: CoordinatorStatus, log: Log) -> None:
    """report.json is for people and for what reads metrics: without it the run is as complete, and yet to be sealed."""
    try:
        patiently(
            lambda: session.write_report(begun.storage, begun.record.spec, last, session.standing(begun.storage)), log
        )
    except Exception as error:  # a defect, too
        if not isinstance(error, RegenError):
            traceback.print_exc()
        log(f"warning: report.json is not written ({type(error).__name__}: {error})")


def conduct(begun: Begun, cluster: Cluster, shown: Aside, drain_seconds: float) -> CoordinatorStatus:
    """The session itself, on whatever cluster. The last status; raises the run's error."""
    run = begun.worker_setup.run
    price = price_of(run.spec)

    def show(status: CoordinatorStatus) -> None:
        shown(facts_of(status, run.spec.name, run.session, price))

    return asyncio.run(session.conduct(cluster, begun.worker_setup, show, shown.say, drain_seconds))


def settle(begun: Begun, say: Say) -> Standing:
    """What the store says after the session; shards are written if the run is finished."""
    found = patiently(lambda: session.standing(begun.storage), say)
    if found.is_finished:
        patiently(lambda: session.seal_run(begun.storage, begun.worker_setup.run), say)
    return found


def ending(url: str, found: Standing, allow_rejects: bool) -> Ending:
    """The exit code of a session that raised no error. Pure."""
    counts = found.totals.by_status()
    lost = counts[Status.REJECTED] + counts[Status.FAILED]
    if not found.is_finished:
        told = f"drained: what is finished is committed; continue with: regen resume {url}"
        return Ending(ExitCode.DRAINED, "drained", (told,))
    capped = "warning: more than 10 % of the rows hit sampling.max_tokens and are cut: `truncated`, not `ok`"
    warnings = (capped,) if found.is_capped_often else ()
    if lost and not allow_rejects:
        told = f"completed with rejects: {lost:,} rows have no answer, each with stage and reason in its row"
        return Ending(ExitCode.COMPLETED_WITH_REJECTS, "completed_with_rejects", (*warnings, told))
    return Ending(ExitCode.OK, "finished", warnings)
