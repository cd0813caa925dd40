"""The practice node from the console's side: start it or attach to it, ask for it, reset it, stop it.

The server is a process of its own (`console.rehearsal.serve`) that outlives this one. Two consoles on the same state
folder share one server. Every wait here ends on an event: the server's ready line, the end of its output, a lock freed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from console.errors import RelaunchError, UsageError
from console.rehearsal import faults as fault_file
from console.rehearsal.layout import Layout
from console.rehearsal.processes import send, start_ticks

IDLE_SECONDS = 30 * 60
PACE_VARIABLE = "RELAUNCH_PRACTICE_PACE"
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Practice:
    """A running practice node, and all that is needed to log in to it."""

    host: str
    port: int
    user: str
    client_key: Path
    """Private key of the practice user, unencrypted, 0600."""
    host_key: str
    """One known_hosts line: `[host]:port type base64`."""
    root: Path
    """The node's sandbox: HOME of its login, and the prefix of its /etc, /sys, /var."""
    hub: str
    """URL of the embedded model hub, for HF_ENDPOINT; empty when it has none."""
    pid: int
    state_dir: Path
    faults: tuple[str, ...] = ()
    """`name:step` of each fault that is on."""


async def ensure(
    state_dir: Path,
    *,
    faults: tuple[str, ...] = (),
    fresh: bool = False,
    idle_seconds: float = IDLE_SECONDS,
    pace: Mapping[str, float] | None = None,
) -> Practice:
    """The practice node of `state_dir`, started when it is not running; its faults are then exactly `faults`.

    `fresh` sets the sandbox back to its first state. The node answers SSH when this returns; its old service is
    starting. `pace` multiplies the stand-ins' pauses: load, tokens, install, hub; 0 leaves them out; when it is
    not given, the variable RELAUNCH_PRACTICE_PACE is asked for the same as JSON. Raises UsageError for an unknown fault and RelaunchError when the server does not come up.
    """
    chosen = fault_file.parse(faults)
    pace = _pace_of(os.environ) if pace is None else pace
    layout = _layout(state_dir)
    layout.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with _exclusive(layout):
        if fresh:
            await _end(layout)
            _clear(layout)
        layout.root.mkdir(exist_ok=True, mode=0o700)
        fault_file.write(layout.faults, chosen)
        if pace is not None:
            (layout.root / "pace.json").write_text(json.dumps(dict(pace)))
        practice = _running(layout)
        return practice if practice is not None else await _start(layout, idle_seconds)


def _pace_of(environment: Mapping[str, str]) -> Mapping[str, float] | None:
    text = environment.get(PACE_VARIABLE)
    if not text:
        return None
    try:
        return {str(name): float(factor) for name, factor in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise UsageError(f"{PACE_VARIABLE} is no JSON object of factors: {text[:80]}", "'{\"load\": 0.5}'") from None


def status(state_dir: Path) -> Practice | None:
    """The practice node when it is running, else None."""
    return _running(_layout(state_dir))


async def stop(state_dir: Path) -> bool:
    """End the practice node and every process on it; False when it was not running. The sandbox stays, as a disk does."""
    layout = _layout(state_dir)
    if not layout.state.is_dir():
        return False
    async with _exclusive(layout):
        return await _end(layout)


async def reset(state_dir: Path) -> None:
    """End the practice node and remove its sandbox; the next `ensure` begins with the old model serving. Keys stay."""
    layout = _layout(state_dir)
    if not layout.state.is_dir():
        return
    async with _exclusive(layout):
        await _end(layout)
        _clear(layout)


def _layout(state_dir: Path) -> Layout:
    return Layout(Path(os.path.abspath(state_dir)))


@contextlib.asynccontextmanager
async def _exclusive(layout: Layout) -> AsyncIterator[None]:
    with layout.start_lock.open("w") as file:
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _server_lock(layout: Layout) -> Iterator[IO[str]]:
    with layout.server_lock.open("a") as file:
        yield file


def _running(layout: Layout) -> Practice | None:
    if not layout.server_lock.exists():
        return None
    with _server_lock(layout) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # the server lives
        else:
            return None
    try:
        data = json.loads(layout.server_file.read_text())
    except (OSError, ValueError):
        return None  # it is starting or ending right now
    return _practice(layout, data)


def _practice(layout: Layout, data: dict[str, object]) -> Practice:
    return Practice(
        host=str(data["host"]),
        port=int(str(data["port"])),
        user=str(data["user"]),
        client_key=layout.client_key,
        host_key=str(data["host_key"]),
        root=layout.root,
        hub=str(data.get("hub") or ""),
        pid=int(str(data["pid"])),
        state_dir=layout.state,
        faults=tuple(f"{fault.name}:{fault.step}" for fault in fault_file.read(layout.faults)),
    )


async def _start(layout: Layout, idle_seconds: float) -> Practice:
    layout.server_file.unlink(missing_ok=True)
    read_end, write_end = os.pipe()
    with layout.server_log.open("wb") as log:
        try:
            starter = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "console.rehearsal.serve", str(layout.state),
                f"--idle={idle_seconds}", f"--ready-fd={write_end}",
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(write_end,),
                cwd="/", env={**os.environ, "PYTHONPATH": _python_path()},
            )  # fmt: skip
        finally:
            os.close(write_end)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", 0)
    )
    try:
        line = await reader.readline()
    finally:
        transport.close()
    await starter.wait()  # it ends as soon as the server is on its own
    if not line:
        tail = layout.server_log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise RelaunchError(f"the practice node did not start: {tail[0]}", f"its log is {layout.server_log}")
    return _practice(layout, json.loads(line))


def _python_path() -> str:
    """So that the server finds this very package from any working folder."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))


async def _end(layout: Layout) -> bool:
    """Ask the server to end, and kill it when it does not; the freed lock is the sign that it is gone."""
    if not layout.server_lock.exists():
        return False
    with _server_lock(layout) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            pass
        pid = _server_pid(layout)
        gone = asyncio.ensure_future(asyncio.to_thread(_until_gone, pid, file))
        if pid is not None:
            send(pid, signal.SIGTERM)
        done, _ = await asyncio.wait((gone,), timeout=_STOP_SECONDS)
        if not done and pid is not None:
            send(pid, signal.SIGKILL)
        await gone
    return True


def _until_gone(pid: int | None, lock: IO[str]) -> None:
    """Back when the server has ended. Its lock is free a moment before its process is gone."""
    handle = None
    if pid is not None and hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):  # it is gone already
            handle = os.pidfd_open(pid)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if handle is not None:
        select.select([handle], [], [])
        os.close(handle)


def _server_pid(layout: Layout) -> int | None:
    """The server's pid when it is that very process; None when it is ending and has taken its file away."""
    try:
        data = json.loads(layout.server_file.read_text())
    except (OSError, ValueError):
        return None
    pid = int(data["pid"])
    return pid if data.get("started") in (None, start_ticks(pid)) else None


def _clear(layout: Layout) -> None:
    """Remove the sandbox. Files made read-only by a practised mishap go too."""
    if layout.root.exists():
        for folder, _, _ in os.walk(layout.root):
            os.chmod(folder, 0o700)
        shutil.rmtree(layout.root)
