"""The engine over servers that fail in every way that tests/served/faults.py has, and its keys.

What the fake engine answers in this process is what a server must be brought to answer, whatever happens on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
from aiohttp import web

from regen.engines import openai, served_failures, served_totals
from regen.engines.fake import FakeEngine
from regen.engines.openai import OpenaiEngine, Retokenise
from regen.engines.openai_answers import StreamedAnswer
from regen.engines.openai_tokenizer import KnownText
from regen.engines.served_failures import Blame, Failure, RequestFailed
from regen.errors import PreflightRefused, RowFailed, RowRefused, ServerUnavailable, SpecError
from regen.records import Completion, EngineInfo, FinishReason, GenerationRequest, Sampling, WorkerId
from regen.served import ServerFacts
from regen.spec import EndpointSpec, FakeEngineSpec, OpenaiEngineSpec, SpeculationSpec
from tests.loopback import served
from tests.served.answers import Answers
from tests.served.faults import Fault, Kind, Script
from tests.served.sglang_server import SglangServer
from tests.served.stand import Stand, standing
from tests.served.vllm_server import VllmServer

T = TypeVar("T")
FAKE = FakeEngineSpec(slots=8, max_model_len=512, answer_tokens=40, answer_spread=0.2, end_token_id=2)
SAMPLING = Sampling(64, 1.0, 1.0, 0, 0.0, 0.0, 0.0, 1.0, (), (2,))
STOPS = replace(SAMPLING, stop=("END",))
NGRAM = SpeculationSpec(method="ngram", num_tokens=3, calibrate="off")
SECRET = "s3cret-of-the-server"
# The first request for tokens is the engine's own, at its start.
SECOND = frozenset({2})


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_failures, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(openai, "START_RETRY_SECONDS", 0.01)


@dataclass
class Case:
    """A started engine, its server, and what it has said."""

    engine: OpenaiEngine
    server: VllmServer | SglangServer
    stand: Stand
    info: EngineInfo
    runner: asyncio.Runner
    said: list[str]

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(asyncio.wait_for(work, 30))

    def ask(self, **changes: Any) -> Completion:
        return self.wait(self.engine.generate(request(**changes), lambda count: None))


def request(**changes: Any) -> GenerationRequest:
    return replace(GenerationRequest("row", (5, 6, 7), SAMPLING, cap=64, seed=3), **changes)


def expected() -> Completion:
    """Its seed fits into the 31 bits that SGLang takes."""
    return asyncio.run(FakeEngine(FAKE, None, WorkerId(0, 0)).generate(request(), lambda count: None))


@contextmanager
def case(
    kind: str = "vllm",
    *faults: Fault,
    endpoint: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    speculation: SpeculationSpec | None = None,
    retokenise: Retokenise | None = None,
    known: Sequence[KnownText] = (),
    approve: Callable[[ServerFacts], None] = lambda facts: None,
    vocabulary: int | None = None,
    **server: Any,
) -> Iterator[Case]:
    """Started, and closed with the block."""
    made = {"vllm": VllmServer, "sglang": SglangServer}[kind]
    of_kind = {"algorithm": "NGRAM"} if kind == "sglang" and speculation else {}
    with ExitStack() as stack:
        server_made = made(answers=Answers(FAKE, speculation), script=Script(*faults), **of_kind, **server)
        stand = stack.enter_context(standing(server_made))
        place = EndpointSpec(url=stand.url, model="target", **(endpoint or {}))
        whole = OpenaiEngineSpec(endpoints=[place], slots=8, max_model_len=512, **(spec or {}))
        said: list[str] = []
        engine = OpenaiEngine(
            whole,
            place,
            "target",
            SAMPLING,
            speculation,
            retokenise,
            said.append,
            approve,
            lambda: known,
            lambda: vocabulary,
        )
        runner = stack.enter_context(asyncio.Runner())
        stack.callback(lambda: runner.run(engine.close()))
        info = runner.run(asyncio.wait_for(engine.start(), 30))
        yield Case(engine, server_made, stand, info, runner, said)


MOMENTS = {
    "busy": Fault(Kind.STATUS, numbers=SECOND, status=429, retry_after="0"),
    "unavailable": Fault(Kind.STATUS, numbers=SECOND, status=503),
    "error": Fault(Kind.STATUS, numbers=SECOND, status=500),
    "timeout": Fault(Kind.STATUS, numbers=SECOND, status=408),
    "dropped at once": Fault(Kind.DROP, numbers=SECOND),
    "dropped later": Fault(Kind.DROP, numbers=SECOND, tokens=8),
    "stalled": Fault(Kind.STALL, numbers=SECOND, tokens=8),
    "never answered": Fault(Kind.HANG, numbers=SECOND),
    "truncated": Fault(Kind.TRUNCATE, numbers=SECOND),
    "short": Fault(Kind.SHORT, numbers=SECOND),
    "broken": Fault(Kind.BROKEN, numbers=SECOND),
    "no object": Fault(Kind.NOT_OBJECT, numbers=SECOND),
    "fewer ids": Fault(Kind.FEWER_IDS, numbers=SECOND),
    "odd ids": Fault(Kind.ODD_IDS, numbers=SECOND),
    "ids as text": Fault(Kind.TEXT_IDS, numbers=SECOND),
}
OF_VLLM = {
    "no usage": Fault(Kind.MISSING, numbers=SECOND, fields=("usage",)),
    "other prompt": Fault(Kind.OTHER_PROMPT, numbers=SECOND),
    "other model": Fault(Kind.WRONG_MODEL, numbers=SECOND),
}
OF_SGLANG = {"no counts": Fault(Kind.MISSING, numbers=SECOND, fields=("meta_info",))}


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *(pytest.param("vllm", fault, id=f"vllm-{name}") for name, fault in (MOMENTS | OF_VLLM).items()),
        *(pytest.param("sglang", fault, id=f"sglang-{name}") for name, fault in (MOMENTS | OF_SGLANG).items()),
    ],
)
def test_what_fails_for_a_moment_is_asked_again_and_answered_in_the_end(kind: str, fault: Fault) -> None:
    with case(kind, replace(fault), spec={"token_timeout_seconds": 0.15}) as made:
        answer = made.ask()
        assert made.server.script.struck == [fault.kind]
        assert len(made.server.desk.bodies) == 3
    assert answer.token_ids == expected().token_ids
    assert answer.finish_reason == expected().finish_reason


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_refusal_is_the_rows_own_and_is_not_repeated(kind: str) -> None:
    with case(kind, Fault(Kind.STATUS, numbers=SECOND, status=400)) as made:
        with pytest.raises(RowRefused, match="told to refuse"):
            made.ask()
        assert len(made.server.desk.bodies) == 2


def test_a_key_that_is_taken_away_ends_the_engine_and_blames_no_row() -> None:
    refused = Fault(Kind.STATUS, numbers=SECOND, status=401)
    with case("vllm", refused) as made, pytest.raises(ServerUnavailable, match="401"):
        made.ask()


def test_a_request_that_fails_again_and_again_costs_its_row_an_attempt() -> None:
    fault = Fault(Kind.STATUS, numbers=frozenset({2, 3, 4}), status=500)
    with case("vllm", fault, spec={"request_attempts": 3}) as made:
        with pytest.raises(RowFailed, match="sent 3 times"):
            made.ask()
        *_, shown = made.server.desk.bodies
        assert (len(made.server.desk.bodies), shown["prompt"]) == (5, [1])


@pytest.mark.parametrize("fault", [Fault(Kind.STATUS, status=500), Fault(Kind.BROKEN)], ids=["errors", "rubbish"])
def test_a_server_that_fails_everybody_costs_no_row_an_attempt(fault: Fault) -> None:
    """It has room again at once, and would get row after row, each of them several times."""
    always = replace(fault, after=1, times=None)
    gone = pytest.raises(ServerUnavailable, match="outage_seconds")
    with case("vllm", always, spec={"outage_seconds": 0.3, "request_attempts": 2}) as made, gone:
        made.ask()


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_that_was_started_anew_with_another_model_gets_no_request(kind: str) -> None:
    """SGLang names no model in its answers."""
    dropped = Fault(Kind.DROP, numbers=SECOND)
    with case(kind, dropped) as made:
        before = len(made.server.desk.bodies)
        made.server.served_name = "another"
        with pytest.raises(ServerUnavailable, match="is not what it was: the model 'target' is not served"):
            made.ask()
        assert len(made.server.desk.bodies) == before + 1


def test_a_server_whose_every_answer_comes_and_is_none_counts_as_gone() -> None:
    """Its tokens are no sign that it works."""
    always = Fault(Kind.FEWER_IDS, after=1, times=None)
    gone = pytest.raises(ServerUnavailable, match="outage_seconds")
    with case("vllm", always, spec={"outage_seconds": 0.2, "request_attempts": 2}) as made, gone:
        made.ask()


def test_a_server_that_was_started_anew_with_another_first_name_is_recognised_again() -> None:
    """Its answers would all be of another model."""
    with case("vllm", Fault(Kind.DROP, numbers=SECOND)) as made:
        assert isinstance(made.server, VllmServer)
        made.server.served_name, made.server.aliases = "first", ("target",)
        with pytest.raises(ServerUnavailable, match="anew with another answers_as: first"):
            made.ask()


def test_a_server_that_does_nothing_but_fail_counts_as_gone() -> None:
    fault = Fault(Kind.STATUS, after=1, times=None, status=429)
    gone = pytest.raises(ServerUnavailable, match="outage_seconds")
    with case("vllm", fault, spec={"outage_seconds": 0.1}) as made, gone:
        made.ask()


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_that_is_down_costs_no_attempt_however_often_a_request_was_sent(kind: str) -> None:
    with case(kind, spec={"outage_seconds": 0.2, "request_attempts": 2}) as made:
        made.stand.down()
        with pytest.raises(ServerUnavailable, match="outage_seconds"):
            made.ask()


def test_a_server_that_says_itself_that_it_is_ill_costs_no_attempt() -> None:
    """vLLM, say, whose engine is gone and whose door still answers."""
    fault = Fault(Kind.STATUS, after=1, times=None, status=500)
    gone = pytest.raises(ServerUnavailable, match="outage_seconds")
    with case("vllm", fault, spec={"outage_seconds": 0.2, "request_attempts": 2}, is_healthy=False) as made, gone:
        made.ask()


def test_overload_before_a_failure_is_no_attempt() -> None:
    busy = Fault(Kind.STATUS, numbers=frozenset(range(2, 6)), status=429, retry_after="0")
    with case("vllm", busy, Fault(Kind.STATUS, numbers=frozenset({6}), status=500)) as made:
        made.server.desk.bodies.clear()
        assert made.ask().token_ids == expected().token_ids


def test_no_more_requests_than_slots_are_at_a_server_and_they_share_connections() -> None:
    with case("vllm", endpoint={"slots": 4}, chunk_tokens=64) as made:

        async def many() -> list[Completion]:
            work = [made.engine.generate(request(), lambda count: None) for _ in range(300)]
            return list(await asyncio.gather(*work))

        assert {answer.token_ids for answer in made.wait(many())} == {expected().token_ids}
        assert made.server.desk.most_running == 4
        assert len(made.server.desk.bodies) == 301
        assert len(made.server.desk.connections) <= 4 + 4


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_rating_waits_as_long_as_the_server_wants(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[float | None] = []

    def noted(tries: int, failure: Failure, draw: float) -> float:
        wanted.append(failure.retry_after_seconds)
        return 0.0

    monkeypatch.setattr(openai, "wait_seconds", noted)
    with case(kind, Fault(Kind.STATUS, numbers=frozenset({3}), status=429, retry_after="7")) as made:
        answer = made.ask()
        assert len(made.wait(made.engine.score(request().prompt_token_ids, answer.token_ids))) == len(answer.token_ids)
    assert wanted == [7.0]


def test_a_server_that_comes_back_answers_what_was_asked_meanwhile() -> None:
    with case("vllm", spec={"request_attempts": 1000}) as made:
        made.stand.down()

        async def meanwhile() -> Completion:
            work = asyncio.ensure_future(made.engine.generate(request(), lambda count: None))
            await asyncio.sleep(0.05)
            assert not work.done()
            await asyncio.to_thread(made.stand.up)
            return await work

        assert made.wait(meanwhile()).token_ids == expected().token_ids


def test_a_server_that_is_not_there_yet_is_waited_for() -> None:
    fault = Fault(Kind.STATUS, times=2, status=503, path="/v1/models")
    with case("vllm", fault) as made:
        assert sum("waiting for" in line for line in made.said) == 1  # said once, however often it is asked


def test_an_answer_may_take_longer_than_a_token_may() -> None:
    slow = Fault(Kind.SLOW, numbers=SECOND, tokens_per_second=40.0)
    with case("vllm", slow, spec={"token_timeout_seconds": 0.4}) as made:
        answer = made.ask()
        assert answer.decode_seconds > 0.4
        assert len(made.server.desk.bodies) == 2


def test_a_busy_server_costs_no_attempt_and_is_not_gone_while_it_gives_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_failures, "LONGEST_WAIT_SECONDS", 0.05)
    slow = Fault(Kind.SLOW, numbers=SECOND, tokens_per_second=40.0)
    busy = Fault(Kind.STATUS, numbers=frozenset(range(3, 15)), status=429)
    with case("vllm", slow, busy, spec={"outage_seconds": 0.25, "request_attempts": 2}) as made:

        async def both() -> list[Completion]:
            first = asyncio.ensure_future(made.engine.generate(request(), lambda count: None))
            while len(made.server.desk.bodies) < 2:
                await asyncio.sleep(0.005)
            return list(await asyncio.gather(first, made.engine.generate(request(), lambda count: None)))

        assert {answer.token_ids for answer in made.wait(both())} == {expected().token_ids}
        assert len(made.server.desk.bodies) == 15


def test_a_request_without_a_token_is_waiting_until_it_is_given_up() -> None:
    with case("vllm", Fault(Kind.HANG, numbers=SECOND)) as made:

        async def given_up() -> None:
            work = asyncio.ensure_future(made.engine.generate(request(), lambda count: None))
            while len(made.server.desk.bodies) < 2:
                await asyncio.sleep(0.005)
            assert (made.engine.counters().waiting, made.engine.counters().running) == (1, 0)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

        made.wait(given_up())
        assert (made.engine.counters().waiting, made.engine.counters().running) == (0, 0)


def test_cancelling_closes_the_connection() -> None:
    with case("vllm", Fault(Kind.SLOW, numbers=SECOND, tokens_per_second=20.0)) as made:

        async def cancelled() -> None:
            came = asyncio.Event()
            work = asyncio.ensure_future(made.engine.generate(request(), lambda count: came.set()))
            await came.wait()
            assert made.engine.counters().running == 1
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            while not made.server.desk.left:
                await asyncio.sleep(0.01)

        made.wait(cancelled())
        assert made.engine.counters().running == 0


def test_tokens_that_a_lost_try_made_are_told_and_counted() -> None:
    seen: list[int] = []
    with case("vllm", Fault(Kind.DROP, numbers=SECOND, tokens=8)) as made:
        answer = made.wait(made.engine.generate(request(), seen.append))
        assert sum(seen) == len(answer.token_ids) + 8
        assert made.engine.counters().output_tokens == sum(seen)


# --- keys ---


def test_a_key_goes_into_the_header_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGEN_TEST_KEY", SECRET)
    with case("vllm", endpoint={"api_key_env": "REGEN_TEST_KEY"}, api_key=SECRET) as made:
        assert made.ask().token_ids == expected().token_ids
        assert SECRET not in f"{made.info}{made.said}{made.server.desk.bodies}{vars(made.engine)}"


def test_a_key_that_no_header_takes_is_refused_unprinted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGEN_TEST_KEY", f"{SECRET}\nX-Other: 1")
    with pytest.raises(SpecError, match="cannot be sent") as caught, case(endpoint={"api_key_env": "REGEN_TEST_KEY"}):
        pass
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("value", "said"), [(None, "that is not set"), ("another", "refuses us")])
def test_a_missing_or_wrong_key_is_the_specs_fault(
    monkeypatch: pytest.MonkeyPatch, value: str | None, said: str
) -> None:
    monkeypatch.delenv("REGEN_TEST_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("REGEN_TEST_KEY", value)
    with pytest.raises(SpecError, match=said) as caught, case(endpoint={"api_key_env": "REGEN_TEST_KEY"}, api_key="k"):
        pass
    assert "another" not in str(caught.value)


# --- discovery and losses ---


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"endpoint": {"server": "sglang"}}, "kind vllm"),
        ({"endpoint": {"version": "0.31"}}, "0.32.0"),
        ({"returns_ids": False}, "not its ids"),
        ({"served_name": "another"}, "not served"),
    ],
)
def test_what_does_not_agree_is_known_before_a_row_is_sent(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said), case("vllm", **changes):
        pass


KNOWN = (KnownText("<|im_start|>user\nHi", (7, 8, 9)), KnownText("two", (5,)))


def ids_of(changed: tuple[int, ...] | None = None) -> Callable[[str], list[int]]:
    """The target's tokenizer, or one that differs in the second text."""
    table = {one.text: one.token_ids for one in KNOWN} | ({"two": changed} if changed else {})
    return lambda text: list(table[text])


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_with_another_tokenizer_is_refused_before_a_token_is_asked_for(kind: str) -> None:
    with case(kind, known=KNOWN, tokenizer=ids_of()) as made:
        assert not any("tokenizer" in line for line in made.said)
    for other in ((5, 6), (6,)):
        refused = pytest.raises(SpecError, match=r"another tokenizer.*'two'")
        with refused, case(kind, known=KNOWN, tokenizer=ids_of(other)):
            pass


