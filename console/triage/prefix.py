"""One log line, taken apart: who wrote it, how loud, and the text itself with its indentation kept.

Prefixes nest, repeat, glue together and are often absent. They are stripped from the left, one at a time, until nothing
known is left: container runtimes, syslog, journald, cloud logs, Ray and torch wrap what vLLM and SGLang already wrapped. The
innermost process wins ("(EngineCore_0 pid=1) (VllmWorker rank=1 pid=2)" is VllmWorker rank 1). Pure, no state.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_LEVEL = r"DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|NOTICE|SUCC"

_PROCESS = re.compile(r"\(([A-Za-z][\w.:-]*?)((?: \w+=[\w.:-]+,?)+)\) ?")
_FIELD = re.compile(r"(\w+)=([\w.:-]+)")
_VLLM = re.compile(rf"({_LEVEL}) +\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? +\[?((?:[\w./<>-]+/)?[\w.<>-]+:\d+)\] ?")
_SGLANG = re.compile(
    rf"\[({_STAMP})((?: (?:DP|TP|PP|EP|ATTN_TP|ATTN_DP|CP|MOE_EP)\d+)*)(?: (?:[\w.]+))?\]"
    rf" (?:({_LEVEL}) ([\w./-]+:\d+): )?"
)
_TORCH = re.compile(r"\[rank(\d+)\]:(?=\[|[EWIF]\d| |$) ?")
_C10 = re.compile(r"\[?([EWIF])\d{3,4} \d\d:\d\d:\d\d\.\d+ (?:\d+ )*([\w./-]+:\d+)\] ?")
_RAY_CORE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ ([EWIFC]) \d+ \d+\] (?:\(\w+\) )?([\w./-]+:\d+): ?")
_PY_LOG = re.compile(rf"{_STAMP} (?:- )?({_LEVEL}) (?:- )?([\w./-]+:\d+) (?:--|-) ?")
KERNEL = "kernel"
"""The process of the kernel's own lines, where a journal or dmesg is mixed into the log."""
_DMESG = r"\[(?: *\d+\.\d{6}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] "
_OF_KERNEL = re.compile(rf"(?:<\d+>)?{_DMESG}\Z|.* kernel: \Z")
_OUTER = re.compile(
    # Docker Compose and kubectl, CRI (k8s), syslog with host and tag, journald short forms, cloud logs, plain stamps.
    r"[\w./-]{1,80} +\| "
    r"|\[pod/[^\]]{1,200}\] "
    rf"|{_STAMP} (?:stdout|stderr) [FP] "
    r"|(?:<\d+>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|"
    rf"{_STAMP}) [\w.-]+ (?:[\w./@:-]+\[\d+\]|kernel): "
    rf"|(?:{_LEVEL}) {_STAMP} "
    # RFC 5424; the stamps of `docker logs -t` and of ts(1)
    rf"|<\d+>1 {_STAMP} \S+ \S+ \S+ \S+ (?:-|\[[^\]]*\]) "
    rf"|{_STAMP}[ \t](?!- )"
    r"|(?:[A-Z][a-z]{2} [ \d]\d )?\d\d:\d\d:\d\d(?:\.\d+)? (?=\S| )"
    rf"|\[{_STAMP}\] "
    rf"|{_DMESG}"
)
_UVICORN = re.compile(r"(INFO|WARNING|ERROR|CRITICAL): {4,5}")
_BARE_LEVEL = re.compile(rf"\[?({_LEVEL})(?:\]|:)? +(?=\S)")

# A record that begins behind something unknown: a process of vLLM, a record's level and date, SGLang's bracket.
_RECORD = re.compile(
    r"\((?:APIServer|ApiServer|EngineCore|Worker|VllmWorker|RayWorker|DPCoordinator)[\w.-]*(?: rank=\d+)? pid=\d+"
    rf"|(?:{_LEVEL}) +\d\d-\d\d \d\d:\d\d:\d\d"
    rf"|\[{_STAMP} (?:DP|TP|PP)\d+"
)
_LETTERS = {"E": "ERROR", "W": "WARNING", "I": "INFO", "F": "FATAL", "C": "CRITICAL"}
_RANK = re.compile(r"(?:TP|Worker[-_]?|rank[-_ ]?)(\d+)")
_WORKER = re.compile(r"Worker|^TP\d|TP\d+$|^rank \d")
LOUD = frozenset({"ERROR", "CRITICAL", "FATAL"})
CALM = frozenset({"DEBUG", "INFO", "NOTICE", "SUCC"})
QUIET = frozenset({"DEBUG", "INFO", "NOTICE", "SUCC", "WARNING", "WARN"})


