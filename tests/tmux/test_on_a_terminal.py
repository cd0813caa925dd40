"""The real program on a bare terminal, as over SSH without tmux: colours, the clipboard, a slow link, a terminal that goes away.

The terminal is a pty whose other end the test reads. What is looked at are the bytes that the program writes.
"""

from __future__ import annotations

import base64
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.tmux.conftest import ROOT

CAP_SECONDS = 100.0
LOG = [
    "(APIServer pid=5) INFO 02-20 16:57:30 [api_server.py:1] vLLM API server version 0.16.0",
    "(Worker_TP0 pid=20) WARNING 02-20 16:57:52 [x.py:1] something is odd",
    "(Worker_TP0 pid=20) ERROR 02-20 16:58:01 [w.py:1] ValueError: the last line é",
]
COLOUR = re.compile(rb"\x1b\[([0-9;:]*)m")


class Bare:
    """A program on a pty of 100×30; `seen` is all that it has written."""

    def __init__(self, *argv: str, **environment: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        kept = {key: value for key, value in os.environ.items() if key not in ("COLORTERM", "TMUX", "STY", "NO_COLOR")}
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, start_new_session=argv[0] != "setsid",
            env={**kept, "LANG": "C.UTF-8", **environment},
        )  # fmt: skip
        os.close(slave)
        self.seen = b""

    def wait(self, pattern: bytes, *, at_most: int = 1 << 16) -> re.Match[bytes]:
        """Read on, `at_most` bytes at a time, until `pattern` has been written."""
        until = time.monotonic() + CAP_SECONDS
        while (found := re.search(pattern, self.seen)) is None:
            left = until - time.monotonic()
            assert left > 0, f"{pattern!r} was not written: {self.seen[-2000:]!r}"
            if select.select([self.master], [], [], left)[0]:
                self.seen += os.read(self.master, at_most)
        return found

    def keys(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def ended(self) -> int:
        """The exit code; what is still written is read."""
        ended = os.pidfd_open(self.process.pid)
        try:
            until = time.monotonic() + CAP_SECONDS
            while not select.select([ended], [], [], 0)[0]:
                ready = select.select([ended, *([self.master] if self.master >= 0 else [])], [], [], 1.0)[0]
                if self.master in ready:
                    self._drain()
                assert time.monotonic() < until, "the program lives on"
        finally:
            os.close(ended)
        return self.process.wait()

    def _drain(self) -> None:
        try:
            self.seen += os.read(self.master, 1 << 16)
        except OSError:  # the program has closed its end
            self.hang_up()

    def hang_up(self) -> None:
        """The terminal is gone."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1


Begin: TypeAlias = Callable[..., Bare]


@pytest.fixture
def begin(own_home: Path, tmp_path: Path) -> Iterator[Begin]:
    """begin(*words before the program, **environment): the viewer of a log file, its last line on the screen."""
    log = tmp_path / "server.log"
    log.write_text("".join(f"{line}\n" for line in LOG))
    begun: list[Bare] = []

    def start(*before: str, **environment: str) -> Bare:
        bare = Bare(*before, sys.executable, "-m", "console", "logs", str(log), **environment)
        begun.append(bare)
        bare.wait(b"last line \xc3\xa9")
        return bare

    yield start
    for bare in begun:
        if bare.process.poll() is None:
            bare.process.kill()
            bare.process.wait()
        bare.hang_up()


def colours(data: bytes) -> set[str]:
    """What colours the sequences ask for: `none`, `named` of the 16, `indexed` of 256, `true`."""
    found = {"none"}
    for match in COLOUR.finditer(data):
        numbers = [int(part) for part in re.split(rb"[;:]", match[1]) if part]
        while numbers:
            number = numbers.pop(0)
            if number in (38, 48):
                found.add({5: "indexed", 2: "true"}[numbers[0]])
                del numbers[: 2 if numbers[0] == 5 else 4]
            elif 30 <= number <= 37 or 40 <= number <= 47 or 90 <= number <= 107:
                found.add("named")
    return found


@pytest.mark.parametrize("term", ["xterm", "screen"])
def test_the_16_colours_of_the_terminal_are_all_that_is_asked_for(begin: Begin, term: str) -> None:
    bare = begin(TERM=term)
    bare.keys(b"q")
    assert bare.ended() == 0
    assert colours(bare.seen) == {"none", "named"}


def test_no_color_asks_for_none(begin: Begin) -> None:
    bare = begin(TERM="xterm-256color", NO_COLOR="1")
    bare.keys(b"q")
    assert bare.ended() == 0
    assert colours(bare.seen) == {"none"}
    assert re.search(rb"\x1b\[[0-9;]*7m|\x1b\[1", bare.seen)  # bold and reverse are left to say it


def test_outside_tmux_a_line_is_copied_by_osc_52_and_where_that_cannot_be_into_a_file(begin: Begin) -> None:
    bare = begin(TERM="xterm-256color")
    bare.keys(b"y")
    sent = bare.wait(rb"\x1b\]52;c;([A-Za-z0-9+/=]+)\x07")
    assert base64.b64decode(sent[1]).decode() == f"{LOG[-1]}\n"
    bare.keys(b"q")
    assert bare.ended() == 0

    bare = begin(TERM="linux")
    bare.keys(b"y")
    bare.wait(b"no clipboard")
    bare.keys(b"q")
    assert bare.ended() == 0
    assert b"\x1b]52;" not in bare.seen
    [copied] = Path(os.environ["XDG_STATE_HOME"]).rglob("copied-*.log")
    assert copied.read_text() == f"{LOG[-1]}\n"


def test_a_slow_terminal_gets_the_newest_state_and_not_all_that_was(begin: Begin, tmp_path: Path) -> None:
    bare = begin(TERM="xterm-256color")
    bare.seen = b""
    rows = [f"INFO row {number:06} of a busy server\n" for number in range(100_000)]
    with (tmp_path / "server.log").open("a") as log:
        for place in range(0, len(rows), 4000):  # some 10 kB/s are read meanwhile, as over a bad line
            log.write("".join(rows[place : place + 4000]))
            log.flush()
            if select.select([bare.master], [], [], 0.05)[0]:
                bare.seen += os.read(bare.master, 512)
        log.write("zebra\n")  # changed cells alone are sent: no other row begins or goes on like this one
    bare.wait(b"zebra", at_most=512)
    assert len(bare.seen) < sum(map(len, rows)) / 4  # two pages a second are less than that, however long it took
    bare.keys(b"q")
    assert bare.ended() == 0


@pytest.mark.parametrize("before", [("setsid", "--ctty"), ()], ids=["SIGHUP", "SIGHUP is lost"])
def test_a_terminal_that_goes_away_ends_the_console(begin: Begin, before: tuple[str, ...]) -> None:
    bare = begin(*before, TERM="xterm-256color")
    bare.hang_up()
    assert bare.ended() == 0
