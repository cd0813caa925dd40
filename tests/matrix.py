"""The fault matrix and the kill loop, as a program that prints its table; `tests/README.md` holds the last one.

    python -m tests.matrix [--steps stop,launch] [--faults kill,cut] [--folder DIR]
    python -m tests.matrix kills --count 200 --seed 1 [--folder DIR]

A cell: a redeploy by a console in a process of its own, a fault at a step, then `relaunch resume` until a run ends with 0 or
with 11. It is good when the old or the new model answers then, no shard that was there has been fetched again, and nothing
is left behind: no lock, no armed switch, no job, no half-written file, no second model.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from console.deploy.steps import ORDER
from console.rehearsal import faults as practice_faults
from console.rehearsal import practice as rehearsal
from tests.field import Console, Site, begin_again, keep_disk, practice_site

DOWNTIME = ("stop", "drain", "launch", "ready", "throughput")
"""Steps in which the node is without its old model and nothing has been kept."""
SWITCH = 4
"""Seconds of the dead man's switch where it is meant to act."""
RESUMES = 3


@dataclass
class Cell:
    """What came of one fault at one step."""

    step: str
    fault: str
    codes: list[int] = field(default_factory=list)
    serving: str | None = None
    trouble: list[str] = field(default_factory=list)
    seconds: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        if self.note:
            return self.note
        words = {0: "0", 11: "11", 130: "130", -9: "killed", 5: "5"}
        ends = " → ".join(words.get(code, str(code)) for code in self.codes)
        model = {"kimi-k2.5": "new", "glm-5": "old"}.get(self.serving or "", "NONE")
        return f"{ends}, {model}" + (f" BAD: {'; '.join(self.trouble)}" if self.trouble else "")


Fault = Callable[[Site, Console, Cell], Awaitable[None]]


async def kill(site: Site, console: Console, cell: Cell) -> None:
    console.kill()


async def term(site: Site, console: Console, cell: Cell) -> None:
    console.terminate()


async def cut_heal(site: Site, console: Console, cell: Cell) -> None:
    await site.cut_and_heal(2.0)


async def frozen(site: Site, console: Console, cell: Cell) -> None:
    await site.freeze(4.0)


async def power(site: Site, console: Console, cell: Cell) -> None:
    await site.power_cycle()


async def cut(site: Site, console: Console, cell: Cell) -> None:
    """The link stays cut for longer than the node's switch waits; before downtime the operator gives the console up."""
    await site.cut()
    try:
        if cell.step in (*DOWNTIME, "keep"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWITCH * 5):
                    while site.record().get("state") not in ("restored", "failed"):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)  # the node's file, looked at past the console
        else:
            await asyncio.sleep(1.0)  # the fault itself
            console.kill()
    finally:
        await site.heal()


async def second(site: Site, console: Console, cell: Cell) -> None:
    other = await site.console("--script", "redeploy", "--yes", who="other")
    code = await other.ended()
    first = console.process.returncode is not None
    if code == 5:
        if "me@" not in other.told():
            cell.trouble.append("the second console does not name the first")
    elif not (code == 0 and first):
        cell.trouble.append(f"the second console ended with {code}: {other.told()[-200:]}")
    cell.codes.append(code)


async def disk_full(site: Site, console: Console, cell: Cell) -> None:
    """The practice disk has no room left in the middle of the download; `site` was begun with that fault."""
    await console.ended()
    practice_faults.write(site.root / "faults.json", ())
    (site.root / "disk-limit").unlink(missing_ok=True)
    for hook in site.root.glob("opt/*/lib/python3*/site-packages/sitecustomize.py"):
        hook.unlink()


FAULTS: dict[str, Fault] = {
    "cut": cut, "cut-heal": cut_heal, "kill": kill, "term": term, "power": power, "frozen": frozen, "second": second,
    "disk-full": disk_full,
}  # fmt: skip


async def run_cell(site: Site, disks: dict[str, Path], step: str, fault: str) -> Cell:
    cell = Cell(step, fault)
    if fault == "disk-full" and step != "download":
        cell.note = "–"
        return cell
    began = time.monotonic()
    bare = ORDER.index(step) < ORDER.index("unit")
    await begin_again(site, disks["bare" if bare else "prepared"])
    if fault == "disk-full":
        practice_faults.write(site.root / "faults.json", practice_faults.parse(["disk-full"]))
    site.deadman = SWITCH if fault == "cut" else 900
    for stale in site.folder.glob("home-*"):
        await asyncio.to_thread(_clear, stale)
    console = await site.redeploy()
    try:
        await console.until(step, "running", "satisfied")
        before = site.weights()
        await FAULTS[fault](site, console, cell)
        cell.codes.append(await console.ended(150))
        for _ in range(RESUMES):
            if cell.codes[-1] in (0, 11):
                break
            # a run that ended by itself has nothing to resume: its operator mends the cause and says the same again
            dead = cell.codes[-1] in (130, -9)
            console = await (site.console("resume", "--yes") if dead else site.redeploy())
            cell.codes.append(await console.ended())
        await _judge(site, cell, before)
    except (TimeoutError, OSError) as error:
        cell.trouble.append(f"{type(error).__name__}: {console.told()[-1500:]}")
        console.kill()
    if cell.trouble:
        print(f"--- {step} × {fault}: {cell}\n{console.told()}", file=sys.stderr)
    cell.seconds = time.monotonic() - began
    return cell


async def _judge(site: Site, cell: Cell, before: dict[str, Any]) -> None:
    cell.serving = (await site.serving()).model
    if cell.codes[-1] not in (0, 11):
        cell.trouble.append(f"it ended with {cell.codes[-1]}")
    if cell.serving not in ("glm-5", "kimi-k2.5"):
        cell.trouble.append("nothing serves")
    after = site.weights()
    fetched = [name for name, place in before.items() if after.get(name) != place]
    if fetched:
        cell.trouble.append(f"{len(fetched)} files fetched again")
    left = await site.left_behind()
    if left:
        cell.trouble.append(f"left behind: {', '.join(left)}")
    cell.trouble += store_troubles(site.folder / "home-me")


