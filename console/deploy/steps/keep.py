"""Step 14: the release becomes the last good one, survives a reboot of the node, and old ones make room.

Our unit is enabled for boot and the units that it replaced are not, or two models would fight for the GPUs after a power
cut; which ones were enabled is written into the release, so that a way back puts them on again.
"""

from __future__ import annotations

from dataclasses import replace

from console.deploy import deadman
from console.deploy.release import (
    LAST_GOOD_FILE,
    Release,
    already_serving,
    candidate,
    draft,
    encode_release,
    in_passing,
    last_good,
    mark_failed,
    next_number,
    point_last_good,
    question,
    release_file,
    release_folder,
    releases,
    surplus,
    write_release,
)
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.errors import RelaunchError, UnitFailed
from console.events import Measured
from console.node import systemd
from console.node.base import Argv, succeeded
from console.node.facts import read_facts
from console.text import plural

NAME = "keep"


class Keep:
    name = NAME
    downtime = False

    async def check(self, ctx: Context) -> Check:
        unit = ctx.facts.units.get(ctx.profile.service.unit)
        good = last_good(ctx.facts)
        measured = ctx.found.get("throughput")
        again = measured is not None and good is not None and measured != good.baseline
        if good and unit and already_serving(ctx) and not again and unit.enabled == "enabled" and not self._boots(ctx):
            return Satisfied(f"release {good.number} is the last good one, {unit.name} is enabled")
        number = self._number(ctx)
        changes = [Change(f"release {number} becomes the last good one")]
        if unit is None or unit.enabled != "enabled":
            changes.append(Change(f"enable {ctx.profile.service.unit} for boot"))
        changes += [Change(f"take {name} out of the boot") for name in self._boots(ctx)]
        old = surplus(ctx.facts)
        if old:
            changes.append(Change(f"forget release {', '.join(str(release.number) for release in old)}"))
        return Needed(tuple(changes))

    async def apply(self, ctx: Context) -> None:
        release = await self._release(ctx)
        old = surplus(ctx.facts)
        # first: from here on a console that dies must not have the node go back from what passed every gate
        await deadman.disarm(ctx)
        await write_release(ctx.node, ctx.facts, release)
        await point_last_good(ctx.node, ctx.facts, release.number)
        await _do(ctx, systemd.enable(release.unit))
        boots = self._boots(ctx)
        if boots:
            await _do(ctx, systemd.disable(*boots))
        gone = [
            path
            for each in old
            if each.number != release.number
            for path in (release_file(ctx.facts, each.number), release_folder(ctx.facts, each.number))
        ]
        if gone:
            await _do(ctx, ("rm", "-rf", "--", *gone))
        ctx.found[NAME] = release

    async def verify(self, ctx: Context) -> str:
        fresh = await read_facts(ctx.node, question(ctx.profile))
        expected = ctx.found.get(NAME)
        good = last_good(fresh)
        if good is None:
            raise RelaunchError(
                "no last good release can be read back from the node", "look at the disk of its state folder"
            )
        if isinstance(expected, Release):
            path = release_file(fresh, expected.number)
            if fresh.files.get(path, "").encode() != encode_release(expected) or good.number != expected.number:
                raise RelaunchError(
                    f"release {expected.number} reads back differently than it was written",
                    "another Relaunch may be at work on this node, or its disk is failing",
                )
        unit = fresh.units.get(good.unit)
        if unit is None or unit.enabled != "enabled":
            raise UnitFailed(
                f"{good.unit} is not enabled for boot: {unit.enabled if unit else 'unknown'}",
                f"look at: systemctl is-enabled {good.unit}",
            )
        kept = len(releases(fresh))
        points = f", {plural(len(good.baseline), 'load point')} as baseline" if good.baseline else ""
        return (
            f"release {good.number} is the last good one, read back identical{points}; {plural(kept, 'release')} kept"
        )

    async def undo(self, ctx: Context) -> None:
        release = ctx.found.pop(NAME, None)
        if not isinstance(release, Release):
            return
        await boot_again(ctx, release)
        with in_passing(ctx):
            if release.former is not None and any(each.number == release.former for each in releases(ctx.facts)):
                await point_last_good(ctx.node, ctx.facts, release.former)
            else:
                await _do(ctx, ("rm", "-f", "--", ctx.facts.path(LAST_GOOD_FILE)))
        await mark_failed(ctx, release)

    def _number(self, ctx: Context) -> int:
        known = candidate(ctx)
        good = last_good(ctx.facts)
        if known is None and good is not None and already_serving(ctx):
            return good.number
        return known.number if known else next_number(ctx.facts)

    def _boots(self, ctx: Context) -> tuple[str, ...]:
        """Replaced units that would start at the next boot."""
        units = (ctx.facts.units.get(name) for name in ctx.profile.replaces)
        return tuple(unit.name for unit in units if unit is not None and unit.enabled == "enabled")

    async def _release(self, ctx: Context) -> Release:
        """The release as it is kept: what was started, with the start that passed the gates and what was measured."""
        good = last_good(ctx.facts)
        known = candidate(ctx)
        if known is None and good is not None and already_serving(ctx):
            known = good  # the same release, measured again
        release = known or draft(ctx, next_number(ctx.facts), stopped=tuple(ctx.found.get("stopped", ())))
        state = await systemd.unit_state(ctx.node, release.unit)
        if state.active != "active":
            raise UnitFailed(
                f"{release.unit} is {state.active}; it is not kept", f"look at the journal of {release.unit}"
            )
        baseline: tuple[Measured, ...] = ctx.found.get("throughput") or release.baseline
        disabled = tuple(dict.fromkeys((*release.disabled, *self._boots(ctx))))
        return replace(release, state="good", invocation=state.invocation, baseline=baseline, disabled=disabled)


async def boot_again(ctx: Context, release: Release) -> None:
    """Undo what keeping `release` did to the boot: its own unit out, the units that it had replaced in again."""
    facts = ctx.facts
    present = [name for name in release.disabled if (unit := facts.units.get(name)) is None or unit.load == "loaded"]
    if present:
        await _do(ctx, systemd.enable(*present))
    former = next((each for each in releases(facts) if each.number == release.former), None)
    if former is None or former.unit != release.unit:
        await _do(ctx, systemd.disable(release.unit))


async def _do(ctx: Context, argv: Argv) -> None:
    succeeded(await ctx.node.run(argv, timeout=60, sudo=True), argv)


STEP = Keep()
