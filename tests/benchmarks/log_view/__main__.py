"""A log of a gigabyte in the console: first page, full filter, memory; beside `grep -c`, lnav and toolong on the same file.

    python -m tests.benchmarks.log_view [--size 1G] [--runs 3] [--keep FILE]

Every figure of ours is taken in a process of its own over the real modules; memory is its peak resident set, once with the
filters alone and once with the whole console (Textual, the log screen, every line counted, triage read). The file is in the
page cache for everyone. Lines are like vLLM's while it serves: 142 bytes on average, one error in 20,000 lines.
"""

# ruff: noqa: ASYNC110 - polled from outside on purpose: what is timed must not know
from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PAGE = 40
FILTERS = (
    ("sparse", "ValueError", ["grep", "-ci", "ValueError"]),
    ("regex", r"/worker_tp[3-5].*(?:error|warning)/", ["grep", "-ciE", r"worker_tp[3-5].*(error|warning)"]),
    ("dense", "GET", ["grep", "-ci", "GET"]),
)
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def write_log(path: Path, size: int) -> int:
    """A log of `size` bytes; how many lines it has."""
    pick = random.Random(4)
    block: list[str] = []
    for number in range(20_000):
        stamp = f"02-20 {14 + number // 14400:02}:{number // 240 % 60:02}:{number // 4 % 60:02}"
        kind = pick.random()
        rank = pick.randrange(8)
        if number == 11_111:
            block.append(
                f"(Worker_TP{rank} pid={700 + rank}) ERROR {stamp} [worker.py:88] ValueError: request {number} is broken"
            )
        elif kind < 0.45:
            block.append(
                f'(APIServer pid=611) INFO:     10.0.{rank}.7:{40000 + number} - "GET /health HTTP/1.1" 200 OK'
            )
        elif kind < 0.7:
            block.append(
                f"(APIServer pid=611) INFO {stamp} [loggers.py:248] Engine 000: Avg prompt throughput: {pick.random() * 900:.1f} tokens/s, "
                f"Avg generation throughput: {pick.random() * 90:.1f} tokens/s, Running: {rank} reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%"
            )
        elif kind < 0.72:
            block.append(
                f"(Worker_TP{rank} pid={700 + rank}) WARNING {stamp} [fused_moe.py:88] Using default MoE config. Performance might be sub-optimal!"
            )
        else:
            block.append(
                f"(EngineCore pid=650) INFO {stamp} [core.py:301] scheduled {number} tokens of request cmpl-{pick.getrandbits(64):016x}-0 "
                f"for rank {rank}, {pick.getrandbits(32)} blocks free in the pool of this engine"
            )
    data = ("\n".join(block) + "\n").encode()
    lines = 0
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(data)
            lines += len(block)
    return lines


# -- in a process of its own ----------------------------------------------------------------------------------------------


def measure_filter(path: Path, text: str) -> dict[str, float]:
    """Open, first page, full filter, as a pane does it, noise not hidden as grep does not."""
    from console.logs.filters import parse
    from console.logs.linefile import LogFile
    from console.logs.view import View

    base = _peak()
    began = time.perf_counter()
    log = LogFile(path)
    view = View(log, parse(text) if text else parse(""))
    if text:
        from dataclasses import replace

        view = View(log, replace(parse(text), noise=True))
    while len(view) < PAGE and view.work():
        pass
    page = view.newest(PAGE)
    first = time.perf_counter() - began
    began = time.perf_counter()
    while view.work():
        pass
    whole = time.perf_counter() - began
    began = time.perf_counter()
    lines = len(log)
    return {
        "first": first, "full": first + whole, "count": time.perf_counter() - began, "shown": len(view), "lines": lines,
        "page": len(page), "rss": _peak(), "base": base,
    }  # fmt: skip


def measure_noise(path: Path, _text: str) -> dict[str, float]:
    """The default view: everything but what the shipped catalogue knows to be harmless."""
    from console.logs.filters import Filter
    from console.logs.harmless import harmless
    from console.logs.linefile import LogFile
    from console.logs.view import View
    from console.triage.rules import load_rules

    began = time.perf_counter()
    rules = load_rules()
    loaded = time.perf_counter() - began
    began = time.perf_counter()
    known = harmless(rules)
    compiled = time.perf_counter() - began
    began = time.perf_counter()
    log = LogFile(path)
    view = View(log, Filter(), known)
    while len(view) < PAGE and view.work():
        pass
    view.newest(PAGE)
    first = time.perf_counter() - began
    while view.work():
        pass
    return {
        "rules": loaded, "compiled": compiled, "first": first, "full": time.perf_counter() - began,
        "shown": len(view), "hidden": sum(view.hidden.values()), "rss": _peak(),
    }  # fmt: skip


