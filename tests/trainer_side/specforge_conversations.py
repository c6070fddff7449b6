"""Runs in SpecForge's environment: its own reader, parser and masks on conversations. FILE TARGET CARD OUT.

The template that SpecForge looks for answers with is registered as the dataset card says: its code block is run.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from specforge.config.schema import DataConfig
from specforge.data.prompt_builder import prepare_prompt_tasks
from transformers import AutoTokenizer

path, target, card, out = sys.argv[1:]
code = re.search(r"```python\n(.*?)```", Path(card).read_text(encoding="utf-8"), re.DOTALL)
assert code is not None
exec(code[1])
tasks = prepare_prompt_tasks(
    path,
    AutoTokenizer.from_pretrained(target),
    chat_template="regen",
    max_length=DataConfig.model_fields["max_length"].default,
    is_preformatted=False,
    train_only_last_turn=False,
    cache_dir=None,
    cache_key=None,
    num_proc=1,
)
found = {"rows": [task["payload"] for task in tasks]}
Path(out).write_text(json.dumps(found), encoding="utf-8")
