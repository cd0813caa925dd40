"""The network in front of the practice node's SSH door: it can be cut, and it can be slow.

Connections are accepted here and handed to asyncssh as connected sockets. A cut resets every connection and every new
one until it is over. A slow link delays and paces bytes both ways by a relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """How slow: seconds each way, and bytes per second each way."""

    latency: float = 0.05
    rate: float = 256_000


class Link:
    """A listening loopback socket. `serve` runs until cancelled."""

    def __init__(self, accept: Callable[[socket.socket], Awaitable[object]], pace: Callable[[], Pace | None]) -> None:
        self._accept = accept
        self._pace = pace
        self._open: set[socket.socket] = set()
        self._cut = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.setblocking(False)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        with self._listener:
            async with asyncio.TaskGroup() as group:
                while True:
                    sock, _ = await loop.sock_accept(self._listener)
                    if self._cut:
                        _reset(sock)
                    else:
                        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        group.create_task(self._carry(sock))

    def cut(self, seconds: float) -> None:
        """Reset every connection now, and every new one for `seconds`."""
        self._cut = True
        for sock in tuple(self._open):
            _linger_zero(sock)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        asyncio.get_running_loop().call_later(seconds, self._mend)

    def _mend(self) -> None:
        self._cut = False

    async def _carry(self, sock: socket.socket) -> None:
        watched = sock.dup()  # asyncssh owns `sock`; this one is for the cut
        self._open.add(watched)
        try:
            pace = self._pace()
            if pace is None:
                await self._accept(sock)
            else:
                near, far = socket.socketpair()
                async with asyncio.TaskGroup() as group:
                    group.create_task(_relay(sock, near, pace))
                    group.create_task(self._hand_over(far))
        finally:
            self._open.discard(watched)
            watched.close()

    async def _hand_over(self, sock: socket.socket) -> None:
        await self._accept(sock)


async def _relay(sock: socket.socket, near: socket.socket, pace: Pace) -> None:
    left = await asyncio.open_connection(sock=sock, limit=16 << 10)
    right = await asyncio.open_connection(sock=near, limit=16 << 10)
    async with asyncio.TaskGroup() as group:
        group.create_task(_pump(left[0], right[1], pace))
        group.create_task(_pump(right[0], left[1], pace))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    # holds what is on the wire: one latency's worth and no more, so that the far end's buffers do not grow
    wire: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=max(2, int(pace.rate * pace.latency / 4096)))

    async def depart() -> None:
        free = loop.time()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                free = max(loop.time(), free) + len(data) / pace.rate
                await wire.put((free + pace.latency, data))
        await wire.put((loop.time() + pace.latency, b""))

    async def arrive() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                due, data = await wire.get()
                await asyncio.sleep(max(0.0, due - loop.time()))  # the simulated wire itself, not a wait for an effect
                if not data:
                    return
                writer.write(data)
                await writer.drain()

    departing, arriving = asyncio.ensure_future(depart()), asyncio.ensure_future(arrive())
    await asyncio.wait((departing, arriving), return_when=asyncio.FIRST_COMPLETED)
    if departing.done():
        await arriving
    else:
        departing.cancel()  # nobody receives any more
    writer.close()


def _linger_zero(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _reset(sock: socket.socket) -> None:
    _linger_zero(sock)
    sock.close()