def measure_console(path: Path, text: str) -> dict[str, float]:
    """The whole console over the file: from `open` to the first drawn page, the first filtered page, and all scanned."""
    from textual import events

    from console.deploy.store import Store
    from screens.app import ConsoleApp
    from screens.empty import EmptySource
    from screens.glyphs import UNICODE
    from screens.log import LogScreen

    async def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            app = ConsoleApp(EmptySource(Store(Path(folder) / "x.db")), glyphs=UNICODE)
            async with app.run_test(size=(140, 40)) as pilot:
                await pilot.pause()
                base = _peak()
                began = time.perf_counter()
                app.open("log", path=path)
                while not (isinstance(app.screen, LogScreen) and len(app.screen.pane.text().splitlines()) > PAGE - 10):
                    await asyncio.sleep(0.001)
                first = time.perf_counter() - began
                pane = app.screen.pane
                began = time.perf_counter()
                while pane.noise is None:
                    await asyncio.sleep(0.001)
                noise = time.perf_counter() - began
                began = time.perf_counter()
                pane._filtered(text)
                drawn = None
                # a look at the text costs as much as a drawing, so only when there was one
                while pane._drawn == drawn or not any(
                    text.lower() in row.lower() for row in pane.text().splitlines()[1:]
                ):
                    drawn = pane._drawn
                    await asyncio.sleep(0.001)
                filtered = time.perf_counter() - began
                lags: list[float] = []
                pane._filtered("")
                while pane._scanning:
                    rows = pane._rows
                    before = time.perf_counter()
                    app.post_message(events.Key("k", "k"))
                    while pane._rows is rows and time.perf_counter() - before < 5:
                        await asyncio.sleep(0)
                    lags.append(time.perf_counter() - before)
                    await asyncio.sleep(0.02)
                return {
                    "first": first, "noise": noise, "filtered": filtered, "all": time.perf_counter() - began,
                    "shown": len(pane.page.view), "lag": sorted(lags)[int(len(lags) * 0.95)] if lags else 0.0, "keys": len(lags),
                    "rss": _peak(), "base": base,
                }  # fmt: skip

    return asyncio.run(run())