def test_a_tokenizer_that_is_not_shown_is_said_to_be_taken_on_trust() -> None:
    with case("vllm", known=KNOWN) as made:
        assert sum("does not show its tokenizer" in line for line in made.said) == 1


def test_what_a_server_tells_of_itself_is_judged_before_a_token_is_asked_for() -> None:
    asked: list[ServerFacts] = []

    def refuse(facts: ServerFacts) -> None:
        asked.append(facts)
        raise PreflightRefused("no")

    with pytest.raises(PreflightRefused), case("sglang", speculation=NGRAM, approve=refuse):
        pass
    assert [facts.speculation and facts.speculation.method for facts in asked] == ["NGRAM"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "it does not say"),
        ({"enable_deterministic_inference": False}, "seeds have no effect"),
        ({"enable_deterministic_inference": True}, None),
    ],
)
def test_what_becomes_of_seeds_is_said(arguments: dict[str, Any], said: str | None) -> None:
    with case("sglang", arguments=arguments) as made:
        lines = [line for line in made.said if "seeds" in line]
        assert [said is not None and said in line for line in lines] == ([True] if said else [])


def as_ids(text: str) -> tuple[int, ...] | None:
    return tuple(map(ord, text))


def test_ids_of_a_text_are_taken_only_where_the_spec_says_so_and_they_agree() -> None:
    retokenised: dict[str, Any] = {"spec": {"ids": "retokenised"}, "returns_ids": False}
    with case("vllm", retokenise=as_ids, **retokenised) as made:
        assert made.ask().token_ids == expected().token_ids
        assert "ids from its text" in made.info.engine
        assert any("gives no ids" in line for line in made.said)
    for odd in (lambda text: None, lambda text: (*map(ord, text), 3, 3)):
        with case("vllm", retokenise=odd, **retokenised) as made, pytest.raises(RowFailed, match="ids"):
            made.ask()


