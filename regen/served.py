"""A model that somebody else serves, as the server tells it: values that reading makes and the doctor judges. Pure.

What a server does not disclose is None or empty here, and never guessed. Absent counters are not zero counters:
`Counters.by_rank` is empty for the one, and holds zeros for the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from regen.records import Acceptance


class ServerKind(StrEnum):
    """Whose server it is, by what it answers."""

    VLLM = "vllm"
    SGLANG = "sglang"
    OTHER = "other"


class Route(StrEnum):
    """How prompts are sent. Only a chat route applies the target's chat template."""

    CHAT = "chat"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Speculation:
    """What the server discloses. `method` in its own word, None where it says that speculation is off.

    `settings` are those of its speculative settings that are numbers, words or lists, by the server's own names.
    """

    method: str | None
    draft: str | None = None
    num_tokens: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server is. `speculation` is None where it discloses nothing of it; lengths in tokens.

    `is_deterministic`: an SGLang server with --enable-deterministic-inference, in which alone seeds have an effect.
    `longest_tokens` is what prompt and cap may have together: SGLang takes less than its context. `answers_as` is the
    name in its answers, where that is not the one that it was asked by.
    """

    url: str
    kind: ServerKind
    model: str
    version: str | None = None
    model_path: str | None = None
    context_tokens: int | None = None
    speculation: Speculation | None = None
    is_deterministic: bool | None = None
    longest_tokens: int | None = None
    answers_as: str | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """The server's own totals at one moment.

    `by_rank`: raw speculation counters per engine (data-parallel rank); empty where there are none. `averages`: accept
    lengths that the server computed since its start, per rank, None before the first verification. `is_reported`:
    whether it gives any statistics at all, so that absent ones mean something. `is_refused`: not this time.
    """

    is_reported: bool
    by_rank: Mapping[str, Acceptance] = field(default_factory=dict)
    output_tokens: int | None = None
    averages: Mapping[str, float | None] = field(default_factory=dict)
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of our own. `error` says why there is no answer.

    `acceptance` are the server's raw counters for this request, None where it gives none. `said_accept_length` is what
    the server computed for it: shown beside ours, never used.
    """

    temperature: float
    output_tokens: int | None = None
    acceptance: Acceptance | None = None
    rank: str | None = None
    said_accept_length: float | None = None
    error: str | None = None


class Fate(StrEnum):
    """What the server did with a sampling parameter. IGNORED is known of the server's source, not seen from outside."""

    TAKEN = "taken"
    REFUSED = "refused"
    IGNORED = "ignored"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Probe:
    """One sampling parameter. `blames_speculation`: the refusal itself says that speculation is why."""

    parameter: str
    fate: Fate
    detail: str = ""
    blames_speculation: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests at one temperature, and the server's totals around them."""

    temperature: float
    before: Counters
    after: Counters
    requests: tuple[Asked, ...]
