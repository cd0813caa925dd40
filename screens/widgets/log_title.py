"""What a log pane says of itself: its title, the pinned cause, and why it is empty. Pure of what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.strip import Strip

from console.logs.linefile import LogFile
from console.text import clean
from screens.widgets.lines import Part, fit, line
from screens.widgets.log_page import COUNTED

if TYPE_CHECKING:
    from console.triage.diagnosis import Cause
    from screens.widgets.log_pane import LogPane


def title(pane: LogPane, width: int) -> Strip:
    """What the pane shows and what it hides; the words that matter least go first where there is no room."""
    parts: list[tuple[int, Part]] = []
    log, page = pane.glance.log, pane.page
    if log.unit:
        parts.append((2, clean(log.unit).removesuffix(".service")))
    parts.append((9, _state(pane)))
    age = pane.age()
    if age is not None:
        parts.append((10, (f"as of {age} ago", "yellow")))
    if not page.view.complete:
        parts.append((8, (f"searched {page.view.done:.0%}", "cyan")))
    if pane.window_words:
        parts.append((8, (pane.window_words, "bold yellow")))
    if pane.search is not None:
        parts.append((7, (f"search: {pane.search.words} {len(pane.search.view):,} (n N)", "bold cyan")))
    parts.append((6, _noise_words(pane)))
    parts.append(
        (5, (f"filter: {pane.wanted} (/)", "bold yellow") if str(pane.wanted) != "none" else "filter: none (/)")
    )
    if page.mark is not None:
        parts.append((7, (f"{len(page.marked_lines(COUNTED)):,} marked", "bold cyan")))
    extra = [
        word
        for word, on in (
            ("wrap", pane.wrap),
            ("as written", pane.form == 2),
            (f"from column {pane.left}", pane.left),
        )
        if on
    ]
    parts += [(1, word) for word in extra]
    while len(parts) > 2 and 7 + sum(len(part if isinstance(part, str) else part[0]) + 3 for _, part in parts) > width:
        parts.remove(min(parts, key=lambda part: part[0]))
    return pane.title(width, "Log", *(part for _, part in parts))


def _state(pane: LogPane) -> Part:
    log, page = pane.glance.log, pane.page
    if log.trouble:
        return (f"{pane.glyphs.fail} {clean(log.trouble)[:60]}", "bold red")
    if pane.window[1] is not None:
        return "not live"
    if page.follow:
        return "following" if log.following or isinstance(pane.logged, LogFile) else "at its end"
    new = page.new_below
    words = f"{new:,}{'+' if new >= COUNTED else ''} new below (G)" if new else "G follows"
    return (f"paused, {words}", "bold yellow")


def _noise_words(pane: LogPane) -> Part:
    key = "z" if pane.search is not None or not pane.has_focus else "n"
    key = key if pane.has_focus else "n"
    if pane.wanted.noise:
        return f"noise shown ({key})"
    if pane.noise is None:
        return "noise: not known yet"
    return f"noise hidden: {sum(pane.page.view.hidden.values()):,} ({key})"


def cause_row(pane: LogPane, cause: Cause, width: int) -> Strip:
    who = f"{clean(cause.process or '')}{f' {pane.glyphs.times}{cause.ranks}' if cause.ranks > 1 else ''} "
    text = fit(who.lstrip() + " ".join(clean(cause.text).split()), max(8, width - 22), ellipsis=pane.glyphs.ellipsis)
    return line((f"{pane.glyphs.fail} first cause ", "bold red"), (text.rstrip(), "red"), ("  . y", "dim"))


def nothing(pane: LogPane, width: int) -> list[Strip]:
    """An empty pane says why it is empty, and what fills it."""
    view, unit = pane.page.view, clean(pane.glance.log.unit)
    if not pane.logged.size:
        texts = [
            f"No line of {unit} has come yet." if unit else "The log of the service stands here once a node is reached."
        ]
    elif not view.complete:
        texts = [f"No line found yet; {view.done:.0%} of the log is searched."]
    else:
        texts = ["No line is shown."]
        if pane.window_words:
            texts.append(f"The window is: {pane.window_words}; 0 shows the whole log.")
        if str(pane.wanted) != "none":
            texts.append(f"The filter is: {pane.wanted}; x drops it, / changes it.")
        if sum(view.hidden.values()):
            texts.append(f"{sum(view.hidden.values()):,} lines are hidden as noise; z shows them, Z says why.")
    return [line(f"  {text}"[:width]) for text in texts]
