"""An SSH server inside the test's own loop: commands are plain local processes, files the real ones.

Each command gets explicit pumps: handing a process's pipes to asyncssh's own redirection and then calling `exit` lost stderr
and the exit status in three of three runs (ENGINEERING 2b), and an exit by signal must be told as such. `drop` aborts every
connection as a dead network would in the end; the commands live on, as they do under OpenSSH.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from console.node.target import Target


@dataclass(slots=True)
class Sshd:
    """A running server. `folder` holds its keys and is where commands begin."""

    folder: Path
    port: int = 0
    max_sessions: int = 10
    passwords: dict[str, str] = field(default_factory=dict)
    """Logins that a password opens; a key opens all."""
    says_no_exit: bool = False
    """Sessions end without an exit status, as when sshd is killed."""
    lets_anybody_in: bool = False
    """No authentication is asked, as somebody in the middle would who has none to offer."""
    logins: int = 0
    commands: list[str] = field(default_factory=list)
    connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _children: set[asyncio.subprocess.Process] = field(default_factory=set)

    def target(self, **changes: Any) -> Target:
        known: dict[str, Any] = {
            "name": "node", "host": "127.0.0.1", "port": self.port, "user": "someone",
            "identity_files": (str(self.folder / "client"),), "known_hosts": (str(self.folder / "known_hosts"),),
        }  # fmt: skip
        return Target(**(known | changes))

    def drop(self) -> None:
        """Break every connection now."""
        for connection in list(self.connections):
            connection.abort()

    async def serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(process)
        finally:
            self._tasks.discard(task)

    async def _serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        assert isinstance(process, _Session)
        self.commands.append(process.command or "")
        child = await asyncio.create_subprocess_exec(
            "sh", "-c", process.command or "true", cwd=self.folder, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._children.add(child)
        process.child = child
        assert child.stdin
        assert child.stdout
        assert child.stderr
        feeding = asyncio.ensure_future(_feed(process.stdin, child.stdin))
        try:
            await asyncio.gather(_pump(child.stdout, process.stdout), _pump(child.stderr, process.stderr))
            code = await child.wait()
            process.let_go()
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        with suppress(OSError):  # the link may have gone meanwhile
            if self.says_no_exit:
                process.close()
            elif code < 0:
                process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
            else:
                process.exit(code)

    async def finish(self) -> None:
        """End what still runs. The handlers end by themselves once their commands have, and are awaited: cancelled, one
        would leave the process behind that it is just starting; forgotten, the loop's end could hang on it."""
        self.drop()
        while self._tasks:
            for child in self._children:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            await asyncio.wait(self._tasks, timeout=0.05)


class _Door(asyncssh.SSHServer):
    def __init__(self, sshd: Sshd) -> None:
        self._sshd = sshd
        self._sessions = 0

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._conn = conn
        self._sshd.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sshd.connections.discard(self._conn)

    def auth_completed(self) -> None:
        self._sshd.logins += 1

    def begin_auth(self, username: str) -> bool:
        return not self._sshd.lets_anybody_in

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        allowed = asyncssh.read_public_key(self._sshd.folder / "client.pub")
        return username not in self._sshd.passwords and bool(key == allowed)

    def password_auth_supported(self) -> bool:
        return bool(self._sshd.passwords)

    def validate_password(self, username: str, password: str) -> bool:
        return self._sshd.passwords.get(username) == password

    def session_requested(self) -> Any:
        if self._sessions >= self._sshd.max_sessions:
            return False
        self._sessions += 1
        return _Session(self)

    def ended(self) -> None:
        self._sessions -= 1

    @property
    def sshd(self) -> Sshd:
        return self._sshd

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True


class _Session(asyncssh.SSHServerProcess[bytes]):
    """Counts against `max_sessions` as in sshd: until its channel is closed and its command has ended."""

    def __init__(self, door: _Door) -> None:
        super().__init__(door.sshd.serve, asyncssh.SFTPServer, 3, False)
        self._door: _Door | None = door
        self._closed = False
        self.child: asyncio.subprocess.Process | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closed = True
        self.let_go()

    def let_go(self) -> None:
        running = self.child is not None and self.child.returncode is None
        if self._closed and not running and self._door is not None:
            self._door.ended()
            self._door = None

    def signal_received(self, signal_name: str) -> None:
        if self.child is not None and self.child.returncode is None:
            os.killpg(self.child.pid, getattr(signal, f"SIG{signal_name}"))


async def _feed(source: Any, stdin: asyncio.StreamWriter) -> None:
    """Client to command, until EOF or a lost link; either closes the command's stdin, as sshd does."""
    with suppress(asyncssh.Error, OSError):
        while data := await source.read(64 << 10):
            stdin.write(data)
            await stdin.drain()
    stdin.close()


async def _pump(source: asyncio.StreamReader, target: Any) -> None:
    """Command to client. After a lost link it goes on reading, so that the command is not held up."""
    gone = False
    while data := await source.read(64 << 10):
        if gone:
            continue
        try:
            target.write(data)
            await target.drain()
        except (asyncssh.Error, OSError):
            gone = True


def make_keys(folder: Path) -> None:
    for name in ("host", "client"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(folder / name)
        key.write_public_key(folder / f"{name}.pub")


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[Sshd]:
    """A server on a free port of the loopback, with keys of its own in `folder`."""
    make_keys(folder)
    sshd = Sshd(folder, **options)
    async with asyncssh.listen(
        "127.0.0.1", 0, server_factory=lambda: _Door(sshd), server_host_keys=[str(folder / "host")], encoding=None,
        agent_forwarding=False,
    ) as listener:  # fmt: skip
        sshd.port = listener.get_port()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {(folder / 'host.pub').read_text()}")
        yield sshd
        await sshd.finish()
