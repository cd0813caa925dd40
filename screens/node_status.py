"""What the node is and what serves there, as of the facts last read: machine, units, ports, releases, lock, what is missing."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip

from console.live import Glance
from console.node.facts import Facts, UnitState
from console.text import clean, duration, gib, plural, size
from screens.base import ConsoleScreen
from screens.source import Moment
from screens.widgets.lines import Pager, Part, line, wrap

FRESH_SECONDS = 75.0
"""Facts are read once a minute; older ones say their age."""


class FactsPane(Pager):
    """The facts in words."""

    def __init__(self) -> None:
        super().__init__("Node", id="facts")
        self._glance = Glance()
        self._moment = Moment(0.0, 0.0)

    def show(self, glance: Glance, moment: Moment) -> None:
        self._glance, self._moment = glance, moment
        self.redraw()

    def heading(self) -> tuple[Part, ...]:
        age = self._moment.age(self._glance.facts_seen)
        if age is None:
            return (("not read yet", "yellow"),)
        return (("read " + duration(int(age)) + " ago", "bold yellow" if age > FRESH_SECONDS else "dim"),)

    def body(self, width: int) -> list[Strip]:
        facts = self._glance.facts
        if facts is None:
            link = clean(self._glance.link.reason) or "the node is being asked"
            return [line(""), line(f"   What the node is and what serves there will stand here: {link}.")]
        rows = [line("")]
        for name, words in self._fields(facts):
            for place, part in enumerate(wrap(words, max(20, width - 16))):
                rows.append(line("   ", (f"{name if not place else '':<12}", "bold"), part))
        rows += [
            line("   ", (f"{'unknown' if not place else '':<12}", "bold yellow"), clean(text))
            for place, text in enumerate(facts.missing)
        ]
        return rows

    def _fields(self, facts: Facts) -> list[tuple[str, str]]:
        glance = self._glance
        fields = [
            (
                "host",
                f"{clean(facts.host)}, {clean(facts.kernel)}, systemd {facts.systemd or '?'}, Python {clean(facts.python)}",
            ),
            ("login", f"{clean(facts.user)}{'' if facts.root else ', without root: some facts are hidden'}"),
            ("machine", f"{plural(facts.cpus, 'CPU')}, {gib(facts.memory)} of memory"),
        ]
        fields += [("unit", _unit(unit)) for unit in facts.units.values()]
        fields += [
            ("port", f"{item.port}  {clean(item.unit or item.command or 'a process that cannot be seen')}")
            for item in facts.listeners
        ]
        fields += [
            ("vLLM", f"{clean(venv.vllm or 'not installed')}  in {clean(venv.path)}")
            for venv in dict.fromkeys(facts.venvs.values())
        ]
        fields += [
            ("disk", f"{size(disk.free)} free of {size(disk.total)}  at {clean(disk.mount)}")
            for disk in dict.fromkeys(facts.disks.values())
        ]
        good = glance.good
        fields.append(
            (
                "last good",
                "none yet"
                if good is None
                else f"release {good.number}, {clean(good.profile)}, vLLM {clean(good.vllm)}",
            )
        )
        fields.append(("lock", "free" if glance.lock is None else clean(str(glance.lock))))
        return fields


def _unit(unit: UnitState) -> str:
    file = "" if unit.text else ", no unit file"
    return f"{clean(unit.name)}  {clean(unit.active)} ({clean(unit.sub)}){file}"


class NodeStatusScreen(ConsoleScreen):
    """Status of the node."""

    WORD = "status"
    PANES: ClassVar[tuple[type, ...]] = (FactsPane,)
    BINDINGS: ClassVar[list[BindingType]] = [Binding("u", "look", "look again", id="status.look")]

    def body(self) -> ComposeResult:
        yield FactsPane()

    def show(self, glance: Glance, moment: Moment) -> None:
        self.query_one(FactsPane).show(glance, moment)

    def action_look(self) -> None:
        self.relaunch.later(self.source.look())
