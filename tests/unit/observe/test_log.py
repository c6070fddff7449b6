"""regen's own lines: text or JSON, one line each, without secrets, whoever reads them."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator

import pytest

from regen.errors import RunHeld
from regen.observe.changes import Event, Level
from regen.observe.json_lines import JsonLines, for_machines
from regen.observe.log import Log, LogFormat, without_secrets
from tests.terminal_facts import FULL

SECRETS = {"AWS_SECRET_ACCESS_KEY": "s3cr3t-s3cr3t", "HF_TOKEN": "hf_abcdefgh", "SHORT_KEY": "abc", "PATH": "/usr/bin"}


def log(log_format: LogFormat, stream: io.StringIO) -> Log:
    made = Log(log_format, lambda: stream, SECRETS, lambda: "2026-01-01T00:00:00.000+00:00")
    made.session = "5e55"
    return made


def test_text_is_the_sentence_and_json_has_time_level_session_and_event() -> None:
    text, lines = io.StringIO(), io.StringIO()
    log(LogFormat.TEXT, text)("one\ntwo")
    told = log(LogFormat.JSON, lines)
    told("one\ntwo")
    told.event(Event("stalled", "no token", Level.WARNING))
    told.error("no such spec", 2)
    assert text.getvalue() == "one\ntwo\n"
    assert [json.loads(line) for line in lines.getvalue().splitlines()] == [
        {
            "time": "2026-01-01T00:00:00.000+00:00",
            "level": level,
            "session": "5e55",
            "event": event,
            "text": said,
            **more,
        }
        for level, event, said, more in (
            ("info", "log", "one\ntwo", {}),
            ("warning", "stalled", "no token", {}),
            ("error", "error", "no such spec", {"exit_code": 2}),
        )
    ]


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_values_of_secrets_are_never_in_a_line(log_format: LogFormat) -> None:
    stream = io.StringIO()
    told = log(log_format, stream)
    told("signed with s3cr3t-s3cr3t")
    told.error("token hf_abcdefgh refused", 7)
    assert "s3cr3t" not in stream.getvalue()
    assert "hf_abc" not in stream.getvalue()
    assert "[AWS_SECRET_ACCESS_KEY]" in stream.getvalue()


def test_nothing_comes_after_the_end() -> None:
    """The display's thread may be behind a slow reader by then."""
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.end("finished", 0)
    lines.status(FULL)
    lines.event(Event("log", "late"))
    assert stream.getvalue().count("\n") == 1


def test_text_of_strangers_moves_no_cursor() -> None:
    stream = io.StringIO()
    told = log(LogFormat.TEXT, stream)
    told("it said \x1b[2J\r")
    told.error("drift:\n  one \x1b[31m\n  two", 5)
    assert stream.getvalue() == "it said  [2J \nregen: drift:\n  one  [31m\n  two\n"


def test_what_is_no_secret_stays() -> None:
    assert without_secrets("abc in /usr/bin", SECRETS) == "abc in /usr/bin"


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_has_gone_ends_nothing() -> None:
    gone = Gone()
    log(LogFormat.TEXT, gone)("x")
    JsonLines(gone).status(FULL)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A library's own, with a handler of its own, as Ray has it; and the warnings as they were."""
    made = logging.getLogger("a_library")
    made.propagate = False
    yield made
    logging.captureWarnings(False)
    made.handlers.clear()


def test_libraries_follow_the_format(logger: logging.Logger) -> None:
    theirs, ours = io.StringIO(), io.StringIO()
    logger.addHandler(logging.StreamHandler(theirs))
    told = log(LogFormat.JSON, ours)
    root = list(logging.root.handlers)
    formatters = [handler.formatter for handler in root]
    told.adopt_loggers()
    logger.warning("key %s", "s3cr3t-s3cr3t")
    for handler, formatter in zip(root, formatters, strict=True):
        handler.setFormatter(formatter)
    assert json.loads(theirs.getvalue()) == {
        "time": "2026-01-01T00:00:00.000+00:00",
        "level": "warning",
        "session": "5e55",
        "event": "a_library",
        "text": "key [AWS_SECRET_ACCESS_KEY]",
    }


def test_machines_get_every_kind_of_line_with_schema_session_and_time() -> None:
    stream = io.StringIO()
    lines = JsonLines(stream, lambda: "now")
    lines.session = "5e55"
    lines.status(FULL)
    lines.event(Event("suspects", "3 rows", Level.WARNING))
    lines.end("finished", 0)
    lines.end("again", 1)
    status, event, end = map(json.loads, stream.getvalue().splitlines())
    assert all((line["schema"], line["session"], line["at"]) == (1, "5e55", "now") for line in (status, event, end))
    assert (status["kind"], status["done"]) == ("status", 41_300)
    assert (event["kind"], event["event"], event["level"]) == ("event", "suspects", "warning")
    assert (end["kind"], end["outcome"], end["exit_code"], end["error"]) == ("end", "finished", 0, None)


def test_an_error_is_the_last_line_and_prints_of_others_do_not_come_between(capfd: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        with for_machines(True):
            os.write(1, b"a library says hello\n")
            raise RunHeld("somebody runs it")

    with pytest.raises(RunHeld):
        command()
    out, err = capfd.readouterr()
    end = json.loads(out)
    assert (end["outcome"], end["exit_code"], end["error"]) == ("failed", 4, "somebody runs it")
    assert "hello" in err


def test_without_json_nothing_is_moved(capfd: pytest.CaptureFixture[str]) -> None:
    with for_machines(False) as lines:
        os.write(1, b"a table\n")
    assert lines is None
    assert capfd.readouterr().out == "a table\n"
