"""The forms of nvidia-smi that people read: the table, `-q`, `-q -x`, `-L` and `--version`.

Pure; used through `console.node.smi.read_smi`. Where the text breaks off or is damaged, what stands whole before it counts
and the rest is unknown.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as XML

from console.node.findings import finding
from console.node.gpudata import Gpu, GpuFinding, GpuProcess, blank_gpu
from console.node.smi import Reading, count, memory, quantity, switch, version, whole_number, word

# ------------------------------------------------------------------------------------------------------------ table

_VERSIONS = re.compile(
    r"^\| NVIDIA-SMI\s+\S+\s+(?:Driver|KMD) Version:\s*(?P<driver>[\d.]+)\s+(?:CUDA(?: UMD)? Version:\s*(?P<cuda>[\d.]+|N/A)\s*)?\|$",
    re.MULTILINE,
)
_FIRST = re.compile(
    r"^\|\s+(?P<index>\d{1,3})\s+(?P<name>\S.*?)\s+(?:On|Off|N/A)\s+\|"
    r"\s*(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s+\S+\s*\|\s*(?P<ecc>\S+)\s*\|$"
)
_SECOND = re.compile(
    r"^\|\s*(?P<fan>\S+)\s+(?P<temp>\S+)\s+(?P<perf>\S+)\s+(?P<power>\S+)\s*/\s*(?P<limit>\S+)\s*\|"
    r"\s*(?P<used>\S+(?: Supported)?)\s*(?:/\s*(?P<total>\S+))?\s*\|\s*(?P<util>\S+)\s+\S.*\|$"
)
_THIRD = re.compile(r"^\|\s*\|\s*\|\s*(?P<mig>\S+)\s*\|$")
_PROCESS = re.compile(
    r"^\|\s+(?P<index>\d{1,3})\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(?P<pid>\d{1,10})\s+(?P<kind>[CGM+]{1,5})\s+"
    r"(?P<command>.*?)\s+(?P<held>\d+MiB|N/A)\s*\|$"
)


def _table_gpu(first: re.Match[str], second: re.Match[str] | None, third: re.Match[str] | None) -> Gpu:
    gpu = replace(
        blank_gpu(int(first["index"])),
        name=word(first["name"]),
        bus=first["bus"],
        ecc_uncorrected=count(first["ecc"]),
        mig=switch(third["mig"]) if third else None,
    )
    if second is None:
        return gpu
    total = memory(second["total"] or "")
    return replace(
        gpu,
        memory_total=total or None,
        memory_used=memory(second["used"]) if total != 0 else None,
        utilisation=whole_number(quantity(second["util"], "%")),
        power=quantity(second["power"], "W"),
        power_limit=quantity(second["limit"], "W"),
        temperature=whole_number(quantity(second["temp"], "C")),
    )


def parse_table(text: str) -> Reading:
    """What plain `nvidia-smi` prints, of drivers before and after 610, with and without the MIG line."""
    lines = text.split("\n")
    complete = lines[:-1]  # what stands after the last newline may be cut
    gpus: list[Gpu] = []
    found: list[GpuFinding] = []
    held: dict[int, list[GpuProcess]] = {}
    for number, line in enumerate(complete):
        process = _PROCESS.match(line)
        if process:
            one = GpuProcess(int(process["pid"]), memory(process["held"]), None, word(process["command"]), None, None)
            held.setdefault(int(process["index"]), []).append(one)
            continue
        first = _FIRST.match(line)
        if first is None:
            continue
        below = [*complete[number + 1 : number + 3], "", ""]
        second = _SECOND.match(below[0])
        gpu = _table_gpu(first, second, _THIRD.match(below[1]))
        gpus.append(gpu)
        if second is None or "ERR!" in below[0]:
            found.append(finding("field-error" if second else "smi-cut", gpu.index))
        elif gpu.memory_total is None:
            found.append(finding("unified-memory", gpu.index))
    if lines[-1].strip() or "| Processes:" not in text or not _ends(complete):
        found.append(finding("smi-cut"))
    versions = _VERSIONS.search("\n".join(complete) + "\n")
    with_processes = tuple(replace(gpu, processes=tuple(held.get(gpu.index, ()))) for gpu in gpus)
    return Reading(
        with_processes,
        tuple(dict.fromkeys(found)),
        version(versions["driver"]) if versions else None,
        version(versions["cuda"]) if versions else None,
    )


def _ends(lines: list[str]) -> bool:
    """True when the last line drawn is the bottom of a box."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    return last.startswith("+---")


