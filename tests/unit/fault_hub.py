"""The practice hub behind a layer that makes it fail as hubs and proxies do, and that counts what is asked of it.

    async with fault_hub({REPO: folder}) as hub:      # hub.endpoint; hub.faults.add("503-once")

Faults of the layer concern weights alone: `503` and `503-once`, `429-once` (with a RateLimit header and no Retry-After),
`truncate-once` and `truncate` (the connection ends in the middle), `short` (a proxy that gives half a file as if it were
whole), `flip-once`. `api-429` and `api-503` answer the tree. Those of the hub itself (`hub-401`, `stall`, …) work too.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from console.rehearsal.checkpoint import PRACTICE_COMMIT
from console.rehearsal.hub import Hub, Repository, read_blobs

_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+\.safetensors)$")
_LIMITED = {"RateLimit": '"resolvers";r=0;t=1'}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class FaultHub:
    """`rate` in bytes per second, 0 for unlimited. `gets`: bodies asked for, by path; `bytes` by path is what was sent."""

    repositories: Mapping[str, Repository]
    faults: set[str] = field(default_factory=set)
    rate: float = 0.0
    endpoint: str = ""
    gets: Counter[str] = field(default_factory=Counter)
    _met: set[tuple[str, str]] = field(default_factory=set)

    def _first(self, fault: str, path: str) -> bool:
        """Whether this fault meets the path for the first time; from then on it is over."""
        if fault not in self.faults or (fault, path) in self._met:
            return False
        self._met.add((fault, path))
        return True

    @web.middleware
    async def misbehave(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if "/tree/" in request.path:
            if "api-429" in self.faults:
                return web.Response(status=429, headers=_LIMITED, text="Too Many Requests")
            if "api-503" in self.faults:
                return web.Response(status=503, text="Service Unavailable")
        match = _FILE.match(request.path)
        if match is None or request.method != "GET":
            return await handler(request)
        path = match[2]
        self.gets[path] += 1
        if "503" in self.faults or self._first("503-once", path):
            return web.Response(status=503, text="Service Unavailable")
        if self._first("429-once", path):
            return web.Response(status=429, headers=_LIMITED, text="Too Many Requests")
        repository = self.repositories[match[1]]
        data = await asyncio.to_thread((repository.folder / path).read_bytes)
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{repository.blobs[path].etag}"'}
        if "truncate" in self.faults or self._first("truncate-once", path):
            return await self._cut(request, data, headers)
        if "short" in self.faults:
            return web.Response(body=data[: len(data) // 2], headers=headers)
        if self._first("flip-once", path):
            return web.Response(body=data[:-8] + bytes([data[-8] ^ 0x40]) + data[-7:], headers=headers)
        return await handler(request)

    async def _cut(self, request: web.Request, data: bytes, headers: Mapping[str, str]) -> web.StreamResponse:
        """Half of what was announced, then the end of the connection."""
        start = (request.http_range.start or 0) if "Range" in request.headers else 0
        left = data[start:]
        place = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        length = {"Content-Length": str(len(left))}
        response = web.StreamResponse(status=206 if start else 200, headers={**headers, **place, **length})
        await response.prepare(request)
        await response.write(left[: len(left) // 2])
        if request.transport is not None:
            request.transport.close()
        return response


@asynccontextmanager
async def fault_hub(folders: Mapping[str, Path], sock: socket.socket | None = None) -> AsyncIterator[FaultHub]:
    """Serve folders as repositories at PRACTICE_COMMIT on `sock`, else on a free loopback port."""
    repositories = {
        name: Repository(name, folder, PRACTICE_COMMIT, await asyncio.to_thread(read_blobs, folder))
        for name, folder in folders.items()
    }
    made = FaultHub(repositories)
    hub = Hub(repositories, lambda: made.faults, lambda: made.rate)
    app = hub.application()
    app.middlewares.append(made.misbehave)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await (web.SockSite(runner, sock) if sock is not None else web.TCPSite(runner, "127.0.0.1", 0)).start()
        host, port = runner.addresses[0][:2]
        made.endpoint = f"http://{host}:{port}"
        yield made
    finally:
        hub.close()
        await runner.cleanup()
