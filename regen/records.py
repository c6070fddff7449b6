"""Frozen values and enums that cross processes. No Arrow, no clock, no I/O.

Units: token counts are counts, times are seconds (float), ordinals are positions in the frozen plan counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from regen.errors import RegenError


class Status(StrEnum):
    """The terminal states of a conversation. One conversation in, one outcome out."""

    OK = "ok"
    NATIVE = "native"
    TRUNCATED = "truncated"
    DEGENERATE = "degenerate"
    PARTIAL = "partial"
    REJECTED = "rejected"
    FAILED = "failed"


class Stage(StrEnum):
    """Where a row was refused or failed."""

    LOAD = "load"
    NORMALIZE = "normalize"
    RENDER = "render"
    LENGTH = "length"
    GENERATE = "generate"
    PARSE = "parse"  # the answer was made, and could not be read
    WRITE = "write"  # the row was made, and no file takes it


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Split(StrEnum):
    """Which part of the data a row belongs to: drawn at planning, fixed from then on."""

    TRAIN = "train"
    EVAL = "eval"


class FinishReason(StrEnum):
    """Why the engine ended a generation, in vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    REPETITION = "repetition"


class Label(StrEnum):
    """What is said of one generation. All but the last make it a bad turn: see `is_note`."""

    CUT_IN_ANSWER = "cut_in_answer"  # at the cap, and within it: what is visible so far may be good
    CUT_IN_THINKING = "cut_in_thinking"
    CUT_IN_TOOL_CALL = "cut_in_tool_call"
    REPETITION = "repetition"  # ended by the engine's own detector
    LOOP = "loop"  # a cycle of ids that lasts to the end
    WALL = "wall"  # one or two ids to the end
    FEW_IDS = "few_ids"  # a handful of ids, without a cycle
    EMPTY_ANSWER = "empty_answer"
    NO_VISIBLE_ANSWER = "no_visible_answer"  # reasoning and nothing else
    UNBALANCED_TAGS = "unbalanced_tags"  # tags of reasoning or calls in what is visible
    UNPARSABLE_TOOL_CALL = "unparsable_tool_call"
    RETOKENISES_DIFFERENTLY = "retokenises_differently"  # encoding the text gives other ids

    @property
    def is_note(self) -> bool:
        """Worth knowing, and nothing bad."""
        return self is Label.RETOKENISES_DIFFERENTLY

    @property
    def is_cut(self) -> bool:
        """Whether the cap has cut it."""
        return self in (Label.CUT_IN_ANSWER, Label.CUT_IN_THINKING, Label.CUT_IN_TOOL_CALL)

    @property
    def is_degenerate(self) -> bool:
        """Whether it is no answer: such a generation is no measure of a draft."""
        return not (self.is_note or self.is_cut or self is Label.UNPARSABLE_TOOL_CALL)


@dataclass(frozen=True, slots=True)
class PlanStage:
    """The plan as it was for a while: after planning, or after an extension. It held the ordinals below `rows`."""

    rows: int
    digest: str


class Origin(StrEnum):
    """Who made a generation's tokens."""

    TARGET = "target"
    NATIVE = "native"


