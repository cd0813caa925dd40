"""Opened with nothing configured: rehearse, take a node that is known or stands in the OpenSSH config, or open a log file.

A host of the OpenSSH config that is chosen is written to the nodes file, so that it is known from then on; then a profile
is chosen. Nothing is connected to before that.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip

from console.errors import RelaunchError, UsageError
from console.live import Glance
from console.node.target import openssh_config_files
from console.settings import config_folder
from console.text import clean
from screens.base import ConsoleScreen
from screens.source import Moment, Source
from screens.widgets.lines import Pane, Part, line, wrap

INCLUDE_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Offer:
    """One line of the menu: what it is, words, and what Enter does: (deed, argument)."""

    name: str
    words: str
    deed: str
    argument: str = ""
    group: str = ""


class Menu(Pane):
    """Offers in groups; j/k choose."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "down", id="menu.down", show=False),
        Binding("k,up", "move(-1)", "up", id="menu.up", show=False),
        Binding("enter", "take", "take", id="menu.take"),
    ]

    def __init__(self, title: str, offers: list[Offer], about: str) -> None:
        super().__init__(id="menu")
        self._words = (title, about)
        self.offers = offers
        self.place = 0

    def turn(self, title: str, offers: list[Offer], about: str) -> None:
        """Show other offers."""
        self._words, self.offers, self.place = (title, about), offers, 0
        self.redraw()

    def rows(self, width: int, height: int) -> list[Strip]:
        title, about = self._words
        rows = [self.title(width, title), line("")]
        rows += [line("   ", part) for part in wrap(about, max(20, width - 8))]
        group = None
        body: list[tuple[int, Strip]] = []
        for place, offer in enumerate(self.offers):
            if offer.group != group:
                group = offer.group
                body += [(place, line("")), (place, line("   ", (group, "bold cyan")))]
            here = place == self.place
            mark: Part = (f" {self.glyphs.cursor} ", "bold cyan") if here else "   "
            room = max(0, width - 30)
            body.append(
                (
                    place,
                    line(
                        mark,
                        (f"{offer.name[:23]:<24}", "bold reverse" if here else "bold"),
                        "  ",
                        (offer.words[:room], "" if here else "dim"),
                    ),
                )
            )
        room = max(3, height - len(rows))
        chosen = next((row for row, (place, _) in reversed(list(enumerate(body))) if place == self.place), 0)
        first = max(0, min(chosen - room + 2, len(body) - room))
        return [*rows, *(strip for _, strip in body[first : first + room])]

    def action_move(self, by: int) -> None:
        self.place = max(0, min(len(self.offers) - 1, self.place + by))
        self.redraw()

    def action_take(self) -> None:
        screen = self.screen
        if self.offers and isinstance(screen, FirstUseScreen):
            screen.take(self.offers[self.place])


class FirstUseScreen(ConsoleScreen):
    """The way in."""

    WORD = "welcome"
    PANES: ClassVar[tuple[type, ...]] = (Menu,)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,h,escape", "back", "back", id="back"),
    ]

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._node = ""

    def body(self) -> ComposeResult:
        yield Menu("Relaunch", offers(), ABOUT)

    def show(self, glance: Glance, moment: Moment) -> None:
        """The menu does not depend on what is known of a node."""

    def action_back(self) -> None:
        if self._node:
            self._node = ""
            self.query_one(Menu).turn("Relaunch", offers(), ABOUT)
        else:
            self.relaunch.back()

    def take(self, offer: Offer) -> None:
        """Do what an offer says."""
        app = self.relaunch
        try:
            if offer.deed == "rehearse":
                app.go(app.needed_opening().practice())
            elif offer.deed == "log":
                self._ask_log()
            elif offer.deed in ("node", "host"):
                if offer.deed == "host":
                    app.say(f"{offer.name} is written to {remember(offer.name)}")
                self._choose_profile(offer.argument)
            elif offer.deed == "profile":
                opening = app.needed_opening()
                app.production = opening.target(self._node).production
                app.go(opening.node_live(self._node, offer.argument))
        except RelaunchError as error:
            app.say(f"{error.message}{'; ' + error.remedy if error.remedy else ''}", "error")

    def _choose_profile(self, node: str) -> None:
        from console.profile.load import list_profiles

        opening = self.relaunch.needed_opening()
        found = [
            Offer(
                item.name,
                item.profile.title if item.profile else "has problems: `relaunch profile check`",
                "profile",
                item.name,
                "Profiles",
            )
            for item in list_profiles(opening.folders())
        ]
        if not found:
            raise UsageError("there is no profile", "write one, and name its folder with --profiles DIR")
        self._node = node
        self.query_one(Menu).turn(
            f"What shall {clean(node)} serve?",
            found,
            "Nothing is changed by choosing: the main screen shows what is, p what would change.",
        )

    def _ask_log(self) -> None:
        from screens.dialogs import asked_path

        def opened(path: str | None) -> None:
            if path:
                self.relaunch.open("log", path=Path(path).expanduser())

        self.app.push_screen(
            asked_path("Open a log file", "A log of vLLM or SGLang on this machine; no node is needed."), opened
        )


