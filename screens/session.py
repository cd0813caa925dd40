"""The console's process: what the command line names becomes a live source; the app runs; signals and a lost terminal end it.

Nothing that is wrong with the command line, the keymap, the nodes file or a profile waits for a screen: it is told on
stderr with its exit code before the terminal is taken over. Leaving cancels what this console does, and nothing on the node.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from console.deploy.store import Store, open_store, state_folder
from console.errors import ExitCode, UsageError
from console.live import Live, spool_path
from console.settings import Settings, config_folder
from console.text import Secret
from screens import frugal
from screens.app import SCREENS, ConsoleApp
from screens.empty import EmptySource
from screens.glyphs import choose
from screens.keys import Scope, bindings_of, keymap_file, load_keymap

if TYPE_CHECKING:  # what works on a node or reads a log is imported when it is needed: the first frame comes before it
    from console.node.base import Node
    from console.node.prompts import UnknownHost
    from console.node.target import Target
    from console.profile.model import Profile
    from console.rehearsal.practice import Practice

TERMINAL_SECONDS = 2.0
"""Pause between two looks at whether the terminal is still there; nothing signals it when SIGHUP is lost."""
LEAVE_SECONDS = 10.0
"""A terminal that is gone cannot hold the process longer than this."""


class ScreenPrompts:
    """Questions of a node session, asked as dialogs of the app. Before there is an app every answer is no."""

    def __init__(self) -> None:
        self.app: ConsoleApp | None = None

    async def accept_host(self, question: UnknownHost) -> bool:
        from screens.dialogs import unknown_host

        if self.app is None:
            return False
        agreed = await self.app.answer(lambda: unknown_host(question))
        return agreed is True

    async def password(self, question: str) -> Secret | None:
        from screens.dialogs import password

        if self.app is None:
            return None
        given: Secret | None = await self.app.answer(lambda: password(question))
        return given if given else None


class Opening:
    """Makes live sources of what the operator names, by command line or in a screen."""

    def __init__(self, options: argparse.Namespace, settings: Settings, store: Store) -> None:
        self.options = options
        self.settings = settings
        self.store = store
        self.prompts = ScreenPrompts()

    def given(self, name: str) -> object:
        return getattr(self.options, name, None)

    @property
    def read_only(self) -> bool:
        return bool(self.given("read_only"))

    @property
    def rehearse(self) -> bool:
        return bool(self.given("rehearse"))

    @property
    def node(self) -> str:
        """The node that the command line or the settings name; empty when none is."""
        return str(self.given("node") or self.settings.node or "")

    def folders(self) -> tuple[Path, ...]:
        from console.profile.load import profile_folders  # late: a console without a node needs no profile

        named = [Path(str(item)) for item in (self.given("profiles"), self.settings.profiles) if item]
        return profile_folders(named)

    def profile(self, name: str = "") -> Profile:
        """The profile called `name`, else the one of the command line or the settings."""
        from console.profile.load import find_profile

        wanted = name or str(self.given("profile") or self.settings.profile or "")
        if not wanted:
            raise UsageError("no profile named", "--profile NAME or FILE; `relaunch profile list` shows what there is")
        return find_profile(wanted, self.folders())

    def target(self, node: str) -> Target:
        from console.node.target import parse_target

        nodes = self.given("nodes")
        return parse_target(node, Path(str(nodes)) if nodes else None)

    def practice(self, profile: str = "") -> Live:
        """The practice node of this machine, started when it is not running."""
        from console.profile.load import find_profile
        from console.rehearsal.faults import parse

        faults = tuple(str(item) for item in (self.given("fault") or ()))  # type: ignore[attr-defined]
        parse(faults)  # what is wrong with them is told before the screen is taken
        chosen = find_profile(profile or str(self.given("profile") or "rehearsal"), self.folders())

        fresh = bool(faults)

        @contextlib.asynccontextmanager
        async def opener() -> AsyncIterator[tuple[Node, Profile]]:
            from console.node.ssh import connect
            from console.rehearsal.practice import ensure
            from console.session import practice_target

            nonlocal fresh
            practice = await ensure(state_folder() / "rehearsal", faults=faults, fresh=fresh)
            fresh = False
            target = practice_target(practice)
            async with connect(target, read_only=self.read_only, prompts=self.prompts) as node:
                yield node, _with_hub(chosen, practice)

        return self._live(opener, chosen, "rehearsal", rehearsal=True)

    def node_live(self, node: str, profile: str = "") -> Live:
        """A node of the operator's. Raises RelaunchError for a name or profile that cannot be used."""
        target, chosen = self.target(node), self.profile(profile)

        @contextlib.asynccontextmanager
        async def opener() -> AsyncIterator[tuple[Node, Profile]]:
            if target.kind == "local":
                from console.node.local import LocalNode

                yield LocalNode(read_only=self.read_only), chosen
                return
            from console.node.ssh import connect

            async with connect(target, read_only=self.read_only, prompts=self.prompts) as opened:
                yield opened, chosen

        return self._live(opener, chosen, target.name, rehearsal=False)

    def connect(self, node: str, profile: str) -> Live:
        """What a screen asks for: `rehearsal` is the practice node."""
        return self.practice(profile) if node == "rehearsal" and self.rehearse else self.node_live(node, profile)

    def _live(self, opener: object, profile: Profile, name: str, *, rehearsal: bool) -> Live:
        from console.triage import load_rules

        return Live(
            opener,  # type: ignore[arg-type]
            profile,
            self.store,
            load_rules(),
            spool=spool_path(name, profile.service.unit),
            rehearsal=rehearsal,
            name=name,
        )


