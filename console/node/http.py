"""HTTP to a port on the node's own loopback: one request, one connection, one whole answer.

`Node.http` gives an `Http`. It asks the server to close the connection behind its answer, so that the answer is all that
came; the standard library's `http.client` reads it. Anything that is not one complete answer is `NoReply`; a link that is
down is the node's `Unreachable`. A full asynchronous client costs a fifth of a second to load, for four short questions.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Protocol

from console.text import clean

LIMIT = 16 << 20
"""Bytes of an answer that are read."""
_PIECE = 1 << 16


class NoReply(Exception):
    """Nobody answered, not in time, or what came back is no complete HTTP answer."""


class Reader(Protocol):
    async def read(self, n: int = -1) -> bytes: ...


class Writer(Protocol):
    def write(self, data: bytes) -> None: ...


Dial = Callable[[], AbstractAsyncContextManager[tuple[Reader, Writer]]]
"""Opens a connection to the port, which ends with the context; raises `NoReply` when there is none."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whatever its status."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class Http:
    """Requests to one port. Needs no closing: nothing stays open between two requests.

    `linked` returns when the node can be reached, and raises `Unreachable`; its wait is not part of a request's limit,
    since a link that is down says nothing about the server.
    """

    def __init__(self, dial: Dial, linked: Callable[[], Awaitable[object]]) -> None:
        self._dial = dial
        self._linked = linked

    async def request(
        self,
        method: str,
        path: str,
        *,
        limit: float,
        json: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """The answer to one request; `json` is its body. Raises `NoReply`, also after `limit` seconds, and `Unreachable`."""
        lines = {"Host": "localhost", "Accept": "*/*", "Connection": "close", **(headers or {})}
        if json is not None:
            lines |= {"Content-Type": "application/json", "Content-Length": str(len(json))}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        await self._linked()
        try:
            async with asyncio.timeout(limit), self._dial() as (reader, writer):
                writer.write(head.encode("latin-1") + b"\r\n" + (json or b""))
                return parse_reply(await _whole(reader), method)
        except TimeoutError:
            raise NoReply(f"no answer within {limit:.0f} s") from None


async def _whole(reader: Reader) -> bytes:
    """Everything up to the end of the connection."""
    answer = bytearray()
    while piece := await reader.read(_PIECE):
        answer += piece
        if len(answer) > LIMIT:
            raise NoReply(f"the answer is longer than {LIMIT >> 20} MiB")
    return bytes(answer)


class _Received:
    """What `HTTPResponse` wants of a socket: a file of what arrived."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._raw)


def parse_reply(raw: bytes, method: str = "GET") -> Reply:
    """The one answer in `raw`. Raises `NoReply`."""
    if b"\r\n\r\n" not in raw:  # http.client would take the end of the connection for the end of the header
        raise NoReply("the answer broke off in its header" if raw else "the connection was closed without an answer")
    answer = HTTPResponse(_Received(raw), method=method)  # type: ignore[arg-type]
    try:
        answer.begin()
        return Reply(answer.status, answer.read())
    except IncompleteRead as error:
        raise NoReply(f"the answer broke off after {len(error.partial)} bytes") from None
    except (HTTPException, ValueError) as error:
        raise NoReply(f"no HTTP answer: {clean(str(error))[:80]}") from None
