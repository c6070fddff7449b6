"""regen's own log lines: text for people, or one JSON object a line for what collects logs.

Guarantees: one JSON line an event, whatever is in it, and in text nothing that a terminal would obey; a reader that
goes away ends nothing; the values of the environment's secrets are never in a line. Python's own loggers (Ray's,
boto's) follow the format, in this process.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

from regen.observe.changes import Event, Level
from regen.observe.terminal import one_line

FORMAT_VARIABLE = "REGEN_LOG_FORMAT"
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST_SECRET = 8


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class Log:
    """Writes to the standard error output of the moment. Call it with a sentence, or `event` with more."""

    def __init__(
        self,
        log_format: LogFormat = LogFormat.TEXT,
        stream: Callable[[], TextIO] = lambda: sys.stderr,
        environment: Mapping[str, str] = os.environ,
        time_of_day: Callable[[], str] = lambda: datetime.now(UTC).isoformat(timespec="milliseconds"),
    ) -> None:
        self.format = log_format
        self.session = ""
        self._stream = stream
        self._environment = environment
        self._time_of_day = time_of_day

    def __call__(self, text: str) -> None:
        """One line for a person."""
        self.event(Event("log", text, Level.WARNING if text.startswith("warning:") else Level.INFO))

    def event(self, event: Event) -> None:
        text = self._harmless(event.text)
        line = text if self.format is LogFormat.TEXT else self._json(event.kind, event.level, text)
        with suppress(OSError, ValueError):  # closed, or nobody reads it
            print(line, file=self._stream(), flush=True)

    def error(self, text: str, exit_code: int) -> None:
        """The last line of a command that failed."""
        told = self._harmless(text)
        line = f"regen: {told}" if self.format is LogFormat.TEXT else self._json("error", Level.ERROR, told, exit_code)
        with suppress(OSError, ValueError):
            print(line, file=self._stream(), flush=True)

    def adopt_loggers(self) -> None:
        """Every handler that Python's loggers have writes in this format from here on. Text: they stay as they are."""
        if self.format is LogFormat.TEXT:
            return
        formatter = _JsonFormatter(self)
        if not logging.root.handlers:
            logging.basicConfig(level=logging.WARNING)
        for logger in (logging.root, *map(logging.getLogger, list(logging.root.manager.loggerDict))):
            for handler in logger.handlers:
                handler.setFormatter(formatter)
        logging.captureWarnings(True)

    def _harmless(self, text: str) -> str:
        """Its lines, without what a terminal would obey."""
        return "\n".join(map(one_line, without_secrets(text, self._environment).split("\n")))

    def _json(self, kind: str, level: Level | str, text: str, exit_code: int | None = None) -> str:
        more = {} if exit_code is None else {"exit_code": int(exit_code)}
        return json.dumps(
            {"time": self._time_of_day(), "level": str(level), "session": self.session, "event": kind, "text": text}
            | more
        )

    def json_of(self, record: logging.LogRecord) -> str:
        """A record of a library's logger."""
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        return self._json(record.name, record.levelname.lower(), without_secrets(text, self._environment))


class _JsonFormatter(logging.Formatter):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def format(self, record: logging.LogRecord) -> str:
        return self._log.json_of(record)


def accept_any_text() -> None:
    """In a locale without UTF-8 a `?` stands for what it has no sign for; else printing it would raise."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """The text with the values of variables that are named like secrets taken out."""
    for name, value in environment.items():
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET and value in text:
            text = text.replace(value, f"[{name}]")
    return text
