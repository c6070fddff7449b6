"""OpenAI Batch request files: `custom_id`, `url` and a `body` that is the request. Pure.

What a request asks besides messages and tools has no place here: sampling fields follow a policy, others are counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from regen.data.adapters.chat import content_text, read_chat
from regen.data.adapters.given import Given, Reading, Turn, as_list, first, required, type_name
from regen.data.reasons import Note, Reason, refuse
from regen.records import Role
from regen.spec import SourceSamplingSpec

_SAMPLING_KEYS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
}
_READ_KEYS = frozenset({"model", "messages", "prompt", "input", "instructions", "tools", "functions", *_SAMPLING_KEYS})
_NO_CHAT_ENDPOINTS = ("embeddings", "moderations", "images", "audio")


def read_batch(value: Mapping[str, object], reading: Reading) -> Given:
    url = value.get("url")
    if isinstance(url, str) and any(name in url for name in _NO_CHAT_ENDPOINTS):
        refuse(Reason.NOT_A_CHAT_REQUEST, f"the request is for {url}")
    body = required(value, "body")
    if not isinstance(body, Mapping):
        refuse(Reason.WRONG_TYPE, f"body is {type_name(body)}, not an object")
    if any(key not in _READ_KEYS for key, given in body.items() if given is not None):
        reading.note(Note.REQUEST_FIELDS_IGNORED)
    return Given(
        turns=_turns(body, reading),
        tools=first(body, "tools", "functions"),
        system=_instructions(body.get("instructions"), reading),
        sampling=_sampling(body, reading),
    )


def _turns(body: Mapping[str, object], reading: Reading) -> tuple[Turn, ...]:
    given = required(body, "messages", "input", "prompt")
    if isinstance(given, str):
        return (Turn(Role.USER, given),)
    if body.get("messages") is None and all(isinstance(part, str) for part in as_list(given, "the request's input")):
        return (Turn(Role.USER, content_text(given, reading, "the request's input")),)
    return tuple(read_chat(given, reading))


def _instructions(given: object, reading: Reading) -> str | None:
    return None if given is None else content_text(given, reading, "the request's instructions")


def _sampling(body: Mapping[str, object], reading: Reading) -> dict[str, float | int]:
    given = {name: body[key] for key, name in _SAMPLING_KEYS.items() if body.get(key) is not None}
    if not given:
        return {}
    if reading.policies.request_sampling == "ignore":
        reading.note(Note.REQUEST_SAMPLING_IGNORED)
        return {}
    reading.note(Note.REQUEST_SAMPLING_USED)
    try:
        return SourceSamplingSpec.model_validate(given, strict=True).given()
    except ValueError as error:
        refuse(Reason.BAD_SAMPLING, f"the request's sampling: {error}")
