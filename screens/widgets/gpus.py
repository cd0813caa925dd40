"""A tile per GPU, all at once: whose the memory is, utilisation, power, temperature, how memory moved; trouble in words.

Three forms by room: wide rows, compact rows, and one strip for a small screen that shows a cause. Memory is told apart as
ours (the profile's unit), of other processes, unclaimed (no process of it is told, or not yet), and free. A GPU that is off the median of the others is
marked: while weights load that is the slow rank, and each row says how many shards its rank has read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from console.live import Glance
from console.node.gpudata import Gpu, GpuFinding, GpuSample, blank_gpu
from console.text import clean, plural
from screens.source import STALE_SECONDS, Moment
from screens.widgets.bars import level, number, sparkline, stacked
from screens.widgets.lines import Pane, Part, fit, line, wrap
from screens.widgets.shards import Shards, behind, loading, shards_by_rank

GIB = float(2**30)
WIDE = 74
"""Columns from which a row shows utilisation, power, temperature and history beside the bar."""
ODD_SHARE, ODD_BYTES = 0.15, 2 * GIB
"""A GPU is odd when its memory is off the median by both of these."""
TROUBLES = 3
_RANK = re.compile(r"(?:Worker_|::)?((?:DP\d+_)?(?:PP\d+_)?TP\d+)")


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one GPU by holder; None where the driver does not tell."""

    ours: float
    foreign: float
    loose: float
    who: str
    """Rank of our process, or the unit or owner of the largest other one; empty when there is none."""
    rank: str = ""
    """The rank alone: `TP3`."""