def test_a_field_that_would_be_dropped_refuses_the_row() -> None:
    with case("vllm", speculation=NGRAM) as made:
        with pytest.raises(RowRefused, match="min_p"):
            made.ask(sampling=replace(SAMPLING, min_p=0.1))
        assert len(made.server.desk.bodies) == 1


def test_an_answer_cut_below_its_cap_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may have a cap of its own."""
    asked = VllmServer._sampling
    monkeypatch.setattr(VllmServer, "_sampling", lambda self, given: asked(self, {**given, "max_tokens": 4}))
    with case("vllm") as made, pytest.raises(RowFailed, match="cut_by_the_server"):
        made.ask()


def test_an_id_that_the_target_has_not_fails_the_answer() -> None:
    """Its text would leave it out, or refuse the row for good."""
    largest = max(expected().token_ids)
    none = pytest.raises(RowFailed, match=f"the id {largest} is outside")
    with case("vllm", spec={"request_attempts": 2}, vocabulary=largest) as made, none:
        made.ask()
    with case("vllm", vocabulary=largest + 1) as made:
        assert made.ask().token_ids == expected().token_ids


def test_what_sglang_makes_of_logits_that_are_no_numbers_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    told, asked = SglangServer._meta_info, iter([False, True])

    def once(self: SglangServer, *of: Any) -> dict[str, Any]:
        broken = {"finish_reason": {"type": "stop", "matched": "NaN happened"}}
        return told(self, *of) | (broken if next(asked, False) else {})

    monkeypatch.setattr(SglangServer, "_meta_info", once)
    with case("sglang") as made:
        answer = made.ask()
        assert (answer.token_ids, answer.stop_reason) == (expected().token_ids, None)
        assert len(made.server.desk.bodies) == 3


@pytest.mark.parametrize(
    ("reason", "said", "stored"),
    [
        (FinishReason.STOP, None, None),
        (FinishReason.STOP, "END", "END"),
        (FinishReason.STOP, 2, "2"),
        (FinishReason.REPETITION, "repetition_detected", "repetition_detected"),
        (FinishReason.REPETITION, "anything", None),
        (FinishReason.LENGTH, "anything", None),
    ],
)
def test_what_has_ended_an_answer_is_stored_as_it_was_asked(
    reason: FinishReason, said: int | str | None, stored: str | None
) -> None:
    assert openai._stop_reason(STOPS, StreamedAnswer((2,), "", reason, said, 1, None)) == stored


@pytest.mark.parametrize("said", ["NaN happened", "2", 7, "x" * 9999])
def test_an_answer_that_something_else_has_ended_is_none(said: int | str) -> None:
    with pytest.raises(RequestFailed, match="not asked for") as caught:
        openai._stop_reason(STOPS, StreamedAnswer((2,), "", FinishReason.STOP, said, 1, None))
    assert (caught.value.failure.blame, caught.value.failure.reason) == (Blame.MOMENT, "stopped_otherwise")
    assert len(caught.value.failure.detail) < 200


# --- what a server takes, and by which name ---


@pytest.mark.parametrize(("speculation", "longest"), [(None, 510), (NGRAM, 506)])
def test_a_row_at_the_edge_of_sglangs_context_is_answered(speculation: SpeculationSpec | None, longest: int) -> None:
    """Its own places come off, and one for each draft token; what it refuses inside a stream is the row's own."""
    with case("sglang", speculation=speculation) as made:
        assert made.info.max_model_len == longest
        assert sum(f"may have {longest} tokens" in line for line in made.said) == 1
        prompt = len(request().prompt_token_ids)
        assert made.ask(cap=longest - prompt).token_ids == expected().token_ids
        with pytest.raises(RowRefused, match="exceeds the model's maximum context"):
            made.ask(cap=512 - prompt)
        assert len(made.server.desk.bodies) == 3


