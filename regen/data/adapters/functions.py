"""The rows of the Berkeley function-calling benchmark: `question` (turns of messages) and `function`. Pure.

`question` is a list of turns, each a list of messages; after each turn the target speaks.
"""

from __future__ import annotations

from collections.abc import Mapping

from regen.data.adapters.chat import read_chat, system_beside
from regen.data.adapters.given import Given, Reading, Turn, as_list, first, required
from regen.data.reasons import Reason, refuse
from regen.records import Role


def read_bfcl(value: Mapping[str, object], reading: Reading) -> Given:
    question = as_list(required(value, "question"), "question")
    if reading.keeps_answers and question and isinstance(question[0], list):
        refuse(Reason.NO_ANSWER, "question holds turns of users and no answer")
    if question and all(isinstance(turn, list | tuple) for turn in question):
        turns = tuple(message for turn in question for message in _turn(turn, reading))
    else:
        turns = tuple(read_chat(question, reading))
    return Given(turns, tools=first(value, "function", "functions", "tools"), system=system_beside(value, reading))


def _turn(given: object, reading: Reading) -> list[Turn]:
    """One turn's messages, and the place where the target answers them."""
    messages = list(read_chat(given, reading))
    if messages and messages[-1].role is not Role.ASSISTANT:
        messages.append(Turn(Role.ASSISTANT, None))
    return messages
