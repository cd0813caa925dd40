"""What a log pane does beside showing: panels of processes, stages and noise; copying, writing, the pager.

Each takes the pane. What is copied or written is the text as it was written, sanitised, and never a row cut at the screen's
width. Nothing here blocks: long writes give way between segments, the pager is waited for beside the loop.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.logs.filters import Filter
from console.logs.launches import Launch, Launches, processes
from console.text import clean, plural, size
from console.triage.rules import load_rules
from screens.clipboard import copy, new_path
from screens.log_panels import Entry, Panel
from screens.log_presets import preset_panel, save_preset

if TYPE_CHECKING:
    from screens.widgets.log_pane import LogPane

PAGER_LIMIT = 64 << 20
"""Bytes of the newest shown lines that a pager is given; W writes them all."""
BATCH = 2000
"""Lines written between two turns of the loop."""
ALL = "\0all"


async def process_panel(pane: LogPane) -> None:
    """Choose one process or rank."""
    known = dict(processes(pane.logged))
    diagnosis = pane.glance.log.diagnosis
    for rank in diagnosis.ranks if diagnosis else ():
        known.setdefault(clean(rank.process), 0)
    entries = [Entry(ALL, "all")]
    entries += [
        Entry(name, name, f"{count:,} lines" if count else "", "in the last 4 MB")
        for name, count in sorted(known.items())
    ]

    def chosen(key: str | None) -> None:
        if key is not None:
            pane.want(replace(pane.wanted, process="" if key == ALL else key, name=""))

    pane.app.push_screen(Panel("Process or rank", entries, "No line names a process."), chosen)


async def noise_panel(pane: LogPane) -> None:
    """What is hidden, how often, and why; Enter shows those lines alone."""
    noise = pane.noise
    hidden = pane.page.view.hidden
    entries = [
        Entry(name, name, f"{count:,}", noise.why.get(name, "") if noise else "")
        for name, count in sorted(hidden.items(), key=lambda item: -item[1])
    ]
    nothing = "Noise is being shown." if pane.wanted.noise else "Nothing is hidden as noise."

    def chosen(key: str | None) -> None:
        entry = next((item for item in noise.entries if item.id == key), None) if noise else None
        if entry is not None:
            pane.want(Filter(include=(f"/{entry.match.lstrip('^')}/",), noise=True))

    pane.app.push_screen(Panel("Hidden as harmless", entries, nothing), chosen)


async def launches_of(pane: LogPane, wanted: Callable[[Launches], object]) -> Launches | None:
    """The launches of the log, scanned as far as is needed. None when the pane went away."""
    if pane.launches is None:
        rules = pane.rules or load_rules()
        pane.launches = await asyncio.to_thread(Launches, pane.logged, rules)
    launches = pane.launches
    told = 0.0
    while not wanted(launches) and launches.work():
        if launches.done - told > 0.1:
            told = launches.done
            pane.relaunch.say(f"looking for launches, {told:.0%} of the log")
        await asyncio.sleep(0)  # a turn for keys
    return launches if pane.is_mounted else None


async def previous_launch(pane: LogPane) -> None:
    """Show the launch before the present one, or go back to the whole log."""
    if pane.window[1] is not None:
        pane.page.last()
        pane.see((0, None), "")
        return
    pane.launches = None  # another launch may have begun since
    launches = await launches_of(pane, lambda found: found.complete)
    if launches is None:
        return
    launch = launches.previous
    if launch is None:
        pane.relaunch.say(
            "this log holds one launch only" if launches.found else "no launch begins in this log", "warning"
        )
        return
    pane.page.last()
    pane.see((launch.begin, launch.end), "previous launch (p back)")


async def stage_panel(pane: LogPane) -> None:
    """Choose one stage of the present launch."""
    pane.launches = None
    launches = await launches_of(pane, lambda found: found.complete)
    if launches is None:
        return
    launch: Launch | None = launches.present
    rules = pane.rules or load_rules()
    entries = [Entry(ALL, "all")]
    for name, begin in launch.stages if launch else ():
        stage = rules.stage(name)
        entries.append(Entry(name, name.replace("_", " "), _clock(pane, begin), stage.title if stage else ""))

    def chosen(key: str | None) -> None:
        if key == ALL:
            pane.see((0, None), "")
        elif key is not None and launch is not None and (window := launch.stage(key)) is not None:
            pane.page.last()
            pane.see(window, f"stage {key.replace('_', ' ')}")

    pane.app.push_screen(Panel("Stages of the present launch", entries, "No stage is known in this log."), chosen)


def _clock(pane: LogPane, offset: int) -> str:
    from console.logs.stamps import clock

    return clock(pane.logged.line_at(offset)) or ""


# -- copying, writing, opening --------------------------------------------------------------------------------------------


async def yank(pane: LogPane) -> None:
    """Copy the marked lines, else the traceback under the cursor, else its line."""
    page = pane.page
    if page.mark is not None:
        offsets = page.marked_lines()
    else:
        item = page.item
        offsets = page.items.members(item) if item else []
    if not offsets:
        pane.relaunch.say("there is no line to copy", "warning")
        return
    text = "\n".join(pane.logged.line_at(offset) for offset in offsets) + "\n"
    await _copy(pane, text, plural(len(offsets), "line"))


async def yank_cause(pane: LogPane) -> None:
    """Copy the first cause with its meaning and its remedy."""
    diagnosis = pane.glance.log.diagnosis
    cause = pane.cause()
    if diagnosis is None or cause is None:
        pane.relaunch.say("no failure is known in this log", "warning")
        return
    where = f"{cause.process or 'unknown process'}, same on {plural(cause.ranks, 'rank')}, stage {diagnosis.stage or 'unknown'}"
    texts = [cause.text, f"  {where}", f"  why: {diagnosis.meaning}", f"  do:  {diagnosis.remedy}"]
    await _copy(pane, "\n".join(clean(text) for text in texts) + "\n", "the cause")


async def _copy(pane: LogPane, text: str, what: str) -> None:
    done = await copy(text, os.environ, pane.app.copy_to_clipboard, what)
    pane.relaunch.say(done.words, "error" if done.how == "failed" else "info")


async def ask_file(pane: LogPane) -> None:
    """Ask where to, then write the marked lines, else all that are shown."""
    from screens.filter_bar import FilterBar

    unit = clean(pane.glance.log.unit).removesuffix(".service") or pane.logged.path.stem
    suggestion = new_path("".join(char if char.isalnum() or char in "-_." else "_" for char in unit), os.environ)

    def typed(text: str | None) -> None:
        if text:
            pane.begin("writing", lambda pane: write(pane, Path(text).expanduser()))

    pane.app.push_screen(FilterBar("write", str(suggestion), _wrong_path), typed)


def _wrong_path(text: str) -> str:
    path = Path(text).expanduser()
    if not text:
        return "no path; Esc leaves without writing"
    if path.exists():
        return f"{path} exists; another name keeps it"
    if not path.parent.is_dir() and "relaunch" not in path.parts:
        return f"there is no folder {path.parent}"
    return ""


async def write(pane: LogPane, path: Path) -> None:
    """Write what is marked or shown; says the path and how many lines."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        count = 0
        with os.fdopen(handle, "wb") as file:
            async for lines in _shown(pane):
                count += len(lines)
                file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    except OSError as error:
        pane.relaunch.say(f"not written: {error}", "error")
        return
    more = "" if pane.page.view.complete else "; older lines were still being searched and are not in it"
    pane.relaunch.say(f"{plural(count, 'line')} in {path}{more}", "warning" if more else "info")


