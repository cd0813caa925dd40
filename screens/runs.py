"""The history: every run that this account's store holds, newest first; Enter replays one.

The store is read when the screen comes up and when the run in hand begins or ends, never on the timer.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip

from console.deploy.store import RunRow, Store, started
from console.errors import ExitCode, RelaunchError
from console.live import Glance
from console.text import clean, duration, headline
from screens.base import ConsoleScreen
from screens.glyphs import Glyphs
from screens.outcomes import OUTCOMES
from screens.source import Moment, Source
from screens.widgets.choice import Choice
from screens.widgets.lines import Pane, Part, fit, line, wrap
from screens.widgets.sections import age_words

LIMIT = 500
"""Runs that are listed; `relaunch runs --limit` lists more."""
NARROW, OUTCOME = 6, 21
"""Columns of a run's end: sign and code, and its words as well."""
RESULT = 100
"""Columns from which the run's last sentence stands in the list; before that the pane below has it."""
LIST_ID = "runs-list"
CHOSEN_ID = "runs-chosen"


def outcome(row: RunRow, glyphs: Glyphs, *, running: bool) -> tuple[str, str, str]:
    """(sign, words, colour) of how a run ended. Without an end it runs here, or nobody knows."""
    if row.code is None:
        return (glyphs.run, "runs now", "bold cyan") if running else (glyphs.unknown, "no end known", "yellow")
    words = OUTCOMES.get(row.code, "failed")
    if row.code == ExitCode.DONE:
        return glyphs.ok, words, "green"
    if row.code in (ExitCode.INTERRUPTED, ExitCode.RESTORED, ExitCode.REFUSED, ExitCode.LOCKED):
        return glyphs.warn, words, "yellow"
    return glyphs.fail, words, "bold red"


def history(store: Store, limit: int, known: dict[str, bool]) -> tuple[RunRow, ...]:
    """The newest runs, with `plan` as verb of those that changed nothing: the store's row alone does not tell them from
    the real ones. `known` remembers what was looked up, run by run."""
    rows = []
    for row in store.runs(limit=limit):
        if row.id not in known:
            began = started(store, row.id)
            if began is None and row.code is None:
                rows.append(row)  # reserved a moment ago; its first event is still to come
                continue
            known[row.id] = began is not None and began.read_only
        rows.append(replace(row, verb="plan") if known[row.id] else row)
    return tuple(rows)


class RunList(Choice):
    """The table. Key of a row is the run's id."""

    def __init__(self) -> None:
        super().__init__("Runs", id=LIST_ID)
        self._runs: dict[str, RunRow] = {}
        self._now = ""
        self._moment = Moment(0.0, 0.0)
        self._trouble = ""

    def show(self, runs: tuple[RunRow, ...], now: str, moment: Moment, trouble: str) -> None:
        """`now` is the id of the run in hand, or empty."""
        self._runs = {row.id: row for row in runs}
        self._now, self._moment, self._trouble = now, moment, trouble
        self.redraw()

    def get(self, key: str) -> RunRow | None:
        return self._runs.get(key)

    def keys(self) -> list[str]:
        return list(self._runs)

    def heading(self) -> tuple[Part, ...]:
        full = len(self._runs) == LIMIT
        return ((f"the newest {LIMIT}" if full else f"{len(self._runs)}", "dim"),) if self._runs else ()

    def trouble(self) -> str:
        return f"the history cannot be read: {self._trouble}" if self._trouble else ""

    def nothing(self) -> tuple[str, ...]:
        return (
            "No run yet.",
            "Every plan, redeploy, rollback and load test of this account will stand here, with its end; Enter replays one.",
            "p makes a plan and changes nothing; D redeploys. Both are on the main screen: q goes there.",
        )

    def columns(self, width: int) -> str:
        text = (
            f"{'end':<{NARROW if width < 60 else OUTCOME}}{self._cells('run', 'when', 'took', 'verb', 'node', width)}"
        )
        return text + ("  result" if width >= RESULT else "")

    def row(self, key: str, width: int, *, chosen: bool) -> Strip:
        row = self._runs[key]
        sign, words, look = outcome(row, self.glyphs, running=key == self._now)
        code = "" if row.code is None else str(row.code)
        took = "" if row.ended is None else duration(max(0.0, row.ended - row.started))
        cells = self._cells(row.id, self._when(row), took, row.verb, _where(row, width), width)
        parts: list[Part] = [(f"{sign} {code:>3} ", look)]
        if width >= 60:
            parts.append((fit(words, OUTCOME - NARROW), look))
        parts.append((cells, "bold" if chosen else ""))
        if width < RESULT:
            return line(*parts)
        mark = "rehearsal " if row.rehearsal else ""
        text = headline(clean(row.text), 400) or (
            "" if row.code is not None else "its console was killed; :resume takes it up"
        )
        room = width - sum(len(part if isinstance(part, str) else part[0]) for part in parts) - len(mark) - 2
        return line(
            *parts,
            "  ",
            (mark, "yellow"),
            (fit(text, max(0, room), ellipsis=self.glyphs.ellipsis).rstrip(), "" if chosen else "dim"),
        )

    def _cells(self, run: str, when: str, took: str, verb: str, node: str, width: int) -> str:
        ellipsis = self.glyphs.ellipsis
        cells = f"{run:<5} {when:<12}"
        if width < 60:
            return f"{cells} {fit(verb, 9, ellipsis=ellipsis)}"
        return f"{cells} {took:>7}  {fit(verb, 9, ellipsis=ellipsis)} {fit(node, 18 if width >= RESULT else max(8, width - 61), ellipsis=ellipsis)}"

    def _when(self, row: RunRow) -> str:
        """The clock for today, the date before that."""
        then = time.localtime(row.started)
        today = time.localtime(self._moment.wall)[:3] == then[:3]
        return time.strftime("%H:%M:%S" if today else "%d %b %H:%M", then)


