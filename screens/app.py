"""The console: one app over one source, one timer, a table of screens; what an operator does by keys goes through here.

`run(options)` is the front end that `relaunch` opens without a verb. The app reads `source.glance()` four times a second
and hands it to the screen on top when something moved; no screen has a timer of its own for it. Quitting detaches: what
runs on the node goes on.
"""

# ruff: noqa: E402 - the environment is set before textual is imported, which reads it then

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

# Read when textual is imported, so they stand before it. Slow links and tmux get small, few frames.
for _name, _value in (
    ("TEXTUAL_FPS", "15"),
    ("TEXTUAL_ANIMATIONS", "none"),
    ("TEXTUAL_SMOOTH_SCROLL", "0"),
    ("TEXTUAL_THEME", "ansi-dark"),
):
    os.environ.setdefault(_name, _value)
if os.environ.get("NO_COLOR") == "":
    del os.environ["NO_COLOR"]  # the public rule says non-empty; Textual counts an empty one as set

from rich.text import Text
from textual.app import App
from textual.binding import Binding, BindingType
from textual.filter import Monochrome, NoColor
from textual.screen import ModalScreen, Screen

from console.deploy.store import state_folder
from console.errors import ExitCode, RelaunchError
from console.live import Glance
from console.text import clean
from console.verbs import verb
from screens.deeds import Deed, Deeds, up_units
from screens.glyphs import UNICODE, Glyphs
from screens.source import Moment, Source
from screens.status import MESSAGE_SECONDS, KeyLine

if TYPE_CHECKING:
    from console.live import Live
    from screens.base import ConsoleScreen
    from screens.session import Opening

SCREENS: dict[str, str] = {
    "cause": "screens.cause:CauseScreen",
    "first-use": "screens.first_use:FirstUseScreen",
    "gpu": "screens.gpu_detail:GpuDetailScreen",
    "help": "screens.help:HelpScreen",
    "log": "screens.log:LogScreen",
    "main": "screens.main:MainScreen",
    "nodes": "screens.nodes:NodesScreen",
    "plan": "screens.plan:PlanScreen",
    "replay": "screens.replay:ReplayScreen",
    "runs": "screens.runs:RunsScreen",
    "status": "screens.node_status:NodeStatusScreen",
    "step": "screens.step_detail:StepDetailScreen",
    "throughput": "screens.throughput:ThroughputScreen",
}
"""Every full screen by name; `Class(source, **given)`. Imported when it is opened for the first time."""

VERB_SCREENS: Mapping[str, str] = {
    "plan": "plan", "status": "status", "gpus": "gpu", "logs": "log", "runs": "runs", "diagnose": "cause", "bench": "throughput",
}  # fmt: skip
"""The verbs that are a screen here."""

TICK_SECONDS = 0.25
RENEWAL_SECONDS = 10.0
"""The lowest screen is made anew after a failure; when it fails again within this time, the console ends."""
Result = TypeVar("Result")


