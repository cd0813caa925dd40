"""One mutating run per node: a lock file on the node that says who, from where, since when, what and why.

The file appears and goes atomically under a guard that the kernel frees. A lock of an earlier boot of the node is stale;
so is one whose console ran on this machine and is gone, by process identity and never by age: that is how a resumed run
takes the lock of the run that it goes on with. Run numbers are each operator's own and prove nothing here.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from console.deploy.audit import AUDIT_FILE, entry
from console.errors import CommandFailed, Locked, Unreachable
from console.events import Event, Noted
from console.node import agent
from console.node.base import Node
from console.node.facts import Facts
from console.node.script import ask
from console.text import clean, duration

LOCK_FILE = "state:/lock.json"
HEARTBEAT = 30.0
"""Seconds between two words of a run that waits for somebody else's."""
_SOURCE = Path(__file__).with_name("node_lock.py")


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds, or wants, the lock. `machine` and `started` tell the console's own process for ever: the boot and the
    process namespace that it runs in, and its start time in clock ticks."""

    who: str
    host: str
    pid: int
    since: float
    run: str
    verb: str
    token: str
    machine: str = ""
    started: int | None = None
    boot: str = ""
    """Boot id of the node, filled in there."""

    @classmethod
    def here(cls, *, run: str, verb: str, who: str, where: str) -> Owner:
        """This process as owner."""
        return cls(
            who=who,
            host=where,
            pid=os.getpid(),
            since=time.time(),
            run=run,
            verb=verb,
            token=secrets.token_hex(8),
            machine=_machine(),
            started=_started(os.getpid()),
        )

    def __str__(self) -> str:
        what = f"{self.verb}, run {self.run}" if self.run else self.verb
        return clean(f"{self.who}@{self.host} ({what}, since {duration(max(0.0, time.time() - self.since))})")


@dataclass(frozen=True, slots=True)
class Lock:
    """A held lock. `broke` is the stale owner that stood in the way, or None; `swept` are temporary files of writes that
    were cut off, which whoever takes the lock removes."""

    owner: Owner
    broke: Owner | None = None
    swept: tuple[str, ...] = ()


def parse_owner(data: object) -> Owner | None:
    """The owner in a lock file's data, whatever a stranger or a newer Relaunch wrote there; None when there is none."""
    if isinstance(data, str):
        try:
            data = json.loads(data)
        except ValueError:
            return None
    if not isinstance(data, dict):
        return None
    known = {f.name for f in fields(Owner)}
    values: dict[str, Any] = {name: value for name, value in data.items() if name in known}
    for name in ("who", "host", "run", "verb", "token", "machine", "boot"):
        values[name] = str(values.get(name, "") or ("unknown" if name in ("who", "host") else ""))
    for name in ("pid", "since"):
        value = values.get(name)
        values[name] = value if isinstance(value, int | float) else 0
    values["pid"] = int(values["pid"])
    if not isinstance(values.get("started"), int):
        values["started"] = None
    return Owner(**values)


def holder(facts: Facts) -> Owner | None:
    """Who held the lock when the facts were read; None also for a lock of an earlier boot. Pure."""
    found = parse_owner(facts.files.get(facts.path(LOCK_FILE)))
    return found if found and found.boot == facts.boot_id else None


def abandoned(found: Owner) -> bool:
    """The console that took the lock ran here and its process is gone. False when that cannot be told."""
    if not found.machine or found.machine != _machine() or found.started is None:
        return (
            False  # another machine, another container, or this one before its last boot under a name that others share
        )
    return _started(found.pid) != found.started


async def acquire(node: Node, facts: Facts, wanted: Owner) -> Lock:
    """Take the lock. Raises Locked, naming the other, when somebody else's run holds it."""
    answer = await _ask(node, facts, "acquire", wanted, None)
    present = parse_owner(answer.get("owner"))
    if not answer.get("held") and present is not None and abandoned(present):
        answer = await _ask(node, facts, "acquire", wanted, present.token)
        present = parse_owner(answer.get("owner"))
    if not answer.get("held") or present is None:
        raise Locked(
            f"{node.name} is locked by {present or 'somebody unknown'}",
            "wait for that run to end, or look who it is and break the lock with: relaunch unlock",
        )
    return Lock(present, parse_owner(answer.get("broke")), tuple(map(str, answer.get("swept", ()))))


@asynccontextmanager
async def held(
    node: Node, facts: Facts, wanted: Owner, *, wait: float = 0.0, emit: Callable[[Event], None] | None = None
) -> AsyncIterator[Lock]:
    """The lock for as long as the context lasts, after at most `wait` seconds for somebody else's run to end.

    When the link is gone at the end the lock stays; it names a process that is gone, so the next run here takes it over.
    """
    lock = await _acquire_within(node, facts, wanted, wait, emit)
    if lock.broke is not None and emit is not None:
        emit(Noted(time=time.time(), text=f"took over the stale lock of {lock.broke}"))
    if lock.swept and emit is not None:
        emit(Noted(time=time.time(), text=f"removed what writes that were cut off had left: {', '.join(lock.swept)}"))
    try:
        yield lock
    finally:
        try:
            await release_lock(node, facts, lock)
        except (Unreachable, CommandFailed) as error:
            if emit is not None:
                emit(Noted(time=time.time(), text=f"the lock on {node.name} could not be given back: {error.message}"))


async def _acquire_within(
    node: Node, facts: Facts, wanted: Owner, wait: float, emit: Callable[[Event], None] | None
) -> Lock:
    deadline = time.monotonic() + wait
    told: float | None = None
    while True:
        try:
            return await acquire(node, facts, wanted)
        except Locked as error:
            now = time.monotonic()
            if now >= deadline:
                raise
            if emit is not None and (told is None or now - told >= HEARTBEAT):
                left = duration(deadline - now)
                how = f"waiting for at most {left}" if told is None else f"still waiting, {left} left"
                emit(Noted(time=time.time(), text=f"{error.message}; {how}"))
                told = now
        # a file on another machine tells nobody when it goes; once a second is one short exec
        await asyncio.sleep(min(1.0, max(0.0, deadline - time.monotonic())))


async def release_lock(node: Node, facts: Facts, held: Lock | Owner) -> None:
    """Give the lock back; somebody else's lock is left alone."""
    mine = held.owner if isinstance(held, Lock) else held
    await _ask(node, facts, "release", mine, None)


async def break_lock(node: Node, facts: Facts, found: Owner) -> bool:
    """Remove exactly the lock that `found` describes; False when another one stands there by now."""
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    answer = await _ask(node, facts, "break", found, found.token, by=by)
    return parse_owner(answer.get("broke")) is not None


async def _ask(
    node: Node, facts: Facts, action: str, who: Owner, judged: str | None, *, by: str = ""
) -> dict[str, Any]:
    whose = f"of {who}" if by else f"for {who.verb}"
    line = entry(by or f"{who.who}@{who.host}", who.run, "", f"lock {action} {whose}")
    question = {
        "action": action,
        "path": facts.path(LOCK_FILE),
        "owner": asdict(who),
        "judged": judged,
        "audit": {"path": facts.path(AUDIT_FILE), "line": line},
        "sweep": [facts.paths.state, facts.paths.units],
    }
    source = agent.program(_SOURCE.read_text(encoding="utf-8"), ("audit",))
    answer: dict[str, Any] = await ask(node, "lock", source, question, timeout=30, sudo=True, mutates=True)
    return answer


def _machine() -> str:
    """This boot of this machine and this process namespace; empty where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None when there is none, or no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat[stat.rindex(")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return None
