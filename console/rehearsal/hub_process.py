"""The practice hub as a process of its own: `python -m console.rehearsal.hub_process STATE FD`.

FD is a listening socket that the practice server has opened, so that the address is known before this runs. Lives as
long as its stdin is open. The checkpoint that it serves stands outside of ROOT, as a hub is outside of a node.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

from aiohttp import web

from console.rehearsal import faults
from console.rehearsal.checkpoint import PRACTICE_COMMIT, REPOSITORIES, make_checkpoint
from console.rehearsal.hub import Hub, Repository, paced_rate, read_blobs
from console.rehearsal.layout import Layout


async def serve(layout: Layout, sock: socket.socket) -> None:
    """Serve until stdin ends."""
    folder = layout.state / "hub" / "kimi"
    make_checkpoint(folder, "kimi")
    name = REPOSITORIES["kimi"]
    repository = Repository(name, folder, PRACTICE_COMMIT, read_blobs(folder))
    hub = Hub({name: repository}, lambda: _faults(layout), paced_rate(layout.root))
    runner = web.AppRunner(hub.application(), access_log=None, handle_signals=False, shutdown_timeout=0.5)
    await runner.setup()
    await web.SockSite(runner, sock).start()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", 0)
    )
    await reader.read()
    hub.close()
    await runner.cleanup()


def _faults(layout: Layout) -> frozenset[str]:
    return frozenset(fault.name for fault in faults.read(layout.faults))


def main() -> int:
    asyncio.run(serve(Layout(Path(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
