"""A past run, shown as it was: its events folded up to a moment, played at a chosen speed, paused or stepped through.

`Tape` is pure: events, a position, a clock that is told how much time went by. The screen turns it four times a second
while it plays. What is shown is the same checklist as on the main screen, fed with the snapshot of that moment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.strip import Strip

from console.errors import RelaunchError
from console.events import (
    CauseFound,
    Changed,
    Downtime,
    Event,
    Found,
    Measured,
    Noted,
    Progressed,
    RunEnded,
    RunStarted,
    StageReached,
    StepChanged,
)
from console.live import Glance
from console.printing import measured
from console.state import Snapshot, apply
from console.text import clean, duration
from screens.base import ConsoleScreen
from screens.glyphs import Glyphs, state_sign
from screens.source import Moment, Source
from screens.widgets.bars import progress_bar
from screens.widgets.checklist import Checklist
from screens.widgets.lines import Pager, Pane, Part, line, wrap
from screens.widgets.sections import empty

SPEEDS = (1, 2, 10, 60)
TURN_SECONDS = 0.25


class Tape:
    """A run's events and how far they were played. `at` events are folded; `clock` is the run's time, in UNIX seconds."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = tuple(events)
        self.at = 0
        self.snapshot = Snapshot()
        self.clock = self.events[0].time if self.events else 0.0

    @property
    def begin(self) -> float:
        return self.events[0].time if self.events else 0.0

    @property
    def end(self) -> float:
        return max((event.time for event in self.events), default=0.0)

    @property
    def done(self) -> bool:
        return self.at >= len(self.events)

    def turn(self, seconds: float) -> None:
        """Let `seconds` of the run's time go by. At the end the clock stands."""
        self.clock = min(self.end, self.clock + seconds)
        while not self.done and self.events[self.at].time <= self.clock:
            self._fold()

    def step(self, by: int) -> None:
        """Go `by` events on, or back when negative."""
        self.to(self.at + by)

    def to(self, at: int) -> None:
        """Have exactly `at` events folded."""
        at = max(0, min(at, len(self.events)))
        if at < self.at:
            self.at, self.snapshot = 0, Snapshot()
        while self.at < at:
            self._fold()
        self.clock = self.events[at - 1].time if at else self.begin

    def _fold(self) -> None:
        self.snapshot = apply(self.snapshot, self.events[self.at])
        self.at += 1


class Transport(Pane):
    """Where the tape stands: a bar, the clock of the run, the speed."""

    DEFAULT_CSS = "Transport { height: 2; }"

    def __init__(self) -> None:
        super().__init__(id="replay-transport")
        self.tape = Tape(())
        self.speed = 1
        self.playing = False

    def rows(self, width: int, height: int) -> list[Strip]:
        tape, glyphs = self.tape, self.glyphs
        if not tape.events:
            return []
        run = tape.events[0]
        about = f"run {run.run} {'plan' if run.read_only else run.verb}" if isinstance(run, RunStarted) else "run"
        clock = time.strftime("%d %b %H:%M:%S", time.localtime(tape.clock))
        state: Part = (
            ("at its end", "") if tape.done else (("plays", "bold cyan") if self.playing else ("paused", "bold yellow"))
        )
        sign = glyphs.ok if tape.done else (glyphs.run if self.playing else glyphs.idle)
        head = line(
            " ", (f"{sign} ", state[1] if isinstance(state, tuple) else ""), state, f" at {self.speed}{glyphs.times}   ",
            (about, "bold"), f"   {clock}   event {tape.at} of {len(tape.events)}",
        )  # fmt: skip
        spent, whole = tape.clock - tape.begin, tape.end - tape.begin
        words = f" {duration(int(spent))} of {duration(int(whole))}"
        bar = progress_bar(glyphs, spent if whole else 1.0, whole or 1.0, max(4, width - len(words) - 2))
        return [head, line(" ", (bar, "cyan"), words)]


