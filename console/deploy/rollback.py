"""The way back: the units that served before this run, or an earlier release, whole and proved to serve.

Small and true: the unit text as it was, `daemon-reload`, start, the same ready gate. Weights, venv and overlay are never
touched by a deployment, so they need not be brought back; that they are there, and are what was served, is looked at before
the start (and for the verb before anything stops). Idempotent: a unit that runs already with the wanted text is only waited for and measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from console.checkpoint.overlay import verify_overlay
from console.deploy import deadman, evidence, probe, ready, start
from console.deploy.release import (
    LAST_GOOD_FILE,
    Release,
    last_good,
    point_last_good,
    releases,
    running,
    sha256,
    write_release,
)
from console.deploy.starting import Ended, Starting
from console.deploy.unitfile import parse_unit
from console.errors import (
    CommandFailed,
    NotReady,
    Refused,
    RelaunchError,
    Restored,
    RollbackFailed,
    UnitFailed,
    Unreachable,
)
from console.events import Downtime, Noted, Progressed
from console.node import systemd
from console.node.base import Argv, succeeded
from console.node.facts import Facts, Question, read_facts
from console.profile.model import Prompt
from console.text import headline

if TYPE_CHECKING:
    from console.deploy.step import Context

NAME = "rollback"
PATIENCE = 3600.0
"""Seconds for a former service to load its model again; a hang is noticed earlier, by its log."""
LINK_PATIENCE = 600.0
"""Seconds that the way back may go on losing the link."""
WHOLE_REMEDY = "bring back what is named, or choose another release: relaunch rollback RELEASE"
# the old model is only asked to make sense, not to know anything
_PROMPTS = (Prompt(prompt=ready.BUILT_IN[0].prompt, max_tokens=32),)


@dataclass(frozen=True, slots=True)
class Target:
    """One unit to bring back. `text` None: as it is installed. `served` None: whatever it serves."""

    unit: str
    text: str | None
    port: int
    served: str | None
    release: Release | None = None
    """The release that it is, where Relaunch made it."""


async def restore(ctx: Context, release: Release | None = None) -> str:
    """Bring back what served before this run, or `release`; the proof in words. Raises RollbackFailed.

    A lost link is looked past, as in the walk: the start goes on without us and is adopted when the node is there again.
    """
    deadline = time.monotonic() + LINK_PATIENCE
    while True:
        try:
            await ctx.refresh()
            return await _restore(ctx, release)
        except RollbackFailed:
            raise
        except Unreachable as error:
            if type(error) is not Unreachable or time.monotonic() > deadline:
                raise RollbackFailed(error.message, error.remedy) from error
            ctx.emit(Noted(time=time.time(), text=f"{error.message}; looking again at what served before"))
        except RelaunchError as error:
            raise RollbackFailed(error.message, error.remedy) from error


async def _restore(ctx: Context, release: Release | None) -> str:
    targets = (_of_release(release),) if release is not None else served_before(ctx)
    if not targets:
        raise RollbackFailed(
            "nothing served before this run, so there is nothing to bring back",
            "the node is left with our unit stopped",
        )
    proof = await _bring_all_back(ctx, targets)
    began = ctx.found.get("downtime_started")
    if began is not None:
        ctx.emit(Downtime(time=time.time(), state="ended", seconds=ready.since(began)))
    return proof


async def restore_release(ctx: Context) -> str:
    """The verb: from what serves now to the release before it, or to the one in `ctx.options["release"]`.

    That the target is whole is proved before anything is stopped (Refused), and the dead man's switch waits meanwhile: a
    console that dies half-way has the node go back to what served when the rollback began.
    """
    current = last_good(ctx.facts)
    targets, number = _earlier(ctx, current)
    for target in targets:
        if target.release is not None and (lacking := await what_lacks(ctx, target.release)):
            raise Refused(f"release {target.release.number} is not whole: {'; '.join(lacking)}", WHOLE_REMEDY)
    now = _serving_now(ctx, current)
    goal = {"release": number, "units": [target.unit for target in targets]}
    await deadman.arm(ctx, now, goal=goal)
    began = ctx.found.get("downtime_started")
    if began is None:
        began = ctx.found["downtime_started"] = time.time()
        ctx.emit(Downtime(time=began, state="started"))
    try:
        proof = await _bring_all_back(ctx, targets)
    except RollbackFailed:
        raise
    except Unreachable:
        raise  # the walk looks again, and finds what went on meanwhile
    except RelaunchError as error:
        raise await _back_again(ctx, now, error) from error
    ctx.emit(Downtime(time=time.time(), state="ended", seconds=ready.since(began)))
    await deadman.disarm(ctx)
    await _remember(ctx, {target.unit for target in targets}, number)
    return proof


async def _back_again(ctx: Context, now: tuple[Target, ...], error: RelaunchError) -> RelaunchError:
    """A rollback that failed goes back in its turn, to what served when it began."""
    if not now:
        return RollbackFailed(error.message, error.remedy)
    ctx.emit(Noted(time=time.time(), text=f"{headline(error.message)}; going back to what served"))
    try:
        proof = await _bring_all_back(ctx, now)
    except Unreachable:
        raise
    except RelaunchError as second:
        both = f"{headline(error.message)}; and what served before does not either: {headline(second.message)}"
        return RollbackFailed(both, second.remedy or error.remedy)
    ctx.emit(Downtime(time=time.time(), state="ended", seconds=ready.since(ctx.found.get("downtime_started"))))
    return Restored(f"{headline(error.message)}; {proof}", error.remedy)


def _serving_now(ctx: Context, current: Release | None) -> tuple[Target, ...]:
    """What runs and would be missed: the last good release, and whatever else of ours or of the replaced is up."""
    found = []
    for name in dict.fromkeys((ctx.profile.service.unit, *ctx.profile.replaces)):
        unit = ctx.facts.units.get(name)
        if unit is None or unit.active != "active":
            continue
        ours = current is not None and current.unit == name and current.unit_text == unit.text
        found.append(_of_release(current) if ours and current is not None else _of_unit(ctx, name, unit.text))
    return tuple(found)


async def what_lacks(ctx: Context, release: Release) -> tuple[str, ...]:
    """What a release needs that is not on the node any more, in words: environment, model folder, rewritten files by hash."""
    asked = Question(
        venvs=(release.venv,), folders=(release.model_folder, release.model_path), read=tuple(release.overlay)
    )
    facts = await read_facts(ctx.node, asked)
    lacking = []
    venv = facts.venvs.get(release.venv)
    if venv is None or not venv.exists or venv.vllm is None:
        lacking.append(f"there is no vLLM in {release.venv}")
    elif venv.vllm != release.vllm:
        lacking.append(f"{release.venv} holds vLLM {venv.vllm}, not {release.vllm}")
    folder = facts.folders.get(release.model_folder)
    if folder is None or not any(entry.name.endswith((".safetensors", ".bin", ".gguf")) for entry in folder.files):
        lacking.append(f"there are no weights in {release.model_folder}")
    differing = _differing(facts, release)
    lacking += differing
    for overlay in _overlays(facts, release) if not differing else ():
        try:
            await verify_overlay(ctx.node, overlay)
        except Unreachable:
            raise
        except RelaunchError as error:
            lacking.append(error.message)
    return tuple(lacking)


def _differing(facts: Facts, release: Release) -> list[str]:
    """Rewritten files of a release that are not what was served, each in words with both hashes."""
    found = []
    for path, digest in release.overlay.items():
        if path not in facts.files:
            found.append(f"{path} is not there, or cannot be read")
        elif (now := sha256(facts.files[path])) != digest:
            found.append(f"{path} is not what was served: sha256 {now[:12]} instead of {digest[:12]}")
    return found


def _overlays(facts: Facts, release: Release) -> tuple[str, ...]:
    """The overlay folders among the places of a release's rewritten files."""
    top = facts.path("state:/overlays") + "/"
    names = (path[len(top) :].split("/", 1)[0] for path in release.overlay if path.startswith(top))
    return tuple(dict.fromkeys(top + name for name in names))


