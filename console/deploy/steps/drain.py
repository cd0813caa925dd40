"""Step 10: every GPU that the new service takes is back at its idle level, by measured memory.

Waits on samples of the telemetry agent and on nothing else: memory comes back after the process is gone, and a start that
does not wait fails with "Free memory on device … is less than desired" (DOMAIN D.10). Processes of others are told with
owner, command and pid, and are never killed; a daemon that holds memory on purpose is named as that, and is put up with
where the server fits beside it. What our own units left is shown and ended after a word. Shared memory that the old
service left and nobody uses is removed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from console.deploy.keepers import keeper_of, makes_room
from console.deploy.release import adoptable, already_serving
from console.deploy.runlog import note_gpus
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.deploy.steps.stop import Stopped, targets
from console.errors import NotReady
from console.events import Noted, Progressed
from console.node import systemd
from console.node.facts import Facts
from console.node.gpu import Gpu, GpuProcess, GpuSample, sample_gpus, watch_gpus
from console.node.leftovers import UNKNOWN_UID, Process, end_processes, remove_shm
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


def _ours(ctx: Context) -> tuple[str, ...]:
    """The units whose processes are to be gone."""
    return tuple(dict.fromkeys((ctx.profile.service.unit, *ctx.profile.replaces)))


def leftovers(ctx: Context, gpus: Iterable[Gpu]) -> tuple[tuple[Gpu, GpuProcess], ...]:
    """Processes on these GPUs that a unit of ours has left there: in its cgroup, or recorded before its stop by pid and
    start time."""
    names = _ours(ctx)
    record: Stopped | None = ctx.found.get("stop")
    known = {(one.pid, one.ticks) for one in record.had.processes} if record else set()
    return tuple(
        (gpu, process)
        for gpu in gpus
        for process in gpu.processes
        if process.unit in names or (process.pid, process.started) in known
    )


def strangers(ctx: Context, gpus: Iterable[Gpu]) -> tuple[tuple[Gpu, GpuProcess], ...]:
    """Processes on these GPUs that are neither ours nor of a unit that was to be stopped."""
    gpus = tuple(gpus)
    ours = leftovers(ctx, gpus)
    return tuple((gpu, process) for gpu in gpus for process in gpu.processes if (gpu, process) not in ours)


def unsettled(ctx: Context, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The busy GPUs, without those on which a daemon keeps memory on purpose and leaves room enough."""
    names = _ours(ctx)
    kept = {gpu.index: [p for p in gpu.processes if keeper_of(p, names) is not None] for gpu in gpus}
    return tuple(gpu for gpu in busy(gpus) if not makes_room(ctx.profile, gpu, kept[gpu.index], IDLE))


def _holder(gpu: Gpu, process: GpuProcess) -> str:
    held = "an unknown amount" if process.memory is None else gib(process.memory)
    unit = f", unit {process.unit}" if process.unit else ""
    keeper = keeper_of(process)
    on_purpose = f": {keeper.name}, which keeps it on purpose" if keeper else ""
    return (
        f"GPU {gpu.index}: {held} held by pid {process.pid} of {process.owner or 'an unknown account'}"
        f" ({process.command or 'unknown program'}{unit}){on_purpose}"
    )


def _foreign(holders: Sequence[tuple[Gpu, GpuProcess]]) -> NotReady:
    named = "; ".join(_holder(gpu, process) for gpu, process in holders[:8])
    keepers = {process.pid: keeper_of(process) for _, process in holders}
    pids = " ".join(str(pid) for pid in sorted(keepers) if keepers[pid] is None)
    units = sorted({process.unit for _, process in holders if process.unit and process.unit.endswith(".service")})
    ways = [f"ask its owner, or end it yourself after a look at it: pid {pids}"] if pids else []
    ways += dict.fromkeys(keeper.end for keeper in keepers.values() if keeper is not None)
    remedy = f"{'; '.join(ways)}; then resume"
    if units:
        remedy += f"; a unit that is to go belongs into the profile's replaces: {', '.join(units)}"
    return NotReady(f"GPU memory is held by processes that are not ours and were left alone: {named}", remedy)


