"""A real tmux with a server of its own, and consoles in its panes.

terminal    a `Terminal`: tmux sessions on a socket that no other test and no operator uses; gone afterwards
console     console("--rehearse", …): the program in a pane of that tmux; the practice node it made is stopped afterwards

A wait ends when the text is on the screen; its cap is generous and means that something is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest

from console.deploy.store import state_folder
from console.rehearsal import practice as rehearsal

CAP_SECONDS = 60.0
LOOK_SECONDS = 0.1
"""Pause between two looks at the screen: tmux tells no one that a pane's text changed."""
ROOT = Path(__file__).resolve().parents[2]
ENDED = "ended with"
WRAPPED = f'"$@"; printf "\\n{ENDED} %s\\n" $?; exec sleep 1000'
"""The program under a shell that tells its exit code: tmux 3.3a now and then misses the end of a pane's program."""

Console: TypeAlias = Callable[..., "Pane"]


@pytest.fixture(scope="session")
def tmux() -> str:
    """The tmux program; installed when that is possible, else the tests say why they are left out."""
    if shutil.which("tmux") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(("apt-get", "install", "-y", "-q", "tmux"), timeout=100, check=False, **quiet)  # type: ignore[call-overload]
    found = shutil.which("tmux")
    if found is None:
        pytest.skip("there is no tmux, and it could not be installed")
    return found


@dataclass
class Pane:
    """One pane with a program in it."""

    tmux: tuple[str, ...]
    name: str

    def call(self, *words: str, check: bool = True) -> str:
        done = subprocess.run((*self.tmux, *words), capture_output=True, text=True, timeout=20, check=False)
        if check and done.returncode:
            raise AssertionError(f"tmux {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def text(self) -> str:
        """What the pane shows now."""
        return self.call("capture-pane", "-p", "-t", self.name)

    def keys(self, *keys: str) -> None:
        """Press keys, as tmux calls them."""
        self.call("send-keys", "-t", self.name, *keys)

    def type(self, text: str) -> None:
        self.call("send-keys", "-t", self.name, "-l", text)

    def wait(self, pattern: str, cap: float = CAP_SECONDS) -> str:
        """The screen, as soon as `pattern` is on it."""
        return self._until(lambda text: re.search(pattern, text, re.MULTILINE) is not None, repr(pattern), cap)

    def wait_gone(self, pattern: str, cap: float = CAP_SECONDS) -> str:
        """The screen, as soon as `pattern` is not on it any more."""
        return self._until(lambda text: re.search(pattern, text, re.MULTILINE) is None, f"no {pattern!r}", cap)

    def _until(self, met: Callable[[str], bool], what: str, cap: float) -> str:
        until = time.monotonic() + cap
        while not met(text := self.text()):
            assert time.monotonic() < until, f"{what} was not seen in {cap:.0f} s; the screen:\n{text}"
            time.sleep(LOOK_SECONDS)
        return text

    def resize(self, width: int, height: int) -> None:
        self.call("resize-window", "-t", self.name, "-x", str(width), "-y", str(height))

    def asked(self, what: str) -> str:
        """A tmux format, e.g. `#{pane_pid}`."""
        return self.call("display-message", "-p", "-t", self.name, what).strip()

    def exit_code(self, cap: float = CAP_SECONDS) -> int:
        """The program's exit code, when it has ended."""
        found = re.search(rf"^{ENDED} (\d+)$", self.wait(rf"^{ENDED} \d+$", cap), re.MULTILINE)
        assert found is not None
        return int(found.group(1))

    def kill(self, cap: float = CAP_SECONDS) -> None:
        """Take the terminal away; back when the program in it has ended."""
        shell = self.asked("#{pane_pid}")
        program = int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])
        process = os.pidfd_open(program)
        try:
            self.call("kill-pane", "-t", self.name)
            assert select.select([process], [], [], cap)[0], "the program lives on without its terminal"
        finally:
            os.close(process)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """A client with a terminal of its own on this session, as a person has who looks at it."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(self.tmux[0], (*self.tmux, "attach-session", "-t", self.name))  # noqa: S606
        reader = threading.Thread(target=_drain, args=(terminal,), daemon=True)
        reader.start()
        try:
            until = time.monotonic() + CAP_SECONDS
            while self.asked("#{session_attached}") != "1":
                assert time.monotonic() < until, "no client came"
                time.sleep(LOOK_SECONDS)
            yield
        finally:
            self.call("detach-client", "-s", self.name, check=False)
            os.waitpid(pid, 0)
            reader.join(CAP_SECONDS)
            os.close(terminal)


def _drain(terminal: int) -> None:
    """Read what a client writes, as a terminal does."""
    with contextlib.suppress(OSError):  # the client is gone
        while os.read(terminal, 65536):
            pass


@dataclass
class Terminal:
    """Sessions of one tmux server."""

    tmux: tuple[str, ...]
    made: int = 0
    panes: list[Pane] = field(default_factory=list)

    def run(self, *argv: str, width: int = 140, height: int = 40) -> Pane:
        """A program in a new session; the pane stays when it ends."""
        self.made += 1
        pane = Pane(self.tmux, f"t{self.made}")
        self.panes.append(pane)
        subprocess.run(
            (*self.tmux, "new-session", "-d", "-s", pane.name, "-x", str(width), "-y", str(height), "-c", str(ROOT),
             "sh", "-c", WRAPPED, "sh", *argv),
            check=True, timeout=20,
        )  # fmt: skip
        return pane


@pytest.fixture
def terminal(tmux: str, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for name in ("TMUX", "TMUX_PANE", "STY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMUX_TMPDIR", str(own_home))
    words = (tmux, "-L", "relaunch-test", "-f", "/dev/null")
    try:
        yield Terminal(words)
    finally:
        subprocess.run((*words, "kill-server"), capture_output=True, timeout=20, check=False)


@pytest.fixture
def console(terminal: Terminal) -> Iterator[Console]:
    """console(*arguments, width=140, height=40): the console in a pane."""

    def begin(*arguments: str, width: int = 140, height: int = 40) -> Pane:
        return terminal.run(sys.executable, "-m", "console", *arguments, width=width, height=height)

    try:
        yield begin
    finally:
        for pane in terminal.panes:
            pane.call("kill-session", "-t", pane.name, check=False)
        asyncio.run(rehearsal.stop(state_folder() / "rehearsal"))
