"""What the console costs a terminal and a core, each beside something else in the same run.

    python -m tests.benchmarks.screens [--seconds 8]

Bytes are counted at the other end of a pty of 140×40 with tmux's TERM. The log grows by 1,000 lines/s for all three: ours
with eight GPUs at 1 Hz, a naive app of labels and a RichLog with the same GPUs, and `tail -f`. Then ours with nothing but the
clock moving, and with 50,000 lines/s while a key is pressed again and again.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import random
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.figures import cores, pairs, tell

ROOT = Path(__file__).resolve().parents[3]
HERE = (sys.executable, "-m", "tests.benchmarks.screens.programs")
SIZE = (40, 140)


def line(number: int) -> str:
    """A line of a server at work; no two rows of a screen are alike."""
    pick = random.Random(number)
    request = f"{pick.getrandbits(128):032x}"
    stamp = f"11-29 16:{number // 60000 % 60:02}:{number // 1000 % 60:02}"
    return (
        f"(APIServer pid=611) INFO {stamp} [logger.py:{pick.randrange(10, 99)}] Received request cmpl-{request}: "
        f"prompt {pick.randrange(9000)} tokens, max_tokens={pick.randrange(900)}, temperature={pick.random():.2f}\n"
    )


BLOCK = 20_000
"""Different lines; then they come again."""
WARM_SECONDS = 4.0
KEYS = 60
CURSOR = "▸".encode()


class Terminal:
    """A program at the other end of a pty; everything it writes is read at once, as a terminal does."""

    def __init__(self, argv: Sequence[str], home: Path) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "TMUX", "NO_COLOR")}
        environment = {
            **kept, "TERM": "tmux-256color", "HOME": str(home), "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"), "XDG_CACHE_HOME": str(home / "cache"),
        }  # fmt: skip
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=ROOT, start_new_session=True
        )
        os.close(slave)
        self.seen = 0

    def read(self, until: float, wanted: bytes = b"") -> bool:
        """Read until the clock says `until`, or `wanted` came; True when it came."""
        last = b""
        while (left := until - time.perf_counter()) > 0:
            if not select.select([self.master], [], [], left)[0]:
                break
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:
                break
            if not data:
                break
            self.seen += len(data)
            last = last[-64:] + data
            if wanted and wanted in last:
                return True
        return False

    def rate(self, seconds: float) -> float:
        """Bytes per second from now on."""
        self.seen = 0
        self.read(time.perf_counter() + seconds)
        return self.seen / seconds

    def cpu(self) -> float:
        """Seconds of a core that the program has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.master)


@contextlib.contextmanager
def opened(argv: Sequence[str], home: Path, *, warm: float = WARM_SECONDS) -> Iterator[Terminal]:
    terminal = Terminal(argv, home)
    try:
        terminal.read(time.perf_counter() + warm)
        yield terminal
    finally:
        terminal.close()


@contextlib.contextmanager
def growing(path: Path, rate: int) -> Iterator[None]:
    """`rate` lines a second are added to the file meanwhile."""
    ended = threading.Event()

    def write() -> None:
        lines = [line(number).encode() for number in range(BLOCK)]
        count, began = 0, time.perf_counter()
        with path.open("ab", buffering=0) as file:
            while not ended.wait(0.05):
                due = int((time.perf_counter() - began) * rate)
                file.write(b"".join(lines[number % BLOCK] for number in range(count, due)))
                count = due

    path.touch()
    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def first_frame(argv: Sequence[str], home: Path, wanted: bytes) -> float:
    """Seconds from the start of the program until `wanted` is on the screen."""
    began = time.perf_counter()
    terminal = Terminal(argv, home)
    try:
        if not terminal.read(began + 30, wanted):
            raise SystemExit(f"{' '.join(argv)} showed no {wanted!r}")
        return time.perf_counter() - began
    finally:
        terminal.close()


def traffic(home: Path, seconds: float) -> None:
    log = home / "busy.log"
    with growing(log, 1000):
        with opened((*HERE, "ours", str(log)), home) as terminal:
            ours = terminal.rate(seconds)
        with opened((*HERE, "naive", str(log)), home) as terminal:
            naive = terminal.rate(seconds)
        with opened(("tail", "-f", str(log)), home, warm=1.0) as terminal:
            tail = terminal.rate(seconds)
    tell("bytes/s, 8 GPUs at 1 Hz and 1,000 lines/s, against tail -f", [ours], [tail], unit="B/s", aim="20 kB/s")
    tell("the same against labels and a RichLog", [ours], [naive], unit="B/s")


def still(home: Path, seconds: float) -> None:
    log = home / "still.log"
    log.write_text("".join(line(number) for number in range(200)))
    with opened((*HERE, "ours", str(log), "--still"), home) as terminal:
        used = terminal.cpu()
        rate = terminal.rate(seconds)
        used = (terminal.cpu() - used) / seconds
    print(f"idle: {rate:.0f} B/s, aim 1 kB/s; {used:.1%} of a core, aim 2 %", flush=True)


def keys(home: Path) -> None:
    """A key that moves the checklist's cursor, until the moved cursor is written, while lines pour in."""
    took: dict[int, list[float]] = {}
    for rate in (0, 50_000):
        log = home / f"keys{rate}.log"
        took[rate] = []
        with growing(log, rate), opened((*HERE, "ours", str(log)), home) as terminal:
            for number in range(KEYS):
                terminal.read(time.perf_counter() + 0.05 + (number % 7) * 0.03)
                began = time.perf_counter()
                os.write(terminal.master, b"j" if number % 2 else b"k")
                if not terminal.read(began + 10, CURSOR):
                    raise SystemExit("the cursor did not move")
                took[rate].append((time.perf_counter() - began) * 1000)
    for rate, found in took.items():
        p95 = statistics.quantiles(found, n=20)[18]
        print(
            f"key to frame at {rate:,} lines/s: p50 {statistics.median(found):.0f} ms, p95 {p95:.0f} ms; aim 50 ms",
            flush=True,
        )


def start(home: Path) -> None:
    relaunch = (str(Path(sys.executable).parent / "relaunch"),)
    ours, theirs = pairs(
        lambda: first_frame(relaunch, home, b"Relaunch"), lambda: first_frame((*HERE, "empty"), home, b"Relaunch"), 5
    )
    tell("first frame, against an empty Textual app", ours, theirs)
    extra = statistics.median(a - b for a, b in zip(ours, theirs, strict=True)) * 1000
    print(f"difference: {extra:.0f} ms; aim 200 ms or less", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8.0)
    seconds = parser.parse_args().seconds
    print(f"{cores()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        traffic(home, seconds)
        still(home, seconds)
        keys(home)
        start(home)


if __name__ == "__main__":
    main()
