"""Where one is in a log: what stands at the top, the cursor, the marks, and whether the end is followed. No widget.

Places are offsets, never row numbers, so that nothing jumps while older lines are still being found or new ones arrive.
Following ends with any movement upwards, and begins again only when it is asked for.
"""

from __future__ import annotations

from textual.strip import Strip

from console.logs.folds import Folds
from console.logs.linefile import LineFile
from console.logs.view import View
from screens.widgets.log_draw import Look, draw
from screens.widgets.log_items import Item, Items

COUNTED = 1000
"""New lines below are counted up to here."""


class Page:
    """A page over a view of `log`. `rows` draws it; everything else moves it."""

    def __init__(self, log: LineFile, view: View) -> None:
        self.log = log
        self.view = view
        self.folds = Folds(log)
        self.items = Items(view, self.folds)
        self.follow = True
        self.top = 0
        self.skip = 0
        """Rows of the top item that are above the page: a wrapped line may be longer than it."""
        self.cursor: int | None = None
        self.mark: tuple[int, int | None] | None = None
        self._released = 0
        self._at_first = False
        self._height = 1
        self._look: Look | None = None

    def use(self, view: View) -> None:
        """Show another view of the same log; the cursor stays with its line as far as that is shown."""
        opened = self.items.opened
        self.view = view
        self.items = Items(view, self.folds)
        self.items.opened = opened
        if not self.follow and self.cursor is not None:
            self.jump(self.cursor)

    @property
    def item(self) -> Item | None:
        """The item under the cursor."""
        return None if self.cursor is None else self.items.at(self.cursor)

    @property
    def new_below(self) -> int:
        """Shown lines that came since following ended, `COUNTED` at most."""
        return 0 if self.follow else len(self.view.after(self._released, COUNTED))

    def rows(self, look: Look, height: int, *, active: bool) -> list[Strip]:
        """The page, in `height` rows at most."""
        self._look, self._height = look, max(1, height)
        if self.follow:
            return self._last(look, height, active)
        if self._at_first:
            self.top = self.cursor = next(iter(self.view.after(0, 1)), 0)
            self.skip = 0
        rows = self._from_top(look, height, active)
        if len(rows) < height:  # the end came into sight: fill the page
            top, skip = self._place_before(self.log.size + 1)
            if top is not None and top < self.top:
                self.top, self.skip = top, skip
                rows = self._from_top(look, height, active)
        return rows

    def _from_top(self, look: Look, height: int, active: bool) -> list[Strip]:
        rows: list[Strip] = []
        for item in self.items.after(self.top, height):
            rows += self._draw(item, look, active)[self.skip if item.offset == self.top else 0 :]
            if len(rows) >= height:
                break
        return rows[:height]

    def by(self, count: int) -> None:
        """Move the cursor by items, over one that is longer than the page by rows; upwards ends following."""
        if count > 0 and self.follow:
            return
        if count < 0:
            start = self.cursor if self.cursor is not None else self.log.size + 1
            self.release()
            if self.skip and self.cursor == self.top:
                self.skip -= 1
                return
            before = self.items.before(start, -count)
            if before:
                self.cursor = before[0].offset
                if self.cursor < self.top:
                    self._stand(before[0])
            return
        self._at_first = False
        if self.cursor == self.top and self._hangs_over():
            self.skip += 1
            return
        after = self.items.after(self.cursor or 0, count + 1)
        if after:
            self.cursor = after[-1].offset
            self._reveal()

    def pages(self, count: int) -> None:
        """Move by pages, one row of overlap at least."""
        step = max(1, self._height - 1)
        if count < 0:
            self.release()
            if self.skip:
                self.skip = max(0, self.skip - step)
            else:
                top, skip = self._place_before(self.top, step)
                self.top, self.skip = (self.top, 0) if top is None else (top, skip)
            self.cursor = self.top
            return
        if self.follow:
            return
        self._at_first = False
        if self._hangs_over():
            self.skip += step
            self.cursor = self.top
            return
        used, last = -self.skip, None
        for item in self.items.after(self.top, self._height + 1):
            if used >= self._height and last is not None:
                break
            used += self._size(item)
            if item.offset != self.top or last is not None:
                last = item
            if used > self._height and last is not None:
                break
        if last is not None:
            self.top, self.skip, self.cursor = last.offset, 0, last.offset
        end, skip = self._place_before(self.log.size + 1)
        if end is not None and end <= self.top:
            self.top, self.skip = end, skip
            self.cursor = self.items.before(self.log.size + 1, 1)[-1].offset

    def first(self) -> None:
        """To the first shown line, also while older ones are still being found."""
        self.release()
        self._at_first = True

    def last(self) -> None:
        """To the end, and follow it."""
        self.follow = True
        self._at_first = False

    def jump(self, offset: int) -> None:
        """Put the cursor on the line at `offset` or the next shown one, in the upper third of the page; unfolds it."""
        self.release()
        fold = self.folds.of(offset)
        if fold is not None and fold.role == "frame":
            self.items.opened.add(fold.head)
        item = self.items.at(offset) or next(iter(self.items.before(offset, 1)), None)
        if item is None:
            return
        self.cursor = item.offset
        above = self.items.before(item.offset, max(0, self._height // 3))
        self.top, self.skip = above[0].offset if above else item.offset, 0
        self._reveal()

    def release(self) -> None:
        """Stop following; the page stays where it is."""
        if self.follow:
            self.follow = False
            self._released = self.log.size
        self._at_first = False

    def toggle_mark(self) -> str:
        """Begin, end or remove the marked range; what was done."""
        if self.cursor is None:
            return "nothing to mark"
        self.release()
        if self.mark is None:
            self.mark = (self.cursor, None)
            return "mark begins here; m again ends it"
        first, last = self.mark
        if last is None:
            self.mark = (min(first, self.cursor), max(first, self.cursor))
            return f"{len(self.marked_lines())} lines marked; y copies, W writes, o opens them, m removes the mark"
        self.mark = None
        return "mark removed"

    def marked_lines(self, most: int = 1_000_000) -> list[int]:
        """Offsets of the shown lines within the mark; with its end still open, up to the cursor."""
        if self.mark is None:
            return []
        first, last = self.mark
        low, high = sorted((first, self.cursor or first)) if last is None else (first, last)
        final = self.items.at(high)
        high = final.last if final else high
        return [offset for offset in self.view.after(low, most) if offset <= high]

    def _last(self, look: Look, height: int, active: bool) -> list[Strip]:
        items = self.items.before(self.log.size + 1, height)
        self.cursor = items[-1].offset if items else None
        rows: list[Strip] = []
        for item in reversed(items):
            rows[:0] = self._draw(item, look, active)
            self.top = item.offset
            if len(rows) >= height:
                break
        self.skip = max(0, len(rows) - height)
        return rows[self.skip :]

    def _draw(self, item: Item, look: Look, active: bool) -> list[Strip]:
        here = self.cursor is not None and item.offset <= self.cursor <= item.last
        return draw(item, look, came=self.log.time_of(item.offset), cursor=active and here, marked=self._marked(item))

    def _marked(self, item: Item) -> bool:
        if self.mark is None:
            return False
        first, last = self.mark
        low, high = sorted((first, self.cursor or first)) if last is None else (first, last)
        return low <= item.offset <= high

    def _stand(self, item: Item) -> None:
        """Put an item at the top, its last rows where it is longer than the page."""
        self.top, self.skip = item.offset, max(0, self._size(item) - self._height)

    def _hangs_over(self) -> bool:
        """Whether the top item goes on below the page."""
        item = self.items.at(self.top)
        return item is not None and item.offset == self.top and self._size(item) - self.skip > self._height

    def _reveal(self) -> None:
        """Scroll down so far that the cursor's item is on the page, its first rows where it is longer."""
        if self.cursor is None:
            return
        used = -self.skip
        for item in self.items.after(self.top, self._height + 1):
            size = self._size(item)
            if item.offset >= self.cursor:
                if used + size > self._height:
                    break
                return
            used += size
            if used > self._height:
                break
        here = self.items.at(self.cursor)
        if here is not None and self._size(here) >= self._height:
            self.top, self.skip = self.cursor, 0
            return
        top, skip = self._place_before(self.cursor + 1)
        if top is not None and (top, skip) > (self.top, self.skip):
            self.top, self.skip = top, skip

    def _place_before(self, offset: int, height: int | None = None) -> tuple[int | None, int]:
        """(top, skip) of a page whose last row is the last one before `offset`."""
        height = self._height if height is None else height
        used, top = 0, None
        for item in reversed(self.items.before(offset, height)):
            used += self._size(item)
            top = item.offset
            if used >= height:
                break
        return top, max(0, used - height)

    def _size(self, item: Item) -> int:
        if self._look is None or not self._look.wrap:
            return 1
        return len(draw(item, self._look, came=None, cursor=False, marked=False))
