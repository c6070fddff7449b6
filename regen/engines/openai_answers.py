"""A streamed answer, event by event, and what it comes to. Pure; takes whatever a server sends.

The ids are the server's own or there are none: how many there are must agree with the server's count wherever it gives
one. An answer is whole only with a finish reason; a stream that ends without one was truncated. Errors inside a stream
that began with status 200 are classified as a status would be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from regen.engines.event_lines import DONE
from regen.engines.http import finite
from regen.engines.raw_counts import whole
from regen.engines.served_failures import Blame, Failure, RequestFailed, of_status
from regen.engines.served_sglang import of_meta_info
from regen.engines.served_vllm import of_request
from regen.records import Acceptance, FinishReason, TokenScore
from regen.served import ServerKind

OTHER_PROMPT = "other_prompt"
_MOST_IDS = 2**22


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """A whole answer. `token_ids` is None where the server gives text only; `counted_tokens` is its own count.

    `stop_reason` is an id or a text as the server says it: nothing that was asked for yet.

    `rank` has made it, where there are several; `said_accept_length` is the server's own figure, never used.
    """

    token_ids: tuple[int, ...] | None
    text: str
    finish_reason: FinishReason
    stop_reason: int | str | None
    counted_tokens: int | None
    acceptance: Acceptance | None
    rank: str | None = None
    said_accept_length: float | None = None


class AnswerStream(Protocol):
    """Takes the payloads of one answer's events."""

    def take(self, payload: bytes) -> int:
        """How many new tokens it brought. Raises RequestFailed."""
        ...

    def ended(self) -> StreamedAnswer:
        """After the last event. Raises RequestFailed: it was not whole, or does not agree with itself."""
        ...


def answer_stream(
    kind: ServerKind, model: str, prompt_token_ids: tuple[int, ...], is_incremental: bool = False
) -> AnswerStream:
    """`is_incremental`: an SGLang server that sends only new ids, not all so far (its /server_info says so)."""
    if kind is ServerKind.SGLANG:
        return SglangStream(is_incremental, len(prompt_token_ids))
    return CompletionStream(model, prompt_token_ids, must_count=kind is ServerKind.VLLM)


class CompletionStream:
    """`/v1/completions`: vLLM's, and that of others, which give no ids.

    Another model's answer, or one to other ids than were sent, is none: a gateway may have mixed them up.
    """

    def __init__(self, model: str, prompt_token_ids: tuple[int, ...], must_count: bool) -> None:
        self._model, self._prompt, self._must_count = model, list(prompt_token_ids), must_count
        self._ids: list[int] | None = None
        self._text: list[str] = []
        self._events = 0
        self._finish: object = None
        self._stop: object = None
        self._usage: Mapping[str, Any] = {}
        self._metrics: Mapping[str, Any] = {}

    def take(self, payload: bytes) -> int:
        if payload == DONE:
            return 0
        event = _event(payload)
        if event.get("model", self._model) != self._model:
            raise _broken(f"an answer of another model, {event['model']!r}")
        self._usage = _mapping(event.get("usage")) or self._usage
        self._metrics = event if _mapping(event.get("metrics")) else self._metrics
        choices = event.get("choices")
        return self._take_choice(choices[0]) if isinstance(choices, list) and choices else 0

    def _take_choice(self, choice: object) -> int:
        said = _mapping(choice)
        if said.get("prompt_token_ids") not in (None, self._prompt):
            raise _broken("an answer to other ids than were sent")
        text, given = said.get("text"), said.get("token_ids")
        self._text.append(text if isinstance(text, str) else "")
        self._finish = said.get("finish_reason") or self._finish
        self._stop = said.get("stop_reason") if said.get("finish_reason") else self._stop
        if given is None:
            # Without ids an event with text is one token at least: evidence of life, not a count.
            return 1 if text else 0
        self._ids = self._ids or []
        self._ids.extend(new := _ids(given))
        return len(new)

    def ended(self) -> StreamedAnswer:
        finish_reason = _finish_reason(self._finish)
        counted = whole(self._usage.get("completion_tokens"))
        _require_agreement(self._ids, counted, self._must_count)
        _require_prompt(self._usage.get("prompt_tokens"), len(self._prompt))
        return StreamedAnswer(
            token_ids=None if self._ids is None else tuple(self._ids),
            text="".join(self._text),
            finish_reason=finish_reason,
            stop_reason=_stop_reason(self._stop),
            counted_tokens=counted,
            acceptance=of_request(self._metrics),
        )


