"""What nvidia-smi printed, in any of its moods, as one `GpuSample`: the right reading or a named finding.

Pure. `read_smi` recognises CSV, tables, `-q`, `-q -x`, `-L`, `--version` and the error texts by what they look like. A value
that is not whole, not in its expected unit, or not told is None; it never crashes and never gives a number that is not in
the text. Index, name and unit are matched by the CSV header once; CSV without a header needs `fields`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from console.node.findings import finding
from console.node.gpudata import Gpu, GpuFinding, GpuProcess, GpuSample, blank_gpu

MIB = 1 << 20

# Whole-machine troubles, first match wins. Old drivers print the first line of a mismatch only.
_TROUBLES = (
    (re.compile(r"Driver/library version mismatch"), "driver-mismatch"),
    (re.compile(r"couldn't communicate with the NVIDIA driver"), "driver-not-loaded"),
    (re.compile(r"Failed to initialize NVML: Driver Not Loaded"), "driver-not-loaded"),
    (re.compile(r"Failed to initialize NVML: .*Permission"), "no-permission"),
    (re.compile(r"Failed to initialize NVML"), "nvml-failed"),
    (re.compile(r"No devices were found"), "no-devices"),
    (re.compile(r"nvidia-smi: (?:command )?not found|nvidia-smi: No such file"), "no-driver"),
)
_EXIT_FINDINGS = {4: "no-permission", 6: "no-devices", 9: "driver-not-loaded", 127: "no-driver"}
"""nvidia-smi's exit codes by its manual, and the shell's; used where the text says nothing."""

_BUS = r"(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])"
_HANDLE = re.compile(
    rf"Unable to determine the device handle for GPU\s?(?:(?P<index>\d{{1,3}}):\s)?{_BUS}\s*:\s*(?P<said>[^\n]*)"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one form of output yielded, before the common findings are added."""

    gpus: tuple[Gpu, ...] = ()
    findings: tuple[GpuFinding, ...] = ()
    driver: str | None = None
    cuda: str | None = None


_QUANTITY = re.compile(r"(-?[0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(MiB|KiB|GiB|W|C|%)?")


