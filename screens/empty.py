"""The source of a console that is connected to nothing: what the first-use screen stands on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from console.deploy.store import Store
from console.errors import Unreachable
from console.live import Glance
from console.logs.spool import Spool
from console.node.base import LinkState

if TYPE_CHECKING:
    from console.deploy.lock import Owner
    from console.deploy.script import Script
    from console.engine import RunOptions


class EmptySource:
    """Nothing is known and nothing can be started."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._folder = tempfile.TemporaryDirectory(prefix="relaunch-")
        self.spool = Spool(Path(self._folder.name) / "empty.log")
        self._glance = Glance(link=LinkState(False))

    def glance(self) -> Glance:
        return self._glance

    def start(self, script: Script, options: RunOptions) -> None:
        raise Unreachable("no node is chosen", "choose one here, or open `relaunch --node user@host`")

    async def interrupt(self) -> None:
        return None

    async def look(self) -> None:
        return None

    async def unlock(self, owner: Owner) -> bool:
        raise Unreachable("no node is chosen", "choose one here, or open `relaunch --node user@host`")
