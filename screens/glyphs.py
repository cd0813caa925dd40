"""The signs that screens draw with: all of them one cell wide, each with an ASCII twin that says the same. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from console.events import StepState


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs. Every field is one cell wide; `spark` and `plot` go from the lowest to the highest."""

    ok: str
    fail: str
    run: str
    idle: str
    warn: str
    unknown: str
    crumb: str
    """Between the parts of the breadcrumb."""
    rule: str
    """A horizontal line, repeated."""
    bar: str
    """A vertical line between panes."""
    ours: str
    """Memory of the service that this profile runs."""
    foreign: str
    """Memory of any other process."""
    loose: str
    """Memory that no visible process accounts for."""
    free: str
    full: str
    """The done part of a progress bar."""
    rest: str
    spark: str
    plot: str
    """One point of a plot."""
    dash: str
    times: str
    ellipsis: str
    degree: str
    up: str
    down: str
    focus: str
    """Before the title of the pane that has the keys."""
    cursor: str
    """Before the chosen row."""
    fold: str
    """Before a folded block of lines."""
    gate: str
    """Greater or equal."""
    dot: str
    """Between words that stand in one row."""
    thumb: str
    """The moving part of a scroll bar."""
    arrow: str

    @property
    def ascii(self) -> bool:
        return self.ok.isascii()


UNICODE = Glyphs(
    ok="✓", fail="✗", run="▶", idle="·", warn="!", unknown="?", crumb="›", rule="─", bar="│", ours="█", foreign="▓",
    loose="▒", free="░", full="█", rest="░", spark="▁▂▃▄▅▆▇█", plot="•", dash="–", times="×", ellipsis="…", degree="°",
    up="↑", down="↓", focus="▌", cursor="▸", fold="▸", gate="≥", dot="·", thumb="┃", arrow="→",
)  # fmt: skip

ASCII = Glyphs(
    ok="+", fail="x", run=">", idle=".", warn="!", unknown="?", crumb=">", rule="-", bar="|", ours="#", foreign="%",
    loose="=", free=".", full="#", rest=".", spark="_.-=*%#@", plot="*", dash="-", times="x", ellipsis="~", degree="C",
    up="^", down="v", focus="*", cursor=">", fold="+", gate=">", dot=",", thumb="#", arrow=">",
)  # fmt: skip


def choose(environment: Mapping[str, str], *, ascii_only: bool = False) -> Glyphs:
    """ASCII when it was asked for or where the locale does not promise UTF-8, as `LC_ALL=C` and an empty one do not."""
    locale = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or ""
    return ASCII if ascii_only or "utf" not in locale.lower() else UNICODE


def state_sign(glyphs: Glyphs, state: StepState) -> tuple[str, str]:
    """The sign of a step's state and its colour, one of the 16 named ones."""
    match state:
        case "done" | "satisfied":
            return glyphs.ok, "green"
        case "failed":
            return glyphs.fail, "bold red"
        case "checking" | "running" | "verifying":
            return glyphs.run, "bold cyan"
        case "needed":
            return glyphs.warn, "yellow"
        case _:
            return glyphs.idle, "dim"


def plain(text: str, glyphs: Glyphs) -> str:
    """`text` in what the terminal can show: with ASCII glyphs every other character becomes its twin, or `?`."""
    if text.isascii() or not glyphs.ascii:
        return text
    return "".join(char if char.isascii() else _TWINS.get(char, "?") for char in text)


_TWINS = {
    "–": "-", "—": "-", "─": "-", "…": "~", "×": "x", "›": ">", "→": "->", "≥": ">=", "≤": "<=", "°": "C", "•": "*",
    "·": ".", "✓": "+", "✗": "x", "“": '"', "”": '"', "‘": "'", "’": "'", "−": "-", "│": "|", "▸": ">", "▶": ">",
    "█": "#", "░": ".", "µ": "u", "\u00a0": " ",
}  # fmt: skip
