"""The stand-in servers answer what the fake engine answers, and go wrong in just the way that was asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import aiohttp
import pytest

from regen.engines.fake import FakeEngine
from regen.engines.http import Connection
from regen.engines.served import recognise
from regen.records import Completion, GenerationRequest, Sampling, WorkerId
from regen.served import ServerKind
from regen.spec import FakeEngineSpec, FakeFault, SpeculationSpec
from tests.processes import wait_until
from tests.served.answers import Answers
from tests.served.faults import Fault, Kind, Script
from tests.served.sglang_server import SglangServer
from tests.served.stand import ServerProcess, Stand, deaf, standing
from tests.served.vllm_server import VllmServer

T = TypeVar("T")
SPEC = FakeEngineSpec(slots=8, max_model_len=512, answer_tokens=30)
SPECULATION = SpeculationSpec(method="ngram", num_tokens=3)
PROMPT = (5, 6, 7)
SAMPLING = Sampling(
    max_tokens=64,
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.0,
    presence_penalty=0.1,
    frequency_penalty=0.2,
    repetition_penalty=1.1,
    stop=(),
    stop_token_ids=(1,),
)
SEED = 7


class Asked:
    """Both kinds of server, asked for the same."""

    def __init__(self, kind: str, server: VllmServer | SglangServer, stand: Stand) -> None:
        self.kind, self.server, self.stand = kind, server, stand

    @property
    def path(self) -> str:
        return "/v1/completions" if self.kind == "vllm" else "/generate"

    def body(self, stream: bool = False, seed: int = SEED, **more: Any) -> dict[str, Any]:
        shared = {
            name: getattr(SAMPLING, name)
            for name in ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "repetition_penalty")
        }
        shared["stop_token_ids"] = list(SAMPLING.stop_token_ids)
        if self.kind == "vllm":
            usage = {"stream_options": {"include_usage": True}} if stream else {}
            own = {"model": "target", "prompt": list(PROMPT), "max_tokens": 64, "seed": seed, "return_token_ids": True}
            return {**own, **shared, **usage, "stream": stream, **more}
        sampling = {**shared, "max_new_tokens": 64, "sampling_seed": seed, **more}
        return {"input_ids": list(PROMPT), "sampling_params": sampling, "stream": stream}

    def ask(self, stream: bool = False, seconds: float = 20.0, **more: Any) -> tuple[int, Any, Any]:
        """Status, headers and body: JSON, or the events of a stream."""

        async def asked(session: aiohttp.ClientSession) -> tuple[int, Any, Any]:
            async with session.post(self.stand.url + self.path, json=self.body(stream, **more)) as response:
                text = await response.text()
                if not stream or response.status != 200:
                    return response.status, response.headers, json.loads(text)
                return response.status, response.headers, events_of(text)

        return once(asked, seconds)


def once(work: Callable[[aiohttp.ClientSession], Awaitable[T]], seconds: float = 20.0) -> T:
    async def within() -> T:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds)) as session:
            return await work(session)

    return asyncio.run(within())


def events_of(text: str) -> list[Any]:
    """Events as JSON, `[DONE]` as it is."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    answers, script = Answers(SPEC, SPECULATION), Script()
    server: VllmServer | SglangServer
    if request.param == "vllm":
        server = VllmServer(answers=answers, script=script, gives_counts=True)
    else:
        server = SglangServer(answers=answers, script=script)
    with standing(server) as stand:
        yield Asked(request.param, server, stand)


@pytest.fixture(autouse=True)
def _no_faults_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "asked" in request.fixturenames:
        request.getfixturevalue("asked").server.script.clear()


def of_the_engine(seed: int = SEED, cap: int = 64) -> Completion:
    async def made() -> Completion:
        engine = FakeEngine(SPEC, SPECULATION, WorkerId(0, 0))
        await engine.start()
        return await engine.generate(GenerationRequest("r", PROMPT, SAMPLING, cap, seed), lambda tokens: None)

    return asyncio.run(made())


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 7, 12])
def test_an_answer_is_the_engines_own(asked: Asked, seed: int) -> None:
    made, (status, _, body) = of_the_engine(seed), asked.ask(seed=seed)
    assert status == 200
    if asked.kind == "vllm":
        (choice,) = body["choices"]
        assert tuple(choice["token_ids"]) == made.token_ids
        assert tuple(choice["prompt_token_ids"]) == PROMPT
        assert choice["finish_reason"] == made.finish_reason.value
        assert body["usage"]["completion_tokens"] == len(made.token_ids)
    else:
        assert tuple(body["output_ids"]) == made.token_ids
        assert body["meta_info"]["completion_tokens"] == len(made.token_ids)
        assert body["meta_info"]["finish_reason"]["type"] == made.finish_reason.value


