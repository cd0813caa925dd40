"""Step 11: the unit started and followed through its stages to the line that says it is ready.

A start that is under way with the wanted text is adopted, never repeated: by whom it was begun does not matter.
"""

from __future__ import annotations

import time

from console.checkpoint.overlay import verify_overlay
from console.checkpoint.patch import planned
from console.deploy import deadman, evidence, probe, start
from console.deploy.release import (
    adoptable,
    already_serving,
    candidate,
    draft,
    last_good,
    mark_failed,
    next_number,
    running,
)
from console.deploy.release import write_release as write
from console.deploy.rollback import served_before, stop_and_drain
from console.deploy.starting import Ended, Starting
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.errors import NotReady, UnitFailed
from console.node import systemd
from console.text import duration

NAME = "launch"


class Launch:
    name = NAME
    downtime = True

    async def check(self, ctx: Context) -> Check:
        unit = ctx.profile.service.unit
        if already_serving(ctx):
            good = last_good(ctx.facts)
            state = ctx.facts.units[unit]
            number = good.number if good else 0
            return Satisfied(
                f"{unit} runs as release {number}, pid {state.main_pid}, invocation {state.invocation[:8]}"
            )
        if adoptable(ctx):
            state = ctx.facts.units[unit]
            return Needed((Change(f"follow {unit}, which is under way (invocation {state.invocation[:8]})"),))
        return Needed((Change(f"start {unit} and follow it until it is ready"),))

    async def apply(self, ctx: Context) -> None:
        began = time.monotonic()
        unit = ctx.profile.service.unit
        try:
            if adoptable(ctx):
                starting = start.adopt(ctx, ctx.facts.units[unit])
                ctx.found[NAME] = starting
                if await self._answers(ctx):
                    return  # long ready; its log may be rotated away by now
            else:
                for overlay in planned(ctx).overlays:
                    await verify_overlay(ctx.node, overlay)
                if "stopped" in ctx.found:
                    await deadman.arm(ctx, served_before(ctx))  # the node may have been started again since the stop
                await self._write_candidate(ctx)
                starting = await start.begin(ctx, unit)
                ctx.found[NAME] = starting
            await start.follow(ctx, starting, step=NAME, port=ctx.profile.service.port)
        except Ended as ended:
            error = await evidence.explain(ctx, ended, step=NAME)
            await self._no_crash_loop(ctx, ended)
            raise error from ended
        ctx.found["launch_seconds"] = time.monotonic() - began

    async def verify(self, ctx: Context) -> str:
        unit = ctx.profile.service.unit
        state = await systemd.unit_state(ctx.node, unit)
        starting = ctx.found.get(NAME)
        if state.active != "active" or not state.main_pid:
            raise UnitFailed(
                f"{unit} said that it is ready and is {state.active} ({state.result})", "look at the end of its journal"
            )
        if isinstance(starting, Starting) and starting.invocation and state.invocation != starting.invocation:
            raise UnitFailed(
                f"{unit} was started again meanwhile: invocation {state.invocation[:8]} instead of "
                f"{starting.invocation[:8]}",
                "look in the journal for who did it, or for a crash that Restart= hid",
            )
        return self._evidence(ctx, unit, state.main_pid, state.invocation)

    async def undo(self, ctx: Context) -> None:
        """Stop our unit, so that what served before finds the GPUs and the port free; the release is marked failed."""
        unit = ctx.profile.service.unit
        await stop_and_drain(ctx, unit)
        state = await systemd.unit_state(ctx.node, unit)
        if running(state):
            raise NotReady(f"{unit} was told to stop and is {state.active}", f"look at systemctl status {unit}")
        if (ours := candidate(ctx)) is not None:
            await mark_failed(ctx, ours)

    async def _write_candidate(self, ctx: Context) -> None:
        """Put on the node what is about to be started, and what served before, for whoever resumes or goes back."""
        stopped = ctx.found.get("stopped")
        if stopped is None:
            stopped = [name for name in ctx.profile.replaces if (u := ctx.facts.units.get(name)) and running(u)]
        if candidate(ctx) is None:
            release = draft(ctx, next_number(ctx.facts), stopped=tuple(stopped))
            await write(ctx.node, ctx.facts, release)
            ctx.found["release"] = release

    async def _answers(self, ctx: Context) -> bool:
        return await probe.health(ctx.node.http(ctx.profile.service.port)) == 200

    async def _no_crash_loop(self, ctx: Context, ended: Ended) -> None:
        """A unit that systemd starts again and again is stopped; what it left behind has been captured."""
        if ended.kind != "restarted":
            return
        stop = systemd.stop(ended.starting.unit)
        await ctx.node.run(stop, timeout=ctx.profile.service.stop_seconds + 60, sudo=True)

    def _evidence(self, ctx: Context, unit: str, pid: int, invocation: str) -> str:
        parts = [f"{unit} active, pid {pid}, invocation {invocation[:8]}"]
        seconds = ctx.found.get("launch_seconds")
        if isinstance(seconds, float):
            parts.append(f"ready line after {duration(seconds)}")
        starting = ctx.found.get(NAME)
        if isinstance(starting, Starting) and starting.progress is not None:
            parts.append(f"{starting.progress.done}/{starting.progress.total} shards loaded")
        return ", ".join(parts)


STEP = Launch()
