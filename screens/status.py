"""The first and the last row of every screen: where one is and how the link does; which keys do something now."""

from __future__ import annotations

import time
from typing import ClassVar

from textual.binding import ActiveBinding, Binding
from textual.strip import Strip

from console.live import CONNECTING, Glance
from console.text import clean, duration
from screens.keys import shown
from screens.source import STALE_SECONDS, Moment
from screens.widgets.lines import Pane, Part, line

MESSAGE_SECONDS = 8.0


class StatusLine(Pane):
    """`node › profile › run 0142 redeploy   REHEARSAL   link 38 ms   downtime 2:41   16:58:07`."""

    DEFAULT_CSS = "StatusLine { height: 1; }"

    def __init__(self, word: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._word = word
        self._glance = Glance()
        self._moment = Moment(0.0, 0.0)

    def show(self, glance: Glance, moment: Moment) -> None:
        self._glance, self._moment = glance, moment
        self.redraw()

    def rows(self, width: int, height: int) -> list[Strip]:
        right = self._right(width)
        left = self._crumbs(width, 3)
        for parts in (2, 1):  # the state of the link is worth more than the far end of the breadcrumb
            if _length(left) + _length(right[:1]) + 2 > width:
                left = self._crumbs(width, parts)
        while right and _length(left) + _length(right) + 2 > width and len(right) > 1:
            right = right[:-1]  # the link comes first and goes last
        spread = " " * max(1, width - _length(left) - _length(right) - 1)
        return [line(*left, spread, *right)]

    def _crumbs(self, width: int, most: int) -> list[Part]:
        glance = self._glance
        mark: list[Part] = []
        if glance.rehearsal:
            mark.append((" REHEARSAL ", "bold black on yellow"))
            mark.append(" ")
        if self.relaunch.production:
            mark.append((" PRODUCTION ", "bold white on red"))
            mark.append(" ")
        if self.relaunch.read_only:
            mark.append((" READ-ONLY ", "bold black on cyan"))
            mark.append(" ")
        names = [clean(glance.node) or "no node"]
        profile = glance.profile.name if glance.profile else ""
        names += [profile.split("-")[0] if width < 100 and len(profile) > 12 else profile] if profile else []
        names += [self._word or _run_words(glance)]
        parts: list[Part] = [" ", *mark, (names[0], "bold")]
        for name in names[1:] if most > 2 else names[2:] if most == 2 else ():
            if name:
                parts += [(f" {self.glyphs.crumb} ", "dim"), name]
        return parts

    def _right(self, width: int) -> list[Part]:
        glance, moment = self._glance, self._moment
        parts: list[Part] = [self._link()]
        run = glance.run
        if run.downtime_since is not None:
            spent = duration(max(0.0, int(moment.wall - run.downtime_since)))
            parts.append((f"   downtime {spent}", "bold yellow"))
        elif run.downtime_seconds is not None and not glance.running and width >= 100:
            parts.append(f"   downtime was {duration(run.downtime_seconds)}")
        if glance.lock is not None and not glance.running:
            parts.append((f"   locked by {clean(glance.lock.who)}", "yellow"))
        if width >= 100:
            parts.append((f"   {time.strftime('%H:%M:%S', time.localtime(moment.wall))}", "dim"))
        return parts

    def _link(self) -> Part:
        link = self._glance.link
        if link.up:
            return f"link {'?' if link.latency_ms is None else f'{link.latency_ms:.0f}'} ms"
        if not self._glance.node and not link.reason:
            return ("not connected", "yellow")
        if link == CONNECTING:
            return ("connecting", "yellow")
        down = self.relaunch.link_down(self._moment)
        age = f" {down:.0f} s" if down >= STALE_SECONDS else ""
        return (f"{self.glyphs.fail} link down{age}: {clean(link.reason) or 'reason unknown'}"[:60], "bold red")


def _run_words(glance: Glance) -> str:
    run = glance.run
    return f"run {run.run} {run.verb}" if run.run else "nothing runs"


class KeyLine(Pane):
    """The keys that do something now, or a message for some seconds. Made from the live bindings."""

    DEFAULT_CSS = "KeyLine { height: 1; }"
    LAST: ClassVar[tuple[str, ...]] = ("command", "help", "back", "quit")

    def __init__(self, first: tuple[str, ...] = (), *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._order = first

    def first(self, ids: tuple[str, ...]) -> None:
        """Name these bindings first from now on."""
        self._order = ids

    def rows(self, width: int, height: int) -> list[Strip]:
        message = self.relaunch.message(self.relaunch.moment())
        if message is not None:
            text, level = message
            sign = {"error": self.glyphs.fail, "warning": self.glyphs.warn}.get(level, self.glyphs.run)
            look = {"error": "bold red", "warning": "yellow"}.get(level, "bold cyan")
            return [line((f" {sign} {text}", look))]
        return [self._keys(width)]

    def _keys(self, width: int) -> Strip:
        shown = live_keys(self.screen.active_bindings)
        tail = [item for name in self.LAST for item in shown if item[0] == name]
        head = [item for name in self._order for item in shown if item[0] == name]
        rest = [item for item in shown if item not in head and item not in tail]
        room = width - 1 - sum(_key_width(item) for item in tail)
        chosen = []
        for item in [*head, *rest]:
            if _key_width(item) <= room:
                chosen.append(item)
                room -= _key_width(item)
        parts: list[Part] = [" "]
        for name, key, words in [*chosen, *tail]:
            parts += [
                (key, "bold red" if key.isupper() and len(key) == 1 and name != "back" else "bold cyan"),
                f" {words}  ",
            ]
        return line(*parts)


def live_keys(active: dict[str, ActiveBinding]) -> list[tuple[str, str, str]]:
    """(id, key, words) of each shown binding once, by its first key."""
    found: dict[str, tuple[str, str, str]] = {}
    for item in active.values():
        binding = item.binding
        if binding.show and item.enabled and binding.description:
            name = binding.id or binding.action
            found.setdefault(name, (name, key_words(binding), binding.description))
    return list(found.values())


def key_words(binding: Binding) -> str:
    """A key as an operator writes it."""
    return binding.key_display or shown(binding.key)


def _key_width(item: tuple[str, str, str]) -> int:
    return len(item[1]) + len(item[2]) + 3


def _length(parts: list[Part]) -> int:
    return sum(len(part if isinstance(part, str) else part[0]) for part in parts)
