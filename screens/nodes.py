"""Every machine that is known here: the nodes file, the OpenSSH config, this machine, the practice node.

Files and the history are read when the screen comes up and on `r`; nothing is connected to for it. What is known of a
node now (state, model, GPUs) is known of the connected one alone; of the others stands what the last run saw, and `?`.
Enter posts `NodeChosen`, and the app then watches that node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from console.deploy.store import RunRow, Store, state_folder
from console.errors import RelaunchError
from console.live import Glance
from console.node.nodes_file import default_nodes_file, load_nodes
from console.node.target import Target, openssh_config_files
from console.text import clean, gib, headline
from screens.base import ConsoleScreen
from screens.first_use import openssh_hosts
from screens.runs import history, outcome
from screens.source import Moment, Source
from screens.widgets.choice import Choice
from screens.widgets.gpus import short_name
from screens.widgets.lines import Pane, Part, fit, line, wrap
from screens.widgets.sections import age_words

if TYPE_CHECKING:
    from screens.app import ConsoleApp

Kind = Literal["practice", "local", "file", "openssh"]
LIST_ID = "nodes-list"
ABOUT_ID = "nodes-about"
PRACTICE = "rehearsal"
RUNS_READ = 500
"""Newest runs of the history that are searched for what was done on a node."""

_FROM: dict[Kind, str] = {
    "practice": "practice node",
    "local": "this machine",
    "file": "nodes file",
    "openssh": "OpenSSH config",
}


@dataclass(frozen=True, slots=True)
class KnownNode:
    """One machine. `where` is how it is reached, as far as our own files say. `last` is the newest run on it, `good` the
    newest that ended well."""

    name: str
    kind: Kind
    where: str = ""
    production: bool = False
    up: bool | None = None
    """Whether the practice node runs; None: not known without asking it."""
    last: RunRow | None = None
    good: RunRow | None = None


class NodeChosen(Message):
    """The operator wants to be on this node. `kind` practice is the practice node, whatever it is called."""

    def __init__(self, node: KnownNode) -> None:
        super().__init__()
        self.node = node


def known_nodes(store: Store) -> tuple[tuple[KnownNode, ...], str]:
    """All machines, and a sentence on what could not be read, else empty. Reads files; connects to nothing."""
    trouble = ""
    path = default_nodes_file()
    targets: dict[str, Target] = {}
    try:
        targets = load_nodes(path) if path.exists() else {}
    except RelaunchError as error:
        trouble = headline(clean(error.message), 300)
    past = _history(store)
    found = [_practice(past), _node("local", "local", "no SSH", past)]
    found += [
        _node(name, "file", address(target), past, production=target.production) for name, target in targets.items()
    ]
    found += [_node(host, "openssh", "", past) for host in openssh_hosts(openssh_config_files()) if host not in targets]
    return tuple(found), trouble


def address(target: Target) -> str:
    """`root@10.0.0.11:2222 via bastion`, of what the nodes file says."""
    user = f"{target.user}@" if target.user else ""
    port = f":{target.port}" if target.port else ""
    via = f" via {target.jump}" if target.jump else ""
    return clean(f"{user}{target.host}{port}{via}")


def _history(store: Store) -> Callable[[str, bool], tuple[RunRow | None, RunRow | None]]:
    """(name, rehearsal) -> (newest run, newest that ended well)."""
    try:
        rows = history(store, RUNS_READ, {})
    except Exception:  # the history is a help here, not the matter
        rows = ()

    def of(name: str, rehearsal: bool) -> tuple[RunRow | None, RunRow | None]:
        mine = [row for row in rows if row.rehearsal == rehearsal and (rehearsal or row.node == name)]
        served = [row for row in mine if row.code == 0 and row.verb in ("redeploy", "resume", "rollback")]
        return (mine[0] if mine else None), (served[0] if served else None)

    return of


def _node(
    name: str,
    kind: Kind,
    where: str,
    past: Callable[[str, bool], tuple[RunRow | None, RunRow | None]],
    *,
    production: bool = False,
) -> KnownNode:
    last, good = past(name, False)
    return KnownNode(clean(name), kind, where, production, None, last, good)


def _practice(past: Callable[[str, bool], tuple[RunRow | None, RunRow | None]]) -> KnownNode:
    from console.rehearsal import practice

    try:
        running = practice.status(state_folder() / "rehearsal")
    except (OSError, RelaunchError, ValueError):
        running = None
    where = f"{running.host}:{running.port}" if running else "starts when it is opened"
    last, good = past(PRACTICE, True)
    return KnownNode(PRACTICE, "practice", where, False, running is not None, last, good)


class NodeList(Choice):
    """The table. Key of a row is the node's name."""

    def __init__(self) -> None:
        super().__init__("Nodes", id=LIST_ID)
        self._known: dict[str, KnownNode] = {}
        self._glance = Glance()
        self._moment = Moment(0.0, 0.0)
        self._trouble = ""

    def show(self, nodes: tuple[KnownNode, ...], trouble: str, glance: Glance, moment: Moment) -> None:
        self._known = {node.name: node for node in nodes}
        self._trouble, self._glance, self._moment = trouble, glance, moment
        self.redraw()

    def get(self, key: str) -> KnownNode | None:
        return self._known.get(key)

    def keys(self) -> list[str]:
        return list(self._known)

    def heading(self) -> tuple[Part, ...]:
        return ((f"{len(self._known)}", "dim"),)

    def trouble(self) -> str:
        return f"the nodes file cannot be used: {self._trouble}" if self._trouble else ""

    def columns(self, width: int) -> str:
        if width < 60:
            return f"  {'node':<16} state"
        text = f"  {'node':<16} {'state':<17}"
        if width >= 110:
            return f"{text} {'address':<24} {'model':<18} {'GPUs':<31} last run"
        return f"{text} {'model':<18} last run"

    def row(self, key: str, width: int, *, chosen: bool) -> Strip:
        node = self._known[key]
        ellipsis = self.glyphs.ellipsis
        sign, words, look = self.state(node)
        name: Part = (fit(node.name, 16, ellipsis=ellipsis), "bold reverse" if chosen else "bold")
        if width < 60:
            return line((f"{sign} ", look), name, " ", (words, look))
        parts: list[Part] = [(f"{sign} ", look), name, " ", (fit(words, 17), look)]
        if width >= 110:
            parts.append(
                f" {fit(node.where or '-', 24, ellipsis=ellipsis)} {fit(self.model(node), 18, ellipsis=ellipsis)}"
            )
            parts.append(f" {fit(self.gpus(node), 31, ellipsis=ellipsis)}")
        else:
            parts.append(f" {fit(self.model(node), 18, ellipsis=ellipsis)}")
        return line(*parts, " ", *self.last(node))

    def connected(self, node: KnownNode) -> bool:
        """This node is the one that the glance is of."""
        return self.is_here(node, self._glance)

    @staticmethod
    def is_here(node: KnownNode, glance: Glance) -> bool:
        if node.kind == "practice":
            return glance.rehearsal
        return not glance.rehearsal and bool(glance.node) and node.name == clean(glance.node)

    def state(self, node: KnownNode) -> tuple[str, str, str]:
        """(sign, words, colour)."""
        glyphs, link = self.glyphs, self._glance.link
        if self.connected(node):
            if link.up:
                return (
                    glyphs.run,
                    f"here, {'?' if link.latency_ms is None else f'{link.latency_ms:.0f}'} ms",
                    "bold green",
                )
            return glyphs.fail, "here, link down", "bold red"
        if node.kind == "practice":
            return (glyphs.ok, "runs", "green") if node.up else (glyphs.idle, "not started", "dim")
        if node.production:
            return glyphs.unknown, "? production", "yellow"
        return glyphs.unknown, "? not connected", "dim"

    def model(self, node: KnownNode) -> str:
        """What serves there, as the facts say; else what the last good run left, with its age."""
        if self.connected(node) and self._glance.facts is not None:
            return serving(self._glance)
        if node.good is not None:
            return f"{clean(node.good.profile)}?"
        return "?"

    def gpus(self, node: KnownNode) -> str:
        sample = self._glance.gpus.sample if self.connected(node) else None
        if sample is None:
            return "?"
        names = {short_name(gpu.name) for gpu in sample.gpus}
        used = [gpu.memory_used for gpu in sample.gpus]
        total = [gpu.memory_total for gpu in sample.gpus]
        name = next(iter(names)) if len(names) == 1 else "mixed"
        held = "?" if None in used else gib(sum(item or 0 for item in used)).removesuffix(" GiB")
        whole = "? GiB" if None in total else gib(sum(item or 0 for item in total))
        return f"{len(sample.gpus)} {self.glyphs.times} {name or '?'} {held}/{whole}"

    def last(self, node: KnownNode) -> list[Part]:
        row = node.last
        if row is None:
            return [("no run yet", "dim")]
        now = self._glance.run.run if self._glance.running else ""
        sign, words, look = outcome(row, self.glyphs, running=row.id == now)
        ago = age_words(self._moment.wall - row.started)
        return [
            (sign, look),
            f" {row.verb} {words}, {ago} ago" if self.size.width >= 110 else f" {row.verb}, {ago} ago",
        ]


