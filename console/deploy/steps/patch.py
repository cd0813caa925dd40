"""Step 7: the KV decision, as a flag or as an overlay beside the pristine download.

Nothing in the download is changed. The overlay is read again and hashed in every check, since a new download may have
replaced what it was made from. The outcome tells the unit which folder to serve.
"""

from __future__ import annotations

import posixpath

from console.checkpoint import forecast, patch, probe
from console.checkpoint.overlay import (
    OverlayPlan,
    build_overlay,
    edit_in_place,
    overlay_problems,
    remove_overlay,
    restore_in_place,
)
from console.checkpoint.patch import PatchPlan
from console.checkpoint.quant import InvalidConfig
from console.checkpoint.question import CONFIGS, draft_folder
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.errors import Refused, RelaunchError
from console.events import Noted
from console.findings import Finding

NAME = "patch"
_MADE = "patch-made"
_EDITED = "patch-edited"


class Patch:
    name = NAME
    downtime = False

    async def check(self, ctx: Context) -> Check:
        ctx.found.pop(NAME, None)
        try:
            plan = await _plan(ctx)
        except InvalidConfig as error:
            return Needed((Change(f"{error.message}; decide the KV cache when it is fetched again"),))
        ctx.found[NAME] = plan.outcome
        decision = plan.outcome.decision
        if decision is None:
            return Needed((Change("decide the KV cache when the model's config is there"),))
        if decision.action == "refuse":
            raise Refused(decision.reason, decision.remedy)
        _tell_fit(ctx)
        broken = [overlay for overlay in plan.overlays if not await _stands(ctx, overlay)]
        if not broken and not plan.in_place:
            return Satisfied(evidence(plan))
        changes = [
            Change(
                f"make the overlay {overlay.path} with {edit.name} rewritten: {decision.reason}", patch.edit_diff(edit)
            )
            for overlay in broken
            for edit in overlay.edits
        ]
        changes += [
            Change(
                f"rewrite {edit.name} in {place.source}, its original kept beside it: {decision.reason}",
                patch.edit_diff(edit),
            )
            for place in plan.in_place
            for edit in place.edits
        ]
        return Needed(tuple(changes))

    async def apply(self, ctx: Context) -> None:
        plan = await _plan(ctx)
        if plan.outcome.decision is None:
            raise RelaunchError(
                f"{ctx.profile.model.folder} has no config.json, so the KV cache cannot be decided",
                "Run the download step again.",
            )
        if plan.outcome.decision.action == "refuse":
            raise Refused(plan.outcome.decision.reason, plan.outcome.decision.remedy)
        for text in plan.warnings:
            ctx.emit(Noted(time=ctx.facts.clock, text=f"patch: {text}"))
        made: list[str] = ctx.found.setdefault(_MADE, [])
        for overlay in plan.overlays:
            if await build_overlay(ctx.node, overlay):
                made += [overlay.path]
        edited: list[OverlayPlan] = ctx.found.setdefault(_EDITED, [])
        for place in plan.in_place:
            edited.append(place)
            await edit_in_place(ctx.node, place)
        await probe.remember(ctx)
        ctx.found[NAME] = plan.outcome

    async def verify(self, ctx: Context) -> str:
        edited: list[OverlayPlan] = ctx.found.get(_EDITED, [])
        if edited:
            await ctx.refresh()
        plan = await _plan(ctx)
        if plan.in_place:
            names = ", ".join(edit.name for place in plan.in_place for edit in place.edits)
            raise RelaunchError(
                f"{names} in {plan.in_place[0].source} does not hold the patch",
                "See whether something else writes to it.",
            )
        for overlay in plan.overlays:
            problems = await overlay_problems(ctx.node, overlay)
            if problems:
                raise RelaunchError(
                    f"the overlay {overlay.path} is not right: {'; '.join(problems[:3])}", "Run the patch step again."
                )
        ctx.found[NAME] = plan.outcome
        return evidence(plan, tuple(edited))

    async def undo(self, ctx: Context) -> None:
        """Remove the overlays that this run made, and bring originals back that it edited in place."""
        for place in ctx.found.pop(_EDITED, []):
            await restore_in_place(ctx.node, place.source)
        for path in ctx.found.pop(_MADE, []):
            await remove_overlay(ctx.node, path)
        ctx.found.pop(NAME, None)


def evidence(plan: PatchPlan, edited: tuple[OverlayPlan, ...] = ()) -> str:
    """`KV bfloat16 by overlay …: config.json c375d7d566b6 -> 3bc7d96c11c2, …`. `edited`: what was edited in place."""
    outcome, decision = plan.outcome, plan.outcome.decision
    if decision is None:
        return "nothing to decide by yet"
    if edited:
        return "KV bfloat16 in place: " + "; ".join(f"{place.source}: {_hashes(place)}" for place in edited)
    if plan.overlays:
        return "KV bfloat16 by overlay " + "; ".join(f"{overlay.path}: {_hashes(overlay)}" for overlay in plan.overlays)
    if decision.action == "flag":
        flags = " ".join(f"--{name} {value}" for name, value in outcome.flags.items())
        return f"KV {decision.dtype} by flag {flags}; {decision.reason}"
    return decision.reason


def _hashes(plan: OverlayPlan) -> str:
    return ", ".join(f"{edit.name} {edit.sha_before[:12]} -> {edit.sha_after[:12]}" for edit in plan.edits)


def _tell_fit(ctx: Context) -> None:
    """The memory fit, where preflight could not know it: the hub's list of files came after it."""
    told: tuple[Finding, ...] = ctx.found.get("preflight", ())
    if any(each.table for each in told):
        return
    found = forecast.finding(forecast.forecasts(ctx))
    ctx.emit(found.event(NAME))
    if found.level == "refuse":
        raise Refused(found.text, found.remedy)


async def _plan(ctx: Context) -> PatchPlan:
    """The plan from facts, reading from the node what they do not hold: large configs, the installed backend."""
    await probe.probe(ctx)
    files = await _configs(ctx)
    try:
        return patch.plan_for(ctx, files)
    except InvalidConfig as error:
        raise InvalidConfig(f"{ctx.profile.model.folder}: {error.message}", error.remedy) from error


async def _configs(ctx: Context) -> dict[str, bytes]:
    """Config files that are listed in a folder and whose text the facts do not hold, being too large for them."""
    found = {}
    draft = draft_folder(ctx.profile)
    for asked in (ctx.profile.model.folder.rstrip("/"), *([draft] if draft else [])):
        folder = ctx.facts.path(asked)
        listed = ctx.facts.folders.get(folder)
        names = {entry.name for entry in listed.files} if listed else set()
        for name in CONFIGS:
            path = posixpath.join(folder, name)
            if name in names and path not in ctx.facts.files:
                found[path] = await ctx.node.read(path, sudo=ctx.facts.uid != 0)
    return found


async def _stands(ctx: Context, overlay: OverlayPlan) -> bool:
    """Whether the overlay is on the node and whole; asked only when its manifest says that it was made."""
    if f"{overlay.path}.json" not in ctx.facts.files:
        return False
    return not await overlay_problems(ctx.node, overlay)


STEP = Patch()
