"""Lines of an attached helper, with its channel paused while nobody takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from console.errors import CommandFailed, Unreachable
from console.node.base import Argv, Line
from console.node.lines import Splitter
from console.node.ssh_exec import Exec


class Flow:
    """Lines of a running helper, with its channel paused while nobody takes them."""

    _HIGH, _LOW = 2000, 500
    """Lines waiting at which the channel is paused, and read again."""

    def __init__(self) -> None:
        self._out = Splitter()
        self._err = Splitter(err=True)
        self._ready: list[Line] = []
        self._news = asyncio.Event()
        self._last_err: list[str] = []
        self._session: Exec | None = None
        self._paused = False

    def bind(self, session: Exec) -> None:
        self._session = session
        session.closed.add_done_callback(lambda _: self._news.set())

    def take(self, chunk: bytes, is_err: bool) -> None:
        self._add((self._err if is_err else self._out).feed(chunk))

    def _add(self, lines: list[Line]) -> None:
        self._ready += lines
        self._last_err = (self._last_err + [line.text for line in lines if line.err])[-20:]
        self._news.set()
        if len(self._ready) > self._HIGH and not self._paused and self._session and self._session.channel:
            self._paused = True
            self._session.channel.pause_reading()

    async def lines(self, argv: Argv, node: str) -> AsyncGenerator[Line, None]:
        """Lines until the helper ends. Raises `Unreachable` for a lost link, `CommandFailed` for an exit status but 0."""
        session = self._session
        if session is None:
            return
        while True:
            self._news.clear()
            if session.closed.done() and not self._ready:
                for line in (*self._out.close(), *self._err.close()):
                    yield line
                break
            batch, self._ready = self._ready, []
            for line in batch:
                yield line
            if self._paused and len(self._ready) < self._LOW and session.channel is not None:
                self._paused = False
                session.channel.resume_reading()
            if not self._ready and not session.closed.done():
                await self._news.wait()
        if not session.ended:
            raise Unreachable(f"{node}: the link was lost while following {argv[0]}")
        if session.code:
            raise CommandFailed(argv, session.code, "\n".join(self._last_err))