def served_before(ctx: Context) -> tuple[Target, ...]:
    """What this run stopped, or, when that is not known any more, what it would have stopped. Pure, from the facts."""
    facts, ours = ctx.facts, ctx.profile.service.unit
    good = last_good(facts)
    newest = next((r for r in reversed(releases(facts)) if r.unit == ours and r is not good), None)
    stopped: Sequence[str] = ctx.found.get("stopped") or (newest.stopped if newest else ()) or ctx.profile.replaces
    targets = []
    for name in dict.fromkeys(stopped):
        unit = facts.units.get(name)
        if good is not None and good.unit == name:
            targets.append(_of_release(good))
        elif unit is not None and unit.load == "loaded":
            targets.append(_of_unit(ctx, name, unit.text))
    if not targets and good is not None:
        targets.append(_of_release(good))
    return tuple(targets)


def _earlier(ctx: Context, current: Release | None) -> tuple[tuple[Target, ...], int | None]:
    """Where a rollback goes, and the number that becomes last good. Raises Refused when there is nowhere to go."""
    known = {release.number: release for release in releases(ctx.facts)}
    asked = ctx.options.get("release")
    if asked is not None:
        release = known.get(int(asked)) if str(asked).isdigit() else None
        if release is None:
            have = ", ".join(str(number) for number in known) or "none"
            raise Refused(f"there is no release {asked} on {ctx.node.name}", f"releases there: {have}")
        return (_of_release(release),), release.number
    if "adopted" in ctx.found:
        return _of_unfinished(ctx, known)
    if current is None:
        raise Refused(f"{ctx.node.name} holds no last good release", "deploy first; there is nothing to go back to")
    if not _serves(ctx, current):
        return (_of_release(current),), current.number
    former = known.get(current.former) if current.former is not None else None
    if former is not None:
        return (_of_release(former),), former.number
    units = [ctx.facts.units[name] for name in current.stopped if name in ctx.facts.units]
    targets = tuple(_of_unit(ctx, unit.name, unit.text) for unit in units if unit.load == "loaded")
    if not targets:
        raise Refused(
            f"release {current.number} is the first one and replaced nothing", "there is nothing to go back to"
        )
    return targets, None


