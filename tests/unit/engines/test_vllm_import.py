"""vLLM that cannot be imported on a node."""

from __future__ import annotations

import sys

import pytest

from regen.engines.vllm import import_vllm
from regen.errors import EngineStartFailed


def test_vllm_that_cannot_be_imported_is_an_engine_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "vllm.v1.engine.async_llm", raising=False)
    with pytest.raises(EngineStartFailed, match="vLLM cannot be imported on this node: ModuleNotFoundError"):
        import_vllm()