class AboutNode(Pane):
    """The chosen node in full."""

    DEFAULT_CSS = "AboutNode { height: 7; }"

    def __init__(self, rows_of: NodeList) -> None:
        super().__init__(id=ABOUT_ID)
        self._list = rows_of

    def rows(self, width: int, height: int) -> list[Strip]:
        node = self._list.get(self._list.chosen)
        if node is None:
            return []
        mark: Part = (" PRODUCTION ", "bold black on yellow") if node.production else ""
        head = line(
            (self.glyphs.rule, "dim"), (f" {node.name} ", "bold"), mark, " ", (self.glyphs.rule * width, "dim")
        ).crop(0, width)
        lines = [("from", f"{_FROM[node.kind]}{', ' + node.where if node.where else ''}")]
        lines += [("model", self._model(node)), ("GPUs", self._list.gpus(node))]
        last = node.last
        if last is not None:
            lines.append(
                (
                    "last run",
                    f"{last.id} {last.verb} of {clean(last.profile)}: {headline(clean(last.text), 400) or 'no end known'}",
                )
            )
        lines.append(("enter", self._enter(node)))
        made = [head]
        for label, text in lines:
            for place, part in enumerate(wrap(text, max(8, width - 12))[:2]):
                made.append(line((f"  {label if not place else '':<9}", "dim"), part))
        return made[:height]

    def _model(self, node: KnownNode) -> str:
        if node.good is not None and not self._list.connected(node):
            return f"? it was {clean(node.good.profile)} after run {node.good.id}; connect to see what serves now"
        return self._list.model(node)

    def _enter(self, node: KnownNode) -> str:
        if self._list.connected(node):
            return "goes back to it"
        return {
            "practice": "starts the practice node when it does not run, and connects; nothing real is touched",
            "local": "works on this machine, without SSH",
            "file": "connects",
            "openssh": "connects by its OpenSSH alias; it is not in the nodes file",
        }[node.kind]