ABOUT = (
    "Replaces the model that serves on a GPU machine you own, verifies every step by its effect, and keeps a way back. "
    "Nothing is configured yet; choose where to begin."
)


def offers() -> list[Offer]:
    """What can be begun with: known nodes first after the rehearsal, then hosts of the OpenSSH config, then a file."""
    known: list[Offer] = []
    path = config_folder(os.environ) / "nodes.yaml"
    names: set[str] = set()
    if path.exists():
        from console.node.nodes_file import load_nodes

        for name, target in load_nodes(path).items():
            mark = ", production" if target.production else ""
            known.append(Offer(name, f"{target.host}{mark}", "node", name, "Known nodes"))
            names.add(name)
    hosts = [
        Offer(host, "from the OpenSSH config; is then a known node", "host", host, "Add a node")
        for host in openssh_hosts(openssh_config_files())
        if host not in names
    ]
    return [
        Offer(
            "rehearse",
            "the whole job, practised; nothing real is touched",
            "rehearse",
            group="Begin",
        ),
        *known,
        Offer("this machine", "serve here, without SSH", "node", "local", "Known nodes" if known else "Add a node"),
        *hosts,
        Offer("a log file", "the first cause and a view of any vLLM log", "log", group="Look"),
    ]


def openssh_hosts(files: tuple[str, ...], depth: int = 0) -> tuple[str, ...]:
    """The aliases that OpenSSH config files name, without patterns, in their order; Include is followed."""
    found: dict[str, None] = {}
    for file in files:
        try:
            text = Path(file).read_text(errors="replace")
        except OSError:
            continue
        for row in text.splitlines():
            word, _, rest = row.strip().replace("=", " ", 1).partition(" ")
            if word.lower() == "host":
                found |= dict.fromkeys(clean(name.strip('"')) for name in rest.split() if not re.search(r"[*?!]", name))
            elif word.lower() == "include" and depth < INCLUDE_DEPTH:
                base = Path(file).parent
                for pattern in rest.split():
                    named = os.path.expanduser(pattern)
                    inner = [str(path) for path in ([Path(named)] if os.path.isabs(named) and "*" not in named else
                             (Path("/").glob(named.lstrip("/")) if os.path.isabs(named) else base.glob(named)))]  # fmt: skip
                    found |= dict.fromkeys(openssh_hosts(tuple(sorted(inner)), depth + 1))
    return tuple(found)


def remember(host: str) -> Path:
    """Add a host alias to the nodes file, and return the file. What stands there stays as it is."""
    from console.node.nodes_file import default_nodes_file, load_nodes

    path = default_nodes_file()
    entry = f"  {_quoted(host)}: {{}}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or not path.read_text().strip():
            path.write_text(f"nodes:\n{entry}")
            return path
        before = path.read_text()
        if host in load_nodes(path):
            return path
        after = re.sub(r"(?m)^nodes:[ \t]*\n", lambda found: found.group(0) + entry, before, count=1)
        if after == before:
            raise UsageError(
                f"{path} is not in block form, so {host} is not added to it", f"add `{host}: {{}}` under nodes:"
            )
        path.write_text(after)
        load_nodes(path)
    except RelaunchError:
        raise
    except OSError as error:
        raise RelaunchError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][\w.-]*", name) else '"' + name.replace('"', "") + '"'
