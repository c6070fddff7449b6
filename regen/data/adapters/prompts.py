"""Rows that ask without a conversation: prompt, question, alpaca, turns (MT-bench), prompt/chosen/rejected. Pure.

Fixed rules: a prompt that is a list is a list of messages; `instruction` and `input` are joined with a blank line.
Where answers are kept, they are read from the columns that such datasets have for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from regen.data.adapters.chat import answer_turn, content_text, read_chat, system_beside
from regen.data.adapters.given import Given, Reading, Turn, as_list, as_text, first, required, type_name
from regen.data.reasons import Reason, refuse
from regen.records import Role

_ANSWER_KEYS = ("response", "completion", "answer", "output", "chosen")


def read_prompt(value: Mapping[str, object], reading: Reading) -> Given:
    return _asked(value, required(value, "prompt", "question", "instruction", "query"), reading)


def read_question(value: Mapping[str, object], reading: Reading) -> Given:
    return _asked(value, required(value, "question"), reading)


def read_preference(value: Mapping[str, object], reading: Reading) -> Given:
    """What was asked; of the two answers the chosen one, where answers are kept."""
    prompt = value.get("prompt")
    if prompt is None:
        chosen = required(value, "chosen")
        if isinstance(chosen, str):
            refuse(
                Reason.MISSING_KEY, "chosen and rejected are text and there is no prompt: nothing says what was asked"
            )
        return _given(value, tuple(read_chat(chosen, reading)), reading)
    return _asked(value, prompt, reading)


def read_alpaca(value: Mapping[str, object], reading: Reading) -> Given:
    if value.get("history"):
        refuse(Reason.HISTORY, "a row with history: turn it into messages")
    instruction = as_text(required(value, "instruction"), "instruction")
    extra = value.get("input")
    more = "" if extra is None else as_text(extra, "input")
    asked = Turn(Role.USER, f"{instruction}\n\n{more}" if more.strip() else instruction)
    return _given(value, (asked, *_answer(value, reading)), reading)


def read_turns(value: Mapping[str, object], reading: Reading) -> Given:
    """The user's turns, one text each; a list of objects is a list of messages."""
    given = as_list(required(value, "turns"), "turns")
    if given and all(isinstance(turn, Mapping) for turn in given):
        return _given(value, tuple(read_chat(given, reading)), reading)
    turns: list[Turn] = []
    for number, turn in enumerate(given):
        if not isinstance(turn, str):
            refuse(Reason.WRONG_TYPE, f"turn {number} is {type_name(turn)}, not text")
        turns += [Turn(Role.USER, turn), Turn(Role.ASSISTANT, None)]
    if turns and reading.keeps_answers:
        refuse(Reason.NO_ANSWER, "turns hold what users said and no answer")
    return _given(value, tuple(turns), reading)


def _asked(value: Mapping[str, object], prompt: object, reading: Reading) -> Given:
    if isinstance(prompt, list) and any(isinstance(part, Mapping) for part in prompt):
        turns = tuple(read_chat(prompt, reading))
    else:
        turns = (Turn(Role.USER, as_text(prompt, "the prompt")),)
    return _given(value, (*turns, *_answer(value, reading)), reading)


def _given(value: Mapping[str, object], turns: tuple[Turn, ...], reading: Reading) -> Given:
    return Given(turns, tools=first(value, "tools", "functions"), system=system_beside(value, reading))


def _answer(value: Mapping[str, object], reading: Reading) -> tuple[Turn, ...]:
    if not reading.keeps_answers:
        return ()
    given = first(value, *_ANSWER_KEYS)
    if given is None:
        return ()
    if isinstance(given, list) and given and isinstance(given[-1], Mapping) and "type" not in given[-1]:
        return tuple(read_chat(given[-1:], reading))
    return (answer_turn(content_text(given, reading, "the answer"), None, reading),)
