"""One run as a self-contained page to hand to a colleague: `relaunch report RUN`.

Made of the run's events and of its evidence folder, both redacted when they were kept; here everything is cleaned,
redacted and escaped once more. The page refers to nothing outside itself and runs no script; the pictures are inline SVG.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from console.deploy.picture import Mark, bars, lines
from console.deploy.runlog import ABOUT, GPU_MEMORY
from console.deploy.store import RunRow, Store
from console.errors import RelaunchError
from console.events import Compared, Event, Measured, StepChanged
from console.state import Snapshot, fold
from console.text import clean, duration, gib, redact

AROUND = 14
"""Lines of the log before and after the cause."""
KEPT = 400
"""Lines of the log's end, and of any other text, that a page shows."""
_SIGNS = {"done": "✓", "satisfied": "✓", "failed": "✗", "skipped": "·", "pending": "·", "needed": "!"}
_STYLE = """
:root{color-scheme:light dark;--ink:#1a1a1a;--soft:#666;--line:#ccc;--back:#fff;--box:#f5f5f3;--bad:#b3261e;--good:#1b6e3c}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--soft:#9a9a9a;--line:#444;--back:#161616;--box:#202020;--bad:#ff8a80;--good:#7fd39b}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0}
th{font-weight:600;color:var(--soft)}td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
pre{background:var(--box);padding:.7rem;overflow-x:auto;font:12.5px/1.45 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
pre b{color:var(--bad)}.bad{color:var(--bad)}.good{color:var(--good)}.soft{color:var(--soft)}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}svg .small{font-size:9.5px}
svg polyline{stroke-width:1.6}svg .grid{stroke:var(--line);stroke-width:.5}svg .mark{stroke:var(--soft);stroke-width:.6;stroke-dasharray:3 3}
svg .cap{stroke:var(--bad);stroke-width:.8;stroke-dasharray:6 3}
.legend span{margin-right:1rem;font-size:12px;color:var(--soft)}.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
.mark-rehearsal{border:2px solid var(--bad);color:var(--bad);padding:0 .5rem;font-weight:700}
"""


def write_report(store: Store, row: RunRow, evidence: Path, path: Path | None = None) -> Path:
    """Write the page of a run; where it stands. Raises RelaunchError when it cannot be written there."""
    target = path or Path.cwd() / f"relaunch-{row.id}.html"
    before = store.last_downtime(row.node, row.profile, before=row.id)
    text = page(row, tuple(store.events(row.id)), read_evidence(evidence), last_downtime=before)
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
    except OSError as error:
        raise RelaunchError(
            f"{target} cannot be written: {error.strerror}", "--out FILE names another place"
        ) from error
    return target


def read_evidence(folder: Path) -> dict[str, str]:
    """The texts in a run's evidence folder by name; empty when there is none."""
    found = {}
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.is_file():
                found[path.name] = path.read_text(encoding="utf-8", errors="replace")
    return found


def page(
    row: RunRow, events: Sequence[Event], evidence: Mapping[str, str], *, last_downtime: float | None = None
) -> str:
    """The whole page. Pure."""
    run = fold(events)
    about = _object(evidence.get(ABOUT, ""))
    sections = (
        ("", _head(row, run, last_downtime)),
        ("Checklist", _checklist(run)),
        ("Cause", _cause(run, evidence.get("journal.log", ""))),
        ("GPU memory", _gpu_picture(row, events, evidence.get(GPU_MEMORY, ""))),
        ("Load test", _load_test(run)),
        ("Notes", _list(run.notes)),
        ("Findings", _list(f"{item.level}: {item.text}" for item in run.findings if item.level != "allow")),
        ("Memory, as forecast", _pre("\n\n".join(item.table for item in run.findings if item.table))),
        ("Memory, as the server's log has it", _table((item.what, _compared(item)) for item in run.compared)),
        ("Machine and versions", _machine(about)),
        ("Environment of the service", _environment(about)),
        ("Unit", _pre(evidence.get("unit.service", ""))),
        ("Start, as systemd had it", _pre(evidence.get("start.json", ""))),
        ("Kernel log", _pre(evidence.get("kernel.log", "").strip())),
        ("Profile", _pre(json.dumps(about["profile"], indent=1, ensure_ascii=False) if about.get("profile") else "")),
        ("End of the service's log", _pre("\n".join(evidence.get("journal.log", "").splitlines()[-KEPT:]))),
    )
    body = "".join(f"<h2>{escape(title)}</h2>{html}" if title else html for title, html in sections if html)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width">'
        f"<title>Relaunch run {_safe(row.id)}, {_safe(row.node)}</title><style>{_STYLE}</style></head><body>{body}"
        "</body></html>\n"
    )


