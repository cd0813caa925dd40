"""How fast it serves: each load point against the last good release, as table and as bars, and what the gates say.

What is shown is measured by this run; before that, what the last good release was kept with, and the screen says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip

from console.events import Measured
from console.live import Glance
from console.throughput.gate import Verdict, verdicts
from console.verbs import verb
from screens.base import ConsoleScreen
from screens.deeds import Deed
from screens.plan import measured_rows
from screens.source import Moment, Source
from screens.widgets.checklist import progress_words
from screens.widgets.lines import Pager, Part, line
from screens.widgets.plots import Bar, plot
from screens.widgets.sections import empty, labelled, noted

PANE_ID = "throughput"
SIDE_BY_SIDE = 110
NOTEWORTHY = 3.0
"""Percent of change from which on a difference is coloured."""


class ThroughputPane(Pager):
    """The page."""

    def __init__(self) -> None:
        super().__init__("Throughput", id=PANE_ID)
        self._glance = Glance()
        self._moment = Moment(0.0, 0.0)

    def show(self, glance: Glance, moment: Moment) -> None:
        self._glance, self._moment = glance, moment
        self.redraw()

    def measured(self) -> tuple[Measured, ...]:
        """What is shown: this run's figures, else those that the last good release was kept with."""
        run = self._glance.run.measured
        return run or (self._glance.good.baseline if self._glance.good else ())

    def heading(self) -> tuple[Part, ...]:
        run, good = self._glance.run, self._glance.good
        if run.measured:
            return ((f"run {run.run}", ""), *self._judged())
        if good is not None and good.baseline:
            return ((f"kept with release {good.number}; nothing was measured since", "yellow"),)
        return ()

    def _judged(self) -> tuple[Part, ...]:
        found = self._verdicts()
        broken = sum(not verdict.kept for verdict in found)
        if not found:
            return (("no gates", "dim"),)
        if broken:
            return ((f"{self.glyphs.fail} {broken} of {len(found)} bounds broken", "bold red"),)
        return ((f"{self.glyphs.ok} all {len(found)} bounds kept", "green"),)

    def _verdicts(self) -> tuple[Verdict, ...]:
        profile = self._glance.profile
        gates = profile.throughput.gates if profile else ()
        return verdicts(gates, self.measured(), self._baseline())

    def body(self, width: int) -> list[Strip]:
        rows = self._under_way(width)
        points = self.measured()
        if not points:
            return rows or empty(self._nothing(), width)
        before = self._baseline()
        rows += [line(""), *self._table(points, before, width), line("")]
        broken = [verdict for verdict in self._verdicts() if not verdict.kept]
        rows += [*labelled("broken", self._judgements(broken, width), "bold red"), line("")] if broken else []
        rows += self._legend(before)
        rows += self._plots(points, before, width)
        return [*rows, line(""), *self._kept(width), *self._forecast()]

    def _nothing(self) -> tuple[str, ...]:
        points = self._glance.profile.throughput.points if self._glance.profile else ()
        key = self.relaunch.key_of("bench")
        if self._glance.profile is not None and not points:
            return (
                "The profile names no load points, so nothing is measured.",
                "Give it throughput.points and throughput.gates; then speed and delay by load stand here.",
            )
        return (
            "Nothing was measured yet.",
            "Tokens per second, time to the first token and between tokens stand here for each load point, against the last "
            f"good release and the profile's gates. {key} measures what serves now; a redeploy does so by itself.",
        )

    def _under_way(self, width: int) -> list[Strip]:
        """How far the load test is, while it runs."""
        step = self._glance.run.step("throughput")
        if not self._glance.running or step is None or step.state not in ("running", "verifying"):
            return []
        words = progress_words(self.glyphs, step, self._glance, max(10, width - 14))
        return [line((f" {self.glyphs.run} measuring  ", "bold cyan"), words)]

    def _baseline(self) -> tuple[Measured, ...]:
        """The last good release's figures; none while they themselves are what is shown."""
        good = self._glance.good
        return good.baseline if good is not None and good.baseline != self.measured() else ()

    # -- table ----------------------------------------------------------------------------------------------------

    def _table(self, points: tuple[Measured, ...], before: tuple[Measured, ...], width: int) -> list[Strip]:
        wide = width >= 76
        head = f"{'streams':>8} {'tok/s':>8}"
        head += f" {'each':>7}" if wide else ""
        head += f"  {'TTFT p50':>8} {'p99':>6}" if width >= 48 else ""
        head += f"  {'ITL p50':>7} {'p99':>6}  {'against last good':>17}" if wide else f"  {'last good':>9}"
        rows = [line((head, "dim"))]
        for point in points:
            speed = point.output_tokens_per_s
            each = None if speed is None else speed / point.concurrency
            cells = f"{point.concurrency:>8} {_shown(speed):>8}"
            cells += f" {_shown(each):>7}" if wide else ""
            cells += f"  {_seconds(point.ttft_ms, 'p50'):>8} {_seconds(point.ttft_ms, 'p99'):>6}" if width >= 48 else ""
            cells += f"  {_shown(point.itl_ms.get('p50')):>7} {_shown(point.itl_ms.get('p99')):>6}" if wide else ""
            text, look = self._change(point, before)
            failed: Part = (f"  {self.glyphs.fail} {point.failed} failed", "bold red") if point.failed else ""
            rows.append(line(cells, ("  " + text.rjust(17 if wide else 9), look), failed))
        shapes = sorted({(point.input_tokens, point.output_tokens) for point in points})
        about = ", ".join(f"{given:,} tokens in, {made:,} out" for given, made in shapes)
        return [*rows, line((f"   {about}; TTFT in seconds, ITL in milliseconds", "dim"))]

    def _change(self, point: Measured, before: tuple[Measured, ...]) -> tuple[str, str]:
        old = _same(point, before)
        if old is None or not old.output_tokens_per_s:
            return ("no such figure" if before else "-"), "dim"
        if point.output_tokens_per_s is None:
            return "?", "dim"
        change = 100 * (point.output_tokens_per_s / old.output_tokens_per_s - 1)
        look = "" if abs(change) < NOTEWORTHY else ("green" if change > 0 else "bold yellow")
        return f"{change:+.1f} %", look

    # -- plots ----------------------------------------------------------------------------------------------------

    def _legend(self, before: tuple[Measured, ...]) -> list[Strip]:
        glyphs = self.glyphs
        mark = "|" if glyphs.ascii else glyphs.thumb
        parts: list[Part] = ["   ", (glyphs.full, "green"), " now, p50  ", (glyphs.rest, "green"), " on to p99  "]
        parts += (
            [(mark, "bold yellow"), " last good release (p99 of delays)"]
            if before
            else [(self._nothing_before(), "dim")]
        )
        return [line(*parts), line("")]

    def _nothing_before(self) -> str:
        own = self._glance.good is not None and self._glance.good.baseline == self.measured()
        return "these are the last good release's own figures" if own else "no last good release to compare with"

    def _plots(self, points: tuple[Measured, ...], before: tuple[Measured, ...], width: int) -> list[Strip]:
        side = width >= SIDE_BY_SIDE
        each = (width - 2) // 3 if side else width - 1
        drawn = []
        for title, form, bars in self._series(points, before):
            drawn.append(plot(self.glyphs, title, bars, each, form=form))
        if side:
            return [_beside(rows, each) for rows in zip(*drawn, strict=True)]
        return [row for rows in drawn for row in (*rows, line(""))][:-1]

    def _series(
        self, points: tuple[Measured, ...], before: tuple[Measured, ...]
    ) -> tuple[tuple[str, str, list[Bar]], ...]:
        old = {id(point): _same(point, before) for point in points}

        def delay(
            point: Measured, values: Mapping[str, float], former: Mapping[str, float] | None, scale: float
        ) -> Bar:
            def scaled(number: float | None) -> float | None:
                return None if number is None else number / scale

            mark = None if former is None else former.get("p99", former.get("p50"))
            return Bar(str(point.concurrency), scaled(values.get("p50")), scaled(values.get("p99")), scaled(mark))

        def former(point: Measured, name: str) -> Mapping[str, float] | None:
            found = old[id(point)]
            return None if found is None else getattr(found, name)

        speed = [
            Bar(
                str(p.concurrency),
                p.output_tokens_per_s,
                None,
                None if (o := old[id(p)]) is None else o.output_tokens_per_s,
            )
            for p in points
        ]
        first = [delay(p, p.ttft_ms, former(p, "ttft_ms"), 1000.0) for p in points]
        between = [delay(p, p.itl_ms, former(p, "itl_ms"), 1.0) for p in points]
        return (
            ("tokens/s by streams (more is better)", "{:,.0f}", speed),
            ("TTFT in s by streams (less is better)", "{:.2f}", first),
            ("ITL in ms by streams (less is better)", "{:.1f}", between),
        )

    # -- gates ----------------------------------------------------------------------------------------------------

    def _kept(self, width: int) -> list[Strip]:
        found = self._verdicts()
        if not found:
            return labelled("gates", [line(("the profile sets none", "dim"))])
        return labelled("kept", self._judgements([verdict for verdict in found if verdict.kept], width))

    def _forecast(self) -> list[Strip]:
        """What the started server's log said of its memory, beside what was forecast."""
        rows = measured_rows(self._glance.run)
        return [line(""), *labelled("memory", rows)] if rows else []

    def _judgements(self, found: list[Verdict], width: int) -> list[Strip]:
        rows: list[Strip] = []
        for verdict in found:
            sign, look = (self.glyphs.ok, "") if verdict.kept else (self.glyphs.fail, "bold red")
            rows += noted(sign, verdict.text, width, look, remedy=verdict.remedy, arrow=self.glyphs.arrow)
        return rows


