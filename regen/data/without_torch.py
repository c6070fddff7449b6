"""transformers without PyTorch, in processes that render and hold no engine.

A tokenizer needs no PyTorch, and importing it takes seconds and some 340 MB. transformers looks for it once, when it is
imported, and stays at what it found: a process that is to hold an engine must not spare it. PyTorch itself can be
imported here as ever.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_QUIET = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
_is_spared = False


def spare_torch() -> None:
    """From now on, in this process. Without effect where transformers or PyTorch is imported already."""
    global _is_spared
    _is_spared = True


def auto_tokenizer(trust_remote_code: bool) -> Any:
    """`transformers.AutoTokenizer`. A tokenizer's own code may want PyTorch: it is not spared then."""
    if _is_spared and not trust_remote_code and not {"torch", "transformers"} & sys.modules.keys():
        _import_without_torch()
    from transformers import AutoTokenizer

    return AutoTokenizer


def _import_without_torch() -> None:
    quiet = os.environ.get(_QUIET)
    os.environ[_QUIET] = "1"  # or it says that it has not found PyTorch
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from transformers.utils import is_torch_available

        is_torch_available()  # it keeps its first answer
    finally:
        del sys.modules["torch"]
        if quiet is None:
            del os.environ[_QUIET]
        else:
            os.environ[_QUIET] = quiet
