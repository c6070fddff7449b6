"""Raw rows made canonical conversations. Pure.

Guarantees: `normalize` returns a conversation (or tokens that pass through), or raises RowRefused with a reason of the
closed list `Reason`, whatever JSON value it is given; in mode regenerate no answer of the source survives, but for what
it had called, which recorded results of tools are matched by; every string that is given survives exactly; what was
changed on the way is named in `notes`. Does not know the target: what its template takes, the dry render decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from regen.data.adapters.given import Given, Reading, Tokens, first
from regen.data.adapters.shapes import read
from regen.data.adapters.tools import tools_json
from regen.data.policies import native_messages, planned_messages, with_policies
from regen.data.reasons import Note
from regen.data.selection import column
from regen.data.text import canonical_json, printable
from regen.records import Conversation
from regen.spec import ROW_FIELDS, PoliciesSpec, Shape, SourceSpec

_ID_KEYS = ("id", "uuid", "conversation_id", "question_id", "task_id", "prompt_id")


@dataclass(frozen=True, slots=True)
class Rules:
    """How the rows of one source are read."""

    shape: Shape = "auto"
    system_prompt: str | None = None
    is_native: bool = False
    policies: PoliciesSpec = field(default_factory=PoliciesSpec)
    fields: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, float | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Normalized:
    """A canonical conversation. `source_id` is the row's own id as text, `typed_id` the same with its JSON type.

    `tokens` are set where a row came as token ids; its conversation has no messages then.
    """

    conversation: Conversation
    source_id: str | None
    typed_id: object
    notes: tuple[Note, ...]
    tokens: Tokens | None = None


def rules_of(source: SourceSpec, policies: PoliciesSpec) -> Rules:
    return Rules(
        shape=source.format,
        system_prompt=source.system_prompt,
        is_native=source.mode == "native",
        policies=policies,
        fields=source.fields,
        sampling=source.sampling.given(),
    )


def normalize(value: Mapping[str, object], rules: Rules) -> Normalized:
    """The row as a conversation: what is given, and a slot wherever the target speaks. Raises RowRefused."""
    reading = Reading(rules.policies, rules.is_native, rules.fields)
    if rules.fields:
        value = _renamed(value, rules.fields)
    given = read(value, rules.shape, reading)
    conversation = Conversation(()) if given.tokens is not None else _conversation(given, rules, reading)
    id_keys = (*_ID_KEYS, "custom_id") if isinstance(value.get("body"), Mapping) else _ID_KEYS
    typed_id = first(value, *id_keys)
    return Normalized(conversation, _id_text(typed_id), typed_id, tuple(reading.notes), given.tokens)


def _conversation(given: Given, rules: Rules, reading: Reading) -> Conversation:
    turns = with_policies(given.turns, rules.system_prompt, given.system, reading)
    return Conversation(
        messages=native_messages(turns, reading) if rules.is_native else planned_messages(turns, reading),
        tools_json=tools_json(given.tools, reading),
        sampling={**rules.sampling, **given.sampling},
    )


def _renamed(value: Mapping[str, object], fields: Mapping[str, str]) -> Mapping[str, object]:
    """The row with each mapped key filled from where the source has it; what it had under that key does not count."""
    return {**value, **{key: column(value, name) for key, name in fields.items() if key in ROW_FIELDS}}


def _id_text(typed_id: object) -> str | None:
    if typed_id is None:
        return None
    return printable(typed_id if isinstance(typed_id, str) else canonical_json(typed_id))