class ThroughputScreen(ConsoleScreen):
    """The figure, against last time."""

    WORD = "throughput"
    FIRST = ("bench",)
    PANES: ClassVar[tuple[type, ...]] = (ThroughputPane,)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(verb("bench").key, "measure", "measure now", id="bench", tooltip=verb("bench").help),
    ]

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._pane = ThroughputPane()

    def body(self) -> ComposeResult:
        yield self._pane

    def show(self, glance: Glance, moment: Moment) -> None:
        self._pane.show(glance, moment)

    def action_measure(self) -> None:
        self.relaunch.do(Deed("bench"))


def _same(point: Measured, baseline: tuple[Measured, ...]) -> Measured | None:
    """The baseline's load point of the same shape."""
    shape = (point.concurrency, point.input_tokens, point.output_tokens)
    return next((b for b in baseline if (b.concurrency, b.input_tokens, b.output_tokens) == shape), None)


def _shown(value: float | None) -> str:
    return "?" if value is None else f"{value:,.1f}"


def _seconds(values: Mapping[str, float], name: str) -> str:
    value = values.get(name)
    return "?" if value is None else f"{value / 1000:.2f}"


def _beside(rows: tuple[Strip, ...], width: int) -> Strip:
    return Strip([segment for row in rows for segment in row.adjust_cell_length(width)])