def _safe(text: object) -> str:
    """Text of any origin, fit to stand in the page."""
    return escape(redact(clean(str(text))))


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _head(row: RunRow, run: Snapshot, last_downtime: float | None) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(row.started))
    spent = "unfinished" if row.ended is None else duration(row.ended - row.started)
    kind = "good" if row.code == 0 else "bad"
    end = "has no end: its console was killed, or it still runs" if row.code is None else f"ended with {row.code}"
    mark = ' <span class="mark-rehearsal">REHEARSAL</span>' if row.rehearsal else ""
    lines_ = [
        f"<h1>{_safe(row.node)} › {_safe(row.profile)} › run {_safe(row.id)} {_safe(row.verb)}{mark}</h1>",
        f'<p class="soft">{when}, {spent}</p>',
        f'<p class="{kind}"><strong>{end}</strong>{": " + _safe(row.text) if row.text else ""}</p>',
    ]
    if run.ended and run.ended.remedy:
        lines_.append(f"<p>try: {_safe(run.ended.remedy)}</p>")
    down = run.downtime_seconds if run.downtime_seconds is not None else row.downtime
    if down is not None:
        compared = "" if last_downtime is None else f", last time {duration(last_downtime)}"
        lines_.append(
            f"<p>Downtime {duration(down)}{compared}, from the old service's stop to a sensible generation.</p>"
        )
    elif run.downtime_since is not None:
        lines_.append('<p class="bad">Downtime began and had not ended when this run did.</p>')
    return "".join(lines_)


def _checklist(run: Snapshot) -> str:
    rows = []
    for step in run.steps:
        kind = "bad" if step.state == "failed" else "good" if step.state in ("done", "satisfied") else "soft"
        spent = "" if step.seconds is None else duration(step.seconds)
        rows.append(
            f'<tr><td class="{kind}">{_SIGNS.get(step.state, "▶")}</td><td>{_safe(step.name)}</td>'
            f'<td>{_safe(step.state)}</td><td class="n">{spent}</td><td>{_safe(step.detail)}</td></tr>'
        )
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _cause(run: Snapshot, log: str) -> str:
    cause = run.cause
    if cause is None:
        return ""
    where = [cause.process, f"same on {cause.ranks} ranks" if cause.ranks and cause.ranks > 1 else "", cause.category]
    rows = [("step", cause.step), ("where", ", ".join(part for part in where if part)), ("why", cause.meaning),
            ("do", cause.remedy)]  # fmt: skip
    table = "".join(f"<tr><th>{name}</th><td>{_safe(text)}</td></tr>" for name, text in rows if text)
    return f"<pre><b>{_safe(cause.text)}</b></pre><table>{table}</table>{_excerpt(log, cause.text)}"


def _excerpt(log: str, cause: str) -> str:
    """The log around the line that holds the cause."""
    first = next((line.strip() for line in cause.splitlines() if line.strip()), "")
    shown = log.splitlines()
    at = next((index for index, line in enumerate(shown) if first and first in line), None)
    if at is None:
        return ""
    begin = max(0, at - AROUND)
    text = "\n".join(
        f"<b>{_safe(line)}</b>" if index == at else _safe(line)
        for index, line in enumerate(shown[begin : at + AROUND + 1], begin)
    )
    return f'<p class="soft">from the log, line {at + 1} of {len(shown)}</p><pre>{text}</pre>'


def _gpu_picture(row: RunRow, events: Sequence[Event], text: str) -> str:
    samples = [_object(line) for line in text.splitlines()]
    samples = [sample for sample in samples if isinstance(sample.get("used"), list) and "time" in sample]
    if not samples:
        return ""
    count = max(len(sample["used"]) for sample in samples)
    series: dict[str, list[tuple[float, float | None]]] = {f"GPU {index}": [] for index in range(count)}
    for sample in samples:
        for index in range(count):
            used = sample["used"][index] if index < len(sample["used"]) else None
            at = max(0.0, float(sample["time"]) - row.started)
            series[f"GPU {index}"].append((at, None if used is None else used / 2**30))
    total = next((sample["total"] for sample in samples if sample.get("total")), None)
    marks = [
        Mark(event.time - row.started, event.step)
        for event in events
        if isinstance(event, StepChanged) and event.state == "running"
    ]
    cap = None if total is None else total / 2**30
    return lines(series, title="GPU memory in use over the run", unit="GiB", top=cap, marks=marks)


