"""Streams of events: whole, cut, contradictory, and not of this request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from regen.engines.openai_answers import AnswerStream, answer_stream, scores
from regen.engines.served_failures import Blame, RequestFailed
from regen.records import Acceptance, FinishReason, TokenScore
from regen.served import ServerKind

VLLM, SGLANG, OTHER = ServerKind.VLLM, ServerKind.SGLANG, ServerKind.OTHER
PROMPT = (5, 6)


def stream(kind: ServerKind = VLLM, is_incremental: bool = False) -> AnswerStream:
    return answer_stream(kind, "target", PROMPT, is_incremental)


def event(ids: list[int] | None, text: str = "x", **choice: Any) -> dict[str, Any]:
    return {"model": "target", "choices": [{"index": 0, "text": text, "token_ids": ids, **choice}]}


def usage(count: int, **more: Any) -> dict[str, Any]:
    return {"model": "target", "choices": [], "usage": {"completion_tokens": count}, **more}


def fed(made: AnswerStream, *events: dict[str, Any]) -> list[int]:
    return [made.take(json.dumps(one).encode()) for one in events] + [made.take(b"[DONE]")]


WHOLE = (event([7, 8], prompt_token_ids=[5, 6]), event([2], "", finish_reason="stop", stop_reason=None), usage(3))


def test_ids_come_as_they_were_sampled_the_closing_one_included() -> None:
    made = stream()
    assert fed(made, *WHOLE) == [2, 1, 0, 0]
    answer = made.ended()
    assert answer.token_ids == (7, 8, 2)
    assert answer.finish_reason is FinishReason.STOP
    assert answer.acceptance is None
    assert answer.counted_tokens == 3


def test_counters_of_the_request_come_with_the_last_event() -> None:
    said = {
        "num_spec_steps": 2,
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 6,
        "acceptance_histogram": [0, 1, 1],
    }
    made = stream()
    fed(made, *WHOLE[:2], usage(3, metrics={"speculative_decoding": said}))
    assert made.ended().acceptance == Acceptance(2, 6, 3, (2, 1))


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((event([7, 8]),), "truncated"),
        ((event([7, 8]), usage(2)), "truncated"),
        ((event([7], finish_reason="stop"), usage(2)), "broken_answer"),
        ((event([7], finish_reason="stop"),), "broken_answer"),
        ((event([7], finish_reason="abort"), usage(1)), "finished_otherwise"),
    ],
)
def test_what_is_not_whole_or_contradicts_itself_is_no_answer(events: tuple[dict[str, Any], ...], reason: str) -> None:
    made = stream()
    fed(made, *events)
    with pytest.raises(RequestFailed) as caught:
        made.ended()
    assert caught.value.failure.reason == reason
    assert caught.value.failure.blame is Blame.MOMENT


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"[]",
        b'{"choices": [{"token_ids": "7"}]}',
        b'{"choices": [{"token_ids": [-1]}]}',
        b'{"choices": [{"token_ids": [1.5]}]}',
        b'{"choices": [{"token_ids": [true]}]}',
        b'{"model": "another", "choices": []}',
        b'{"choices": [{"prompt_token_ids": [5, 7], "token_ids": [1]}]}',
    ],
)
def test_an_event_out_of_form_or_of_another_request_is_broken(payload: bytes) -> None:
    with pytest.raises(RequestFailed) as caught:
        stream().take(payload)
    assert caught.value.failure.reason == "broken_answer"


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        ({"message": "no", "code": 400}, Blame.ROW),
        ({"message": "no", "code": 500}, Blame.MOMENT),
        ({"message": "no", "code": "internal"}, Blame.MOMENT),
        ("no", Blame.MOMENT),
    ],
)
def test_an_error_within_a_stream_is_judged_as_its_status(error: object, blame: Blame) -> None:
    with pytest.raises(RequestFailed) as caught:
        stream().take(json.dumps({"error": error}).encode())
    assert caught.value.failure.blame is blame
    assert "no" in caught.value.failure.detail


def test_an_sglang_refusal_in_a_stream_is_the_rows_own_and_a_later_error_is_the_moments() -> None:
    """It has status 200 and names no code."""
    refusal = {"error": {"message": "the input is longer than the context"}}
    with pytest.raises(RequestFailed, match="longer than the context") as caught:
        stream(SGLANG).take(json.dumps(refusal).encode())
    assert caught.value.failure.blame is Blame.ROW
    for made, error in (
        (stream(SGLANG), {"error": {"message": "busy", "code": 503}}),
        (stream(VLLM), refusal),
        (stream(SGLANG), refusal),
    ):
        made.take(json.dumps(sglang([7], 1) if error is refusal else {}).encode())
        with pytest.raises(RequestFailed) as caught:
            made.take(json.dumps(error).encode())
        assert caught.value.failure.blame is (Blame.MOMENT if error is refusal else Blame.OVERLOAD)


@pytest.mark.parametrize(("counted", "is_taken"), [(2, True), (None, True), (1, False), (3, False)])
def test_an_answer_to_a_prompt_of_another_length_is_none(counted: int | None, is_taken: bool) -> None:
    """A server may cut a prompt to its own context, or add to it."""
    of_others, of_sglang = stream(OTHER), stream(SGLANG)
    last = {"model": "target", "choices": [], "usage": {"completion_tokens": 1, "prompt_tokens": counted}}
    fed(of_others, event(None, "a", finish_reason="stop"), last)
    fed(of_sglang, sglang([2], 1, STOPPED, prompt_tokens=counted))
    for made in (of_others, of_sglang):
        if is_taken:
            made.ended()
            continue
        with pytest.raises(RequestFailed, match="another prompt") as caught:
            made.ended()
        assert caught.value.failure.blame is Blame.MOMENT


def test_text_without_ids_is_evidence_of_life_and_no_ids() -> None:
    made = stream(OTHER)
    assert fed(made, event(None, "a"), event(None, "b", finish_reason="length")) == [1, 1, 0]
    answer = made.ended()
    assert (answer.token_ids, answer.text, answer.counted_tokens) == (None, "ab", None)


def sglang(ids: list[int], count: int, finish: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    return {"text": "x", "output_ids": ids, "meta_info": {"completion_tokens": count, "finish_reason": finish, **meta}}


STOPPED = {"type": "stop", "matched": 2}


def test_sglang_sends_all_ids_so_far() -> None:
    made = stream(SGLANG)
    assert fed(made, sglang([7], 1), sglang([7, 8, 9], 3), sglang([7, 8, 9, 2], 4, STOPPED)) == [1, 2, 1, 0]
    assert made.ended().token_ids == (7, 8, 9, 2)


def test_sglang_may_send_new_ids_only() -> None:
    made = stream(SGLANG, is_incremental=True)
    assert fed(made, sglang([7], 1), sglang([8, 9], 3), sglang([2], 4, STOPPED)) == [1, 2, 1, 0]
    assert made.ended().token_ids == (7, 8, 9, 2)


def test_the_wrong_reading_of_an_sglang_stream_is_found_out() -> None:
    made = stream(SGLANG, is_incremental=True)
    fed(made, sglang([7], 1), sglang([7, 2], 2, STOPPED))
    with pytest.raises(RequestFailed, match="3 ids, and the server counted 2"):
        made.ended()


def test_sglangs_counters_are_in_meta_info() -> None:
    made = stream(SGLANG)
    counts = {"spec_verify_ct": 2, "spec_num_correct_drafts": 3, "spec_num_proposed_drafts": 6}
    fed(made, sglang([7, 2], 2, STOPPED, **counts))
    answer = made.ended()
    assert answer.acceptance == Acceptance(2, 6, 3)
    assert answer.stop_reason is None


def test_a_stop_string_is_named_and_a_closing_id_is_not() -> None:
    made = stream(SGLANG)
    fed(made, sglang([7, 8], 2, {"type": "stop", "matched": "END"}))
    assert made.ended().stop_reason == "END"


@pytest.mark.parametrize(("status", "blame"), [(400, Blame.ROW), (503, Blame.OVERLOAD), (None, Blame.MOMENT)])
def test_an_sglang_abort_is_judged_as_its_status(status: int | None, blame: Blame) -> None:
    made = stream(SGLANG)
    fed(made, sglang([], 0, {"type": "abort", "message": "too long", "status_code": status}))
    with pytest.raises(RequestFailed, match="too long") as caught:
        made.ended()
    assert caught.value.failure.blame is blame


def test_scores_of_both_kinds_are_the_last_ones() -> None:
    places = [None, {"6": {"logprob": -1.0}}, {"7": {"logprob": -0.5}, "9": {"logprob": -0.25}}]
    expected = (TokenScore(7, -0.5, 9, -0.25),)
    assert scores(VLLM, {"choices": [{"prompt_logprobs": places}]}, (7,)) == expected
    own, top = [[None, 5, None], [-0.5, 7, None]], [None, [[-0.25, 9, None]]]
    assert scores(SGLANG, {"meta_info": {"input_token_logprobs": own, "input_top_logprobs": top}}, (7,)) == expected


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (VLLM, {}),
        (VLLM, {"choices": [{"prompt_logprobs": None}]}),
        (VLLM, {"choices": [{"prompt_logprobs": [{"8": {"logprob": -1.0}}]}]}),
        (SGLANG, {"meta_info": {"input_token_logprobs": [[-1.0, 8, None]], "input_top_logprobs": [[[-1.0, 8, None]]]}}),
    ],
)
def test_scores_of_other_ids_are_none(kind: ServerKind, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestFailed):
        scores(kind, fields, (7,))