def test_a_vllm_server_that_is_asked_by_its_second_name_answers_by_its_first() -> None:
    with case("vllm", served_name="first", aliases=("target",)) as made:
        assert made.ask().token_ids == expected().token_ids
        assert made.server.desk.bodies[-1]["model"] == "target"


def test_an_answer_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = VllmServer._sampling

    def unbounded(self: VllmServer, given: dict[str, Any]) -> Sampling:
        return asked(self, {**given, "max_tokens": 400 if given["max_tokens"] == 8 else given["max_tokens"]})

    with case("vllm", spec={"request_attempts": 1}) as made:
        monkeypatch.setattr(VllmServer, "_sampling", unbounded)
        with pytest.raises(RowFailed, match="more tokens than"):
            made.ask(cap=8)


# --- a server of another kind ---


@contextmanager
def other_kind(
    events: Sequence[bytes], sampling: Sampling = SAMPLING, key: str | None = None
) -> Iterator[tuple[OpenaiEngine, list[Any]]]:
    """Streams these events, whatever it is asked but the first request; the engine has ids of texts."""
    asked: list[Any] = []

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "target", "owned_by": "somebody", "max_model_len": 512}]})

    async def completions(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"".join(ANSWER_OF_OTHERS if asked[-1]["prompt"] == [1] else events))
        return response

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", completions)
    with served(app) as url:
        place = EndpointSpec(url=url, api_key_env=key)
        spec = OpenaiEngineSpec(endpoints=[place], ids="retokenised", max_model_len=512, request_attempts=1)
        yield OpenaiEngine(spec, place, "target", sampling, None, as_ids), asked


