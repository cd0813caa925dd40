"""A connection that is kept while it is wanted: reconnect with jittered backoff, an end-to-end heartbeat, a generation.

Nothing is replayed. What was under way when a connection broke is told that it is lost; the next call waits for the
reconnect, for a bounded time, and goes on. Whoever follows something remote remembers `generation`, sees that it moved,
and looks at the node again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from console.errors import AuthenticationFailed, HostKeyRejected, RelaunchError, Unreachable
from console.node.base import LinkState
from console.node.prompts import Prompts
from console.node.quoting import command_line
from console.node.ssh_exec import Budget, Exec, NotOpened
from console.node.ssh_library import asyncssh
from console.node.ssh_login import Passwords, Timing, end_reason, logged_in
from console.node.target import Target
from console.text import clean

_AUTH_TRIES = 5
"""Refused logins in a row before a reconnect gives up: a booting machine may refuse at first (pam_nologin), and a login
that is refused for ever must not run into a lock-out."""


class Link:
    """`open`, use `connection`, `close`. One per node session."""

    def __init__(self, target: Target, prompts: Prompts | None, timing: Timing) -> None:
        self.target = target
        self.timing = timing
        self.generation = 0
        """Counts the connections; 1 is the first."""
        self.failure: RelaunchError | None = None
        """Why no reconnect is tried any more."""
        self._prompts = prompts
        self._passwords = Passwords()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._budget = Budget()
        self._state = LinkState(up=False, reason="not connected yet")
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stack = AsyncExitStack()
        self._keeper: asyncio.Task[None] | None = None
        self._pulsing: asyncio.Task[None] | None = None
        self._heart: Exec | None = None
        self._watchers: list[Callable[[LinkState], None]] = []

    async def open(self) -> None:
        """The first login; its failure is the caller's. Raises what `logged_in` raises."""
        self._keeper = asyncio.ensure_future(self._keep(await self._login(self._prompts)))

    async def close(self) -> None:
        """End the link and everything that runs for it."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._down("closed")
        await self._stack.aclose()
        await self._budget.drained()

    @property
    def user(self) -> str:
        """The name that was logged in as."""
        name = self._connection.get_extra_info("username") if self._connection is not None else self.target.user
        return str(name or "")

    @property
    def state(self) -> LinkState:
        return self._state

    def watch(self, watcher: Callable[[LinkState], None]) -> None:
        """Have `watcher` called with each new state, from the event loop; it must not block."""
        self._watchers.append(watcher)

    async def connection(self, within: float) -> tuple[asyncssh.SSHClientConnection, Budget]:
        """The open connection and its budget, waiting `within` seconds at most for a reconnect. Raises `Unreachable`."""
        try:
            async with asyncio.timeout(within):
                while self._connection is None:
                    if self.failure is not None:
                        raise self.failure
                    self._hurry.set()
                    await self._next_change()
        except TimeoutError:
            raise Unreachable(
                f"{self.target.name}: the link is down ({self._state.reason}) and did not come back in {within:g} s"
            ) from None
        return self._connection, self._budget

    async def up_again(self, generation: int) -> None:
        """Returns once there is a newer connection than `generation`. Raises why there will never be one."""
        while self.generation <= generation or self._connection is None:
            if self.failure is not None:
                raise self.failure
            await self._next_change()

    def gone(self, connection: asyncssh.SSHClientConnection) -> None:
        """`connection` turned out to have ended, before its own end was told: the next call waits for a new one."""
        if connection is self._connection:
            self._down(self._state.reason or end_reason(connection))

    def abort(self, reason: str) -> None:
        """Give up a connection that is no use any more; the reconnect begins."""
        if self._connection is not None:
            connection = self._connection
            self._down(reason)
            connection.abort()

    async def _next_change(self) -> None:
        await self._changed.wait()

    async def _login(self, prompts: Prompts | None) -> asyncssh.SSHClientConnection:
        connection = await self._stack.enter_async_context(
            logged_in(self.target, prompts, self.timing, self._passwords)
        )
        self._connection, self._budget = connection, Budget()
        self.generation += 1
        self._set(LinkState(up=True))
        return connection

    async def _keep(self, connection: asyncssh.SSHClientConnection) -> None:
        """Until cancelled, or until a reconnect can never work."""
        while True:
            await self._use(connection)
            self._down(self._state.reason or end_reason(connection))
            await self._stack.aclose()
            await self._budget.drained()
            self._stack = AsyncExitStack()
            try:
                connection = await self._reconnect()
            except RelaunchError as error:
                self.failure = error
                self._set(LinkState(up=False, reason=error.message))
                return

    async def _use(self, connection: asyncssh.SSHClientConnection) -> None:
        """Beat until the connection has ended."""
        self._heart = None
        self._pulsing = pulsing = asyncio.ensure_future(self._pulse(connection, self._budget))
        try:
            await connection.wait_closed()
        finally:
            pulsing.cancel()
            await asyncio.gather(pulsing, return_exceptions=True)

    async def spare_session(self) -> bool:
        """Give up the heartbeat, for a server that allows very few sessions. False when that was done before.

        Returns when its session has ended, so that another can take the place."""
        pulsing, self._pulsing = self._pulsing, None
        if pulsing is None:
            return False
        pulsing.cancel()
        await asyncio.gather(pulsing, return_exceptions=True)
        if self._heart is not None:
            await asyncio.shield(self._heart.closed)
        return True

    async def _reconnect(self) -> asyncssh.SSHClientConnection:
        """Try until it works; full-jitter backoff, shortened while somebody waits. Raises what makes trying useless."""
        refused = 0
        attempt = 0
        while True:
            # A pause between tries, not a wait for an effect: that another try may work cannot be seen from here.
            most = min(self.timing.backoff_most, self.timing.backoff_first * 2**attempt)
            await self._pause(random.uniform(0, most))  # noqa: S311 -- spreads clients, guards nothing
            attempt = min(attempt + 1, 16)
            try:
                return await self._login(None)
            except AuthenticationFailed as error:
                refused += 1
                if refused == _AUTH_TRIES:
                    raise
                self._set(LinkState(up=False, reason=error.message))
            except HostKeyRejected:
                raise  # a key that is wrong now will not be right in a second
            except Unreachable as error:
                self._set(LinkState(up=False, reason=error.message))

    async def _pause(self, seconds: float) -> None:
        least = min(seconds, self.timing.backoff_first)
        await asyncio.sleep(least)
        self._hurry.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - least):
                await self._hurry.wait()

    async def _pulse(self, connection: asyncssh.SSHClientConnection, budget: Budget) -> None:
        """An end-to-end heartbeat: a line through a `cat` on the node and back, over the whole way a command takes.

        Keep-alives end in sshd. This one also notices a node whose processes do not run, and measures what an operator
        feels. One process for the whole session; a server that refuses it leaves the latency unknown.
        """
        await asyncio.sleep(self.timing.beat_first)
        back = asyncio.Event()
        try:
            session = await budget.start_heart(connection, command_line(("cat",)), lambda data, err: back.set())
        except NotOpened:
            return
        self._heart = session
        try:
            while not session.closed.done():
                await self._beat(session, back)
                await asyncio.sleep(self.timing.beat_every)
        finally:
            session.give_up()

    async def _beat(self, session: Exec, back: asyncio.Event) -> None:
        back.clear()
        begun = time.monotonic()
        session.send(b"\n")
        while not session.closed.done() and self._connection is not None:
            waited = time.monotonic() - begun
            left = self.timing.beat_limit - waited
            if left <= 0:
                self.abort(f"the node did not answer for {waited:.0f} s")
                return
            try:
                async with asyncio.timeout(min(left, self.timing.beat_every)):
                    await back.wait()
                state = LinkState(up=True, latency_ms=(time.monotonic() - begun) * 1000)
            except TimeoutError:
                state = LinkState(up=True, reason=f"no answer for {time.monotonic() - begun:.0f} s")
            if self._connection is not None:  # else it went meanwhile, and that is the newer state
                self._set(state)
            if state.latency_ms is not None:
                return

    def _down(self, reason: str) -> None:
        self._connection = None
        self._set(LinkState(up=False, reason=clean(reason)))

    def _set(self, state: LinkState) -> None:
        self._state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for watcher in self._watchers:
            watcher(state)
