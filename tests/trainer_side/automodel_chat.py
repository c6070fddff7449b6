"""Runs in NeMo AutoModel's environment: `ChatDataset`, as its EAGLE-3 recipe uses it. FOLDER TARGET OUT."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from nemo_automodel.components.datasets.llm.chat_dataset import ChatDataset
from transformers import AutoTokenizer

folder, target, out = sys.argv[1:]
dataset = ChatDataset(
    folder,
    tokenizer=AutoTokenizer.from_pretrained(target),
    split="train",
    seq_length=4096,
    padding="do_not_pad",
    truncation=True,
    unshifted=True,
    mask_generation_prompt=True,
)
samples = [dataset[index] for index in range(len(dataset))]
rows = [{"input_ids": sample["input_ids"], "loss_mask": sample["loss_mask"]} for sample in samples]
Path(out).write_text(json.dumps({"rows": rows}), encoding="utf-8")
