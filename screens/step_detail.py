"""One step opened: what it is for, its state and evidence, what it changes with diffs, its findings, what it took before."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.strip import Strip

from console.deploy.steps import SUMMARIES
from console.events import Changed, Found, Remedy
from console.live import Glance
from console.printing import moved_lines
from console.state import StepView
from console.text import clean, duration
from screens.base import ConsoleScreen
from screens.glyphs import state_sign
from screens.plan import measured_rows, table_rows
from screens.source import Moment, Source
from screens.widgets.checklist import BUSY, progress_words
from screens.widgets.lines import Pager, Part, line, wrap

_STATES = {
    "pending": "not begun",
    "checking": "looking whether it is needed",
    "satisfied": "already so: nothing was changed",
    "needed": "needed: it would change what stands below",
    "running": "at work",
    "verifying": "measuring its effect",
    "done": "done, and measured",
    "failed": "failed",
    "skipped": "not reached",
}


class StepPane(Pager):
    """All that is known of one step."""

    def __init__(self, step: str) -> None:
        super().__init__(f"Step {step}", id="step-pane")
        self.step = step
        self._glance = Glance()
        self._moment = Moment(0.0, 0.0)

    def show(self, glance: Glance, moment: Moment) -> None:
        self._glance, self._moment = glance, moment
        self.redraw()

    def body(self, width: int) -> list[Strip]:
        run = self._glance.run
        step = run.step(self.step) or StepView(self.step)
        sign, look = state_sign(self.glyphs, step.state)
        inner = max(20, width - 15)
        rows = [line("")]
        rows += self._field("for", SUMMARIES.get(self.step, ""), inner)
        rows.append(line("   ", (f"{'state':<11}", "bold"), (f"{sign} ", look), (_STATES[step.state], look)))
        rows += self._field("time", self._time(step), inner)
        if step.progress is not None:
            rows += self._field("progress", progress_words(self.glyphs, step, self._glance, inner), inner)
        label = {"failed": "cause", "needed": "need"}.get(step.state, "evidence")
        rows += self._field(
            label,
            clean(step.detail) or ("" if step.state == "pending" else "none"),
            inner,
            "red" if step.state == "failed" else "",
        )
        for found in run.findings:
            if found.step == self.step:
                rows += self._finding(found, inner)
        if self.step == "launch":
            rows += [Strip([*line(" " * 12), *row]) for row in measured_rows(run)]
            rows += [row for remedy in run.remedies for row in self._remedy(remedy, width)]
        rows += [row for change in step.changes for row in self._change(change, width)]
        if step.state == "pending" and not step.changes:
            rows += [line(""), line(("   Nothing is known yet of what it would change: p makes the plan.", "dim"))]
        return rows

    def _time(self, step: StepView) -> str:
        last = dict(self._glance.expected).get(step.name)
        before = f"last time {duration(last)}" if last is not None else "no earlier run is known"
        if step.seconds is not None:
            return f"{duration(step.seconds)}; {before}"
        if step.state in BUSY and step.started is not None:
            return f"{duration(int(max(0.0, self._moment.wall - step.started)))} so far; {before}"
        return before

    def _field(self, name: str, text: str, width: int, look: str = "") -> list[Strip]:
        return [
            line("   ", (f"{name if not place else '':<11}", "bold"), (part, look))
            for place, part in enumerate(wrap(text, width))
            if part
        ]

    def _finding(self, found: Found, width: int) -> list[Strip]:
        sign, look = {"allow": (self.glyphs.ok, "green"), "warn": (self.glyphs.warn, "yellow")}.get(
            found.level, (self.glyphs.fail, "bold red")
        )
        rows = self._field("finding", f"{sign} {clean(found.rule)}: {clean(found.text)}", width, look)
        rows += self._field("", f"try: {clean(found.remedy)}", width) if found.remedy else []
        return rows + [Strip([*line(" " * 12), *row]) for row in table_rows(found.table)]

    def _remedy(self, remedy: Remedy, width: int) -> list[Strip]:
        """A remedy that this run took, or found and left."""
        words = "remedy, applied" if remedy.applied else f"remedy, {self.relaunch.key_of('fix')} applies it"
        return self._change(
            Changed(time=remedy.time, step=remedy.step, text=f"{words}: {remedy.text}", diff=moved_lines(remedy.diff)),
            width,
        )

    def _change(self, change: Changed, width: int) -> list[Strip]:
        rows = [line(""), line("   ", (clean(change.text), "bold"))]
        for text in clean(change.diff).splitlines():
            look: Part = (f"     {text}"[:width], {"+": "green", "-": "red", "@": "cyan"}.get(text[:1], ""))
            rows.append(line(look))
        return rows


class StepDetailScreen(ConsoleScreen):
    """One step of the run in hand."""

    PANES: ClassVar[tuple[type, ...]] = (StepPane,)

    def __init__(self, source: Source, step: str) -> None:
        super().__init__(source)
        self.step = step

    def body(self) -> ComposeResult:
        yield StepPane(self.step)

    def show(self, glance: Glance, moment: Moment) -> None:
        self.query_one(StepPane).show(glance, moment)
