"""The machine Relaunch runs on as a node: the same contract without a link, so nothing is ever `Lost` but to a deadline."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from pathlib import Path

from console.errors import CommandFailed, Refused
from console.node.base import Argv, Denied, Done, Line, LinkState, Lost, Result
from console.node.file_script import read_by_script, write_by_script
from console.node.http import Http, NoReply
from console.node.lines import Splitter
from console.node.prompts import Prompts
from console.node.quoting import Unspeakable, command_line, guarded
from console.node.sudo import Elevation, Sudo
from console.node.target import SudoMode

_CHUNK = 64 * 1024
_GRACE = 2.0
"""Seconds between asking a process of ours to end and killing it."""


class LocalNode:
    """`Node` without SSH. Commands run in the operator's home and session of their own, as they would over SSH."""

    def __init__(self, read_only: bool = False, *, prompts: Prompts | None = None, sudo: SudoMode = "auto") -> None:
        self._read_only = read_only
        self.login = getpass.getuser()
        self._sudo = Sudo(
            self._run, node="local", login=self.login, is_root=os.geteuid() == 0, mode=sudo, prompts=prompts
        )

    @property
    def name(self) -> str:
        return "local"

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def generation(self) -> int:
        """Always 1: there is no link that could have been renewed."""
        return 1

    def link(self) -> LinkState:
        return LinkState(up=True, latency_ms=0.0)

    async def run(
        self, argv: Argv, *, input: bytes | None = None, timeout: float, sudo: bool = False, mutates: bool = True
    ) -> Result:
        if mutates and self._read_only:
            return Denied(f"local is read-only in this session; {argv[0] if argv else 'this'} was not run")
        ends = time.monotonic() + timeout
        data = input or b""
        if sudo:
            how = await self._elevation(argv)
            if not isinstance(how, Elevation):
                return how
            argv, data = how.argv(argv), how.stdin(data)
        return await self._run(argv, data, ends - time.monotonic())

    async def _run(self, argv: Argv, input: bytes, timeout: float) -> Result:
        try:
            command_line(argv)
        except Unspeakable as error:
            return Denied(str(error))
        try:
            process = await _spawn(argv, stdin=PIPE if input else DEVNULL)
        except OSError as error:
            return _not_started(argv, error)
        try:
            async with asyncio.timeout(timeout):
                out, err = await process.communicate(input or None)
        except TimeoutError:
            return Lost(sent=True, reason=f"no answer in {timeout:g} s")
        finally:
            await _end(process)
        return Done(_code(process), out.decode(errors="replace"), err.decode(errors="replace"))

    def stream(
        self, argv: Argv, *, input: bytes = b"", sudo: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[Line]]:
        return self._stream(argv, input, sudo)

    @asynccontextmanager
    async def _stream(self, argv: Argv, input: bytes, sudo: bool) -> AsyncIterator[AsyncIterator[Line]]:
        command = argv if input else guarded(argv)
        if sudo:
            how = await self._elevation(argv)
            if not isinstance(how, Elevation):
                raise CommandFailed(argv, 126, how.reason)
            command, input = how.argv(command), how.stdin(input)
        try:
            command_line(command)
            process = await _spawn(command, stdin=PIPE)
        except Unspeakable as error:
            raise CommandFailed(argv, 126, str(error)) from None
        except OSError as error:
            raise CommandFailed(argv, 127, f"{argv[0]}: {error.strerror}") from error
        try:
            if process.stdin is not None and input:
                process.stdin.write(input)
            async with aclosing(_lines(process, argv)) as lines:
                yield lines
        finally:
            await _end(process)

    async def read(self, path: str, *, sudo: bool = False, limit: int = 64 << 20) -> bytes:
        return await read_by_script(self, path, limit, sudo=sudo, python=self._python(sudo))

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, sudo: bool = False) -> None:
        if self._read_only:
            raise Refused(f"local is read-only in this session; {path} was not written")
        await write_by_script(self, path, data, mode, sudo=sudo, python=self._python(sudo))

    def http(self, port: int, *, host: str = "127.0.0.1") -> Http:
        @asynccontextmanager
        async def dial() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
            try:
                reader, writer = await asyncio.open_connection(host, port)
            except OSError as error:
                raise NoReply(f"port {port} cannot be reached: {error}") from error
            try:
                yield reader, writer
            except OSError as error:
                raise NoReply(f"port {port}: {error}") from error
            finally:
                writer.close()

        return Http(dial, _always)

    async def _elevation(self, argv: Argv) -> Elevation | Denied | Lost:
        if argv and "=" in argv[0]:  # sudo and env would both take it for a variable
            return Denied(f"{argv[0]!r} cannot be run with sudo: a program name must not hold an equals sign")
        return await self._sudo.elevation()

    @staticmethod
    def _python(sudo: bool) -> str:
        """Our own interpreter, which is known to be there; root may not be allowed to read a home folder's."""
        return "python3" if sudo and os.geteuid() != 0 else sys.executable


async def _always() -> None:
    """This machine is always reached."""


async def _spawn(argv: Argv, *, stdin: int) -> Process:
    home = Path.home()
    return await asyncio.create_subprocess_exec(
        *argv,
        stdin=stdin,
        stdout=PIPE,
        stderr=PIPE,
        cwd=home if home.is_dir() else "/",
        start_new_session=True,  # Ctrl-C in the operator's terminal is for Relaunch, not for what it started
    )


async def _end(process: Process) -> None:
    """End what still runs of a process group: its stdin closes, then SIGTERM, then SIGKILL. Returns when it has ended."""
    if process.stdin is not None:
        process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            break
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await process.wait()
    if process.returncode is None:  # of another user, by sudo, and deaf: let it go, and its pipes with it
        transport = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()


async def _lines(process: Process, argv: Argv) -> AsyncGenerator[Line, None]:
    """Lines of both outputs as they come, until both have ended. Raises `CommandFailed` for an exit status but 0."""
    ready: asyncio.Queue[list[Line] | None] = asyncio.Queue(maxsize=64)
    last_err: list[str] = []

    async def pump(stream: asyncio.StreamReader | None, splitter: Splitter) -> None:
        while stream is not None and (data := await stream.read(_CHUNK)):
            await ready.put(splitter.feed(data))
        await ready.put(splitter.close())
        await ready.put(None)

    pumps = [
        asyncio.ensure_future(pump(process.stdout, Splitter())),
        asyncio.ensure_future(pump(process.stderr, Splitter(err=True))),
    ]
    try:
        open_streams = len(pumps)
        while open_streams:
            batch = await ready.get()
            if batch is None:
                open_streams -= 1
                continue
            last_err = (last_err + [line.text for line in batch if line.err])[-20:]
            for line in batch:
                yield line
        await process.wait()
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
    if process.returncode:
        raise CommandFailed(argv, _code(process), "\n".join(last_err))


def _not_started(argv: Argv, error: OSError) -> Result:
    """What a login shell says of a program that cannot be started."""
    missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    text = "not found" if missing else str(error.strerror)
    return Done(127 if missing else 126, "", f"{argv[0]}: {text}\n")


def _code(process: Process) -> int:
    """Exit status; 128+N for a signal."""
    code = process.returncode or 0
    return code if code >= 0 else 128 - code
