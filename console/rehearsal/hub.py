"""The practice hub: enough of the Hugging Face protocol for the real huggingface_hub client, from plain folders.

Serves model info, the file tree, and HEAD/GET of files with ETags, LFS hashes and ranges, at pinned commits and at `main`. Xet is
not advertised. Bytes flow at a pace that lets a person watch a download; faults make it fail as hubs fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from console.rehearsal.checkpoint import PRACTICE_COMMIT

_CHUNK = 16 << 10
_LFS = (".safetensors", ".model", ".bin")
_STALL_AFTER = 0.4
"""Part of a repository's bytes after which the fault `stall` stops them."""
_DRIP_SECONDS = 2.0
"""A stalled connection gives a byte now and then, so that the client's own read time-out does not notice."""


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of a repository. `sha256` is set for files kept in LFS; `oid` is git's name of the content."""

    path: str
    size: int
    oid: str
    sha256: str | None

    @property
    def etag(self) -> str:
        return self.sha256 or self.oid


@dataclass(slots=True)
class Repository:
    """A folder that is served, its files as they are now, and how far clients came."""

    name: str
    folder: Path
    commit: str
    blobs: dict[str, Blob]
    sent: int = 0
    spent: asyncio.Event = field(default_factory=asyncio.Event)
    """A stalled client has gone away, or the hub closes: the fault `stall` is over, and whoever waits goes on."""

    @property
    def size(self) -> int:
        return sum(blob.size for blob in self.blobs.values())


