"""GPU telemetry: what a node's GPUs say, every field a value or unknown, every trouble a named finding.

`watch_gpus` streams samples from the agent in `console/node/agent`, which chooses its source on the node, best first: the
node's own pynvml, the bundled pynvml source, one long-lived `nvidia-smi`. Never one fork per sample. `Decoder` is pure: it
turns the agent's lines into samples. The parsers of nvidia-smi's own output are in `console.node.smi`.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from console.errors import RelaunchError
from console.node import agent
from console.node.base import Argv, Line, Node
from console.node.findings import finding, xid_finding
from console.node.gpudata import Gpu as Gpu
from console.node.gpudata import GpuFinding as GpuFinding
from console.node.gpudata import GpuProcess as GpuProcess
from console.node.gpudata import GpuSample as GpuSample
from console.node.script import ask, python_call
from console.node.smi import general_findings, parse_apps_csv, process_of, with_processes
from console.node.smi import parse_smi_csv as parse_smi_csv
from console.node.smi import read_smi as read_smi

AGENT_MODULES = ("processes", "nvml", "smi")


@cache
def bundled_pynvml() -> str:
    """The source of our own pynvml (nvidia-ml-py), compressed, as text; empty where it is not installed.

    332 kB that parse on Python 3.6 to 3.13, some 50 kB on the wire; nothing is installed on the node.
    """
    spec = find_spec("pynvml")
    if spec is None or spec.origin is None or not spec.origin.endswith("pynvml.py"):
        return ""
    return base64.b64encode(zlib.compress(Path(spec.origin).read_bytes(), 9)).decode()


def agent_call(interval: float, venvs: Sequence[str] = (), *, python: str = "python3") -> tuple[Argv, bytes]:
    """The attached helper that prints one sample every `interval` seconds; the protocol is in agent/telemetry.py."""
    question = {"interval": interval, "venvs": list(venvs), "bundle": bundled_pynvml()}
    return python_call("telemetry", agent.program(agent.source("telemetry"), AGENT_MODULES), question, python=python)


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _words(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


class Decoder:
    """The agent's lines as samples. Keeps the last head, since a head is sent only when it changes."""

    def __init__(self) -> None:
        self._head: Mapping[str, Any] = {}
        self._last: GpuSample | None = None

    def feed(self, line: str) -> GpuSample | None:
        """The sample that this line completes, or None. Raises `RelaunchError` for a line that is none of the agent's."""
        try:
            data = json.loads(line)
            return self.take(data)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise RelaunchError(f"the telemetry agent sent a line in no known form: {line[:120]!r}") from error

    def take(self, data: Mapping[str, Any]) -> GpuSample | None:
        """Like `feed`, of one decoded object."""
        if "head" in data:
            self._head = data["head"]
            return None
        if "wedged" in data:
            before = self._last or GpuSample(0.0, "unknown", None, None, (), ())
            return replace(before, time=float(data["t"]), findings=(*before.findings, finding("smi-wedged")))
        self._last = _smi_sample(data) if "smi" in data else _nvml_sample(self._head, data)
        return self._last


def _findings_of(head: Mapping[str, Any], gpus: Sequence[Gpu]) -> tuple[GpuFinding, ...]:
    found = []
    for item in head["findings"]:
        index = _number(item.get("gpu"))
        if item["id"] == "xid":
            found.append(xid_finding(int(item["xid"]), index))
        else:
            found.append(finding(str(item["id"]), index, str(item.get("detail", ""))))
    found += [
        finding("unified-memory", gpu.index)
        for gpu, fixed in zip(gpus, head["gpus"], strict=True)
        if fixed.get("unified")
    ]
    return tuple(dict.fromkeys((*found, *general_findings(gpus))))