class Gpus(Pane):
    """All GPUs of the node. Posts `Opened` with an index for the chosen one."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "next GPU", id="gpus.next", show=False),
        Binding("k,up", "move(-1)", "previous GPU", id="gpus.previous", show=False),
        Binding("enter,d", "choose", "open", id="gpus.open"),
    ]

    class Opened(Message):
        """The operator wants to see a GPU."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glance = Glance()
        self._moment = Moment(0.0, 0.0)
        self._place = 0
        self.strip_form = False
        self._rows = [line("")]
        self._shards: dict[str, Shards] = {}

    def show(self, glance: Glance, moment: Moment) -> None:
        self._glance, self._moment = glance, moment
        self._shards = shards_by_rank(glance.log.diagnosis, self._held_by_rank()) if self._loading() else {}
        self.redraw()

    def _held_by_rank(self) -> dict[str, float]:
        """Bytes of our ranks by name; ranks whose process or memory is not told are left out."""
        found = (self._holders(gpu) for gpu in self._gpus() if gpu.memory_used is not None)
        return {held.rank: held.ours for held in found if held.rank}

    def _holders(self, gpu: Gpu) -> Held:
        return holders(gpu, self._glance.profile.service.unit if self._glance.profile else "")

    def action_move(self, by: int) -> None:
        self._place = max(0, min(len(self._gpus()) - 1, self._place + by))
        self.redraw()

    def action_choose(self) -> None:
        gpus = self._gpus()
        if gpus:
            self.post_message(self.Opened(gpus[min(self._place, len(gpus) - 1)].index))

    def _gpus(self) -> tuple[Gpu, ...]:
        """The GPUs as read; before the first reading as many unknown ones as the profile wants."""
        sample = self._sample()
        if sample is not None and sample.gpus:
            return sample.gpus
        wanted = self._glance.profile.serve.tensor_parallel_size if self._glance.profile else 0
        return tuple(blank_gpu(index) for index in range(wanted))

    def _sample(self) -> GpuSample | None:
        return self._glance.gpus.sample

    def rows(self, width: int, height: int) -> list[Strip]:
        gpus = self._gpus()
        if self.strip_form:
            return [self._strip(gpus, width)]
        odd = self._off_median(gpus)
        rows = [self.title(width, "GPUs", *self._about(gpus, width))]
        rows += [self._row(place, gpu, odd, width) for place, gpu in enumerate(gpus)]
        rows += self._troubles(gpus, odd, width)
        if not gpus:
            rows.append(line("  ", ("no GPU is known; u looks at the node again", "dim")))
        return rows

    def _about(self, gpus: Sequence[Gpu], width: int) -> list[Part]:
        sample, glyphs = self._sample(), self.glyphs
        parts: list[Part] = []
        age = self._moment.age(self._glance.gpus.seen)
        if sample is None:
            parts.append((clean(self._glance.gpus.trouble) or "no reading yet", "yellow"))
        elif age is not None and age > STALE_SECONDS:
            parts.append((f"{age:.0f} s old", "bold yellow"))
        progress = self._glance.log.diagnosis.progress if self._glance.log.diagnosis else None
        if progress is not None and self._loading():
            parts.append((f"{progress.done}/{progress.total} shards", "cyan"))
        names = {short_name(gpu.name) for gpu in gpus if gpu.name}
        if sample is not None and gpus:
            name = next(iter(names)) if len(names) == 1 else "mixed"
            parts.append(f"{len(gpus)} {glyphs.times} {name or 'unknown'}")
        if width >= WIDE:
            parts.append((f"{glyphs.ours} ours {glyphs.foreign} others {glyphs.loose} unclaimed", "dim"))
        return parts

    def _off_median(self, gpus: Sequence[Gpu]) -> frozenset[int]:
        """Places of the GPUs to mark. While weights load, only the slow ones: ranks do not read in step."""
        used = [gpu.memory_used for gpu in gpus]
        odd = odd_ones(used)
        middle = _median(used)
        if not self._loading() or middle is None:
            return odd
        return frozenset(place for place in odd if (used[place] or 0) < middle)

    def _loading(self) -> bool:
        return loading(self._glance.log.diagnosis)

    def _row(self, place: int, gpu: Gpu, odd: frozenset[int], width: int) -> Strip:
        glyphs = self.glyphs
        here = self.has_focus and place == self._place
        mark: Part = (glyphs.cursor, "bold cyan") if here else " "
        index: Part = (f"{gpu.index:>2} ", "bold red" if gpu.lost else ("reverse bold" if here else "bold"))
        if gpu.lost:
            return line(mark, index, (f"{glyphs.fail} lost: it has fallen off the bus", "bold red"))
        held = self._holders(gpu)
        bands = (
            (held.ours, glyphs.ours, "green"),
            (held.foreign, glyphs.foreign, "yellow"),
            (held.loose, glyphs.loose, "magenta"),
        )
        total = gpu.memory_total if gpu.memory_used is not None else None
        used = number(None if gpu.memory_used is None else gpu.memory_used / GIB, "{:.1f}")
        flag: Part = (glyphs.warn, "bold yellow") if place in odd else " "
        heat, watts, busy = number(gpu.temperature), number(gpu.power), number(gpu.utilisation)
        shards = str(self._shards.get(held.rank, glyphs.unknown)) if self._shards else ""
        if width < WIDE:
            rest = f"{used:>5}" + (f"{busy:>4}%" if width >= 30 else "")
            # while weights load, how far they are says more than what the GPU draws
            rest += "" if width < 36 else f"{shards:>8}" if shards else f"{watts:>5}W"
            rest += f"{heat:>4}{glyphs.degree}" if width >= 38 else ""
            who = f" {held.who}" if width >= 47 and held.who else ""
            bar = max(4, min(24, width - 5 - len(rest) - 1 - 7 * (width >= 47)))
            return line(mark, index, *stacked(glyphs, bands, total, bar), flag, rest, (who, "dim"))
        history = self._history(place, gpu, 12)
        size = f"{used:>5}/{number(None if gpu.memory_total is None else gpu.memory_total / GIB, '{:.1f}')}"
        rest = f" {busy:>4}%{watts:>5}W{heat:>4}{glyphs.degree}"
        bar = max(10, min(30, width - 4 - 11 - 13 - len(rest) - 16))
        who = f"{held.who} {shards:>7}" if shards and held.who else held.who
        room = max(0, width - bar - 4 - 1 - len(size) - 1 - 12 - len(rest) - 2)
        return line(
            mark, index, *stacked(glyphs, bands, total, bar), flag, f"{size} ", (history, "cyan"), rest,
            (f"  {fit(who, room, ellipsis=glyphs.ellipsis).rstrip()}", "" if shards else "dim"),
        )  # fmt: skip

    def _history(self, place: int, gpu: Gpu, width: int) -> str:
        values = [row[place] if place < len(row) else None for row in self._glance.gpus.used[-width:]]
        return sparkline(self.glyphs, values, gpu.memory_total, width)

    def _troubles(self, gpus: Sequence[Gpu], odd: frozenset[int], width: int) -> list[Strip]:
        sample, glyphs = self._sample(), self.glyphs
        words = [
            (glyphs.fail if _grave(found) else glyphs.warn, finding_words(found))
            for found in (sample.findings if sample is not None else ())
            if found.id != "gpu-lost" or found.gpu is None  # a lost GPU says so in its own row
        ]
        middle = _median([gpu.memory_used for gpu in gpus])
        for place in sorted(odd):
            used = gpus[place].memory_used
            if used is not None and middle is not None:
                words.append((glyphs.warn, self._off_words(gpus[place], used, middle)))
        rows = [
            line(
                "  ", (f"{sign} {part}" if not place else f"  {part}", "bold red" if sign == glyphs.fail else "yellow")
            )
            for sign, text in words[:TROUBLES]
            for place, part in enumerate(wrap(text, width - 5)[:2])
        ]
        if len(words) > TROUBLES:
            rows.append(line("  ", (f"{glyphs.warn} and {len(words) - TROUBLES} more: g shows them", "yellow")))
        return rows

    def _off_words(self, gpu: Gpu, used: float, middle: float) -> str:
        """`GPU 3 is behind the others by 16 shards: 49.7 GiB, they hold 68.0`."""
        side = "behind" if used < middle else "above"
        rank = self._holders(gpu).rank
        late = behind(self._shards, rank) if used < middle else 0
        shards = f" by {'' if self._shards[rank].sure else 'some '}{plural(late, 'shard')}" if late else ""
        return f"GPU {gpu.index} is {side} the others{shards}: {used / GIB:.1f} GiB, they hold {middle / GIB:.1f}"

    def _strip(self, gpus: Sequence[Gpu], width: int) -> Strip:
        """`GPUs 0█ 1█ 2▁ …  78.1 GiB each of 95.6`."""
        glyphs = self.glyphs
        odd = self._off_median(gpus)
        parts: list[Part] = [" GPUs "]
        for place, gpu in enumerate(gpus):
            sign = glyphs.fail if gpu.lost else level(glyphs, gpu.memory_used, gpu.memory_total)
            look = "bold red" if gpu.lost else ("bold yellow" if place in odd else "green")
            mark = glyphs.warn if place in odd and not gpu.lost else " "
            parts += [(f"{gpu.index}", "dim"), (f"{sign}{mark}", look)]
        middle = _median([gpu.memory_used for gpu in gpus])
        total = _median([gpu.memory_total for gpu in gpus])
        about = (
            "memory unknown" if middle is None or total is None else f"{middle / GIB:.1f} of {total / GIB:.1f} GiB used"
        )
        parts.append(f" {about}{'' if not odd else ', one is off' if len(odd) == 1 else f', {len(odd)} are off'}")
        age = self._moment.age(self._glance.gpus.seen)
        if age is not None and age > STALE_SECONDS:
            parts.append((f"  {age:.0f} s old", "bold yellow"))
        return line(*parts).crop(0, width)


