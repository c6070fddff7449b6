"""Arms that are a few lines around vLLM or Ray, each a process: `python -m benchmarks.peers.children NAME FOLDER`.

`job.json` of the folder says what to do; `done.json` is left there: when the first request was made, when the last
answer was there, and how many answers there are. The clock of an arm leaves out the engine's start.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.rows import Row

RAY_CPUS = 8


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    job = json.loads((folder / "job.json").read_text())
    rows = [Row(row["system"], tuple(row["turns"])) for row in job["rows"]]
    began_at, ended_at, answers = CHILDREN[name](job, rows)
    (folder / "done.json").write_text(json.dumps({"began_at": began_at, "ended_at": ended_at, "answers": answers}))


def lockstep(job: dict[str, Any], rows: list[Row]) -> tuple[float, float, int]:
    """All first turns by one `LLM.chat`, then all second turns, and so on. With one turn: the limit of short rows."""
    llm, sampling = _offline(job)
    histories: list[tuple[str, ...]] = [() for _ in rows]
    still = list(range(len(rows)))
    began_at = time.time()
    for turn in range(max(len(row.turns) for row in rows)):
        still = [number for number in still if turn < len(rows[number].turns)]
        outputs = llm.chat([rows[number].messages(histories[number]) for number in still], sampling, use_tqdm=False)
        for number, output in zip(still, outputs, strict=True):
            histories[number] = (*histories[number], output.outputs[0].text)
        still = [number for number, output in zip(still, outputs, strict=True) if not _is_cut(output)]
    return began_at, time.time(), sum(map(len, histories))


def chained(job: dict[str, Any], rows: list[Row]) -> tuple[float, float, int]:
    """One engine, and each conversation's next turn is added as soon as its last answer is there: the limit."""
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind

    llm, sampling = _offline(job)
    sampling.output_kind = RequestOutputKind.FINAL_ONLY  # as LLM.chat has it
    engine, tokenizer = llm.llm_engine, llm.get_tokenizer()
    histories: list[tuple[str, ...]] = [() for _ in rows]

    def ask(number: int) -> None:
        history = histories[number]
        prompt = tokenizer.apply_chat_template(
            rows[number].messages(history), add_generation_prompt=True, return_dict=False
        )
        engine.add_request(f"{number}-{len(history)}", tokens_input(prompt), sampling)

    began_at = time.time()
    for number in range(len(rows)):
        ask(number)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                number = int(output.request_id.split("-")[0])
                histories[number] = (*histories[number], output.outputs[0].text)
                if len(histories[number]) < len(rows[number].turns) and not _is_cut(output):
                    ask(number)
    return began_at, time.time(), sum(map(len, histories))


def ray_data(job: dict[str, Any], rows: list[Row]) -> tuple[float, float, int]:
    """Ray Data's vLLM processor over one engine. Its clock here holds the engine's start: Ray Data shows no other."""
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    # CPUs by Ray's accounting alone: with two of them its stages hold what the first one waits for, and nothing runs.
    ray.init(address="local", num_cpus=RAY_CPUS, include_dashboard=False, _node_ip_address="127.0.0.1")
    small = {"enabled": True, "num_cpus": 0.1}
    config = vLLMEngineProcessorConfig(
        model_source=job["model"],
        engine_kwargs=job["engine"],
        concurrency=1,
        batch_size=job["slots"],
        placement_group_config={"bundles": [{"CPU": 1}]},  # by default it asks for a GPU
        log_engine_metrics=False,
        chat_template_stage=small,
        tokenize_stage=small,
        detokenize_stage={"enabled": False},
    )
    sampling = {"temperature": 0, "max_tokens": job["max_tokens"]}
    processor = build_processor(
        config,
        preprocess=lambda row: {"messages": row["messages"], "sampling_params": sampling},
        postprocess=lambda row: {"tokens": row["num_generated_tokens"]},
    )
    began_at = time.time()
    found = processor(ray.data.from_items([{"messages": row.messages()} for row in rows])).take_all()
    return began_at, time.time(), len(found)


def _is_cut(output: Any) -> bool:
    """At the cap: regen ends a conversation there, and so does every arm."""
    return bool(output.outputs[0].finish_reason == "length")


def _offline(job: dict[str, Any]) -> tuple[Any, Any]:
    from vllm import LLM, SamplingParams

    return LLM(model=job["model"], **job["engine"]), SamplingParams(temperature=0, max_tokens=job["max_tokens"])


CHILDREN: dict[str, Callable[[dict[str, Any], list[Row]], tuple[float, float, int]]] = {
    "chat": lockstep,
    "lockstep": lockstep,
    "chained": chained,
    "ray_data": ray_data,
}

if __name__ == "__main__":
    main()
