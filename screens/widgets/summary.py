"""What stands on the node and what the run remarked, in a few rows under the checklist, where there is room for it."""

from __future__ import annotations

from textual.strip import Strip

from console.live import Glance
from console.text import clean, duration, headline
from screens.source import Moment
from screens.widgets.lines import Pane, line, wrap

LABEL = 10
FRESH_SECONDS = 75.0
"""Facts are read once a minute; from here on their age is said."""


class SummaryPane(Pane):
    """Serves, last good, baseline, expected; then notes and warnings of the run."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glance = Glance()
        self._moment = Moment(0.0, 0.0)

    def show(self, glance: Glance, moment: Moment) -> None:
        self._glance, self._moment = glance, moment
        self.redraw()

    def rows(self, width: int, height: int) -> list[Strip]:
        age = self._moment.age(self._glance.facts_seen)
        old = f"{duration(int(age))} old" if age is not None and age > FRESH_SECONDS else ""
        rows = [self.title(width, "Node", (old, "bold yellow"))]
        for name, words, look in (*self._stands(), *self._before(), *self._remarks()):
            rows += [
                line(" ", (f"{name if not place else '':<{LABEL}}", "bold"), (part, look))
                for place, part in enumerate(wrap(words, max(10, width - LABEL - 2))[:2])
            ]
        return rows[: max(0, height)]

    def _stands(self) -> list[tuple[str, str, str]]:
        glance = self._glance
        facts, profile = glance.facts, glance.profile
        if facts is None:
            return [("serves", "? the node is not read yet", "yellow")]
        names = (profile.service.unit, *profile.replaces) if profile else tuple(facts.units)
        up = [unit for name in dict.fromkeys(names) if (unit := facts.units.get(name)) and unit.active != "inactive"]
        words = [(f"{clean(unit.name)}  {clean(unit.active)} ({clean(unit.sub)})", unit.active) for unit in up]
        rows = [
            ("serves" if not place else "", text, "green" if active == "active" else "yellow")
            for place, (text, active) in enumerate(words)
        ] or [("serves", "nothing", "yellow")]
        good = glance.good
        text = "none yet" if good is None else f"release {good.number}, {clean(good.profile)}, vLLM {clean(good.vllm)}"
        return [*rows, ("last good", text, "")]

    def _before(self) -> list[tuple[str, str, str]]:
        rows = []
        good = self._glance.good
        first = good.baseline[0] if good is not None and good.baseline else None
        if first is not None and first.output_tokens_per_s is not None:
            plural = "" if first.concurrency == 1 else "s"
            rows.append(
                ("baseline", f"{first.output_tokens_per_s:,.1f} tok/s at {first.concurrency} stream{plural}", "")
            )
        took = dict(self._glance.expected)
        if "launch" in took:
            down = sum(took.get(name, 0.0) for name in ("stop", "drain", "launch", "ready"))
            rows.append(("last time", f"{duration(took['launch'])} to load, {duration(down)} of downtime", ""))
        return rows

    def _remarks(self) -> list[tuple[str, str, str]]:
        run = self._glance.run
        sign = {"warn": self.glyphs.warn, "refuse": self.glyphs.fail}
        rows = [
            (found.step, f"{sign[found.level]} {clean(found.text)}", "yellow" if found.level == "warn" else "bold red")
            for found in run.findings
            if found.level in sign
        ]
        rows += [("note", headline(clean(note), 200), "") for note in run.notes[-3:]]
        if run.ended is not None and run.ended.code == 0:
            rows.append(("run", headline(clean(run.ended.text), 200), "green"))
        return rows
