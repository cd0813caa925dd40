"""What is measured, each as a process of its own in a terminal: our console, a naive console, an empty Textual app.

    python -m tests.benchmarks.screens.programs ours LOG [--still]   the console over a source that moves once a second
    python -m tests.benchmarks.screens.programs naive LOG            eight labels and a RichLog, as one writes it first
    python -m tests.benchmarks.screens.programs empty                one word on an empty screen

Both consoles read LOG as it grows, ten times a second, with the same eight GPUs.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

READ_SECONDS = 0.1


async def batches(path: Path) -> AsyncIterator[bytes]:
    """What was added to the file since the last look."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        while True:
            if data := file.read(1 << 22):
                yield data
            await asyncio.sleep(READ_SECONDS)


def ours(log: Path, *, still: bool) -> None:
    """The console's main screen. `still`: nothing moves but the clock."""
    from console.deploy.store import Store
    from console.logs.spool import Spool
    from console.triage import Reader, load_rules
    from screens import frugal
    from screens.app import ConsoleApp
    from screens.source import FixedSource
    from tests.screens import glances

    rules = load_rules()
    glance = glances.idle() if still else glances.loading()
    source = FixedSource(glance, Spool(log.with_suffix(".spool")), Store(log.with_suffix(".db")))

    async def samples() -> None:
        pick = random.Random(4)
        while True:
            view = source.shown.gpus
            assert view.sample is not None
            moved = view.sample.gpus
            if not still:
                moved = tuple(
                    replace(
                        gpu, utilisation=pick.randrange(80, 100), power=300.0 + pick.randrange(250),
                        temperature=50 + pick.randrange(20), memory_used=(gpu.memory_used or 0) + pick.randrange(1 << 27),
                    )
                    for gpu in view.sample.gpus
                )  # fmt: skip
            used = (*view.used, tuple(gpu.memory_used for gpu in moved))[-120:]
            view = replace(view, sample=replace(view.sample, gpus=moved), seen=time.monotonic(), used=used)
            source.shown = replace(source.shown, version=source.shown.version + 1, gpus=view)
            await asyncio.sleep(1.0)

    async def lines() -> None:
        reader = Reader(rules)
        async for data in batches(log):
            source.spool.append(data, now=time.time())
            reader.feed(data)
            version = source.shown.version + 1
            told = replace(source.shown.log, version=source.spool.version, lines=len(source.spool))
            source.shown = replace(source.shown, version=version, log=told)

    async def main() -> None:
        frugal.install()
        tasks = [asyncio.ensure_future(samples()), asyncio.ensure_future(lines())]
        await ConsoleApp(source).run_async(mouse=False)
        for task in tasks:
            task.cancel()

    asyncio.run(main())


def naive(log: Path) -> None:
    """A console as one writes it first: a label per GPU, a RichLog, every line written as it comes."""
    from textual.app import App, ComposeResult
    from textual.widgets import Label, RichLog

    class Naive(App[None]):
        def compose(self) -> ComposeResult:
            for index in range(8):
                yield Label("", id=f"gpu{index}")
            yield RichLog(max_lines=10_000)

        def on_mount(self) -> None:
            self.set_interval(1.0, self.sample)
            self.run_worker(self.lines())

        def sample(self) -> None:
            for index in range(8):
                used, busy = random.randrange(60, 95), random.randrange(80, 100)
                bar = "█" * (used // 4)
                self.query_one(f"#gpu{index}", Label).update(f"GPU {index} {bar} {used}.0/95.6 {busy}% {busy * 5}W 61°")

        async def lines(self) -> None:
            pane = self.query_one(RichLog)
            async for data in batches(log):
                for line in data.decode().splitlines():
                    pane.write(line)

    Naive().run(mouse=False)


def empty() -> None:
    """The least that Textual shows."""
    from textual.app import App, ComposeResult
    from textual.widgets import Static

    class Empty(App[None]):
        BINDINGS = [("q", "quit", "quit")]  # noqa: RUF012

        def compose(self) -> ComposeResult:
            yield Static("Relaunch")

    Empty().run(mouse=False)


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "ours":
        ours(Path(rest[0]), still="--still" in rest)
    elif kind == "naive":
        naive(Path(rest[0]))
    else:
        empty()
