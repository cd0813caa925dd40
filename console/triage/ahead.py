"""The next block is searched while Python reads the one before.

Hyperscan works without the interpreter's lock, so that on two processors a long log takes little more than the search alone.
One thread, which ends with the process or with `close`; answers come in the order in which they were asked for. A search
needs memory of the database that two threads cannot share, so whoever has an `Ahead` lets it do every search.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from console.triage.matcher import Hits


class Ahead:
    """`ask` for a block's hits, and `answer` later."""

    def __init__(self, scan: Callable[[bytes], Hits]) -> None:
        self._scan = scan
        self._blocks: SimpleQueue[bytes | None] = SimpleQueue()
        self._answers: SimpleQueue[Hits | BaseException] = SimpleQueue()
        self._early: deque[Hits | BaseException] = deque()
        self._asked = 0
        """Blocks whose answer has not been taken out of the queue."""
        self._thread = threading.Thread(target=self._work, name="relaunch-scan", daemon=True)
        self._thread.start()

    def ask(self, block: bytes) -> None:
        self._blocks.put(block)
        self._asked += 1

    def answer(self) -> Hits:
        """The hits of the block that was asked for first; waits for them. Raises what the search raised."""
        found = self._early.popleft() if self._early else self._next()
        if isinstance(found, BaseException):
            raise found
        return found

    def now(self, block: bytes) -> Hits:
        """The hits of a block, out of turn."""
        while self._asked:
            self._early.append(self._next())
        return self._scan(block)

    def close(self) -> None:
        self._blocks.put(None)
        self._thread.join()

    def _next(self) -> Hits | BaseException:
        found = self._answers.get()
        self._asked -= 1
        return found

    def _work(self) -> None:
        while (block := self._blocks.get()) is not None:
            try:
                self._answers.put(self._scan(block))
            except BaseException as error:
                self._answers.put(error)