def test_counts_of_a_request_are_the_engines_own(asked: Asked) -> None:
    made, (_, _, body) = of_the_engine().acceptance, asked.ask()
    assert made is not None
    if asked.kind == "vllm":
        said = body["metrics"]["speculative_decoding"]
        assert (said["num_spec_steps"], said["num_accepted_draft_tokens"]) == (made.drafts, made.accepted)
        exactly = said["acceptance_histogram"]
    else:
        said = body["meta_info"]
        assert (said["spec_verify_ct"], said["spec_num_correct_drafts"]) == (made.drafts, made.accepted)
        assert said["spec_accept_length"] == said["completion_tokens"] / made.drafts
        exactly = said["spec_correct_drafts_histogram"]
    assert sum(exactly) == made.drafts
    assert sum(number * count for number, count in enumerate(exactly)) == made.accepted


def test_a_stream_brings_the_same_ids(asked: Asked) -> None:
    made, (_, headers, events) = of_the_engine(), asked.ask(stream=True)
    assert headers["Content-Type"].startswith("text/event-stream")
    assert events.pop() == "[DONE]"
    assert len(events) > 2
    if asked.kind == "vllm":
        usage = events.pop()
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == len(made.token_ids)
        assert tuple(token for event in events for token in event["choices"][0]["token_ids"]) == made.token_ids
        assert [event["choices"][0]["prompt_token_ids"] is not None for event in events][:2] == [True, False]
        assert [event["choices"][0]["finish_reason"] for event in events][-2:] == [None, made.finish_reason.value]
    else:
        assert tuple(events[-1]["output_ids"]) == made.token_ids
        assert events[1]["output_ids"][:4] == events[0]["output_ids"], "all ids so far"
        assert "spec_verify_ct" in events[-1]["meta_info"]
        assert not any("spec_verify_ct" in event["meta_info"] for event in events[:-1])


def test_an_incremental_stream_of_sglang_brings_new_ids_only() -> None:
    with standing(SglangServer(answers=Answers(SPEC), is_incremental=True)) as stand:
        _, _, events = Asked("sglang", SglangServer(), stand).ask(stream=True)
    assert tuple(token for event in events[:-1] for token in event["output_ids"]) == of_the_engine().token_ids


def test_unset_sampling_is_the_servers_own(asked: Asked) -> None:
    """So that a field that is not sent shows in the answer's length."""
    named = {"vllm": "max_tokens", "sglang": "max_new_tokens"}[asked.kind]
    body = asked.body()
    (body if asked.kind == "vllm" else body["sampling_params"]).pop(named)

    async def posted(session: aiohttp.ClientSession) -> Any:
        async with session.post(asked.stand.url + asked.path, json=body) as response:
            return await response.json()

    said = once(posted)
    tokens = said["usage"]["completion_tokens"] if asked.kind == "vllm" else said["meta_info"]["completion_tokens"]
    assert tokens == len(of_the_engine(cap=16 if asked.kind == "vllm" else 128).token_ids)


def test_what_was_asked_for_is_kept(asked: Asked) -> None:
    asked.ask(seed=99)
    assert asked.server.desk.bodies[-1] == asked.body(seed=99)


