"""Step 4: enough room for the download; else old folders that the profile names, each confirmed, none that is in use.

The sizes come from the hub, less what lies there already; unfinished files of an earlier attempt count as free, since
the download sweeps them. A folder that a unit file, a release or a running process refers to is never removed. A removal
works in short pieces and tells what it has freed, also when it is interrupted; the next run goes on with what is left.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from console.checkpoint import hub
from console.checkpoint.node_remove import LEAVING
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.errors import Refused
from console.events import Noted, Progressed
from console.node.facts import Disk
from console.node.script import ask
from console.text import Secret, size

NAME = "space"
_REMOVE = Path(hub.__file__).with_name("node_remove.py")
PIECE = 3.0
"""Seconds of a removal between two words about it."""
MANIFEST = "manifest"
"""Key in `Context.found` of the manifest that this run works with."""


class Space:
    name = NAME
    downtime = False

    async def check(self, ctx: Context) -> Check:
        lacking = shortage(ctx, await manifest_of(ctx))
        half = _half_removed(ctx)
        changes = [Change(f"go on removing {folder}, which was interrupted") for folder in half]
        if lacking <= 0:
            return Needed(tuple(changes)) if changes else Satisfied(self._evidence(ctx))
        freed = 0
        for folder in ctx.profile.space.may_remove:
            there = ctx.facts.folders.get(ctx.facts.path(folder))
            if there is not None and there.exists and freed < lacking:
                count = sum(entry.allocated for entry in there.files)
                changes.append(Change(f"remove {folder} ({size(count)})", size=count))
                freed += count
        if freed < lacking:
            raise _refused(ctx, lacking - freed)
        return Needed(tuple(changes))

    async def apply(self, ctx: Context) -> None:
        manifest = await manifest_of(ctx)
        for folder in _half_removed(ctx):
            look = await self._ask(ctx, "look", folder)
            await self._finish(ctx, ctx.facts.path(folder).rstrip("/"), look["begun"], look)
            await ctx.refresh()
        for folder in ctx.profile.space.may_remove:
            if shortage(ctx, manifest) <= 0:
                return
            await self._remove(ctx, folder)
            await ctx.refresh()
        if shortage(ctx, manifest) > 0:
            raise _refused(ctx, shortage(ctx, manifest))

    async def verify(self, ctx: Context) -> str:
        lacking = shortage(ctx, await manifest_of(ctx))
        if lacking > 0:
            raise _refused(ctx, lacking)
        return self._evidence(ctx)

    async def undo(self, ctx: Context) -> None:
        """What was removed on the operator's word stays removed."""

    async def _remove(self, ctx: Context, folder: str) -> None:
        path = ctx.facts.path(folder).rstrip("/")
        look = await self._ask(ctx, "look", folder)
        if look["gone"]:
            return
        if look["used"]:
            text = f"{folder} is in use by {', '.join(look['used'][:3])}, so it stays"
            ctx.emit(Noted(time=ctx.facts.clock, text=text))
            return
        word = posixpath.basename(path)
        if not await ctx.confirm(f"Remove {path} and free {size(look['bytes'])}?", word):
            raise Refused(
                f"{path} was not removed: it was not confirmed", "Type the folder's name, or free space by hand."
            )
        done = await self._ask(ctx, "remove", folder)
        if done["used"]:
            raise Refused(f"{path} could not be removed: {', '.join(done['used'])}")
        if not (await self._finish(ctx, path, look["bytes"], done))["gone"]:
            raise Refused(f"{path} was made again while it was removed", "see what writes there")

    async def _finish(self, ctx: Context, path: str, total: int, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Go on with a removal that was begun, telling what it frees; also when it is interrupted here."""
        try:
            while state["begun"]:
                freed = max(0, total - state["bytes"])
                text = f"removing {path}: {size(freed)} of {size(total)} freed"
                ctx.emit(
                    Progressed(time=time.time(), step=NAME, text=text, done=float(freed), total=float(total), unit="B")
                )
                before, state = state, await self._ask(ctx, "go-on", path)
                if state["begun"] and state["bytes"] >= before["bytes"]:
                    raise Refused(f"{path} does not get smaller by removing it", "see what writes there")
        finally:
            told = size(max(0, total - state["bytes"]))
            how = f" of {size(total)}; interrupted, and the next run goes on with it" if state["begun"] else ""
            ctx.emit(Noted(time=time.time(), text=f"removed {path}, {told} freed{how}"))
        return state

    async def _ask(self, ctx: Context, operation: str, folder: str) -> Any:
        facts, profile = ctx.facts, ctx.profile
        question = {
            "op": operation,
            "folder": facts.path(folder).rstrip("/"),
            "keep": [facts.path(profile.model.folder), facts.path(profile.vllm.venv), facts.paths.state],
            "home": facts.paths.home,
            "units": [facts.paths.units, "/run/systemd/system", "/usr/lib/systemd/system"],
            "state": facts.paths.state,
            "seconds": PIECE,
        }
        source = _REMOVE.read_text(encoding="utf-8")
        return await ask(ctx.node, NAME, source, question, timeout=600, sudo=True, mutates=operation != "look")

    def _evidence(self, ctx: Context) -> str:
        disk = disk_of(ctx)
        manifest = ctx.found[MANIFEST]
        needed = hub.presence(manifest, ctx.facts.folders.get(ctx.facts.path(ctx.profile.model.folder))).needed
        free = f"{size(disk.free)} free on {disk.mount}" if disk else "free space unknown"
        return f"{size(needed)} to fetch, {free}" if needed else f"nothing to fetch, {free}"


def _half_removed(ctx: Context) -> tuple[str, ...]:
    """Folders whose removal an earlier run has begun and not ended."""
    there = ctx.facts.folders
    return tuple(
        folder
        for folder in ctx.profile.space.may_remove
        if (found := there.get(ctx.facts.path(folder.rstrip("/") + LEAVING))) is not None and found.exists
    )


async def manifest_of(ctx: Context) -> hub.Manifest:
    """The manifest of the pinned commit: found in this run, remembered on the node, or asked of the hub."""
    found = ctx.found.get(MANIFEST)
    if not isinstance(found, hub.Manifest):
        found = hub.remembered(ctx.facts, ctx.profile)
    if found is None:
        token = ctx.token if ctx.token else Secret("")
        found = await hub.ask_manifest(ctx.node, ctx.profile, token)
    ctx.found[MANIFEST] = found
    return found


def disk_of(ctx: Context) -> Disk | None:
    """The file system that the model's folder is, or will be, on."""
    for asked in (ctx.profile.model.folder, ctx.profile.model.folder.rstrip("/")):
        for key in (asked, ctx.facts.path(asked)):
            if key in ctx.facts.disks:
                return ctx.facts.disks[key]
    return None


def shortage(ctx: Context, manifest: hub.Manifest) -> float:
    """Bytes that are lacking after the download and the reserve; negative when there is room. 0 when room is unknown."""
    disk = disk_of(ctx)
    found = hub.presence(manifest, ctx.facts.folders.get(ctx.facts.path(ctx.profile.model.folder)))
    if disk is None or not found.todo:
        return 0.0
    return found.needed + ctx.profile.space.reserve_gb * 1e9 - disk.free - found.unfinished


def _refused(ctx: Context, lacking: float) -> Refused:
    disk = disk_of(ctx)
    where = disk.mount if disk else ctx.profile.model.folder
    return Refused(
        f"{size(lacking)} are lacking on {where} for {ctx.profile.model.repo}",
        "Free space, name old model folders in space.may_remove, or put model.folder on another disk.",
    )


STEP = Space()
