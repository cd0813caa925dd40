"""Step 9: the old service stopped, and proved gone. Downtime starts here.

`systemctl stop` of the units by name, waiting for systemd's own escalation: vLLM hangs on SIGTERM under load in 4 of 9
tries and swallows it while loading (VLLM-LAB), so the unit's TimeoutStopSec and SIGKILL of its whole cgroup decide. An exit
code proves nothing; before it the dead man's switch is armed; afterwards cgroup, port, GPU memory and shared memory are looked at and what is not clean is named.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from console.deploy import deadman
from console.deploy.release import adoptable, already_serving
from console.deploy.rollback import served_before
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.deploy.steps.unit import remember_former
from console.errors import NotReady, RelaunchError
from console.events import Downtime, Noted, Progressed
from console.node import systemd
from console.node.base import Denied, Done, Lost, capture, succeeded
from console.node.facts import UnitState
from console.node.gpu import GpuProcess, sample_gpus
from console.node.leftovers import Left, Possessions, end_processes, possessions, what_is_left
from console.text import duration, gib, plural

NAME = "stop"
MARGIN = 30.0
"""Seconds beyond a unit's own stop time-out until its stop counts as failed."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """What this run stopped; for drain, launch and undo."""

    units: tuple[str, ...]
    had: Possessions
    seconds: float | None = None


def targets(ctx: Context) -> tuple[UnitState, ...]:
    """Units that run and must not: those the profile replaces, and our own when what it runs is not what is wanted.

    Our own unit may have its wanted text by now (step `unit` wrote it) while the process is of the text before.
    """
    ours = ctx.facts.units.get(ctx.profile.service.unit)
    names = [name for name in ctx.profile.replaces if name != ctx.profile.service.unit]
    if ours is not None and (ours.stale or not adoptable(ctx)):
        names.append(ours.name)
    states = (ctx.facts.units.get(name) for name in dict.fromkeys(names))
    return tuple(state for state in states if state is not None and systemd.is_up(state))


