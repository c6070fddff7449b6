"""A stand-in server in a process of its own: `python -m tests.served '{"kind": "vllm", "port": 0, ...}'`.

`engine` and `speculation` are as in a spec, `faults` a list of tests/served/faults.py's fields, `server` fields of the
server's class. Prints `port N` once it answers, and serves until it is killed or whoever started it is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from aiohttp import web

from regen.spec import FakeEngineSpec, SpeculationSpec
from tests.served.answers import Answers
from tests.served.faults import Script, faults_from
from tests.served.sglang_server import SglangServer
from tests.served.stand import Server
from tests.served.vllm_server import VllmServer

_KINDS: dict[str, Any] = {"vllm": VllmServer, "sglang": SglangServer}


def made(settings: dict[str, Any]) -> Server:
    """The server of these settings."""
    engine = FakeEngineSpec.model_validate({"slots": 64, "max_model_len": 4096, **settings.get("engine", {})})
    said = settings.get("speculation")
    server: Server = _KINDS[settings["kind"]](
        answers=Answers(engine, SpeculationSpec.model_validate(said) if said else None),
        script=Script(*faults_from(settings.get("faults", []))),
        **settings.get("server", {}),
    )
    return server


async def _serve(settings: dict[str, Any], parent: int) -> None:
    runner = web.AppRunner(made(settings).app(), access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", settings.get("port", 0), reuse_address=True).start()
    print("port", runner.addresses[0][1], flush=True)
    while os.getppid() == parent:
        await asyncio.sleep(1.0)


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.argv[1]), os.getppid()))