class ChosenRun(Pane):
    """All that the list says of the chosen run, unabridged."""

    DEFAULT_CSS = "ChosenRun { height: 5; }"

    def __init__(self) -> None:
        super().__init__(id=CHOSEN_ID)
        self._row: RunRow | None = None
        self._moment = Moment(0.0, 0.0)

    def show(self, row: RunRow | None, moment: Moment) -> None:
        self._row, self._moment = row, moment
        self.redraw()

    def rows(self, width: int, height: int) -> list[Strip]:
        row = self._row
        if row is None:
            return []
        ago = age_words(self._moment.wall - row.started)
        about = f" run {row.id} {row.verb} "
        detail = f"{clean(row.node)} {self.glyphs.crumb} {clean(row.profile)}, {ago} ago" + (
            ", rehearsal" if row.rehearsal else ""
        )
        said = wrap(clean(row.text), max(8, width - 2)) if row.text else ["nothing was written down about its end"]
        head = line((self.glyphs.rule, "dim"), (about, "bold"), detail, " ", (self.glyphs.rule * width, "dim")).crop(
            0, width
        )
        if len(said) > height - 1:
            said = [*said[: height - 2], f"{said[height - 2]} {self.glyphs.ellipsis}"]
        return [head, *(line(f" {part}") for part in said)]


class RunsScreen(ConsoleScreen):
    """The history."""

    WORD = "runs"
    FIRST = ("choice.open",)
    PANES: ClassVar[tuple[type, ...]] = (RunList,)
    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "refresh", "read again", id="runs.refresh")]

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._list = RunList()
        self._chosen = ChosenRun()
        self._runs: tuple[RunRow, ...] = ()
        self._read: tuple[str, bool, bool] | None = None
        self._plans: dict[str, bool] = {}
        self._trouble = ""
        self._now = ""
        self._moment = Moment(0.0, 0.0)

    def body(self) -> ComposeResult:
        yield self._list
        yield self._chosen

    def show(self, glance: Glance, moment: Moment) -> None:
        self._now = glance.run.run if glance.running else ""
        self._moment = moment
        mark = (glance.run.run, glance.running, glance.run.ended is None)
        if mark != self._read:
            self._read = mark
            self._fetch()
        self._list.show(self._runs, self._now, moment, self._trouble)
        self._chosen.show(self._list.get(self._list.chosen), moment)

    def _fetch(self) -> None:
        try:
            self._runs, self._trouble = history(self.source.store, LIMIT, self._plans), ""
        except Exception as error:  # a store that another program holds or that is broken: what was read before stays
            self._trouble = clean(str(error.message if isinstance(error, RelaunchError) else error))

    def action_refresh(self) -> None:
        self._read = None
        self.relaunch.tick(again=True)

    def on_choice_moved(self, event: Choice.Moved) -> None:
        self._chosen.show(self._list.get(event.key), self._moment)

    def on_choice_chosen(self, event: Choice.Chosen) -> None:
        self.relaunch.open("replay", run=event.key)


def _where(row: RunRow, width: int) -> str:
    """The node; in a narrow list a rehearsal is called that, since there is no room for the mark."""
    return "rehearsal" if row.rehearsal and width < RESULT else clean(row.node)
