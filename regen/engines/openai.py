"""A server that somebody else runs, as an engine: vLLM's, SGLang's, or another with OpenAI's interface.

Guarantees: the prompt's ids are sent as given; ids come back from the server, or, where the spec allows it, from its
text (`ids: retokenised`), and otherwise the answer fails; every sampling field is sent, and one that this server would
drop refuses the row; the key comes from the environment and goes into a header only. A request that the server fails
for a moment is sent again with growing waits, or when the server wants it. A request's time is bounded by new tokens,
never in total. Cancelling one closes its connection, upon which the server ends it.

Costs: one connection per slot, one `/metrics` every few seconds. Starting it asks the server for one token.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from regen.engines.event_lines import EventLines
from regen.engines.http import Connection, OpenReply, Reply, server_url
from regen.engines.openai_answers import OTHER_PROMPT, AnswerStream, StreamedAnswer, answer_stream, scores
from regen.engines.openai_bodies import GENERATE_PATH, generation_body, not_taken, score_body
from regen.engines.openai_facts import disagreements, draft_of, losses, speculates
from regen.engines.openai_tokenizer import KnownText, shows_the_targets_tokenizer
from regen.engines.served import ServedModel, is_healthy, recognise
from regen.engines.served_failures import Blame, Failure, RequestFailed, SignsOfLife, of_status, wait_seconds
from regen.engines.served_sglang import streams_new_ids_only
from regen.engines.served_totals import ServerTotals
from regen.errors import EngineDied, RowFailed, RowRefused, ServerUnavailable, SpecError
from regen.records import (
    Acceptance,
    Completion,
    EngineCounters,
    EngineInfo,
    FinishReason,
    GenerationRequest,
    Sampling,
    Stage,
    TokenScore,
)
from regen.served import Asked, ServerFacts, ServerKind
from regen.spec import EndpointSpec, EngineSpec, SpeculationSpec

START_RETRY_SECONDS = 2.0
# How long a server may take to show, after a failure, that it answers at all.
PROBE_SECONDS = 15.0
_CONNECTIONS_TO_SPARE = 4
_MOST_SHOWN = 4096
_MOST_CHARS_SAID = 80
# What requests and the reading of their answers go by.
_MUST_STAY = ("kind", "model", "answers_as", "model_path", "version", "context_tokens", "longest_tokens", "speculation")
# vLLM's word for an answer that its detector ended.
_REPETITION = "repetition_detected"

# Text to the ids that give it back exactly, or None.
Retokenise = Callable[[str], tuple[int, ...] | None]


class OpenaiEngine:
    """`protocols.Engine` over one endpoint."""

    def __init__(
        self,
        spec: EngineSpec,
        endpoint: EndpointSpec,
        target: str,
        sampling: Sampling,
        speculation: SpeculationSpec | None,
        retokenise: Retokenise | None = None,
        say: Callable[[str], None] = lambda line: None,
        approve: Callable[[ServerFacts], None] = lambda facts: None,
        known_texts: Callable[[], Sequence[KnownText]] = lambda: (),
        vocabulary: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`sampling` is what most rows are sampled with: refused at the start, where the server would drop of it.

        `retokenise` is only for `ids: retokenised`. `say` gets the one statement of what is lost with this server.
        `approve` judges what the server tells of itself and raises UserError; `known_texts` are compared with what its
        tokenizer makes of them. The target's ids are below `vocabulary`. These are called in a thread.
        """
        self._spec, self._endpoint, self._target = spec, endpoint, target
        self._sampling, self._speculation, self._retokenise = sampling, speculation, retokenise
        self._tell, self._told = say, set[str]()
        self._approve, self._known_texts = approve, known_texts
        self._vocabulary_of = vocabulary
        self._vocabulary: int | None = None
        self._slots = endpoint.slots or spec.slots
        self._connection: Connection | None = None
        self._served: ServedModel | None = None
        self._totals = ServerTotals()
        self._is_incremental = False
        self._life = SignsOfLife(spec.outage_seconds)
        # Of whole answers: tokens of one that contradicts itself in the end are none.
        self._whole = SignsOfLife(spec.outage_seconds)
        self._draw = random.Random()
        self._shown: list[Asked] | None = None if speculation is None else []
        self._places = asyncio.Semaphore(self._slots)
        self._looking: asyncio.Task[bool] | None = None
        self._probing: asyncio.Task[bool] | None = None
        self._comparing: asyncio.Task[None] | None = None
        # How often a connection was lost, and up to which of these the server was found to be the same since.
        self._losses = self._losses_seen = 0

    async def start(self) -> EngineInfo:
        """Waits for a server that does not answer yet. Raises SpecError where waiting does not help."""
        if self._connection is None:
            connections = self._slots + _CONNECTIONS_TO_SPARE
            self._connection = Connection(server_url(self._endpoint.url), self._key(), connections)
            await self._connection.__aenter__()
        while True:
            try:
                return await self._start(self._connection)
            except ServerUnavailable as error:
                self._say(f"waiting for {self._connection.url}: {error}")
            await asyncio.sleep(START_RETRY_SECONDS)

    def _say(self, line: str) -> None:
        """Once, however often a start is tried."""
        if line not in self._told:
            self._told.add(line)
            self._tell(line)

    async def generate(self, request: GenerationRequest, on_tokens: Callable[[int], None]) -> Completion:
        if dropped := self._not_taken(request.sampling):
            raise RowRefused(Stage.GENERATE, "sampling_not_taken", dropped)
        asked_at, tries, waits = time.monotonic(), 0, 0
        while True:
            try:
                answer, began_at, first_at = await self._answer(request, on_tokens)
                made = self._completion(request, answer, (asked_at, began_at, first_at, time.monotonic()))
                await self._count_warmup()
                return made
            except RequestFailed as error:
                failure = error.failure
            tries += await self._cost(failure, tries)
            self._raise_if_final(failure, tries)
            waits += 1
            await asyncio.sleep(wait_seconds(waits, failure, self._draw.random()))

    async def score(self, prompt_token_ids: tuple[int, ...], token_ids: tuple[int, ...]) -> tuple[TokenScore, ...]:
        connection, facts = self._ready()
        if facts.kind is ServerKind.OTHER:
            raise RowFailed("scores_not_given", f"{connection.url} is of a kind that cannot rate tokens")
        body = score_body(facts.kind, facts.model, [*prompt_token_ids, *token_ids])
        path = GENERATE_PATH[facts.kind]
        tries = waits = 0
        while True:
            try:
                reply = await connection.post(path, body, self._spec.token_timeout_seconds)
                self._require_ok(reply.status, reply, reply.retry_after)
                return scores(facts.kind, reply.fields(), token_ids)
            except ServerUnavailable as error:
                failure = Failure(Blame.MOMENT, "server_unavailable", str(error))
            except RequestFailed as error:
                failure = error.failure
            tries += await self._cost(failure, tries)
            self._raise_if_final(failure, tries)
            waits += 1
            await asyncio.sleep(wait_seconds(waits, failure, self._draw.random()))

    def shown_so_far(self) -> tuple[ServerFacts, tuple[Asked, ...]]:
        """With speculation: the server, and what its answers until now were counted at. No more are kept after this."""
        shown, self._shown = self._shown or [], None
        return self._ready()[1], tuple(shown)

    def counters(self) -> EngineCounters:
        return self._totals.engine_counters()

    async def close(self) -> None:
        await self._totals.close()
        asked = [task for task in (self._looking, self._probing, self._comparing) if task is not None]
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.__aexit__(None, None, None)

    def _key(self) -> str | None:
        name = self._endpoint.api_key_env
        if name is None:
            return None
        if not (key := os.environ.get(name, "").strip()):
            raise SpecError(
                f"engine.endpoints: {self._endpoint.url}: api_key_env names {name}, and that is not set where this"
                " replica runs: set it on every node before Ray starts there"
            )
        if not key.isascii() or not key.isprintable() or " " in key:
            raise SpecError(f"engine.endpoints: {self._endpoint.url}: what {name} holds cannot be sent in a header")
        return key

    async def _start(self, connection: Connection) -> EngineInfo:
        self._served = served = await recognise(connection, self._endpoint.model)
        if self._endpoint.server not in ("auto", served.facts.kind.value):
            raise SpecError(
                f"{connection.url} answers as a server of kind {served.facts.kind.value}, and this endpoint's server is"
                f" {self._endpoint.server!r}"
            )
        await asyncio.to_thread(self._approve, served.facts)
        self._require_agreement(connection)
        known = await asyncio.to_thread(self._known_texts)
        self._vocabulary = await asyncio.to_thread(self._vocabulary_of)
        shows_tokenizer = await shows_the_targets_tokenizer(connection, served.facts.model, known)
        self._is_incremental = served.facts.kind is ServerKind.SGLANG and await streams_new_ids_only(connection)
        await self._totals.begin(connection, served)
        if dropped := self._not_taken(self._sampling):
            raise SpecError(f"{connection.url} would not sample as the spec asks: {dropped}")
        gives_ids = await self._try_one(connection)
        self._say_losses(connection, gives_ids, shows_tokenizer or not known)
        counts_answers = self._totals.own.acceptance is not None
        await self._totals.begin(connection, served, is_needed=self._speculation is not None and not counts_answers)
        self._seen_whole()
        self._totals.watch(connection, served)
        facts, how = served.facts, "server" if gives_ids else "server, ids from its text"
        return EngineInfo(
            engine=f"{facts.kind.value} {facts.version or 'of unknown version'} at {_place(connection.url)} ({how})",
            draft=draft_of(facts, self._speculation),
            max_model_len=self._longest_tokens(facts),
            slots=self._slots,
        )

    def _longest_tokens(self, facts: ServerFacts) -> int:
        """What prompt and cap may have together, by the spec and by the server."""
        wanted = self._spec.max_model_len
        if facts.longest_tokens is None or facts.longest_tokens >= wanted:
            return wanted
        self._say(
            f"{self._endpoint.url}: prompt and answer may have {facts.longest_tokens} tokens together there, and"
            f" engine.max_model_len is {wanted}: its answers end that much earlier"
        )
        return facts.longest_tokens

    def _require_agreement(self, connection: Connection) -> None:
        _, facts = self._ready()
        found = disagreements(facts, self._endpoint, self._target, self._spec.max_model_len, self._speculation)
        if found:
            raise SpecError("\n".join(f"engine.endpoints: {connection.url}: {text}" for text in found))

    async def _try_one(self, connection: Connection) -> bool:
        """One small answer: whether ids come back, and with them counters."""
        try:
            answer = await self._small_answer()
        except RequestFailed as error:
            detail = connection.shown(error.failure.detail)
            # A server that changes a prompt of one id changes each.
            is_lasting = error.failure.reason == OTHER_PROMPT
            if error.failure.blame in (Blame.MOMENT, Blame.OVERLOAD) and not is_lasting:
                raise ServerUnavailable(f"{connection.url}: {detail}") from None  # its cause has the server's own words
            raise SpecError(f"{connection.url} does not take a first request: {detail}") from None
        if answer.token_ids is None and self._retokenise is None:
            raise SpecError(
                f"{connection.url} gives the text of an answer and not its ids. A text has many, and which were sampled"
                " is lost: use a vLLM server (return_token_ids) or an SGLang server, or set engine.ids: retokenised"
            )
        if answer.acceptance is not None:
            self._totals.own.add(Acceptance(), 0)
        return answer.token_ids is not None

    async def _small_answer(self) -> StreamedAnswer:
        request = GenerationRequest("regen-start", (1,), replace(self._sampling, stop=()), 4, None)
        answer, _, _ = await self._streamed(request, _Progress(lambda count: None, lambda: None, request.cap))
        return answer

    def _say_losses(self, connection: Connection, gives_ids: bool, shows_tokenizer: bool) -> None:
        _, facts = self._ready()
        wants_counters = self._speculation is not None or speculates(facts, False)
        gives_counters = not wants_counters or self._totals.acceptance is not None
        for text in losses(facts, gives_ids, gives_counters, shows_tokenizer, self._sampling.temperature > 0):
            self._say(f"{connection.url}: {text}")

    async def _answer(
        self, request: GenerationRequest, on_tokens: Callable[[int], None]
    ) -> tuple[StreamedAnswer, float, float]:
        """(answer, when it was sent, when its first token came). Counted as waiting until then, as running after.

        A row that finds `slots` requests at the server waits here: its next prompt is sent as soon as one has ended.
        """
        own = self._totals.own

        def count(new: int) -> None:
            own.output_tokens += new
            self._life.seen()
            on_tokens(new)

        def began() -> None:
            own.waiting -= 1
            own.running += 1
            own.prompt_tokens += len(request.prompt_token_ids)

        progress = _Progress(count, began, request.cap)
        own.waiting += 1
        try:
            async with self._places:
                await self._require_same()
                return await self._streamed(request, progress)
        finally:
            own.waiting -= 0 if progress.has_begun else 1
            own.running -= 1 if progress.has_begun else 0

    async def _streamed(self, request: GenerationRequest, progress: _Progress) -> tuple[StreamedAnswer, float, float]:
        connection, facts = self._ready()
        stream = answer_stream(
            facts.kind, facts.answers_as or facts.model, request.prompt_token_ids, self._is_incremental
        )
        body = generation_body(facts.kind, facts.model, request)
        sent_at = time.monotonic()
        try:
            async with asyncio.timeout(self._spec.token_timeout_seconds) as limit:
                async with connection.stream(GENERATE_PATH[facts.kind], body) as reply:
                    if reply.status != 200:
                        self._require_ok(reply.status, await reply.whole(), reply.retry_after)
                    await self._read(reply, stream, progress, limit)
            return stream.ended(), sent_at, progress.first_at or time.monotonic()
        except TimeoutError as error:
            seconds = self._spec.token_timeout_seconds
            raise RequestFailed(Failure(Blame.MOMENT, "no_token", f"no new token for {seconds:g} s")) from error
        except ServerUnavailable as error:
            self._losses += 1
            raise _unavailable(error) from error

    async def _read(self, reply: OpenReply, stream: AnswerStream, progress: _Progress, limit: asyncio.Timeout) -> None:
        """To the end of the stream. Only new tokens put the time limit off: a gateway's comments do not."""
        lines = EventLines()
        async for chunk in reply.chunks():
            try:
                payloads = lines.feed(chunk)
            except ValueError as error:
                raise RequestFailed(Failure(Blame.MOMENT, "broken_answer", str(error))) from error
            if new := sum(map(stream.take, payloads)):
                progress.came(new)
                limit.reschedule(asyncio.get_running_loop().time() + self._spec.token_timeout_seconds)
        if lines.is_cut:
            raise RequestFailed(Failure(Blame.MOMENT, "truncated", "the answer ended within an event"))

    def _completion(
        self, request: GenerationRequest, answer: StreamedAnswer, times: tuple[float, float, float, float]
    ) -> Completion:
        asked_at, sent_at, first_at, ended_at = times
        self._seen_whole()
        token_ids = answer.token_ids if answer.token_ids is not None else self._ids_of_text(request, answer)
        self._require_vocabulary(token_ids)
        stop_reason = _stop_reason(request.sampling, answer)
        if answer.finish_reason is FinishReason.LENGTH and len(token_ids) < request.cap:
            raise RowFailed(
                "cut_by_the_server",
                f"after {len(token_ids)} tokens, and {request.cap} were allowed: it has its own cap",
            )
        self._totals.own.add(answer.acceptance, len(token_ids))
        if self._shown is not None and len(self._shown) < _MOST_SHOWN:
            self._shown.append(_asked(request, answer, len(token_ids)))
        return Completion(
            token_ids=token_ids,
            finish_reason=answer.finish_reason,
            stop_reason=stop_reason,
            acceptance=answer.acceptance,
            queue_seconds=sent_at - asked_at,
            first_token_seconds=first_at - sent_at,
            decode_seconds=ended_at - first_at,
        )

    async def _count_warmup(self) -> None:
        """Before its end an answer of the warm-up is in the counters, which are judged within seconds."""
        is_by_totals = self._totals.own.acceptance is None and self._totals.has_counters
        if self._shown is None or self._served is None or not is_by_totals:
            return
        connection, _ = self._ready()
        try:
            await self._totals.refresh(connection, self._served)
        except ServerUnavailable:
            return  # tokens that no reading covers are held against nobody

    def _require_vocabulary(self, token_ids: tuple[int, ...]) -> None:
        """An id that the target has not would be left out of a text without a word, or refuse its row for good."""
        if self._vocabulary is not None and (largest := max(token_ids, default=0)) >= self._vocabulary:
            raise RequestFailed(
                Failure(
                    Blame.MOMENT,
                    "broken_answer",
                    f"the id {largest} is outside of the target's vocabulary of {self._vocabulary}",
                )
            )

    def _ids_of_text(self, request: GenerationRequest, answer: StreamedAnswer) -> tuple[int, ...]:
        """The closing id is not in a text: it is added, and counted as the server counts it or not."""
        found = self._retokenise(answer.text) if self._retokenise is not None else None
        if found is None:
            raise RowFailed("ids_unknown", "the text of the answer does not give its ids")
        if answer.counted_tokens is None:
            raise RowFailed("ids_unknown", "the server does not count its tokens: no ids can be checked")
        is_closed = answer.finish_reason is FinishReason.STOP and not request.sampling.stop
        closing = request.sampling.stop_token_ids[:1] if is_closed else ()
        if answer.counted_tokens not in (len(found), len(found) + len(closing)):
            raise RowFailed("ids_unknown", f"the text has {len(found)} ids, the server counted {answer.counted_tokens}")
        return (*found, *closing)

    def _require_ok(self, status: int, reply: Reply, retry_after: str | None) -> None:
        if status == 200:
            return
        connection, _ = self._ready()
        error = reply.fields().get("error")
        message = error.get("message") if isinstance(error, dict) else None
        said = connection.shown(message if isinstance(message, str) else reply.text())
        raise RequestFailed(of_status(status, said, retry_after, time.time()))

    async def _cost(self, failure: Failure, tries: int) -> int:
        """How many tries of its request a failure is, after so many: none where the server is busy, or answers nobody.

        The last one is the row's only if the server shows that it answers: else it would take row after row, and fail
        each, for as long as others have rows to give.
        """
        if failure.blame is not Blame.MOMENT or not await self._is_there():
            return 0
        return int(tries + 1 < self._spec.request_attempts or await self._answers())

    async def _is_there(self) -> bool:
        """Asked once for all requests that fail together."""
        if self._looking is None or self._looking.done():
            connection, facts = self._ready()
            self._looking = asyncio.ensure_future(is_healthy(connection, facts.kind))
        return await asyncio.shield(self._looking)

    async def _answers(self) -> bool:
        """So is this: a few tokens."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.ensure_future(self._probe())
        return await asyncio.shield(self._probing)

    async def _probe(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._small_answer()
        except TimeoutError:
            return False
        except RequestFailed as error:
            if error.failure.blame is Blame.MOMENT and self._whole.is_gone_at(time.monotonic()):
                raise self._gone(error.failure) from None
            return False
        self._seen_whole()
        return True

    def _seen_whole(self) -> None:
        self._life.seen()
        self._whole.seen()

    def _gone(self, failure: Failure) -> ServerUnavailable:
        connection, _ = self._ready()
        return ServerUnavailable(
            f"{connection.url} has answered nothing for engine.outage_seconds ({self._spec.outage_seconds:g} s):"
            f" {connection.shown(failure.detail)}"
        )

    async def _require_same(self) -> None:
        """After a lost connection: a server that was started anew may serve another model, and not say so in an answer.

        Raises RequestFailed while it is away, ServerUnavailable where it is another: the next start judges that one.
        """
        if self._losses_seen == self._losses:
            return
        if self._comparing is None or self._comparing.done():
            self._comparing = asyncio.ensure_future(self._compare(self._losses))
        await asyncio.shield(self._comparing)

    async def _compare(self, losses: int) -> None:
        connection, facts = self._ready()
        try:
            now = (await recognise(connection, self._endpoint.model)).facts
        except ServerUnavailable as error:
            raise _unavailable(error) from error
        except SpecError as error:
            raise ServerUnavailable(f"{connection.url} is not what it was: {error}") from error
        for name in _MUST_STAY:
            if getattr(now, name) != getattr(facts, name):
                raise ServerUnavailable(
                    f"{connection.url} was started anew with another {name}: {getattr(now, name)}, and it was"
                    f" {getattr(facts, name)}"
                )
        self._losses_seen = losses

    def _raise_if_final(self, failure: Failure, tries: int) -> None:
        """Raises what the protocol knows; returns where the request is to be sent again."""
        connection, _ = self._ready()
        detail = connection.shown(failure.detail)
        if failure.blame is Blame.ROW:
            raise RowRefused(Stage.GENERATE, failure.reason, detail)
        if failure.blame is Blame.CONFIGURATION:
            raise ServerUnavailable(f"{connection.url} takes no requests any more: {detail}")
        if self._life.is_gone_at(time.monotonic()):
            raise self._gone(failure)
        if failure.blame is Blame.MOMENT and tries >= self._spec.request_attempts:
            raise RowFailed(failure.reason, f"{detail} (sent {tries} times)")

    def _not_taken(self, sampling: Sampling) -> str:
        _, facts = self._ready()
        is_on = speculates(facts, self._totals.has_counters)
        return ", ".join(not_taken(facts.kind, facts.version, is_on, sampling))

    def _ready(self) -> tuple[Connection, ServerFacts]:
        if self._connection is None or self._served is None:
            raise EngineDied("the server's connection is closed")
        return self._connection, self._served.facts


def _asked(request: GenerationRequest, answer: StreamedAnswer, tokens: int) -> Asked:
    return Asked(request.sampling.temperature, tokens, answer.acceptance, answer.rank, answer.said_accept_length)


def _stop_reason(sampling: Sampling, answer: StreamedAnswer) -> str | None:
    """What ended the answer, of what was asked to end it. Raises RequestFailed where it was something else."""
    said = answer.stop_reason
    if answer.finish_reason is not FinishReason.STOP:
        return _REPETITION if said == _REPETITION and answer.finish_reason is FinishReason.REPETITION else None
    if said is None or said in (sampling.stop if isinstance(said, str) else sampling.stop_token_ids):
        return None if said is None else str(said)
    # SGLang ends an answer so when its logits are no numbers.
    detail = f"stopped by {str(said)[:_MOST_CHARS_SAID]!r}, which was not asked for"
    raise RequestFailed(Failure(Blame.MOMENT, "stopped_otherwise", detail))


def _place(url: str) -> str:
    """`HOST:PORT[/PREFIX]`: a row says which server has answered it."""
    return url.partition("://")[2]


class _Progress:
    """New tokens of one try of a request. Those of a try that failed were sampled, too: they are told and counted."""

    def __init__(self, on_tokens: Callable[[int], None], began: Callable[[], None], most: int) -> None:
        self._on_tokens, self._began, self._left = on_tokens, began, most
        self.first_at: float | None = None

    @property
    def has_begun(self) -> bool:
        return self.first_at is not None

    def came(self, new: int) -> None:
        if self.first_at is None:
            self.first_at = time.monotonic()
            self._began()
        self._on_tokens(new)
        self._left -= new
        if self._left < 0:
            raise RequestFailed(Failure(Blame.MOMENT, "broken_answer", "more tokens than the request allows"))


def _unavailable(error: ServerUnavailable) -> RequestFailed:
    return RequestFailed(Failure(Blame.MOMENT, "server_unavailable", str(error)))