def test_ids_are_rated_as_the_engine_rates_them(asked: Asked) -> None:
    made = of_the_engine().token_ids[:6]

    async def posted(session: aiohttp.ClientSession) -> Any:
        body = asked.body()
        if asked.kind == "vllm":
            body |= {"prompt": [*PROMPT, *made], "max_tokens": 1, "prompt_logprobs": 1}
        else:
            body |= {"input_ids": [*PROMPT, *made], "return_logprob": True, "top_logprobs_num": 1}
            body["logprob_start_len"] = len(PROMPT) - 1
        async with session.post(asked.stand.url + asked.path, json=body) as response:
            return await response.json()

    asked.ask()  # or the server would not know where the prompt ends
    said = once(posted)
    if asked.kind == "vllm":
        rated = said["choices"][0]["prompt_logprobs"]
        assert rated[0] is None
        got = [rated[len(PROMPT) + at][str(token)]["logprob"] for at, token in enumerate(made)]
        best = [min(entry.items(), key=lambda item: item[1]["rank"])[0] for entry in rated[len(PROMPT) :]]
    else:
        (nothing, *rated) = said["meta_info"]["input_token_logprobs"]
        assert nothing[0] is None
        assert tuple(token for _, token, _ in rated) == made
        got = [logprob for logprob, _, _ in rated]
        best = [str(top[0][1]) for top in said["meta_info"]["input_top_logprobs"][1:]]

    async def scored() -> Any:
        return await FakeEngine(SPEC, SPECULATION, WorkerId(0, 0)).score(PROMPT, made)

    wanted = asyncio.run(scored())
    assert got == [score.logprob for score in wanted]
    assert best == [str(score.best_token_id) for score in wanted]


def test_more_requests_than_slots_wait(asked: Asked) -> None:
    async def all_of_them(session: aiohttp.ClientSession) -> list[int]:
        async def one(seed: int) -> int:
            async with session.post(asked.stand.url + asked.path, json=asked.body(seed=seed)) as response:
                return response.status

        return list(await asyncio.gather(*map(one, range(3 * SPEC.slots))))

    asked.server.desk.most_running = 0
    asked.server.script.add(Fault(Kind.STALL, seconds=0.02, times=None))
    assert set(once(all_of_them)) == {200}
    assert asked.server.desk.most_running == SPEC.slots


@pytest.mark.parametrize(("kind", "status"), [("refuse", 400), ("fail", 500), ("die", 500)])
def test_what_the_fake_engine_does_wrong_is_a_status(kind: str, status: int) -> None:
    spec = SPEC.model_copy(update={"faults": [FakeFault.model_validate({"kind": kind})]})
    for name, server in (("vllm", VllmServer(answers=Answers(spec))), ("sglang", SglangServer(answers=Answers(spec)))):
        with standing(server) as stand:
            path = "/v1/completions" if name == "vllm" else "/generate"

            async def posted(session: aiohttp.ClientSession, url: str = stand.url + path) -> int:
                async with session.post(url, json={"prompt": [5], "input_ids": [5]}) as response:
                    return response.status

            assert once(posted) == status


def test_too_long_a_prompt_is_refused(asked: Asked) -> None:
    beyond: dict[str, Any] = {"max_tokens" if asked.kind == "vllm" else "max_new_tokens": 4096}
    status, _, body = asked.ask(**beyond)
    assert status == 400
    assert "context length" in body["error"]["message"]


def test_vllm_refuses_another_model_and_min_p_beside_speculation() -> None:
    with standing(VllmServer(answers=Answers(SPEC, SPECULATION))) as stand:
        vllm = Asked("vllm", VllmServer(), stand)
        assert vllm.ask(model="other")[0] == 404
        assert vllm.ask(min_p=0.1)[0] == 400


def test_sglang_refuses_top_k_zero_and_fails_at_an_unknown_parameter() -> None:
    with standing(SglangServer(answers=Answers(SPEC))) as stand:
        assert Asked("sglang", SglangServer(), stand).ask(top_k=0)[0] == 400

        async def posted(session: aiohttp.ClientSession) -> int:
            body = {"input_ids": [5], "sampling_params": {"seed": 3}}
            async with session.post(f"{stand.url}/generate", json=body) as response:
                return response.status

        assert once(posted) == 500


def test_readers_of_the_doctor_know_them(asked: Asked) -> None:
    async def looked() -> tuple[ServerKind, str, int | None, int]:
        async with Connection(asked.stand.url, None) as connection:
            server = await recognise(connection, "target")
            counters = await server.counters()
            return server.facts.kind, server.facts.model, server.facts.context_tokens, counters.output_tokens or 0

    kind, model, context, tokens = asyncio.run(looked())
    assert (kind.value, model, context) == (asked.kind, "target", 512)
    assert tokens > 0


