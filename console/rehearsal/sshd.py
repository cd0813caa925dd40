"""The SSH door of the practice node: public keys only, exec, sftp, signals, forwards into the practice network.

Behaves as OpenSSH does where a client can tell: a command line goes to the login shell with `-c`; a session ends when
the command has ended and both its outputs are closed; ten sessions per connection and no more; a dropped link closes the
command's pipes and leaves it running, so a silent one is orphaned and a writing one dies of SIGPIPE. There is no
terminal. `direct-tcpip` to the loopback port N goes to the UNIX socket ROOT/net/N.sock, and is refused when none is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import asyncssh

from console.rehearsal.layout import Layout
from console.rehearsal.processes import Reaper

MAX_SESSIONS = 10
"""OpenSSH's default MaxSessions."""
_CHUNK = 64 << 10
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(slots=True)
class Door:
    """What the sessions of one practice node share, and what it tells the server."""

    layout: Layout
    reaper: Reaper
    user: str
    ready: asyncio.Event
    """Set when the sandbox stands; commands wait for it."""
    connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)
    on_change: Callable[[], None] = lambda: None
    """Called when a connection came or went."""
    on_event: Callable[[str], None] = lambda text: None
    """Told `exec`, `forward PORT` as they happen; faults bite on these."""


class _Connection(asyncssh.SSHServer):
    def __init__(self, door: Door) -> None:
        self._door = door
        self._sessions = 0
        self._conn: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._conn = conn
        self._door.connections.add(conn)
        self._door.on_change()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._conn is not None:
            self._door.connections.discard(self._conn)
        self._door.on_change()

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return False

    def kbdint_auth_supported(self) -> bool:
        return False

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        if username != self._door.user:
            return False
        allowed = self._door.layout.client_key.with_suffix(".pub").read_bytes().split()[1]
        return bool(key.export_public_key("openssh").split()[1] == allowed)

    def session_requested(self) -> Any:
        if self._sessions >= MAX_SESSIONS:
            return False
        self._sessions += 1
        return _Session(self._door, self._session_closed)

    def _session_closed(self) -> None:
        self._sessions -= 1

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> Any:
        path = os.path.realpath(self._door.layout.net / f"{dest_port}.sock")
        if self._conn is None or dest_host not in _LOOPBACK or not os.path.exists(path):
            return False
        self._door.on_event(f"forward {dest_port}")
        return self._conn.forward_unix_connection(path)


class _Sftp(asyncssh.SFTPServer):
    """The real file system with the rights of the user who runs the practice; relative paths begin at ROOT."""

    def __init__(self, chan: Any, root: bytes) -> None:
        super().__init__(chan)
        self._root = root

    def map_path(self, path: bytes) -> bytes:
        return os.path.normpath(os.path.join(self._root, path))


