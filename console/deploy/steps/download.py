"""Step 5: every file of the pinned commit, by a detached job on the node that a dropped link does not touch.

The console follows the job's journal and shows bytes on disk; a run that comes back adopts the job. A folder that is
complete costs a look at the facts.
"""

from __future__ import annotations

import json
import time
from typing import Any

from console.checkpoint import hub
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.deploy.steps.space import manifest_of
from console.errors import DownloadFailed
from console.events import Noted, Progressed
from console.node import jobs
from console.text import size

NAME = "download"


class Download:
    name = NAME
    downtime = False

    async def check(self, ctx: Context) -> Check:
        manifest = await manifest_of(ctx)
        found = presence(ctx, manifest)
        if found.todo:
            done = f", {size(found.done)} are there" if found.done else ""
            text = f"download {len(found.todo)} files of {manifest.repo} ({size(found.needed)}){done}"
            return Needed((Change(text, size=found.needed),))
        if hub.remembered(ctx.facts, ctx.profile) is None:
            return Needed((Change(f"remember the list of files of {manifest.repo}; all of them are there"),))
        return Satisfied(hub.sentence(manifest, found))

    async def apply(self, ctx: Context) -> None:
        manifest = await manifest_of(ctx)
        if hub.remembered(ctx.facts, ctx.profile) is None:
            await hub.remember(ctx.node, ctx.facts, ctx.profile, manifest)
        if presence(ctx, manifest).todo:
            await fetch(ctx, manifest)

    async def verify(self, ctx: Context) -> str:
        manifest = await manifest_of(ctx)
        found = presence(ctx, manifest)
        if found.todo:
            await ctx.refresh()
            found = presence(ctx, manifest)
        if found.todo:
            names = ", ".join(file.path for file in found.todo[:3])
            raise hub.failure(ctx.profile, "incomplete", f"{len(found.todo)} files, e.g. {names}")
        return hub.sentence(manifest, found)

    async def undo(self, ctx: Context) -> None:
        """Stop the job; what was fetched stays, and the next run goes on with it."""
        await jobs.stop_job(ctx.node, hub.job_name(ctx.profile))


def presence(ctx: Context, manifest: hub.Manifest) -> hub.Presence:
    """What of the manifest is in the model's folder, as the facts list it."""
    return hub.presence(manifest, ctx.facts.folders.get(ctx.facts.path(ctx.profile.model.folder)))


async def fetch(ctx: Context, manifest: hub.Manifest, *, replace: tuple[str, ...] = (), step: str = NAME) -> None:
    """Run the download job to its end, or follow the one that runs. Raises `DownloadFailed` with the hub's own words."""
    stall = ctx.options.get("stall_seconds")
    limit = float(stall) if isinstance(stall, (int, float)) else None
    for _ in range(2):
        spec = hub.download_job(ctx.profile, ctx.facts, manifest, ctx.token, replace=replace, stall_seconds=limit)
        job = await jobs.start_job(ctx.node, ctx.facts, spec)
        if job.adopted:
            ctx.emit(Noted(time=time.time(), text=f"the download is running already as {job.unit}; following it"))
        end: dict[str, Any] = {}
        async with jobs.follow_job(ctx.node, ctx.facts, job.name) as log:
            async for entry in log:
                end = _told(ctx, entry.message, step) or end
            state = log.state
        if end.get("ok") or (not end and state is not None and state.phase == "done"):
            if not (job.adopted and not job.same and replace):
                return
            continue  # an older job without these replacements has ended; now ours
        if job.adopted and not job.same:
            continue
        raise _ended(ctx, end, state)
    raise DownloadFailed("another download of the same model keeps running", f"Look at {hub.job_name(ctx.profile)}.")


def _told(ctx: Context, message: str, step: str) -> dict[str, Any] | None:
    """Show what the job says; its last word is returned."""
    try:
        data = json.loads(message)
    except ValueError:
        return None
    event = data.get("event") if isinstance(data, dict) else None
    if event == "progress":
        rate = float(data["rate"]) or None
        left = float(data["total"]) - float(data["done"])
        ctx.emit(
            Progressed(
                time=time.time(), step=step, text=f"{data['files_done']}/{data['files']} files",
                done=float(data["done"]), total=float(data["total"]), unit="bytes",
                rate=rate, eta=left / rate if rate else None,
            )
        )  # fmt: skip
    elif event == "trouble":
        how = "going on without Xet" if data.get("no_xet") else "trying again"
        ctx.emit(Noted(time=time.time(), text=f"download: {data['kind']}: {data['text']}; {how}"))
    elif event == "begin" and (data.get("adopted") or data.get("swept")):
        swept = f", {size(data['swept'])} of unfinished files removed" if data.get("swept") else ""
        ctx.emit(Noted(time=time.time(), text=f"download: {data['adopted']} files taken over{swept}"))
    elif event == "end":
        return dict(data)
    return None


def _ended(ctx: Context, end: dict[str, Any], state: jobs.JobState | None) -> DownloadFailed:
    if end:
        return hub.failure(ctx.profile, str(end.get("kind", "unknown")), str(end.get("text", "")))
    how = "unseen" if state is None else f"as {state.phase}" + (f" ({state.error})" if state.error else "")
    return DownloadFailed(
        f"the download job of {ctx.profile.model.repo} ended {how}",
        f"See `journalctl -u {jobs.job_unit(hub.job_name(ctx.profile))}` on the node, and run again; what was fetched stays.",
    )


STEP = Download()
