"""The shells around what is drawn: which view where, and what reaches the terminal."""

from __future__ import annotations

import io
import threading

import pytest

from regen.observe.changes import Event, Level
from regen.observe.json_lines import JsonLines
from regen.observe.live import Aside, BlockView, Display, JsonView, LineView, TirelessConsole, display
from regen.observe.log import Log, LogFormat
from regen.observe.terminal_facts import TerminalFacts
from tests.terminal_facts import FULL, facts


def terminal(width: int = 80, encoding: str = "utf-8", **environment: str) -> tuple[TirelessConsole, io.BytesIO]:
    """A console on a terminal of these, and what reaches it."""
    out = io.BytesIO()
    stream = io.TextIOWrapper(out, encoding=encoding, errors="replace", write_through=True)
    names = {"TERM": "xterm-256color", **environment}
    return TirelessConsole(file=stream, force_terminal=True, width=width, height=24, _environ=names), out


def drawn(*looks: TerminalFacts, width: int = 80, encoding: str = "utf-8", **environment: str) -> bytes:
    console, out = terminal(width, encoding, **environment)
    with display(console, Log()) as shown:
        for look in looks:
            shown(look)
    return out.getvalue()


def test_on_a_terminal_a_block_is_redrawn_over_itself_and_removed_at_the_end() -> None:
    out = drawn(FULL, facts(left=0))
    assert out.count(b"my-run") >= 2
    assert b"\x1b[1A\x1b[2K" in out
    assert out.endswith(b"\x1b[2K")
    assert b"\x1b[?25l" not in out, "the cursor is never hidden"


def test_colours_follow_no_color() -> None:
    assert b"\x1b[32m" in drawn(FULL)
    assert b"\x1b[32m" not in drawn(FULL, NO_COLOR="1")


def test_a_dumb_terminal_gets_lines() -> None:
    out = drawn(FULL, FULL, TERM="dumb")
    assert b"\x1b" not in out
    assert out.count(b"running: 41,300 of 100,000 rows") == 1


def test_without_utf_8_there_are_ascii_signs_and_hostile_names_do_no_harm() -> None:
    out = drawn(facts(name="日本語", store_error="é ☃ [bold]no[/] \x1b[2J"), encoding="ascii")
    assert out.isascii()
    assert b"####" in out
    assert b"[bold]no[/]" in out
    assert b"\x1b[2J" not in out


HOSTILE = "EngineDied: \x1b]0;owned\x07\x1b[2J\x9b31mred\r\nregen: finished \u202e"


@pytest.mark.parametrize("environment", [{}, {"TERM": "dumb"}])
def test_what_an_engine_says_moves_no_cursor_and_is_one_line(environment: dict[str, str]) -> None:
    console, out = terminal(200, **environment)
    lines = io.StringIO()
    with display(console, Log(), JsonLines(lines)) as shown:
        shown.say(HOSTILE)
    text = out.getvalue().decode()
    assert "EngineDied" in text
    assert not {"\x1b", "\x9b", "\x07", "\r", "\u202e"} & set(text)
    assert text.count("\n") == 1
    assert "u001b" not in lines.getvalue()


def test_a_secret_that_an_error_quotes_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    console, out = terminal(TERM="dumb")
    with display(console, Log()) as shown:
        shown.say("401 for hf_abcdefgh")
    assert out.getvalue() == b"401 for [HF_TOKEN]\n"


