"""What a person sees while a run lives: a block that is redrawn in place on a terminal, plain lines elsewhere.

Nothing is decided here: terminal_facts.py says what is known, terminal.py how it reads, changes.py what is news.
The cursor is never hidden, so that a terminal is whole whatever ends this process, kill -9 included.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.live_render import LiveRender
from rich.text import Text

from regen.observe.changes import Changes, Event, Level, PlainPace, Ration
from regen.observe.json_lines import JsonLines
from regen.observe.log import Log, LogFormat, without_secrets
from regen.observe.terminal import Tone, block, one_line, plain_line
from regen.observe.terminal_facts import TerminalFacts

# A reader that falls behind: more looks than that are not kept for it, nor more sentences.
_MOST_WAITING, _MOST_SENTENCES = 5, 1000
_STYLES = {Tone.PLAIN: "", Tone.QUIET: "dim", Tone.GOOD: "green", Tone.WARN: "yellow", Tone.BAD: "red"}
_LEVEL_STYLES = {Level.INFO: "", Level.WARNING: "yellow", Level.ERROR: "red"}


class TirelessConsole(Console):
    """A console whose reader may go away: from then on it is silent. rich's own ends the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails at its last flush

    def show_cursor(self, show: bool = True) -> bool:
        """It always shows."""
        return False


class View(Protocol):
    """One way to show a run."""

    def facts(self, facts: TerminalFacts) -> None: ...

    def event(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Display(AbstractContextManager["Display"]):
    """Shows each look at a run, and what has changed, in all its views. Watching cannot end a run: see the driver."""

    def __init__(self, views: list[View], hears_driver: bool) -> None:
        self._views = views
        self._changes = Changes(hears_driver)
        self._ration = Ration()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for view in self._views:
            with suppress(OSError, ValueError):  # a terminal that has gone: what the run has made is yet to be sealed
                view.close()

    def __call__(self, facts: TerminalFacts) -> None:
        for event in self._changes.see(facts):
            if (allowed := self._ration.allows(event, time.monotonic())) is not None:
                self._event(allowed)
        for view in self._views:
            view.facts(facts)

    def say(self, text: str) -> None:
        """A line that stays, and is never held back: an answer to Ctrl-C comes this way."""
        self._event(Event("log", text))

    def _event(self, event: Event) -> None:
        """What engines and stores say may hold anything: a view gets one line that moves no cursor."""
        told = replace(event, text=one_line(without_secrets(event.text, os.environ)))
        for view in self._views:
            view.event(told)


class Aside(AbstractContextManager["Aside"]):
    """A display in a thread of its own: who may not wait tells it, and goes on.

    A terminal may take nothing for hours (Ctrl-S, a pager, a connection that hangs); engines are to be replaced and
    Ctrl-C is to work all the same. Looks that come meanwhile are left out, sentences are kept.
    """

    def __init__(self, shown: Display, patience_seconds: float = 5.0) -> None:
        """At the end what is still to be shown has so long."""
        self._shown = shown
        self._patience_seconds = patience_seconds
        self._told: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._show, name="display", daemon=True)

    def __enter__(self) -> Aside:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._told.put(None)
        self._thread.join(self._patience_seconds)

    def __call__(self, facts: TerminalFacts) -> None:
        if self._told.qsize() < _MOST_WAITING:
            self._told.put(partial(self._shown, facts))

    def say(self, text: str) -> None:
        if self._told.qsize() < _MOST_SENTENCES:
            self._told.put(partial(self._shown.say, text))

    def _show(self) -> None:
        with self._shown:
            while (show := self._told.get()) is not None:
                with suppress(Exception):  # a closed pipe, say, is the watcher's trouble
                    show()


class BlockView:
    """On a terminal. Redrawn with each look, which is once a second, and not in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._block = _Block()
        self._live = _Redrawn(self._block, console=console, auto_refresh=False, transient=True)

    def facts(self, facts: TerminalFacts) -> None:
        self._block.facts = facts
        if self._console.width < self._block.drawn_width:
            self._block.drawn_width = 0
            self._live.begin_below()
        else:
            self._live.start()
            self._live.refresh()

    def event(self, event: Event) -> None:
        if event.kind != "phase":  # the block shows it
            style = _LEVEL_STYLES[event.level]
            self._console.print(event.text, style=style, highlight=False, soft_wrap=True, markup=False)

    def close(self) -> None:
        self._live.stop()


class _Redrawn(Live):
    """rich's, which writes each drawing over the one before."""

    def begin_below(self) -> None:
        """Leave what is drawn where it is: a narrower terminal has folded it, to nobody knows how many lines."""
        self._live_render = LiveRender(self.get_renderable(), vertical_overflow=self.vertical_overflow)
        self.console.print()  # the block comes with it


class _Block:
    """The block as rich draws it, at whatever width the terminal has by now."""

    def __init__(self) -> None:
        self.facts: TerminalFacts | None = None
        self.drawn_width = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.facts is None:
            return
        # The last column stays free: terminals differ in what they do with a full line.
        for line in block(self.facts, options.max_width - 1, options.ascii_only):
            text = Text(no_wrap=True, overflow="crop")
            for part in line:
                text.append(part.text, _STYLES[part.tone])
            self.drawn_width = max(self.drawn_width, text.cell_len)
            yield text


class LineView:
    """Where there is no terminal: a line now and then, and one for each event."""

    def __init__(self, write: Callable[[Event], None], now: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._now = now
        self._pace = PlainPace()
        self._phase = ""

    def facts(self, facts: TerminalFacts) -> None:
        has_changed = facts.phase != self._phase
        if self._pace.is_due(self._now()) or has_changed:
            self._phase = facts.phase
            self._write(Event("progress", plain_line(facts)))

    def event(self, event: Event) -> None:
        if event.kind != "phase":  # a line of progress follows, which begins with it
            self._write(event)

    def close(self) -> None:
        """Nothing is left behind."""


class JsonView:
    """For machines, beside what people see."""

    def __init__(self, lines: JsonLines, every_seconds: float = 1.0, now: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._every_seconds = every_seconds
        self._now = now
        self._written_at = float("-inf")
        self._phase = ""
        self._latest: TerminalFacts | None = None

    def facts(self, facts: TerminalFacts) -> None:
        self._latest = facts
        if self._now() - self._written_at >= self._every_seconds or facts.phase != self._phase:
            self._write(facts)

    def event(self, event: Event) -> None:
        self._lines.event(event)

    def close(self) -> None:
        if self._latest is not None:
            self._write(self._latest)

    def _write(self, facts: TerminalFacts) -> None:
        self._written_at, self._phase, self._latest = self._now(), facts.phase, None
        self._lines.status(facts)


def display(console: Console, log: Log, lines: JsonLines | None = None, hears_driver: bool = True) -> Display:
    """The display for where we are: a block on a terminal that can redraw, lines elsewhere, JSON lines if asked for."""
    return Display([*_people(console, log), *([] if lines is None else [JsonView(lines)])], hears_driver)


def _people(console: Console, log: Log) -> Iterator[View]:
    if log.format is LogFormat.JSON:
        yield LineView(log.event)
    elif console.is_terminal and not console.is_dumb_terminal:
        yield BlockView(console)
    else:
        yield LineView(lambda event: console.print(event.text, highlight=False, soft_wrap=True, markup=False))