async def _shown(pane: LogPane, begin: int = 0) -> AsyncIterator[list[str]]:
    """The marked lines, else all shown ones from `begin` on, in batches."""
    page, view = pane.page, pane.page.view
    if page.mark is not None:
        yield [pane.logged.line_at(offset) for offset in page.marked_lines()]
        return
    offset, end = begin, pane.logged.size
    while chunk := [at for at in view.after(offset, BATCH) if at < end]:
        yield [pane.logged.line_at(at) for at in chunk]
        offset = chunk[-1] + 1
        await asyncio.sleep(0)  # a turn for keys


async def pager(pane: LogPane) -> None:
    """Open what is marked or shown in $PAGER: inside tmux in a window of its own, elsewhere in place of the console.

    The loop goes on meanwhile, so that no connection is lost over a long read; nothing is drawn.
    """
    program = shlex.split(os.environ.get("PAGER") or "less")
    if not program or shutil.which(program[0]) is None:
        pane.relaunch.say(f"there is no pager {' '.join(program) or 'named'}; W writes a file", "warning")
        return
    path = new_path("pager", os.environ)
    await write(pane, path) if pane.page.mark is not None or pane.logged.size <= PAGER_LIMIT else await _write_newest(
        pane, path
    )
    if not path.exists():
        return
    argv = [*program, *(["+G"] if Path(program[0]).name == "less" and pane.page.follow else []), str(path)]
    if os.environ.get("TMUX"):
        process = await asyncio.create_subprocess_exec(
            "tmux", "new-window", "-n", "relaunch-log", *argv, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        if await process.wait() == 0:
            pane.relaunch.say(f"in tmux's window relaunch-log: {path}")
            return
    # Without batch_update a repaint would meet a writer that has ended, and block (terok-ai/terok#1187).
    with pane.app.batch_update(), pane.app.suspend():
        process = await asyncio.create_subprocess_exec(*argv)
        await process.wait()
    path.unlink(missing_ok=True)
    pane.app.refresh()


async def _write_newest(pane: LogPane, path: Path) -> None:
    begin = pane.logged.start_of(pane.logged.size - PAGER_LIMIT)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(f"(lines of the last {size(PAGER_LIMIT)}; W writes them all)\n".encode())
        async for lines in _shown(pane, begin):
            file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))


DEEDS: dict[str, Callable[[LogPane], Coroutine[Any, Any, None]]] = {
    "why": noise_panel,
    "preset": preset_panel,
    "save_preset": save_preset,
    "process": process_panel,
    "stage": stage_panel,
    "launch": previous_launch,
    "yank": yank,
    "yank_cause": yank_cause,
    "write": ask_file,
    "pager": pager,
}
"""By the name that a binding gives."""