def quantity(text: str, unit: str, *, bare: bool = False) -> float | None:
    """The number in `text` when it is followed by `unit`; with `bare` also when no unit follows. Else None."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or (match[2] or (unit if bare else None)) != unit:
        return None
    return float(match[1])


def memory(text: str, *, bare: bool = False) -> int | None:
    """MiB as bytes."""
    value = quantity(text, "MiB", bare=bare)
    return None if value is None or value < 0 else int(value * MIB)


def count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text.strip()) else None


def switch(text: str) -> bool | None:
    """Enabled and Disabled, Yes and No."""
    return {"enabled": True, "disabled": False, "yes": True, "no": False}.get(text.strip().lower())


def word(text: str) -> str | None:
    """A name; None for the many ways to say that there is none."""
    text = text.strip()
    absent = re.fullmatch(
        r"\[?(?:N/A|Not Supported|Unknown Error|ERR!|Not Found|None|Insufficient Permissions)\]?", text
    )
    return None if not text or absent or "deprecated" in text.lower() else text


def version(text: str | None) -> str | None:
    """A version number; newer drivers put a sentence in its place."""
    match = re.match(r"\d+(?:\.\d+)+", (text or "").strip())
    return match[0] if match else None


def whole_number(value: float | None) -> int | None:
    return None if value is None else int(value)


def capability(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,2})\.(\d{1,2})", text.strip())
    return (int(match[1]), int(match[2])) if match else None


def same_bus(left: str, right: str) -> bool:
    """nvidia-smi writes the PCI domain with 4 or with 8 digits."""
    return left.lower().lstrip("0") == right.lower().lstrip("0")


# -------------------------------------------------------------------------------------------------------------- CSV

_FIELD_ERRORS = {"[gpu is lost]": "gpu-lost", "[gpu requires reset]": "needs-reset"}
_SICK = re.compile(r"\[?(?:Unknown Error|ERR!)\]?", re.IGNORECASE)


def _column(name: str) -> tuple[str, str | None]:
    """("memory.total", "MiB") for `memory.total [MiB]`."""
    match = re.fullmatch(r"([\w.]+)\s*(?:\[([^\]]+)\])?", name.strip())
    return (match[1], match[2]) if match else ("", None)


_ALIASES = {
    "gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "power.draw.average": "power.draw",
    "enforced.power.limit": "power.limit",
}  # fmt: skip


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _gpu_of(cells: dict[str, str], position: int) -> tuple[Gpu, list[GpuFinding]]:
    """The GPU in one row. Numbers may stand without units (nounits): the units of a column never change."""
    index = count(cells.get("index", ""))
    number = position if index is None else index
    found = [finding(_FIELD_ERRORS[cell.lower()], number) for cell in cells.values() if cell.lower() in _FIELD_ERRORS]
    sick = [name for name, cell in cells.items() if _SICK.fullmatch(cell)]
    if sick:
        found.append(finding("field-error", number, ", ".join(sick)))
    total, used = memory(cells.get("memory.total", ""), bare=True), memory(cells.get("memory.used", ""), bare=True)
    gpu = Gpu(
        index=number,
        uuid=word(cells.get("uuid", "")),
        name=word(cells.get("name", "")),
        bus=word(cells.get("pci.bus_id", "")),
        capability=capability(cells.get("compute_cap", "")),
        memory_total=total or None,  # a total of 0 is how some drivers say that there is no such memory
        memory_used=used if total != 0 else None,
        memory_reserved=memory(cells.get("memory.reserved", ""), bare=True),
        utilisation=whole_number(quantity(cells.get("utilization.gpu", ""), "%", bare=True)),
        power=quantity(cells.get("power.draw", cells.get("power.draw.instant", "")), "W", bare=True),
        power_limit=quantity(cells.get("power.limit", ""), "W", bare=True),
        temperature=count(cells.get("temperature.gpu", "")),
        ecc_uncorrected=count(cells.get("ecc.errors.uncorrected.volatile.total", "")),
        remap_pending=switch(cells.get("remapped_rows.pending", "")),
        remap_failed=switch(cells.get("remapped_rows.failure", "")),
        mig=switch(cells.get("mig.mode.current", "")),
        processes=(),
        lost=any(item.id == "gpu-lost" for item in found),
    )
    if "memory.total" in cells and gpu.memory_total is None and not found:
        found.append(finding("unified-memory", number))
    return gpu, list(dict.fromkeys(found))


def parse_smi_csv(text: str, fields: Sequence[str] | None = None) -> Reading:
    """`--query-gpu=… --format=csv`, with the header in the text, or with `fields` where it has none.

    A last line without its newline may be cut: its last column counts only where a unit proves it whole.
    """
    lines = text.splitlines()
    columns: list[tuple[str, str | None]] | None = None if fields is None else [(name, None) for name in fields]
    gpus: list[Gpu] = []
    found: list[GpuFinding] = []
    driver: str | None = None
    cut = bool(text) and not text.endswith("\n")
    for number, line in enumerate(lines):
        cells = _cells(line)
        heads = [_column(cell) for cell in cells]
        if all(re.fullmatch(r"[a-z][\w.]*", name) for name, _ in heads):
            if cut and number == len(lines) - 1:
                found.append(finding("smi-cut"))
                break  # half a header
            columns = [(name, unit) for name, unit in heads]
            continue
        if columns is None or len(cells) != len(columns):
            if line.strip() and not _HANDLE.search(line):
                found.append(
                    finding("smi-cut" if columns is not None and number == len(lines) - 1 else "smi-unreadable")
                )
            continue
        row = {_ALIASES.get(name, name): cell for (name, _), cell in zip(columns, cells, strict=True)}
        last = _ALIASES.get(columns[-1][0], columns[-1][0])
        if cut and number == len(lines) - 1 and not re.search(r"\d (?:MiB|W|%)$", row[last]):
            row[last] = ""
            found.append(finding("smi-cut"))
        gpu, troubles = _gpu_of(row, len(gpus))
        driver = driver or version(row.get("driver_version"))
        gpus.append(gpu)
        found += troubles
    if not gpus and not found:
        found.append(finding("smi-unreadable", detail="CSV without a header or a row" if columns is None else "no row"))
    return Reading(tuple(gpus), tuple(dict.fromkeys(found)), driver)


def parse_apps_csv(text: str) -> dict[str, list[tuple[int, int | None]]]:
    """`--query-compute-apps=gpu_uuid,pid,used_memory --format=csv`: (pid, bytes) per GPU uuid."""
    columns: list[str] = []
    found: dict[str, list[tuple[int, int | None]]] = {}
    for line in text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]:
        cells = _cells(line)
        names = [_column(cell)[0] for cell in cells]
        if "pid" in names:
            columns = names
        elif columns and len(cells) == len(columns):
            row = dict(zip(columns, cells, strict=True))
            pid = count(row.get("pid", ""))
            held = row.get("used_memory", row.get("used_gpu_memory", ""))
            if pid is not None:
                found.setdefault(row.get("gpu_uuid", ""), []).append((pid, memory(held)))
    return found


# ------------------------------------------------------------------------------------------------- any of its moods


def _handle_findings(text: str) -> list[tuple[int | None, str, GpuFinding]]:
    """(index where told, bus, finding) of each GPU that has no handle any more; three spellings are known."""
    found = []
    for match in _HANDLE.finditer(text):
        index = None if match["index"] is None else int(match["index"])
        found.append((index, match["bus"], finding("gpu-lost", index, f"{match['bus']}, {match['said'].strip()}")))
    return found


def _with_lost(reading: Reading, text: str) -> Reading:
    """The reading with the GPUs that error lines beside it name as lost."""
    gpus = list(reading.gpus)
    found = list(reading.findings)
    for index, bus, trouble in _handle_findings(text):
        found.append(trouble)
        known = [gpu for gpu in gpus if gpu.index == index or (gpu.bus is not None and same_bus(gpu.bus, bus))]
        if index is not None and not known:
            gpus.append(blank_gpu(index, lost=True, bus=bus))
    gpus.sort(key=lambda gpu: gpu.index)
    return replace(reading, gpus=tuple(gpus), findings=tuple(dict.fromkeys(found)))


def _general(gpus: Sequence[Gpu]) -> list[GpuFinding]:
    """What the figures themselves tell."""
    found = []
    for gpu in gpus:
        if gpu.mig:
            found.append(finding("mig", gpu.index))
        if gpu.ecc_uncorrected:
            found.append(finding("ecc-uncorrected", gpu.index, f"{gpu.ecc_uncorrected:,}"))
        if gpu.remap_pending:
            found.append(finding("remap-pending", gpu.index))
        if gpu.remap_failed:
            found.append(finding("remap-failed", gpu.index))
    return found


def general_findings(gpus: Sequence[Gpu]) -> tuple[GpuFinding, ...]:
    """Findings that follow from the figures of the GPUs, whatever their source."""
    return tuple(_general(gpus))


def _read(text: str, fields: Sequence[str] | None) -> Reading:
    from console.node import smi_forms

    if "<nvidia_smi_log" in text or text.lstrip().startswith("<?xml"):
        return smi_forms.parse_xml(text)
    if "+----" in text and "NVIDIA-SMI" in text:
        return smi_forms.parse_table(text)
    if re.search(r"^NVIDIA-SMI version\s*:", text, re.MULTILINE):
        return smi_forms.parse_version(text)
    if re.search(r"^GPU \d+: .+\(UUID: ", text, re.MULTILINE):
        return smi_forms.parse_list(text)
    if "NVSMI LOG" in text or re.search(r"^\s+[\w /.-]+? +: ", text, re.MULTILINE):
        return smi_forms.parse_q(text)
    rest = "\n".join(line for line in text.split("\n") if not _HANDLE.search(line))
    if not rest.strip():
        return Reading()
    return parse_smi_csv(rest, fields)


def read_smi(
    text: str, exit_code: int | None = 0, *, fields: Sequence[str] | None = None, time: float = 0.0
) -> GpuSample:
    """The reading in what nvidia-smi printed, stdout and stderr together; total: anything gives a sample.

    `exit_code` None: it did not end in time. `fields`: the columns of CSV that has no header.
    """
    plain = text.encode(errors="replace").decode().replace("\r\n", "\n").replace("\0", "")
    trouble = next((id for pattern, id in _TROUBLES if pattern.search(plain)), None)
    if trouble is None and not plain.strip():
        trouble = "smi-wedged" if exit_code is None else _EXIT_FINDINGS.get(exit_code, "smi-unreadable")
    if trouble is not None:
        detail = next((line.strip() for line in plain.splitlines() if line.strip()), "")
        return GpuSample(time, "nvidia-smi", None, None, (), (finding(trouble, detail=detail[:200]),))
    reading = _with_lost(_read(plain, fields), plain)
    found = list(reading.findings)
    if exit_code is None:
        found.append(finding("smi-wedged"))
    found += _general(reading.gpus)
    return GpuSample(time, "nvidia-smi", reading.driver, reading.cuda, reading.gpus, tuple(dict.fromkeys(found)))


def with_processes(
    sample: GpuSample, apps: dict[str, list[tuple[int, int | None]]], who: Mapping[str, Sequence[object]]
) -> GpuSample:
    """The sample with the processes of `parse_apps_csv` on their GPUs; `who` as the agent's Processes tells it."""
    gpus = []
    for gpu in sample.gpus:
        held = apps.get(gpu.uuid or "", [])
        gpus.append(replace(gpu, processes=tuple(process_of(pid, size, who) for pid, size in sorted(held))))
    return replace(sample, gpus=tuple(gpus))


def process_of(pid: int, size: int | None, who: Mapping[str, Sequence[object]]) -> GpuProcess:
    """A process with its owner where it can be seen."""
    owner, command, unit, started = (*who.get(str(pid), ()), None, None, None, None)[:4]
    return GpuProcess(
        pid=pid,
        memory=size,
        owner=None if owner is None else str(owner),
        command=None if command is None else str(command),
        unit=None if unit is None else str(unit),
        started=started if isinstance(started, int) else None,
    )
