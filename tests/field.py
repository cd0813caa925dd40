"""Consoles as real processes, on ground where things can be made to go wrong: for transaction tests and the fault matrix.

    async with practice_site(folder) as site:          # tests.field_practice; a real node: tests.field_lab
        console = await site.console("--script", "redeploy", "--yes")
        await console.until("launch", "running")
        console.kill()                                 # SIGKILL
        again = await site.console("resume", "--yes")
        assert await again.ended() == 0
        assert (await site.serving()).model == "kimi-k2.5"

A console here is `python -m console … --json` in a process of its own; its events are read from its stdout as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).parents[1]
OURS = "vllm-kimi.service"
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Serving:
    """What answers on the service's port. None: nobody."""

    model: str | None
    health: int | None


@dataclass
class Console:
    """A `relaunch` process and what it has said."""

    process: asyncio.subprocess.Process
    events: list[Event] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _readers: list[asyncio.Future[None]] = field(default_factory=list)

    async def _read_events(self) -> None:
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.events.append(json.loads(raw))
            async with self._news:
                self._news.notify_all()

    async def _read_words(self) -> None:
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            self.words.append(raw.decode(errors="replace").rstrip())

    async def until(self, step: str, *states: str, limit: float = 90) -> bool:
        """Wait until the step is in one of these states; False when the console ended first."""

        def seen() -> bool:
            return any(e.get("event") == "step" and e["step"] == step and e["state"] in states for e in self.events)

        return await self.until_seen(seen, limit=limit)

    async def until_seen(self, seen: Callable[[], bool], *, limit: float = 90) -> bool:
        async with asyncio.timeout(limit):
            while not seen():
                if self._readers[0].done():
                    return seen()
                async with self._news:
                    with contextlib.suppress(TimeoutError):
                        # the end of the output notifies nobody
                        await asyncio.wait_for(self._news.wait(), 0.1)
        return True

    async def ended(self, limit: float = 110) -> int:
        """Its exit code; negative for a signal."""
        async with asyncio.timeout(limit):
            code = await self.process.wait()
            await asyncio.gather(*self._readers)
        return code

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.get("event") == kind]

    def told(self) -> str:
        """Everything it said, for a failed assertion."""
        lines = [
            f"{e['step']} {e['state']} {e.get('detail', '')}"
            if e["event"] == "step"
            else f"{e['event']}: {e.get('text', '')}"
            for e in self.events
            if e.get("event") in ("step", "note", "cause", "run-ended")
        ]
        return "\n".join([*lines, *self.words])


async def start_console(environment: dict[str, str], *argv: str) -> Console:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "console", *argv, "--json",
        cwd=HERE, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=1 << 22,
    )  # fmt: skip
    console = Console(process)
    console._readers = [asyncio.ensure_future(console._read_events()), asyncio.ensure_future(console._read_words())]
    return console


def environment(folder: Path, who: str) -> dict[str, str]:
    """What a console is started with: a home of its own in `folder`, and nothing of the person who runs this."""
    home = folder / f"home-{who}"
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "LANG": "C.UTF-8", "USER": who}


class Ground(Protocol):
    """A node whose old model is glm-5, the way to it, and what can go wrong there. What looks at the node does so past the
    console and past the way to it."""

    kind: str
    folder: Path
    deadman: int

    async def furnish(self) -> None:
        """Keep the node's disk as an operator finds it, and with everything done that needs no downtime."""

    async def begin(self, *, bare: bool) -> None:
        """The node as one of these, the old model serving, nothing of Relaunch at work."""

    async def console(self, *argv: str, who: str = "me") -> Console: ...

    async def redeploy(self) -> Console: ...

    async def serving(self) -> Serving: ...

    async def left_behind(self) -> list[str]:
        """What a finished transaction must not leave: lock, switch, jobs, temporary files, a second model."""

    async def record(self) -> Event:
        """What the dead man's switch wrote down; empty when it did not act."""

    async def weights(self) -> dict[str, tuple[int, int]]:
        """Inode and time of every shard that is there under its name: a file that is fetched again has others."""

    async def cut(self) -> None:
        """The way to the node is gone, and nobody is told, until `heal`."""

    async def heal(self) -> None: ...

    async def cut_and_heal(self, seconds: float) -> None:
        """Every connection breaks, and for a while no new one comes about."""

    async def freeze(self, seconds: float) -> None:
        """Nothing of the node that answers runs for a while."""

    async def power_cycle(self) -> None:
        """The power goes and comes: nothing is told to end, and the disk stays as it is."""

    async def systemd_stopped(self, seconds: float) -> None:
        """PID 1 does nothing for a while: no unit starts or stops, sshd and services go on."""

    async def disk_will_fill(self) -> None:
        """Before the console starts: its disk will be full at the moment of `disk_full`."""

    async def disk_full(self) -> None: ...

    async def disk_free(self) -> None: ...


async def read_record(path: Path) -> Event:
    """The record of a dead man's switch, which is replaced as a whole."""
    try:
        found: Event = json.loads(await asyncio.to_thread(path.read_text))
    except FileNotFoundError:
        return {}
    return found


def shards(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in folder.glob("*.safetensors"):
        info = path.stat()
        found[path.name] = (info.st_ino, info.st_mtime_ns)
    return found
