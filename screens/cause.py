"""Why the launch failed, whole: the line among its neighbours, who said it, what it means, what to do, what was left out.

The run's own cause comes first; what triage says of the log in hand is joined to it where both speak of the same line,
and stands below it where they do not. Lines around the cause come from triage, else from the evidence that the run left
on this machine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip

from console.live import Glance
from console.logs.linefile import LineFile
from console.printing import moved_lines
from console.text import clean, plural
from console.triage.page import fix_words
from screens.base import ConsoleScreen
from screens.failure import AROUND, Account, account, evidence_folder, find_line, lines_around, neighbours, same
from screens.keys import verb_binding
from screens.source import Moment, Source
from screens.widgets.lines import Pager, Part, fit, line, wrap
from screens.widgets.sections import LABEL, diff_rows, empty, labelled, old, section

PANE_ID = "cause"
CONTEXT_COLUMNS = 1000


class CauseDetail(Pager):
    """The page."""

    def __init__(self, spool: LineFile) -> None:
        super().__init__("First cause", id=PANE_ID)
        self._glance = Glance()
        self._moment = Moment(0.0, 0.0)
        self._spool = spool
        self._seen: tuple[object, ...] | None = None
        self._account: Account | None = None
        self._folder: Path | None = None
        self.spool_line: int | None = None
        """Where the cause's line begins in the spool, in bytes; None when it is not found there."""
        self._sought = ""

    def show(self, glance: Glance, moment: Moment) -> None:
        self._glance, self._moment = glance, moment
        mark = (glance.run.cause, glance.run.proposed, glance.run.ended, glance.running, glance.log.diagnosis)
        if mark != self._seen:
            self._seen = mark
            self._look()
        self.redraw()

    def _look(self) -> None:
        found, run = account(self._glance), self._glance.run
        self._folder = evidence_folder(run.run) if run.cause is not None or run.ended is not None else None
        if found is not None and not found.around and found.line and self._folder is not None:
            around, at = neighbours(self._folder / "journal.log", found.line)
            found = replace(found, around=around, at=at)
        self._account = found
        self._find("" if found is None else found.text)
        if found is not None and not found.around and self.spool_line is not None:
            around, at = lines_around(self._spool, self.spool_line)
            self._account = replace(found, around=around, at=at)

    def _find(self, text: str) -> None:
        """Look for the cause in the spool, once for each cause: its place does not move while lines are added."""
        if text != self._sought:
            self._sought = text
            self.spool_line = find_line(self._spool, text)

    def heading(self) -> tuple[Part, ...]:
        run = self._glance.run
        parts: list[Part] = []
        if run.cause is not None or run.ended is not None:
            parts.append(f"run {run.run}")
        elif self._glance.log.unit:
            parts.append(clean(self._glance.log.unit))
        age = old(self._moment, self._glance.log.seen)
        if age and self._account is not None and self._glance.log.following:
            parts.append((f"the log's last line is {age}", "dim"))
        elif age and self._account is not None:
            parts.append((f"{self.glyphs.warn} the log is {age}", "yellow"))
        return tuple(parts)

    def body(self, width: int) -> list[Strip]:
        found = self._account
        if found is None:
            return empty(self._nothing(), width)
        rows = self._head(found, width)
        rows += self._where(found, width)
        rows += section(
            "means",
            found.meaning or "? no rule of the catalogue knows this line",
            width,
            look="" if found.meaning else "dim",
        )
        rows += section(
            "do",
            found.remedy or "? read the lines around it; l opens the log",
            width,
            look="" if found.remedy else "dim",
        )
        rows += self._fix(found, width)
        rows += self._around(found, width)
        rows += self._rest(found, width)
        return rows

    def _nothing(self) -> tuple[str, ...]:
        found = self._glance.log.diagnosis
        state = {
            "ready": "The last launch became ready, so there is no cause.",
            "unfinished": "The launch is under way; no failure so far.",
        }
        words = state.get(found.outcome, "") if found is not None else ""
        return (
            words or "No failure is known.",
            "When a run or a launch fails, the line that explains it stands here, with the lines around it, what it means, and "
            "which key mends it.",
            f"{self.relaunch.key_of('logs')} opens the log.",
        )

    def _head(self, found: Account, width: int) -> list[Strip]:
        sign = self.glyphs.fail
        rows = [
            line(
                (f" {sign} {found.title}", "bold red"), ("" if found.certain else "   suspected, not certain", "yellow")
            )
        ]
        parts = clean(found.text) or "the log does not say why"
        return [*rows, line(""), *section("said", parts, width, look="bold")]

    def _where(self, found: Account, width: int) -> list[Strip]:
        parts = [clean(found.process)] if found.process else []
        if found.ranks is not None and found.ranks > 1:
            parts.append(f"the same on {found.ranks} ranks")
        if found.only_rank is not None:
            parts.append(f"rank {found.only_rank} alone: look at that GPU")
        if found.line is not None:
            of = f" of {found.lines:,}" if found.lines else ""
            parts.append(f"line {found.line:,}{of}")
        if found.stage:
            parts.append(f"stage {found.stage.replace('_', ' ')}")
        if found.where != "log":
            parts.append(f"read from the {found.where}, not from the log")
        if found.category:
            parts.append(found.category)
        rows = (
            section("where", " · ".join(parts) if not self.glyphs.ascii else ", ".join(parts), width) if parts else []
        )
        if found.line is not None and found.lines:
            rows += labelled("", [self._place(found.line, found.lines, min(60, width - 14))])
        return rows

    def _place(self, number: int, of: int, width: int) -> Strip:
        """Where in the log it stands, as a mark on a line from first to last."""
        cell = min(width - 1, int((number - 1) / max(1, of) * width))
        rule = self.glyphs.rule
        return line((rule * cell, "dim"), (self.glyphs.fail, "bold red"), (rule * (width - cell - 1), "dim"))

    def _around(self, found: Account, width: int) -> list[Strip]:
        if not found.around:
            return []
        first = max(0, found.at - AROUND)
        rows = []
        for place in range(first, min(len(found.around), found.at + AROUND + 1)):
            here = place == found.at
            number = "" if found.line is None else str(found.line - found.at + place)
            mark = self.glyphs.cursor if here else " "
            text = fit(
                clean(found.around[place])[:CONTEXT_COLUMNS], max(8, width - 20), ellipsis=self.glyphs.ellipsis
            ).rstrip()
            rows.append(line((f"{mark} {number:>6} ", "bold red" if here else "dim"), (text, "bold" if here else "")))
        return [line(""), *labelled("around", rows)]

    def _fix(self, found: Account, width: int) -> list[Strip]:
        remedy = self._glance.run.proposed
        if remedy is None:
            return section("fix", f"a redeploy with --fix can {fix_words(found.fix)}", width) if found.fix else []
        key = self.relaunch.key_of("fix")
        said = wrap(f"{clean(remedy.text)}, and launch again", max(8, width - LABEL - 1 - len(key)))
        rows = [line((key if not place else " " * len(key), "bold red"), f" {part}") for place, part in enumerate(said)]
        return labelled("fix", [*rows, *diff_rows(moved_lines(remedy.diff), width)])

    def _rest(self, found: Account, width: int) -> list[Strip]:
        rows: list[Strip] = []
        for place, text in enumerate(found.outside):
            rows += section("besides" if not place else "", text, width, look="yellow")
        diagnosis, run = self._glance.log.diagnosis, self._glance.run
        if (
            run.cause is not None
            and diagnosis is not None
            and diagnosis.cause is not None
            and not same(run.cause, diagnosis)
        ):
            rows += section("log says", f"{diagnosis.cause.text} (line {diagnosis.cause.line or '?'})", width)
        if run.ended is not None and found.text != run.ended.text and run.ended.code:
            rows += section("then", run.ended.text, width)
        noise = diagnosis.noise if diagnosis is not None else ()
        hidden = sum(item.count for item in noise)
        if hidden:
            reasons = "; ".join(
                f"{item.count} {self.glyphs.times} {item.reason}" for item in sorted(noise, key=lambda n: -n.count)[:4]
            )
            more = f"; and {len(noise) - 4} more reasons" if len(noise) > 4 else ""
            rows += section(
                "harmless", f"{plural(hidden, 'line')} that look bad and are not: {reasons}{more}", width, look="dim"
            )
        if self._folder is not None:
            rows += section("kept in", str(self._folder), width, look="dim")
        return [line(""), *rows] if rows else []


