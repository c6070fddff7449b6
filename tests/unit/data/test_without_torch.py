"""A tokenizer without PyTorch, each in a process of its own: transformers looks once."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.toy_target import build_toy_target

SCRIPT = """
import sys
from pathlib import Path
from regen.data.template import load_template
from regen.data.without_torch import spare_torch
if sys.argv[2] == "spare":
    spare_torch()
load_template(Path(sys.argv[1]), sys.argv[3] == "own code", {})
print(*(name for name in ("torch", "transformers") if name in sys.modules))
"""


def imported(folder: Path, *how: str) -> list[str]:
    command = [sys.executable, "-c", SCRIPT, str(build_toy_target(folder)), *how]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "PyTorch" not in ended.stderr
    return ended.stdout.split()


def test_a_process_that_spares_it_loads_a_tokenizer_without(tmp_path: Path):
    assert imported(tmp_path, "spare", "none") == ["transformers"]


@pytest.mark.parametrize("how", [("keep", "none"), ("spare", "own code")])
def test_others_and_a_tokenizers_own_code_have_it(tmp_path: Path, how: tuple[str, str]):
    assert imported(tmp_path, *how) == ["torch", "transformers"]
