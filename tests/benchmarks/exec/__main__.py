"""What one command costs over an open connection, on a real node of the lab, and what lies beside it.

The figures that the design rests on: facts are read in one exec, telemetry comes from one attached helper, and an exec is
never opened where a line through something that already runs would do. Prints milliseconds and ratios; needs root on Linux.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import asyncssh

from console.node.ssh import Timing, connect
from tests.benchmarks.figures import tell
from tests.node.lab import Machine, NoLab, open_lab

RUNS = 200


async def timed(once: Callable[[], Awaitable[object]], runs: int = RUNS) -> list[float]:
    await once()
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        await once()
        taken.append((time.perf_counter() - began) * 1000)
    return taken


async def measure(machine: Machine) -> None:
    target = machine.target()
    known = str(machine.folder / "known_hosts")
    async with (
        connect(target, timing=Timing(beat_first=3600)) as node,
        asyncssh.connect(
            machine.address, username="root", client_keys=target.identity_files, known_hosts=known, config=None,
            agent_path=None,
        ) as bare,
        bare.create_process("cat") as echo,
    ):  # fmt: skip

        async def line() -> None:
            echo.stdin.write("\n")
            await echo.stdout.readline()

        ours = await timed(lambda: node.run(("true",), timeout=30))
        theirs = await timed(lambda: bare.run("true"))
        lines = await timed(line)
        tell("Node.run against a bare asyncssh run", ours, theirs, unit="ms", aim="1.1 or less")
        tell("Node.run against a line through a running process", ours, lines, unit="ms")
        alone = [await asyncio.to_thread(login, machine) for _ in range(20)]
        tell("Node.run against an ssh login for one command", ours[:20], alone, unit="ms")
        writes = await timed(lambda: node.write("/root/file", b"x" * 1000), 50)
        tell("Node.write against Node.run", writes, ours[:50], unit="ms")


def login(machine: Machine) -> float:
    began = time.perf_counter()
    machine.ssh("true")
    return (time.perf_counter() - began) * 1000


def main() -> int:
    try:
        with open_lab() as lab:
            asyncio.run(measure(lab.boot("n1")))
    except NoLab as reason:
        print(f"left out: no real nodes here: {reason}")
    except subprocess.TimeoutExpired as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