class Stop:
    name = NAME
    downtime = True

    async def check(self, ctx: Context) -> Check:
        if already_serving(ctx):
            return Satisfied(f"{ctx.profile.service.unit} is what is wanted and serves; nothing is stopped")
        up = targets(ctx)
        if up:
            return Needed(tuple(Change(f"stop {state.name}, pid {state.main_pid}, {state.active}") for state in up))
        names = ctx.profile.replaces or (ctx.profile.service.unit,)
        return Satisfied(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not running")

    async def apply(self, ctx: Context) -> None:
        up = targets(ctx)
        names = tuple(state.name for state in up)
        had = await possessions(ctx.node, ctx.facts, [s.cgroup for s in up if s.cgroup])
        record = Stopped(names, had)
        ctx.found[NAME] = record
        ctx.found["stopped"] = tuple(dict.fromkeys((*ctx.found.get("stopped", ()), *names)))
        if ctx.profile.service.unit in names:
            remember_former(ctx)
        await deadman.arm(ctx, served_before(ctx))
        limit = await _stop_limit(ctx, names)
        self._downtime(ctx)
        began = time.monotonic()
        await _stop(ctx, names, limit)
        ctx.found[NAME] = replace(record, seconds=time.monotonic() - began)

    def _downtime(self, ctx: Context) -> None:
        if ctx.found.get("downtime_started") is None:
            ctx.found["downtime_started"] = time.time()
            ctx.emit(Downtime(time=time.time(), state="started"))

    async def verify(self, ctx: Context) -> str:
        record: Stopped | None = ctx.found.get(NAME)
        names = record.units if record else ctx.profile.replaces
        states = await systemd.states(ctx.node, names)
        had = (
            record.had
            if record
            else Possessions(groups=tuple(state.cgroup for state in states.values() if state.cgroup))
        )
        left = await what_is_left(ctx.node, ctx.facts, had)
        if record is not None:
            record = ctx.found[NAME] = replace(record, had=replace(had, until=left.time))
        running = [state for state in states.values() if systemd.is_up(state)]
        if left.processes and not running and await self._orphans_ended(ctx, names, left):
            left = await what_is_left(ctx.node, ctx.facts, had)
        if running or left.processes or left.ports:
            raise _not_gone(running, left)
        holders = await _gpu_holders(ctx, names, had)
        return _evidence(states, record, left, holders)

    async def _orphans_ended(self, ctx: Context, names: tuple[str, ...], left: Left) -> bool:
        """Processes that the stopped units left in their cgroups, or had before: shown, and ended after a word.

        They are known by cgroup or by the pid and start time that were recorded before the stop, never by their names.
        """
        question = f"{', '.join(names)} left {left} behind, with their GPU memory. End exactly these processes?"
        if not await ctx.confirm(question, "orphans"):
            return False
        await end_processes(ctx.node, ctx.facts, left.processes)
        ctx.emit(Noted(time=time.time(), text=f"ended what {', '.join(names)} had left behind: {left}"))
        return True

    async def undo(self, ctx: Context) -> None:
        """Start again what this run stopped; when that is not known, the units that the profile replaces and that are
        enabled. Waits for the start, not for readiness."""
        record: Stopped | None = ctx.found.get(NAME)
        names = record.units if record else _enabled(ctx)
        states = await systemd.states(ctx.node, names)
        down = [
            name for name, state in states.items() if state.load == "loaded" and state.active in ("inactive", "failed")
        ]
        if down:
            argv = systemd.start(*down)
            succeeded(await ctx.node.run(argv, timeout=180, sudo=True), argv)


def _enabled(ctx: Context) -> tuple[str, ...]:
    found = (ctx.facts.units.get(name) for name in ctx.profile.replaces)
    return tuple(unit.name for unit in found if unit is not None and unit.enabled == "enabled")


async def _stop_limit(ctx: Context, names: tuple[str, ...]) -> float:
    """Seconds that the stop may take: what the units themselves allow, and the profile's own time at least."""
    blocks = systemd.parse_show(await capture(ctx.node, systemd.show(names, ("TimeoutStopUSec",))))
    spans = [systemd.parse_span(block.get("TimeoutStopUSec", "")) for block in blocks]
    return max([float(ctx.profile.service.stop_seconds), *(min(span, 3600.0) for span in spans if span is not None)])


async def _stop(ctx: Context, names: tuple[str, ...], limit: float) -> None:
    """Tell systemd to stop and wait for its job, telling what it is at. Ends when the unit is down, or raises."""
    argv = systemd.stop(*names)
    async with asyncio.TaskGroup() as group:
        told = group.create_task(_tell(ctx, names[0], limit))
        try:
            result = await ctx.node.run(argv, timeout=limit + MARGIN, sudo=True)
        finally:
            told.cancel()
    match result:
        case Done(code=0) | Lost(sent=True):
            return  # a lost answer is unknown: `verify` measures
        case Done():
            states = await systemd.states(ctx.node, names)
            if any(systemd.is_up(state) for state in states.values()):
                succeeded(result, argv)
        case Lost() | Denied():
            succeeded(result, argv)


async def _tell(ctx: Context, unit: str, limit: float) -> None:
    """Progress while a stop lasts: systemd's own sub-state (stop-sigterm, stop-sigkill) and the time left to it."""
    began = time.monotonic()
    with suppress(RelaunchError):
        async with systemd.watch_unit(ctx.node, unit) as states:
            async for state in states:
                spent = time.monotonic() - began
                text = f"{unit} {state.active} ({state.sub})"
                ctx.emit(Progressed(time=time.time(), step=NAME, text=text, done=spent, total=limit, unit="s"))


def _not_gone(running: list[UnitState], left: Left) -> NotReady:
    parts = [f"{state.name} is {state.active} ({state.sub})" for state in running]
    if not left.clean:
        parts.append(f"left behind: {left}")
    return NotReady(
        f"the old service is not gone: {'; '.join(parts)}",
        "look at what is named; a process in the D state hangs in the kernel and needs a reboot",
    )


async def _gpu_holders(ctx: Context, names: tuple[str, ...], had: Possessions) -> list[tuple[int, GpuProcess]]:
    """Processes of ours that still hold GPU memory. Empty too where the GPUs cannot be read; drain measures again."""
    known = {(process.pid, process.ticks) for process in had.processes}
    with suppress(RelaunchError):
        sample = await sample_gpus(ctx.node, venvs=(ctx.profile.vllm.venv,))
        return [
            (gpu.index, process)
            for gpu in sample.gpus
            for process in gpu.processes
            if process.unit in names or (process.pid, process.started) in known
        ]
    return []


def _evidence(
    states: dict[str, UnitState], record: Stopped | None, left: Left, holders: list[tuple[int, GpuProcess]]
) -> str:
    how = [
        f"{name} {state.active}" + ("" if state.result == "success" else f" ({state.result})")
        for name, state in states.items()
    ]
    count = len(record.had.processes) if record else 0
    took = f" after {duration(record.seconds)}" if record and record.seconds is not None else ""
    parts = [", ".join(how) + took, f"cgroup empty ({plural(count, 'process').replace('processs', 'processes')} gone)"]
    if record and record.had.ports:
        parts.append(f"{_ports(record.had.ports)} closed")
    if left.taken:
        parts.append(f"{_ports(left.taken)} listened on by somebody else by now")
    if holders:
        named = ", ".join(
            f"GPU {i}: {'?' if p.memory is None else gib(p.memory)} of pid {p.pid}" for i, p in holders[:4]
        )
        parts.append(f"GPU memory not yet given back: {named}")
    if left.shm:
        parts.append(f"{plural(len(left.shm), 'shared-memory file')} left behind, for drain to look at")
    return "; ".join(parts)


def _ports(ports: tuple[int, ...]) -> str:
    """The ports in words. A vLLM listens on some ten beside its own, between its processes; the lowest is the served one."""
    if len(ports) > 3:
        return f"port {ports[0]} and {len(ports) - 1} others"
    return ", ".join(f"port {port}" for port in ports)


STEP = Stop()
