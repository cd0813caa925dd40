"""The dead man's switch: before downtime the node is told to bring back by itself what served, unless we live on.

While a run lives it touches a heartbeat file; when that has been still for the profile's `deadman_seconds`, the node stops
our service, puts the unit texts back, starts what served before and writes down what it did. A restart of the node changes
nothing about that: the switch is a unit that the next boot starts, and that acts at once when the time is over by then.
`keep` disarms it, and so does the end of a way back. An interrupted or killed run leaves it armed: `resume` takes it over,
with what the earlier run knew (what it stopped, since when, the unit text from before). On the node: `<state>/deadman/` and
`relaunch-deadman.service` (`console.deploy.node_deadman`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.deploy.audit import AUDIT_FILE
from console.errors import Refused, RelaunchError, Restored, RollbackFailed
from console.events import Downtime, Noted
from console.node import agent, systemd
from console.node.base import Node
from console.node.facts import Facts
from console.node.leftovers import Possessions, possessions_of
from console.node.script import ask
from console.text import clean, duration, headline, redact

if TYPE_CHECKING:
    from console.deploy.rollback import Target
    from console.deploy.step import Context

FOLDER = "state:/deadman"
READ = (f"{FOLDER}/plan.json", f"{FOLDER}/record.json")
"""What a run wants to read of it."""
UNIT = "relaunch-deadman"
FOUND = "deadman"
"""Key in `Context.found` of the token of the switch that this run has armed."""
PATIENCE = 3700.0
"""Seconds to wait for a switch that is at work; it gives a former service an hour to load."""
_SOURCE = Path(__file__).with_name("node_deadman.py")


@dataclass(frozen=True, slots=True)
class Plan:
    """An armed switch as it stands on the node. `since` is UNIX seconds by the node's clock, `boot` that of the arming."""

    run: str
    token: str
    boot: str
    seconds: float
    since: float
    downtime_started: float | None
    ours: str
    stopped: tuple[str, ...]
    texts: Mapping[str, str | None]
    bring_back: tuple[Mapping[str, Any], ...]
    goal: Mapping[str, Any] | None = None
    """Where an unfinished rollback was going; None for a redeploy."""
    had: Possessions | None = None
    """What the stopped units had, by identity; means nothing in another boot."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a switch did, or does. `state`: acting, restored or failed."""

    run: str
    token: str
    state: str
    text: str
    began: float
    ended: float | None
    downtime: float | None