class HungUp(io.StringIO):
    """A terminal whose line is cut."""

    is_gone = False

    def write(self, text: str) -> int:
        if self.is_gone:
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_a_terminal_that_has_hung_up_does_not_end_the_command() -> None:
    """Else nothing would be sealed."""
    stream = HungUp()
    console = TirelessConsole(file=stream, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    with display(console, Log()) as shown:
        shown(FULL)
        stream.is_gone = True


class Stopped(io.StringIO):
    """A terminal after Ctrl-S: it takes nothing until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def write(self, text: str) -> int:
        assert self.goes_on.wait(60)
        return super().write(text)


def test_a_terminal_that_takes_nothing_holds_up_nobody() -> None:
    stream = Stopped()
    console = TirelessConsole(file=stream, force_terminal=True, width=80, _environ={"TERM": "dumb"})
    with Aside(display(console, Log()), patience_seconds=0.01) as shown:
        for number in range(200):
            shown(facts(left=200 - number))
        shown.say("draining")
    assert stream.getvalue() == ""
    stream.goes_on.set()
    shown._thread.join(60)
    assert "draining" in stream.getvalue()
    assert stream.getvalue().count("\n") < 10, "what was to be seen meanwhile is old"


def test_what_a_display_raises_is_not_the_runs() -> None:
    class Broken:
        def facts(self, facts: TerminalFacts) -> None:
            raise ValueError("no room")

        def event(self, event: Event) -> None:
            said.append(event.text)

        def close(self) -> None:
            said.append("closed")

    said: list[str] = []
    with Aside(Display([Broken()], hears_driver=True)) as shown:
        shown(FULL)
        shown.say("still here")
    assert said[-2:] == ["still here", "closed"]


def test_a_narrower_terminal_leaves_what_it_has_folded_and_begins_anew() -> None:
    console, out = terminal(100)
    view = BlockView(console)
    view.facts(FULL)
    before = len(out.getvalue())
    console.width = 50
    view.facts(FULL)
    assert b"\x1b[1A" not in out.getvalue()[before:], "nothing above is written over"
    assert max(len(line) for line in out.getvalue()[before:].decode().split("\n") if "\x1b" not in line) < 50
    view.facts(FULL)
    assert b"\x1b[1A" in out.getvalue()[before:], "and then over itself again"
    view.close()


def test_json_logs_are_for_people_nothing_else() -> None:
    console, out = terminal()
    stream = io.StringIO()
    with display(console, Log(LogFormat.JSON, lambda: stream)) as shown:
        shown(FULL)
    assert out.getvalue() == b""
    assert '"event": "progress"' in stream.getvalue()


def test_a_line_comes_with_a_change_of_phase_and_else_now_and_then() -> None:
    written: list[Event] = []
    times = iter([0.0, 1.0, 2.0, 11.0])
    view = LineView(written.append, lambda: next(times))
    for look in (FULL, FULL, facts(phase="draining"), facts(phase="draining")):
        view.facts(look)
    view.event(Event("phase", "phase: draining"))
    view.event(Event("suspects", "3 rows"))
    assert [event.text.split(":")[0] for event in written] == ["running", "draining", "draining", "3 rows"]


@pytest.mark.parametrize("seconds", [0.1, 5.0])
def test_machines_get_a_status_a_second_and_the_last_one(seconds: float) -> None:
    stream = io.StringIO()
    times = iter([seconds * count for count in range(1, 30)])
    view = JsonView(JsonLines(stream), now=lambda: next(times))
    for left in (3, 2, 1, 0):
        view.facts(facts(left=left))
    view.close()
    lines = stream.getvalue().splitlines()
    assert '"left": 0' in lines[-1]
    assert len(lines) == (2 if seconds < 1 else 4)


class Deaf:
    """A view that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def facts(self, facts: TerminalFacts) -> None: ...

    def event(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None: ...


def test_what_the_driver_says_and_what_has_changed_reach_every_view() -> None:
    one, other = Deaf(), Deaf()
    with Display([one, other], hears_driver=True) as shown:
        shown(FULL)
        shown.say("replica 0 is gone")
        shown(facts(store_error="away"))
    assert one.events == other.events
    assert [(event.kind, event.level) for event in one.events] == [
        ("phase", Level.INFO),
        ("log", Level.INFO),
        ("store_away", Level.WARNING),
    ]


def test_what_flaps_is_held_back_and_what_the_driver_says_never_is() -> None:
    view = Deaf()
    with Display([view], hears_driver=True) as shown:
        for _ in range(100):
            shown(FULL)
            shown(facts(store_error="away"))
            shown.say("draining")
    kinds = [event.kind for event in view.events]
    assert kinds.count("store_away") == 60
    assert kinds.count("log") == 100