def holders(gpu: Gpu, unit: str) -> Held:
    """Who holds the GPU's memory. `unit` is the profile's service."""
    used = float(gpu.memory_used or 0)
    ours = sum(float(p.memory or 0) for p in gpu.processes if p.unit == unit and unit)
    foreign = sum(float(p.memory or 0) for p in gpu.processes if not (p.unit == unit and unit))
    if any(p.memory is None for p in gpu.processes):
        # without figures per process the whole can be told only where all processes are of one side
        sides = {bool(p.unit == unit and unit) for p in gpu.processes}
        if len(sides) == 1:
            ours, foreign = (used, 0.0) if sides == {True} else (0.0, used)
    scale = min(1.0, used / (ours + foreign)) if ours + foreign else 1.0
    mine = [p for p in gpu.processes if p.unit == unit and unit]
    others = sorted((p for p in gpu.processes if p not in mine), key=lambda p: -(p.memory or 0))
    who = rank = ""
    if mine:
        rank = next((found.group(1) for p in mine if p.command and (found := _RANK.search(p.command))), "")
        who = rank or "ours"
    if others:
        first = others[0]
        name = clean((first.unit or "").removesuffix(".service") or first.owner or f"pid {first.pid}")
        who = f"{who} + {name}" if who else name
    loose = max(0.0, used - (ours + foreign) * scale)
    total = float(gpu.memory_total or 0)
    return Held(ours * scale, foreign * scale, loose if total and loose > total * 0.02 else 0.0, who, rank)


def odd_ones(used: Sequence[int | None]) -> frozenset[int]:
    """Places whose value is far off the median of all; empty where too few are known to tell."""
    middle = _median(used)
    known = [value for value in used if value is not None]
    if middle is None or len(known) < 3:
        return frozenset()
    return frozenset(
        place
        for place, value in enumerate(used)
        if value is not None and abs(value - middle) > max(ODD_BYTES, ODD_SHARE * middle)
    )


def finding_words(found: GpuFinding) -> str:
    """A finding in one sentence, with the GPU it is about."""
    where = f"GPU {found.gpu}: " if found.gpu is not None else ""
    return clean(f"{where}{found.text}")


def short_name(name: str | None) -> str:
    """`NVIDIA RTX PRO 6000 Blackwell Server Edition` as `RTX PRO 6000`."""
    text = clean(name or "").removeprefix("NVIDIA ")
    return re.sub(r" Blackwell.*$", "", text)


def _grave(found: GpuFinding) -> bool:
    return found.id in (
        "gpu-lost",
        "needs-reset",
        "remap-failed",
        "driver-mismatch",
        "driver-not-loaded",
        "smi-wedged",
        "xid",
        "no-devices",
    )


def _median(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None
