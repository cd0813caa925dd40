"""A node over SSH: `connect` gives an `SshNode`, the `Node` contract over one kept connection.

What the contract leaves open is settled here: a call made while the link is down waits for the reconnect, 30 seconds at
most; a command that was under way when the link broke is `Lost(sent=True)` and never replayed; output is cut off by its
channel's flow control and never by dropping; commands take a place in the budget of sessions, and when the server itself
refuses one more, wait for another to end. Mutation of a read-only node is refused here and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from typing import TypeVar

from console.errors import CommandFailed, Refused, RelaunchError, Unreachable
from console.node import ssh_files
from console.node.base import Argv, Denied, Done, Line, LinkState, Lost, Result
from console.node.file_script import read_by_script, write_by_script
from console.node.http import Http, NoReply
from console.node.http import Reader as HttpReader
from console.node.http import Writer as HttpWriter
from console.node.prompts import Prompts
from console.node.quoting import Unspeakable, command_line, guarded
from console.node.ssh_exec import GONE, Budget, Exec, NotOpened, Take
from console.node.ssh_flow import Flow
from console.node.ssh_library import asyncssh
from console.node.ssh_link import Link
from console.node.ssh_login import Timing
from console.node.sudo import Elevation, Sudo
from console.node.target import Target

T = TypeVar("T")

_BARREN_TRIES = 3
OUTPUT_LIMIT = 256 << 20
"""Bytes of output that `run` keeps; a command that says more is given up."""


@asynccontextmanager
async def connect(
    target: Target, *, read_only: bool = False, prompts: Prompts | None = None, timing: Timing | None = None
) -> AsyncIterator[SshNode]:
    """A session with `target`. The first login must work; later ones are repeated while the context is open.

    Raises `AuthenticationFailed`, `HostKeyRejected`, `Unreachable`, `UsageError`. Without `prompts` nothing is asked and an
    unknown host key is refused.
    """
    logging.getLogger("asyncssh").setLevel(logging.WARNING)  # at INFO it writes command lines to the log
    link = Link(target, prompts, timing or Timing())
    try:
        await link.open()
        yield SshNode(link, read_only=read_only, prompts=prompts)
    finally:
        await link.close()


class SshNode:
    """`Node` over SSH; made by `connect`."""

    def __init__(self, link: Link, *, read_only: bool, prompts: Prompts | None) -> None:
        self._link = link
        self._read_only = read_only
        self.login = link.user
        """The user name that was logged in as."""
        self._sudo = Sudo(
            self._probe,
            node=self.name,
            login=self.login,
            is_root=self.login == "root",
            mode=link.target.sudo,
            prompts=prompts,
        )

    @property
    def name(self) -> str:
        return self._link.target.name

    @property
    def target(self) -> Target:
        return self._link.target

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def generation(self) -> int:
        """Counts the connections of this session. Whoever follows something on the node looks again when it moves."""
        return self._link.generation

    def link(self) -> LinkState:
        return self._link.state

    def on_link(self, watcher: Callable[[LinkState], None]) -> None:
        """Have `watcher` called with each new link state; it must not block."""
        self._link.watch(watcher)

    async def up_again(self, generation: int) -> None:
        """Returns once there is a newer connection than `generation`; raises why there will never be one."""
        await self._link.up_again(generation)

    async def run(
        self, argv: Argv, *, input: bytes | None = None, timeout: float, sudo: bool = False, mutates: bool = True
    ) -> Result:
        if mutates and self._read_only:
            return Denied(f"{self.name} is read-only in this session; {argv[0] if argv else 'this'} was not run")
        ends = time.monotonic() + timeout
        how: Elevation | None = None
        if sudo:
            found = await self._elevation(argv)
            if not isinstance(found, Elevation):
                return found
            how = found
        try:
            line = command_line(how.argv(argv) if how else argv)
        except Unspeakable as error:
            return Denied(str(error))
        data = how.stdin(input or b"") if how else input or b""
        return await self._run_line(line, data, ends, timeout, kill=not mutates)

    async def _run_line(self, line: str, data: bytes, ends: float, timeout: float, *, kill: bool) -> Result:
        out, err = bytearray(), bytearray()
        session: Exec | None = None

        def take(chunk: bytes, is_err: bool) -> None:
            (err if is_err else out).extend(chunk)
            if len(out) + len(err) > OUTPUT_LIMIT and session is not None:
                session.give_up(terminate=True)

        try:
            async with asyncio.timeout(ends - time.monotonic()):
                session = await self._start(line, take)
                session.send(data)
                session.end_input()
                await asyncio.shield(session.closed)
        except TimeoutError:
            if session is None:
                return Lost(sent=False, reason=f"it could not be started in {timeout:g} s")
            session.give_up(terminate=kill)
            return Lost(sent=True, reason=f"no answer in {timeout:g} s")
        except NotOpened as error:
            return Denied(f"{self.name} opens no session: {error.reason}")
        except RelaunchError as error:
            return Lost(sent=False, reason=error.message)
        except asyncio.CancelledError:
            if session is not None:
                session.give_up(terminate=kill)
            raise
        if session.ended and session.code is not None:
            return Done(session.code, out.decode(errors="replace"), err.decode(errors="replace"))
        if len(out) + len(err) > OUTPUT_LIMIT:
            return Lost(sent=True, reason=f"it wrote more than {OUTPUT_LIMIT >> 20} MiB")
        return Lost(sent=True, reason=str(session.error or "its session ended without an exit status"))

    async def _start(self, line: str, take: Take, *, stream: bool = False) -> Exec:
        """Start a command line, waiting for the link and for a session. Raises `NotOpened`, `Unreachable`."""
        barren = 0
        while True:
            connection, budget = await self._link.connection(self._link.timing.patience)
            ended = budget.ended
            try:
                return await budget.start(connection, line, take, stream=stream)
            except NotOpened as error:
                # Nothing ran, so another try is safe: over the next connection, in place of the heartbeat, or when one
                # of our own sessions has ended.
                if error.gone:
                    self._link.gone(connection)
                elif not await self._link.spare_session() and not await budget.room_again(ended):
                    barren += 1  # sshd frees a place a moment after the end of a session that we have seen already
                    if barren == _BARREN_TRIES:
                        if not budget.leaky:
                            raise
                        self._link.abort("commands that were given up fill the connection; a new one is made")

    def stream(
        self, argv: Argv, *, input: bytes = b"", sudo: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[Line]]:
        return self._stream(argv, input, sudo)

    @asynccontextmanager
    async def _stream(self, argv: Argv, input: bytes, sudo: bool) -> AsyncIterator[AsyncIterator[Line]]:
        # A helper that is given a script on stdin watches for its end itself; any other is ended by a guard.
        command = argv if input else guarded(argv)
        how = await self._elevation(argv) if sudo else None
        if isinstance(how, Lost):
            raise Unreachable(f"{argv[0]} was not started: {how.reason}")
        if isinstance(how, Denied):
            raise CommandFailed(argv, 126, how.reason)
        try:
            line = command_line(how.argv(command) if how else command)
        except Unspeakable as error:
            raise CommandFailed(argv, 126, str(error)) from None
        flow = Flow()
        try:
            session = await self._start(line, flow.take, stream=True)
        except NotOpened as error:
            raise CommandFailed(argv, 126, f"{self.name} opens no session: {error.reason}") from error
        flow.bind(session)
        session.send(how.stdin(input) if how else input)
        try:
            async with aclosing(flow.lines(argv, self.name)) as lines:
                yield lines
        finally:
            session.end_input()
            session.give_up(terminate=True)

    async def read(self, path: str, *, sudo: bool = False, limit: int = 64 << 20) -> bytes:
        if not sudo or self.login == "root":
            with suppress(ssh_files.Unsupported):
                return await self._file(lambda conn, budget: ssh_files.read_file(conn, budget, path, limit))
        return await read_by_script(self, path, limit, sudo=sudo)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, sudo: bool = False) -> None:
        if self._read_only:
            raise Refused(f"{self.name} is read-only in this session; {path} was not written")
        if not sudo or self.login == "root":
            with suppress(ssh_files.Unsupported):
                return await self._file(lambda conn, budget: ssh_files.write_file(conn, budget, path, data, mode))
        return await write_by_script(self, path, data, mode, sudo=sudo)

    async def _file(self, transfer: Callable[[asyncssh.SSHClientConnection, Budget], Awaitable[T]]) -> T:
        """The result of a file transfer, which is begun anew as long as it could not begin at all."""
        while True:
            connection, budget = await self._link.connection(self._link.timing.patience)
            try:
                return await transfer(connection, budget)
            except NotOpened:
                self._link.gone(connection)

    def http(self, port: int, *, host: str = "127.0.0.1") -> Http:
        return Http(lambda: self._dial(host, port), lambda: self._link.connection(self._link.timing.patience))

    @asynccontextmanager
    async def _dial(self, host: str, port: int) -> AsyncIterator[tuple[HttpReader, HttpWriter]]:
        """A connection to a port on the node, as one channel of ours: no session, and nothing that listens here."""
        connection, _ = await self._link.connection(self._link.timing.patience)
        try:
            reader, writer = await connection.open_connection(host, port)
            try:
                yield reader, writer
            finally:
                writer.close()
        except asyncssh.DisconnectError as error:
            raise Unreachable(f"{self.name}: the link was lost during a request to port {port}") from error
        except asyncssh.ChannelOpenError as error:
            if error.reason == GONE:
                raise Unreachable(f"{self.name}: the link was lost before a request to port {port}") from error
            raise NoReply(f"port {port} cannot be reached: {error.reason}") from error
        except (asyncssh.Error, OSError) as error:
            raise NoReply(f"port {port}: {error}") from error

    async def _elevation(self, argv: Argv) -> Elevation | Denied | Lost:
        if argv and "=" in argv[0]:  # sudo and env would both take it for a variable
            return Denied(f"{argv[0]!r} cannot be run with sudo: a program name must not hold an equals sign")
        return await self._sudo.elevation()

    async def _probe(self, argv: Argv, input: bytes, timeout: float) -> Result:
        return await self._run_line(command_line(argv), input, time.monotonic() + timeout, timeout, kill=True)


__all__ = ["SshNode", "Timing", "connect"]
