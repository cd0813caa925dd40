"""Step 1: what the node is and holds, every fact present or named missing.

The facts were read by one exec before the first step; this step tells them. It refuses nothing: what a finding means for
the deployment is preflight's to say.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator

from console.deploy.step import Check, Context, Satisfied
from console.events import Found
from console.node.facts import Facts
from console.node.findings import APPLICATION_XIDS, xid_finding
from console.node.gpu import Gpu, GpuFinding, GpuSample
from console.node.smi import same_bus
from console.text import gib, plural, size

NAME = "inspect"
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)")

# What the other GPU findings mean for a deployment is told by preflight (console.deploy.checks); these only explain figures
_EXPLAIN = frozenset({"unified-memory", "field-error", "smi-cut", "index-unsure"})


def gpu_line(sample: GpuSample | None) -> str:
    """`8 × NVIDIA RTX PRO 6000 …, 95.6 GiB each, driver 580.95.05`."""
    if sample is None:
        return "GPUs unknown"
    if not sample.gpus:
        return sample.findings[0].text if sample.findings else "no GPU"
    kinds = Counter((gpu.name, gpu.memory_total) for gpu in sample.gpus)
    parts = []
    for (name, total), count in kinds.items():
        memory = "memory unknown" if total is None else f"{gib(total)}" + (" each" if count > 1 else "")
        parts.append(f"{count} × {name or 'unknown GPU'}, {memory}")
    return "; ".join(parts) + f", driver {sample.driver or 'unknown'}"


def gpu_of_bus(gpus: tuple[Gpu, ...], bus: str) -> int | None:
    """The index of the GPU at a PCI address, which the kernel writes without its function number."""
    for gpu in gpus:
        if gpu.bus is not None and (same_bus(gpu.bus, bus) or same_bus(gpu.bus.rpartition(".")[0], bus)):
            return gpu.index
    return None


def xids(facts: Facts) -> Iterator[GpuFinding]:
    """Faults of GPUs in this boot's kernel log, each kind once per GPU; those that only blame a program are left out."""
    gpus = facts.gpus.gpus if facts.gpus else ()
    told = set()
    for line in facts.kernel_log:
        match = _XID.search(line)
        if match is None or int(match[2]) in APPLICATION_XIDS or (match[1], match[2]) in told:
            continue
        told.add((match[1], match[2]))
        yield xid_finding(int(match[2]), gpu_of_bus(gpus, match[1]), f"PCI {match[1]}, kernel log of this boot")


def findings(facts: Facts) -> Iterator[Found]:
    """What is remarkable in the facts, as events."""
    now = time.time()
    for item in (*xids(facts), *(facts.gpus.findings if facts.gpus else ())):
        if item.id == "xid" or item.id in _EXPLAIN:
            yield Found(time=now, step=NAME, level="warn", rule=item.id, text=item.text, remedy=item.remedy)
    for line in facts.kernel_log:
        if "Out of memory: Killed process" in line:
            yield Found(time=now, step=NAME, level="warn", rule="oom-kill", text=f"kernel log of this boot: {line}")
    for sentence in facts.missing:
        yield Found(time=now, step=NAME, level="warn", rule="missing", text=f"not known: {sentence}")


def evidence(facts: Facts) -> str:
    """The machine in one line."""
    system = f"systemd {facts.systemd}" if facts.systemd is not None else "no systemd"
    free = sorted({disk.mount: disk.free for disk in facts.disks.values()}.items())
    parts = [
        gpu_line(facts.gpus),
        f"{plural(facts.cpus, 'CPU')}, {gib(facts.memory)} RAM",
        f"{system}, kernel {facts.kernel}",
        *(f"{size(room)} free on {mount}" for mount, room in free),
    ]
    if facts.missing:
        parts.append(f"{plural(len(facts.missing), 'fact')} missing")
    return "; ".join(parts)


class Inspect:
    name = NAME
    downtime = False

    async def check(self, ctx: Context) -> Check:
        for event in findings(ctx.facts):
            ctx.emit(event)
        return Satisfied(evidence(ctx.facts))

    async def apply(self, ctx: Context) -> None:
        await ctx.refresh()

    async def verify(self, ctx: Context) -> str:
        return evidence(ctx.facts)

    async def undo(self, ctx: Context) -> None:
        """Nothing was changed."""


STEP = Inspect()