def store_troubles(home: Path) -> list[str]:
    path = home / "state/relaunch/relaunch.db"
    with contextlib.closing(sqlite3.connect(path)) as store:
        (said,) = store.execute("pragma integrity_check").fetchone()
    return [] if said == "ok" else [f"the store says {said}"]


def _clear(home: Path) -> None:
    _remove(home / "state")


async def _fresh(folder: Path) -> None:
    """No node, disk or history of an earlier call."""
    await rehearsal.reset(folder / "node")
    await asyncio.to_thread(_remove_old, folder)


async def disks_of(site: Site) -> dict[str, Path]:
    """The node's disk as an operator finds it, and with everything prepared that needs no downtime."""
    prepared = await site.console("--script", "prepare", "--yes")
    if await prepared.ended() != 0:
        raise SystemExit(prepared.told())
    disks = {"prepared": await keep_disk(site, "prepared")}
    for path in ("srv/models/Kimi-K2.5-NVFP4", "opt/vllm-0.16.0", "var/lib/relaunch"):
        await asyncio.to_thread(_remove, site.folder / "node/root" / path)
    disks["bare"] = await keep_disk(site, "bare")
    return disks


def _remove_old(folder: Path) -> None:
    for old in (*folder.glob("disk-*"), *folder.glob("home-*")):
        _remove(old)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


async def matrix(folder: Path, steps: list[str], faults: list[str]) -> list[Cell]:
    cells = []
    await _fresh(folder)
    async with practice_site(folder) as site:
        disks = await disks_of(site)
        for step in steps:
            for fault in faults:
                cell = await run_cell(site, disks, step, fault)
                cells.append(cell)
                print(f"{step:<11} {fault:<10} {cell.seconds:6.1f} s  {cell}", flush=True)
    return cells


def table(cells: list[Cell]) -> str:
    """The cells as a Markdown table."""
    faults = list(dict.fromkeys(cell.fault for cell in cells))
    lines = [f"| step | {' | '.join(faults)} |", f"|--|{'--|' * len(faults)}"]
    for step in dict.fromkeys(cell.step for cell in cells):
        row = {cell.fault: str(cell) for cell in cells if cell.step == step}
        lines.append(f"| {step} | {' | '.join(row.get(fault, '') for fault in faults)} |")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------- the kill loop


async def kills(folder: Path, count: int, seed: int) -> int:
    """Redeploys and rollbacks in turn on one node, each killed at a random moment, often its resume too. Returns how many
    rounds ended badly."""
    chance = random.Random(seed)
    bad = 0
    killed = 0
    await _fresh(folder)
    async with practice_site(folder) as site:
        await begin_again(site, (await disks_of(site))["prepared"])
        verb = "redeploy"
        round_ = 0
        while killed < count:
            round_ += 1
            began = time.monotonic()
            trail, done, hits = await _killed_round(site, verb, chance)
            killed += hits
            serving = (await site.serving()).model
            trouble = [] if serving in ("glm-5", "kimi-k2.5") else ["nothing serves"]
            if not done:
                trouble.append("no resume came to an end")
            trouble += [*await site.left_behind(), *store_troubles(site.folder / "home-me")]
            bad += bool(trouble)
            words = f"{'BAD ' + '; '.join(trouble) if trouble else 'good'}"
            spent = time.monotonic() - began
            print(f"{round_:>3} kills {killed:>3} {verb:<8} {spent:5.1f} s  {trail}, {serving}: {words}", flush=True)
            verb = "rollback" if serving == "kimi-k2.5" else "redeploy"
    print(f"{killed} kills in {round_} rounds, seed {seed}: {bad} bad")
    return bad


async def _killed_round(site: Site, verb: str, chance: random.Random) -> tuple[str, bool, int]:
    trail: list[str] = []
    hits = 0
    argv: tuple[str, ...] = (verb, "--yes")
    for attempt in range(8):
        console = await site.console(*argv)
        if attempt == 0 or chance.random() < 0.35:
            await _at_some_moment(console, chance)
            console.kill()
        code = await console.ended()
        hits += code == -9
        at = next((e["step"] for e in reversed(console.of("step"))), "start")
        trail.append(f"killed at {at}" if code == -9 else str(code))
        if code not in (-9, 0, 11) and attempt > 4:
            print(console.told(), file=sys.stderr)
        if code in (0, 11):
            return " → ".join(trail), True, hits
        if code != -9:
            print(f"unexpected {code}:\n{console.told()}", file=sys.stderr)
        argv = ("resume", "--yes")
    return " → ".join(trail), False, hits


async def _at_some_moment(console: Console, chance: random.Random) -> None:
    """Some time after some step has been looked at; a rollback and a console that has nothing to do have but one."""
    step = chance.choice(("start", *ORDER))
    await console.until_seen(
        lambda: step == "start" or any(e["step"] in (step, "rollback") for e in console.of("step"))
    )
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(console.process.wait()), chance.uniform(0.0, 2.0))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix")
    parser.add_argument("what", nargs="?", choices=("cells", "kills"), default="cells")
    parser.add_argument("--steps", default=",".join(ORDER))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="relaunch-matrix-"))
    if options.what == "kills":
        return 1 if asyncio.run(kills(folder, options.count, options.seed)) else 0
    cells = asyncio.run(matrix(folder, options.steps.split(","), options.faults.split(",")))
    print("\n" + table(cells))
    return 1 if any(cell.trouble for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
