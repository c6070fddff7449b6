"""How a chat template takes calls of tools: arguments as text or as an object, beside content or without. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NAME, _VALUE = "probe_tool", "probe value"
_ARGUMENTS = f'{{"probe_key":  "{_VALUE}"}}'  # two spaces: no template writes it so by itself
PROBE: Mapping[str, Any] = {
    "id": "call_0",
    "type": "function",
    "function": {"name": _NAME, "arguments": _ARGUMENTS},
}


@dataclass(frozen=True, slots=True)
class CallForm:
    """`arguments_as_text`: as the target wrote them; `without_content`: an answer of calls alone has content null."""

    arguments_as_text: bool = False
    without_content: bool = False

    def of(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """The call in this form, however it is given. Text that is no JSON (kept by policy) stays text."""
        function = call["function"]
        as_taken = _text if self.arguments_as_text else _object
        return {**call, "function": {**function, "arguments": as_taken(function["arguments"])}}

    def is_written(self, made: str) -> bool:
        """Whether a rendered text has the probe's name and arguments; a quoted string is not the text it quotes."""
        return _NAME in made and (_ARGUMENTS if self.arguments_as_text else _VALUE) in made


CALL_FORMS = tuple(CallForm(as_text, without) for without in (False, True) for as_text in (True, False))


def _text(arguments: Any) -> object:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _object(arguments: Any) -> object:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
