"""The log: a page over a spool or a file, filtered, followed; searched, marked, copied, written, opened in a pager.

`LogPane(source)` draws the source's spool. Only the rows of the page are ever made; a filter is scanned in slices between
key presses, newest lines first, and the page is drawn twice a second at most while lines arrive.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.strip import Strip

from console.errors import RelaunchError, UsageError
from console.live import Glance
from console.logs.filters import Filter, expression, load_presets, parse
from console.logs.harmless import Harmless, compiled_already, harmless
from console.logs.launches import Launches
from console.logs.linefile import LineFile, LogFile
from console.logs.stamps import newest, since
from console.logs.view import View
from console.text import clean, duration
from console.triage.rules import Rules, load_rules
from screens.source import STALE_SECONDS, Moment, Source
from screens.widgets.lines import Pane, Part, fit, line
from screens.widgets.log_draw import Look
from screens.widgets.log_page import COUNTED, Page

if TYPE_CHECKING:
    from console.triage.diagnosis import Cause

BEAT_SECONDS = 0.5
"""Between two draws of lines that arrive: a scroll repaints the pane, so the rate of draws is the cost."""
WINDOWS: dict[str, tuple[str, float | None]] = {
    "0": ("whole log, from its end", None), "1": ("whole log, from its beginning", None), "2": ("last 1 min", 60.0),
    "3": ("last 5 min", 300.0), "4": ("last 15 min", 900.0), "5": ("last 30 min", 1800.0), "6": ("last 1 h", 3600.0),
}  # fmt: skip
SLICES = 4
"""Slices of a megabyte per turn of the loop."""


class LogPane(Pane):
    """A window over the log of `source`. Also usable over a plain file, see `screens.log_file`."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", id="log.filter", tooltip="include words, !exclude, /regex/, @preset"),
        Binding("z", "noise", "noise", id="log.noise", tooltip="show or hide lines that are known to be harmless"),
        Binding("Z", "why", "noise, why", id="log.why", show=False, tooltip="what is hidden as noise, how often, and why"),
        Binding("n", "next", "next match", id="log.next", show=False, tooltip="next match of the search; without one, noise"),
        Binding("N", "previous_match", "previous match", id="log.previous-match", show=False),
        Binding("backslash,ctrl+f", "search", "search", id="log.search", tooltip="find text and hide nothing"),
        Binding("v", "level", "level", id="log.level", tooltip="all, warnings and errors, errors"),
        Binding("a", "process", "process", id="log.process", show=False, tooltip="one process or rank alone"),
        Binding("e", "stage", "stage", id="log.stage", show=False, tooltip="one stage of the launch alone"),
        Binding("at", "preset", "presets", id="log.preset", show=False, tooltip="saved filters"),
        Binding("x,escape", "clear", "clear", id="log.clear", show=False, tooltip="drop search, mark, window, filter, one at a time"),
        *(Binding(key, f"window('{key}')", words, id=f"log.window-{key}", show=False) for key, (words, _) in WINDOWS.items()),
        Binding("p", "launch", "previous launch", id="log.launch", tooltip="the launch before this one, and back"),
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
        Binding("y", "yank", "copy", id="log.yank", tooltip="copy the line, the marked lines, or the whole traceback"),
        Binding("Y", "yank_cause", "copy cause", id="log.yank-cause", show=False),
        Binding("W", "write", "write", id="log.write", show=False, tooltip="write the shown or the marked lines into a file"),
        Binding("o", "pager", "pager", id="log.pager", show=False, tooltip="open the shown or the marked lines in $PAGER"),
    ]  # fmt: skip

    def __init__(self, source: Source, *, id: str | None = None, rules: Rules | None = None) -> None:
        super().__init__(id=id)
        self.source = source
        self.log: LineFile = source.spool
        self.rules = rules
        self.wanted = Filter()
        self.window: tuple[int, int | None] = (0, None)
        self.window_words = ""
        self.page = Page(self.log, View(self.log, self.wanted))
        self.launches: Launches | None = None
        self._noise: Harmless | None = None
        self._glance = Glance()
        self._moment = Moment(0.0, 0.0)
        self._told: object = None
        self._search: View | None = None
        self._found: re.Pattern[str] | None = None
        self._asked: re.Pattern[str] | None = None
        self._words = ""
        self._form, self._wrap, self._left = 0, False, 0
        self._generation = 0
        self._drawn: object = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        if self.rules is not None:
            self._noise = compiled_already(self.rules)
        if self._noise is None:
            self.run_worker(self._learn_noise(), group="noise", exit_on_error=False)
        self.apply()
        self.set_interval(BEAT_SECONDS, self.beat)

    async def _learn_noise(self) -> None:
        """Compile the noise patterns beside the loop; until then nothing is hidden."""

        def compile_rules() -> tuple[Rules, Harmless]:
            rules = self.rules or load_rules()
            return rules, harmless(rules)

        self.rules, self._noise = await asyncio.to_thread(compile_rules)
        self.apply()

    def show(self, glance: Glance, moment: Moment) -> None:
        """Take over what is known of the log beside its lines; redraws only when that moved."""
        self._glance, self._moment = glance, moment
        log = glance.log
        told = (log.unit, log.trouble, log.following, self._cause(), self._age(), glance.link.up)
        if told != self._told:
            self._told = told
            self.redraw()

    def beat(self) -> None:
        """Twice a second: look for new lines, and draw when something moved."""
        self.log.poll()
        if isinstance(self.log, LogFile) and self.log.generation != self._generation:
            self._generation = self.log.generation
            self.relaunch.say("the file was replaced or cut short; it is read anew", "warning")
            self.page = Page(self.log, self.page.view)
            self.window, self.window_words, self.launches = (0, None), "", None
            self.apply()
            return
        if self._search is not None:
            self._search.work()
        more = self.page.view.work()
        if more and not self._scanning:
            self._scan()
        self.draw_if_moved()

    def draw_if_moved(self) -> None:
        """Draw when lines were found or arrived since the last draw."""
        now = (self.log.version, self.page.view.version, self._search.version if self._search else None)
        if now != self._drawn:
            self._drawn = now
            self.redraw()

    def apply(self) -> None:
        """Make the view anew for the filter and window that are wanted, and scan it."""
        self.page.use(View(self.log, self.wanted, self._noise, self.window))
        self._asked = _any_of(self.wanted.include)
        self._scan()
        self.redraw()

    @property
    def _scanning(self) -> bool:
        return any(worker.group == "scan" and worker.node is self and not worker.is_finished for worker in self.workers)

    def _scan(self) -> None:
        self.run_worker(self._scanned(), group="scan", exclusive=True, exit_on_error=False)

    async def _scanned(self) -> None:
        """Scan in slices, giving way to keys between them; then search, then count the log's lines."""
        loop = asyncio.get_running_loop()
        drawn = 0.0
        for work in (self.page.view.work, self._search.work if self._search else None, self.log.work):
            while work is not None and any([work() for _ in range(SLICES)][-1:]):
                if loop.time() - drawn >= BEAT_SECONDS:
                    drawn = loop.time()
                    self.draw_if_moved()
                await asyncio.sleep(0)  # a turn for keys and timers
        self.redraw()

    async def settled(self) -> None:
        """Wait until everything that was asked for is scanned and drawn."""
        await self.app.workers.wait_for_complete([worker for worker in self.workers if worker.node is self])

    # -- drawing ------------------------------------------------------------------------------------------------------

    def rows(self, width: int, height: int) -> list[Strip]:
        rows = [self._title(width)]
        cause = self._cause()
        if cause is not None and height > 5:
            rows.append(self._cause_row(cause, width))
        look = Look(width, self.glyphs, self._form, self._wrap, self._left, self._found, self._asked)
        body = self.page.rows(look, height - len(rows), active=self.has_focus)
        return [*rows, *(body or self._nothing(width))]

    def _title(self, width: int) -> Strip:
        """What the pane shows and what it hides; the words that matter least go first where there is no room."""
        parts: list[tuple[int, Part]] = []
        log, page = self._glance.log, self.page
        if log.unit:
            parts.append((2, clean(log.unit).removesuffix(".service")))
        parts.append((9, self._state()))
        age = self._age()
        if age is not None:
            parts.append((10, (f"as of {age} ago", "yellow")))
        if not page.view.complete:
            parts.append((8, (f"searched {page.view.done:.0%}", "cyan")))
        if self.window_words:
            parts.append((8, (self.window_words, "bold yellow")))
        if self._search is not None:
            parts.append((7, (f"search: {self._words} {len(self._search):,} (n N)", "bold cyan")))
        parts.append((6, self._noise_words()))
        parts.append(
            (5, (f"filter: {self.wanted} (/)", "bold yellow") if str(self.wanted) != "none" else "filter: none (/)")
        )
        if page.mark is not None:
            parts.append((7, (f"{len(page.marked_lines(COUNTED)):,} marked", "bold cyan")))
        extra = [
            word
            for word, on in (
                ("wrap", self._wrap),
                ("as written", self._form == 2),
                (f"from column {self._left}", self._left),
            )
            if on
        ]
        parts += [(1, word) for word in extra]
        while (
            len(parts) > 2 and 7 + sum(len(part if isinstance(part, str) else part[0]) + 3 for _, part in parts) > width
        ):
            parts.remove(min(parts, key=lambda part: part[0]))
        return self.title(width, "Log", *(part for _, part in parts))

    def _state(self) -> Part:
        log, page = self._glance.log, self.page
        if log.trouble:
            return (f"{self.glyphs.fail} {clean(log.trouble)[:60]}", "bold red")
        if self.window[1] is not None:
            return "not live"
        if page.follow:
            return "following" if log.following or isinstance(self.log, LogFile) else "at its end"
        new = page.new_below
        words = f"{new:,}{'+' if new >= COUNTED else ''} new below (G)" if new else "G follows"
        return (f"paused, {words}", "bold yellow")

    def _noise_words(self) -> Part:
        key = "z" if self._search is not None or not self.has_focus else "n"
        key = key if self.has_focus else "n"
        if self.wanted.noise:
            return f"noise shown ({key})"
        if self._noise is None:
            return "noise: not known yet"
        return f"noise hidden: {sum(self.page.view.hidden.values()):,} ({key})"

    def _age(self) -> str | None:
        """How old the log is, where it can be old: not followed any more."""
        log = self._glance.log
        age = self._moment.age(log.seen)
        if log.following or age is None or age <= STALE_SECONDS or isinstance(self.log, LogFile):
            return None
        return duration(int(age))

    def _cause(self) -> Cause | None:
        diagnosis = self._glance.log.diagnosis
        if diagnosis is None or diagnosis.outcome not in ("failed", "hung"):
            return None
        return diagnosis.cause

    def _cause_row(self, cause: Cause, width: int) -> Strip:
        who = f"{clean(cause.process or '')}{f' {self.glyphs.times}{cause.ranks}' if cause.ranks > 1 else ''} "
        text = fit(
            who.lstrip() + " ".join(clean(cause.text).split()), max(8, width - 22), ellipsis=self.glyphs.ellipsis
        )
        return line((f"{self.glyphs.fail} first cause ", "bold red"), (text.rstrip(), "red"), ("  . y", "dim"))

    def _nothing(self, width: int) -> list[Strip]:
        """An empty pane says why it is empty, and what fills it."""
        view, unit = self.page.view, clean(self._glance.log.unit)
        if not self.log.size:
            texts = [
                f"No line of {unit} has come yet."
                if unit
                else "The log of the service stands here once a node is reached."
            ]
        elif not view.complete:
            texts = [f"No line found yet; {view.done:.0%} of the log is searched."]
        else:
            texts = ["No line is shown."]
            if self.window_words:
                texts.append(f"The window is: {self.window_words}; 0 shows the whole log.")
            if str(self.wanted) != "none":
                texts.append(f"The filter is: {self.wanted}; x drops it, / changes it.")
            if sum(view.hidden.values()):
                texts.append(f"{sum(view.hidden.values()):,} lines are hidden as noise; z shows them, Z says why.")
        return [line(f"  {text}"[:width]) for text in texts]

    # -- moving -------------------------------------------------------------------------------------------------------

    def action_by(self, count: int) -> None:
        self.page.by(count)
        self.redraw()

    def action_pages(self, count: int) -> None:
        self.page.pages(count)
        self.redraw()

    def action_side(self, count: int) -> None:
        self._left = 0 if self._wrap else max(0, self._left + count * max(8, self.size.width // 4))
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
        self._wrap, self._left = not self._wrap, 0
        self.redraw()

    def action_form(self) -> None:
        self._form = (self._form + 1) % 3
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
        self.page.top = min(self.page.top, self.page.cursor)
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
        now = newest(self.log) if isinstance(self.log, LogFile) else self._moment.wall
        begin = since(self.log, now - seconds) if now else None
        if begin is None:
            self.relaunch.say("these lines tell no time: no window can be cut", "warning")
            return
        self.page.last()
        self.see((begin, None), words if not isinstance(self.log, LogFile) else f"{words} of the file")

    def action_clear(self) -> None:
        if self._search is not None:
            self._set_search("")
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
            return bool(self._search or self.page.mark or self.window_words or self.wanted != Filter())
        return True

    def action_filter(self) -> None:
        from screens.filter_bar import FilterBar

        words = [f"@{preset.name}" for preset in load_presets()]
        text = " ".join(_typed(self.wanted))
        self.app.push_screen(FilterBar("filter", text, self.wrong_filter, words), self._filtered)

    def wrong_filter(self, text: str) -> str:
        """What is wrong with a typed filter; empty when nothing is."""
        try:
            self._parsed(text)
        except RelaunchError as error:
            return f"{error.message}; {error.remedy}" if error.remedy else error.message
        return ""

    def _parsed(self, text: str) -> Filter:
        if text.startswith("@"):
            name, _, rest = text[1:].partition(" ")
            presets = {preset.name: preset for preset in load_presets()}
            if name not in presets:
                raise UsageError(f"there is no preset {name!r}", f"there are {', '.join(presets)}")
            preset = presets[name]
            more = parse(rest, preset)
            return replace(
                more, include=preset.include + more.include, exclude=preset.exclude + more.exclude, name=preset.name
            )
        return parse(text, replace(self.wanted, reason=""))

    def _filtered(self, text: str | None) -> None:
        if text is not None:
            self.want(self._parsed(text))

    # -- search -------------------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        from screens.filter_bar import FilterBar

        self.app.push_screen(FilterBar("search", self._words, _wrong_expression), self._searched)

    def _searched(self, text: str | None) -> None:
        if text is None:
            return
        self._set_search(text)
        if text:
            self.run_worker(self._first_match(), group="search", exclusive=True, exit_on_error=False)

    def _set_search(self, text: str) -> None:
        self._words = text
        self._search = View(self.log, Filter(include=(text,), noise=True), None, self.window) if text else None
        self._found = _any_of((text,)) if text else None
        self.redraw()

    async def _first_match(self) -> None:
        """Search from the cursor upwards, since what one looks for in a log lies behind one."""
        search = self._search
        start = (self.page.cursor if self.page.cursor is not None else self.log.size) + 1
        while search is not None and search is self._search:
            if self._to_match(search.before(start, 200), newest_first=True) or not search.work(SLICES << 20):
                break
            await asyncio.sleep(0)
        else:
            return
        if search is not None and not any(self.page.view.shows(at) for at in search.before(start, 200)):
            self.relaunch.say(f"{self._words}: not above the cursor; n looks below it", "warning")
        self._scan()

    def _to_match(self, offsets: list[int], *, newest_first: bool) -> bool:
        for offset in reversed(offsets) if newest_first else offsets:
            if self.page.view.shows(offset):
                self.page.jump(offset)
                self.redraw()
                return True
        return False

    def action_next(self) -> None:
        if self._search is None:
            self.action_noise()
        else:
            last = self.page.item.last if self.page.item else 0
            if not self._to_match(self._search.after(last + 1, 2000), newest_first=False):
                self.relaunch.say(f"{self._words}: no match below", "warning")

    def action_previous_match(self) -> None:
        if self._search is None:
            self.relaunch.say("nothing is searched for; \\ begins a search", "warning")
        elif not self._to_match(self._search.before(self.page.cursor or 0, 2000), newest_first=True):
            still = "" if self._search.complete else " yet; older lines are still being searched"
            self.relaunch.say(f"{self._words}: no match above{still}", "warning")

    def action_to_cause(self) -> None:
        cause = self._cause()
        if cause is None:
            self.relaunch.say("no failure is known in this log", "warning")
            return
        text = max(clean(cause.text).splitlines() or [""], key=len)[:120]
        self._set_search(text.strip())
        self.run_worker(self._first_match(), group="search", exclusive=True, exit_on_error=False)

    # -- panels and hand-off: screens.log_deeds -----------------------------------------------------------------------

    def action_why(self) -> None:
        from screens import log_deeds

        log_deeds.noise_panel(self)

    def action_preset(self) -> None:
        from screens import log_deeds

        log_deeds.preset_panel(self)

    def action_process(self) -> None:
        from screens import log_deeds

        log_deeds.process_panel(self)

    def action_stage(self) -> None:
        from screens import log_deeds

        self.run_worker(log_deeds.stage_panel(self), group="launches", exclusive=True, exit_on_error=False)

    def action_launch(self) -> None:
        from screens import log_deeds

        self.run_worker(log_deeds.previous_launch(self), group="launches", exclusive=True, exit_on_error=False)

    def action_yank(self) -> None:
        from screens import log_deeds

        self.run_worker(log_deeds.yank(self), group="copy", exit_on_error=False)

    def action_yank_cause(self) -> None:
        from screens import log_deeds

        self.run_worker(log_deeds.yank_cause(self), group="copy", exit_on_error=False)

    def action_write(self) -> None:
        from screens import log_deeds

        log_deeds.ask_file(self)

    def action_pager(self) -> None:
        from screens import log_deeds

        self.run_worker(log_deeds.pager(self), group="pager", exclusive=True, exit_on_error=False)


def _any_of(texts: tuple[str, ...]) -> re.Pattern[str] | None:
    """One expression for several filter texts, for showing what they found."""
    return re.compile("|".join(f"(?:{expression(text)})" for text in texts)) if texts else None


def _wrong_expression(text: str) -> str:
    try:
        expression(text)
    except UsageError as error:
        return f"{error.message}; {error.remedy}"
    return ""


def _typed(wanted: Filter) -> list[str]:
    """A filter's patterns as they would be typed."""
    words = [*wanted.include, *(f"!{item}" for item in wanted.exclude)]
    return [f'"{word}"' if " " in word and "/" not in word else word for word in words]
