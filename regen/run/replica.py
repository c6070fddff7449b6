"""Makes a worker out of its setup: the engine that the spec names, and the target's template."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from regen.data.profiles import AnswerFormat
from regen.data.sampling import effective_sampling
from regen.data.target import config_vocabulary, resolve_target
from regen.data.template import TokenizerTemplate, load_template
from regen.engines.fake import FakeEngine
from regen.engines.openai import OpenaiEngine
from regen.observe.process_metrics import serve_process_metrics
from regen.protocols import AnswerParser, Engine
from regen.run.setup import Purpose, WorkerSetup
from regen.run.speculation.draft_folder import make_draft_folder
from regen.run.speculation.known_texts import known_texts
from regen.run.speculation.server_preflight import approve, approve_answers
from regen.run.stopwatch import Stopwatch
from regen.run.worker import Exchange, Served, Worker
from regen.spec import EndpointSpec, FakeEngineSpec, RunSpec, SpeculationSpec, VllmEngineSpec


def build_engine(setup: WorkerSetup, template: TokenizerTemplate | None = None) -> Engine:
    """The slot's server, or the engine of `engine.kind`; not started. A new kind is one more branch here and one file
    in engines/.

    A server's tokenizer is compared with the target's: that of `template`, else one that is loaded then.
    """
    spec, speculation = setup.run.spec, setup.assignment.speculation
    if (endpoint := spec.engine.endpoint_of(setup.worker.slot)) is not None:
        return _served_engine(endpoint, setup, template)
    keeps_steps = setup.run.purpose is Purpose.PILOT
    if isinstance(spec.engine, FakeEngineSpec):
        return FakeEngine(spec.engine, speculation, setup.worker, keeps_steps)
    assert isinstance(spec.engine, VllmEngineSpec), "kind openai has no slots but its servers'"
    from regen.engines.vllm import VllmEngine  # vLLM is not installed where only planning is done

    return VllmEngine(
        model=setup.model,
        revision=setup.model_revision,
        trust_remote_code=spec.target.trust_remote_code,
        spec=spec.engine,
        speculation=speculation,
        draft_folder=_draft_folder(speculation, setup),
        keeps_steps=keeps_steps,
    )


def import_engine(spec: RunSpec, slot: int) -> None:
    """What the slot's engine is made of, which takes seconds; nothing is started, and the second time is free."""
    if is_own_vllm(spec, slot):
        from regen.engines.vllm import import_vllm

        import_vllm()


def is_own_vllm(spec: RunSpec, slot: int) -> bool:
    """Whether the slot has an engine of our own that is worth preparing for."""
    return isinstance(spec.engine, VllmEngineSpec) and spec.engine.endpoint_of(slot) is None


def _served_engine(endpoint: EndpointSpec, setup: WorkerSetup, template: TokenizerTemplate | None) -> Engine:
    spec, speculation, say = setup.run.spec, setup.assignment.speculation, partial(_say, setup.worker.slot)
    loaded = cache(lambda: template or _template(setup))
    return OpenaiEngine(
        spec=spec.engine,
        endpoint=endpoint,
        target=spec.target.model,
        sampling=effective_sampling(spec.sampling, setup.generation_config, setup.eos_token_ids, "", {}),
        speculation=speculation,
        retokenise=loaded().ids_of_text if spec.engine.ids == "retokenised" else None,
        say=say,
        approve=lambda facts: approve(facts, speculation, _target_folder(setup), say),
        known_texts=lambda: known_texts(loaded()),
        vocabulary=lambda: max(loaded().vocabulary_size, config_vocabulary(_target_folder(setup))),
    )


def _say(slot: int, line: str) -> None:
    print(f"replica {slot}: {line}", file=sys.stderr, flush=True)


def _target_folder(setup: WorkerSetup) -> Path:
    """Where the driver found config and tokenizer; on another node, a hub model's are fetched again, at its commit."""
    if setup.model_folder.is_dir() or setup.model_revision is None:
        return setup.model_folder
    return resolve_target(setup.run.spec.target.model_copy(update={"revision": setup.model_revision})).folder


def _draft_folder(speculation: SpeculationSpec | None, setup: WorkerSetup) -> Callable[[], Path] | None:
    if speculation is None or speculation.draft is None:
        return None
    return partial(make_draft_folder, speculation, _target_folder(setup))


def prepare_draft(setup: WorkerSetup) -> str | None:
    """On each node that the engine's processes are on: make the draft's folder, and say where. None: there is no draft.

    Raises as `make_draft_folder`.
    """
    make = _draft_folder(setup.assignment.speculation, setup)
    return None if make is None else str(make())


def build_worker(setup: WorkerSetup, exchange: Exchange) -> Worker:
    """A worker ready to `run`. Loads the tokenizer (a second or so)."""
    stopwatch = Stopwatch(f"replica {setup.worker.slot}")
    template = _template(setup)
    stopwatch.lap("tokenizer")
    engine = build_engine(setup, template)
    make_parser = partial(build_parser, setup.answers, template)
    approve_warmup = partial(_approve_warmup, engine, setup)
    return Worker(
        setup,
        engine,
        template,
        exchange,
        make_parser,
        _own_metrics(setup),
        approve_warmup,
        partial(import_engine, setup.run.spec, setup.worker.slot),
        stopwatch,
    )


def _approve_warmup(engine: Engine, setup: WorkerSetup) -> None:
    """What a server's answers have shown besides the sums that the gate looks at."""
    speculation = setup.assignment.speculation
    if isinstance(engine, OpenaiEngine) and speculation is not None:
        approve_answers(*engine.shown_so_far(), speculation, partial(_say, setup.worker.slot))


def _template(setup: WorkerSetup) -> TokenizerTemplate:
    spec, target = setup.run.spec, setup.run.spec.target
    return load_template(
        _target_folder(setup),
        target.trust_remote_code,
        target.template_kwargs,
        control_as_text=spec.policies.control_tokens == "text",
    )


def _own_metrics(setup: WorkerSetup) -> Callable[[], Served] | None:
    """None: they are not wanted, or a server's own affair."""
    metrics = setup.run.spec.metrics
    if metrics.engine_port is None or setup.run.spec.engine.endpoint_of(setup.worker.slot) is not None:
        return None
    return partial(serve_process_metrics, metrics.host, metrics.engine_port + setup.worker.slot)


def build_parser(answers: AnswerFormat, template: TokenizerTemplate) -> AnswerParser | None:
    """What reads the target's answers; None: nothing does. Raises SpecError: no such parser, or not for this target."""
    if answers.reasoning_parser is None and answers.tool_parser is None:
        return None
    from regen.engines.vllm_parsers import VllmAnswerParser

    return VllmAnswerParser(template.tokenizer, answers.reasoning_parser, answers.tool_parser)
