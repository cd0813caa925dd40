"""Rows for pages that are read from top to bottom: a label and its text, a diff, a list, and how old a thing is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.strip import Strip

from console.text import clean
from screens.source import STALE_SECONDS, Moment
from screens.widgets.lines import Part, line, wrap

LABEL = 10
"""Columns of the label, with the blank before and after it."""


def section(label: str, text: str, width: int, *, look: str = "", label_look: str = "bold") -> list[Strip]:
    """`label  text`, the text wrapped beside its label. Text that came from a node is cleaned here."""
    return labelled(label, [line((part, look)) for part in wrap(clean(text), max(8, width - LABEL - 1))], label_look)


def labelled(label: str, rows: Iterable[Strip], label_look: str = "bold") -> list[Strip]:
    """`rows` with the label before the first and blanks before the others."""
    found = []
    for place, row in enumerate(rows):
        head: Part = (f" {label}".ljust(LABEL)[:LABEL], label_look) if not place else " " * LABEL
        found.append(Strip([*line(head), *row]))
    return found


def noted(sign: str, text: str, width: int, look: str = "", *, remedy: str = "", arrow: str = ">") -> list[Strip]:
    """`sign text` wrapped, and under it what to do about it."""
    rows = []
    for place, part in enumerate(wrap(clean(text), max(8, width - LABEL - 3))):
        rows.append(line((f"{sign} " if not place else "  ", look), (part, look)))
    if remedy:
        for place, part in enumerate(wrap(clean(remedy), max(8, width - LABEL - 5))):
            rows.append(line((f"  {arrow} " if not place else "    ", "cyan"), part))
    return rows


def diff_rows(diff: str, width: int) -> list[Strip]:
    """A unified diff, one row a line; a sign stands before every line that moves, the colour repeats it."""
    rows = []
    for text in clean(diff).splitlines():
        if not text:
            continue  # a line of a diff has at least its sign; difflib's headers may bring ends of their own
        if text.startswith(("---", "+++")):
            look = "dim"
        else:
            look = {"+": "green", "-": "red", "@": "cyan"}.get(text[:1], "dim")
        parts = wrap(text, max(8, width - LABEL - 1)) if len(text) > width - LABEL - 1 else [text]
        rows += [line((part if not place else f"  {part}", look)) for place, part in enumerate(parts)]
    return rows


def empty(words: Sequence[str], width: int) -> list[Strip]:
    """What stands in a page that has nothing to show: what will stand there, and which key fills it."""
    rows = [line("")]
    for place, text in enumerate(words):
        rows += [line((f"  {part}", "" if not place else "dim")) for part in wrap(text, max(8, width - 3))]
    return rows


def old(moment: Moment, seen: float | None) -> str:
    """`12 s old` once that is worth saying, else nothing."""
    age = moment.age(seen)
    return "" if age is None or age < STALE_SECONDS else f"{age_words(age)} old"


def age_words(seconds: float) -> str:
    """A span of whole units for people: `12 s`, `3 min`, `5 h`, `2 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(max(0, seconds))} s"