class _Session(asyncssh.SSHServerProcess[bytes]):
    """One session channel: its command in a process group of its own."""

    def __init__(self, door: Door, closed: Callable[[], None]) -> None:
        root = os.fsencode(door.layout.root)
        super().__init__(self._serve, lambda chan: _Sftp(chan, root), 3, False)
        self._door = door
        self._on_closed = closed
        self._counted = True
        self._closed = asyncio.Event()
        self._pipes: list[asyncio.BaseTransport] = []
        self._pid: int | None = None

    def subsystem_requested(self, subsystem: str) -> bool:
        return subsystem == "sftp"

    def pty_requested(self, term_type: str, term_size: Any, term_modes: Any) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closed.set()
        for pipe in self._pipes:
            pipe.close()
        self._free()

    def _free(self) -> None:
        """Give the session's place back, once: when its command has ended, or when the channel has gone."""
        if self._counted:
            self._counted = False
            self._on_closed()

    def signal_received(self, signal_name: str) -> None:
        """OpenSSH signals the session's process group."""
        number = getattr(signal, f"SIG{signal_name}", None)
        if self._pid is not None and number is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)

    def break_received(self, msec: int) -> bool:
        return False

    async def _serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        await self._door.ready.wait()
        self._door.on_event("exec")
        (in_read, in_write), (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe(), os.pipe()
        try:
            self._pid, status = self._spawn(process, in_read, out_write, err_write)
        except (OSError, ValueError) as error:
            for fd in (in_write, out_read, err_read):
                os.close(fd)
            process.stderr.write(f"{error}\n".encode())
            process.exit(127)
            return
        finally:
            for fd in (in_read, out_write, err_write):
                os.close(fd)
        feeding = asyncio.ensure_future(self._feed(process.stdin, in_write))
        await asyncio.gather(self._drain(out_read, process.stdout), self._drain(err_read, process.stderr))
        closing = asyncio.ensure_future(self._closed.wait())
        await asyncio.wait((status, closing), return_when=asyncio.FIRST_COMPLETED)
        self._pid = None
        closing.cancel()
        feeding.cancel()
        if status.done():
            self._free()
            _end(process, status.result())

    def _spawn(
        self, process: asyncssh.SSHServerProcess[bytes], stdin: int, stdout: int, stderr: int
    ) -> tuple[int, asyncio.Future[int]]:
        argv = ("/bin/sh",) if process.command is None else ("/bin/sh", "-c", process.command)
        env = self._door.layout.environment() | {"USER": self._door.user, "LOGNAME": self._door.user}
        # as sshd's AcceptEnv: anything but LC_* is dropped without an error
        env |= {name: str(value) for name, value in process.env.items() if name.startswith("LC_")}
        return self._door.reaper.spawn(
            argv, env=env, cwd=self._door.layout.root, stdin=stdin, stdout=stdout, stderr=stderr
        )

    async def _feed(self, stdin: Any, fd: int) -> None:
        """Client to command until EOF, a lost link, or a command that reads no more."""
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(fd, "wb", 0))
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        try:
            while data := await stdin.read(_CHUNK):
                writer.write(data)
                await writer.drain()
        except (asyncssh.Error, OSError):
            pass  # the link is gone, or the command has closed its stdin: either way nothing more goes in
        finally:
            transport.close()

    async def _drain(self, fd: int, out: Any) -> None:
        """Command to client until the last writer has closed; a lost link closes the pipe under the writer."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_CHUNK)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
        )
        self._pipes.append(transport)
        if self._closed.is_set():
            transport.close()
        try:
            while data := await reader.read(_CHUNK):
                out.write(data)
                await out.drain()
        except (asyncssh.Error, OSError):
            pass  # the link is gone
        finally:
            transport.close()


def _end(process: asyncssh.SSHServerProcess[bytes], code: int) -> None:
    with contextlib.suppress(OSError):  # the channel may have gone while the command ended
        if code >= 0:
            process.exit(code)
        else:
            process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))


def make_keys(layout: Layout) -> None:
    """Host and client keys, made once per state folder, private halves 0600."""
    for path, comment in ((layout.host_key, "relaunch-practice-host"), (layout.client_key, "relaunch-practice-user")):
        if path.exists():
            continue
        key = asyncssh.generate_private_key("ssh-ed25519", comment=comment)
        path.with_suffix(".pub").write_bytes(key.export_public_key())
        staged = path.with_suffix(".new")
        staged.touch(mode=0o600)
        staged.write_bytes(key.export_private_key())
        staged.rename(path)


async def serve(door: Door, sock: socket.socket) -> None:
    """One SSH connection on a connected socket, until it is closed. Never raises for what the client does."""
    try:
        conn = await asyncssh.run_server(
            sock,
            server_factory=lambda: _Connection(door),
            server_host_keys=[str(door.layout.host_key)],
            encoding=None,
            allow_scp=False,
            agent_forwarding=False,
            x11_forwarding=False,
        )
    except (asyncssh.Error, OSError):
        return
    await conn.wait_closed()
