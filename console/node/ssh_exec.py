"""One command on one channel of an open connection, and the budget of such channels.

sshd counts sessions, not commands: the eleventh is refused (MaxSessions 10), and a slot stays taken until the channel has
really closed, some time after it was told to (ENGINEERING 2b, measured). So a place in the budget is given back by the
channel's own end. The exception is a command that was given up: sshd keeps its session until the command ends by itself,
which may be never. It holds no place of ours, and when such sessions fill the server only another connection helps
(measured against OpenSSH 9.2 in tests/node). Forwarded ports are no sessions and need no place.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from console.node.ssh_library import asyncssh

SESSIONS = 6
"""Commands at a time, leaving room for the heartbeat, one file transfer and the operator's own ssh on that connection."""
STREAMS = 4
"""Of these, attached helpers; so two commands can always run."""

GONE = "SSH connection closed"
"""asyncssh's own words for a channel asked of a connection that has ended."""

_GRACE = 2.0

Take = Callable[[bytes, bool], None]
"""Called with each chunk and whether it is stderr's."""


class NotOpened(Exception):
    """The command was not started. `gone`: the connection has ended; else the server would not open one more session."""

    def __init__(self, reason: str, *, gone: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.gone = gone


class Abandoned(Exception):
    """Nobody waits for this channel any more; raised into asyncssh before it sends the command."""


class Exec(asyncssh.SSHClientSession[bytes]):
    """What asyncssh calls back. `opened` says whether the server was asked to run the command."""

    def __init__(self, take: Take, on_open: Callable[[], None], on_give_up: Callable[[Exec], None]) -> None:
        self._take = take
        self._on_open = on_open
        self._on_give_up = on_give_up
        self.channel: asyncssh.SSHClientChannel[bytes] | None = None
        self.opened = False
        self.given_up = False
        self.code: int | None = None
        self.error: Exception | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self.channel = chan
        if self.given_up:
            chan.close()
            raise Abandoned
        self.opened = True
        self._on_open()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._take(data, datatype is not None)

    def eof_received(self) -> bool:
        return True  # the command may close its output and still read its input

    def exit_status_received(self, status: int) -> None:
        self.code = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self.code = 128 + _number(signal)

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        if not self.closed.done():
            self.closed.set_result(None)

    @property
    def ended(self) -> bool:
        """The exit status was seen, and everything the command wrote before it."""
        return self.closed.done() and self.error is None and self.code is not None

    def send(self, data: bytes) -> None:
        """Bytes for stdin; for nobody when the command has ended meanwhile."""
        if self.channel is not None and not self.channel.is_closing() and data:
            self.channel.write(data)

    def end_input(self) -> None:
        if self.channel is not None and not self.channel.is_closing():
            self.channel.write_eof()

    def give_up(self, *, terminate: bool = False) -> None:
        """Nobody waits for the command any more: close the channel, and let another command have its place.

        `terminate` also sends SIGTERM, which OpenSSH before 7.9 ignores. A channel that is not open yet closes before the
        command is sent. asyncssh's own `close` would first wait until the command has taken all its input.
        """
        if self.closed.done() or self.given_up:
            return
        self.given_up = True
        if self.channel is not None:
            if terminate:
                with suppress(OSError):  # the channel is closing already
                    self.channel.terminate()
            self.channel.abort()
        self._on_give_up(self)


def _number(name: str) -> int:
    try:
        return signal.Signals[f"SIG{name}"].value
    except KeyError:
        return 0


class Budget:
    """Places for sessions on one connection."""

    def __init__(self, places: int = SESSIONS, streams: int = STREAMS) -> None:
        self._places = asyncio.Semaphore(places)
        self._streams = asyncio.Semaphore(streams)
        self._opening: set[asyncio.Task[Any]] = set()
        self._held: dict[Exec, list[asyncio.Semaphore]] = {}
        self.leaky = False
        """Commands were given up on this connection: sshd counts each as a session until it ends by itself."""
        self._given_up = 0
        self._taken = 0
        self._ended = 0
        self._one_ended = asyncio.Event()
        self._one_settled = asyncio.Event()

    async def start(
        self, connection: asyncssh.SSHClientConnection, command: str, take: Take, *, stream: bool = False
    ) -> Exec:
        """Start `command`, waiting for a place in the budget. Raises `NotOpened` when it certainly was not started.

        Cancelling this never starts a command later: a channel that opens too late is closed before the command is sent.
        A link lost between the request and its answer leaves a session that is closed with an error: the command may run.
        """
        held = await self._take_places((self._streams, self._places) if stream else (self._places,))
        return await self._begin(connection, command, take, held)

    async def start_heart(self, connection: asyncssh.SSHClientConnection, command: str, take: Take) -> Exec:
        """Start the heartbeat's command, which has a place of its own. Raises `NotOpened`."""
        return await self._begin(connection, command, take, [])

    async def _begin(
        self, connection: asyncssh.SSHClientConnection, command: str, take: Take, held: list[asyncio.Semaphore]
    ) -> Exec:
        session = Exec(take, self._one_more, self._give_up)
        self._held[session] = held
        session.closed.add_done_callback(lambda _: self._closed(session))
        await self._open(connection, command, session)
        return session

    def _closed(self, session: Exec) -> None:
        """The channel of `session` has really closed, or was never opened."""
        self._leave(session)
        if session.given_up:
            self._given_up -= 1
        if session.opened:  # a refused one has freed nothing that another could have
            self._one_more_ended()

    def _give_up(self, session: Exec) -> None:
        self.leaky = True
        self._given_up += 1
        self._leave(session)

    def _leave(self, session: Exec) -> None:
        """Give back what `session` holds, if it still does."""
        held = self._held.pop(session, None)
        if held is not None:
            self._put_back(held)
            self._taken -= session.opened

    def _one_more_ended(self) -> None:
        self._ended += 1
        self._one_ended.set()

    @staticmethod
    def _put_back(held: list[asyncio.Semaphore]) -> None:
        for kind in held:
            kind.release()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for a session that is not a command: a file transfer."""
        held = await self._take_places((self._places,))
        self._one_more()
        try:
            yield
        finally:
            self._put_back(held)
            self._taken -= 1
            self._one_more_ended()

    async def _take_places(self, kinds: tuple[asyncio.Semaphore, ...]) -> list[asyncio.Semaphore]:
        held: list[asyncio.Semaphore] = []
        try:
            for kind in kinds:
                await kind.acquire()
                held.append(kind)
        except asyncio.CancelledError:
            self._put_back(held)
            raise
        return held

    @property
    def ended(self) -> int:
        """How many sessions have ended so far: what `room_again` wants to know of the time before a try."""
        return self._ended

    async def room_again(self, ended_before: int) -> bool:
        """After a refusal: returns True when another try has a chance because a session of ours ended, during the try or
        by now; False when none of ours can be what fills the server, or only such that were given up."""
        while self._ended == ended_before:
            if self._taken:
                self._one_ended.clear()
                await self._one_ended.wait()
            elif self._opening:
                self._one_settled.clear()
                await self._one_settled.wait()
            elif self._given_up:
                return await self._given_up_ended()
            else:
                return False
        return True

    async def _given_up_ended(self) -> bool:
        """A helper that was told to end does so within moments; a command that runs on may do so for hours."""
        self._one_ended.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await self._one_ended.wait()
                return True
        return False

    async def _open(self, connection: asyncssh.SSHClientConnection, command: str, session: Exec) -> None:
        opening = asyncio.ensure_future(connection.create_session(lambda: session, command, encoding=None))
        self._opening.add(opening)
        opening.add_done_callback(lambda _: self._settled(opening, session))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            session.give_up()
            opening.add_done_callback(_seen)
            raise
        except asyncssh.ChannelOpenError as error:
            gone = connection.is_closed() or error.reason == GONE
            if not session.opened:
                raise NotOpened(error.reason, gone=gone) from error
            if not (gone or session.error):
                raise NotOpened(f"the server runs no commands: {error.reason}", gone=False) from error
            session.connection_lost(session.error or error)
        except (asyncssh.Error, OSError) as error:
            if not session.opened:
                raise NotOpened(str(error), gone=True) from error
            session.connection_lost(error)

    def _settled(self, opening: asyncio.Task[Any], session: Exec) -> None:
        self._opening.discard(opening)
        self._one_settled.set()
        if not session.opened and not session.closed.done():
            session.closed.set_result(None)  # what was never opened gives its place back too

    def _one_more(self) -> None:
        self._taken += 1

    async def drained(self) -> None:
        """Returns when no channel is being opened any more; for the end of a connection."""
        await asyncio.gather(*self._opening, return_exceptions=True)


def _seen(opening: asyncio.Task[Any]) -> None:
    if not opening.cancelled():
        opening.exception()
