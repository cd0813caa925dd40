"""The main screen: checklist, GPUs, log. After a failure the cause takes the room of the question.

Wide (100 columns or more): the checklist at the left over the whole height, the rest beside it. Narrow: checklist and GPUs
side by side, the log below; with a cause both shrink to one row each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.geometry import Region

from console.live import Glance
from screens.app import answered
from screens.base import ConsoleScreen
from screens.keys import verb_binding
from screens.source import Moment, Source
from screens.status import KeyLine
from screens.widgets.cause import CausePane
from screens.widgets.checklist import Checklist
from screens.widgets.gpus import Gpus
from screens.widgets.log_pane import LogPane
from screens.widgets.summary import SummaryPane

WIDE = 100
STEP_ROWS = 17
"""Rows of the whole checklist: title, fourteen steps, the downtime line, one blank."""
NOWHERE = Region(0, 0, 0, 0)
IDLE_KEYS = (
    "redeploy",
    "plan",
    "main.filter",
    "main.noise",
    "logs",
    "diagnose",
    "bench",
    "runs",
    "gpus",
    "rollback",
    "stop",
)
BUSY_KEYS = ("checklist.open", "main.filter", "main.noise", "logs", "diagnose", "gpus", "interrupt", "plan")
FAILED_KEYS = ("fix", "diagnose", "logs", "rollback", "redeploy", "main.noise", "plan")


class MainScreen(ConsoleScreen):
    """What runs, what failed, why, and what may be pressed."""

    FIRST = IDLE_KEYS
    PANES: ClassVar[tuple[type, ...]] = (Checklist, Gpus, LogPane)
    AUTO_FOCUS = "#checklist"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "app.leave", "detach", id="quit"),
        Binding("h,escape", "app.open('nodes')", "nodes", id="nodes", show=False),
        verb_binding("redeploy"),
        verb_binding("rollback"),
        verb_binding("stop"),
        Binding(
            "F",
            "app.fix",
            "fix and relaunch",
            id="fix",
            tooltip="apply the known remedy of the failure, and launch again",
        ),
        Binding("i", "interrupt", "interrupt", id="interrupt", tooltip="stop walking; what runs on the node goes on"),
        verb_binding("plan"),
        verb_binding("logs", "log"),
        verb_binding("diagnose", "cause"),
        verb_binding("bench", "throughput"),
        verb_binding("runs"),
        verb_binding("gpus"),
        verb_binding("status", show=False),
        Binding("u", "look", "look again", id="look", show=False, tooltip="read the node's facts again"),
        Binding("slash", "log('filter')", "filter", id="main.filter"),
        Binding("n", "log('noise')", "noise", id="main.noise"),
    ]

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._bad = False
        self._placed: dict[str, Region] = {}

    def body(self) -> ComposeResult:
        with Container(id="main"):
            yield Checklist(id="checklist")
            yield SummaryPane(id="summary")
            yield Gpus(id="gpus")
            yield CausePane(id="cause")
            yield LogPane(self.source, id="log")

    def show(self, glance: Glance, moment: Moment) -> None:
        bad = answered(glance)
        if bad != self._bad:
            self._bad = bad
            self._fit()
        self.query_one(KeyLine).first(FAILED_KEYS if bad else BUSY_KEYS if glance.running else IDLE_KEYS)
        self.query_one(Checklist).show(glance, moment)
        self.query_one(Gpus).show(glance, moment)
        self.query_one(SummaryPane).show(glance, moment)
        if bad:
            self.query_one(CausePane).show(glance, moment)
        self.query_one(LogPane).show(glance, moment)
        self._place()

    def on_resize(self, event: events.Resize) -> None:
        self._fit()

    def _fit(self) -> None:
        """Choose the forms for the present size."""
        narrow, small = self.size.width < WIDE, self.size.height < 30
        self.query_one(Checklist).strip_form = narrow and self._bad
        self.query_one(Gpus).strip_form = self._bad and (narrow or small)
        self.query_one(CausePane).most = max(4, min(14, self.size.height // 2))
        self._placed = {}
        self._place()

    def _place(self) -> None:
        """Give every pane its place; nothing is laid out again while the places stay."""
        size = self.size
        if size.height < 3:
            return
        gpus, cause = self.query_one(Gpus), self.query_one(CausePane)
        wanted = places(
            size.width,
            size.height - 2,
            bad=self._bad,
            gpu_rows=lambda width: len(gpus.rows(width, 0)),
            cause_rows=lambda width: len(cause.rows(width, 0)),
        )
        if wanted == self._placed:
            return
        self._placed = wanted
        for name, region in wanted.items():
            styles = self.query_one(f"#{name}").styles
            styles.display = "block" if region.area else "none"
            styles.offset = (region.x, region.y)
            styles.width, styles.height = region.width, region.height
        if self.focused is None:  # what had it was hidden while there was no room; the keys need somewhere to go
            self.call_after_refresh(self._focus_again)

    def _focus_again(self) -> None:
        if self.focused is None and self.query_one(Checklist).display:
            self.query_one(Checklist).focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that would do nothing now are not named and do nothing."""
        glance = self.source.glance()
        if action == "interrupt":
            return glance.running
        return True

    async def action_interrupt(self) -> None:
        await self.source.interrupt()
        self.relaunch.say("interrupted; what runs on the node goes on", "warning")

    async def action_look(self) -> None:
        self.relaunch.later(self.source.look())

    def action_log(self, what: str) -> None:
        """Hand a key to the log pane."""
        pane = self.query_one(LogPane)
        if what != "noise":
            pane.focus()
        self.call_later(pane.run_action, what)

    def on_checklist_opened(self, message: Checklist.Opened) -> None:
        self.relaunch.open("step", step=message.name)

    def on_gpus_opened(self, message: Gpus.Opened) -> None:
        self.relaunch.open("gpu", index=message.index)