# --------------------------------------------------------------------------------------------------------------- -q


def _pairs(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(path of headings and key, value) of each line of `-q`; the nesting is the indent."""
    path: list[tuple[int, str]] = []
    for line in text.split("\n")[:-1]:
        if not line.strip() or line.startswith("="):
            continue
        indent = len(line) - len(line.lstrip())
        key, colon, value = line.strip().partition(" : ")
        while path and path[-1][0] >= indent:
            path.pop()
        path.append((indent, key.strip()))
        yield tuple(name for _, name in path), value.strip() if colon else ""


_Q_SUMS = (("SRAM Uncorrectable",), ("SRAM Uncorrectable Parity", "SRAM Uncorrectable SEC-DED"))


def _q_ecc(values: dict[tuple[str, ...], str]) -> int | None:
    """Uncorrected volatile errors of SRAM and DRAM together; old drivers give `Total` under `Double Bit`."""
    base = ("ECC Errors", "Volatile")
    whole = values.get((*base, "Double Bit", "Total"))
    if whole is not None:
        return count(whole)
    for names in _Q_SUMS:
        parts = [count(values.get((*base, name), "")) for name in (*names, "DRAM Uncorrectable")]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return sum(known)
    return None


def _q_gpu(index: int, bus: str | None, values: dict[tuple[str, ...], str], processes: list[GpuProcess]) -> Gpu:
    def at(*path: str) -> str:
        return values.get(path, "")

    power = ("GPU Power Readings", "Power Readings")
    total = memory(at("FB Memory Usage", "Total"))
    return Gpu(
        index=index,
        uuid=word(at("GPU UUID")),
        name=word(at("Product Name")),
        bus=bus,
        capability=None,
        memory_total=total or None,
        memory_used=memory(at("FB Memory Usage", "Used")) if total != 0 else None,
        memory_reserved=memory(at("FB Memory Usage", "Reserved")),
        utilisation=whole_number(quantity(at("Utilization", "GPU") or at("Utilization", "Gpu"), "%")),
        power=_first(
            quantity(at(part, name), "W")
            for part in power
            for name in ("Average Power Draw", "Power Draw", "Instantaneous Power Draw")
        ),
        power_limit=_first(
            quantity(at(part, name), "W") for part in power for name in ("Current Power Limit", "Enforced Power Limit", "Power Limit")
        ),
        temperature=whole_number(quantity(at("Temperature", "GPU Current Temp"), "C")),
        ecc_uncorrected=_q_ecc(values),
        remap_pending=switch(at("Remapped Rows", "Pending")),
        remap_failed=switch(at("Remapped Rows", "Remapping Failure Occurred")),
        mig=switch(at("MIG Mode", "Current")),
        processes=tuple(processes),
    )  # fmt: skip


def _first(values: Iterator[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


def parse_q(text: str) -> Reading:
    """`nvidia-smi -q`, whole or with -d; a part without its GPU heading gives findings that name no GPU."""
    cut = bool(text) and not text.endswith("\n")
    top: dict[str, str] = {}
    loose: dict[tuple[str, ...], str] = {}
    blocks: list[tuple[str, dict[tuple[str, ...], str], list[GpuProcess]]] = []
    pid: int | None = None
    for path, value in _pairs(text):
        heading = re.fullmatch(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])", path[0])
        if heading and len(path) == 1:
            blocks.append((heading[1], {}, []))
        elif heading is None:
            loose.setdefault(path, value)
            top.setdefault(path[0], value)
        elif "Processes" in path:
            if path[-1] == "Process ID":
                pid = count(value)
            elif path[-1] == "Used GPU Memory" and pid is not None:
                blocks[-1][2].append(GpuProcess(pid, memory(value), None, None, None, None))
                pid = None
        else:
            blocks[-1][1].setdefault(path[1:], value)
    gpus = tuple(_q_gpu(index, bus, values, held) for index, (bus, values, held) in enumerate(blocks))
    found: list[GpuFinding] = [finding("smi-cut")] if cut else []
    found += [
        finding("unified-memory", index)
        for index, (_, values, _) in enumerate(blocks)
        if values.get(("FB Memory Usage", "Total"), "").strip("[]") in ("N/A", "Not Supported")
    ]
    attached = count(top.get("Attached GPUs", ""))
    if attached is not None and attached != len(gpus):
        found.append(finding("smi-cut" if cut else "index-unsure"))
    if not blocks:
        found += _loose_findings(loose)
    driver = version(top.get("KMD Version")) or version(top.get("Driver Version"))
    cuda = version(top.get("CUDA UMD Version")) or version(top.get("CUDA Version"))
    return Reading(gpus, tuple(dict.fromkeys(found)), driver, cuda)


def _loose_findings(values: dict[tuple[str, ...], str]) -> list[GpuFinding]:
    """What a part of `-q` without a GPU heading tells."""
    found = []
    if switch(values.get(("Remapped Rows", "Pending"), "")):
        found.append(finding("remap-pending"))
    if switch(values.get(("Remapped Rows", "Remapping Failure Occurred"), "")):
        found.append(finding("remap-failed"))
    if not any(value for value in values.values()):
        found.append(finding("smi-unreadable"))
    return found


# -------------------------------------------------------------------------------------------------------------- XML


def _repaired(text: str) -> str:
    """The XML without what breaks it in the field: control characters, and process names that were not escaped."""
    text = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "", text)
    text = re.sub(r"<!DOCTYPE[^>]*>", "", text)
    return re.sub(
        r"(<process_name>)(.*?)(</process_name>)",
        lambda match: match[1] + html.escape(html.unescape(match[2]), quote=False) + match[3],
        text,
        flags=re.DOTALL,
    )


def _elements(text: str) -> tuple[list[XML.Element], dict[str, str], str | None]:
    """(whole <gpu> elements, plain top-level values, the parser's complaint or None)."""
    parser: Any = XML.XMLPullParser(("start", "end"))
    gpus: list[XML.Element] = []
    top: dict[str, str] = {}
    depth = 0
    complaint = None
    try:
        parser.feed(text)
        parser.close()
    except XML.ParseError as error:
        complaint = str(error)
    try:
        for event, element in parser.read_events():
            depth += 1 if event == "start" else -1
            if event == "end" and depth == 1:
                if element.tag == "gpu":
                    gpus.append(element)
                else:
                    top[element.tag] = (element.text or "").strip()
    except XML.ParseError as error:
        complaint = complaint or str(error)
    return gpus, top, complaint


def _xml_ecc(gpu: XML.Element) -> int | None:
    base = "ecc_errors/volatile/"
    whole = gpu.findtext(base + "double_bit/total")
    if whole is not None:
        return count(whole)
    for names in (("sram_uncorrectable",), ("sram_uncorrectable_parity", "sram_uncorrectable_secded")):
        parts = [count(gpu.findtext(base + name, "")) for name in (*names, "dram_uncorrectable")]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return sum(known)
    return None


def _xml_processes(gpu: XML.Element) -> tuple[GpuProcess, ...]:
    found = []
    for process in gpu.iterfind("processes/process_info"):
        pid = count(process.findtext("pid", ""))
        if pid is not None:
            name = word(process.findtext("process_name", ""))
            found.append(GpuProcess(pid, memory(process.findtext("used_memory", "")), None, name, None, None))
    return tuple(found)


def _xml_gpu(index: int, gpu: XML.Element) -> Gpu:
    def at(path: str) -> str:
        return gpu.findtext(path, "")

    power = ("gpu_power_readings", "power_readings")  # the second before driver 535
    draws = ("average_power_draw", "power_draw", "instant_power_draw")
    limits = ("current_power_limit", "enforced_power_limit", "power_limit")
    total = memory(at("fb_memory_usage/total"))
    return Gpu(
        index=index,
        uuid=word(at("uuid")),
        name=word(at("product_name")),
        bus=word(gpu.get("id", "")) or word(at("pci/pci_bus_id")),
        capability=None,
        memory_total=total or None,
        memory_used=memory(at("fb_memory_usage/used")) if total != 0 else None,
        memory_reserved=memory(at("fb_memory_usage/reserved")),
        utilisation=whole_number(quantity(at("utilization/gpu_util"), "%")),
        power=_first(quantity(at(f"{part}/{name}"), "W") for part in power for name in draws),
        power_limit=_first(quantity(at(f"{part}/{name}"), "W") for part in power for name in limits),
        temperature=whole_number(quantity(at("temperature/gpu_temp"), "C")),
        ecc_uncorrected=_xml_ecc(gpu),
        remap_pending=switch(at("remapped_rows/remapped_row_pending")),
        remap_failed=switch(at("remapped_rows/remapped_row_failure")),
        mig=switch(at("mig_mode/current_mig")),
        processes=_xml_processes(gpu),
    )


def parse_xml(text: str) -> Reading:
    """`nvidia-smi -q -x` of any driver; of broken XML the GPUs that are whole before the break."""
    if "<!ENTITY" in text:
        return Reading(findings=(finding("smi-unreadable", detail="XML with entities of its own"),))
    elements, top, complaint = _elements(_repaired(text).lstrip())
    gpus = tuple(_xml_gpu(index, element) for index, element in enumerate(elements))
    found: list[GpuFinding] = []
    if complaint is not None:
        found.append(finding("smi-broken-xml", detail=complaint))
    attached = count(top.get("attached_gpus", ""))
    if complaint is None and attached is not None and attached != len(gpus):
        found.append(finding("index-unsure"))
    for gpu, element in zip(gpus, elements, strict=True):
        if element.findtext("gpu_reset_status/reset_required", "").strip() == "Yes":
            found.append(finding("needs-reset", gpu.index))
        if gpu.memory_total is None:
            found.append(finding("unified-memory", gpu.index))
    return Reading(
        gpus,
        tuple(found),
        version(top.get("kmd_version")) or version(top.get("driver_version")),
        version(top.get("cuda_umd_version")) or version(top.get("cuda_version")),
    )


# ------------------------------------------------------------------------------------------------- -L and --version


def parse_list(text: str) -> Reading:
    """`nvidia-smi -L`; MIG instances below a GPU tell that MIG is on."""
    gpus: list[Gpu] = []
    for line in text.split("\n")[:-1]:
        match = re.fullmatch(r"GPU (\d{1,3}): (.+?) \(UUID: (GPU-[0-9a-f-]+)\)\s*", line)
        if match:
            gpus.append(replace(blank_gpu(int(match[1])), name=word(match[2]), uuid=match[3]))
        elif gpus and re.match(r"\s+MIG \S+\s+Device", line):
            gpus[-1] = replace(gpus[-1], mig=True)
    return Reading(tuple(gpus), (finding("smi-cut"),) if not text.endswith("\n") else ())


def parse_version(text: str) -> Reading:
    """`nvidia-smi --version`; since driver 610 the old lines hold a sentence that names the new ones."""
    values: dict[str, str] = {}
    for line in text.split("\n")[:-1]:
        key, _, value = line.partition(":")
        values[key.strip().lower()] = value.strip()
    driver = version(values.get("kmd version")) or version(values.get("driver version"))
    cuda = version(values.get("cuda umd version")) or version(values.get("cuda version"))
    return Reading(driver=driver, cuda=cuda)