class NodesScreen(ConsoleScreen):
    """All known nodes."""

    WORD = "nodes"
    FIRST = ("choice.open",)
    PANES: ClassVar[tuple[type, ...]] = (NodeList,)
    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "refresh", "read again", id="nodes.refresh")]

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._list = NodeList()
        self._about = AboutNode(self._list)
        self._known: tuple[KnownNode, ...] | None = None
        self._trouble = ""

    def body(self) -> ComposeResult:
        yield self._list
        yield self._about

    def show(self, glance: Glance, moment: Moment) -> None:
        if self._known is None:
            self._known, self._trouble = known_nodes(self.source.store)
            here = next((item.name for item in self._with_connected(glance) if self._list.is_here(item, glance)), "")
            self._list.start_at(here)
        self._list.show(self._with_connected(glance), self._trouble, glance, moment)
        self._about.redraw()

    def _with_connected(self, glance: Glance) -> tuple[KnownNode, ...]:
        """The known nodes and, when no file names it, the one that was given on the command line."""
        nodes = self._known or ()
        name = clean(glance.node)
        if not name or glance.rehearsal or any(node.name == name for node in nodes):
            return nodes
        last, good = _history(self.source.store)(name, False)
        self._known = (KnownNode(name, "openssh", "named on the command line", last=last, good=good), *nodes)
        return self._known

    def action_refresh(self) -> None:
        self._known = None
        self.relaunch.tick(again=True)

    def on_choice_moved(self, event: Choice.Moved) -> None:
        self._about.redraw()

    def on_choice_chosen(self, event: Choice.Chosen) -> None:
        node = self._list.get(event.key)
        if node is None:
            return
        if self._list.connected(node):
            self.relaunch.back()
        else:
            self.post_message(NodeChosen(node))

    def on_node_chosen(self, event: NodeChosen) -> None:
        event.stop()
        try:
            turn_to(self.relaunch, event.node)
        except RelaunchError as error:
            self.relaunch.say(f"{error.message}{'; ' + error.remedy if error.remedy else ''}", "error")


def turn_to(app: ConsoleApp, node: KnownNode) -> None:
    """Have the app watch `node`, with the profile that its last run was of, else the one in hand. Changes nothing there.
    Raises RelaunchError."""
    opening = app.needed_opening()
    if node.kind == "practice":
        app.production = False
        app.go(opening.practice())
        return
    name = "local" if node.kind == "local" else node.name
    in_hand = app.source.glance().profile
    profile = node.last.profile if node.last is not None else (in_hand.name if in_hand is not None else "")
    live = opening.node_live(name, profile)
    app.go(live)
    app.production = node.production


def serving(glance: Glance) -> str:
    """The model of the unit that is active on the connected node; `?` where the facts do not tell."""
    facts, profile = glance.facts, glance.profile
    if facts is None or profile is None:
        return "?"
    for name in (profile.service.unit, *profile.replaces):
        unit = facts.units.get(name)
        if unit is not None and unit.active in ("active", "activating", "reloading"):
            model = profile.model.served_name if name == profile.service.unit else name.removesuffix(".service")
            return clean(model) if unit.active == "active" else f"{clean(model)} ({unit.active})"
    return "nothing serves" if facts.units else "?"