def plan_of(facts: Facts) -> Plan | None:
    """The switch as it was armed, in this boot of the node or in an earlier one; None when there is none. Pure."""
    data = _json(facts, READ[0])
    try:
        plan = Plan(
            run=str(data["run"]),
            token=str(data["token"]),
            boot=str(data["boot"]),
            seconds=float(data["seconds"]),
            since=float(data["since"]),
            downtime_started=None if data.get("downtime_started") is None else float(data["downtime_started"]),
            ours=str(data["ours"]),
            stopped=tuple(map(str, data["stopped"])),
            texts={str(path): None if text is None else str(text) for path, text in data["texts"].items()},
            bring_back=tuple(dict(item) for item in data["bring_back"]),
            goal=dict(data["goal"]) if data.get("goal") else None,
            had=possessions_of(data["had"]) if data.get("had") else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return plan


def record_of(facts: Facts) -> Record | None:
    """What the switch did last, until the next one is armed. Pure."""
    data = _json(facts, READ[1])
    try:
        return Record(
            run=str(data["run"]),
            token=str(data["token"]),
            state=str(data["state"]),
            text=clean(str(data["text"])),
            began=float(data["began"]),
            ended=None if data.get("ended") is None else float(data["ended"]),
            downtime=None if data.get("downtime") is None else float(data["downtime"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _json(facts: Facts, name: str) -> dict[str, Any]:
    try:
        data = json.loads(facts.files.get(facts.path(name), ""))
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def sentence(facts: Facts) -> str:
    """The state of the switch in words; empty where there is nothing to tell."""
    record, plan = record_of(facts), plan_of(facts)
    if record is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(record.ended or record.began))
        return f"the dead man's switch of run {record.run} {_did(record)}, {when}: {record.text}"
    if plan is None:
        return ""
    again = plan.boot != facts.boot_id
    if plan.seconds:
        after = duration(plan.seconds)
        over = ", and the node was started again since" if again else ""
        return f"the dead man's switch of run {plan.run} is armed: {after} without its console bring back what served{over}"
    return f"the node was started again while run {plan.run} had it in downtime" if again else ""


def _did(record: Record) -> str:
    return {"acting": "is at work", "restored": "has acted"}.get(record.state, "has acted and failed")


# ------------------------------------------------------------------------------------------------------ arm, disarm


async def arm(ctx: Context, targets: tuple[Target, ...], *, goal: Mapping[str, Any] | None = None) -> None:
    """Arm the switch, once per run; `targets` is what it brings back. Nothing served before: nothing to arm.
    `goal` is where a rollback goes, for the run that goes on with it.

    With `deadman_seconds: 0` only what a resumed run must know is left on the node. Raises Refused when systemd does not
    say that it waits, so that no downtime begins without it, and what `ask` raises.
    """
    if FOUND in ctx.found or not targets:
        return
    facts = ctx.facts
    texts = {f"{facts.paths.units}/{target.unit}": target.text for target in targets if target.text is not None}
    former = ctx.found.get("unit-former")
    if former is not None:
        texts[former.path] = former.text
    await _arm(
        ctx,
        {
            "downtime_started": ctx.found.get("downtime_started") or time.time(),
            "stopped": list(ctx.found.get("stopped") or [target.unit for target in targets]),
            "texts": texts,
            "bring_back": [{"unit": target.unit, "port": target.port} for target in targets],
            "goal": None if goal is None else dict(goal),
            "had": None if (had := _had(ctx)) is None else asdict(had),
        },
    )


def _had(ctx: Context) -> Possessions | None:
    """What the units that this run stops had before, with no secret in a command line; None when it stops none."""
    record = ctx.found.get("stop")
    if record is None:
        return None
    had: Possessions = record.had
    return replace(had, processes=tuple(replace(one, command=redact(one.command)) for one in had.processes))


async def _arm(ctx: Context, plan: Mapping[str, Any]) -> None:
    facts, seconds, token = ctx.facts, ctx.profile.deadman_seconds, secrets.token_hex(8)
    mine = {
        "run": ctx.run,
        "token": token,
        "ours": ctx.profile.service.unit,
        "lock": facts.path("state:/lock.json"),
        "lock_token": ctx.found.get("lock_token", ""),
        "audit": facts.path(AUDIT_FILE),
    }
    answer = await _ask(ctx, {"op": "arm", "plan": {**plan, **mine}, "program": _program(), "seconds": seconds})
    if "error" in answer:
        raise Refused(
            f"the dead man's switch cannot be armed: {clean(str(answer['error']))}",
            "see why systemd takes no unit or timer there, or set deadman_seconds: 0 in the profile",
        )
    ctx.found[FOUND] = token


async def disarm(ctx: Context) -> None:
    """Confirm: the switch of this run goes. Costs nothing when none was armed. Raises RelaunchError when it has begun to
    act: then what is on the node is no longer what this run made."""
    if FOUND not in ctx.found:
        return
    answer = await _ask(ctx, {"op": "disarm"})
    if answer.get("acting"):
        raise RelaunchError("the dead man's switch has begun to act", "its end is told by: relaunch status")
    ctx.found.pop(FOUND, None)


async def adopt(ctx: Context) -> bool:
    """Take over the switch of an unfinished run: what it knew comes into `ctx.found`, and the node waits for us now.

    False when there was nothing.
    """
    await until_rested(ctx)
    plan = plan_of(ctx.facts)
    if plan is None or FOUND in ctx.found:
        return False
    from console.deploy.steps.stop import Stopped
    from console.deploy.steps.unit import Former

    ctx.found["stopped"] = plan.stopped
    ctx.found["goal"] = plan.goal
    if plan.had is not None and plan.boot == ctx.facts.boot_id:
        ctx.found["stop"] = Stopped(plan.stopped, plan.had)  # so that what they left is still known as theirs
    own = f"{ctx.facts.paths.units}/{plan.ours}"
    if plan.ours == ctx.profile.service.unit and own in plan.texts:
        ctx.found["unit-former"] = Former(own, plan.texts[own])
    serving = [unit for name in plan.stopped if (unit := ctx.facts.units.get(name)) and unit.active == "active"]
    if plan.downtime_started is not None and len(serving) < len(plan.stopped):
        ctx.found["downtime_started"] = plan.downtime_started
        ctx.emit(Downtime(time=plan.downtime_started, state="started"))
    kept = {
        "since": plan.since,
        "downtime_started": plan.downtime_started,
        "stopped": list(plan.stopped),
        "texts": dict(plan.texts),
        "bring_back": [dict(item) for item in plan.bring_back],
        "goal": None if plan.goal is None else dict(plan.goal),
        "had": None if plan.had is None else asdict(plan.had),
    }
    await _arm(ctx, kept)
    ctx.emit(
        Noted(time=time.time(), text=f"going on with the downtime of run {plan.run}; its switch waits for this run")
    )
    return True


async def until_rested(ctx: Context) -> None:
    """Wait for a switch that is at work right now: two that start and stop the same units help nobody."""
    deadline = time.monotonic() + PATIENCE
    told = False
    while (record := record_of(ctx.facts)) is not None and record.state == "acting" and _same_boot(ctx.facts):
        state = await systemd.unit_state(ctx.node, f"{UNIT}.service")
        if not systemd.is_up(state) and _still_acting(await ctx.refresh()):
            ctx.emit(Noted(time=time.time(), text=f"the dead man's switch of run {record.run} was ended at its work"))
            return
        if time.monotonic() > deadline:
            return
        if not told:
            ctx.emit(Noted(time=time.time(), text=f"{sentence(ctx.facts)}; waiting for its end"))
            told = True
        await asyncio.sleep(1.0)  # a file on the node tells nobody when it changes
        await ctx.refresh()


def _still_acting(facts: Facts) -> bool:
    record = record_of(facts)
    return record is not None and record.state == "acting"


def _same_boot(facts: Facts) -> bool:
    return bool(_json(facts, READ[1]).get("boot") == facts.boot_id)


async def overtaken(ctx: Context) -> RelaunchError | None:
    """How a run ends whose switch acted while its console was away; None when it did not act."""
    record = record_of(ctx.facts)
    if record is None or record.token != ctx.found.get(FOUND):
        return None
    await until_rested(ctx)
    record = record_of(ctx.facts) or record
    ctx.found.pop(FOUND, None)
    if record.state != "restored":
        return RollbackFailed(f"{sentence(ctx.facts)}", "look at the node; relaunch status shows what runs")
    ctx.emit(Downtime(time=time.time(), state="ended", seconds=record.downtime))
    return Restored(headline(sentence(ctx.facts), 400), "run the redeploy again; what was downloaded is there")


async def heard_again(ctx: Context, node: Node) -> None:
    """After a restart of the node its switch hears of us before anything else is done; raises how the run ends when it
    has not waited. Looked at after the touch, since what did not begin before it will not begin. `node` is the bare one."""
    if FOUND not in ctx.found:
        return
    await _touch(ctx, node)
    await ctx.refresh()
    if (end := await overtaken(ctx)) is not None:
        raise end


# ------------------------------------------------------------------------------------------------------- the heartbeat


@asynccontextmanager
async def beating(ctx: Context, node: Node) -> AsyncIterator[None]:
    """Touch the heartbeat while the context lasts. `node` is the bare one: a heartbeat is no line in the audit file."""
    seconds = ctx.profile.deadman_seconds
    if not seconds:
        yield
        return
    task = asyncio.ensure_future(_beat(ctx, node, max(0.2, min(60.0, seconds / 5))))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _beat(ctx: Context, node: Node, every: float) -> None:
    while True:
        await asyncio.sleep(every)  # a beat is a matter of time and of nothing else
        if FOUND in ctx.found:
            await _touch(ctx, node, max(5.0, every))


async def _touch(ctx: Context, node: Node, timeout: float = 30.0) -> None:
    argv = ("touch", "-c", "--", ctx.facts.path(f"{FOLDER}/heartbeat"))
    with contextlib.suppress(RelaunchError):  # a lost link is why the switch is there
        await node.run(argv, timeout=timeout, sudo=True)


def _program() -> str:
    return agent.program(_SOURCE.read_text(encoding="utf-8"), ("audit", "processes"))


async def _ask(ctx: Context, question: Mapping[str, Any]) -> Mapping[str, Any]:
    asked = {**question, "folder": ctx.facts.path(FOLDER), "units": ctx.facts.paths.units}
    answer = await ask(ctx.node, "deadman", _program(), asked, timeout=60, sudo=True, mutates=True)
    while answer.get("acting") and question["op"] == "arm":
        await ctx.refresh()
        await until_rested(ctx)
        answer = await ask(ctx.node, "deadman", _program(), asked, timeout=60, sudo=True, mutates=True)
    return dict(answer)