class Story(Pager):
    """The events up to the moment, in words, the newest at the bottom unless one scrolled up."""

    def __init__(self) -> None:
        super().__init__("What happened", id="replay-story")
        self.tape = Tape(())
        self._words: list[tuple[Event, str, str, str]] = []
        self._told = 0
        self._follow = True
        self._empty: tuple[str, ...] = ()

    def load(self, tape: Tape) -> None:
        self.tape = tape
        self._words, self._told = [], 0

    def say(self, words: tuple[str, ...]) -> None:
        """Show these words in place of events: there are none."""
        self._empty = words
        self.redraw()

    def heading(self) -> tuple[Part, ...]:
        return () if self._follow else (("scrolled up; G follows again", "yellow"),)

    def body(self, width: int) -> list[Strip]:
        if self._empty:
            return empty(self._empty, width)
        self._tell()
        rows: list[Strip] = []
        for event, sign, text, look in self._words:
            clock = time.strftime("%H:%M:%S", time.localtime(event.time))
            for place, part in enumerate(wrap(text, max(10, width - 13))):
                head: Part = (f" {clock} ", "dim") if not place else " " * 10
                rows.append(
                    line(head, (f"{sign} " if not place else "  ", look), (part, look if "bold" in look else ""))
                )
        return rows

    def rows(self, width: int, height: int) -> list[Strip]:
        if self._follow:
            self._first = 1 << 30  # the pager clamps it to the last page
        return super().rows(width, height)

    def action_by(self, rows: int) -> None:
        super().action_by(rows)
        self._follow = self._first >= self._count - max(1, self.size.height - 1)
        self.redraw()

    def action_to(self, end: int) -> None:
        self._follow = bool(end)
        super().action_to(end)

    def _tell(self) -> None:
        if self._told > self.tape.at:
            self._words, self._told = [], 0
        for event in self.tape.events[self._told : self.tape.at]:
            told = words(event, self.glyphs)
            if told is not None:
                self._words.append((event, *told))
        self._told = self.tape.at


def words(event: Event, glyphs: Glyphs) -> tuple[str, str, str] | None:
    """(sign, words, colour) of an event; None for one that the checklist alone shows."""
    match event:
        case RunStarted():
            mark = ", changing nothing" if event.read_only else ""
            told = glyphs.run, f"{event.verb} of {event.profile} on {event.node} began{mark}", "cyan"
        case StepChanged(state="checking" | "verifying"):
            return None
        case StepChanged():
            sign, look = state_sign(glyphs, event.state)
            state = {"skipped": "not reached"}.get(event.state, event.state)
            told = sign, f"{event.step} {state}{': ' + event.detail if event.detail else ''}", look
        case Found(level="allow") | Progressed() | Changed(diff=""):
            return None
        case Found():
            told = glyphs.warn if event.level == "warn" else glyphs.fail, f"{event.rule}: {event.text}", "yellow"
        case Changed():
            told = glyphs.idle, event.text, "dim"
        case Downtime(state="started"):
            told = glyphs.warn, "downtime began: the old service was told to stop", "yellow"
        case Downtime():
            spent = "" if event.seconds is None else f" after {duration(event.seconds)}"
            told = glyphs.ok, f"downtime ended{spent}", "green"
        case StageReached():
            told = glyphs.idle, f"stage {event.stage.replace('_', ' ')}{': ' + event.text if event.text else ''}", "dim"
        case CauseFound():
            told = glyphs.fail, f"first cause: {event.text}", "bold red"
        case Measured():
            told = glyphs.idle, measured(event).strip(), ""
        case Noted():
            told = glyphs.warn, event.text, "yellow"
        case RunEnded():
            good = event.code == 0
            told = (
                glyphs.ok if good else glyphs.fail,
                f"ended with {event.code}: {event.text}",
                "green" if good else "bold red",
            )
        case _:
            return None
    return told[0], clean(told[1]), told[2]


