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
Pairs = tuple[list[float], list[float]]


async def in_turn(
    ours: Callable[[], Awaitable[object]], theirs: Callable[[], Awaitable[object]], runs: int = RUNS
) -> Pairs:
    """Milliseconds of both, measured in turn, so that a drift of the machine meets both alike."""
    taken: Pairs = ([], [])
    for number in range(runs + 1):
        for list_, once in zip(taken, (ours, theirs), strict=True):
            began = time.perf_counter()
            await once()
            if number:  # the first of each warms up
                list_.append((time.perf_counter() - began) * 1000)
    return taken


async def measure(machine: Machine) -> None:
    target = machine.target()
    known = str(machine.folder / "known_hosts")
    async with (
        connect(target, timing=Timing(beat_first=3600)) as node,
        asyncssh.connect(
            machine.address, username="root", client_keys=list(target.identity_files), known_hosts=known, config=None,
            agent_path=None,
        ) as bare,
        bare.create_process("cat") as echo,
    ):  # fmt: skip

        async def line() -> None:
            echo.stdin.write("\n")
            await echo.stdout.readline()

        async def run() -> None:
            await node.run(("true",), timeout=30)

        async def login() -> None:
            await asyncio.to_thread(machine.ssh, "true")

        tell(
            "Node.run against a bare asyncssh run", *await in_turn(run, lambda: bare.run("true")), unit="ms", aim="1.1"
        )
        tell("Node.run against a line through a running process", *await in_turn(run, line), unit="ms")
        tell("Node.run against an ssh login for one command", *await in_turn(run, login, 20), unit="ms")
        tell(
            "Node.write against Node.run",
            *await in_turn(lambda: node.write("/root/file", b"x" * 1000), run, 50),
            unit="ms",
        )


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
