"""Step 6: index, sizes, headers and hashes match; only what is wrong is fetched again.

The check is a detached job that goes on where it was interrupted. Its record on the node makes the next check a look at
the facts, as long as no file's size, mtime or inode has changed. The option `deep` reads everything again.
"""

from __future__ import annotations

import json
import time

from console.checkpoint import shards
from console.checkpoint.hub import Manifest
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.deploy.steps.download import fetch
from console.deploy.steps.space import manifest_of
from console.errors import DownloadFailed
from console.events import Noted, Progressed
from console.node import jobs
from console.text import plural, size

NAME = "shards"
ROUNDS = 3
"""Checks in one run: the first, and one after each of two repairs."""


class Shards:
    name = NAME
    downtime = False

    async def check(self, ctx: Context) -> Check:
        manifest = await manifest_of(ctx)
        found = current(ctx, manifest)
        if found.whole and not ctx.options.get("deep"):
            return Satisfied(shards.evidence(manifest, found))
        if found.whole:
            return Needed((Change(f"read all {plural(len(manifest.files), 'file')} again ({size(manifest.total)})"),))
        left = {*found.unchecked, *(fault.path for fault in found.faults)}
        count = sum(file.size for file in manifest.files if file.path in left)
        changes = [Change(f"check {plural(len(left), 'file')} ({size(count)}) against the hub's hashes")]
        changes += [Change(f"fetch again: {fault}") for fault in found.faults if fault.kind != "missing"]
        return Needed(tuple(changes))

    async def apply(self, ctx: Context) -> None:
        manifest = await manifest_of(ctx)
        for number in range(1, ROUNDS + 1):
            await self._look(ctx, manifest, deep=bool(ctx.options.get("deep")) and number == 1)
            await ctx.refresh()
            found = current(ctx, manifest)
            wrong = tuple(fault.path for fault in found.faults)
            if found.whole:
                return
            if not wrong or number == ROUNDS:
                raise shards.failure(found)
            told = "; ".join(str(fault) for fault in found.faults[:3])
            ctx.emit(Noted(time=time.time(), text=f"fetching {plural(len(wrong), 'file')} again: {told}"))
            await fetch(ctx, manifest, replace=wrong, step=NAME)
            await ctx.refresh()

    async def verify(self, ctx: Context) -> str:
        manifest = await manifest_of(ctx)
        found = current(ctx, manifest)
        if not found.whole:
            raise shards.failure(found)
        return shards.evidence(manifest, found)

    async def undo(self, ctx: Context) -> None:
        """Stop the check; nothing was changed."""
        await jobs.stop_job(ctx.node, shards.job_name(ctx.profile))

    async def _look(self, ctx: Context, manifest: Manifest, *, deep: bool) -> None:
        for _ in range(2):
            job = await jobs.start_job(
                ctx.node, ctx.facts, shards.shards_job(ctx.profile, ctx.facts, manifest, deep=deep)
            )
            async with jobs.follow_job(ctx.node, ctx.facts, job.name) as log:
                async for entry in log:
                    _show(ctx, entry.message)
                state = log.state
            if state is None or state.phase != "done":
                how = "ended unseen" if state is None else f"ended as {state.phase}"
                raise DownloadFailed(
                    f"the check of the model's files {how}",
                    f"See `journalctl -u {job.unit}` on the node, and run again; it goes on where it was.",
                )
            if job.same or not job.adopted:
                return


def current(ctx: Context, manifest: Manifest) -> shards.ShardReport:
    """What the remembered record says of the folder as the facts list it."""
    folder = ctx.facts.folders.get(ctx.facts.path(ctx.profile.model.folder))
    return shards.report(manifest, shards.remembered(ctx.facts, ctx.profile), folder)


def _show(ctx: Context, message: str) -> None:
    try:
        data = json.loads(message)
    except ValueError:
        return
    if isinstance(data, dict) and data.get("event") == "progress":
        rate = float(data["rate"]) or None
        left = float(data["total"]) - float(data["done"])
        ctx.emit(
            Progressed(
                time=time.time(), step=NAME, text=f"{data['files_done']}/{data['files']} files",
                done=float(data["done"]), total=float(data["total"]), unit="bytes",
                rate=rate, eta=left / rate if rate else None,
            )
        )  # fmt: skip


STEP = Shards()
