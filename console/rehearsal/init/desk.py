"""The control socket ROOT/run/systemd/private: where the stand-in programs ask the practice init.

Programs: `systemctl`, `systemd-run`, `systemd-analyze` get an answer and an exit code; `journal-watch` gets a byte each
time the journal has grown. A caller that goes away takes nothing with it: jobs go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

from console.rehearsal.init import analyze, run, systemctl
from console.rehearsal.init.pid1 import Pid1
from console.rehearsal.init.reply import Parser, Reply, Request, receive


class Desk:
    """`serve` answers until it is cancelled."""

    def __init__(self, pid1: Pid1, path: Path) -> None:
        self._pid1 = pid1
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._listener.setblocking(False)

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        with self._listener:
            async with asyncio.TaskGroup() as group:
                while True:
                    sock, _ = await loop.sock_accept(self._listener)
                    group.create_task(self._attend(sock))

    async def _attend(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with sock, contextlib.suppress(OSError):
            request = await _request(sock)
            if request is None:
                return
            try:
                if request.program == "journal-watch":
                    await self._watch(sock)
                else:
                    await self._answer(request, sock)
            finally:
                for fd in request.fds:
                    with contextlib.suppress(OSError):  # systemd-run --pipe has handed its own on
                        os.close(fd)

    async def _answer(self, request: Request, sock: socket.socket) -> None:
        reply = Reply()
        argv = list(request.argv)
        if request.program == "systemctl":
            code = await systemctl.answer(self._pid1, argv, reply)
        elif request.program == "systemd-run":
            code = await run.answer(self._pid1, argv, request.folder, request.fds, reply)
        else:
            code = analyze.answer(self._pid1, argv, request.folder, reply)
        reply.end(code)
        await asyncio.get_running_loop().sock_sendall(sock, b"".join(reply.frames))

    async def _watch(self, sock: socket.socket) -> None:
        """One byte per growth while the reader keeps up, and fewer when it does not."""

        def grown() -> None:
            with contextlib.suppress(BlockingIOError, OSError):
                sock.send(b".")

        loop = asyncio.get_running_loop()
        stop = self._pid1.journal.watch(grown)
        try:
            grown()
            while await loop.sock_recv(sock, 1):
                pass  # it says nothing; the end of its stream is what is waited for
        finally:
            stop()


async def _request(sock: socket.socket) -> Request | None:
    loop = asyncio.get_running_loop()
    parser = Parser()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            try:
                data, fds = receive(sock)
            except BlockingIOError:
                continue
            request = parser.feed(data, fds)
            if request is not None or not data:
                return request
    finally:
        loop.remove_reader(sock)
        parser.close()