class ConsoleApp(App[int]):
    """The console. `source` is what is shown; `opening` makes another one, for the nodes and first-use screens."""

    CSS_PATH = "console.tcss"
    TITLE = "Relaunch"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        # done by the app itself, before the keys that follow in the same burst are handed to anyone
        Binding("colon", "command", "command", id="command", priority=True),
        Binding("question_mark", "open('help')", "help", id="help"),
        Binding("ctrl+c", "leave", "detach", id="quit-now", show=False),
    ]

    def __init__(
        self,
        source: Source,
        *,
        glyphs: Glyphs = UNICODE,
        clock: Callable[[], Moment] = Moment.now,
        read_only: bool = False,
        production: bool = False,
        keymap: Mapping[str, str] | None = None,
        first: str = "main",
        opening: Opening | None = None,
    ) -> None:
        super().__init__()
        # Textual chose this filter by a theme that may not be the terminal's own; without colour there are no colours
        self._filters = [NoColor() if isinstance(item, Monochrome) else item for item in self._filters]
        self.source = source
        self.glyphs = glyphs
        self.moment = clock
        self.read_only = read_only
        self.production = production
        """The node is marked production: its name is typed before it is changed."""
        self.opening = opening
        """What makes other sources; None in tests and replays."""
        self.deeds = Deeds()
        self.set_class(glyphs.ascii, "-ascii")
        self.strict = False
        """True raises what a screen raises instead of showing it; for tests."""
        self._first = self._lowest = first
        self._renewed: float | None = None
        self._chosen_keys = dict(keymap or {})
        self._seen: tuple[int, int, int] | None = None
        self.beats: list[Callable[[], None]] = []
        """Called at every second turn of the timer, by panes whose lines come past the glance: logs."""
        self._turns = 0
        self._down_since: float | None = None
        self._message: tuple[str, str, float] | None = None
        self._live: Live | None = None
        self._failed: set[str] = set()
        self._tasks: set[asyncio.Future[None]] = set()

    # -- time ---------------------------------------------------------------------------------------------------------

    async def on_mount(self) -> None:
        if self._chosen_keys:
            self.set_keymap(self._chosen_keys)
        await self.push_screen(self._made(self._first))
        self.set_interval(TICK_SECONDS, self._turn)

    def _turn(self) -> None:
        self._turns += 1
        if not self._turns % 2:
            for beat in tuple(self.beats):
                beat()
        self.tick()

    def tick(self, *, again: bool = False) -> None:
        """Hand what is known to the screen on top, when it moved or a second went by."""
        glance, moment = self.source.glance(), self.moment()
        key = (id(self.source), glance.version, int(moment.mono))
        if key == self._seen and not again:
            return
        self._seen = key
        self._note_link(glance, moment)
        screen = self.screen
        if not hasattr(screen, "tick") or not screen.is_mounted or self._exit or not screen.is_running:
            return
        try:
            screen.tick(glance, moment)
        except Exception as error:
            self._screen_failed(screen, error)

    def link_down(self, moment: Moment) -> float:
        """Seconds since the link is down; 0 while it is up."""
        return 0.0 if self._down_since is None else max(0.0, moment.mono - self._down_since)

    def _note_link(self, glance: Glance, moment: Moment) -> None:
        if glance.link.up:
            self._down_since = None
        elif self._down_since is None:
            self._down_since = moment.mono

    # -- screens ------------------------------------------------------------------------------------------------------

    def open(self, name: str, **given: Any) -> None:
        """Put the screen called `name` on top; one that cannot be opened says why."""
        try:
            screen = self._made(name, **given)
        except Exception as error:
            if self.strict and not isinstance(error, (ImportError, RelaunchError)):
                raise
            self.say(f"{name}: {_words(error)}", "error")
            return
        self.push_screen(screen)

    def back(self) -> None:
        """Leave the screen on top; leaving the last one leaves the console."""
        if len(self.screen_stack) > 2:
            self.pop_screen()
        else:
            self.action_leave()

    def use(self, source: Source) -> None:
        """Show another source from now on, from its main screen."""
        self.source = source
        self._seen = None
        self._down_since = None
        while len(self.screen_stack) > 2:
            self.pop_screen()
        self._lowest = "main"
        self.switch_screen(self._made("main"))

    def home(self) -> None:
        """Back to the lowest screen."""
        while len(self.screen_stack) > 2:
            self.pop_screen()

    def needed_opening(self) -> Opening:
        """What makes other sources; raises RelaunchError where there is none."""
        if self.opening is None:
            raise RelaunchError("this console shows one thing only", "open `relaunch` for another node")
        return self.opening

    def go(self, live: Live) -> None:
        """Watch another node from now on; what is watched now is left, and its work on the node goes on."""

        async def turn() -> None:
            await self.leave_live()
            await self.attend(live)
            self.use(live)

        if self.source.glance().running:
            live.spool.close()
            raise RelaunchError(
                "a run goes on here", "wait for its end, or interrupt it (i) before you turn to another node"
            )
        self.later(turn())

    async def attend(self, live: Live) -> None:
        """Begin the tasks of a live source; they end with `leave_live`, not with a screen."""
        self._live = live
        await live.__aenter__()

    async def leave_live(self) -> None:
        """End the tasks of the live source, if there is one."""
        live, self._live = self._live, None
        if live is not None:
            await live.close()

    def _made(self, name: str, **given: Any) -> ConsoleScreen:
        module, _, cls = SCREENS[name].partition(":")
        made: ConsoleScreen = getattr(import_module(module), cls)(self.source, **given)
        return made

    def _screen_failed(self, screen: Screen[Any], error: Exception) -> None:
        """Show that a screen failed, keep the console. Each kind of failure is written down once."""
        if self.strict:
            raise error
        name = type(screen).__name__
        mark = f"{name}: {error!r}"
        if mark not in self._failed:
            self._failed.add(mark)
            _write_down(error)
        self.say(f"{name} failed: {_words(error)}; q goes back", "error")

    def _handle_exception(self, error: Exception) -> None:
        # Textual ends the app for whatever a handler raises. Here the screen goes and the console stays: the one under
        # it shows, or the lowest is made anew, unless that fails again and again.
        if self.strict or not self._running:
            super()._handle_exception(error)
            return
        path = _write_down(error)
        now = self.moment().mono
        if len(self.screen_stack) > 2:
            self.say(f"{type(self.screen).__name__} failed and was closed: {_words(error)}", "error")
            self.call_later(self.pop_screen)
        elif self._renewed is None or now - self._renewed > RENEWAL_SECONDS:
            self._renewed = now
            self.say(f"{type(self.screen).__name__} failed and was made anew: {_words(error)}", "error")
            self.call_later(self.switch_screen, self._made(self._lowest))
        else:
            self._return_code = 1
            self.panic(Text(f"relaunch: the console failed: {_words(error)}\n  the traceback is in {path}"))

    def key_of(self, name: str) -> str:
        """The key of the binding with this id, as an operator writes it; the keymap's where it says so."""
        from screens.keys import shown

        if name in self._chosen_keys:
            return shown(self._chosen_keys[name].split(",")[0])
        for item in self.screen.active_bindings.values():
            if item.binding.id == name:
                return shown(item.binding.key)
        return f":{name}"

    def later(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that takes time, beside the screens; a RelaunchError is said."""

        async def guarded() -> None:
            try:
                await work
            except RelaunchError as error:
                self.say(_words(error), "error")

        task = asyncio.ensure_future(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- words --------------------------------------------------------------------------------------------------------

    def say(self, text: str, level: str = "info") -> None:
        """One sentence in place of the keys, for some seconds. `level`: info, warning, error."""
        moment = self.moment()
        self._message = (" ".join(clean(text).split()), level, moment.mono + MESSAGE_SECONDS)
        for line in self.screen.query(KeyLine):
            line.redraw()

    def message(self, moment: Moment) -> tuple[str, str] | None:
        """The sentence to show at `moment`, and its level."""
        if self._message is None or moment.mono >= self._message[2]:
            return None
        return self._message[0], self._message[1]

    async def answer(self, make: Callable[[], ModalScreen[Result]]) -> Result | None:
        """Ask with the dialog that `make` makes and wait for the answer. For tasks outside the app: a run that wants a
        confirmation, a login that wants a password. None when nobody can be asked any more."""
        future: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()

        def put(result: Result | None) -> None:
            if not future.done():
                future.set_result(result)

        if not self._running:
            return None
        self.call_later(lambda: self.push_screen(make(), put))
        return await future

    # -- deeds --------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that would do nothing now are not named and do nothing."""
        if action == "command":
            # a line that is typed into is known by its cursor: importing Input would cost the first frame
            return not isinstance(self.screen, ModalScreen) and not hasattr(self.focused, "cursor_position")
        if action == "fix":
            return self.fixable and not self.read_only
        if action == "verb" and parameters and verb(str(parameters[0])).destructive:
            glance = self.source.glance()
            known = {
                "rollback": glance.good is not None or failed(glance),
                "stop": bool(up_units(glance)),
            }.get(str(parameters[0]), True)
            return known and not glance.running and not self.read_only
        return True

    @property
    def fixable(self) -> bool:
        """The last run failed, and found a remedy that can be applied from here."""
        glance = self.source.glance()
        return failed(glance) and glance.run.proposed is not None

    def action_open(self, name: str) -> None:
        self.open(name)

    def action_command(self) -> None:
        from screens.command_line import CommandLine

        self.push_screen(CommandLine(), self._commanded)

    def _commanded(self, text: str | None) -> None:
        from screens.command_line import obey

        if text:
            obey(self, text)

    def action_verb(self, name: str) -> None:
        """Do a verb of the registry: open its screen, or run its script."""
        if name in VERB_SCREENS:
            self.open(VERB_SCREENS[name])
        else:
            self.do(Deed(name))

    def action_fix(self) -> None:
        """Apply the known remedy of the last failed launch, and launch with it."""
        from screens.deeds import remedies

        if remedies(self):
            self.do(Deed("redeploy", fix=True))
        else:
            self.say("no known remedy of a failed launch fits the profile as it is now", "warning")

    def do(self, deed: Deed) -> None:
        """Run a script on the node, after the questions that it needs. Recorded for `:save`."""
        from screens.deeds import begin

        begin(self, deed)

    def action_leave(self) -> None:
        """Leave the console; while a run goes on, say first what stays behind."""
        from screens.dialogs import leaving

        if not self.source.glance().running:
            self.exit(0)
            return
        self.push_screen(leaving(self.source.glance()), lambda leave: self.exit(0) if leave else None)


def failed(glance: Glance) -> bool:
    """True when the last run ended in failure and the console has not begun another."""
    ended = glance.run.ended
    return ended is not None and ended.code not in (ExitCode.DONE, ExitCode.INTERRUPTED) and not glance.running


def answered(glance: Glance) -> bool:
    """True when the answer is to be shown in place of the question: the run failed, or its step did and the cause is
    known while the way back is still taken."""
    run = glance.run
    if failed(glance):
        return True
    cause = run.cause
    step = run.step(cause.step) if cause is not None else None
    return glance.running and step is not None and step.state == "failed"


def _words(error: BaseException) -> str:
    if isinstance(error, RelaunchError):
        return f"{error.message}{'; ' + error.remedy if error.remedy else ''}"
    if isinstance(error, ImportError):
        return "this screen is not here yet"
    return f"{type(error).__name__}: {error}"


def _write_down(error: BaseException) -> Path:
    """Keep the traceback of a defect in a file; the terminal gets a sentence."""
    path = state_folder() / "console-errors.log"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
        traceback.print_exception(error, file=file)
    return path


def run(options: argparse.Namespace) -> int:
    """The front end that `relaunch` opens without a verb. Returns an exit code."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        from console.errors import UsageError

        raise UsageError("the console needs a terminal", "without one: relaunch --script redeploy, or a verb")
    if getattr(options, "file", None):
        from console.deploy.store import open_store
        from screens.log_file import view_file

        with open_store() as store:
            return view_file(Path(options.file), store, ascii_only=bool(getattr(options, "ascii", False)))
    from screens.session import open_console

    return open_console(options)
