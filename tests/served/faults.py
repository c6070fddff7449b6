"""What goes wrong at a stand-in server, as scripted: by request number, or by chance with a seed.

    Script(Fault(Kind.STATUS, status=429, retry_after="2", times=3), Fault(Kind.DROP, numbers=frozenset({5}), tokens=8))

Each request is held against the faults in their order, and the first that fits strikes. A fault counts the requests at
its `path` for itself, from 1: `numbers` are the ones that it strikes; without them `after` lets so many pass, then
every `every`-th is struck with the probability `share`, `times` times (None: for ever). Draws come from `seed` alone.

    STATUS      `status` with an error in the server's own form; `retry_after` is a header
    HANG        taken, and never answered (for `seconds`, or until the server ends)
    SLOW        `tokens_per_second` for this answer
    STALL       after `tokens` tokens nothing more for `seconds` (None: for ever); before any of it if not streamed
    DROP        the connection is cut after `tokens` tokens (0: after the header); before any byte if not streamed
    TRUNCATE    the header promises the whole answer, half of it comes, then the connection is closed
    SHORT       half of the answer, and a Content-Length that fits it: HTTP has nothing to object to. Of a stream the
                second half of the events is missing, the last one included; `[DONE]` too
    BROKEN      the answer is no JSON
    NOT_OBJECT  the answer is JSON, and a list
    MISSING     `fields` are absent from the answer, at whatever depth
    WRONG_MODEL the answer names another model
    FEWER_IDS   the last id is missing; the usage counts it
    ODD_IDS     one id is no id: negative
    TEXT_IDS    ids come as text
    OTHER_PROMPT the prompt's ids that come back are not those that were sent
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

GENERATION = "generation"


class Kind(StrEnum):
    STATUS = "status"
    HANG = "hang"
    SLOW = "slow"
    STALL = "stall"
    DROP = "drop"
    TRUNCATE = "truncate"
    SHORT = "short"
    BROKEN = "broken"
    NOT_OBJECT = "not_object"
    MISSING = "missing"
    WRONG_MODEL = "wrong_model"
    FEWER_IDS = "fewer_ids"
    ODD_IDS = "odd_ids"
    TEXT_IDS = "text_ids"
    OTHER_PROMPT = "other_prompt"


@dataclass
class Fault:
    """See the module. `path` is `generation` for whatever makes tokens, else a pattern as in fnmatch."""

    kind: Kind
    numbers: frozenset[int] = frozenset()
    after: int = 0
    every: int = 1
    times: int | None = 1
    share: float = 1.0
    seed: int = 0
    path: str = GENERATION
    status: int = 503
    retry_after: str | None = None
    seconds: float | None = None
    tokens: int = 0
    tokens_per_second: float = 10.0
    fields: tuple[str, ...] = ("usage",)
    seen: int = 0
    struck: int = 0
    _draw: random.Random | None = field(default=None, repr=False)

    def strikes(self, path: str, makes_tokens: bool) -> bool:
        """Counts the request if it is at this fault's path."""
        if not (makes_tokens if self.path == GENERATION else fnmatchcase(path, self.path)):
            return False
        self.seen += 1
        if not self._is_due():
            return False
        self.struck += 1
        return True

    def _is_due(self) -> bool:
        if self.numbers:
            return self.seen in self.numbers
        late = self.seen - self.after
        if late <= 0 or late % self.every or (self.times is not None and self.struck >= self.times):
            return False
        self._draw = self._draw or random.Random(self.seed)
        return self._draw.random() < self.share


class Script:
    """The faults of one server; may be changed while it runs, from any thread."""

    def __init__(self, *faults: Fault) -> None:
        self.struck: list[Kind] = []
        self._faults = list(faults)
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """No faults from now on."""
        with self._lock:
            self._faults.clear()

    def strike(self, path: str, makes_tokens: bool) -> Fault | None:
        """What befalls this request."""
        with self._lock:
            # All count it, also those behind the one that strikes: a fault's numbers do not depend on the others.
            due = [fault for fault in self._faults if fault.strikes(path, makes_tokens)]
            if not due:
                return None
            for late in due[1:]:
                late.struck -= 1
            self.struck.append(due[0].kind)
            return due[0]


def faults_from(values: list[dict[str, Any]]) -> list[Fault]:
    """Faults as JSON has them: by the names of the fields."""
    found = []
    for value in values:
        given = {**value, "kind": Kind(value["kind"])}
        for name, make in (("numbers", frozenset), ("fields", tuple)):
            if name in given:
                given[name] = make(given[name])
        found.append(Fault(**given))
    return found