def _serves(ctx: Context, release: Release) -> bool:
    """The release is what runs right now, whatever the profile asks for by now: a remedy of a run stands in no profile."""
    unit = ctx.facts.units.get(release.unit)
    if unit is None or unit.active != "active" or unit.stale or ctx.found.get("serving") is False:
        return False
    return unit.text == release.unit_text and unit.invocation == release.invocation


def _of_unfinished(ctx: Context, known: Mapping[int, Release]) -> tuple[tuple[Target, ...], int | None]:
    """Where an unfinished rollback was going; else what served before an unfinished redeploy."""
    goal = ctx.found.get("goal") or {}
    release = known.get(goal.get("release") or 0)
    if release is not None:
        return (_of_release(release),), release.number
    units = [ctx.facts.units[name] for name in goal.get("units", ()) if name in ctx.facts.units]
    targets = tuple(_of_unit(ctx, unit.name, unit.text) for unit in units if unit.load == "loaded") or served_before(
        ctx
    )
    if not targets:
        raise Refused("nothing served before the unfinished run", "deploy; there is nothing to go back to")
    number = next((target.release.number for target in targets if target.release is not None), None)
    return targets, number


def _of_release(release: Release) -> Target:
    return Target(release.unit, release.unit_text, release.port, release.served_name, release)


def _of_unit(ctx: Context, name: str, text: str | None) -> Target:
    """A unit that Relaunch did not write: port and model from its own command line, else from whoever listens."""
    flags = _flags(text or "")
    port = next((each.port for each in ctx.facts.listeners if each.unit == name), None)
    if (given := flags.get("port", "")).isdigit():
        port = int(given)
    served = flags.get("served-model-name") or None
    return Target(name, None, port or ctx.profile.service.port, served.split()[0] if served else None)


def _flags(text: str) -> dict[str, str]:
    """`--name value` and `--name=value` of the unit's command."""
    with contextlib.suppress(ValueError):
        argv = parse_unit(text).argv
        pairs: dict[str, str] = {}
        for index, word in enumerate(argv):
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                after = argv[index + 1] if index + 1 < len(argv) else ""
                pairs[name] = value if equals else ("" if after.startswith("--") else after)
        return pairs
    return {}


# ------------------------------------------------------------------------------------------------------------- effects


async def _bring_all_back(ctx: Context, targets: Sequence[Target]) -> str:
    facts = await ctx.refresh()
    for name in _in_the_way(ctx, facts, targets):
        await stop_and_drain(ctx, name)
    return "; ".join([await _bring_back(ctx, target) for target in targets])


def _in_the_way(ctx: Context, facts: Facts, targets: Sequence[Target]) -> list[str]:
    """Units that run and must not: all that compete for the GPUs, and our own when its process was started from another
    text than the one that is to be brought back."""
    ours = ctx.profile.service.unit
    kept = {target.unit: target for target in targets}
    found = []
    for name in dict.fromkeys((ours, *ctx.profile.replaces)):
        unit = facts.units.get(name)
        if unit is None or not running(unit):
            continue
        target = kept.get(name)
        known = target.release.invocation if target is not None and target.release is not None else ""
        if target is None or (name == ours and unit.invocation != known):
            found.append(name)
    return found


