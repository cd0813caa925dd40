"""The log: a page over a spool or a file, filtered, followed; searched, marked, copied, written, opened in a pager.

`LogPane(source)` draws the source's spool. Only the rows of the page are ever made; a filter is scanned in slices between
key presses, newest lines first, and the page is drawn twice a second at most while lines arrive. The app's timer calls
`beat`; lines are no part of a glance, and a file has none.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.strip import Strip

from console.errors import RelaunchError
from console.live import Glance
from console.logs.filters import Filter, presets, understood
from console.logs.harmless import Harmless, compiled_already, harmless
from console.logs.launches import Launches
from console.logs.linefile import LineFile, LogFile
from console.logs.stamps import newest, since
from console.logs.view import View
from console.settings import own_presets
from console.text import clean, duration
from console.triage.rules import Rules, load_rules
from screens.source import STALE_SECONDS, Moment, Source
from screens.widgets import log_title
from screens.widgets.lines import Pane
from screens.widgets.log_draw import Look
from screens.widgets.log_page import Page
from screens.widgets.log_search import Search, any_of, wrong_expression

if TYPE_CHECKING:
    from console.triage.diagnosis import Cause

BEAT_SECONDS = 0.5
"""Between two draws of lines that arrive: a scroll repaints the pane, so the rate of draws is the cost."""
WINDOWS: dict[str, tuple[str, float | None]] = {
    "0": ("whole log, from its end", None), "1": ("whole log, from its beginning", None), "2": ("last 1 min", 60.0),
    "3": ("last 5 min", 300.0), "4": ("last 15 min", 900.0), "5": ("last 30 min", 1800.0), "6": ("last 1 h", 3600.0),
}  # fmt: skip
SOON_SECONDS = 0.05
"""Between two draws while a page is not full yet."""
TURN_SECONDS = 0.004
"""Work between two chances for keys and timers."""
TURNS = 8
SLICE = 1 << 18


class LogPane(Pane):
    """A window over the log of `source`. Also usable over a plain file, see `screens.log_file`."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", id="log.filter", tooltip="include words, !exclude, /regex/, @preset"),
        Binding("z", "noise", "noise", id="log.noise", tooltip="show or hide lines that are known to be harmless"),
        Binding("Z", "deed('why')", "noise, why", id="log.why", show=False, tooltip="what is hidden as noise, how often, and why"),
        Binding("n", "next", "next match", id="log.next", show=False, tooltip="next match of the search; without one, noise"),
        Binding("N", "previous_match", "previous match", id="log.previous-match", show=False),
        Binding("backslash,ctrl+f", "search", "search", id="log.search", tooltip="find text and hide nothing"),
        Binding("v", "level", "level", id="log.level", tooltip="all, warnings and errors, errors"),
        Binding("a", "deed('process')", "process", id="log.process", show=False, tooltip="one process or rank alone"),
        Binding("e", "deed('stage')", "stage", id="log.stage", show=False, tooltip="one stage of the launch alone"),
        Binding("at", "deed('preset')", "presets", id="log.preset", show=False, tooltip="saved filters"),
        Binding("x,escape", "clear", "clear", id="log.clear", show=False, tooltip="drop search, mark, window, filter, one at a time"),
        *(Binding(key, f"window('{key}')", words, id=f"log.window-{key}", show=False) for key, (words, _) in WINDOWS.items()),
        Binding("p", "deed('launch')", "previous launch", id="log.launch", tooltip="the launch before this one, and back"),
        Binding("full_stop", "to_cause", "to the cause", id="log.cause", show=False, tooltip="the line of the first cause"),
        Binding("s", "follow", "follow", id="log.follow", tooltip="follow the end, or stop"),
        Binding("j,down", "by(1)", "down", id="log.down", show=False),
        Binding("k,up", "by(-1)", "up", id="log.up", show=False),
        Binding("h,left", "side(-1)", "left", id="log.left", show=False),
        Binding("l,right", "side(1)", "right", id="log.right", show=False),
        Binding("space,pagedown", "pages(1)", "page down", id="log.page-down", show=False),
        Binding("pageup", "pages(-1)", "page up", id="log.page-up", show=False),
        Binding("g,home", "first", "first line", id="log.first", show=False),
        Binding("G,end", "last", "last line, follow", id="log.last", show=False),
        Binding("enter", "open_fold", "unfold", id="log.fold", show=False, tooltip="unfold or fold a traceback, or equal lines of ranks"),
        Binding("w", "wrap", "wrap", id="log.wrap", show=False),
        Binding("t", "form", "time stamps", id="log.form", show=False, tooltip="with time; without; lines as they were written"),
        Binding("m", "mark", "mark", id="log.mark", show=False),
        Binding("y", "deed('yank')", "copy", id="log.yank", tooltip="copy the line, the marked lines, or the whole traceback"),
        Binding("Y", "deed('yank_cause')", "copy cause", id="log.yank-cause", show=False),
        Binding("W", "deed('write')", "write", id="log.write", show=False, tooltip="write the shown or the marked lines into a file"),
        Binding("o", "deed('pager')", "pager", id="log.pager", show=False, tooltip="open the shown or the marked lines in $PAGER"),
    ]  # fmt: skip

    def __init__(self, source: Source, *, id: str | None = None, rules: Rules | None = None) -> None:
        super().__init__(id=id)
        self.source = source
        self.logged: LineFile = source.spool
        self.rules = rules
        self.wanted = Filter()
        self.window: tuple[int, int | None] = (0, None)
        self.window_words = ""
        self.page = Page(self.logged, View(self.logged, self.wanted))
        self.launches: Launches | None = None
        self.noise: Harmless | None = None
        self.glance = Glance()
        self.moment = Moment(0.0, 0.0)
        self._told: object = None
        self.search: Search | None = None
        self._asked: re.Pattern[str] | None = None
        self.form, self.wrap, self.left = 0, False, 0
        self._generation = 0
        self._drawn: object = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        if self.rules is not None:
            self.noise = compiled_already(self.rules)
        self.apply()
        if self.noise is None:
            self.call_after_refresh(self._begin_noise)  # the first page comes first
        self.relaunch.beats.append(self.beat)

    def on_unmount(self) -> None:
        if self.beat in self.relaunch.beats:
            self.relaunch.beats.remove(self.beat)

    def _begin_noise(self) -> None:
        self.begin("noise", LogPane._learn_noise)

    async def _learn_noise(self) -> None:
        """Compile the noise patterns beside the loop; until then nothing is hidden."""

        def compile_rules() -> tuple[Rules, Harmless]:
            rules = self.rules or load_rules()
            return rules, harmless(rules)

        self.rules, self.noise = await asyncio.to_thread(compile_rules)
        self.apply()

    def show(self, glance: Glance, moment: Moment) -> None:
        """Take over what is known of the log beside its lines; redraws only when that moved."""
        self.glance, self.moment = glance, moment
        log = glance.log
        told = (log.unit, log.trouble, log.following, self.cause(), self.age(), glance.link.up)
        if told != self._told:
            self._told = told
            self.redraw()

    def beat(self) -> None:
        """Twice a second: look for new lines, and draw when something moved."""
        self.logged.poll()
        if isinstance(self.logged, LogFile) and self.logged.generation != self._generation:
            self._generation = self.logged.generation
            self.relaunch.say("the file was replaced or cut short; it is read anew", "warning")
            self.page = Page(self.logged, self.page.view)
            self.window, self.window_words, self.launches = (0, None), "", None
            self.apply()
            return
        if self.search is not None:
            self.search.view.work()
        more = self.page.view.work()
        if more and not self._scanning:
            self._scan()
        self.draw_if_moved()

    def draw_if_moved(self) -> None:
        """Draw when lines were found or arrived since the last draw."""
        now = (self.logged.version, self.page.view.version, self.search.view.version if self.search else None)
        if now != self._drawn:
            self._drawn = now
            self.redraw()

    def apply(self) -> None:
        """Make the view anew for the filter and window that are wanted, and scan it."""
        self.page.use(View(self.logged, self.wanted, self.noise, self.window))
        self._asked = any_of(self.wanted.include)
        self._scan()
        self.redraw()

    @property
    def _scanning(self) -> bool:
        return any(worker.group == "scan" and worker.node is self and not worker.is_finished for worker in self.workers)

    def _scan(self) -> None:
        self.begin("scan", LogPane._scanned)

    async def _scanned(self) -> None:
        """Scan in slices, giving way to keys between them; then search, then count the log's lines."""
        loop = asyncio.get_running_loop()
        drawn = loop.time()
        for work in (self.page.view.work, self.search.view.work if self.search else None, self.logged.work):
            while work is not None and _for_a_turn(work):
                filled = len(self.page.view) >= self.size.height
                if loop.time() - drawn >= (BEAT_SECONDS if filled else SOON_SECONDS):
                    drawn = loop.time()
                    self.draw_if_moved()
                for _ in range(TURNS):  # a key passes through several queues before it does something
                    await asyncio.sleep(0)
        self.redraw()

    async def settled(self) -> None:
        """Wait until everything that was asked for is scanned and drawn."""
        await self.app.workers.wait_for_complete([worker for worker in self.workers if worker.node is self])

    # -- drawing ------------------------------------------------------------------------------------------------------

    def rows(self, width: int, height: int) -> list[Strip]:
        rows = [log_title.title(self, width)]
        cause = self.cause()
        if cause is not None and height > 5:
            rows.append(log_title.cause_row(self, cause, width))
        found = self.search.found if self.search else None
        look = Look(width, self.glyphs, self.form, self.wrap, self.left, found, self._asked)
        body = self.page.rows(look, height - len(rows), active=self.has_focus)
        return [*rows, *(body or log_title.nothing(self, width))]

    def age(self) -> str | None:
        """How old the log is, where it can be old: not followed any more."""
        log = self.glance.log
        age = self.moment.age(log.seen)
        if log.following or age is None or age <= STALE_SECONDS or isinstance(self.logged, LogFile):
            return None
        return duration(int(age))

    def cause(self) -> Cause | None:
        """The first cause of a launch that failed or hangs."""
        diagnosis = self.glance.log.diagnosis
        if diagnosis is None or diagnosis.outcome not in ("failed", "hung"):
            return None
        return diagnosis.cause

    # -- moving -------------------------------------------------------------------------------------------------------

    def action_by(self, count: int) -> None:
        self.page.by(count)
        self.redraw()

    def action_pages(self, count: int) -> None:
        self.page.pages(count)
        self.redraw()

    def action_side(self, count: int) -> None:
        self.left = 0 if self.wrap else max(0, self.left + count * max(8, self.size.width // 4))
        self.redraw()

    def action_first(self) -> None:
        self.page.first()
        self.redraw()

    def action_last(self) -> None:
        self.page.last()
        self.redraw()

    def action_follow(self) -> None:
        if self.page.follow:
            self.page.release()
        else:
            self.page.last()
        self.redraw()

    def action_wrap(self) -> None:
        self.wrap, self.left = not self.wrap, 0
        self.redraw()

    def action_form(self) -> None:
        self.form = (self.form + 1) % 3
        self.redraw()

    def action_mark(self) -> None:
        self.relaunch.say(self.page.toggle_mark())
        self.redraw()

    def action_open_fold(self) -> None:
        item = self.page.item
        if item is None or not self.page.items.toggle(item):
            return
        self.page.release()
        fold = self.page.folds.of(item.offset)
        self.page.cursor = item.offset if fold is None else fold.head
        if self.page.cursor < self.page.top:
            self.page.top, self.page.skip = self.page.cursor, 0
        self.redraw()

    # -- what is shown ------------------------------------------------------------------------------------------------

    def want(self, wanted: Filter) -> None:
        """Show the log through another filter."""
        if wanted != self.wanted:
            self.wanted = wanted
            self.apply()

    def see(self, window: tuple[int, int | None], words: str) -> None:
        """Show a part of the log; `words` name it in the title, empty for the whole."""
        self.window, self.window_words = window, words
        self.apply()

    def action_noise(self) -> None:
        self.want(replace(self.wanted, noise=not self.wanted.noise))

    def action_level(self) -> None:
        order = ("", "warning", "error")
        self.want(replace(self.wanted, level=order[(order.index(self.wanted.level) + 1) % 3], name=""))  # type: ignore[arg-type]

    def action_window(self, key: str) -> None:
        words, seconds = WINDOWS[key]
        if seconds is None:
            self.see((0, None), "")
            self.page.last() if key == "0" else self.page.first()
            self.redraw()
            return
        now = newest(self.logged) if isinstance(self.logged, LogFile) else self.moment.wall
        begin = since(self.logged, now - seconds) if now else None
        if begin is None:
            self.relaunch.say("these lines tell no time: no window can be cut", "warning")
            return
        self.page.last()
        self.see((begin, None), words if not isinstance(self.logged, LogFile) else f"{words} of the file")

    def action_clear(self) -> None:
        if self.search is not None:
            self.search = None
        elif self.page.mark is not None:
            self.page.mark = None
        elif self.window_words:
            self.see((0, None), "")
        elif self.wanted != Filter():
            self.want(Filter())
        self.redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Esc goes back from here when there is nothing to clear."""
        if action == "clear":
            return bool(self.search or self.page.mark or self.window_words or self.wanted != Filter())
        return True

    def action_filter(self) -> None:
        from screens.filter_bar import FilterBar

        words = [f"@{name}" for name in presets(own_presets())]
        text = " ".join(_typed(self.wanted))
        bar = FilterBar("filter", text, self.wrong_filter, words)

        def typed(text: str | None) -> None:
            self._filtered(text)
            if bar.keep:
                self.action_deed("save_preset")

        self.app.push_screen(bar, typed)

    def wrong_filter(self, text: str) -> str:
        """What is wrong with a typed filter; empty when nothing is."""
        try:
            self._parsed(text)
        except RelaunchError as error:
            return f"{error.message}; {error.remedy}" if error.remedy else error.message
        return ""

    def _parsed(self, text: str) -> Filter:
        return understood(text, replace(self.wanted, reason=""), own_presets())

    def _filtered(self, text: str | None) -> None:
        if text is not None:
            self.want(self._parsed(text))

    # -- search ---------------------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        from screens.filter_bar import FilterBar

        def typed(text: str | None) -> None:
            if text is not None:
                self.search_for(text)

        self.app.push_screen(FilterBar("search", self.search.words if self.search else "", wrong_expression), typed)

    def search_for(self, text: str) -> None:
        """Make a text visible and go to the nearest line above that has it; an empty one ends the search."""
        self.search = Search(self, text) if text else None
        self.redraw()
        if self.search is not None:
            self.begin("search", LogPane._search_up)

    async def _search_up(self) -> None:
        if self.search is not None:
            await self.search.first()
            self._scan()

    def action_next(self) -> None:
        if self.search is None:
            self.action_noise()
        else:
            self.search.below()

    def action_previous_match(self) -> None:
        if self.search is None:
            self.relaunch.say("nothing is searched for; \\ begins a search", "warning")
        else:
            self.search.above()

    def action_to_cause(self) -> None:
        cause = self.cause()
        if cause is None:
            self.relaunch.say("no failure is known in this log", "warning")
        else:
            self.search_for(max(clean(cause.text).splitlines() or [""], key=len)[:120].strip())

    # -- panels, copying, writing, the pager ---------------------------------------------------------------------------

    def action_deed(self, name: str) -> None:
        from screens.log_deeds import DEEDS

        self.begin(name, DEEDS[name])

    def begin(self, group: str, deed: Callable[[LogPane], Coroutine[Any, Any, None]]) -> None:
        """Do something that takes time, beside the keys; the same deed begun again replaces it. What fails is said."""

        async def run() -> None:
            try:
                await deed(self)
            except RelaunchError as error:
                self.relaunch.say(f"{error.message}; {error.remedy}" if error.remedy else error.message, "error")
            except OSError as error:
                self.relaunch.say(f"log: {error}", "error")

        self.run_worker(run, group=group, exclusive=True)  # type: ignore[arg-type]


def _for_a_turn(work: Callable[[int], bool]) -> bool:
    """Call `work` for a few milliseconds; True while there is more."""
    until = time.monotonic() + TURN_SECONDS
    while more := work(SLICE):
        if time.monotonic() >= until:
            break
    return more


def _typed(wanted: Filter) -> list[str]:
    """A filter's patterns as they would be typed."""
    words = [*wanted.include, *(f"!{item}" for item in wanted.exclude)]
    return [f'"{word}"' if " " in word and "/" not in word else word for word in words]
