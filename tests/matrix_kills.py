"""Redeploys and rollbacks in turn on one node, each killed at a random moment, often its resume too."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from console.deploy.steps import ORDER
from tests.field import Console, Ground
from tests.matrix_cells import MODELS, store_troubles

ATTEMPTS = 8
"""Consoles of one round, of which the last are not killed any more."""


@dataclass
class Tally:
    """What came of the rounds so far."""

    seed: int
    kills: int = 0
    rounds: int = 0
    bad: int = 0

    def __str__(self) -> str:
        good = self.rounds - self.bad
        return (
            f"Seed {self.seed}: {self.kills} kills in {self.rounds} rounds of a redeploy or a rollback and its resumes. "
            f"After {good} of {self.rounds} rounds one model served, nothing was left behind and the store was whole."
        )


async def kill_at_random(ground: Ground, count: int, seed: int, told: Callable[[Tally], None]) -> Tally:
    """`count` kills at least; `told` after each round."""
    chance = random.Random(seed)
    tally = Tally(seed)
    await ground.begin(bare=False)
    verb = "redeploy"
    while tally.kills < count:
        began = time.monotonic()
        trail, done, hits = await _round(ground, verb, chance)
        serving = (await ground.serving()).model or ""
        trouble = [] if serving in MODELS else ["nothing serves"]
        if not done:
            trouble.append("no resume came to an end")
        trouble += [*await ground.left_behind(), *store_troubles(ground.folder / "home-me")]
        tally.kills += hits
        tally.rounds += 1
        tally.bad += bool(trouble)
        words = f"{'BAD ' + '; '.join(trouble) if trouble else 'good'}"
        spent = time.monotonic() - began
        print(
            f"{tally.rounds:>3} kills {tally.kills:>3} {verb:<8} {spent:5.1f} s  {trail}, {serving}: {words}",
            flush=True,
        )
        told(tally)
        verb = "rollback" if MODELS.get(serving) == "new" else "redeploy"
    return tally


async def _round(ground: Ground, verb: str, chance: random.Random) -> tuple[str, bool, int]:
    """How its consoles ended, whether the last one came to an end, and how many were killed."""
    trail: list[str] = []
    hits = 0
    argv: tuple[str, ...] = (verb, "--yes")
    for attempt in range(ATTEMPTS):
        console = await ground.console(*argv)
        if attempt == 0 or (attempt < ATTEMPTS - 2 and chance.random() < 0.35):
            await _at_some_moment(console, chance)
            console.kill()
        code = await console.ended(300)
        hits += code == -9
        at = next((e["step"] for e in reversed(console.of("step"))), "start")
        trail.append(f"killed at {at}" if code == -9 else str(code))
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
