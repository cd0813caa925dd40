"""A search in a log: it hides nothing, it makes visible, and goes from match to match. A view of its own finds the lines."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from console.errors import UsageError
from console.logs.filters import Filter, expression
from console.logs.view import View

if TYPE_CHECKING:
    from screens.widgets.log_pane import LogPane

NEAR = 2000
"""Matches that are looked at for one that the pane's filter shows."""


class Search:
    """A search for `words` in what `pane` shows, within its window."""

    def __init__(self, pane: LogPane, words: str) -> None:
        self._pane = pane
        self.words = words
        self.view = View(pane.logged, Filter(include=(words,), noise=True), None, pane.window)
        self.found = any_of((words,))

    async def first(self) -> None:
        """Go to the nearest match above the cursor, since what one looks for in a log lies behind one."""
        pane = self._pane
        start = (pane.page.cursor if pane.page.cursor is not None else pane.logged.size) + 1
        while pane.search is self:
            if self._go(self.view.before(start, NEAR), upwards=True):
                return
            if not self.view.work():
                pane.relaunch.say(f"{self.words}: not above the cursor; n looks below it", "warning")
                return
            await asyncio.sleep(0)  # a turn for keys

    def below(self) -> None:
        """Go to the next match."""
        item = self._pane.page.item
        if not self._go(self.view.after(item.last + 1 if item else 0, NEAR), upwards=False):
            self._pane.relaunch.say(f"{self.words}: no match below", "warning")

    def above(self) -> None:
        """Go to the match before."""
        if not self._go(self.view.before(self._pane.page.cursor or 0, NEAR), upwards=True):
            still = "" if self.view.complete else " yet; older lines are still being searched"
            self._pane.relaunch.say(f"{self.words}: no match above{still}", "warning")

    def _go(self, offsets: list[int], *, upwards: bool) -> bool:
        page = self._pane.page
        for offset in reversed(offsets) if upwards else offsets:
            if page.view.shows(offset):
                page.jump(offset)
                self._pane.redraw()
                return True
        return False


def any_of(texts: tuple[str, ...]) -> re.Pattern[str] | None:
    """One expression for several filter texts, for showing what they found."""
    return re.compile("|".join(f"(?:{expression(text)})" for text in texts)) if texts else None


def wrong_expression(text: str) -> str:
    """What is wrong with a typed pattern; empty when nothing is."""
    try:
        expression(text)
    except UsageError as error:
        return f"{error.message}; {error.remedy}"
    return ""
