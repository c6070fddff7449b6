"""What is done with conversations of an odd shape: one small step a policy, in a fixed order. Pure.

Guarantees: a conversation comes out with slots only after the first user turn, never two in a row, and one to end with
(native: with the answers that it had, and one to end with); every result of a tool names a call of the answer just
before it; what a step changes is noted. Two user turns in a row or a second system message that are kept are for the
target's own template to judge, in the dry render.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from regen.data.adapters.calls import calls_json
from regen.data.adapters.given import Call, Reading, Turn
from regen.data.reasons import Note, Reason, refuse
from regen.records import Message, Role


def with_policies(turns: Sequence[Turn], system_prompt: str | None, row_system: object, reading: Reading) -> list[Turn]:
    """The turns as every policy wants them; still as the row gave them, with calls linked to results."""
    if not turns:
        refuse(Reason.EMPTY_CONVERSATION, "there is no message")
    if not any(turn.role is Role.USER for turn in turns):
        refuse(Reason.NO_USER_TURN, f"{len(turns)} messages, none by the user")
    turns = _without_blank_users(_without_leading_answers(turns, reading), reading)
    turns = _merged_answers(turns, reading)
    turns = _with_system(turns, system_prompt, row_system, reading)
    turns = _one_system(turns, reading)
    turns = _single_users(turns, reading)
    return [_clean(turn, number, reading) for number, turn in enumerate(_linked(turns, reading))]


def planned_messages(turns: Sequence[Turn], reading: Reading) -> tuple[Message, ...]:
    """What is given, and a slot wherever the target speaks: no answer of the source, only what it had called."""
    last = _last_speaker(turns)
    if turns[last].role is not Role.ASSISTANT:
        turns = [*turns, Turn(Role.ASSISTANT, None)]
    elif last < len(turns) - 1:
        reading.note(Note.TRAILING_SYSTEM_DROPPED)
        turns = turns[: last + 1]
    return tuple(_slot(turn) if turn.role is Role.ASSISTANT else _given(turn) for turn in turns)


def native_messages(turns: Sequence[Turn], reading: Reading) -> tuple[Message, ...]:
    """The whole conversation up to its last answer."""
    answers = [number for number, turn in enumerate(turns) if turn.role is Role.ASSISTANT]
    if not answers:
        refuse(Reason.NO_ANSWER, "there is no answer to pass through")
    for number in answers:
        if not (turns[number].content or "").strip() and not turns[number].calls:
            refuse(Reason.EMPTY_ANSWER, f"message {number} (assistant) is blank")
    if answers[-1] < len(turns) - 1:
        reading.note(Note.TRAILING_TURNS_DROPPED)
    kept = turns[: answers[-1] + 1]
    return tuple(_answer(turn) if turn.role is Role.ASSISTANT else _given(turn) for turn in kept)


# --- one policy a step ---------------------------------------------------------------------------


def _without_leading_answers(turns: Sequence[Turn], reading: Reading) -> list[Turn]:
    """Nothing was asked yet; results of tools belong to the answers that they follow."""
    first_user = next(number for number, turn in enumerate(turns) if turn.role is Role.USER)
    leading = [turn for turn in turns[:first_user] if turn.role is not Role.SYSTEM]
    if not any(turn.role is Role.ASSISTANT for turn in leading):
        return list(turns)
    if reading.policies.assistant_first == "reject":
        refuse(Reason.ASSISTANT_FIRST, f"{len(leading)} messages stand before the first user turn")
    reading.note(Note.LEADING_ASSISTANT_DROPPED)
    return [turn for turn in turns[:first_user] if turn.role is Role.SYSTEM] + list(turns[first_user:])


def _without_blank_users(turns: list[Turn], reading: Reading) -> list[Turn]:
    blank = [number for number, turn in enumerate(turns) if turn.role is Role.USER and not (turn.content or "").strip()]
    if not blank:
        return turns
    if reading.policies.empty_turns == "reject":
        refuse(Reason.EMPTY_USER_TURN, f"message {blank[0]} is blank")
    reading.note(Note.EMPTY_TURN_DROPPED)
    kept = [turn for number, turn in enumerate(turns) if number not in blank]
    if not any(turn.role is Role.USER for turn in kept):
        refuse(Reason.EMPTY_USER_TURN, "every user turn is blank")
    return _without_leading_answers(kept, reading)


def _merged_answers(turns: list[Turn], reading: Reading) -> list[Turn]:
    """Answers in a row are one turn of the target; their calls are made together."""
    made: list[Turn] = []
    for number, turn in enumerate(turns):
        if turn.role is not Role.ASSISTANT or not made or made[-1].role is not Role.ASSISTANT:
            made.append(turn)
            continue
        if reading.policies.consecutive_assistants == "reject":
            refuse(Reason.CONSECUTIVE_ASSISTANTS, f"message {number} is a second answer in a row")
        if reading.keeps_answers and not _can_be_one(made[-1], turn):
            refuse(Reason.CONSECUTIVE_ASSISTANTS, f"message {number}: two answers that were made as two pass as none")
        reading.note(Note.ASSISTANT_TURNS_MERGED)
        made[-1] = _one_answer(made[-1], turn)
    return made


def _can_be_one(one: Turn, other: Turn) -> bool:
    """Text and then calls, or calls and more calls: the ways in which one answer is written as two messages."""
    return bool(other.calls) and not other.content and not other.reasoning


def _one_answer(one: Turn, other: Turn) -> Turn:
    content = one.content if other.content is None else (one.content or "") + other.content
    return replace(one, content=content, calls=one.calls + other.calls)


def _with_system(turns: list[Turn], system_prompt: str | None, row_system: object, reading: Reading) -> list[Turn]:
    """The row's own system prompt first (blank text beside a row means none); the spec's where there is none at all."""
    text = row_system if isinstance(row_system, str) else ""
    first = turns[0]
    if text.strip() and not (first.role is Role.SYSTEM and first.content == text):
        reading.note(Note.ROW_SYSTEM_PROMPT_USED)
        return [Turn(Role.SYSTEM, text), *turns]
    if system_prompt is not None and not any(turn.role is Role.SYSTEM for turn in turns):
        reading.note(Note.SPEC_SYSTEM_PROMPT_USED)
        return [Turn(Role.SYSTEM, system_prompt), *turns]
    return turns


def _one_system(turns: list[Turn], reading: Reading) -> list[Turn]:
    systems = [turn.content or "" for turn in turns if turn.role is Role.SYSTEM]
    if len(systems) < 2:
        return turns
    policy = reading.policies.several_systems
    if policy == "reject":
        refuse(Reason.SEVERAL_SYSTEMS, f"{len(systems)} system messages")
    if policy == "keep":
        reading.note(Note.SYSTEMS_KEPT)
        return turns
    reading.note(Note.SYSTEMS_MERGED)
    return [Turn(Role.SYSTEM, "\n\n".join(systems)), *(turn for turn in turns if turn.role is not Role.SYSTEM)]


def _single_users(turns: list[Turn], reading: Reading) -> list[Turn]:
    policy, made = reading.policies.consecutive_users, list[Turn]()
    for number, turn in enumerate(turns):
        if turn.role is not Role.USER or not made or made[-1].role is not Role.USER:
            made.append(turn)
        elif policy == "reject":
            refuse(Reason.CONSECUTIVE_USERS, f"message {number} is a second user turn in a row")
        elif policy == "keep":
            reading.note(Note.USER_TURNS_KEPT)
            made.append(turn)
        else:
            reading.note(Note.USER_TURNS_MERGED)
            made[-1] = Turn(Role.USER, f"{made[-1].content}\n\n{turn.content}")
    return made


# --- tools ---------------------------------------------------------------------------------------


def _linked(turns: Sequence[Turn], reading: Reading) -> Iterator[Turn]:
    """Calls with ids, and results that name the call they answer: by id where the source has ids, else in order.

    An id that one answer gives to several calls names one of them only: the others and their results, in order, get
    ids of their own.
    """
    open_calls: list[tuple[str | None, Call]] = []
    numbers = iter(range(10**9))
    for number, turn in enumerate(turns):
        if turn.role is Role.TOOL:
            answered = _answered(turn, open_calls)
            if answered is not None:
                _, call = open_calls.pop(answered)
                yield replace(turn, call_id=call.id, name=turn.name or call.name)
            elif reading.policies.orphan_tool_results == "reject":
                refuse(Reason.ORPHAN_TOOL_RESULT, f"message {number} (tool) {_what_it_answers(turn)}")
            else:
                reading.note(Note.ORPHAN_RESULT_DROPPED)
            continue
        calls = tuple(_with_id(call, next(numbers), reading) for call in turn.calls)
        distinct = _with_distinct_ids(calls, reading)
        open_calls = [(call.id, renewed) for call, renewed in zip(calls, distinct, strict=True)]
        yield replace(turn, calls=distinct)


def _with_id(call: Call, number: int, reading: Reading) -> Call:
    if call.id is not None:
        return call
    reading.note(Note.TOOL_IDS_ASSIGNED)
    return replace(call, id=f"call_{number}")


def _with_distinct_ids(calls: Sequence[Call], reading: Reading) -> tuple[Call, ...]:
    """The first call with an id keeps it."""
    taken = {call.id for call in calls}
    made: dict[str | None, Call] = {}
    for call in calls:
        if call.id in made:
            reading.note(Note.TOOL_IDS_RENEWED)
            call = replace(call, id=next(id_ for n in count(2) if (id_ := f"{call.id}_{n}") not in taken))
            taken.add(call.id)
        made[call.id] = call
    return tuple(made.values())


def _answered(turn: Turn, open_calls: Sequence[tuple[str | None, Call]]) -> int | None:
    """Which is the first open call, by the id that the source knows it by, that this result can be the answer to."""
    for number, (known_id, call) in enumerate(open_calls):
        by_id = turn.call_id is None or turn.call_id == known_id
        by_name = turn.call_id is not None or turn.name is None or turn.name == call.name
        if by_id and by_name:
            return number
    return None


def _what_it_answers(turn: Turn) -> str:
    if turn.call_id is not None:
        return f"answers the call {turn.call_id!r}, and the answer before it made no such call"
    return "answers no call of the answer before it"


# --- messages ------------------------------------------------------------------------------------


def _clean(turn: Turn, number: int, reading: Reading) -> Turn:
    """Text that UTF-8 can carry; of answers only where they are kept."""
    where = f"message {number} ({turn.role})"

    def cleaned(text: str | None) -> str | None:
        return None if text is None else reading.clean(text, where)

    return replace(
        turn,
        content=cleaned(turn.content),
        reasoning=cleaned(turn.reasoning),
        call_id=cleaned(turn.call_id),
        name=cleaned(turn.name),
    )


def _last_speaker(turns: Sequence[Turn]) -> int:
    return max(number for number, turn in enumerate(turns) if turn.role is not Role.SYSTEM)


def _given(turn: Turn) -> Message:
    return Message(turn.role, turn.content, tool_call_id=turn.call_id, name=turn.name)


def _slot(turn: Turn) -> Message:
    return Message(Role.ASSISTANT, None, expected_calls_json=calls_json(turn.calls) if turn.calls else None)


def _answer(turn: Turn) -> Message:
    return Message(
        Role.ASSISTANT,
        turn.content or "",
        reasoning=turn.reasoning,
        tool_calls_json=calls_json(turn.calls) if turn.calls else None,
    )
