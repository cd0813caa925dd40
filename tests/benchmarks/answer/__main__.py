"""From the failing line to the answer: seconds between the line in the journal and the `CauseFound` event, per fault.

A launch on the practice node (real SSH on loopback, real processes) with each fault that kills one. The line is the first
of the journal that holds the cause as the event tells it, by the journal's own clock (microseconds, same machine); for a
unit that never starts it is systemd's own line. Aim: under one second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from pathlib import Path

from console.deploy.cause import SENTENCE
from console.errors import RelaunchError
from console.events import CauseFound
from console.node import journal
from tests.rehearsal import launch_node as lab

OURS = "vllm-kimi.service"
FAULTS = ("fp8-kv", "bad-flag", "oom", "port-in-use", "never-starts")
AIM = 1.0
FAILING = ("203/EXEC", "Failed at step", "Failed to locate", "Failed to execute")


async def seconds(fault: str, folder: Path) -> tuple[float, str]:
    """From line to event, and the event's text."""
    async with lab.deployment(folder, faults=[fault]) as node:
        try:
            await node.bring_about("launch")
        except RelaunchError:
            pass
        event = node.of(CauseFound)[0]
        text = event.text[: SENTENCE // 2]
        async with journal.read(node.node, OURS) as entries:
            found = [entry async for entry in entries]
        named = [e for e in found if text in e.message] or [e for e in found if any(w in e.message for w in FAILING)]
        if not named:
            raise AssertionError(f"{fault}: no line of the journal holds {text!r}")
        return event.time - named[0].time, event.text


async def main(faults: list[str], rounds: int) -> int:
    slow = 0
    for fault in faults:
        took, text = [], ""
        for number in range(rounds):
            with tempfile.TemporaryDirectory(prefix="relaunch-bench-") as folder:
                one, text = await seconds(fault, Path(folder) / f"p{number}")
                took.append(one)
        middle = statistics.median(took)
        slow += middle >= AIM
        each = " ".join(f"{one:.2f}" for one in took)
        print(f"{fault:14} {middle:6.2f} s from line to answer ({each}); {text[:80]}", flush=True)
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; aim under {AIM:g} s")
    return 1 if slow else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.faults or list(FAULTS), given.rounds)))