def test_totals_are_the_sum_of_what_requests_counted() -> None:
    with standing(VllmServer(answers=Answers(SPEC, SPECULATION))) as stand:
        for seed in range(3):
            Asked("vllm", VllmServer(), stand).ask(seed=seed)

        async def looked() -> Any:
            async with Connection(stand.url, None) as connection:
                return await (await recognise(connection, "target")).counters()

        seen = asyncio.run(looked())
    made = [of_the_engine(seed) for seed in range(3)]
    assert seen.output_tokens == sum(len(one.token_ids) for one in made)
    assert seen.by_rank["0"].drafts == sum(one.acceptance.drafts for one in made if one.acceptance)
    assert seen.by_rank["0"].accepted == sum(one.acceptance.accepted for one in made if one.acceptance)


# --- faults --------------------------------------------------------------------------------------


def test_a_status_with_and_without_retry_after(asked: Asked) -> None:
    asked.server.script.add(Fault(Kind.STATUS, status=429, retry_after="2"))
    asked.server.script.add(Fault(Kind.STATUS, status=503, numbers=frozenset({2})))
    status, headers, _ = asked.ask()
    assert (status, headers["Retry-After"]) == (429, "2")
    status, headers, body = asked.ask()
    assert (status, "Retry-After" in headers) == (503, False)
    assert "message" in json.dumps(body)
    assert asked.ask()[0] == 200


@pytest.mark.parametrize("kind", [Kind.DROP, Kind.TRUNCATE])
@pytest.mark.parametrize("stream", [False, True])
def test_a_connection_that_ends_early_shows_as_such(asked: Asked, kind: Kind, stream: bool) -> None:
    asked.server.script.add(Fault(kind, tokens=8))
    with pytest.raises(aiohttp.ClientError):
        asked.ask(stream)
    assert asked.ask(stream)[0] == 200


def test_a_dropped_stream_has_brought_its_first_tokens(asked: Asked) -> None:
    asked.server.script.add(Fault(Kind.DROP, tokens=8))

    got = bytearray()

    async def read(session: aiohttp.ClientSession) -> None:
        async with session.post(asked.stand.url + asked.path, json=asked.body(stream=True)) as response:
            async for part in response.content.iter_any():
                got.extend(part)

    with pytest.raises(aiohttp.ClientError):
        once(read)
    assert got.count(b"data: ") == 2


def test_a_short_body_is_whole_to_http_and_no_json(asked: Asked) -> None:
    asked.server.script.add(Fault(Kind.SHORT))
    with pytest.raises(json.JSONDecodeError):
        asked.ask()
    asked.server.script.add(Fault(Kind.SHORT))
    _, _, events = asked.ask(stream=True)
    assert events
    assert "[DONE]" not in events


@pytest.mark.parametrize("stream", [False, True])
def test_broken_json(asked: Asked, stream: bool) -> None:
    asked.server.script.add(Fault(Kind.BROKEN))
    with pytest.raises(json.JSONDecodeError):
        asked.ask(stream)


def test_json_that_is_no_object_and_fields_that_are_missing(asked: Asked) -> None:
    asked.server.script.add(Fault(Kind.NOT_OBJECT))
    assert isinstance(asked.ask()[2], list)
    asked.server.script.add(Fault(Kind.MISSING, fields=("token_ids", "output_ids", "meta_info")))
    body = asked.ask()[2]
    assert not {"token_ids", "output_ids", "meta_info"} & {*body, *body.get("choices", [{}])[0]}


@pytest.mark.parametrize("kind", [Kind.FEWER_IDS, Kind.ODD_IDS, Kind.TEXT_IDS])
def test_wrong_ids(asked: Asked, kind: Kind) -> None:
    asked.server.script.add(Fault(kind))
    body, made = asked.ask()[2], list(of_the_engine().token_ids)
    ids = body["choices"][0]["token_ids"] if asked.kind == "vllm" else body["output_ids"]
    wrong = {Kind.FEWER_IDS: made[:-1], Kind.ODD_IDS: [*made[:-1], -1], Kind.TEXT_IDS: list(map(str, made))}
    assert ids == wrong[kind]


def test_another_model_and_another_prompt_in_the_answer() -> None:
    script = Script(Fault(Kind.WRONG_MODEL), Fault(Kind.OTHER_PROMPT, numbers=frozenset({2})))
    with standing(VllmServer(answers=Answers(SPEC), script=script)) as stand:
        vllm = Asked("vllm", VllmServer(), stand)
        assert vllm.ask()[2]["model"] == "another-model"
        assert tuple(vllm.ask()[2]["choices"][0]["prompt_token_ids"]) == (0, *PROMPT)