# --- conversations -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """One message. In a planned conversation an assistant message without content is a *slot*: the target speaks.

    `tool_calls_json` are calls that were made, as JSON text in OpenAI's form, arguments being JSON text inside it.
    `tool_call_id` and `name` say which call a tool's result answers. `expected_calls_json` is only on slots: the calls
    that the source's own answer made there, in the same form. Recorded results are matched by them; they are never
    rendered and are in no output.
    """

    role: Role
    content: str | None
    reasoning: str | None = None
    tool_calls_json: str | None = None
    tool_call_id: str | None = None
    name: str | None = None
    expected_calls_json: str | None = None

    @property
    def is_slot(self) -> bool:
        """Whether the target is to speak here."""
        return self.role is Role.ASSISTANT and self.content is None and self.tool_calls_json is None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A source row made canonical.

    `messages` hold only what is given (system, user, recorded results of tools) and slots for the target; no source
    answer survives. Of a `native` row they are the whole conversation, answers included, and there is no slot.
    `tools_json` and `template_kwargs_json` are JSON texts, `sampling` are this row's own overrides by field name.
    """

    messages: tuple[Message, ...]
    tools_json: str | None = None
    template_kwargs_json: str | None = None
    sampling: Mapping[str, float | int] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """How many assistant turns the target is asked for."""
        return sum(1 for message in self.messages if message.is_slot)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a row was never sent: a closed reason for counting, a detail for people."""

    stage: Stage
    reason: str
    detail: str = ""


# --- sampling and generation ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """Effective sampling: every field explicit, so that every kind of engine samples the same distribution."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    # vLLM's detector of repeated patterns, 0 for off: longest and shortest pattern, and how often in a row.
    repetition_max_pattern_tokens: int = 0
    repetition_min_pattern_tokens: int = 0
    repetition_min_count: int = 0


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Speculation counters: sums over verification steps.

    `drafts` steps verified `drafted` tokens and accepted `accepted`; `accepted_by_position[i]` counts the steps that
    accepted at least i + 1 draft tokens.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()

    @property
    def accept_length(self) -> float | None:
        """Tokens emitted per verification step, 1.0 meaning that speculation does nothing; None before any step."""
        return 1.0 + self.accepted / self.drafts if self.drafts else None

    def __add__(self, other: Acceptance) -> Acceptance:
        longer, shorter = self.accepted_by_position, other.accepted_by_position
        if len(longer) < len(shorter):
            longer, shorter = shorter, longer
        by_position = tuple(
            count + (shorter[position] if position < len(shorter) else 0) for position, count in enumerate(longer)
        )
        return Acceptance(
            self.drafts + other.drafts, self.drafted + other.drafted, self.accepted + other.accepted, by_position
        )


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Ids in. `cap` is the effective `max_tokens`; `sampling.max_tokens` is what the spec asked for."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    cap: int
    seed: int | None


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The verification steps of one generation, in order: how many tokens each drafted, how many were accepted.

    Steps in which nothing was drafted are not among them, nor is the first token, which the prompt's own pass gives.
    """

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """Ids out. Times in seconds; `acceptance` is None where the engine gives none for this request.

    `steps` is None unless the engine was made to keep them: only a pilot asks for that.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | None
    acceptance: Acceptance | None
    queue_seconds: float
    first_token_seconds: float
    decode_seconds: float
    steps: StepTrace | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a started engine says of itself. `max_model_len` in tokens, `slots` in sequences decoded at once."""

    engine: str
    draft: str | None
    max_model_len: int
    slots: int


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """Totals since the engine started, and its state now. `acceptance` is None when speculation is off or absent.

    `counted_tokens`: so many of the output tokens are those whose drafts are in `acceptance`: a server counts drafts
    later than it gives their tokens. None: all of them.
    """

    output_tokens: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    acceptance: Acceptance | None = None
    counted_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One token as the target itself rates it without speculation: natural log probabilities at its place.

    `best_token_id` is what greedy sampling would have taken there; the two log probabilities are equal for that token.
    """

    token_id: int
    logprob: float
    best_token_id: int
    best_logprob: float


@dataclass(frozen=True, slots=True)
class CanaryMiss:
    """Where a greedy answer under speculation left what the target itself would have said, beyond the margin.

    `position` counts sampled tokens from 0; `margin` is how far below the target's best, in nats.
    """

    row_id: str
    position: int
    margin: float


@dataclass(frozen=True, slots=True)
class WarmupReport:
    """What one engine's warm-up has shown, before any row was leased to it.

    `acceptance` is what the engine counted over all of the warm-up less what degenerate answers account for; None where
    it counted nothing at all although tokens were decoded. `canary_misses` are of the `canary_answers` greedy answers
    that were compared.
    """

    seconds: float
    answers: int
    degenerate: int
    output_tokens: int
    acceptance: Acceptance | None
    canary_answers: int = 0
    canary_misses: tuple[CanaryMiss, ...] = ()


