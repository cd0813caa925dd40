"""Step 10: every GPU that the new service takes is back at its idle level, by measured memory.

Waits on samples of the telemetry agent and on nothing else: memory comes back after the process is gone, and a start that
does not wait fails with "Free memory on device … is less than desired" (DOMAIN D.10). Processes of others are told with
owner, command and pid, and are never killed. Shared memory that the old service left and nobody uses is removed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from console.deploy.release import adoptable, already_serving
from console.deploy.runlog import note_gpus
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.deploy.steps.stop import Stopped, targets
from console.errors import NotReady
from console.events import Noted, Progressed
from console.node.facts import Facts
from console.node.gpu import Gpu, GpuProcess, GpuSample, sample_gpus, watch_gpus
from console.node.leftovers import remove_shm
from console.profile.model import Profile
from console.text import gib, plural

NAME = "drain"
IDLE = 1 << 30
"""Bytes in use up to which a GPU counts as idle (DOMAIN E.4): the driver and a display hold some hundred MiB."""
SETTLE = 5.0
"""Seconds without any change after which a stranger's memory is taken to stay."""
PATIENCE = 120.0
"""Seconds without any change after which memory that nobody visible holds is taken to stay."""
LONGEST = 900.0


def wanted_gpus(profile: Profile, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs that the new service takes: those that its CUDA_VISIBLE_DEVICES names, else the first of its world size."""
    pipeline = profile.serve.flags.get("pipeline-parallel-size", 1)
    world = profile.serve.tensor_parallel_size * (pipeline if isinstance(pipeline, int) else 1)
    visible = profile.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(sorted(gpus, key=lambda gpu: gpu.index)[:world])
    names = [word.strip() for word in visible.value.split(",")]
    return tuple(gpu for gpu in gpus if str(gpu.index) in names or (gpu.uuid is not None and gpu.uuid in names))


def busy(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """GPUs above the idle level. Where memory is not told (unified memory), one that a process holds."""
    return tuple(
        gpu for gpu in gpus if (gpu.memory_used > IDLE if gpu.memory_used is not None else bool(gpu.processes))
    )


def strangers(ctx: Context, gpus: Iterable[Gpu]) -> tuple[tuple[Gpu, GpuProcess], ...]:
    """Processes on these GPUs that are neither ours nor of a unit that was to be stopped."""
    ours = {ctx.profile.service.unit, *ctx.profile.replaces}
    record: Stopped | None = ctx.found.get("stop")
    known = {(one.pid, one.ticks) for one in record.had.processes} if record else set()
    return tuple(
        (gpu, process)
        for gpu in gpus
        for process in gpu.processes
        if process.unit not in ours and (process.pid, process.started) not in known
    )


def _holder(gpu: Gpu, process: GpuProcess) -> str:
    held = "an unknown amount" if process.memory is None else gib(process.memory)
    unit = f", unit {process.unit}" if process.unit else ""
    return (
        f"GPU {gpu.index}: {held} held by pid {process.pid} of {process.owner or 'an unknown account'}"
        f" ({process.command or 'unknown program'}{unit})"
    )


def _foreign(holders: Sequence[tuple[Gpu, GpuProcess]]) -> NotReady:
    named = "; ".join(_holder(gpu, process) for gpu, process in holders[:8])
    pids = " ".join(str(pid) for pid in sorted({process.pid for _, process in holders}))
    units = sorted({process.unit for _, process in holders if process.unit and process.unit.endswith(".service")})
    remedy = f"ask its owner, or end it yourself after a look at it: pid {pids}; then resume"
    if units:
        remedy += f"; a unit that is to go belongs into the profile's replaces: {', '.join(units)}"
    return NotReady(f"GPU memory is held by processes that are not ours and were left alone: {named}", remedy)


def _ownerless(gpus: Sequence[Gpu]) -> NotReady:
    named = ", ".join(f"GPU {gpu.index} {gib(gpu.memory_used or 0)}" for gpu in gpus)
    return NotReady(
        f"GPU memory is in use and no process that holds it can be seen: {named}",
        "look as root for processes in containers (nvidia-smi, fuser -v /dev/nvidia*); else reset the GPU or reboot",
    )


def level(gpus: Sequence[Gpu]) -> str:
    """`8 GPUs idle, 4 MiB in use at most`."""
    known = [gpu.memory_used for gpu in gpus if gpu.memory_used is not None]
    most = f"{max(known) / 2**20:.0f} MiB in use at most" if known else "memory in use not told by the driver"
    return f"{plural(len(gpus), 'GPU')} idle, {most}"


@dataclass(slots=True)
class Vigil:
    """Whether waiting still makes sense: what was used, and since when nothing has moved."""

    ctx: Context
    used: int | None = None
    still_since: float = field(default_factory=time.monotonic)

    def look(self, sample: GpuSample) -> tuple[Gpu, ...] | None:
        """The GPUs when all are idle, None while they are not; raises when they will not be."""
        gpus = wanted_gpus(self.ctx.profile, sample.gpus)
        if not gpus or any(gpu.lost for gpu in gpus):
            said = next((f for f in sample.findings if f.id != "mig"), None)
            raise NotReady(
                said.text if said else "no GPU can be seen any more", said.remedy if said else "look at nvidia-smi"
            )
        held = busy(gpus)
        if not held:
            return gpus
        used = sum(gpu.memory_used or 0 for gpu in held)
        now = time.monotonic()
        if used != self.used:
            self.used, self.still_since = used, now
        self._tell(gpus, held, used)
        foreign = strangers(self.ctx, held)
        if foreign and now - self.still_since > SETTLE:
            raise _foreign(foreign)
        if now - self.still_since > PATIENCE:
            raise _ownerless(held)
        return None

    def _tell(self, gpus: Sequence[Gpu], held: Sequence[Gpu], used: int) -> None:
        idle = len(gpus) - len(held)
        text = f"{idle} of {len(gpus)} GPUs idle, {gib(used)} still in use"
        self.ctx.emit(
            Progressed(time=time.time(), step=NAME, text=text, done=float(idle), total=float(len(gpus)), unit="GPUs")
        )


def _owners(facts: Facts, gpus: Sequence[Gpu]) -> str:
    held = busy(gpus)
    units = sorted({process.unit or f"pid {process.pid}" for gpu in held for process in gpu.processes})
    used = sum(gpu.memory_used or 0 for gpu in held)
    return f"{gib(used)} now" + (f", held by {', '.join(units)}" if units else "")


class Drain:
    name = NAME
    downtime = True

    async def check(self, ctx: Context) -> Check:
        unit = ctx.profile.service.unit
        if already_serving(ctx):
            return Satisfied(f"{unit} is what is wanted and serves; the GPUs are its own")
        if adoptable(ctx) and not targets(ctx):
            return Satisfied(f"{unit} is already starting as wanted; the GPUs are its own")
        gpus = wanted_gpus(ctx.profile, ctx.facts.gpus.gpus) if ctx.facts.gpus else ()
        if not gpus:
            return Needed((Change("wait until every GPU is idle; their memory is not known now"),))
        if busy(gpus) or "stop" in ctx.found:
            return Needed((Change(f"wait until {plural(len(gpus), 'GPU')} are idle; {_owners(ctx.facts, gpus)}"),))
        return Satisfied(level(gpus))

    async def apply(self, ctx: Context) -> None:
        vigil = Vigil(ctx)
        try:
            async with asyncio.timeout(LONGEST), watch_gpus(ctx.node, venvs=(ctx.profile.vllm.venv,)) as samples:
                async for sample in samples:
                    note_gpus(ctx, sample)
                    idle = vigil.look(sample)
                    if idle is not None:
                        ctx.found[NAME] = idle
                        break
        except TimeoutError:
            raise NotReady(
                f"the GPUs were not idle within {LONGEST / 60:.0f} minutes", "look at nvidia-smi on the node"
            ) from None
        await self._clean(ctx)

    async def _clean(self, ctx: Context) -> None:
        record: Stopped | None = ctx.found.get("stop")
        if record is None:
            return
        cleaned = await remove_shm(ctx.node, ctx.facts, record.had)
        ctx.found["drain-shm"] = cleaned
        if cleaned.kept:
            named = ", ".join(f"{name} ({why})" for name, why in cleaned.kept[:4])
            ctx.emit(Noted(time=time.time(), text=f"shared memory left as it is: {named}"))

    async def verify(self, ctx: Context) -> str:
        idle = ctx.found.get(NAME)
        if idle is None:
            sample = await sample_gpus(ctx.node, venvs=(ctx.profile.vllm.venv,))
            idle = Vigil(ctx).look(sample)
            if idle is None:
                raise NotReady("the GPUs are not idle", "run again")
        cleaned = ctx.found.get("drain-shm")
        return level(idle) + (f"; {cleaned}" if cleaned is not None else "")

    async def undo(self, ctx: Context) -> None:
        """Nothing to bring back: memory was waited for, and what was removed belonged to nobody."""


STEP = Drain()
