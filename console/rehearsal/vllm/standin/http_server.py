"""A small HTTP/1.1 server on asyncio streams: keep-alive but for HTTP/1.0, bodies by length, chunked answers. Stdlib only."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus

_LIMIT = 64 << 20


@dataclass(frozen=True)
class Call:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """One answer; with `stream` the body comes in chunks."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    stream: AsyncIterator[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)


def json_reply(data: object, status: int = 200) -> Reply:
    return Reply(status, json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode())


Handler = Callable[[Call], Awaitable[Reply]]
Access = Callable[[Call, int], None]


class Gone(Exception):
    """The client went away."""


async def converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler, access: Access
) -> None:
    """Serve one connection until either side ends it."""
    try:
        while (call := await _read(reader)) is not None:
            keep = call.headers.get("connection", "").lower() != "close"
            reply = await handler(call)
            access(call, reply.status)
            await _write(writer, reply, keep)
            if not keep:
                break
    except (Gone, ConnectionError, asyncio.IncompleteReadError, ValueError, asyncio.LimitOverrunError):
        pass
    finally:
        with contextlib.suppress(OSError):
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Call | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *rest = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ", 2)
    headers = {"connection": "close"} if version == "HTTP/1.0" else {}
    for line in rest:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    body = b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _chunks(reader)
    elif length := int(headers.get("content-length") or 0):
        if length > _LIMIT:
            raise ValueError("body too large")
        body = await reader.readexactly(length)
    return Call(method, target.partition("?")[0], headers, body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)


async def _write(writer: asyncio.StreamWriter, reply: Reply, keep: bool) -> None:
    head = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        "server: uvicorn",
        *(f"{name}: {value}" for name, value in reply.headers.items()),
    ]
    if reply.kind and (reply.body or reply.stream is not None):
        head.append(f"content-type: {reply.kind}")
    head.append("transfer-encoding: chunked" if reply.stream is not None else f"content-length: {len(reply.body)}")
    if not keep:
        head.append("connection: close")
    writer.write(("\r\n".join(head) + "\r\n\r\n").encode() + (b"" if reply.stream is not None else reply.body))
    await writer.drain()
    if reply.stream is None:
        return
    try:
        async for part in reply.stream:
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
            if writer.is_closing():
                raise Gone
    finally:
        close = getattr(reply.stream, "aclose", None)
        if close is not None:
            await close()
    writer.write(b"0\r\n\r\n")
    await writer.drain()