class ReplayScreen(ConsoleScreen):
    """One run, played. `run` empty: the newest of the store."""

    DEFAULT_CSS = """
    #replay-body { height: 1fr; layout: horizontal; }
    #replay-checklist { width: 2fr; max-width: 60; margin-right: 1; }
    #replay-story { width: 3fr; }
    #replay-body.-narrow { layout: vertical; }
    #replay-body.-narrow #replay-checklist { width: 1fr; max-width: 100%; margin-right: 0; }
    #replay-body.-narrow #replay-story { width: 1fr; }
    """
    WORD = "replay"
    FIRST = ("replay.pause", "replay.next", "replay.faster", "replay.slower", "replay.end")
    PANES: ClassVar[tuple[type, ...]] = (Checklist, Story)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "pause", id="replay.pause", priority=True),
        Binding("right,full_stop", "step(1)", "event", id="replay.next", key_display="<- ->", priority=True),
        Binding("left,comma", "step(-1)", "event back", id="replay.previous", show=False, priority=True),
        Binding("f,plus", "faster(1)", "faster", id="replay.faster", key_display="f"),
        Binding("s,minus", "faster(-1)", "slower", id="replay.slower", key_display="s"),
        Binding("e", "end", "to the end", id="replay.end", key_display="e", priority=True),
        Binding("b", "begin", "to the start", id="replay.begin", key_display="b", priority=True),
        Binding("tab", "app.focus_next", "pane", id="replay.pane", show=False),
    ]

    def __init__(self, source: Source, run: str = "") -> None:
        super().__init__(source)
        self._run = run
        self._trouble = ""
        self._tape = Tape(())
        self._transport = Transport()
        self._list = Checklist(id="replay-checklist")
        self._story = Story()
        self._expected: tuple[tuple[str, float], ...] = ()
        self._last: float | None = None

    def body(self) -> ComposeResult:
        yield self._transport
        with Horizontal(id="replay-body"):
            yield self._list
            yield self._story

    def on_mount(self) -> None:
        self._load()
        self._transport.playing = bool(self._tape.events)
        self._last = self.relaunch.moment().mono
        self.set_interval(TURN_SECONDS, self._turn)

    def _load(self) -> None:
        store = self.source.store
        try:
            if not self._run:
                newest = store.runs(limit=1)
                self._run = newest[0].id if newest else ""
            events = tuple(store.events(self._run)) if self._run else ()
        except (RelaunchError, ValueError) as error:
            self._trouble = clean(error.message if isinstance(error, RelaunchError) else str(error))
            events = ()
        self._tape = Tape(events)
        self._tape.turn(0.0)
        self._transport.tape = self._tape
        self._story.load(self._tape)

    def _turn(self) -> None:
        """Let the time that went by since the last turn go by on the tape."""
        now = self.relaunch.moment().mono
        spent = 0.0 if self._last is None else max(0.0, now - self._last)
        self._last = now
        if not self._transport.playing or self._tape.done or not self.is_current:
            return
        self._tape.turn(spent * self._transport.speed)
        self._transport.playing = not self._tape.done
        self._draw()

    def show(self, glance: Glance, moment: Moment) -> None:
        self._expected = glance.expected
        self._draw()

    def _draw(self) -> None:
        tape = self._tape
        body = self.query_one("#replay-body")
        body.set_class(self.size.width < 100, "-narrow")
        if not tape.events:
            self._list.display = self._transport.display = False
            self._story.say(self._nothing())
            return
        shown = Glance(
            run=tape.snapshot, running=not tape.done and tape.snapshot.ended is None, expected=self._expected
        )
        self._list.show(replace(shown, version=tape.at), Moment(tape.clock, 0.0))
        self._transport.redraw()
        self._story.redraw()

    def _nothing(self) -> tuple[str, ...]:
        if self._trouble:
            return (f"This run cannot be replayed: {self._trouble}", "q goes back to the list of runs.")
        if self._run:
            return (
                f"Run {self._run} wrote down nothing: it was reserved and never began.",
                "q goes back to the list of runs.",
            )
        return (
            "No run yet, so there is nothing to replay.",
            "Steps and events of a past run stand here, as fast as you like. p on the main screen makes a first run: a plan.",
        )

    def action_pause(self) -> None:
        if self._tape.done and self._tape.events:
            self._tape.to(0)
            self._tape.turn(0.0)
            self._transport.playing = True
        else:
            self._transport.playing = not self._transport.playing and bool(self._tape.events)
        self._draw()

    def action_step(self, by: int) -> None:
        """One event that is shown in words, forward or back; playing stops."""
        self._transport.playing = False
        tape = self._tape
        tape.step(by)
        while 0 < tape.at < len(tape.events) and words(tape.events[tape.at - 1], self.glyphs) is None:
            tape.step(1 if by > 0 else -1)
        self._draw()

    def action_faster(self, by: int) -> None:
        place = SPEEDS.index(self._transport.speed) + by
        self._transport.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, place))]
        self._draw()

    def action_end(self) -> None:
        self._transport.playing = False
        self._tape.to(len(self._tape.events))
        self._draw()

    def action_begin(self) -> None:
        self._tape.to(0)
        self._tape.turn(0.0)
        self._draw()

    def on_checklist_opened(self, event: Checklist.Opened) -> None:
        event.stop()
        self.action_detail(event.name)

    def action_detail(self, name: str) -> None:
        """Say in full what a step told at this moment."""
        step = self._tape.snapshot.step(name)
        if step is not None:
            self.relaunch.say(f"{name}: {clean(step.detail) or step.state}")
