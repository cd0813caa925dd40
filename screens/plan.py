"""What a redeploy would change, before anything does: steps that are needed, the fit, unit, flags, environment, overlay.

Made from the snapshot of a dry run: `p` makes one, Enter does what it says, after the usual question. When the run in hand
is a real one the same page says what that run changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip

from console.deploy.step import Context
from console.events import Changed, Found
from console.live import Glance
from console.node.facts import Facts
from console.printing import compared
from console.profile.model import Profile
from console.state import Snapshot, StepView
from console.text import clean, duration, headline, plural
from console.verbs import verb
from screens.base import ConsoleScreen
from screens.deeds import Deed
from screens.source import Moment, Source
from screens.widgets.checklist import BUSY
from screens.widgets.lines import Pager, Part, fit, line
from screens.widgets.sections import LABEL, age_words, diff_rows, empty, labelled, noted, section

if TYPE_CHECKING:
    from console.checkpoint.fit import Fit

PANE_ID = "plan"
DOWNTIME_STEPS = ("stop", "drain", "launch", "ready")
"""From the stop of the old service to the first sensible generation of the new one."""
FILE_STEPS = ("unit", "patch")
"""Steps whose changes are shown with their diffs in sections of their own."""
OLD_SECONDS = 600.0
"""A plan older than this says so: the node may have moved on."""


def fit_of(facts: Facts | None, profile: Profile | None) -> Fit | None:
    """The memory fit as far as the facts in hand tell it; None while config, sizes or GPU memory are unknown. Pure."""
    from console.checkpoint.forecast import forecast  # heavy for a console that never looks at a plan

    if facts is None or profile is None:
        return None

    async def no(*_: object) -> bool:
        return False

    async def same() -> Facts:
        return facts

    ctx = Context(node=None, profile=profile, facts=facts, emit=lambda event: None, confirm=no, refresh=same)  # type: ignore[arg-type]
    return forecast(ctx)


class PlanPane(Pager):
    """The page."""

    def __init__(self) -> None:
        super().__init__("Plan", id=PANE_ID)
        self._glance = Glance()
        self._moment = Moment(0.0, 0.0)
        self._fitted: tuple[int, int] | None = None
        self._fit: Fit | None = None

    def show(self, glance: Glance, moment: Moment) -> None:
        self._glance, self._moment = glance, moment
        mark = (id(glance.facts), id(glance.profile))
        if mark != self._fitted:
            self._fitted = mark
            try:
                self._fit = fit_of(glance.facts, glance.profile)
            except Exception:  # a config that nobody has seen before must not take the rest of the plan with it
                self._fit = None
        self.redraw()

    def heading(self) -> tuple[Part, ...]:
        run = self._glance.run
        if not run.run:
            return ()
        if not run.read_only:
            going = "is changing" if self._glance.running else "changed"
            return ((f"what run {run.run} {going}", "yellow"),)
        parts: list[Part] = [("nothing has been changed", "green")]
        if run.ended is not None:
            age = self._moment.wall - run.ended.time
            if age >= OLD_SECONDS:
                parts.append((f"made {age_words(age)} ago", "yellow"))
        return tuple(parts)

    def body(self, width: int) -> list[Strip]:
        run = self._glance.run
        if not run.run:
            key = self.relaunch.key_of("plan")
            return empty(
                (
                    "No plan yet.",
                    "What a redeploy would change stands here: the steps that are needed, the memory fit, and the diffs of unit, "
                    "flags, environment and overlay.",
                    f"{key} asks the node. It changes nothing.",
                ),
                width,
            )
        parts: tuple[Callable[[Snapshot, int], list[Strip]], ...] = (
            self._verdict, self._notes, self._needs, self._downtime, self._memory, self._unit, self._files, self._checks,
        )  # fmt: skip
        return [row for part in parts for row in part(run, width)]

    def _verdict(self, run: Snapshot, width: int) -> list[Strip]:
        glyphs, ended = self.glyphs, run.ended
        if ended is None and not self._glance.running:
            words = f"run {run.run} has no end: its console went away; {self.relaunch.key_of('plan')} plans anew"
            return [*labelled("verdict", noted(glyphs.unknown, words, width, "yellow")), line("")]
        if ended is None:
            place = next((n for n, step in enumerate(run.steps, 1) if step.state in BUSY), None)
            step = run.steps[place - 1].name if place else "the node"
            looked = f"looking at {step}" + (f", {place} of {len(run.steps)}" if place else "")
            words = looked if run.read_only else f"run {run.run} is under way: {step}"
            return [*labelled("verdict", [line((f"{glyphs.run} {words}", "bold cyan"))]), line("")]
        if ended.code:
            rows = noted(glyphs.fail, ended.text, width, "bold red", remedy=ended.remedy, arrow=glyphs.arrow)
            return [*labelled("verdict", rows), line("")]
        needed = _needed(run)
        if not run.read_only:
            words = headline(clean(ended.text), 400)
        elif needed:
            words = f"can be done: {plural(len(needed), 'step')} of {len(run.steps)} would do something"
        else:
            words = "nothing to do: every step is satisfied"
        return [*labelled("verdict", noted(glyphs.ok, words, width, "bold green")), line("")]

    def _notes(self, run: Snapshot, width: int) -> list[Strip]:
        """What the plan has to say that belongs to no step."""
        if not run.read_only or not run.notes:
            return []
        rows = [row for note in run.notes for row in noted(self.glyphs.warn, note, width, "yellow")]
        return [*labelled("note", rows), line("")]

    def _needs(self, run: Snapshot, width: int) -> list[Strip]:
        rows = []
        name_width = max((len(step.name) for step in run.steps), default=0) + 1
        room = width - name_width - 14
        for step in _needed(run):
            words = headline(clean(step.changes[0].text if step.changes else step.detail), max(20, room))
            more = (
                f" (and {len(step.changes) - 1} more)" if len(step.changes) > 1 and step.name not in FILE_STEPS else ""
            )
            sign, look = (self.glyphs.fail, "bold red") if step.state == "failed" else (self.glyphs.warn, "yellow")
            rows.append(line((f"{sign} ", look), (fit(step.name, name_width), "bold"), f"{words}{more}"))
        already = [step.name for step in run.steps if step.state == "satisfied"]
        if already:
            rows += noted(self.glyphs.ok, f"already so: {', '.join(already)}", width, "green")
        waiting = [step.name for step in run.steps if step.state in ("pending", "skipped")]
        if waiting:
            rows += noted(self.glyphs.idle, f"not looked at: {', '.join(waiting)}", width, "dim")
        return labelled("needs", rows)

    def _downtime(self, run: Snapshot, width: int) -> list[Strip]:
        needed = [step.name for step in _needed(run) if step.name in DOWNTIME_STEPS]
        looked = {step.name for step in run.steps if step.state not in ("pending", "skipped", *BUSY)}
        if not run.read_only or not looked & set(DOWNTIME_STEPS):
            return []
        if not needed:
            return section("downtime", "none: what serves is not touched", width, look="green")
        last = dict(self._glance.expected)
        known = [last[name] for name in needed if name in last]
        if len(known) == len(needed):
            words = f"about {duration(int(sum(known)))}, as it took last time"
        elif known:
            without = ", ".join(name for name in needed if name not in last)
            words = f"{duration(int(sum(known)))} and more: nobody knows yet how long {without} takes here"
        else:
            words = "? it was never done on this node with this profile"
        return section("downtime", words, width)

    def _memory(self, run: Snapshot, width: int) -> list[Strip]:
        from console.checkpoint.fit import fit_table

        found = self._fit
        told = next((item for item in run.findings if item.table), None)
        if told is not None and (found is None or _widest(told.table) <= width - LABEL - 2):
            return [line(""), *labelled("fit", self._told(told, run, width))]
        if found is None:
            words = "? it is worked out once the model's config, the sizes of its files and the GPUs are known"
            return [line(""), *section("fit", words, width, look="dim")]
        glyphs = self.glyphs
        sign, look = {True: (glyphs.ok, "green"), False: (glyphs.fail, "bold red"), None: (glyphs.unknown, "yellow")}[
            found.loads
        ]
        rows = [line((f"{sign} {clean(found.why)}", look), ("   of one GPU:", "dim"))]
        table = [row for row in fit_table(found) if row[0] != "verdict"]
        names = max(len(name) for name, _ in table) + 2
        for name, value in table:
            rows.append(line((f"  {name:<{names}}", "dim"), value))
        return [line(""), *labelled("fit", [*rows, *measured_rows(run)])]

    def _told(self, found: Found, run: Snapshot, width: int) -> list[Strip]:
        """The figures that the plan itself was judged by, and beside them what the started server said."""
        glyphs = self.glyphs
        sign, look = {"allow": (glyphs.ok, "green"), "warn": (glyphs.warn, "yellow")}.get(
            found.level, (glyphs.fail, "bold red")
        )
        return [*noted(sign, found.text, width, look), *table_rows(found.table), *measured_rows(run)]

    def _unit(self, run: Snapshot, width: int) -> list[Strip]:
        step = run.step("unit")
        if step is None or not step.changes:
            return []
        whole = [change for change in step.changes if change.diff]
        moved = [change.text for change in step.changes if not change.diff and change.text[:2] in ("+ ", "- ", "~ ")]
        other = [change.text for change in step.changes if not change.diff and change.text not in moved]
        flags = [text for text in moved if text[2:].startswith(("--", "program", "arguments"))]
        rows: list[Strip] = []
        rows += labelled("flags", _moves(flags, width)) if flags else []
        variables = [text for text in moved if text not in flags]
        rows += labelled("env", _moves(variables, width)) if variables else []
        for text in other:
            rows += section("unit", text, width)
        for change in whole:
            rows += self._diff("unit", change, width)
        return [line(""), *rows] if rows else []

    def _files(self, run: Snapshot, width: int) -> list[Strip]:
        step = run.step("patch")
        if step is None or not step.changes:
            return []
        rows: list[Strip] = []
        for change in step.changes:
            rows += self._diff("overlay", change, width)
        return [line(""), *rows]

    def _diff(self, label: str, change: Changed, width: int) -> list[Strip]:
        return (
            [*section(label, change.text, width), *labelled("", diff_rows(change.diff, width))]
            if change.diff
            else section(label, change.text, width)
        )

    def _checks(self, run: Snapshot, width: int) -> list[Strip]:
        if not run.findings:
            return []
        glyphs, rows = self.glyphs, []
        allowed = sum(found.level == "allow" for found in run.findings)
        if allowed:
            rows.append(line((f"{glyphs.ok} {plural(allowed, 'check')} passed", "green")))
        for found in sorted(run.findings, key=lambda item: item.level != "refuse"):
            if found.level == "allow":
                continue
            sign, look = (glyphs.fail, "bold red") if found.level == "refuse" else (glyphs.warn, "yellow")
            rows += noted(sign, f"{found.rule}: {found.text}", width, look, remedy=found.remedy, arrow=glyphs.arrow)
        return [line(""), *labelled("checks", rows)]


class PlanScreen(ConsoleScreen):
    """The plan."""

    WORD = "plan"
    FIRST = ("plan.run", "plan")
    PANES: ClassVar[tuple[type, ...]] = (PlanPane,)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "run", "run it", id="plan.run", tooltip="do what the plan says, after a question"),
        Binding(verb("plan").key, "plan", "plan anew", id="plan", tooltip=verb("plan").help),
    ]

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._pane = PlanPane()
        self._asked = ""
        """The plan that Enter was pressed on."""

    def body(self) -> ComposeResult:
        yield self._pane

    def show(self, glance: Glance, moment: Moment) -> None:
        self._pane.show(glance, moment)
        if self._asked and glance.running and not glance.run.read_only and glance.run.run != self._asked:
            self._asked = ""
            self.call_later(self.relaunch.back)  # it was agreed to and has begun: the main screen shows it

    def action_plan(self) -> None:
        self.relaunch.do(Deed("redeploy", dry_run=True))

    def action_run(self) -> None:
        glance = self.source.glance()
        run = glance.run
        key = self.relaunch.key_of("plan")
        if glance.running:
            self.relaunch.say("wait for its end", "warning")
        elif not run.run or not run.read_only or run.ended is None:
            self.relaunch.say(f"there is no plan to run yet; {key} makes one", "warning")
        elif run.ended.code:
            self.relaunch.say(f"the plan was refused; mend what it says and press {key}", "warning")
        elif not _needed(run):
            self.relaunch.say("nothing to do: every step is satisfied")
        else:
            self._asked = run.run
            self.relaunch.do(Deed("redeploy"))


def _widest(table: str) -> int:
    return max((len(text) for text in table.splitlines()), default=0)


def table_rows(table: str) -> list[Strip]:
    """The aligned lines of a finding's figures."""
    return [line(f"  {text}") for text in clean(table).splitlines()]


def measured_rows(run: Snapshot) -> list[Strip]:
    """Each figure of the started server's log beside its forecast; nothing while it has said none."""
    small = (" the practice checkpoint is small, its server tells a real model's figures", "dim")
    rows = [line(("  measured  ", "dim"), compared(event)) for event in run.compared]
    return [*rows, line(small)] if rows and run.rehearsal else rows


def _needed(run: Snapshot) -> list[StepView]:
    """Steps that would do, do, or did something."""
    return [step for step in run.steps if step.state in ("needed", "running", "verifying", "done", "failed")]


def _moves(texts: list[str], width: int) -> list[Strip]:
    """`+ added`, `- removed`, `~ changed`, each in its colour."""
    looks = {"+": "green", "-": "red", "~": "yellow"}
    return [row for text in texts for row in noted(text[0], text[2:], width, looks[text[0]])]
