"""Copying text out of the console: tmux's own buffer, the terminal's clipboard, or a file whose path is said.

Inside tmux an application's OSC 52 is dropped by default, so the text goes to `tmux load-buffer -w -`, and tmux's exit code
says whether it arrived. Outside, OSC 52 is sent; no terminal says whether it took it. Where neither can work, and for a
text too long, a file is written.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from console.text import size

TMUX_LIMIT = 4 << 20
"""Bytes; more goes to a file."""
OSC_LIMIT = 70_000
"""Bytes; terminals drop longer sequences, many at 100 kB of base64."""
TMUX_SECONDS = 3.0
_NO_OSC = ("dumb", "linux", "vt100", "vt220")


@dataclass(frozen=True, slots=True)
class Copied:
    """`how` it went, and `words` for the operator."""

    how: Literal["tmux", "osc52", "file", "failed"]
    words: str
    path: Path | None = None


async def copy(text: str, environment: Mapping[str, str], osc52: Callable[[str], None], what: str = "") -> Copied:
    """Copy `text`. `osc52` sends it to the terminal's clipboard; `what` names it for the operator: `3 lines`."""
    data = text.encode("utf-8", "replace")
    what = what or size(len(data))
    why = ""
    if environment.get("TMUX"):
        if len(data) <= TMUX_LIMIT:
            why = await _tmux(data)
            if not why:
                return Copied("tmux", f"{what} in tmux's buffer; prefix ] pastes")
        else:
            why = f"{size(len(data))} is too much for a buffer"
    elif environment.get("STY") or environment.get("TERM", "dumb") in _NO_OSC:
        why = "this terminal has no clipboard"
    elif len(data) > OSC_LIMIT:
        why = f"{size(len(data))} is too much for a terminal's clipboard"
    else:
        osc52(text)
        return Copied(
            "osc52", f"{what} sent to the terminal's clipboard (OSC 52); W writes a file if it did not arrive"
        )
    try:
        path = write_file(data, "copied", environment)
    except OSError as error:
        return Copied("failed", f"not copied: {why}; {error}")
    return Copied("file", f"{why}: {what} in {path}", path)


async def _tmux(data: bytes) -> str:
    """Why tmux did not take it; empty when it did."""
    try:
        process = await asyncio.create_subprocess_exec(
            "tmux", "load-buffer", "-w", "-",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        return f"tmux cannot be run ({error.strerror})"
    try:
        async with asyncio.timeout(TMUX_SECONDS):
            _, said = await process.communicate(data)
    except TimeoutError:
        process.kill()
        await process.wait()
        return "tmux did not answer"
    return "" if process.returncode == 0 else f"tmux refused it ({said.decode('utf-8', 'replace').strip()[:80]})"


def write_file(data: bytes, name: str, environment: Mapping[str, str]) -> Path:
    """Write a file that only the user can read, under $XDG_STATE_HOME/relaunch/saved; its path."""
    path = new_path(name, environment)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    return path


def new_path(name: str, environment: Mapping[str, str]) -> Path:
    """A path that is not taken, with the time in its name."""
    home = environment.get("HOME") or os.path.expanduser("~")
    folder = Path(environment.get("XDG_STATE_HOME") or Path(home, ".local", "state")) / "relaunch" / "saved"
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = folder / f"{stem}.log", 2
    while path.exists():
        path, number = folder / f"{stem}-{number}.log", number + 1
    return path
