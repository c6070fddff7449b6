"""holder.json is for people: what goes wrong in it ends no run."""

from __future__ import annotations

import asyncio

from regen.records import Eta, EtaState, Phase
from regen.run.heartbeat import BEAT_SECONDS, Heartbeat
from regen.run.setup import RunSetup
from regen.store.holder import HolderProgress, HolderState, read_holder
from tests.memory_storage import MemoryStorage
from tests.runs import begin_run, make_spec

PROGRESS = HolderProgress("now", Phase.RUNNING, Eta(EtaState.WARMING), None, 1, 2, None)


def setup_of(folder) -> RunSetup:
    return begin_run(make_spec(folder, rows=3)).worker_setup.run


def test_a_defect_in_what_is_told_of_progress_is_printed_once_and_the_heart_beats_on(tmp_path, capfd):
    storage = MemoryStorage()

    def broken() -> HolderProgress:
        raise ZeroDivisionError("no rate")

    async def beats() -> None:
        heartbeat = Heartbeat(setup_of(tmp_path), storage, broken)
        for beat in range(3):
            heartbeat.keep(beat * BEAT_SECONDS, lambda: None)
            await asyncio.sleep(0.02)
        await heartbeat.leave(HolderState.FINISHED)

    asyncio.run(beats())
    holder = read_holder(storage)
    assert holder is not None
    assert (holder.state, holder.progress) == (HolderState.FINISHED, None)
    assert holder.beat >= 1
    assert capfd.readouterr().err.count("ZeroDivisionError: no rate") == 1


def test_progress_goes_with_each_beat(tmp_path):
    storage = MemoryStorage()

    async def beats() -> None:
        await Heartbeat(setup_of(tmp_path), storage, lambda: PROGRESS).leave(HolderState.DRAINED)

    asyncio.run(beats())
    holder = read_holder(storage)
    assert holder is not None
    assert holder.progress == PROGRESS
