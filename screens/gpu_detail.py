"""GPUs one by one: everything that the driver tells of each, who holds its memory, how that went, and what is wrong.

`1` to `8` show one GPU, `a` all of them in a table. The numbers are places in the list, so `1` is GPU 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip

from console.live import Glance, GpuView
from console.node.gpu import Gpu, GpuFinding, GpuProcess, GpuSample
from console.text import clean, gib
from screens.base import ConsoleScreen
from screens.source import Moment, Source
from screens.widgets.bars import Band, number, sparkline, stacked
from screens.widgets.lines import Pager, Part, fit, line
from screens.widgets.sections import LABEL, empty, labelled, noted, old, section

PANE_ID = "gpu-detail"


@dataclass(frozen=True, slots=True)
class Shares:
    """Memory of one GPU in bytes by owner. `loose` is used memory that no visible process accounts for; None: unknown."""

    ours: int | None
    foreign: int | None
    loose: int | None
    free: int | None


def shares(gpu: Gpu, unit: str) -> Shares:
    """Who holds the memory: the service `unit`, other processes, nobody that can be seen."""
    if any(process.memory is None for process in gpu.processes) or not (gpu.processes or gpu.memory_used is not None):
        ours = foreign = loose = None
    else:
        ours = sum(process.memory or 0 for process in gpu.processes if is_ours(process, unit))
        foreign = sum(process.memory or 0 for process in gpu.processes) - ours
        loose = None if gpu.memory_used is None else max(0, gpu.memory_used - ours - foreign)
    if gpu.memory_total is None or gpu.memory_used is None:
        return Shares(ours, foreign, loose, None)
    return Shares(ours, foreign, loose, max(0, gpu.memory_total - gpu.memory_used - (gpu.memory_reserved or 0)))


def is_ours(process: GpuProcess, unit: str) -> bool:
    return bool(unit) and process.unit == unit


class GpuPane(Pager):
    """All GPUs as a table, or one with everything."""

    def __init__(self) -> None:
        super().__init__("GPUs", id=PANE_ID)
        self.one: int | None = None
        """Place in the list of the GPU that is shown; None for all."""
        self._view = GpuView()
        self._unit = ""
        self._moment = Moment(0.0, 0.0)

    def show(self, glance: Glance, moment: Moment) -> None:
        self._view, self._moment = glance.gpus, moment
        self._unit = glance.profile.service.unit if glance.profile else ""
        self.redraw()

    @property
    def count(self) -> int:
        return len(self._view.sample.gpus) if self._view.sample else 0

    def choose(self, place: int | None) -> None:
        self.one, self._first = place, 0
        self.redraw()

    def heading(self) -> tuple[Part, ...]:
        sample = self._view.sample
        parts: list[Part] = []
        if sample is not None:
            parts.append((f"driver {clean(sample.driver or '?')}  CUDA {clean(sample.cuda or '?')}", "dim"))
        age = old(self._moment, self._view.seen)
        if age:
            parts.insert(0, (f"{self.glyphs.warn} {age}", "bold yellow"))
        return tuple(parts)

    def body(self, width: int) -> list[Strip]:
        sample = self._view.sample
        if sample is None:
            why = clean(self._view.trouble) or "the node has not been reached yet"
            return empty(
                ("Nothing is known of the GPUs yet.", f"Memory by owner, utilisation, power, temperature and processes of "
                 f"each stand here once the node tells: {why}.", "Nothing needs to be pressed; h on the main screen lists other nodes."),
                width,
            )  # fmt: skip
        if not sample.gpus:
            return [*empty(("The node shows no GPU.",), width), line(""), *self._findings(sample.findings, width)]
        trouble = clean(self._view.trouble)
        wrong = (
            labelled("trouble", noted(self.glyphs.warn, trouble, width, "bold yellow"), "bold yellow")
            if trouble
            else []
        )
        if self.one is None or self.one >= len(sample.gpus):
            return [*wrong, *self._all(sample, width)]
        return [*wrong, *self._single(sample, self.one, width)]

    # -- all ------------------------------------------------------------------------------------------------------

    def _all(self, sample: GpuSample, width: int) -> list[Strip]:
        bar = max(8, min(40, width - 66))
        wide = width >= 76
        names = f"   key GPU {'memory':<{bar}} {'used':>6} {'of':>6} {'util':>5}"
        names += f" {'power':>7} {'temp':>5}  trouble" if wide else ""
        rows = [line((names, "dim"))]
        for place, gpu in enumerate(sample.gpus):
            rows.append(self._row(place, gpu, sample, bar, width))
        rows += [line(""), self._legend(), line("")]
        names_of = sorted({clean(gpu.name) if gpu.name else "?" for gpu in sample.gpus})
        rows += section(
            "cards", ", ".join(f"{_count(sample, name)} {self.glyphs.times} {name}" for name in names_of), width
        )
        rows += self._findings(sample.findings, width)
        return rows

    def _row(self, place: int, gpu: Gpu, sample: GpuSample, bar: int, width: int) -> Strip:
        key = str(place + 1) if place < 8 else " "
        if gpu.lost:
            words = f"{self.glyphs.fail} lost: it has fallen off the bus"
            return line(("   ", ""), (f"{key:>3} ", "bold cyan"), f"{gpu.index:>3} ", (words, "bold red"))
        own = [item for item in sample.findings if item.gpu == gpu.index]
        trouble = f"{self.glyphs.warn} {', '.join(dict.fromkeys(item.id for item in own))}" if own else ""
        parts: list[Part] = ["   ", (f"{key:>3} ", "bold cyan"), f"{gpu.index:>3} ", *self._bar(gpu, bar)]
        parts.append(f" {_gib(gpu.memory_used):>6} {_gib(gpu.memory_total):>6} {number(gpu.utilisation):>3} %")
        if width >= 76:
            parts.append(f" {number(gpu.power):>5} W {number(gpu.temperature):>3}{self.glyphs.degree} ")
        parts.append((f" {trouble}", "bold yellow"))
        return line(*parts)

    def _bar(self, gpu: Gpu, width: int) -> list[Part]:
        held = shares(gpu, self._unit)
        glyphs = self.glyphs
        if held.ours is None or held.foreign is None:
            bands: list[Band] = [(gpu.memory_used or 0, glyphs.loose, "magenta")]
        else:
            bands = [
                (held.ours, glyphs.ours, "green"),
                (held.foreign, glyphs.foreign, "yellow"),
                (held.loose or 0, glyphs.loose, "magenta"),
            ]
        return stacked(glyphs, bands, None if gpu.memory_used is None else gpu.memory_total, width)

    def _legend(self) -> Strip:
        glyphs = self.glyphs
        return line(
            " " * LABEL, (glyphs.ours, "green"), " this service  ", (glyphs.foreign, "yellow"), " other processes  ",
            (glyphs.loose, "magenta"), " nobody that can be seen  ", (glyphs.free, "dim"), " free",
        )  # fmt: skip

    # -- one ------------------------------------------------------------------------------------------------------

    def _single(self, sample: GpuSample, place: int, width: int) -> list[Strip]:
        gpu = sample.gpus[place]
        title = f" GPU {gpu.index}"
        where = f"{place + 1} of {len(sample.gpus)}"
        rows = [line((title, "bold"), f"  {clean(gpu.name or '? (name unknown)')}", (f"  {where}", "dim")), line("")]
        if gpu.lost:
            words = "lost: it has fallen off the bus; what stood here is gone"
            rows += labelled("state", [line((f"{self.glyphs.fail} {words}", "bold red"))])
        else:
            rows += self._memory(gpu, width)
            rows += self._figures(gpu, width)
        rows += self._history(place, gpu, width)
        rows += self._card(gpu, width)
        rows += [line(""), *self._processes(gpu, width)]
        return rows + self._findings(tuple(f for f in sample.findings if f.gpu in (gpu.index, None)), width)

    def _memory(self, gpu: Gpu, width: int) -> list[Strip]:
        held = shares(gpu, self._unit)
        bar = max(8, min(60, width - LABEL - 22))
        amount = f"  {_gib(gpu.memory_used)} of {_gib(gpu.memory_total)} GiB"
        glyphs = self.glyphs
        owners: list[tuple[Part, str]] = [
            ((glyphs.ours, "green"), f"this service {_gib(held.ours)}"),
            ((glyphs.foreign, "yellow"), f"others {_gib(held.foreign)}"),
            ((glyphs.loose, "magenta"), f"nobody seen {_gib(held.loose)}"),
            ((glyphs.free, "dim"), f"free {_gib(held.free)}"),
            ((" ", ""), f"driver {_gib(gpu.memory_reserved)}"),
        ]
        rows: list[Strip] = []
        parts: list[Part] = []
        used = 0
        for sign, words in owners:
            if used and used + len(words) + 4 > width - LABEL:
                rows.append(line(*parts))
                parts, used = [], 0
            parts += [sign, f" {words}  "]
            used += len(words) + 4
        rows.append(line(*parts))
        return labelled("memory", [line(*self._bar(gpu, bar), amount), *rows])

    def _figures(self, gpu: Gpu, width: int) -> list[Strip]:
        limit = f" of {number(gpu.power_limit)} W" if gpu.power_limit is not None else ""
        rows = section("load", f"{number(gpu.utilisation)} % busy   {number(gpu.power)} W{limit}   "
                               f"{number(gpu.temperature)} {self.glyphs.degree}{'' if self.glyphs.ascii else 'C'}", width)  # fmt: skip
        health = [
            "? memory errors" if gpu.ecc_uncorrected is None else f"{gpu.ecc_uncorrected:,} uncorrected memory errors",
            _flag(gpu.remap_pending, "rows wait to be remapped", "no row waits to be remapped", "? rows to remap"),
            _flag(gpu.remap_failed, "a remap FAILED", "no remap failed", "? failed remaps"),
        ]
        bad = bool(gpu.ecc_uncorrected or gpu.remap_pending or gpu.remap_failed)
        return [*rows, *section("health", ", ".join(health), width, look="bold yellow" if bad else "")]

    def _history(self, place: int, gpu: Gpu, width: int) -> list[Strip]:
        used = [sample[place] if place < len(sample) else None for sample in self._view.used]
        known = [value for value in used if value is not None]
        room = max(8, min(120, width - LABEL - 1))
        if not known:
            return section("history", "? no sample yet", width)
        drawn = sparkline(self.glyphs, used, gpu.memory_total, min(room, max(1, len(used))))
        shown = [value for value in used[-room:] if value is not None] or known
        words = f"memory of the last {min(room, len(used))} samples: {_gib(min(shown))} to {_gib(max(shown))} GiB"
        return labelled("history", [line((drawn, "green")), line((words, "dim"))])

    def _card(self, gpu: Gpu, width: int) -> list[Strip]:
        cc = "sm_?" if gpu.capability is None else f"sm_{gpu.capability[0]}{gpu.capability[1]}"
        mig = _flag(gpu.mig, "MIG on", "MIG off", "MIG ?")
        return section(
            "card", f"{cc}   {mig}   bus {clean(gpu.bus or '?')}   {clean(gpu.uuid or 'uuid ?')}", width, look="dim"
        )

    def _processes(self, gpu: Gpu, width: int) -> list[Strip]:
        if not gpu.processes:
            words = (
                "none that this login can see"
                if gpu.memory_used
                else ("none" if gpu.memory_used == 0 else "? the driver does not tell")
            )
            return section("held by", words, width, look="dim")
        wide = width >= 76
        rows = [line((f"{'pid':>8} {'memory':>9}  {'owner':<10} {'unit':<24} command" if wide
                      else f"{'pid':>8} {'memory':>9}  unit", "dim"))]  # fmt: skip
        for process in sorted(gpu.processes, key=lambda item: -(item.memory or 0)):
            ours = is_ours(process, self._unit)
            sign: Part = (self.glyphs.ours, "green") if ours else (self.glyphs.foreign, "yellow")
            memory = "?" if process.memory is None else gib(process.memory)
            unit = clean(process.unit or ("" if process.owner else "?")) or "no unit"
            cells = f"{process.pid:>6} {memory:>9}  "
            if wide:
                cells += f"{fit(clean(process.owner or '?'), 10)} {fit(unit, 24)} {clean(process.command or '?')}"
            else:
                cells += unit
            rows.append(line(sign, " ", cells))
        return labelled("held by", rows)

    def _findings(self, findings: tuple[GpuFinding, ...], width: int) -> list[Strip]:
        if not findings:
            return [line(""), *labelled("findings", [line((f"{self.glyphs.ok} the driver reports none", "green"))])]
        rows = [
            row
            for item in findings
            for row in noted(self.glyphs.warn, item.text, width, "yellow", remedy=item.remedy, arrow=self.glyphs.arrow)
        ]
        return [line(""), *labelled("findings", rows)]


class GpuDetailScreen(ConsoleScreen):
    """One GPU, or all of them."""

    WORD = "GPUs"
    FIRST = ("gpu.1", "gpu.all", "gpu.next")
    PANES: ClassVar[tuple[type, ...]] = (GpuPane,)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "one(0)", "one GPU", id="gpu.1", key_display="1-8"),
        *(Binding(str(n), f"one({n - 1})", f"GPU number {n}", id=f"gpu.{n}", show=False) for n in range(2, 9)),
        Binding("a", "all", "all", id="gpu.all"),
        Binding("right", "step(1)", "next", id="gpu.next", key_display="<- ->"),
        Binding("left", "step(-1)", "previous", id="gpu.previous", show=False),
    ]

    def __init__(self, source: Source, index: int | None = None) -> None:
        """`index` is the GPU's own index, of the one to show first; None shows all."""
        super().__init__(source)
        sample = source.glance().gpus.sample
        self._pane = GpuPane()
        self._pane.one = next((p for p, gpu in enumerate(sample.gpus if sample else ()) if gpu.index == index), None)

    def body(self) -> ComposeResult:
        yield self._pane

    def show(self, glance: Glance, moment: Moment) -> None:
        self._pane.show(glance, moment)

    def action_one(self, place: int) -> None:
        if place < self._pane.count:
            self._pane.choose(place)
        else:
            self.relaunch.say(f"there is no GPU number {place + 1}", "warning")

    def action_all(self) -> None:
        self._pane.choose(None)

    def action_step(self, by: int) -> None:
        if self._pane.count:
            at = self._pane.one
            self._pane.choose((0 if by > 0 else -1) % self._pane.count if at is None else (at + by) % self._pane.count)


def _gib(count: int | None) -> str:
    """GiB without its unit; `?` for unknown."""
    return "?" if count is None else f"{count / 2**30:.1f}"


def _flag(value: bool | None, yes: str, no: str, unknown: str) -> str:
    return unknown if value is None else (yes if value else no)


def _count(sample: GpuSample, name: str) -> int:
    return sum((clean(gpu.name) if gpu.name else "?") == name for gpu in sample.gpus)