class SglangStream:
    """`/generate`: each event has all ids so far, or only the new ones, and the server's counts."""

    def __init__(self, is_incremental: bool, prompt_tokens: int) -> None:
        self._is_incremental, self._prompt_tokens = is_incremental, prompt_tokens
        self._ids: list[int] | None = None
        self._text = ""
        self._meta: Mapping[str, Any] = {}

    def take(self, payload: bytes) -> int:
        if payload == DONE:
            return 0
        # Its refusals come in a stream, too, and name no status.
        event = _event(payload, error_status=None if self._ids else 400)
        self._meta = _mapping(event.get("meta_info")) or self._meta
        if isinstance(text := event.get("text"), str):
            self._text = self._text + text if self._is_incremental else text
        before = len(self._ids or ())
        if event.get("output_ids") is not None:
            new = _ids(event["output_ids"])
            self._ids = [*(self._ids or ()), *new] if self._is_incremental else new
        return max(0, len(self._ids or ()) - before)

    def ended(self) -> StreamedAnswer:
        finish = _mapping(self._meta.get("finish_reason"))
        if finish.get("type") == "abort":
            raise RequestFailed(_aborted(finish))
        finish_reason = _finish_reason(finish.get("type"))
        counted = whole(self._meta.get("completion_tokens"))
        _require_agreement(self._ids, counted, must_count=True)
        _require_prompt(self._meta.get("prompt_tokens"), self._prompt_tokens)
        matched = finish.get("matched")
        return StreamedAnswer(
            token_ids=None if self._ids is None else tuple(self._ids),
            text=self._text,
            finish_reason=finish_reason,
            # A stop string only: it names the closing id, too, which vLLM does not for the target's own end of turn.
            stop_reason=matched if isinstance(matched, str) else None,
            counted_tokens=counted,
            acceptance=of_meta_info(self._meta),
            rank=None if (rank := whole(self._meta.get("dp_rank"))) is None else str(rank),
            said_accept_length=finite(self._meta.get("spec_accept_length")),
        )


def scores(kind: ServerKind, fields: Mapping[str, Any], token_ids: tuple[int, ...]) -> tuple[TokenScore, ...]:
    """The last `token_ids` of the rated text. Raises RequestFailed where the answer does not hold just these."""
    try:
        read = _sglang_scores if kind is ServerKind.SGLANG else _vllm_scores
        found = read(fields, token_ids)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise _broken(f"log probabilities out of form: {type(error).__name__}: {error}") from error
    if tuple(score.token_id for score in found) != token_ids:
        raise _broken("the rated ids are not those that were sent")
    return found


def _vllm_scores(fields: Mapping[str, Any], token_ids: tuple[int, ...]) -> tuple[TokenScore, ...]:
    places = fields["choices"][0]["prompt_logprobs"][-len(token_ids) :]
    return tuple(_vllm_score(token_id, rated) for token_id, rated in zip(token_ids, places, strict=True))


def _vllm_score(token_id: int, rated: Mapping[str, Any]) -> TokenScore:
    logprobs = {int(name): float(said["logprob"]) for name, said in rated.items()}
    best = max(logprobs, key=lambda candidate: logprobs[candidate])
    return TokenScore(token_id, logprobs[token_id], best, logprobs[best])


def _sglang_scores(fields: Mapping[str, Any], token_ids: tuple[int, ...]) -> tuple[TokenScore, ...]:
    meta, count = fields["meta_info"], len(token_ids)
    own, top = meta["input_token_logprobs"][-count:], meta["input_top_logprobs"][-count:]
    return tuple(
        TokenScore(int(said[1]), float(said[0]), int(best[0][1]), float(best[0][0]))
        for said, best in zip(own, top, strict=True)
    )


def _event(payload: bytes, error_status: int | None = None) -> dict[str, Any]:
    """`error_status` is that of an error that names none."""
    try:
        event = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise _broken("an event that is no JSON") from error
    if not isinstance(event, dict):
        raise _broken("an event that is no JSON object")
    if said := event.get("error"):
        raise RequestFailed(_error_event(said, error_status))
    return event


def _error_event(error: object, error_status: int | None) -> Failure:
    """An error after status 200: the status is in the event, or that of its kind; else it is the moment's."""
    said = _mapping(error)
    message = str(said.get("message") or error)
    code = error_status if said.get("code") is None else whole(said["code"])
    if code is not None and 400 <= code < 600:
        return of_status(code, message)
    return Failure(Blame.MOMENT, "error_in_stream", message)


def _aborted(finish: Mapping[str, Any]) -> Failure:
    message, status = str(finish.get("message") or "aborted by the server"), whole(finish.get("status_code"))
    if status is not None and 400 <= status < 600:
        return of_status(status, message)
    return Failure(Blame.MOMENT, "aborted", message)


def _finish_reason(said: object) -> FinishReason:
    if said is None:
        raise RequestFailed(Failure(Blame.MOMENT, "truncated", "the answer ended without a finish reason"))
    if not isinstance(said, str) or said not in set(FinishReason):
        raise RequestFailed(Failure(Blame.MOMENT, "finished_otherwise", f"finish reason {said!r}"))
    return FinishReason(said)


def _require_agreement(ids: list[int] | None, counted: int | None, must_count: bool) -> None:
    if counted is None and must_count:
        raise _broken("the server does not say how many tokens it sampled")
    if ids is not None and counted is not None and len(ids) != counted:
        raise _broken(f"{len(ids)} ids, and the server counted {counted} tokens")


def _require_prompt(counted: object, sent: int) -> None:
    """A server may cut a prompt that is too long for it, or add to one."""
    if (tokens := whole(counted)) not in (None, sent):
        said = f"an answer to another prompt: {sent} ids were sent, and the server counted {tokens}"
        raise RequestFailed(Failure(Blame.MOMENT, OTHER_PROMPT, said))


def _stop_reason(said: object) -> int | str | None:
    if said is None:
        return None
    number = whole(said)
    return str(said) if number is None else number


def _ids(value: object) -> list[int]:
    if not isinstance(value, list) or len(value) > _MOST_IDS or not all(whole(token) is not None for token in value):
        raise _broken("token ids that are none")
    return value


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _broken(what: str) -> RequestFailed:
    return RequestFailed(Failure(Blame.MOMENT, "broken_answer", what))
