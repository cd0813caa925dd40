"""The Node contract: what the rest of the house may ask of a machine, and how the answers look.

A command is an argv tuple and never a shell string; `console.node.quoting` is the only place that turns one into text
for a login shell. There are two classes of remote process: an *attached helper*, which ends when its stdin closes
(`stream`), and a *detached job*, a named transient unit that outlives the link (`console.node.jobs`).

`run` answers with exactly one of three results. `Done`: the exit status was seen. `Lost`: the link went away; with
`sent` the command may have run, so its effect is unknown and must be measured, never assumed and never replayed blindly.
`Denied`: it certainly did not run (no channel, no connection, no permission).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from console.errors import CommandFailed, RelaunchError, Unreachable

if TYPE_CHECKING:
    from console.node.http import Http

Argv: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The command ended and its exit status was seen; a signal N shows as code 128+N. Text is decoded with replacement."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The link was lost, or the deadline passed. `sent`: the command had been handed over, so it may have taken effect."""

    sent: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Denied:
    """The command did not run at all: read-only, an argv no shell can be told, no session to be had, sudo said no.

    A program that is not there is no `Denied`: the login shell answers `Done` with code 127."""

    reason: str


Result: TypeAlias = Done | Lost | Denied


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a stream, without its terminator. `err`: it came from stderr. `replaces`: it ended in CR, so that the
    next line overwrites it on a terminal. `cut`: the line was longer than the cap and continues in the next `Line`."""

    text: str
    err: bool = False
    replaces: bool = False
    cut: bool = False


@dataclass(frozen=True, slots=True)
class LinkState:
    """What is known of the connection. `latency_ms` is None while unknown; `down_since` is a monotonic time."""

    up: bool
    latency_ms: float | None = None
    reason: str = ""


class NoSuchFile(RelaunchError):
    """`read` of a path that is not there."""


class Node(Protocol):
    """A machine. Implementations: `console.node.ssh.SshNode`, `console.node.local.LocalNode`."""

    @property
    def name(self) -> str:
        """What the operator calls it: an alias, `user@host`, or `local`."""

    @property
    def read_only(self) -> bool:
        """True when this session must not mutate the node; enforced by the implementation, not by its callers."""

    def link(self) -> LinkState:
        """The connection as last measured. Never blocks."""

    async def run(
        self, argv: Argv, *, input: bytes | None = None, timeout: float, sudo: bool = False, mutates: bool = True
    ) -> Result:
        """Run `argv`, with stdin `input` or closed, for at most `timeout` seconds.

        `sudo`: as root; a no-op when the login already is root. `mutates=False` marks a command that only reads; a
        read-only node denies all others. Never raises for what the command does.
        """

    def stream(
        self, argv: Argv, *, input: bytes = b"", sudo: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[Line]]:
        """An attached helper that reads only: lines as they come; stdin gets `input` and stays open until the context is
        left, which ends the helper. The iterator ends when the helper ends with code 0, raises `CommandFailed` when it
        ends otherwise, and `Unreachable` when the link is lost."""

    async def read(self, path: str, *, sudo: bool = False, limit: int = 64 << 20) -> bytes:
        """The bytes of a file. Raises `NoSuchFile`, `CommandFailed` (permission, a folder, over `limit`), `Unreachable`."""

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, sudo: bool = False) -> None:
        """Replace a file atomically: temporary file in the same folder with `mode` from the start, fsync, rename.

        A link at `path` is replaced, never written through. The parent folder must exist. On any failure the old
        content stands and no temporary file is left. Raises `CommandFailed`, `Unreachable`, and `Refused` when read-only.
        """

    def http(self, port: int, *, host: str = "127.0.0.1") -> Http:
        """HTTP requests to a port on the node's own loopback; nothing listens on this machine for it."""


def done(result: Result, argv: Argv) -> Done:
    """The `Done` in `result`; raises `Unreachable` for a lost link and `CommandFailed` for a command that could not run."""
    match result:
        case Done():
            return result
        case Lost(sent=sent, reason=reason):
            state = "its effect is unknown" if sent else "it was not started"
            raise Unreachable(
                f"the link was lost while running {argv[0]}, {state}" + (f" ({reason})" if reason else "")
            )
        case Denied(reason=reason):
            raise CommandFailed(argv, 126, reason)


def succeeded(result: Result, argv: Argv) -> Done:
    """Like `done`, and raises `CommandFailed` when the exit status is not 0."""
    answer = done(result, argv)
    if answer.code != 0:
        raise CommandFailed(argv, answer.code, answer.err)
    return answer


async def capture(
    node: Node, argv: Argv, *, timeout: float = 30, sudo: bool = False, input: bytes | None = None
) -> str:
    """Standard output of a command that only reads and must succeed."""
    return succeeded(await node.run(argv, input=input, timeout=timeout, sudo=sudo, mutates=False), argv).out