class CauseScreen(ConsoleScreen):
    """The first cause."""

    WORD = "first cause"
    FIRST = ("fix", "logs", "rollback")
    PANES: ClassVar[tuple[type, ...]] = (CauseDetail,)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "F",
            "app.fix",
            "fix and relaunch",
            id="fix",
            tooltip="apply the known remedy of the failure, and launch again",
        ),
        Binding("enter", "log", "show in log", id="cause.log", tooltip="open the log at the cause"),
        verb_binding("logs", "log"),
        verb_binding("rollback"),
    ]

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._pane = CauseDetail(source.spool)

    def body(self) -> ComposeResult:
        yield self._pane

    def show(self, glance: Glance, moment: Moment) -> None:
        self._pane.show(glance, moment)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that would do nothing now are not named."""
        if action == "log":
            return self._pane.spool_line is not None
        return True

    def action_log(self) -> None:
        offset = self._pane.spool_line
        if offset is None:
            return
        self.relaunch.open("log")
        self.relaunch.call_later(self._jump, offset)

    def _jump(self, offset: int) -> None:
        """Once the log stands on top: to the line that begins at `offset`."""
        from screens.log import LogScreen  # the log is opened by now, or it is not here

        screen = self.relaunch.screen
        if isinstance(screen, LogScreen):
            pane = screen.pane

            def go() -> None:
                pane.page.jump(offset)
                pane.redraw()

            screen.call_after_refresh(go)
