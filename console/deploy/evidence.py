"""What a failure left behind, captured before anything is cleaned up: into a folder on the operator's machine, redacted.

One fresh look at the node (one exec) gives unit state, kernel lines and GPUs; the journal is what the follow has read.
Capturing never hides the failure: what cannot be had is left out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from console import triage
from console.deploy.cause import Story, cause_event, story
from console.deploy.runlog import as_json, write_parts
from console.deploy.starting import Ended, Starting
from console.errors import NotReady, RelaunchError, UnitFailed, Unreachable
from console.events import CauseFound, encode
from console.node import journal
from console.node.facts import Facts, Question, read_facts
from console.node.gpu import GpuSample
from console.text import gib

if TYPE_CHECKING:
    from console.deploy.step import Context
    from console.triage import Diagnosis, Outside


async def explain(ctx: Context, ended: Ended, *, step: str) -> RelaunchError:
    """The error that a failed start is: evidence captured, the cause told once, `ctx.found["diagnosis"]` left for --fix.

    UnitFailed for what never started or died, NotReady for what lives and does not become ready. Raises Unreachable.
    """
    starting = ended.starting
    if ended.kind in ("crashed", "restarted") and starting.state is not None and starting.told_cause is None:
        # what the node still has to be asked may take seconds, and adds nothing where no process ran or the log explains
        known, _, event = _told(ctx, ended, None, step)
        if not starting.wrote or (known.cause is not None and known.certain):
            starting.told_cause = event.text
            ctx.emit(event)
    fresh = await look(ctx, starting.unit)
    diagnosis, told, event = _told(ctx, ended, fresh, step)
    ctx.found["diagnosis"] = diagnosis
    await keep(ctx, starting, fresh, diagnosis, event)
    if event.text != starting.told_cause:
        ctx.emit(event)
    living = ended.kind in ("hung", "no-log")
    return (NotReady if living else UnitFailed)(told.text, event.remedy or told.remedy)


def _told(ctx: Context, ended: Ended, fresh: Facts | None, step: str) -> tuple[Diagnosis, Story, CauseFound]:
    """What the end was, as far as it is known: with `fresh` also by the node's facts after it."""
    starting = ended.starting
    state = fresh.units.get(starting.unit) if fresh is not None else None
    if ended.kind in ("crashed", "restarted") and starting.state is not None:
        state = starting.state  # the end that was seen, not the next start
    diagnosis = starting.diagnosis(outside(ctx, ended, fresh))
    told = story(
        ended.kind,
        starting.unit,
        state,
        wrote=starting.wrote,
        said=tuple(starting.systemd_said),
        seconds=ended.seconds,
        stage=starting.stage,
        diagnosis=diagnosis,
    )
    if ended.kind in ("hung", "failed"):
        told = replace(told, text=f"{told.text}{gpu_words(starting.gpus)}")
    event = cause_event(diagnosis, step) if diagnosis.cause is not None and told.started else None
    if event is None:
        event = CauseFound(
            time=time.time(),
            step=step,
            text=told.text,
            category=told.category or diagnosis.category or "",
            meaning=diagnosis.meaning if told.started else "",
            remedy=told.remedy or diagnosis.remedy,
        )
    return diagnosis, told, event


def gpu_words(sample: GpuSample | None) -> str:
    """What the GPUs did while nothing moved: all at 100 % and flat memory is a collective that waits for a rank."""
    if sample is None:
        return ""
    busy = [gpu.utilisation for gpu in sample.gpus if gpu.utilisation is not None]
    used = [gpu.memory_used for gpu in sample.gpus if gpu.memory_used is not None]
    parts = [f"{_span(busy, lambda n: f'{n:.0f} %')} busy"] if busy else []
    parts += [f"{_span(used, gib)} used"] if used else []
    return f" (GPUs {', '.join(parts)})" if parts else ""


def _span(values: list[int], say: Callable[[float], str]) -> str:
    low, high = say(min(values)), say(max(values))
    return low if low == high else f"{low} to {high}"


def outside(ctx: Context, ended: Ended, fresh: Facts | None) -> Outside:
    """What triage cannot read in the log: systemd's result, the kernel's lines since the run began, silence."""
    state = ended.starting.state
    known = set(ctx.facts.kernel_log)
    kernel = () if fresh is None else tuple(line for line in fresh.kernel_log if line not in known)
    alive = ended.kind in ("hung", "no-log", "failed")
    return triage.Outside(
        alive=alive,
        silent_seconds=ended.seconds,
        unit_result=None if state is None or alive else state.result,
        exit_status=None if state is None or alive else state.exit_status,
        kernel=kernel,
    )


