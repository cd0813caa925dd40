"""The answer in place of the question: why the run failed, what it means, which key mends it. One pane, few rows."""

from __future__ import annotations

from textual.strip import Strip

from console.live import Glance
from console.state import StepView
from console.text import clean, headline
from screens.source import Moment
from screens.widgets.checklist import WAY_BACK
from screens.widgets.lines import Pane, line, wrap

LABEL = 7


class CausePane(Pane):
    """What failed and why, from the run's own cause, else from its last sentence."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glance = Glance()
        self._rows = [line("")]
        self.most = 14
        """Rows at most."""

    def show(self, glance: Glance, moment: Moment) -> None:
        self._glance = glance
        self.redraw()

    def rows(self, width: int, height: int) -> list[Strip]:
        run = self._glance.run
        cause, ended = run.cause, run.ended
        if ended is None and cause is None:
            return [line("")]
        told = "" if ended is None else clean(ended.text)
        step = cause.step if cause else next((item.name for item in run.steps if item.state == "failed"), run.verb)
        inner = width - LABEL - 3
        first = headline(clean(cause.meaning or cause.text) if cause else told, 3 * width)
        fail = self.glyphs.fail
        rows = [
            line((f" {fail} {part}" if not place else f"   {part}", "bold red"))
            for place, part in enumerate(self._cut(wrap(f"{step} failed: {first}", width - 4), width - 4, 2))
        ]
        if cause is not None:
            where = [cause.process] if cause.process else []
            where += [f"same on {cause.ranks} ranks"] if cause.ranks and cause.ranks > 1 else []
            where += [f"line {cause.line} of the log"] if cause.line else []
            rows += self._block("where", ", ".join(clean(item) for item in where), inner, 1, "dim")
            if cause.meaning:
                rows += self._block("says", clean(cause.text), inner, 3)
        if cause is not None:
            back = run.step(WAY_BACK)
            then = (
                _afterwards(told, run.step(step))
                or f"not over yet: {clean(back.detail) if back is not None else 'the profile says what follows'}"
            )
            rows += self._block("then", then, inner, 2)
        remedy = clean(cause.remedy if cause and cause.remedy else ended.remedy if ended else "")
        rows += self._block("do", remedy, inner, 4, "")
        if run.proposed is not None and self.relaunch.fixable:
            key = self.relaunch.key_of("fix")
            words = self._cut(wrap(f"{clean(run.proposed.text)}, and launch again", inner - len(key) - 1), inner, 2)
            rows += [
                line(
                    f"   {'fix' if not place else '':<{LABEL}}",
                    (key if not place else " " * len(key), "bold red"),
                    (f" {part}", "bold"),
                )
                for place, part in enumerate(words)
            ]
        return rows[: self.most]

    def _block(self, label: str, text: str, width: int, most: int, look: str = "") -> list[Strip]:
        parts = [part for part in wrap(text, width) if part]
        parts = self._cut(parts, width, most)
        return [
            line((f"   {label if not place else '':<{LABEL}}", "bold"), (part, look))
            for place, part in enumerate(parts)
        ]

    def _cut(self, parts: list[str], width: int, most: int) -> list[str]:
        """The first rows; what is cut off shows."""
        if len(parts) <= most:
            return parts
        return [*parts[: most - 1], f"{parts[most - 1][: width - 2]} {self.glyphs.ellipsis}"]


def _afterwards(told: str, step: StepView | None) -> str:
    """What followed the failure: the run's last sentence without the failure itself, which stands above."""
    failure = clean(step.detail) if step is not None else ""
    rest = told.removeprefix(failure).lstrip("; ")
    return rest or told
