"""Stand-ins for the datasets of examples/kimi-k2.5-eagle3.yaml: folders of a few rows, with the real ones' columns.

The hub's own folders say in their card which file belongs to which configuration and split, and so do these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from regen.spec import RunSpec, SourceSpec
from tests.runs import write_jsonl

Row = dict[str, Any]
# Answers of the target in a row of the sources that are conversations.
CHAT_TURNS = 3
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def _messages(number: int, turns: int) -> list[Row]:
    return [
        message
        for turn in range(turns)
        for message in (
            {"role": "user", "content": f"Question {turn} of row {number}"},
            {"role": "assistant", "content": f"Old answer {turn}"},
        )
    ]


def _sharegpt(number: int, turns: int) -> list[Row]:
    names = {"user": "human", "assistant": "gpt"}
    return [{"from": names[one["role"]], "value": one["content"]} for one in _messages(number, turns)]


def _called(number: int) -> list[Row]:
    call = f'<tool_call>\n{{"name": "weather", "arguments": {{"place": "town {number}"}}}}\n</tool_call>'
    return [
        {"from": "system", "value": "You may call functions."},
        {"from": "human", "value": f"What is the weather in town {number}?"},
        {"from": "gpt", "value": call},
    ]


ROWS: Mapping[str, Callable[[int], Row]] = {
    "ultrachat": lambda n: {"prompt": f"p {n}", "prompt_id": f"{n:064x}", "messages": _messages(n, CHAT_TURNS)},
    "sharegpt": lambda n: {"id": f"s{n}_0", "conversations": _sharegpt(n, CHAT_TURNS)},
    "tulu": lambda n: {"id": f"t{n}", "messages": _messages(n, CHAT_TURNS), "source": "some/set"},
    "orca": lambda n: {"id": f"o{n}", "system_prompt": "Be exact.", "question": f"Why {n}?", "response": "Old."},
    "math": lambda n: {"source": "olympiads", "problem": f"{n} + 1", "solution": "old", "messages": _messages(n, 1)},
    "code": lambda n: {"query": f"Write f{n}()", "answer": "Old code", "resource": "evol", "lang": "python"},
    "preference": lambda n: {
        "prompt": f"Tell me {n}",
        "prompt_id": f"{n:064x}",
        "chosen": _messages(n, 1),
        "rejected": _messages(n, 1),
        "messages": _messages(n, 1),
        "score_chosen": 8.0,
        "score_rejected": 3.0,
    },
    "alpaca": lambda n: {"instruction": f"Name {n} things", "input": "red", "output": "Old", "text": "Below is ..."},
    "tools": lambda n: {
        "id": f"f{n}",
        "conversations": _called(n),
        "tools": json.dumps([TOOL]),
        "category": "Weather",
        "subcategory": "",
        "task": "Look",
    },
    "native": lambda n: {"messages": _messages(n, 1)},
}


def write_stand_in(source: SourceSpec, folder: Path, rows: int) -> Path:
    """A folder that `datasets` loads by the configuration and split that the source names."""
    folder.mkdir(parents=True)
    write_jsonl(folder / "rows.jsonl", (ROWS[source.name](number) for number in range(rows)))
    files = [{"split": source.split or "train", "path": "rows.jsonl"}]
    card = json.dumps({"configs": [{"config_name": source.config or "default", "data_files": files}]})
    (folder / "README.md").write_text(f"---\n{card}\n---\n", encoding="utf-8")
    return folder


def with_stand_ins(spec: RunSpec, folder: Path, target: Path, draft: Path, rows: int = 20) -> RunSpec:
    """The same run over local folders: only where things lie is another."""
    sources = [
        source.model_copy(update={"path": str(write_stand_in(source, folder / source.name, rows))})
        for source in spec.sources
    ]
    assert spec.speculation is not None
    return spec.model_copy(
        update={
            "output": str(folder / "run"),
            "target": spec.target.model_copy(update={"model": str(target)}),
            "speculation": spec.speculation.model_copy(update={"draft": str(draft)}),
            "sources": sources,
        }
    )