async def look(ctx: Context, unit: str) -> Facts | None:
    """The node as it is now, as far as a failed start goes; None when the script cannot be run. Raises Unreachable."""
    try:
        return await read_facts(ctx.node, Question(units=(unit,), ports=(ctx.profile.service.port,)))
    except Unreachable:
        raise
    except RelaunchError:
        return None


async def keep(
    ctx: Context, starting: Starting, fresh: Facts | None, diagnosis: Diagnosis | None, event: CauseFound
) -> Path | None:
    """Write what is known into the run's evidence folder; its path, or None when the run keeps none."""
    place = ctx.options.get("evidence_dir")
    if place is None:
        return None
    folder = Path(place)
    state = fresh.units.get(starting.unit) if fresh is not None else None
    parts: dict[str, str] = {
        "journal.log": starting.spool.text(),
        "cause.json": as_json({**encode(event), "diagnosis": None if diagnosis is None else diagnosis.to_json()}),
        "start.json": as_json(
            {
                "unit": starting.unit,
                "invocation": starting.invocation,
                "cursor": starting.cursor,
                "stage": starting.stage,
                "seen": None if starting.state is None else {**asdict(starting.state), "text": None},
                "now": None if state is None else {**asdict(state), "text": None},
                "systemd": starting.systemd_said,
            }
        ),
    }
    if state is not None and state.text:
        parts["unit.service"] = state.text
    if fresh is not None:
        parts["kernel.log"] = "\n".join([*fresh.kernel_log, ""])
        parts["listeners.json"] = as_json([asdict(listener) for listener in fresh.listeners])
    sample = fresh.gpus if fresh is not None and fresh.gpus is not None else starting.gpus
    if sample is not None:
        parts["gpus.json"] = as_json(asdict(sample))
    parts |= config_files(ctx)
    ctx.found["captured"] = True
    with contextlib.suppress(OSError):  # a full disk here must not hide why the start failed there
        write_parts(ctx, parts)
        return folder
    return None


def config_files(ctx: Context) -> dict[str, str]:
    """What the model and its overlay say of themselves, as far as the facts hold it."""
    found = {}
    for path, text in ctx.facts.files.items():
        name = path.rpartition("/")[2]
        if name in ("config.json", "hf_quant_config.json"):
            overlay = path.startswith(ctx.facts.path("state:/overlays"))
            found[f"{'overlay-' if overlay else ''}{name}"] = text
    return found


async def capture(ctx: Context, step: str, error: RelaunchError) -> None:
    """The evidence of a failure of any step, unless the step has captured it itself: once per failure."""
    if ctx.options.get("evidence_dir") is None or ctx.found.pop("captured", False):
        return
    unit = ctx.profile.service.unit
    starting = ctx.found.get("launch")
    if not isinstance(starting, Starting):
        rules = triage.load_rules()
        starting = Starting(unit, rules, triage.Reader(rules))
    if starting.invocation:
        with contextlib.suppress(RelaunchError):
            await catch_up(ctx, starting)
    fresh = await look(ctx, unit)
    event = CauseFound(time=time.time(), step=step, text=error.message, remedy=error.remedy)
    await keep(ctx, starting, fresh, None, event)
    ctx.found.pop("captured", None)


async def explain_later(ctx: Context, error: RelaunchError, *, step: str) -> RelaunchError:
    """An error of a server that had said it was ready, with the cause from its log where that holds one: a first request
    can kill the engine (VLLM-LAB). The error itself when the log says nothing."""
    starting = ctx.found.get("launch")
    if not isinstance(starting, Starting) or not starting.invocation:
        return error
    await catch_up(ctx, starting)
    fresh = await look(ctx, starting.unit)
    if fresh is not None and starting.unit in fresh.units:
        starting.state = fresh.units[starting.unit]
    diagnosis = starting.diagnosis(outside(ctx, Ended("crashed", starting), fresh))
    ctx.found["diagnosis"] = diagnosis
    if diagnosis.outcome != "failed" or diagnosis.cause is None:
        event = CauseFound(time=time.time(), step=step, text=error.message, remedy=error.remedy)
        await keep(ctx, starting, fresh, diagnosis, event)
        return error
    event = cause_event(diagnosis, step)
    await keep(ctx, starting, fresh, diagnosis, event)
    ctx.emit(event)
    return type(error)(f"{error.message}: {diagnosis.cause.text}", diagnosis.remedy or error.remedy)


async def catch_up(ctx: Context, starting: Starting) -> None:
    """Feed triage what the journal holds beyond what was followed."""
    call = journal.entries_call(starting.unit, invocation=starting.invocation, cursor=starting.cursor, follow=False)
    async with ctx.node.stream(call, sudo=True) as lines:
        async for line in journal.whole_lines(lines):
            if entry := journal.parse_entry(line):
                starting.take(entry)