def _left(ctx: Context, holders: Sequence[tuple[Gpu, GpuProcess]], why: str) -> NotReady:
    named = "; ".join(_holder(gpu, process) for gpu, process in holders[:8])
    pids = " ".join(str(pid) for pid in sorted({process.pid for _, process in holders}))
    units = " ".join(_ours(ctx))
    return NotReady(
        f"GPU memory is held by what {units} left behind, {why}: {named}",
        f"look at it and end it: pid {pids}; one in the D state hangs in the kernel and needs a reboot; then resume",
    )


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


class Orphans(Exception):
    """Processes that our units left hold memory that no longer shrinks; drain asks what to do about them."""

    def __init__(self, holders: tuple[tuple[Gpu, GpuProcess], ...]) -> None:
        super().__init__("processes were left behind")
        self.holders = holders


def _kept(ctx: Context, gpus: Sequence[Gpu]) -> str:
    """Daemons that keep memory beside the server, in words."""
    names = _ours(ctx)
    keepers = [keeper_of(process, names) for gpu in busy(gpus) for process in gpu.processes]
    told = list(dict.fromkeys(keeper.name for keeper in keepers if keeper is not None))
    return f"; {', '.join(told)} keeps memory on purpose and leaves room enough" if told else ""


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
        held = unsettled(self.ctx, gpus)
        if not held:
            return gpus
        used = sum(gpu.memory_used or 0 for gpu in held)
        now = time.monotonic()
        if used != self.used:
            self.used, self.still_since = used, now
        self._tell(gpus, held, used)
        if now - self.still_since > SETTLE:
            if left := leftovers(self.ctx, held):
                raise Orphans(left)
            if foreign := strangers(self.ctx, held):
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
        if unsettled(ctx, gpus) or "stop" in ctx.found:
            return Needed((Change(f"wait until {plural(len(gpus), 'GPU')} are idle; {_owners(ctx.facts, gpus)}"),))
        return Satisfied(level(gpus) + _kept(ctx, gpus))

    async def apply(self, ctx: Context) -> None:
        try:
            async with asyncio.timeout(LONGEST):
                while (orphans := await self._idle(ctx)) is not None:
                    await self._end(ctx, orphans)
        except TimeoutError:
            raise NotReady(
                f"the GPUs were not idle within {LONGEST / 60:.0f} minutes", "look at nvidia-smi on the node"
            ) from None
        await self._clean(ctx)

    async def _idle(self, ctx: Context) -> tuple[tuple[Gpu, GpuProcess], ...] | None:
        """Wait until the GPUs are idle; what keeps them from it when that is what our own units left."""
        vigil = Vigil(ctx)
        async with watch_gpus(ctx.node, venvs=(ctx.profile.vllm.venv,)) as samples:
            async for sample in samples:
                note_gpus(ctx, sample)
                try:
                    idle = vigil.look(sample)
                except Orphans as orphans:
                    return orphans.holders
                if idle is not None:
                    ctx.found[NAME] = idle
                    return None
        raise NotReady("the telemetry of the GPUs ended", "run again")

    async def _end(self, ctx: Context, holders: tuple[tuple[Gpu, GpuProcess], ...]) -> None:
        """End what our units left on the GPUs, by pid and start time, after a word; raises NotReady when it stays."""
        states = await systemd.states(ctx.node, _ours(ctx))
        if up := [name for name, state in states.items() if systemd.is_up(state)]:
            raise NotReady(f"{', '.join(up)} was started again meanwhile", "see who started it, and run again")
        theirs = {process.pid: process for _, process in holders if process.started is not None}
        if len(theirs) < len({process.pid for _, process in holders}):
            raise _left(ctx, holders, "and not all of it can be told by its start time")
        named = "; ".join(_holder(gpu, process) for gpu, process in holders[:8])
        question = f"{' '.join(states)} left processes behind: {named}. End exactly these?"
        if not await ctx.confirm(question, "orphans"):
            raise _left(ctx, holders, "and it was not agreed to end it")
        ending = [Process(pid, one.started or 0, UNKNOWN_UID, one.command or "") for pid, one in theirs.items()]
        if await end_processes(ctx.node, ctx.facts, ending):
            raise _left(ctx, holders, "and it does not end")
        ctx.emit(Noted(time=time.time(), text=f"ended what was left behind: {', '.join(map(str, ending))}"))

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
        return level(idle) + _kept(ctx, idle) + (f"; {cleaned}" if cleaned is not None else "")

    async def undo(self, ctx: Context) -> None:
        """Nothing to bring back: memory was waited for, and what was removed belonged to nobody."""


STEP = Drain()