ANSWER_OF_OTHERS = (
    b'data: {"model": "target", "choices": [{"index": 0, "text": "ab", "finish_reason": null}]}\n\n',
    b'data: {"model": "target", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}\n\n',
    b'data: {"model": "target", "choices": [], "usage": {"completion_tokens": 3}}\n\n',
    b"data: [DONE]\n\n",
)


def outcome(engine: OpenaiEngine) -> Completion:
    async def started_and_asked() -> Completion:
        try:
            await engine.start()
            return await engine.generate(request(), lambda count: None)
        finally:
            await engine.close()

    return asyncio.run(asyncio.wait_for(started_and_asked(), 30))


def test_a_server_that_cannot_rate_says_so_and_no_canary_passes_in_silence() -> None:
    with other_kind(ANSWER_OF_OTHERS) as (engine, _):
        lines: list[str] = []
        engine._tell = lines.append

        async def rated() -> None:
            try:
                await engine.start()
                with pytest.raises(RowFailed, match="cannot rate tokens"):
                    await engine.score((5,), (6,))
            finally:
                await engine.close()

        asyncio.run(asyncio.wait_for(rated(), 30))
    assert sum("no canary looks" in line for line in lines) == 1


@pytest.mark.parametrize("code", [400, 500])
def test_an_error_inside_a_stream_that_has_the_key_in_it_is_told_without(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setenv("REGEN_TEST_KEY", SECRET)
    told = f'data: {{"error": {{"message": "not with {SECRET}", "code": {code}}}}}\n\n'
    monkeypatch.setitem(globals(), "ANSWER_OF_OTHERS", (told.encode(),))
    with other_kind((), key="REGEN_TEST_KEY") as (engine, _):
        lines: list[str] = []
        engine._tell = lines.append

        async def started() -> str:
            try:
                await asyncio.wait_for(engine.start(), 1)
            except (SpecError, TimeoutError) as error:
                return repr(error) + repr(error.__cause__)
            finally:
                await engine.close()
            return ""

        text = asyncio.run(started()) + "".join(lines)
    assert "not with [key]" in text
    assert SECRET not in text


def test_another_server_is_asked_in_openais_words_and_its_closing_id_is_added() -> None:
    with other_kind(ANSWER_OF_OTHERS) as (engine, asked):
        assert outcome(engine).token_ids == (ord("a"), ord("b"), 2)
    assert asked[1]["prompt"] == [5, 6, 7]
    assert "top_k" not in asked[1]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (ANSWER_OF_OTHERS[:1], "truncated"),
        ((*ANSWER_OF_OTHERS[:2], ANSWER_OF_OTHERS[2][:40]), "truncated"),
        ((*ANSWER_OF_OTHERS[:2], ANSWER_OF_OTHERS[3]), "ids_unknown"),
    ],
)
def test_another_servers_answer_that_is_not_whole_is_none(events: Sequence[bytes], said: str) -> None:
    with other_kind(events) as (engine, _), pytest.raises(RowFailed, match=said):
        outcome(engine)


