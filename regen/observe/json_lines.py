"""What `--json` writes to the standard output of a run: one JSON object a line, for machines (docs/terminal.md).

Guarantees: nothing but these lines reaches the standard output, whatever libraries print; the last line is the `end`,
with the exit code; a reader that goes away does not end the run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TextIO

from regen.errors import ExitCode, RegenError
from regen.observe import terminal
from regen.observe.changes import Event
from regen.observe.terminal_facts import TerminalFacts

SCHEMA = 1
# As a shell has it for a process that Ctrl-C ended.
_INTERRUPTED = 130


class JsonLines:
    """Writes to `stream`; `kind` is `status`, `event` or `end`."""

    def __init__(
        self,
        stream: TextIO,
        time_of_day: Callable[[], str] = lambda: datetime.now(UTC).isoformat(timespec="milliseconds"),
    ) -> None:
        self._stream = stream
        self._time_of_day = time_of_day
        self.session = ""
        self._has_ended = False

    def status(self, facts: TerminalFacts) -> None:
        if not self._has_ended:
            self._write("status", terminal.to_json(facts))

    def event(self, event: Event) -> None:
        if not self._has_ended:
            self._write("event", {"event": event.kind, "level": event.level.value, "text": event.text})

    def end(self, outcome: str, exit_code: int, error: str | None = None) -> None:
        """The last line: how the command ends. Said once."""
        if not self._has_ended:
            self._has_ended = True
            self._write("end", {"outcome": outcome, "exit_code": int(exit_code), "error": error})

    def _write(self, kind: str, more: Mapping[str, Any]) -> None:
        line = {"schema": SCHEMA, "kind": kind, "at": self._time_of_day(), "session": self.session, **more}
        with suppress(OSError, ValueError):  # closed, or nobody reads it
            print(json.dumps(line), file=self._stream, flush=True)


@contextmanager
def output_on_stderr() -> Iterator[TextIO]:
    """Whatever this process and what it starts print goes to stderr; yields the standard output as it was."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    stream = os.fdopen(kept, "w", encoding="utf-8", errors="backslashreplace")
    try:
        yield stream
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            stream.flush()
        os.dup2(kept, 1)
        with suppress(OSError):  # what could not be flushed is tried once more, for a reader that is gone
            stream.close()


@contextmanager
def for_machines(wanted: bool) -> Iterator[JsonLines | None]:
    """Lines on the standard output, and everything else on stderr; None if nobody wants them.

    A command that an error, or Ctrl-C, ends has its `end` line, too.
    """
    if not wanted:
        yield None
        return
    with output_on_stderr() as stream:
        lines = JsonLines(stream)
        try:
            yield lines
        except RegenError as error:
            lines.end("failed", error.exit_code, str(error))
            raise
        except KeyboardInterrupt:
            lines.end("interrupted", _INTERRUPTED)
            raise
        except Exception as error:
            lines.end("failed", ExitCode.FAILED, f"{type(error).__name__}: {error}")
            raise


@contextmanager
def engine_output_on_stderr(verbosity: int) -> Iterator[None]:
    """An engine in this process writes its log to the standard output, where a reader of JSON has no use for it."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", ("ERROR", "INFO", "DEBUG")[min(verbosity, 2)])
    with output_on_stderr():
        yield