def _with_hub(profile: Profile, practice: Practice) -> Profile:
    model = profile.model.model_copy(update={"endpoint": practice.hub})
    return profile.model_copy(update={"model": model})


def open_console(options: argparse.Namespace) -> int:
    """Run the console; the exit code."""
    if getattr(options, "no_color", False):
        os.environ["NO_COLOR"] = "1"
    settings = Settings.read(os.environ)
    if getattr(options, "fault", None) and not getattr(options, "rehearse", False):
        raise UsageError("--fault makes the practice node fail", "add --rehearse; a real node fails by itself")
    keymap = own_keymap()
    with open_store() as store:
        opening = Opening(options, settings, store)
        live: Live | None = None
        production = False
        if opening.rehearse:
            live = opening.practice()
        elif opening.node:
            live = opening.node_live(opening.node)
            production = opening.target(opening.node).production
        app = ConsoleApp(
            live or EmptySource(store),
            glyphs=choose(os.environ, ascii_only=bool(getattr(options, "ascii", False))),
            read_only=opening.read_only,
            production=production,
            keymap=keymap,
            first="main" if live else "first-use",
            opening=opening,
        )
        opening.prompts.app = app
        return asyncio.run(run_app(app, live))


def own_keymap() -> dict[str, str]:
    """The operator's keys; {} when there is no file. Raises InvalidFile."""
    path = keymap_file(config_folder(os.environ))
    return load_keymap(path, scopes()) if path.is_file() else {}


def scopes() -> tuple[Scope, ...]:
    """The bindings of every screen that is here, each with its panes and the app."""
    from importlib import import_module

    from screens.base import ConsoleScreen

    found = []
    for name, place in SCREENS.items():
        module, _, cls = place.partition(":")
        try:
            screen = getattr(import_module(module), cls)
        except ImportError:
            continue
        panes = tuple(getattr(screen, "PANES", ()))
        owners = [screen, ConsoleApp] if issubclass(screen, ConsoleScreen) else [screen]
        found += [Scope(name, bindings_of(pane, *owners)) for pane in panes] or [Scope(name, bindings_of(*owners))]
    return tuple(found)


async def run_app(app: ConsoleApp, live: Live | None = None) -> int:
    """The app on this terminal until it is left or the terminal goes away; the exit code."""
    for name in ("COLUMNS", "LINES"):  # where they are exported, Textual would believe them and never the terminal
        os.environ.pop(name, None)
    frugal.install()
    loop = asyncio.get_running_loop()
    watch = asyncio.ensure_future(_watch_terminal(app))
    for number in (signal.SIGHUP, signal.SIGTERM):
        loop.add_signal_handler(number, _end, app)
    try:
        if live is not None:
            await app.attend(live)
        code = await app.run_async(mouse=False)
        if code is None:
            return ExitCode.UNEXPECTED if app.return_code else ExitCode.DONE
        return int(code)
    finally:
        watch.cancel()
        await app.leave_live()


async def _watch_terminal(app: ConsoleApp) -> None:
    """End the console when its terminal is gone: Textual's reader would spin on the closed one for ever."""
    while os.isatty(0):  # noqa: ASYNC110 - no event tells it when SIGHUP is lost
        await asyncio.sleep(TERMINAL_SECONDS)
    _end(app)


def _end(app: ConsoleApp) -> None:
    """Leave now, and leave for certain: writing to a terminal that is gone may block for ever."""
    running = app.source.glance().running
    code = ExitCode.INTERRUPTED if running else ExitCode.DONE
    last = threading.Timer(LEAVE_SECONDS, os._exit, (int(code),))
    last.daemon = True
    last.start()
    app.exit(int(code))
