"""Step 8: the unit file on the node is exactly what profile, paths and patch outcome render.

systemd's own `verify` judges the text before the old service is stopped; a complaint brings the former text back and
ends the run.
"""

from __future__ import annotations

from dataclasses import dataclass

from console.checkpoint import patch
from console.deploy import flags
from console.deploy import unit as render
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.errors import Refused, RelaunchError, UnitFailed
from console.node import systemd
from console.node.base import done, succeeded

NAME = "unit"
_FORMER = "unit-former"


@dataclass(frozen=True, slots=True)
class Former:
    """What stood at `path` before this run wrote it; `text` is None where nothing stood."""

    path: str
    text: str | None


class Unit:
    name = NAME
    downtime = False

    async def check(self, ctx: Context) -> Check:
        state = ctx.facts.units.get(ctx.profile.service.unit)
        old = installed(ctx)
        new = rendered(ctx)
        if old == new and not (state and state.need_reload):
            return Satisfied(f"{unit_path(ctx)} is as rendered ({len(new.splitlines())} lines)")
        if old == new:
            return Needed((Change(f"tell systemd to read {ctx.profile.service.unit} again"),))
        return Needed(changes(ctx, old, new))

    async def apply(self, ctx: Context) -> None:
        await self._flags(ctx)
        path, new = unit_path(ctx), rendered(ctx)
        former = ctx.found.setdefault(_FORMER, Former(path, installed(ctx)))
        if former.text is not None and former.text == installed(ctx):
            # beside what a release knows: a console that dies right after this write must not take the old text along
            keep = ("install", "-D", "-m", "0644", "--", path, former_path(ctx))
            succeeded(await ctx.node.run(keep, timeout=30, sudo=True), keep)
        await ctx.node.write(path, new.encode(), mode=0o644, sudo=True)
        await _reload(ctx)

    async def _flags(self, ctx: Context) -> None:
        """The flags once more, now by the vLLM that may just have been installed, and with those that the patch adds."""
        table, _ = await flags.installed_table(ctx)
        found = flags.check_flags(ctx.profile, table, patch.planned(ctx).flags)
        refused = [finding for finding in found if finding.level == "refuse"]
        if refused:
            remedies = dict.fromkeys(finding.remedy for finding in refused)
            raise Refused("\n".join(finding.text for finding in refused), "; ".join(remedies))

    async def verify(self, ctx: Context) -> str:
        path = unit_path(ctx)
        new = rendered(ctx)
        text = (await ctx.node.read(path, sudo=True)).decode(errors="replace")
        if text != new:
            raise UnitFailed(f"{path} is not what was written", "someone else writes it too; see who, and run again")
        argv = systemd.verify_file(path)
        answer = done(await ctx.node.run(argv, timeout=60, sudo=True, mutates=False), argv)
        complaints = _complaints(answer.out + "\n" + answer.err, ctx.profile.service.unit)
        # a complaint that names another unit is about what ours depends on; silence with a failure is about ours
        if complaints or (answer.code != 0 and not (answer.out + answer.err).strip()):
            told = "; ".join(complaints) or f"it ended with code {answer.code}"
            await self.undo(ctx)
            raise UnitFailed(
                f"systemd-analyze verify complains about {path}: {told}", "correct the profile; the old text is back"
            )
        state = await systemd.unit_state(ctx.node, ctx.profile.service.unit)
        if state.load != "loaded" or state.need_reload:
            raise UnitFailed(
                f"systemd has {state.name} as {state.load}, not loaded", f"look at systemctl status {state.name}"
            )
        return f"{path} written, systemd-analyze verify is content, {state.name} is loaded"

    async def undo(self, ctx: Context) -> None:
        """Bring back the text that stood before this run, or remove the file when there was none."""
        former = ctx.found.pop(_FORMER, None)
        if not isinstance(former, Former):
            return
        if former.text is not None:
            await ctx.node.write(former.path, former.text.encode(), mode=0o644, sudo=True)
        else:
            argv = ("rm", "-f", "--", former.path)
            succeeded(await ctx.node.run(argv, timeout=30, sudo=True), argv)
        await _reload(ctx)


def unit_path(ctx: Context) -> str:
    """Where the unit file stands."""
    return f"{ctx.facts.paths.units}/{ctx.profile.service.unit}"


def former_path(ctx: Context) -> str:
    """Where the text stays that stood there before our last write."""
    return f"{ctx.facts.paths.state}/former/{ctx.profile.service.unit}"


def remember_former(ctx: Context) -> None:
    """Take up what an unfinished run replaced: its text comes back with everything else. Pure, from the facts."""
    text = ctx.facts.files.get(former_path(ctx))
    if _FORMER not in ctx.found and text is not None and text != installed(ctx):
        ctx.found[_FORMER] = Former(unit_path(ctx), text)


def installed(ctx: Context) -> str | None:
    """The text that stands in our own place; a fragment elsewhere is not ours to compare with."""
    state = ctx.facts.units.get(ctx.profile.service.unit)
    return state.text if state is not None and state.fragment == unit_path(ctx) else None


def rendered(ctx: Context) -> str:
    """The unit text for what is to be served, also before the model is there."""
    return render.unit_text(ctx.profile, ctx.facts, patch.planned(ctx))


def changes(ctx: Context, old: str | None, new: str) -> tuple[Change, ...]:
    """The plan: the diff of the text, then each flag and variable that moves."""
    verb = "write" if old is None else "rewrite"
    first = Change(f"{verb} {unit_path(ctx)}", render.unit_diff(old, new))
    if old is None:
        return (first,)
    moved = (*render.flag_changes(old, new), *render.environment_changes(old, new))
    return (first, *(Change(line) for line in moved))


def _complaints(text: str, unit: str) -> tuple[str, ...]:
    """Lines of `systemd-analyze verify` about our unit; it also checks what the unit depends on, which is not ours."""
    return tuple(line.strip() for line in text.splitlines() if unit in line)


async def _reload(ctx: Context) -> None:
    argv = systemd.daemon_reload()
    try:
        succeeded(await ctx.node.run(argv, timeout=90, sudo=True), argv)
    except RelaunchError as error:
        raise UnitFailed(f"systemd did not read its units again: {error.message}", error.remedy) from error


STEP = Unit()
