"""The steps of the run as a list: sign, time, evidence; progress with rate and ETA; what the step took last time.

With less room than rows, what is finished folds into one line at the top and what is to come into one at the bottom, so
that the step in hand is always seen. Every state has a sign and a word of its own; colour repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from console.deploy.steps import ORDER, SUMMARIES
from console.errors import ExitCode
from console.events import Progressed
from console.live import Glance
from console.printing import amount
from console.state import FINISHED, Snapshot, StepView
from console.text import clean, duration, headline
from screens.glyphs import Glyphs, state_sign
from screens.outcomes import OUTCOMES
from screens.source import Moment
from screens.widgets.bars import progress_bar
from screens.widgets.lines import Pane, Part, fit, line

NAME_WIDTH = 11
TIME_WIDTH = 6
DOWNTIME_FROM = "stop"
WAY_BACK = "rollback"
"""Named even where it is done: what serves is then not what was to be deployed."""
BUSY = ("checking", "running", "verifying")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the list. `step` is None for a line that is no step."""

    step: StepView | None
    strip: Strip


class Checklist(Pane):
    """The list. Posts `Opened` for the chosen step."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "next step", id="checklist.next", show=False),
        Binding("k,up", "move(-1)", "previous step", id="checklist.previous", show=False),
        Binding("home", "move(-99)", "first step", id="checklist.first", show=False),
        Binding("end", "move(99)", "last step", id="checklist.last", show=False),
        Binding("enter,d", "choose", "open", id="checklist.open"),
    ]

    class Opened(Message):
        """The operator wants to see a step."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glance = Glance()
        self._moment = Moment(0.0, 0.0)
        self._chosen: str | None = None
        self.strip_form = False
        """One row instead of the list, for a small screen whose room the cause needs."""

    def show(self, glance: Glance, moment: Moment) -> None:
        self._glance, self._moment = glance, moment
        self.redraw()

    @property
    def chosen(self) -> str:
        """The step that Enter opens: what was moved to, else the step in hand."""
        names = [step.name for step in self._steps()]
        if self._chosen in names:
            return self._chosen or ""
        run = self._glance.run
        last = run.ended is not None and run.ended.code == 0
        return in_hand(run) or (names[-1 if last else 0] if names else "")

    def action_move(self, by: int) -> None:
        names = [step.name for step in self._steps()]
        if names:
            place = names.index(self.chosen) if self.chosen in names else 0
            self._chosen = names[max(0, min(len(names) - 1, place + by))]
            self.redraw()

    def action_choose(self) -> None:
        if self.chosen:
            self.post_message(self.Opened(self.chosen))

    def _steps(self) -> tuple[StepView, ...]:
        return self._glance.run.steps or tuple(StepView(name) for name in ORDER)

    def rows(self, width: int, height: int) -> list[Strip]:
        if self.strip_form:
            return [summary(self.glyphs, self._glance, self._moment, width)]
        steps = [self._row(step, width) for step in self._steps()]
        rows = self._with_downtime(steps, width)
        room = height - 1
        return [self.title(width, "Steps", *self._about()), *(row.strip for row in self._folded(rows, room, width))]

    def _about(self) -> tuple[Part, ...]:
        run = self._glance.run
        if not run.steps:
            return (("nothing runs", "dim"),)
        if run.ended is None:
            spent = 0.0 if run.started is None else max(0.0, self._moment.wall - run.started)
            words = "plan" if run.read_only else run.verb
            return (f"{words} {duration(int(spent))}" if self._glance.running else (f"{words}, unfinished", "yellow"),)
        if run.ended.code == 0:
            word = "plan made" if run.read_only else "done"
            return ((f"{word} in {duration(run.ended.seconds)}", "green"),)
        words = OUTCOMES.get(run.ended.code, "failed")
        look = "bold yellow" if run.ended.code in (ExitCode.RESTORED, ExitCode.INTERRUPTED) else "bold red"
        return ((f"{words} after {duration(run.ended.seconds)}", look),)

    def _row(self, step: StepView, width: int) -> Row:
        here = self.has_focus and step.name == self.chosen
        sign, look = state_sign(self.glyphs, step.state)
        name_look = "bold" if step.state in BUSY or step.state == "failed" else ("dim" if _waits(step) else "")
        mark: Part = (self.glyphs.cursor, "bold cyan") if here else " "
        used = 1 + 2 + NAME_WIDTH + TIME_WIDTH + 2
        detail, detail_look = self._detail(step, width - used)
        return Row(
            step,
            line(
                mark, (f"{sign} ", look), (fit(step.name, NAME_WIDTH), f"{name_look} reverse" if here else name_look),
                (self._time(step).rjust(TIME_WIDTH), "dim" if step.state != "failed" else ""), "  ", (detail, detail_look),
            ),
        )  # fmt: skip

    def _time(self, step: StepView) -> str:
        if step.seconds is not None:
            return duration(step.seconds)
        if step.state in BUSY and step.started is not None and self._glance.running:
            return duration(int(max(0.0, self._moment.wall - step.started)))
        return "" if _waits(step) or step.state in BUSY else self.glyphs.dash

    def _detail(self, step: StepView, width: int) -> tuple[str, str]:
        glyphs = self.glyphs
        if step.state in BUSY:
            words = progress_words(glyphs, step, self._glance, width)
            return fit(words or clean(step.detail) or step.state, width, ellipsis=glyphs.ellipsis).rstrip(), "cyan"
        if _waits(step):
            last = dict(self._glance.expected).get(step.name)
            words = f"last time {duration(last)}" if last is not None else SUMMARIES.get(step.name, "")
            return (
                (fit(words, width, ellipsis=glyphs.ellipsis).rstrip(), "dim")
                if step.state == "pending"
                else ("not reached", "dim")
            )
        words = headline(clean(step.detail), 400) or step.state
        return fit(words, width, ellipsis=glyphs.ellipsis).rstrip(), "bold red" if step.state == "failed" else ""

    def _with_downtime(self, rows: list[Row], width: int) -> list[Row]:
        """A line where downtime begins, with its length once it is known."""
        if not any(row.step and row.step.name == DOWNTIME_FROM for row in rows):
            return rows
        run, rule = self._glance.run, self.glyphs.rule
        if run.downtime_since is not None:
            words, look = f"downtime {duration(int(max(0.0, self._moment.wall - run.downtime_since)))}", "bold yellow"
        elif run.downtime_seconds is not None:
            words, look = f"downtime was {duration(run.downtime_seconds)}", ""
        else:
            words, look = "from here the old model is down", "dim"
        strip = line(" ", (rule * 2, "dim"), (f" {words} ", look), (rule * max(0, width - len(words) - 6), "dim"))
        place = next(i for i, row in enumerate(rows) if row.step and row.step.name == DOWNTIME_FROM)
        return [*rows[:place], Row(None, strip), *rows[place:]]

    def _folded(self, rows: list[Row], room: int, width: int) -> list[Row]:
        if len(rows) <= room or room < 3:
            return rows[: max(0, room)]
        chosen = self.chosen
        place = next((i for i, row in enumerate(rows) if row.step and row.step.name == chosen), 0)
        # two rows are kept for the folds; the window shows a little of what comes before the chosen step
        inner = room - 2
        first = max(0, min(place - inner // 2, len(rows) - inner))
        above, below = rows[:first], rows[first + inner :]
        if not above:
            return [*rows[: room - 1], self._fold(rows[room - 1 :], width)]
        if not below:
            return [self._fold(rows[: len(rows) - room + 1], width), *rows[len(rows) - room + 1 :]]
        return [self._fold(above, width), *rows[first : first + inner], self._fold(below, width)]

    def _fold(self, rows: list[Row], width: int) -> Row:
        if len(rows) == 1:
            return rows[0]
        steps = [row.step for row in rows if row.step is not None]
        if steps and all(step.state in ("done", "satisfied") for step in steps):
            spent = sum(step.seconds or 0.0 for step in steps)
            words = f"{len(steps)} done"
            return Row(
                None,
                line(
                    " ",
                    (f"{self.glyphs.ok} ", "green"),
                    f"{words:<{NAME_WIDTH}}",
                    (duration(spent).rjust(TIME_WIDTH), "dim"),
                ),
            )
        names = ", ".join(step.name for step in steps)
        return Row(
            None,
            line(
                " ",
                (
                    f"{self.glyphs.idle} {fit(f'{len(steps)} more: {names}', width - 3, ellipsis=self.glyphs.ellipsis)}",
                    "dim",
                ),
            ),
        )


def in_hand(run: Snapshot) -> str:
    """The step that runs or failed; empty when there is none."""
    for states in (BUSY, ("failed",)):
        for step in run.steps:
            if step.state in states:
                return step.name
    return ""


def _waits(step: StepView) -> bool:
    return step.state in ("pending", "skipped")


def progress_words(glyphs: Glyphs, step: StepView, glance: Glance, width: int) -> str:
    """How far a running step is, in `width` columns: `48 % 1.1 GB/s eta 4:12`, with a bar where there is room."""
    progress = step.progress
    if progress is None:
        return _expected(step, glance)
    parts = []
    share = _share(progress)
    if share is not None:
        parts.append(f"{share * 100:.0f} %")
    elif progress.done is not None:
        parts.append(amount(progress.done, progress.unit))
    if progress.rate:
        parts.append(f"{amount(progress.rate, progress.unit)}/s")
    if progress.eta is not None:
        parts.append(f"eta {duration(int(progress.eta))}")
    else:
        parts.append(_expected(step, glance))
    words = " ".join(part for part in parts if part)
    text = clean(progress.text)
    room = width - len(words) - 1
    if share is not None and room >= 8:
        bar = progress_bar(glyphs, progress.done, progress.total, min(10, room))
        words, room = f"{bar} {words}", room - len(bar) - 1
    return f"{words} {text}" if text and room >= min(12, len(text)) else words or text


def _share(progress: Progressed) -> float | None:
    return None if progress.done is None or not progress.total else min(1.0, progress.done / progress.total)


def _expected(step: StepView, glance: Glance) -> str:
    last = dict(glance.expected).get(step.name)
    return "" if last is None else f"last time {duration(last)}"


def summary(glyphs: Glyphs, glance: Glance, moment: Moment, width: int) -> Strip:
    """The whole list in one row: `✓9  ✗ launch 0:47  · ready · throughput · keep`."""
    steps = glance.run.steps
    good = sum(step.state in ("done", "satisfied") and step.name != WAY_BACK for step in steps)
    parts: list[Part] = [" ", (f"{glyphs.ok}{good}", "green"), "  "]
    for step in steps:
        if step.state in ("done", "satisfied") and step.name != WAY_BACK:
            continue
        sign, look = state_sign(glyphs, step.state)
        spent = f" {duration(step.seconds)}" if step.seconds is not None else ""
        if step.state in FINISHED - {"skipped"} or step.state in BUSY:
            parts += [(f"{sign} {step.name}", look), f"{spent}  "]
        else:
            parts += [(f"{sign} {step.name} ", "dim")]
    return line(*parts).crop(0, width)