async def _bring_back(ctx: Context, target: Target) -> str:
    await _install(ctx, await ctx.refresh(), target)
    if target.release is not None and (lacking := await what_lacks(ctx, target.release)):
        raise RelaunchError(f"release {target.release.number} is not whole: {'; '.join(lacking)}", WHOLE_REMEDY)
    state = await systemd.unit_state(ctx.node, target.unit)
    server = ready.Server(target.unit, target.port, target.served)
    _tell(ctx, f"waiting for {target.unit}" if running(state) else f"starting {target.unit}")
    try:
        starting = start.adopt(ctx, state) if running(state) else await start.begin(ctx, target.unit)
        await _until_up(ctx, starting, server)
    except Ended as ended:
        raise await evidence.explain(ctx, ended, step=NAME) from ended
    proof = await _prove(ctx, server)
    if target.release is not None:  # from now on this start is the one that was proved
        state = await systemd.unit_state(ctx.node, target.unit)
        await write_release(ctx.node, ctx.facts, replace(target.release, invocation=state.invocation))
    return f"{target.unit} serves again: {proof}"


async def _install(ctx: Context, facts: Facts, target: Target) -> None:
    """The unit's text as it was."""
    unit = facts.units.get(target.unit)
    if target.text is None or (unit is not None and unit.text == target.text and not unit.need_reload):
        return
    if unit is not None and running(unit):
        await stop_and_drain(ctx, target.unit)
    await ctx.node.write(f"{facts.paths.units}/{target.unit}", target.text.encode(), mode=0o644, sudo=True)
    await _do(ctx, systemd.daemon_reload())


async def _until_up(ctx: Context, starting: Starting, server: ready.Server) -> None:
    """Until /health answers, or the log says why it will not. A former service may be anything that speaks HTTP, so its
    log need not have a ready line that triage knows."""
    log = asyncio.ensure_future(start.follow(ctx, starting, step=NAME))
    try:
        async with asyncio.timeout(PATIENCE):
            while await probe.health(ctx.node.http(server.port)) != 200:
                if log.done() and (error := log.exception()) is not None:
                    raise error
                await asyncio.wait({log}, timeout=ready.HEALTH_EVERY if not log.done() else None)
                if log.done() and log.exception() is None:
                    await asyncio.sleep(ready.HEALTH_EVERY)  # the log is ready, HTTP follows; it tells nobody when
    except TimeoutError as error:
        raise UnitFailed(f"{server.unit} does not answer on port {server.port}", "look at its journal") from error
    finally:
        log.cancel()
        await asyncio.wait({log})


async def _prove(ctx: Context, server: ready.Server) -> str:
    try:
        return await ready.pass_gate(ctx, server, _PROMPTS)
    except probe.NoAnswer as error:
        if error.status == 401:  # its key is its own; that it asks for one shows that it lives
            return "health 200, and it asks for its API key"
        raise


async def _remember(ctx: Context, names: set[str], number: int | None) -> None:
    """The pointer and the boot follow what serves now."""
    if number is not None:
        await point_last_good(ctx.node, ctx.facts, number)
    else:
        await _do(ctx, ("rm", "-f", "--", ctx.facts.path(LAST_GOOD_FILE)))
    await _do(ctx, systemd.enable(*sorted(names)))
    facts = await ctx.refresh()
    others = dict.fromkeys((ctx.profile.service.unit, *ctx.profile.replaces))
    boots = [name for name in others if name not in names and (u := facts.units.get(name)) and u.enabled == "enabled"]
    if boots:
        await _do(ctx, systemd.disable(*boots))
        await ctx.refresh()


async def stop_and_drain(ctx: Context, unit: str) -> None:
    """Stop a unit and wait for its GPU memory: a former service that starts earlier fails for memory.

    Raises CommandFailed and Unreachable; memory that does not come back is only noted, for the start will show it.
    """
    from console.deploy.steps.drain import STEP as DRAIN

    stop = systemd.stop(unit)
    answer = await ctx.node.run(stop, timeout=ctx.profile.service.stop_seconds + 60, sudo=True)
    try:
        succeeded(answer, stop)
    except CommandFailed as error:
        if "not loaded" not in error.err and "not be found" not in error.err:
            raise
    await ctx.refresh()
    if ctx.facts.gpus is not None:
        try:
            await DRAIN.apply(ctx)
        except NotReady as error:
            ctx.emit(Noted(time=time.time(), text=error.message))


async def _do(ctx: Context, argv: Argv) -> None:
    succeeded(await ctx.node.run(argv, timeout=120, sudo=True), argv)


def _tell(ctx: Context, text: str) -> None:
    ctx.emit(Progressed(time=time.time(), step=NAME, text=text))