def test_a_server_that_adds_to_a_prompt_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = b'data: {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 2}}\n\n'
    monkeypatch.setitem(globals(), "ANSWER_OF_OTHERS", (*ANSWER_OF_OTHERS[:2], counted, ANSWER_OF_OTHERS[3]))
    with other_kind(()) as (engine, _), pytest.raises(SpecError, match="another prompt: 1 ids were sent"):
        outcome(engine)


def test_another_server_is_not_started_where_it_would_drop_what_the_spec_asks() -> None:
    with other_kind(ANSWER_OF_OTHERS, replace(SAMPLING, top_k=20)) as (engine, asked):
        with pytest.raises(SpecError, match="top_k"):
            outcome(engine)
        assert asked == []


# --- counters ---


def test_without_counters_per_request_the_servers_totals_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_totals, "POLL_SECONDS", 0.02)
    with case("vllm", speculation=NGRAM) as made:
        assert made.ask().acceptance is None

        async def counted() -> int:
            while not (seen := made.engine.counters().acceptance) or not seen.drafts:
                await asyncio.sleep(0.01)
            return seen.drafts

        assert made.wait(counted()) > 0


def test_absent_counters_are_none_and_not_zero() -> None:
    with case("vllm", speculation=NGRAM, has_counters=False) as made:
        made.ask()
        assert made.engine.counters().acceptance is None
        assert any("no counters" in line for line in made.said)


def test_what_answers_were_counted_at_is_kept_by_rank_until_it_is_asked_for() -> None:
    with case("sglang", speculation=NGRAM, ranks=2) as made:
        for _ in range(3):
            made.ask()
        facts, shown = made.engine.shown_so_far()
        assert (facts.version, {one.rank for one in shown}) == ("0.5.23", {"0", "1"})
        assert all(one.acceptance and one.said_accept_length and one.temperature == 1.0 for one in shown)
        made.ask()
        assert made.engine.shown_so_far()[1] == ()


@pytest.mark.parametrize("incremental", [False, True])
def test_sglang_is_read_either_way(incremental: bool) -> None:
    arguments = {"incremental_streaming_output": incremental}
    with case("sglang", speculation=NGRAM, is_incremental=incremental, arguments=arguments) as made:
        answer = made.ask()
        assert answer.token_ids == expected().token_ids
        assert answer.acceptance is not None
        assert answer.acceptance.drafts > 0
