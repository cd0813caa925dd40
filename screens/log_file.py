"""A log file of anybody's as a source of screens: its lines, and what triage says of it. No node, nothing can be started."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from console.deploy.store import Store
from console.errors import Unreachable, UsageError
from console.live import Glance, LogView
from console.logs.linefile import SEGMENT, LogFile
from console.logs.spool import Spool
from console.node.base import LinkState
from console.text import clean
from console.triage import Reader, load_rules

if TYPE_CHECKING:
    from console.deploy.lock import Owner
    from console.deploy.script import Script
    from console.engine import RunOptions

READ = 32
"""Segments that triage reads per step."""
LOOK_SECONDS = 1.0
FIRST_SECONDS = 0.5
READ_MOST = 512 << 20
"""Of a longer file triage reads the last bytes of this number: the last launch is what it speaks of."""


class FileSource:
    """The file at `path`. Raises UsageError when it cannot be read."""

    def __init__(self, path: Path, store: Store) -> None:
        try:
            if not path.is_file():
                raise UsageError(f"{path}: no such file", "the path of a log file, e.g. the output of journalctl")
            self.log = LogFile(path)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}", "a file that you may read") from error
        self.spool = cast(Spool, self.log)  # a screen reads it only, and both can be read alike
        self.store = store
        view = LogView(unit=clean(path.name), following=True, seen=time.monotonic())
        self._glance = Glance(link=LinkState(False), log=view)
        self._triage: asyncio.Future[None] | None = None

    def glance(self) -> Glance:
        if self._triage is None:
            self._triage = asyncio.ensure_future(self._read())
        return self._glance

    def close(self) -> None:
        if self._triage is not None:
            self._triage.cancel()
        self.log.close()

    def start(self, script: Script, options: RunOptions) -> None:
        raise Unreachable("this is a file, no node", "open `relaunch --node user@host` to work on a node")

    async def interrupt(self) -> None:
        return None

    async def look(self) -> None:
        self.log.poll()

    async def unlock(self, owner: Owner) -> bool:
        raise Unreachable("this is a file, no node", "open `relaunch --node user@host` to work on a node")

    async def _read(self) -> None:
        """Feed triage beside the loop, and say what it says at the end; again whenever the file has grown."""
        await asyncio.sleep(FIRST_SECONDS)  # the first page comes first; nothing signals that it stands
        reader = Reader(await asyncio.to_thread(load_rules))
        at = max(0, self.log.size - READ_MOST) // SEGMENT
        offset, generation = self.log.block(at, at + 1)[0] if at else 0, self.log.generation
        told = -1
        while True:
            if generation != self.log.generation:
                reader, offset, generation = Reader(load_rules()), 0, self.log.generation
            end = min(self.log.settled, offset + READ * SEGMENT)
            if end > offset:
                await asyncio.to_thread(reader.feed, self.log.read(offset, end))
                offset = end
                continue
            if told != self.log.version:
                told = self.log.version
                self._set(reader)
            await asyncio.sleep(LOOK_SECONDS)  # a file tells nobody that it grew; the pane polls it

    def _set(self, reader: Reader) -> None:
        view = replace(
            self._glance.log,
            diagnosis=reader.diagnosis(),
            version=self.log.version,
            lines=reader.lines,
            seen=time.monotonic(),
        )
        self._glance = replace(self._glance, version=self._glance.version + 1, log=view)


def view_file(path: Path, store: Store, *, ascii_only: bool = False) -> int:
    """`relaunch logs FILE` in a terminal: the viewer alone; an exit code. Must not run inside a loop."""
    from screens.app import ConsoleApp
    from screens.glyphs import choose
    from screens.session import own_keymap, run_app

    source, keymap = FileSource(path, store), own_keymap()
    app = ConsoleApp(source, glyphs=choose(os.environ, ascii_only=ascii_only), keymap=keymap, first="log")
    try:
        return asyncio.run(run_app(app))
    finally:
        source.close()
