"""What surrounds a walk that changes a node: the audit's step, evidence before clean-up, the dead man's switch, the lock."""

from __future__ import annotations

import contextlib
import time

from console.deploy import deadman, evidence
from console.deploy.audit import Audited
from console.deploy.lock import Owner, acquire
from console.deploy.run import Transaction
from console.deploy.step import Context
from console.errors import RelaunchError
from console.events import Noted
from console.node.base import Node


class NodeTransaction(Transaction):
    """`node` is the bare node of the run, `audited` the one that its steps use, `owner` who holds the lock."""

    def __init__(self, node: Node, audited: Audited, owner: Owner) -> None:
        self._node = node
        self._audited = audited
        self._owner = owner

    def at(self, step: str) -> None:
        self._audited.step = step

    async def capture(self, ctx: Context, step: str, error: RelaunchError) -> None:
        with contextlib.suppress(RelaunchError):  # evidence must never hide the failure
            await evidence.capture(ctx, step, error)

    async def overtaken(self, ctx: Context) -> RelaunchError | None:
        return await deadman.overtaken(ctx)

    async def settle(self, ctx: Context) -> None:
        try:
            await deadman.disarm(ctx)
        except RelaunchError as error:
            ctx.emit(Noted(time=time.time(), text=f"the dead man's switch stays armed: {error.message}"))

    async def rebooted(self, ctx: Context) -> None:
        """A lock of an earlier boot is anybody's: take it again. The switch waits on, or has acted, which ends the run."""
        await acquire(self._node, ctx.facts, self._owner)
        await deadman.heard_again(ctx, self._node)