def read_blobs(folder: Path) -> dict[str, Blob]:
    """Every file below `folder` with its hashes, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        data = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324 - git's own name of a blob
        sha256 = hashlib.sha256(data).hexdigest() if name.endswith(_LFS) else None
        found[name] = Blob(name, len(data), oid, sha256)
    return found


class Hub:
    """The server's state. `faults` is asked at every request: `stall`, `missing-shard`, `hub-401`, `hub-403`, `hub-404`,
    `hub-429`, `hub-reset`, `hub-flip`. `rate` is bytes per second of all downloads together; 0 is unlimited."""

    def __init__(
        self, repositories: Mapping[str, Repository], faults: Callable[[], Collection[str]], rate: Callable[[], float]
    ) -> None:
        self.repositories = repositories
        self._faults = faults
        self._rate = rate
        self._free_at = 0.0
        self._limited: set[str] = set()

    def close(self) -> None:
        """End the connections that are stalled."""
        for repository in self.repositories.values():
            repository.spent.set()

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._refuse])
        app.router.add_get("/api/models/{owner}/{name}", self._info)
        app.router.add_get("/api/models/{owner}/{name}/revision/{revision}", self._info)
        app.router.add_get("/api/models/{owner}/{name}/tree/{revision}", self._tree)
        app.router.add_get("/api/models/{owner}/{name}/tree/{revision}/{path:.*}", self._tree)
        app.router.add_get("/{owner}/{name}/resolve/{revision}/{path:.+}", self._resolve)
        return app

    @web.middleware
    async def _refuse(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        faults = self._faults()
        if "hub-401" in faults and request.headers.get("Authorization") is None:
            return _error(401, "RepoNotFound", "Repository Not Found")
        if "hub-403" in faults:
            text = "Access to model nvidia/Kimi-K2.5-NVFP4 is restricted and you are not in the authorized list."
            return _error(403, "GatedRepo", text)
        if "hub-404" in faults:
            return _error(404, "RepoNotFound", "Repository not found")
        if "hub-429" in faults and request.path not in self._limited:
            self._limited.add(request.path)
            return web.Response(
                status=429, headers={"RateLimit": '"api";r=0;t=1', "Retry-After": "1"}, text="Too Many Requests"
            )
        try:
            return await handler(request)
        except ConnectionError:
            return web.Response()  # the client left; that is its own affair

    def _repository(self, request: web.Request) -> Repository:
        found = self.repositories.get(f"{request.match_info['owner']}/{request.match_info['name']}")
        if found is None:
            raise _raised(404, "RepoNotFound", "Repository not found")
        if request.match_info.get("revision", "main") not in ("main", found.commit):
            raise _raised(404, "RevisionNotFound", f"Invalid rev id: {request.match_info['revision']}")
        return found

    def _visible(self, repository: Repository) -> dict[str, Blob]:
        blobs = dict(repository.blobs)
        if "missing-shard" in self._faults():
            shards = [path for path in blobs if path.endswith(".safetensors")]
            if len(shards) > 1:
                del blobs[shards[len(shards) // 2]]
        return blobs

    async def _info(self, request: web.Request) -> web.Response:
        repository = self._repository(request)
        blobs = self._visible(repository).values()
        detailed = request.query.get("blobs", "").lower() == "true"
        return web.json_response(
            {
                "_id": "66f0c0ffee0000000000relay"[:24],
                "id": repository.name,
                "modelId": repository.name,
                "sha": repository.commit,
                "private": False,
                "gated": False,
                "disabled": False,
                "lastModified": "2026-11-01T00:00:00.000Z",
                "createdAt": "2026-02-01T00:00:00.000Z",
                "tags": ["safetensors"],
                "downloads": 1,
                "likes": 1,
                "siblings": [_sibling(blob, detailed=detailed) for blob in blobs],
            },
            headers={"X-Repo-Commit": repository.commit},
        )

    async def _tree(self, request: web.Request) -> web.Response:
        repository = self._repository(request)
        head = request.match_info.get("path", "")
        recursive = request.query.get("recursive", "").lower() in ("true", "1")
        rows = []
        for blob in self._visible(repository).values():
            if head and not blob.path.startswith(head + "/"):
                continue
            if "/" in blob.path[len(head) :].strip("/") and not recursive:
                continue
            rows.append({"type": "file", "path": blob.path, "size": blob.size, "oid": blob.oid, **_lfs(blob)})
        return web.json_response(rows)

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        repository = self._repository(request)
        blob = self._visible(repository).get(request.match_info["path"])
        headers = {"X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
        if blob is None:
            raise _raised(404, "EntryNotFound", "Entry not found", headers)
        headers["ETag"] = f'"{blob.etag}"'
        if blob.sha256:
            headers |= {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(blob.size)}
        start, end, status = 0, blob.size, 200
        wanted = request.http_range
        if wanted.start is not None or wanted.stop is not None:
            start = wanted.start or 0
            end = blob.size if wanted.stop is None else min(wanted.stop, blob.size)
            if start >= blob.size:
                raise web.HTTPRequestRangeNotSatisfiable(headers={"Content-Range": f"bytes */{blob.size}"})
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{blob.size}"
        headers["Content-Length"] = str(end - start)
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        await self._send(repository, blob, request, response, start, end)
        return response

    async def _send(
        self,
        repository: Repository,
        blob: Blob,
        request: web.Request,
        response: web.StreamResponse,
        start: int,
        end: int,
    ) -> None:
        """The bytes of a file, paced, with what faults do to them."""
        data = (repository.folder / blob.path).read_bytes()[start:end]
        faults = self._faults()
        weights = blob.path.endswith(".safetensors")
        if "hub-flip" in faults and weights and len(data) > 64:
            data = data[:-8] + bytes([data[-8] ^ 0x40]) + data[-7:]
        done = False
        try:
            async for part in self._paced(data):
                if (
                    "stall" in faults
                    and weights
                    and repository.sent > _STALL_AFTER * repository.size
                    and not repository.spent.is_set()
                ):
                    part = part[await self._drip(repository, response, part) :]
                if "hub-reset" in faults and weights and len(data) > _CHUNK and blob.path not in self._limited:
                    self._limited.add(blob.path)
                    await response.write(part)
                    if request.transport is not None:
                        request.transport.abort()
                    return
                await response.write(part)
                repository.sent += len(part)
            await response.write_eof()
            done = True
        except asyncio.CancelledError:
            if not done:
                raise

    async def _paced(self, data: bytes) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        for place in range(0, len(data), _CHUNK):
            part = data[place : place + _CHUNK]
            rate = self._rate()
            if rate > 0:
                now = loop.time()
                self._free_at = max(self._free_at, now) + len(part) / rate
                if self._free_at - now > 0.002:
                    await asyncio.sleep(self._free_at - now)
            yield part

    async def _drip(self, repository: Repository, response: web.StreamResponse, part: bytes) -> int:
        """Next to nothing, until a client has gone away; how many bytes that was."""
        for place in range(len(part)):
            try:
                await response.write(part[place : place + 1])
            except ConnectionError:
                repository.spent.set()
                raise
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(repository.spent.wait(), _DRIP_SECONDS)
                return place + 1
        return len(part)


def _sibling(blob: Blob, *, detailed: bool) -> dict[str, object]:
    row: dict[str, object] = {"rfilename": blob.path}
    if detailed:
        row |= {"size": blob.size, "blobId": blob.oid}
        if blob.sha256:
            row["lfs"] = {"sha256": blob.sha256, "size": blob.size, "pointerSize": 134}
    return row


def _lfs(blob: Blob) -> dict[str, object]:
    return {"lfs": {"oid": blob.sha256, "size": blob.size, "pointerSize": 134}} if blob.sha256 else {}


def _error(status: int, code: str, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status, headers={"X-Error-Code": code, "X-Error-Message": text})


def _raised(status: int, code: str, text: str, headers: Mapping[str, str] | None = None) -> web.HTTPException:
    cls = web.HTTPNotFound if status == 404 else web.HTTPForbidden
    return cls(
        text=json.dumps({"error": text}),
        content_type="application/json",
        headers={"X-Error-Code": code, "X-Error-Message": text, **(headers or {})},
    )


async def start_hub(
    folder_by_repo: Mapping[str, Path],
    faults: Callable[[], Collection[str]] = frozenset,
    *,
    rate: Callable[[], float] = lambda: 0.0,
    commits: Mapping[str, str] | None = None,
    sock: socket.socket | None = None,
) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve folders as repositories on `sock`, else on a free loopback port; returns the endpoint for HF_ENDPOINT, and
    what closes it.

    `faults` and `rate` (bytes per second, 0 for unlimited) are asked while it serves; `commits` names each repository's
    commit, PRACTICE_COMMIT by default.
    """
    repositories = {
        name: Repository(
            name, folder, (commits or {}).get(name, PRACTICE_COMMIT), await asyncio.to_thread(read_blobs, folder)
        )
        for name, folder in folder_by_repo.items()
    }
    hub = Hub(repositories, faults, rate)
    runner = web.AppRunner(hub.application(), access_log=None, handle_signals=False, shutdown_timeout=0.5)
    await runner.setup()
    site = web.SockSite(runner, sock) if sock is not None else web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]

    async def close() -> None:
        hub.close()
        await runner.cleanup()

    return f"http://127.0.0.1:{port}", close


def paced_rate(root: Path, seconds: float = 3.0, size: int = 7_100_000) -> Callable[[], float]:
    """A rate at which the practice checkpoint takes `seconds`, times the factor `hub` in ROOT/pace.json."""
    from console.rehearsal.vllm.standin.pace import Pace

    def rate() -> float:
        factor = Pace(root).hub
        return 0.0 if factor <= 0 else size / (seconds * factor)

    return rate