def _nvml_gpu(fixed: Mapping[str, Any], values: Sequence[Any], who: Mapping[str, Any]) -> Gpu:
    used, reserved, utilisation, power, temperature, held = values
    known = fixed.get("capability")
    total = _number(fixed.get("total")) or None  # 0 is how some drivers say that there is no memory of its own
    return Gpu(
        index=int(fixed["index"]),
        uuid=_words(fixed.get("uuid")),
        name=_words(fixed.get("name")),
        bus=_words(fixed.get("bus")),
        capability=(int(known[0]), int(known[1])) if known else None,
        memory_total=total,
        memory_used=_number(used) if total is not None else None,
        memory_reserved=_number(reserved) if total is not None else None,
        utilisation=_number(utilisation),
        power=_real(power),
        power_limit=_real(fixed.get("limit")),
        temperature=_number(temperature),
        ecc_uncorrected=_number(fixed.get("ecc")),
        remap_pending=_truth(fixed.get("pending")),
        remap_failed=_truth(fixed.get("failed")),
        mig=_truth(fixed.get("mig")),
        processes=tuple(process_of(int(pid), _number(size), who) for pid, size in held),
        lost=bool(fixed.get("lost")),
    )


def _nvml_sample(head: Mapping[str, Any], data: Mapping[str, Any]) -> GpuSample:
    who = head["who"]
    gpus = tuple(_nvml_gpu(fixed, values, who) for fixed, values in zip(head["gpus"], data["g"], strict=True))
    return GpuSample(
        time=float(data["t"]),
        source=str(head["source"]),
        driver=_words(head["driver"]),
        cuda=_words(head["cuda"]),
        gpus=gpus,
        findings=_findings_of(head, gpus),
    )


def _smi_sample(data: Mapping[str, Any]) -> GpuSample:
    if data["smi"] is None:
        return GpuSample(float(data["t"]), "nvidia-smi", None, None, (), (finding("no-driver"),))
    sample = read_smi(str(data["smi"]), data["code"], time=float(data["t"]))
    return with_processes(sample, parse_apps_csv(data["apps"]), data["who"]) if data.get("apps") else sample


async def _samples(lines: AsyncIterator[Line]) -> AsyncGenerator[GpuSample, None]:
    decoder = Decoder()
    async for line in lines:
        sample = None if line.err else decoder.feed(line.text)
        if sample is not None:
            yield sample


@asynccontextmanager
async def watch_gpus(
    node: Node, interval: float = 1.0, *, venvs: Sequence[str] = ()
) -> AsyncIterator[AsyncIterator[GpuSample]]:
    """Samples of all GPUs every `interval` seconds, the first at once, through one attached helper.

    `venvs`: environments whose pynvml may serve where the node's Python has none. A driver that is away, mismatched or
    hung gives samples without GPUs and with the finding, and figures again when it is back. Raises `Unreachable` from the
    iteration when the link is lost; entering again starts a new helper.
    """
    argv, stdin = agent_call(interval, venvs)
    async with node.stream(argv, input=stdin) as lines, aclosing(_samples(lines)) as samples:
        yield samples


_ONCE = """
import json
from console.node.agent.telemetry_once import once
print(json.dumps(once(ASK["venvs"], ASK["bundle"])))
"""


async def sample_gpus(node: Node, *, venvs: Sequence[str] = ()) -> GpuSample:
    """One sample, by one exec."""
    source = agent.program(_ONCE, (*AGENT_MODULES, "telemetry_once"))
    lines = await ask(node, "telemetry", source, {"venvs": list(venvs), "bundle": bundled_pynvml()})
    return sample_of(lines)


def sample_of(lines: Sequence[Mapping[str, Any]]) -> GpuSample:
    """The sample in the lines that the agent's `once` returned."""
    decoder = Decoder()
    try:
        found = [sample for sample in map(decoder.take, lines) if sample is not None]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise RelaunchError("the telemetry agent answered in no known form") from error
    if not found:
        raise RelaunchError("the telemetry agent gave no sample")
    return found[-1]