def places(
    width: int, height: int, *, bad: bool, gpu_rows: Callable[[int], int], cause_rows: Callable[[int], int]
) -> dict[str, Region]:
    """Where the panes stand in `width` by `height` cells, by id. What has no room is empty."""
    if width >= WIDE:
        left = min(58, max(46, width * 2 // 5))
        right = width - left - 1
        steps = STEP_ROWS if height >= STEP_ROWS + 5 else height
        gpus = min(gpu_rows(right), height)
        cause = min(cause_rows(right) + 1, max(0, height - gpus - 3)) if bad else 0
        return {
            "checklist": Region(0, 0, left, steps),
            "summary": Region(0, steps, left, height - steps),
            "gpus": Region(left + 1, 0, right, gpus),
            "cause": Region(left + 1, gpus, right, cause),
            "log": Region(left + 1, gpus + cause, right, max(0, height - gpus - cause)),
        }
    if bad:
        cause = min(cause_rows(width), max(0, height - 4))
        return {
            "checklist": Region(0, 0, width, 1),
            "summary": NOWHERE,
            "gpus": Region(0, 1, width, 1),
            "cause": Region(0, 2, width, cause),
            "log": Region(0, 2 + cause, width, max(0, height - 2 - cause)),
        }
    if width < 60:
        steps = min(height // 2, 9)
        gpus = min(gpu_rows(width), max(0, height - steps - 4))
        return {
            "checklist": Region(0, 0, width, steps),
            "summary": NOWHERE,
            "gpus": Region(0, steps, width, gpus),
            "cause": NOWHERE,
            "log": Region(0, steps + gpus, width, max(0, height - steps - gpus)),
        }
    left = width // 2 - 1
    right = width - left - 1
    top = min(max(gpu_rows(right), 10), height * 3 // 5)
    return {
        "checklist": Region(0, 0, left, top),
        "summary": NOWHERE,
        "gpus": Region(left + 1, 0, right, top),
        "cause": NOWHERE,
        "log": Region(0, top, width, height - top),
    }