@dataclass(frozen=True, slots=True)
class Line:
    """`process` is None where nothing names one; `level` and `source` ("core.py:718") belong to the innermost record."""

    text: str
    process: str | None = None
    pid: int | None = None
    rank: int | None = None
    level: str | None = None
    source: str | None = None
    outer: str = ""
    """The key of the process that passed the line on, where an inner one replaced it: its further lines may carry it alone."""

    @property
    def key(self) -> str:
        """Whose line it is, for putting interleaved processes apart; "" where unknown. One worker's pid goes by up to
        three names in a row (VllmWorker-0, Worker, Worker_TP0), so a pid alone decides where there is one."""
        if self.pid is not None:
            return str(self.pid)
        return self.process or ""

    @property
    def is_worker(self) -> bool:
        return bool(self.process and _WORKER.search(self.process))


_Known = tuple[str | None, int | None, int | None, str | None, str | None, str]
_known: dict[str, _Known] = {}
"""What is known of a whole prefix up to its `[file.py:1] `: a burst of lines has few different ones."""
_MOST_KNOWN = 512


def parse(raw: str) -> Line:
    """Strip every known prefix of `raw`, which holds no line end."""
    cut = raw.find("] ") + 2
    if cut > 2 and (known := _known.get(raw[:cut])) and raw[cut : cut + 1] not in ("(", "["):
        return Line(raw[cut:], *known)
    return _parse(raw, cut)


def _parse(raw: str, cut: int) -> Line:
    text, at = raw, 0
    process: str | None = None
    pid: int | None = None
    rank: int | None = None
    level: str | None = None
    source: str | None = None
    outer = ""
    for _ in range(24):
        if at >= len(text):
            break
        first = text[at]
        if first in " \t" or (level is not None and first not in "(["):
            break
        if first == "(":
            found = _PROCESS.match(text, at)
            if not found:
                break
            process, pid, rank = _process(found[1], found[2])
        elif first == "[":
            if found := _TORCH.match(text, at):
                process, pid, rank = process or f"rank {found[1]}", pid, int(found[1])
            elif found := _SGLANG.match(text, at):
                if found[2]:
                    outer = str(pid) if pid is not None else process or ""
                    process, pid = found[2].strip(), None
                    rank = _rank(process)
                level, source = found[3] or level, found[4] or source
            elif found := _C10.match(text, at) or _RAY_CORE.match(text, at):
                level, source = _LETTERS[found[1]], found[2]
            elif not (found := _OUTER.match(text, at)):
                break
        elif found := _VLLM.match(text, at):
            level, source = found[1], found[2]
        elif found := _UVICORN.match(text, at):
            level, source = found[1], "uvicorn"
        elif found := _C10.match(text, at):
            level, source = _LETTERS[found[1]], found[2]
        elif found := _PY_LOG.match(text, at):
            level, source = found[1], found[2]
        elif not (found := _OUTER.match(text, at)):
            break
        if found.end() == at:
            break
        at = found.end()
    if at and process is None and level is None and _OF_KERNEL.match(text, 0, at):
        process = KERNEL
    if level is None and (found := _BARE_LEVEL.match(text, at)):
        level = found[1]
        at = found.end()
    level = "WARNING" if level == "WARN" else level
    if at:
        text = text[at:]
        if at == cut and level is not None and source is not None and raw[at : at + 1] not in ("(", "["):
            # whatever follows such a prefix, save a bracket, is text
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[raw[:at]] = (process, pid, rank, level, source, outer)
    return Line(text, process, pid, rank, level, source, outer)


def unknown_lead(text: str) -> int:
    """How many characters of an unknown prefix stand before a record; 0 where there is none."""
    found = _RECORD.search(text, 0, 240)
    return found.start() if found else 0


@functools.lru_cache(maxsize=512)
def _process(name: str, fields: str) -> tuple[str, int | None, int | None]:
    pid: int | None = None
    rank: int | None = None
    for key, value in _FIELD.findall(fields):
        if key == "pid" and value.isdigit():
            pid = int(value)
        elif key == "rank" and value.isdigit():
            rank = int(value)
    if rank is not None:
        return f"{name} rank {rank}", pid, rank
    return name, pid, _rank(name)


def _rank(name: str) -> int | None:
    found = _RANK.search(name)
    return int(found[1]) if found else None
