"""A hub for benchmarks: tree, HEAD and GET of plain files by sendfile; prints its endpoint and serves until ended."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path

from aiohttp import web


def application(folder: Path, commit: str) -> web.Application:
    hashes: dict[str, str] = {}
    files = sorted(folder.iterdir())

    def etag(path: Path) -> str:
        """Any constant 64 digits do for weights: the client compares, and does not hash what it downloads."""
        return hashes.setdefault(path.name, hashlib.sha256(path.name.encode()).hexdigest())

    async def tree(request: web.Request) -> web.Response:
        rows = []
        for path in files:
            size = path.stat().st_size
            row = {"type": "file", "path": path.name, "size": size, "oid": etag(path)[:40]}
            if path.suffix == ".safetensors":
                row["lfs"] = {"oid": etag(path), "size": size, "pointerSize": 134}
            rows.append(row)
        return web.json_response(rows)

    async def resolve(request: web.Request) -> web.StreamResponse:
        path = folder / request.match_info["path"]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag(path)}"'}
        if request.method == "HEAD":
            return web.Response(headers={**headers, "Content-Length": str(path.stat().st_size)})
        return web.FileResponse(path, chunk_size=1 << 20, headers={"X-Repo-Commit": commit})

    async def info(request: web.Request) -> web.Response:
        rows = [{"rfilename": path.name} for path in files]
        return web.json_response({"id": "bench/model", "sha": commit, "siblings": rows, "tags": [], "private": False})

    app = web.Application()
    app.router.add_get("/api/models/{owner}/{name}", info)
    app.router.add_get("/api/models/{owner}/{name}/revision/{revision}", info)
    app.router.add_get("/api/models/{owner}/{name}/tree/{revision}", tree)
    app.router.add_get("/{owner}/{name}/resolve/{revision}/{path:.+}", resolve)
    return app


async def main(folder: Path, commit: str, host: str) -> None:
    runner = web.AppRunner(application(folder, commit), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    print(f"http://{host}:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
