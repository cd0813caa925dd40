"""The practice node's process: `python -m console.rehearsal.serve STATE --idle=SECONDS --ready-fd=FD`.

Holds STATE/server.lock while it lives, writes STATE/server.json, prints the same as one line to FD when it answers SSH,
and ends on SIGTERM or after SECONDS without a connection and without a running job. At its end no process of the node
is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import getpass
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from console.rehearsal.confine import confine
from console.rehearsal.layout import Layout, short_folder
from console.rehearsal.processes import Reaper, become_subreaper, end_children, start_ticks

_LOCK_SECONDS = 20


def main() -> int:
    """Leave the console's session first, so that this process is nobody's child and survives its starter."""
    if os.fork():
        os._exit(0)
    os.setsid()
    return _hold()


def _hold() -> int:
    parser = argparse.ArgumentParser(prog="console.rehearsal.serve")
    parser.add_argument("state", type=Path)
    parser.add_argument("--idle", type=float, required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    options = parser.parse_args()
    layout = Layout(options.state)
    os.umask(0o077)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each write to a client that has gone
    # never closed: the kernel frees it when this process is gone, and not before
    lock = os.open(layout.server_lock, os.O_RDWR | os.O_CREAT, 0o600)
    # only one console starts a server at a time: whoever else holds the lock is on its way out
    signal.alarm(_LOCK_SECONDS)
    fcntl.flock(lock, fcntl.LOCK_EX)
    signal.alarm(0)
    become_subreaper()
    # temporary folders are everybody's; /dev for /dev/null, /proc for what a process sets of itself
    open_to_all = ("/tmp", "/var/tmp", tempfile.gettempdir(), "/dev", "/proc")  # noqa: S108 - named, not used
    confine((layout.state, *map(Path, open_to_all)))
    with _short(layout) as short:
        try:
            asyncio.run(_serve(layout, short, options.idle, options.ready_fd))
        finally:
            end_children()
            layout.server_file.unlink(missing_ok=True)
    return 0


@contextlib.contextmanager
def _short(layout: Layout) -> Iterator[Path]:
    """The folder for sockets, with ROOT's links into it; removed at the end."""
    short = short_folder()
    (short / "net").mkdir()
    try:
        for link, target in ((layout.net, short / "net"), (layout.control, short / "private")):
            link.parent.mkdir(parents=True, exist_ok=True)
            _sweep(link)
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        yield short
    finally:
        shutil.rmtree(short, ignore_errors=True)


def _sweep(link: Path) -> None:
    """Remove the folder that a killed server left behind."""
    if link.is_symlink():
        left = Path(os.readlink(link)).parent
        if left.parent == Path("/tmp") and left.name.startswith("relaunch-"):  # noqa: S108 - where `short_folder` makes it
            shutil.rmtree(left, ignore_errors=True)


async def _serve(layout: Layout, short: Path, idle: float, ready_fd: int) -> None:
    loop = asyncio.get_running_loop()
    reaper = Reaper(loop)
    # beside the import of asyncssh: the slowest two things of a start
    _, seeded = reaper.spawn(
        (sys.executable, "-m", "console.rehearsal.seed", str(layout.state)),
        env=os.environ, cwd="/", stdin=subprocess.DEVNULL, stdout=2, stderr=2,
    )  # fmt: skip
    hub = _start_hub(layout, reaper)
    from console.rehearsal import sshd
    from console.rehearsal.node import PracticeNode

    sshd.make_keys(layout)
    node = PracticeNode(layout, short, reaper, getpass.getuser(), idle)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.ending.set)
    _announce(layout, {**node.announcement(), "hub": hub}, ready_fd)
    try:
        await node.run(seeded)
    finally:
        reaper.close()


def _start_hub(layout: Layout, reaper: Reaper) -> str:
    """The model hub in a process that ends with this one; its address."""
    stdin, _held_open = os.pipe()  # the end of this process closes it, whatever ends it
    with socket.create_server(("127.0.0.1", 0)) as sock:
        reaper.spawn(
            (sys.executable, "-m", "console.rehearsal.hub_process", str(layout.state), str(sock.fileno())),
            env=os.environ, cwd="/", stdin=stdin, stdout=2, stderr=2, pass_fds=(sock.fileno(),),
        )  # fmt: skip
        os.close(stdin)
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


def _announce(layout: Layout, data: dict[str, object], ready_fd: int) -> None:
    text = json.dumps({**data, "pid": os.getpid(), "started": start_ticks(os.getpid())})
    staged = layout.server_file.with_suffix(".new")
    staged.write_text(text)
    staged.rename(layout.server_file)
    with contextlib.suppress(BrokenPipeError), os.fdopen(ready_fd, "w") as ready:  # the console may have been killed
        ready.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