def _load_test(run: Snapshot) -> str:
    if not run.measured:
        return ""
    groups = [f"{point.concurrency} streams" for point in run.measured]
    speed = {"output tokens/s": [point.output_tokens_per_s for point in run.measured]}
    wait = {name: [point.ttft_ms.get(name) for point in run.measured] for name in ("p50", "p99")}
    head = "".join(f'<th class="n">{name}</th>' for name in _COLUMNS)
    rows = "".join(
        f"<tr>{''.join(f'<td class=n>{cell}</td>' for cell in _cells(point))}</tr>" for point in run.measured
    )
    return (
        bars(groups, speed, title="Output tokens per second by concurrency", unit="tok/s")
        + bars(groups, {f"TTFT {name}": row for name, row in wait.items()}, title="Time to first token", unit="ms")
        + f"<table><tr>{head}</tr>{rows}</table>"
    )


_COLUMNS = (
    "streams",
    "tokens in",
    "tokens out",
    "ok",
    "failed",
    "tok/s",
    "TTFT p50",
    "TTFT p99",
    "TPOT p99",
    "ITL p99",
)


def _cells(point: Measured) -> Iterable[str]:
    yield from (
        str(n) for n in (point.concurrency, point.input_tokens, point.output_tokens, point.completed, point.failed)
    )
    yield "unknown" if point.output_tokens_per_s is None else f"{point.output_tokens_per_s:,.1f}"
    for values, name in ((point.ttft_ms, "p50"), (point.ttft_ms, "p99"), (point.tpot_ms, "p99"), (point.itl_ms, "p99")):
        yield f"{values[name]:,.0f} ms" if name in values else "unknown"


def _machine(about: Mapping[str, Any]) -> str:
    if not about:
        return ""
    gpus = [
        f"{name or 'unknown GPU'}, {'memory unknown' if total is None else gib(total)}" for name, total in about["gpus"]
    ]
    kinds = [f"{gpus.count(kind)} × {kind}" for kind in dict.fromkeys(gpus)]
    rows = [
        ("host", about.get("host")),
        ("GPUs", "; ".join(kinds)),
        ("driver", about.get("driver")),
        ("CUDA of the driver", about.get("cuda")),
        ("kernel", about.get("kernel")),
        ("systemd", about.get("systemd")),
        ("Python", about.get("python")),
        ("CPUs, memory", f"{about.get('cpus')}, {gib(about.get('memory') or 0)}"),
        ("vLLM wanted", ((about.get("profile") or {}).get("vllm") or {}).get("version")),
        *((f"vLLM in {path} at the start", version or "none") for path, version in (about.get("vllm") or {}).items()),
        *((f"{unit} at the start", state) for unit, state in (about.get("units") or {}).items()),
        ("Relaunch", about.get("relaunch")),
    ]
    return _table((name, "unknown" if value is None else str(value)) for name, value in rows)


def _compared(item: Compared) -> str:
    def figure(value: float | None) -> str:
        return "unknown" if value is None else gib(value) if item.unit == "bytes" else f"{value:,.0f} {item.unit}"

    error = "" if item.error is None else f" ({item.error * 100:+.1f} %)"
    return f"{figure(item.measured)}, forecast {figure(item.expected)}{error}"


def _environment(about: Mapping[str, Any]) -> str:
    profile = about.get("profile")
    variables = profile.get("environment") if isinstance(profile, dict) else None
    if not isinstance(variables, dict):
        return ""
    return _table((name, f"{item.get('value')}  (from {item.get('source')})") for name, item in variables.items())


def _table(rows: Iterable[tuple[str, str]]) -> str:
    text = "".join(f"<tr><th>{_safe(name)}</th><td>{_safe(value)}</td></tr>" for name, value in rows)
    return f"<table>{text}</table>" if text else ""


def _list(items: Iterable[str]) -> str:
    text = "".join(f"<li>{_safe(item)}</li>" for item in items)
    return f"<ul>{text}</ul>" if text else ""


def _pre(text: str) -> str:
    return f"<pre>{_safe(text)}</pre>" if text.strip() else ""
