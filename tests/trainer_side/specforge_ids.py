"""Runs in SpecForge's environment: its own reader on a file of ids. FILE OUT."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from specforge.config.schema import DataConfig
from specforge.data.prompt_builder import prepare_prompt_tasks

path, out = sys.argv[1:]
default = DataConfig.model_fields["max_length"].default
tasks = prepare_prompt_tasks(
    path,
    None,
    chat_template=None,
    max_length=default,
    is_preformatted=False,
    train_only_last_turn=False,
    cache_dir=None,
    cache_key=None,
    num_proc=1,
)
found = {"max_length": default, "rows": [task["payload"] for task in tasks]}
Path(out).write_text(json.dumps(found), encoding="utf-8")
