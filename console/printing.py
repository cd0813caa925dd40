"""A run for a person: one line per step with time and evidence, a bar on long ones, the first cause at the end.

Pure but for the stream it writes to. On a terminal a running step's line is rewritten in place; through a pipe nothing is
rewritten and progress speaks once per tenth, so that a log stays readable.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import TextIO

from console.events import (
    CauseFound,
    Changed,
    Compared,
    Downtime,
    Event,
    Found,
    Measured,
    Noted,
    Progressed,
    Remedy,
    RunEnded,
    RunStarted,
    StageReached,
    StepChanged,
)
from console.text import duration, gib, size

UNICODE = {"ok": "✓", "fail": "✗", "run": "▶", "skip": "·", "warn": "!", "full": "█", "empty": "░", "dash": "–"}
ASCII = {"ok": "ok", "fail": "x", "run": ">", "skip": ".", "warn": "!", "full": "#", "empty": ".", "dash": "-"}
_COLOURS = {"ok": "32", "fail": "31;1", "warn": "33", "run": "36"}
_BAR = 24


def glyphs(environment: Mapping[str, str]) -> dict[str, str]:
    """Width-one glyphs, or their ASCII twins where the locale does not promise UTF-8."""
    locale = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or ""
    return UNICODE if "utf" in locale.lower() else ASCII


def wants_colour(stream: TextIO, environment: Mapping[str, str], *, refused: bool = False) -> bool:
    """True on a terminal that is not `dumb`, unless --no-color or a non-empty NO_COLOR says no."""
    if refused or environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return stream.isatty()


def amount(value: float, unit: str) -> str:
    """`540.1 GB` for bytes, else the number and its unit."""
    return size(value) if unit == "bytes" else f"{value:,.0f} {unit}".rstrip()


class Printer:
    """Writes the events of one run to `stream` as they come."""

    def __init__(self, stream: TextIO, *, colour: bool = False, signs: Mapping[str, str] | None = None) -> None:
        self._out = stream
        self._colour = colour
        self._signs = dict(signs or glyphs(os.environ))
        self._live = stream.isatty()
        self._open = False
        self._rehearsal = False
        self._tenths: dict[str, int] = {}
        self._plan = True  # diffs are what a plan is for; while a run changes things they stay in its history

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                mark = "  REHEARSAL" if event.rehearsal else ""
                mark += "  nothing will be changed" if event.read_only else ""
                self._rehearsal = event.rehearsal
                self._plan = event.read_only or event.verb == "preflight"
                self._line(f"{event.node} › {event.profile} › run {event.run} {event.verb}{mark}")
            case StepChanged():
                self._step(event)
            case Progressed():
                self._progress(event)
            case Found():
                self._finding(event)
            case Changed(diff=diff) if diff and self._plan:
                self._block(f"    {event.text}", diff)
            case StageReached():
                self._line(f"    {event.stage.replace('_', ' ')}{': ' + event.text if event.text else ''}")
            case Downtime(state="started"):
                self._line(f"{self._signs['dash'] * 2} downtime {self._signs['dash'] * 2}")
            case Downtime(seconds=seconds) if seconds is not None:
                self._line(f"{self._signs['dash'] * 2} downtime ended after {duration(seconds)}")
            case Measured():
                self._line(f"    {measured(event)}")
            case Compared():
                small = "; the practice checkpoint is small, its server tells a real model's figures"
                self._line(f"    {compared(event)}{small if self._rehearsal else ''}")
            case Noted():
                self._line(f"  {self._signs['warn']} {event.text}")
            case CauseFound():
                self._cause(event)
            case Remedy():
                said = "fix    applied" if event.applied else "fix    --fix applies it"
                self._block(f"    {said}: {event.text}", moved_lines(event.diff))
            case RunEnded():
                self._ended(event)

    def _step(self, event: StepChanged) -> None:
        spent = self._signs["dash"] if event.seconds is None else duration(event.seconds)
        match event.state:
            case "satisfied" | "done":
                self._line(f"{self._sign('ok')} {event.step:<11} {spent:>7}  {event.detail}")
            case "failed":
                self._line(f"{self._sign('fail')} {event.step:<11} {spent:>7}  {event.detail}")
            case "running":
                self._tenths.pop(event.step, None)
                self._line(f"{self._sign('run')} {event.step:<11}          {event.detail}")
            case "needed":
                self._line(f"{self._sign('warn')} {event.step:<11} needed   {event.detail}")
            case "skipped":
                self._line(f"{self._sign('skip')} {event.step:<11}       {self._signs['dash']}  not reached")
            case _:
                self._transient(f"{self._sign('run')} {event.step:<11}          {event.state}")

    def _progress(self, event: Progressed) -> None:
        line = f"    {progress(event, self._signs)}"
        if self._live:
            self._transient(line)
            return
        tenth = -1 if not event.total or event.done is None else int(event.done * 10 / event.total)
        if tenth != self._tenths.get(event.step):
            self._tenths[event.step] = tenth
            self._line(line)

    def _finding(self, event: Found) -> None:
        if event.table and (self._plan or event.level != "allow"):
            self._block(f"    {event.rule}: memory of one GPU", event.table)
        if event.level == "allow":
            return
        sign = self._sign("warn" if event.level == "warn" else "fail")
        self._line(f"  {sign} {event.rule}: {event.text}")
        if event.remedy:
            self._line(f"      try: {event.remedy}")

    def _cause(self, event: CauseFound) -> None:
        lines = event.text.splitlines() or [""]
        self._line(f"  first cause: {lines[0]}")
        for line in lines[1:]:
            self._line(f"    {line}")
        where = [event.process] if event.process else []
        where += [f"same on {event.ranks} ranks"] if event.ranks and event.ranks > 1 else []
        where += [f"line {event.line}"] if event.line else []
        where += [event.category] if event.category else []
        if where:
            self._line(f"    where  {', '.join(where)}")
        if event.meaning:
            self._line(f"    why    {event.meaning}")
        if event.remedy:
            self._line(f"    do     {event.remedy}")

    def _ended(self, event: RunEnded) -> None:
        sign = self._sign("ok" if event.code == 0 else "fail")
        self._line(f"{sign} run {event.run} ended with {event.code} after {duration(event.seconds)}: {event.text}")
        if event.remedy:
            self._line(f"    try: {event.remedy}")

    def _sign(self, name: str) -> str:
        glyph = self._signs[name]
        return f"\x1b[{_COLOURS[name]}m{glyph}\x1b[0m" if self._colour and name in _COLOURS else glyph

    def _block(self, title: str, diff: str) -> None:
        self._line(title)
        for line in diff.splitlines():
            self._line(f"      {line}")

    def _line(self, text: str) -> None:
        self._clear()
        self._out.write(text.rstrip() + "\n")
        self._out.flush()

    def _transient(self, text: str) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns
            self._clear()
            self._out.write(text[: width - 1])
            self._out.flush()
            self._open = True

    def _clear(self) -> None:
        if self._open:
            self._out.write("\r\x1b[K")
            self._open = False


def progress(event: Progressed, signs: Mapping[str, str]) -> str:
    """`████░░░░  48 %  259.3 GB of 540.1 GB  1.1 GB/s  eta 4:12  text`; what is unknown is left out."""
    parts = []
    if event.done is not None and event.total:
        share = min(1.0, event.done / event.total)
        full = int(share * _BAR)
        parts.append(signs["full"] * full + signs["empty"] * (_BAR - full))
        parts.append(f"{share * 100:3.0f} %")
        parts.append(f"{amount(event.done, event.unit)} of {amount(event.total, event.unit)}")
    elif event.done is not None:
        parts.append(amount(event.done, event.unit))
    if event.rate:
        parts.append(f"{amount(event.rate, event.unit)}/s")
    if event.eta is not None:
        parts.append(f"eta {duration(event.eta)}")
    return "  ".join([*parts, event.text])


def moved_lines(diff: str) -> str:
    """The lines of a unified diff that come and go, without its headers and what stays."""
    return "\n".join(
        line for line in diff.splitlines() if line[:1] in ("+", "-") and not line.startswith(("+++", "---"))
    )


def measured(event: Measured) -> str:
    """One load point as a line."""

    def milliseconds(values: Mapping[str, float], name: str) -> str:
        shown = [f"{key} {values[key]:.0f}" for key in ("p50", "p99") if key in values]
        return f"{name} {' '.join(shown)} ms" if shown else f"{name} unknown"

    speed = "unknown" if event.output_tokens_per_s is None else f"{event.output_tokens_per_s:,.1f}"
    total = "unknown" if event.total_tokens_per_s is None else f"{event.total_tokens_per_s:,.1f}"
    failed = f"  {event.failed} FAILED" if event.failed else ""
    return (
        f"{event.concurrency:>4} streams  {speed} tok/s out  {total} total  "
        f"{milliseconds(event.ttft_ms, 'TTFT')}  {milliseconds(event.tpot_ms, 'TPOT')}  "
        f"{milliseconds(event.itl_ms, 'ITL')}{failed}"
    )


def compared(event: Compared) -> str:
    """`kv-cache 189,392 tokens, forecast 192,000 tokens (+1.4 %)`; the forecast is `unknown` where there was none."""

    def figure(value: float | None) -> str:
        if value is None:
            return "unknown"
        return gib(value) if event.unit == "bytes" else amount(value, event.unit)

    error = "" if event.error is None else f" ({event.error * 100:+.1f} %)"
    return f"{event.what} {figure(event.measured)}, forecast {figure(event.expected)}{error}"