def _peak() -> float:
    """Peak resident set, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


# -- the benchmark --------------------------------------------------------------------------------------------------------


def child(what: str, path: Path, text: str = "") -> dict[str, float]:
    argv = [sys.executable, "-m", "tests.benchmarks.log_view", "--child", what, "--keep", str(path), "--text", text]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm-256color"})
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def timed(argv: list[str]) -> tuple[float, float, str]:
    """Seconds, peak MB and answer of another program."""
    began = time.perf_counter()
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    answer = process.stdout.read().decode("utf-8", "replace").strip()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return time.perf_counter() - began, usage.ru_maxrss / 1000, answer


def report(path: Path, runs: int) -> None:
    lines = 0.0
    for name, text, grep in FILTERS:
        ours, theirs = [], []
        for _ in range(runs):
            ours.append(child("filter", path, text))
            theirs.append(timed([*grep, str(path)]))
        assert int(ours[0]["shown"]) == int(theirs[0][2]), (name, ours[0]["shown"], theirs[0][2])
        full, seconds = statistics.median(one["full"] for one in ours), statistics.median(one[0] for one in theirs)
        first, lines = statistics.median(one["first"] for one in ours), ours[0]["lines"]
        ratio = statistics.median(a["full"] / b[0] for a, b in zip(ours, theirs, strict=True))
        print(
            f"{name} filter ({ours[0]['shown']:,.0f} of {lines:,.0f} lines): first page {first * 1000:.0f} ms (aim 150), all {full:.2f} s "
            f"against grep -c {seconds:.2f} s, ratio {ratio:.2f} (aim 1); peak {max(one['rss'] for one in ours):.0f} MB; "
            f"counting lines {ours[0]['count']:.2f} s",
            flush=True,
        )
    noise = child("noise", path)
    print(
        f"default view, {noise['hidden']:,.0f} lines hidden as noise: first page {noise['first'] * 1000:.0f} ms, all {noise['full']:.2f} s; "
        f"catalogue read {noise['rules']:.2f} s and compiled {noise['compiled']:.2f} s once; peak {noise['rss']:.0f} MB",
        flush=True,
    )
    whole = child("console", path, "ValueError")
    print(
        f"whole console: first page {whole['first'] * 1000:.0f} ms after opening, noise known {whole['noise'] * 1000:.0f} ms later; first filtered "
        f"page {whole['filtered'] * 1000:.0f} ms (aim 150), all scanned and counted {whole['all']:.1f} s while a key every 20 ms is answered in "
        f"{whole['lag'] * 1000:.0f} ms (p95 of {whole['keys']:.0f}); peak {whole['rss']:.0f} MB (aim 150), {whole['base']:.0f} MB of them before the file",
        flush=True,
    )
    if shutil.which("lnav"):
        seconds, peak, _ = timed(["lnav", "-n", "-c", ":filter-in ValueError", str(path)])
        ours_first = child("filter", path, "ValueError")
        print(
            f"lnav -n, sparse filter: {seconds:.2f} s, peak {peak:.0f} MB; ours all {ours_first['full']:.2f} s, peak {ours_first['rss']:.0f} MB, "
            f"ratio {ours_first['full'] / seconds:.2f} in time and {ours_first['rss'] / peak:.2f} in memory",
            flush=True,
        )
    else:
        print("lnav: not installed here, not measured", flush=True)
    peer = shutil.which("tl")
    if peer:
        first, scanned, peak = toolong(peer, path)
        print(
            f"toolong: first lines {first * 1000:.0f} ms after its start, all scanned {scanned:.1f} s, {peak:.0f} MB beside the mapped file; ours "
            f"{whole['first'] * 1000:.0f} ms after opening, all {whole['all']:.1f} s with keys answered meanwhile, {whole['rss']:.0f} MB, ratio "
            f"{whole['rss'] / peak:.2f} in memory",
            flush=True,
        )
    else:
        print("toolong: no program tl on PATH (it wants a textual of its own: a venv), not measured", flush=True)


def toolong(program: str, path: Path) -> tuple[float, float, float]:
    """Of `tl FILE` on a terminal: seconds to its first lines, seconds until it rests, MB of memory of its own."""
    from tests.benchmarks.screens.__main__ import Terminal

    with tempfile.TemporaryDirectory() as home:
        began = time.perf_counter()
        terminal = Terminal((program, str(path)), Path(home))
        try:
            if not terminal.read(began + 120, b"INFO"):
                raise SystemExit("toolong showed no line")
            first = time.perf_counter() - began
            used, rested = terminal.cpu(), time.perf_counter()
            while time.perf_counter() - rested < 1.5 and time.perf_counter() - began < 300:
                terminal.read(time.perf_counter() + 0.25)
                if (now := terminal.cpu()) - used > 0.05:
                    used, rested = now, time.perf_counter()
            status = Path(f"/proc/{terminal.process.pid}/status").read_text()
            own = int(status.split("RssAnon:")[1].split()[0]) / 1000  # without the file, which it maps
            return first, rested - began, own
        finally:
            terminal.close()


def parse_size(text: str) -> int:
    return int(float(text[:-1]) * UNITS[text[-1].upper()]) if text[-1].upper() in UNITS else int(text)


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--size", default="200M")
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--keep", type=Path, help="use this file, made when it is missing")
    options.add_argument("--child", help=argparse.SUPPRESS)
    options.add_argument("--text", default="", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        work: dict[str, Callable[[Path, str], dict[str, float]]] = {
            "filter": measure_filter, "noise": measure_noise, "console": measure_console,
        }  # fmt: skip
        print(json.dumps(work[given.child](given.keep, given.text)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = given.keep or Path(folder) / "server.log"
        if not path.exists():
            write_log(path, parse_size(given.size))
        print(f"{path.stat().st_size / 1e6:,.0f} MB, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}", flush=True)
        report(path, given.runs)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