# --- output rows ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Generation:
    """One assistant turn made by the target: what the engine saw and sampled. Ids are the truth, text is a view.

    `loss_mask` is over the completion, None meaning all ones. Of a turn whose origin is native nobody here knows
    `finish_reason`, `sampling` and `cap`: None.
    """

    turn: int
    origin: Origin
    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]
    text: str
    content: str
    finish_reason: FinishReason | None
    stop_reason: str | None
    sampling: Sampling | None
    cap: int | None
    seed: int | None
    loss_mask: tuple[int, ...] | None = None
    reasoning: str | None = None
    tool_calls_json: str | None = None
    labels: tuple[Label, ...] = ()


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """What is compared with text: the ids of one generation, and those that would have ended it."""

    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One row of the frozen plan: `refusal` and `native` settle it from the start, any other is made by the target.

    `row_id` is 32 hex digits; `location` names file and line (or index); `prompt_tokens` is the length of the first
    rendered prompt. A refused row may keep its conversation, for the reader. `native` are the turns that are the
    target's own already, at least one in a row that passes through.
    """

    ordinal: int
    row_id: str
    source: str
    location: str
    source_id: str | None
    conversation: Conversation | None
    prompt_tokens: int
    refusal: Refusal | None = None
    split: Split = Split.TRAIN
    native: tuple[Generation, ...] = ()

    @property
    def settled(self) -> Status | None:
        """The outcome that the row has from the start; None if the target has to make it."""
        if self.refusal is not None:
            return Status.REJECTED
        return Status.NATIVE if self.native else None


@dataclass(frozen=True, slots=True)
class ObservedGeneration:
    """What was seen while one generation was made; never part of a digest or comparison.

    `steps` are in no finished row: a pilot keeps them beside the rows (store/pilot_files.py).
    """

    turn: int
    acceptance: Acceptance | None
    queue_seconds: float
    first_token_seconds: float
    decode_seconds: float
    steps: StepTrace | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen while a row was made; never part of a digest or comparison."""

    replica: int
    session: str
    attempts: int
    engine: str
    draft: str | None
    fingerprint: str
    generations: tuple[ObservedGeneration, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One finished conversation, as it is stored. `messages` is the regenerated conversation."""

    ordinal: int
    row_id: str
    source: str
    location: str
    source_id: str | None
    status: Status
    round: int
    messages: tuple[Message, ...]
    generations: tuple[Generation, ...]
    observed: Observed
    tools_json: str | None = None
    template_kwargs_json: str | None = None
    stage: Stage | None = None
    reason: str | None = None
    detail: str | None = None
    split: Split = Split.TRAIN


# --- between driver, coordinator and workers -----------------------------------------------------


class ReplicaState(StrEnum):
    STARTING = "starting"
    WARMING = "warming"  # the engine is up and shows whether its speculation works; no row is leased to it yet
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    RELEASED = "released"  # there is no engine, and none is wanted: nobody's fault


# Their engines make tokens.
WORKING_STATES = (ReplicaState.RUNNING, ReplicaState.DRAINING)


class Command(StrEnum):
    """What the coordinator tells a worker with each exchange."""

    WAIT = "wait"  # nothing is decided yet: ask again
    WORK = "work"
    DRAIN = "drain"  # finish what runs, take nothing new
    REPLACE = "replace"  # finish what runs, take nothing new, leave when all is committed: another engine comes
    RELEASE = "release"  # the same as REPLACE, and no other engine comes: there are no rows for one
    DISMISS = "dismiss"  # drop all that is held and fail: what this engine makes is garbage, another one comes
    STOP = "stop"  # drop what runs and leave


class Phase(StrEnum):
    REPLAYING = "replaying"
    ADOPTING = "adopting"  # after a restart: hearing what the workers hold before anything is leased
    RUNNING = "running"
    DRAINING = "draining"
    FINISHED = "finished"
    DRAINED = "drained"
    FAILED = "failed"


# Of a session that hands out nothing more and has published all that it will.
ENDED_PHASES = (Phase.FINISHED, Phase.DRAINED, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class WorkerId:
    """A replica slot and which incarnation of it, from 0: a newer incarnation replaces an older one for good."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Lease:
    """One row handed to a worker. `attempt` counts from 1.

    `round` is 0 unless the row was re-opened; `sampling` are the fields, by name, that it was re-opened with.
    """

    row: PlannedRow
    round: int
    attempt: int
    sampling: Mapping[str, float | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A row that a worker gives back: this attempt failed, another may succeed."""

    ordinal: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class StartStage:
    """A stage of a session's start: `where` is a process of it, such as `command` or `replica 3`."""

    where: str
    name: str
    began_at: float  # epoch seconds on that process's clock
    seconds: float


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """What a worker says of itself with each exchange.

    `counted_at` is when the counters were read, in seconds on the worker's own monotonic clock; `arm` names the
    speculation that this engine was started with, `started_seconds` how long it took to load; `warmup` is None until
    the warm-up has ended. `metrics_error` says why the engine's own metrics are not served, where they are wanted.
    `row_limit` is how many rows it gives its engine at once while the cache is short of room, None: all that it has.
    `start` are the stages up to its first token.
    """

    state: ReplicaState
    slots: int
    running_rows: int
    loop_lag_seconds: float
    counters: EngineCounters
    engine: str = ""
    arm: str = ""
    counted_at: float = 0.0
    started_seconds: float = 0.0
    warmup: WarmupReport | None = None
    first_request_at: float | None = None  # epoch seconds on the worker's clock
    last_completion_at: float | None = None
    metrics_error: str | None = None
    row_limit: int | None = None
    start: tuple[StartStage, ...] = ()

    @property
    def usable_slots(self) -> int:
        """Those that the cache has room for, as far as it is known."""
        return self.slots if self.row_limit is None else min(self.slots, self.row_limit)


def engines_acceptance(replicas: Iterable[ReplicaStats]) -> Acceptance:
    """What their engines have counted since they started; those without counters add nothing."""
    counted = (stats.counters.acceptance for stats in replicas)
    return sum((acceptance for acceptance in counted if acceptance is not None), Acceptance())


@dataclass(frozen=True, slots=True)
class GenerationSteps:
    """The steps of one generation: of this row, round and turn. Only a pilot has any."""

    ordinal: int
    round: int
    turn: int
    steps: StepTrace


@dataclass(frozen=True, slots=True)
class ExchangeRequest:
    """All that a worker holds, and what is new. The lists are the truth: see `run/schedule.py`.

    `running` and `awaiting` are ordinals: rows being made, and finished rows sent before that were not committed yet.
    `running_tokens` says how many output tokens each of `running` has so far, over all its turns; it may be empty.
    `finished` are new rows as one Arrow stream (`rows.to_bytes`), empty when there are none; `steps` are theirs, in a
    pilot, and are said once: what a lost exchange held is not known.
    """

    worker: WorkerId
    session: str
    seq: int
    running: tuple[int, ...]
    awaiting: tuple[int, ...]
    finished: bytes
    failed: tuple[FailedAttempt, ...]
    free_slots: int
    stats: ReplicaStats
    wants_warmup: bool = False
    steps: tuple[GenerationSteps, ...] = ()
    running_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExchangeReply:
    """`settled` ordinals need not be held any more; `resend` are finished rows that the coordinator does not have.

    `warmup` are rows to warm up with, only for a worker that asked for them (`wants_warmup`): they are not leased, and
    nothing of them is kept. None: they cannot be had now. `why` goes with `DISMISS`.
    """

    command: Command
    settled: tuple[int, ...] = ()
    resend: tuple[int, ...] = ()
    leases: tuple[Lease, ...] = ()
    warmup: tuple[PlannedRow, ...] | None = None
    why: str = ""


class Left(StrEnum):
    """Why a worker has ended by itself."""

    STOPPED = "stopped"
    REPLACED = "replaced"  # the next engine of this slot is wanted
    RELEASED = "released"  # nobody wants an engine there now


@dataclass(frozen=True, slots=True)
class Death:
    """How an engine ended that may have died of its rows. `is_stall`: it gave no token any more; `told` for people."""

    is_stall: bool
    told: str


@dataclass(frozen=True, slots=True)
class Toll:
    """What the end of an engine has meant.

    `narrows`: it told suspects apart, or showed which row kills engines; `is_proven`: before, the engine had finished
    rows enough to be a good one, `has_worked`: one row or more; `suspects` are rows under suspicion now, `condemned`
    rows that are so no longer, since they were found to kill engines.
    """

    narrows: bool = False
    is_proven: bool = False
    suspects: int = 0
    condemned: int = 0
    has_worked: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """Where the driver has engines, by slot: on a node, waiting for one, and never again in this session.

    `placed` are all that have a process: each may hold rows that a restarted coordinator has forgotten.
    """

    placed: frozenset[int] = frozenset()
    pending: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()


# --- totals --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceTotals:
    """What the run has made of one source. `lengths` counts rows by their output tokens, by bucket of
    `regen.length_buckets`; `acceptance` leaves degenerate rows out: a loop is easy to draft, and tells nothing.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    generations: int = 0
    lengths: tuple[int, ...] = ()
    acceptance: Acceptance = Acceptance()


@dataclass(frozen=True, slots=True)
class ReplicaTotals:
    """What one slot's engines have made, degenerate rows among it."""

    output_tokens: int = 0
    generations: int = 0
    acceptance: Acceptance = Acceptance()


@dataclass(frozen=True, slots=True)
class Totals:
    """What the store says is done: recomputed by replay, so that no number falls or counts twice.

    `outcomes` by source and status, `reasons` of rows that are not ok, by status and reason; `replicas` are outcomes by
    the slot that made them and status, `labels` generations by source and `Label`. Tokens and generations are those
    that the run has made: native rows are among the outcomes only. `by_source` and `by_replica` say the same in parts;
    `by_length` is the acceptance of generations by the bucket of their own length, degenerate rows left out.
    """

    outcomes: Mapping[tuple[str, Status], int] = field(default_factory=dict)
    reasons: Mapping[tuple[Status, str], int] = field(default_factory=dict)
    replicas: Mapping[tuple[int, Status], int] = field(default_factory=dict)
    labels: Mapping[tuple[str, Label], int] = field(default_factory=dict)
    prompt_tokens: int = 0
    output_tokens: int = 0
    generations: int = 0
    acceptance: Acceptance = Acceptance()
    by_source: Mapping[str, SourceTotals] = field(default_factory=dict)
    by_replica: Mapping[int, ReplicaTotals] = field(default_factory=dict)
    by_length: Mapping[int, Acceptance] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return sum(self.outcomes.values())

    def by_status(self) -> dict[Status, int]:
        """Counts over all sources, every status present."""
        counts = dict.fromkeys(Status, 0)
        for (_, status), count in self.outcomes.items():
            counts[status] += count
        return counts


class EtaState(StrEnum):
    WARMING = "warming"  # too little is seen
    ESTIMATING = "estimating"
    STALLED = "stalled"  # no token comes: the seconds are those from when they come again
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds from now to the end: the 10th, 50th and 90th percentile; None while nothing can be said.

    `naive_seconds` is what the rows that this session has finished would say: too little, since short rows end first.
    """

    state: EtaState
    low_seconds: float | None = None
    mid_seconds: float | None = None
    high_seconds: float | None = None
    naive_seconds: float | None = None


class SlotState(StrEnum):
    """What one sequence of an engine was doing."""

    BUSY = "busy"
    STARVED = "starved"  # free, and rows wait: the feeder is too slow
    HELD_BACK = "held_back"  # free, and no rows are handed out: the store is away or uncommitted bytes are at their cap
    NO_ROWS = "no_rows"  # free, and nothing is left for it: the tail, a drain
    STARTING = "starting"  # its engine starts or warms up
    GONE = "gone"  # there is no engine
    RELEASED = "released"  # there is none, and none is wanted: nothing is held


class RetryReason(StrEnum):
    """Why an attempt at a row failed, for counting."""

    ENGINE_ERROR = "engine_error"
    FINISHED_ABORT = "finished_abort"  # the engine ended the request by itself
    FINISHED_ERROR = "finished_error"
    INTERNAL_ERROR = "internal_error"
    STALLED = "stalled"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SlotTally:
    """What has happened in one replica slot since the run began, over all its engines and sessions.

    `slot_seconds` are seconds times sequences; `engine_seconds` those that an engine was held, starting or running;
    `gpu_seconds` are the same times the GPUs that it held then. None has the time without a coordinator. Tokens are
    the engines' own counts, warm-ups and dropped rows among them. `starts` are
    engines that were begun, `restarts` those of them that were not the first of a session; `stalls` are rows and
    engines that were given up because no token came, or no word.
    """

    engine_seconds: float = 0.0
    gpu_seconds: float = 0.0
    sampled_tokens: int = 0
    computed_prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    starts: int = 0
    restarts: int = 0
    stalls: int = 0
    slot_seconds: Mapping[SlotState, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts that no finished row carries, since the run began; the journal keeps them (store/control.py).

    `retries` are failed attempts by `RetryReason`; `store_errors` counts each time that the store was waited for.
    """

    slots: Mapping[int, SlotTally] = field(default_factory=dict)
    retries: Mapping[RetryReason, int] = field(default_factory=dict)
    store_errors: int = 0
    coordinator_restarts: int = 0

    @property
    def failed_attempts(self) -> int:
        return sum(self.retries.values())

    @property
    def restarts(self) -> int:
        """Of engines."""
        return sum(slot.restarts for slot in self.slots.values())

    @property
    def stalls(self) -> int:
        return sum(slot.stalls for slot in self.slots.values())

    @property
    def gpu_seconds(self) -> float:
        return sum(slot.gpu_seconds for slot in self.slots.values())


@dataclass(frozen=True, slots=True)
class SpeculationStatus:
    """What is known of speculation now: by replica slot the arm of its engine and the latest verdict on it.

    `phase` is `off`, `configured` (as the spec has it), `calibrating` or `decided`; `decisions` are sentences for
    people, the newest last. `cells` say how drafts fare by source, prompt length and position (speculative/guard.py).
    """

    phase: str = "off"
    arms: Mapping[int, str] = field(default_factory=dict)
    verdicts: Mapping[int, str] = field(default_factory=dict)
    decisions: tuple[str, ...] = ()
    cells: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class CoordinatorStatus:
    """What the driver and the progress line read. `error` is set when `phase` is `failed`.

    `left` are rows of the plan that are still to be made, for the first time or again.
    `incarnation` differs after every restart of the coordinator; `commits` counts journal files and never falls;
    `hung` are slots whose process says nothing any more; `store_error` is set while the store is away.
    `suspects` are rows that run apart because engines died with them (run/fleet/suspects.py); `dismissed` says of which
    engines the answers were garbage, since this coordinator began.
    `session_sampled_tokens` are what engines have sampled since they started: more than what was received of this
    session's rows where work was lost or dropped. `session_paced_tokens`, for rates, are those that were sampled for
    rows while this coordinator looked on. `useful_tokens_per_second` are those of the last minutes, None before there
    are any. `queued` rows are with nobody; `reopened` ones are wanted once more; `tally` is what the journal has of it,
    so that no count falls; `credentials_seconds_left` until the store's keys end, None where that is not known.
    `open_slots` are those that have an engine, or are to have one: the driver starts what is missing (fleet/roster.py).
    `pending_slots` are those of them that no node has room for yet.
    """

    incarnation: str
    phase: Phase
    planned: int
    totals: Totals
    in_flight: int
    uncommitted_rows: int
    commits: int
    replicas: Mapping[int, ReplicaStats]
    session_output_tokens: int
    session_sampled_tokens: int
    session_paced_tokens: int
    session_rows: int
    session_seconds: float
    hung: tuple[int, ...] = ()
    speculation: SpeculationStatus = SpeculationStatus()
    metrics_url: str | None = None
    store_error: str | None = None
    error: RegenError | None = None
    left: int = 0
    suspects: int = 0
    dismissed: tuple[str, ...] = ()
    queued: int = 0
    reopened: int = 0
    uncommitted_bytes: int = 0
    useful_tokens_per_second: float | None = None
    eta: Eta = Eta(EtaState.WARMING)
    tally: Tally = Tally()
    loop_lag_seconds: float = 0.0
    last_commit_age_seconds: float = 0.0
    credentials_seconds_left: float | None = None
    published: Totals | None = None
    open_slots: frozenset[int] = frozenset()
    pending_slots: frozenset[int] = frozenset()
