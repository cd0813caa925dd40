"""A cell of the fault matrix: a redeploy, a fault when a step has begun, then runs until one ends with 0 or 11.

It is good when the old or the new model answers then, no shard that was there has been fetched again, the console's store is
whole, and nothing is left behind: no lock, no armed switch, no job, no half-written file, no second model.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from console.deploy.steps import ORDER
from tests.field import Console, Ground

DOWNTIME = ("stop", "drain", "launch", "ready", "throughput", "keep")
"""Steps that begin when the old model may be down and no run has confirmed the new one."""
SWITCH = 4
"""Seconds of the dead man's switch where it is meant to act."""
RESUMES = 3
ENDS = {0: "done", 1: "UNEXPECTED", 3: "refused", 4: "unreachable", 5: "locked", 6: "no download", 7: "did not start",
        8: "not ready", 11: "went back", 12: "WAY BACK FAILED", 130: "interrupted", -9: "killed"}  # fmt: skip
MODELS = {"kimi-k2.5": "new", "glm-5": "old"}


@dataclass
class Cell:
    """What came of one fault at one step. `codes`: how the runs ended, in order."""

    step: str
    fault: str
    codes: list[int] = field(default_factory=list)
    serving: str | None = None
    trouble: list[str] = field(default_factory=list)
    seconds: float = 0.0
    told: list[str] = field(default_factory=list)
    """What each console said."""

    def __str__(self) -> str:
        ends = " → ".join(ENDS.get(code, str(code)) for code in self.codes)
        words = f"{ends}, {MODELS.get(self.serving or '', 'NONE')}"
        return f"BAD: {words}; {'; '.join(self.trouble)}" if self.trouble else words


Fault = Callable[[Ground, Console, Cell], Awaitable[None]]


async def kill(ground: Ground, console: Console, cell: Cell) -> None:
    console.kill()


async def term(ground: Ground, console: Console, cell: Cell) -> None:
    console.terminate()


async def cut_heal(ground: Ground, console: Console, cell: Cell) -> None:
    await ground.cut_and_heal(2.0)


async def frozen(ground: Ground, console: Console, cell: Cell) -> None:
    await ground.freeze(4.0)


async def power(ground: Ground, console: Console, cell: Cell) -> None:
    await ground.power_cycle()


async def systemd(ground: Ground, console: Console, cell: Cell) -> None:
    await ground.systemd_stopped(4.0)


async def cut(ground: Ground, console: Console, cell: Cell) -> None:
    """The link stays cut for longer than the node's switch waits; before downtime the operator gives the console up."""
    await ground.cut()
    try:
        if cell.step in DOWNTIME:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWITCH * 5):
                    while (await ground.record()).get("state") not in ("restored", "failed"):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)  # the node's file, looked at past the console
        else:
            await asyncio.sleep(1.0)  # the fault itself
            console.kill()
    finally:
        await ground.heal()


async def second(ground: Ground, console: Console, cell: Cell) -> None:
    """Another operator says the same: refused with the first one's name, or after the first one's end."""
    other = await ground.console("--script", "redeploy", "--yes", who="other")
    code = await other.ended(300)
    if code == 5:
        if "me@" not in other.told():
            cell.trouble.append("the second console does not name the first")
    elif code != 0 or console.process.returncode is None:
        cell.trouble.append(f"the second console ended with {code}: {other.told()[-200:]}")
    cell.codes.append(code)


async def disk_full(ground: Ground, console: Console, cell: Cell) -> None:
    """There is no room until the run has ended."""
    await ground.disk_full()
    try:
        await console.ended(300)
    finally:
        await ground.disk_free()


FAULTS: dict[str, Fault] = {
    "kill": kill, "cut": cut, "cut-heal": cut_heal, "term": term, "frozen": frozen, "power": power, "second": second,
    "disk-full": disk_full, "systemd": systemd,
}  # fmt: skip


def possible(kind: str, step: str, fault: str) -> bool:
    """The practice node's disk is full in the middle of a download and never else, and its init and sshd are one process."""
    if kind == "rehearsal":
        return fault != "systemd" and (fault != "disk-full" or step == "download")
    return True


async def run_cell(ground: Ground, step: str, fault: str) -> Cell:
    """Never raises for what console or node do: that makes the cell bad."""
    cell = Cell(step, fault)
    began = time.monotonic()
    ground.deadman = SWITCH if fault == "cut" else 900
    console = None
    try:
        await ground.begin(bare=ORDER.index(step) < ORDER.index("unit"))
        await asyncio.to_thread(forget_runs, ground.folder)
        if fault == "disk-full":
            await ground.disk_will_fill()
        console = await ground.redeploy()
        if not await console.until(step, "running", "satisfied"):
            cell.trouble.append("it ended before the step began")
        before = await ground.weights()
        await FAULTS[fault](ground, console, cell)
        cell.codes.append(await console.ended(300))
        for _ in range(RESUMES):
            if cell.codes[-1] in (0, 11):
                break
            # a run that ended by itself has nothing to resume: its operator mends the cause and says the same again
            dead = cell.codes[-1] in (130, -9)
            cell.told.append(console.told())
            console = await (ground.console("resume", "--yes") if dead else ground.redeploy())
            cell.codes.append(await console.ended(300))
        await _judge(ground, cell, before)
    except (TimeoutError, OSError, AssertionError) as error:
        cell.trouble.append(f"{type(error).__name__}: {str(error)[:80]}")
    finally:
        if console is not None:
            console.kill()
            cell.told.append(console.told())
    cell.seconds = time.monotonic() - began
    return cell


async def _judge(ground: Ground, cell: Cell, before: dict[str, tuple[int, int]]) -> None:
    cell.serving = (await ground.serving()).model
    if cell.codes[-1] not in (0, 11):
        cell.trouble.append("no run came to an end")
    if cell.serving not in MODELS:
        cell.trouble.append("nothing serves")
    elif cell.serving != {0: "kimi-k2.5", 11: "glm-5"}.get(cell.codes[-1], cell.serving):
        cell.trouble.append("the end says otherwise")
    after = await ground.weights()
    fetched = [name for name, place in before.items() if after.get(name) != place]
    if fetched:
        cell.trouble.append(f"{len(fetched)} files fetched again")
    left = await ground.left_behind()
    if left:
        cell.trouble.append(f"left behind: {', '.join(left)}")
    cell.trouble += store_troubles(ground.folder / "home-me")


def store_troubles(home: Path) -> list[str]:
    """What SQLite finds wrong with the history of a console that was killed."""
    with contextlib.closing(sqlite3.connect(home / "state/relaunch/relaunch.db")) as store:
        (said,) = store.execute("pragma integrity_check").fetchone()
    return [] if said == "ok" else [f"the store says {said}"]


def forget_runs(folder: Path) -> None:
    """No console knows of an earlier cell."""
    for home in folder.glob("home-*"):
        shutil.rmtree(home / "state", ignore_errors=True)
