"""Every machine that is known here: the nodes file, the OpenSSH config, this machine, the practice node.

Files and the history are read when the screen comes up and on `r`; nothing is connected to for it. What is known of a
node now (state, model, GPUs) is known of the connected one alone; of the others stands what was last seen, with its age,
and `?` where nothing was. Enter posts `NodeChosen`; the operator then says with which profile, and the app watches that node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from console.errors import RelaunchError
from console.live import Glance
from console.seen import Seen, seen_of
from console.text import clean, headline
from screens.base import ConsoleScreen
from screens.known_nodes import Kind, KnownNode, known_node, known_nodes, past_of
from screens.runs import outcome
from screens.source import Moment, Source
from screens.widgets.choice import Choice
from screens.widgets.gpus import short_name
from screens.widgets.lines import Pane, Part, fit, line, wrap
from screens.widgets.sections import age_words

if TYPE_CHECKING:
    from screens.app import ConsoleApp

LIST_ID = "nodes-list"
ABOUT_ID = "nodes-about"
NOW_SECONDS = 90.0
"""Facts are read once a minute; up to this age they count as of now."""

_FROM: dict[Kind, str] = {
    "practice": "practice node",
    "local": "this machine",
    "file": "nodes file",
    "openssh": "OpenSSH config",
}


class NodeChosen(Message):
    """The operator wants to be on this node. `kind` practice is the practice node, whatever it is called. `profile` is
    empty while it is still to be chosen."""

    def __init__(self, node: KnownNode, profile: str = "") -> None:
        super().__init__()
        self.node = node
        self.profile = profile


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
            return f"  {'node':<15} {'':<4} state"
        text = f"  {'node':<15} {'':<4} {'state':<15}"
        if width >= 110:
            return f"{text} {'model':<18} {'GPUs':<28} {'seen':<10} last run"
        return f"{text} {'model':<18} last run"

    def row(self, key: str, width: int, *, chosen: bool) -> Strip:
        node = self._known[key]
        ellipsis = self.glyphs.ellipsis
        sign, words, look = self.state(node)
        name: Part = (fit(node.name, 15, ellipsis=ellipsis), "bold reverse" if chosen else "bold")
        mark: Part = ("PROD" if node.production else "    ", "bold yellow")
        parts: list[Part] = [(f"{sign} ", look), name, " ", mark, " ", (fit(words, 15), look)]
        if width < 60:
            return line(*parts)
        parts.append(f" {fit(self.model(node), 18, ellipsis=ellipsis)}")
        if width >= 110:
            parts.append(f" {fit(self.gpus(node), 28, ellipsis=ellipsis)} {fit(self.seen(node), 10)}")
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
                latency = "?" if link.latency_ms is None else f"{link.latency_ms:.0f}"
                return glyphs.ok, f"here, {latency} ms", "green"
            return glyphs.fail, "here, link down", "bold red"
        if node.kind == "practice":
            return (glyphs.ok, "runs", "green") if node.up else (glyphs.idle, "not started", "dim")
        return glyphs.unknown, "? not connected", "dim"

    def known(self, node: KnownNode) -> Seen | None:
        """The node as it is, when it is the one in hand; else as it was when it was last looked at."""
        return seen_of(self._glance, self._moment.wall) if self.connected(node) else node.seen

    def model(self, node: KnownNode) -> str:
        """What serves there, as the facts say or said; else what the last good run left, as a question."""
        known = self.known(node)
        if known is not None and known.serves != "?":
            return clean(known.serves)
        return f"{clean(node.good.profile)}?" if node.good is not None else "?"

    def gpus(self, node: KnownNode) -> str:
        known = self.known(node)
        if known is None or known.gpus is None:
            return "?"
        held, whole = ("?" if count is None else f"{count / 2**30:.0f}" for count in (known.used, known.total))
        name = short_name(known.gpu_name) if known.gpu_name else "mixed"
        return f"{known.gpus} {self.glyphs.times} {name} {held}/{whole} GiB"

    def seen(self, node: KnownNode) -> str:
        """How old what is said of model and GPUs is."""
        if self.connected(node):
            age = self._moment.age(self._glance.facts_seen)
            return "?" if age is None else "now" if age < NOW_SECONDS else f"{age_words(age)} ago"
        return "never" if node.seen is None else f"{age_words(self._moment.wall - node.seen.time)} ago"

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
        lines += [("model", self._model(node)), ("GPUs", f"{self._list.gpus(node)}, seen {self._list.seen(node)}")]
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
        if self._list.connected(node):
            return self._list.model(node)
        if node.seen is not None and node.seen.serves != "?":
            return f"{clean(node.seen.serves)} {self._list.seen(node)}; connect to see what serves now"
        if node.good is not None:
            return f"? it was {clean(node.good.profile)} after run {node.good.id}; connect to see what serves now"
        return "?"

    def _enter(self, node: KnownNode) -> str:
        if self._list.connected(node):
            return f"goes back to it; {self.relaunch.key_of('nodes.profile')} chooses another profile"
        return {
            "practice": "starts the practice node when it does not run, and connects; nothing real is touched",
            "local": "asks for the profile and works on this machine, without SSH",
            "file": "asks for the profile and connects",
            "openssh": "asks for the profile and connects by its OpenSSH alias; it is not in the nodes file",
        }[node.kind]


class NodesScreen(ConsoleScreen):
    """All known nodes."""

    WORD = "nodes"
    FIRST = ("choice.open", "nodes.profile")
    PANES: ClassVar[tuple[type, ...]] = (NodeList,)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "profile", "profile", id="nodes.profile", tooltip="choose a profile for the node, and turn to it"),
        Binding("r", "refresh", "read again", id="nodes.refresh"),
    ]

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
        given = known_node(name, "openssh", "named on the command line", past_of(self.source.store))
        self._known = (given, *nodes)
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

    def action_profile(self) -> None:
        node = self._list.get(self._list.chosen)
        if node is not None:
            self.post_message(NodeChosen(node))

    def on_node_chosen(self, event: NodeChosen) -> None:
        event.stop()
        try:
            if event.node.kind == "practice" or event.profile:
                turn_to(self.relaunch, event.node, event.profile)
            else:
                self._ask_profile(event.node)
        except RelaunchError as error:
            self.relaunch.say(f"{error.message}{'; ' + error.remedy if error.remedy else ''}", "error")

    def _ask_profile(self, node: KnownNode) -> None:
        from console.profile.load import list_profiles
        from screens.profile_choice import ProfileChoice

        listed = list_profiles(self.relaunch.needed_opening().folders())
        in_hand = self.source.glance().profile
        first = node.last.profile if node.last is not None else (in_hand.name if in_hand is not None else "")

        def chosen(profile: str | None) -> None:
            if profile:
                self.post_message(NodeChosen(node, profile))

        serves, seen = self._list.model(node), self._list.seen(node)
        words = serves if serves == "?" or seen == "now" else f"{serves}, seen {seen}"
        dialog = ProfileChoice(node.name, words, listed, node.past, first=first, moment=self.relaunch.moment())
        self.app.push_screen(dialog, chosen)


def turn_to(app: ConsoleApp, node: KnownNode, profile: str) -> None:
    """Have the app watch `node` with `profile`; the practice node has its own. Changes nothing there. Raises RelaunchError."""
    opening = app.needed_opening()
    if node.kind == "practice":
        app.production = False
        app.go(opening.practice())
        return
    live = opening.node_live("local" if node.kind == "local" else node.name, profile)
    app.go(live)
    app.production = node.production