def test_chat_answers_go_wrong_too(asked: Asked) -> None:
    asked.server.script.add(Fault(Kind.MISSING, fields=("choices",)))

    async def posted(session: aiohttp.ClientSession) -> Any:
        body = {"model": "target", "messages": [{"role": "user", "content": "?"}], "max_tokens": 8}
        async with session.post(f"{asked.stand.url}/v1/chat/completions", json=body) as response:
            return await response.json()

    assert "choices" not in once(posted)
    assert "choices" in once(posted)


def test_another_model_is_served(asked: Asked) -> None:
    asked.server.script.add(Fault(Kind.WRONG_MODEL, path="/v1/models"))

    async def read(session: aiohttp.ClientSession) -> Any:
        async with session.get(f"{asked.stand.url}/v1/models") as response:
            return await response.json()

    assert {card["id"] for card in once(read)["data"]} == {"another-model"}
    assert "target" in {card["id"] for card in once(read)["data"]}


@pytest.mark.parametrize("kind", [Kind.HANG, Kind.STALL])
def test_a_request_that_hangs_leaves_the_server_when_its_client_does(asked: Asked, kind: Kind) -> None:
    asked.server.script.add(Fault(kind, tokens=8))
    with pytest.raises(TimeoutError):
        asked.ask(stream=True, seconds=0.3)
    assert asked.ask()[0] == 200
    wait_until(lambda: asked.server.desk.running == 0, seconds=10)


def test_a_stall_that_ends_goes_on_where_it_was(asked: Asked) -> None:
    asked.server.script.add(Fault(Kind.STALL, tokens=8, seconds=0.25))
    whole = asked.ask(stream=True, seconds=1.0)[2]  # it stalls once, not at each of the seven events
    assert whole[-1] == "[DONE]"
    assert len(whole) == len(asked.ask(stream=True)[2])


def test_a_slow_answer_takes_as_long_as_its_tokens(asked: Asked) -> None:
    """Too slow for the client's patience, and at full speed the next time."""
    asked.server.script.add(Fault(Kind.SLOW, tokens_per_second=20))
    with pytest.raises(TimeoutError):
        asked.ask(stream=True, seconds=0.3)
    assert asked.ask(stream=True)[0] == 200


# --- the whole server ----------------------------------------------------------------------------


def test_a_server_that_is_away_and_back_at_the_same_address(asked: Asked) -> None:
    url = asked.stand.url
    asked.stand.down()
    with pytest.raises(aiohttp.ClientConnectionError):
        asked.ask()
    asked.stand.up()
    assert asked.stand.url == url
    assert asked.ask()[0] == 200


def test_a_server_that_goes_away_cuts_what_is_under_way(asked: Asked) -> None:
    asked.server.script.add(Fault(Kind.STALL, tokens=8))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(asked.ask, stream=True)
        wait_until(lambda: asked.server.desk.running, seconds=10)
        asked.stand.down()
        with pytest.raises(aiohttp.ClientError):
            answer.result()
    asked.stand.up()


def test_a_deaf_server_takes_the_connection_and_says_nothing() -> None:
    async def read(session: aiohttp.ClientSession) -> None:
        async with session.get(url):
            pass

    with deaf() as url, pytest.raises(TimeoutError):
        once(read, seconds=0.2)


def test_a_process_is_killed_frozen_and_back() -> None:
    """One process for all of it: an interpreter takes a second."""
    settings = {
        "kind": "sglang",
        "engine": SPEC.model_dump(exclude_unset=True),
        "faults": [{"kind": "status", "status": 500, "numbers": [1]}],
    }

    with ServerProcess(settings) as process:

        async def read(session: aiohttp.ClientSession) -> int:
            body = {"input_ids": list(PROMPT), "sampling_params": {"max_new_tokens": 4}}
            async with session.post(f"{process.url}/generate", json=body) as response:
                return response.status

        assert [once(read), once(read)] == [500, 200]
        process.freeze()
        with pytest.raises(TimeoutError):
            once(read, seconds=0.2)
        process.thaw()
        assert once(read) == 200
        url = process.url
        process.kill()
        with pytest.raises(aiohttp.ClientConnectionError):
            once(read)
        process.start()
        assert process.url == url
        assert [once(read), once(read)] == [500, 200], "a new process counts from one"
