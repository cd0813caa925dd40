"""`nvidia-smi` of the practice node: queries in CSV, the table, -L, -q -x, topo -m, over the files of `gpu_state`.

A script of its own, quick to start; on a test node it needs only `gpu_state.py` beside it. Memory is what live processes hold.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from console.rehearsal.vllm.standin import gpu_state
else:
    _here = Path(__file__).resolve().parent
    sys.path += [str(_here), str(_here.parent / "vllm" / "standin")]
    import gpu_state

Machine, GpuState = gpu_state.Machine, gpu_state.GpuState
Value = Callable[[gpu_state.Machine, gpu_state.GpuState], str]


def _free(what: gpu_state.Machine, gpu: gpu_state.GpuState) -> str:
    return str(what.memory_mib - gpu.used_mib - gpu.reserved_mib)


# name: (unit or "", value)
FIELDS: dict[str, tuple[str, Value]] = {
    "timestamp": ("", lambda what, gpu: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "index": ("", lambda what, gpu: str(gpu.index)),
    "count": ("", lambda what, gpu: str(what.count)),
    "name": ("", lambda what, gpu: what.name),
    "gpu_name": ("", lambda what, gpu: what.name),
    "uuid": ("", lambda what, gpu: gpu.uuid),
    "gpu_uuid": ("", lambda what, gpu: gpu.uuid),
    "serial": ("", lambda what, gpu: f"16{gpu.index:010d}"),
    "pci.bus_id": ("", lambda what, gpu: gpu.bus),
    "gpu_bus_id": ("", lambda what, gpu: gpu.bus),
    "driver_version": ("", lambda what, gpu: what.driver),
    "compute_cap": ("", lambda what, gpu: what.capability),
    "compute_mode": ("", lambda what, gpu: "Default"),
    "persistence_mode": ("", lambda what, gpu: "Enabled"),
    "pstate": ("", lambda what, gpu: "P0" if gpu.utilisation else "P8"),
    "memory.total": ("MiB", lambda what, gpu: str(what.memory_mib)),
    "memory.used": ("MiB", lambda what, gpu: str(gpu.used_mib)),
    "memory.free": ("MiB", _free),
    "memory.reserved": ("MiB", lambda what, gpu: str(gpu.reserved_mib)),
    "utilization.gpu": ("%", lambda what, gpu: str(gpu.utilisation)),
    "utilization.memory": ("%", lambda what, gpu: str(gpu.utilisation // 2)),
    "temperature.gpu": ("", lambda what, gpu: str(gpu.temperature)),
    "power.draw": ("W", lambda what, gpu: f"{gpu.power:.2f}"),
    "power.limit": ("W", lambda what, gpu: f"{what.power_limit:.2f}"),
    "clocks.sm": ("MHz", lambda what, gpu: "2617" if gpu.utilisation else "180"),
    "clocks.max.sm": ("MHz", lambda what, gpu: "3090"),
    "fan.speed": ("%", lambda what, gpu: "[N/A]"),
    "mig.mode.current": ("", lambda what, gpu: "Disabled"),
    "mig.mode.pending": ("", lambda what, gpu: "Disabled"),
    "ecc.mode.current": ("", lambda what, gpu: "Enabled"),
    "ecc.errors.uncorrected.volatile.total": ("", lambda what, gpu: "0"),
    "ecc.errors.corrected.volatile.total": ("", lambda what, gpu: "0"),
    "remapped_rows.pending": ("", lambda what, gpu: "No"),
    "remapped_rows.failure": ("", lambda what, gpu: "No"),
    "pcie.link.gen.current": ("", lambda what, gpu: "5"),
    "pcie.link.width.current": ("", lambda what, gpu: "16"),
}
APP_FIELDS = (
    "gpu_uuid",
    "gpu_bus_id",
    "gpu_name",
    "pid",
    "process_name",
    "name",
    "used_memory",
    "used_gpu_memory",
    "timestamp",
)


class Usage(Exception):
    """A command line that nvidia-smi refuses: what it says, and its exit code."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


class Options:
    """The parsed command line."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.query: str | None = None
        self.apps: str | None = None
        self.format: tuple[str, ...] = ()
        self.every: float | None = None
        self.only: tuple[str, ...] = ()
        self.words: list[str] = []
        rest = list(argv)
        while rest:
            name, equals, value = rest.pop(0).partition("=")

            def take(value: str = value, equals: str = equals, name: str = name) -> str:
                if equals:
                    return value
                if not rest:
                    raise Usage(f"Option {name} requires a value. Please run 'nvidia-smi -h' for help.")
                return rest.pop(0)

            if name == "--query-gpu":
                self.query = take()
            elif name == "--query-compute-apps":
                self.apps = take()
            elif name == "--format":
                self.format = tuple(part.strip() for part in take().split(","))
            elif name in ("-lms", "--loop-ms"):
                self.every = int(take()) / 1000
            elif name in ("-l", "--loop"):
                self.every = float(take())
            elif name in ("-i", "--id"):
                self.only = tuple(take().split(","))
            else:
                self.words.append(name)


def select(gpus: Sequence[gpu_state.GpuState], only: Sequence[str]) -> list[gpu_state.GpuState]:
    """The GPUs that -i names by index, UUID or bus."""
    if not only:
        return list(gpus)
    found = [gpu for gpu in gpus if {str(gpu.index), gpu.uuid, gpu.bus} & set(only)]
    if not found:
        raise Usage("No devices were found", 6)
    return found


def query_gpus(what: gpu_state.Machine, gpus: Sequence[gpu_state.GpuState], options: Options) -> list[str]:
    """`--query-gpu=…`."""
    names = [name.strip() for name in (options.query or "").split(",")]
    for name in names:
        if name not in FIELDS:
            raise Usage(f'Field "{name}" is not a valid field to query.')
    lines = []
    if "noheader" not in options.format:
        lines.append(", ".join(name + (f" [{FIELDS[name][0]}]" if FIELDS[name][0] else "") for name in names))
    return lines + [", ".join(_cell(FIELDS[name], what, gpu, options) for name in names) for gpu in gpus]


def _cell(field: tuple[str, Value], what: gpu_state.Machine, gpu: gpu_state.GpuState, options: Options) -> str:
    text = field[1](what, gpu)
    return text if not field[0] or "nounits" in options.format or text.startswith("[") else f"{text} {field[0]}"


def query_apps(what: gpu_state.Machine, gpus: Sequence[gpu_state.GpuState], options: Options) -> list[str]:
    """`--query-compute-apps=…`."""
    names = [name.strip() for name in (options.apps or "").split(",")]
    for name in names:
        if name not in APP_FIELDS:
            raise Usage(f'Field "{name}" is not a valid field to query.')
    memory = ("used_memory", "used_gpu_memory")
    lines = []
    if "noheader" not in options.format:
        lines.append(", ".join(f"{name} [MiB]" if name in memory else name for name in names))
    unit = "" if "nounits" in options.format else " MiB"
    for gpu in gpus:
        for holder in gpu.holders:
            values = {
                "gpu_uuid": gpu.uuid,
                "gpu_bus_id": gpu.bus,
                "gpu_name": what.name,
                "pid": str(holder.pid),
                "process_name": program(holder),
                "name": program(holder),
                "used_memory": f"{holder.mib}{unit}",
                "used_gpu_memory": f"{holder.mib}{unit}",
                "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
            }
            lines.append(", ".join(values[name] for name in names))
    return lines


def program(holder: gpu_state.Holder) -> str:
    """The process's name as the driver knows it: its command line's first word."""
    try:
        first = Path(f"/proc/{holder.pid}/cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
    except OSError:
        first = ""
    return first or holder.name.partition(":spin")[0] or "[Not Found]"


def table(what: gpu_state.Machine, gpus: Sequence[gpu_state.GpuState]) -> list[str]:
    """The plain `nvidia-smi`."""
    bar = "+-----------------------------------------------------------------------------------------+"
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y       "),
        bar,
        f"| NVIDIA-SMI {what.driver:<22} Driver Version: {what.driver:<14} CUDA Version: {what.cuda:<9}|",
        "+-----------------------------------------+------------------------+----------------------+",
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|=========================================+========================+======================|",
    ]
    for gpu in gpus:
        state = "P0" if gpu.utilisation else "P8"
        usage = f"{gpu.used_mib}MiB / {what.memory_mib}MiB"
        lines += [
            f"| {gpu.index:>3}  {_short(what.name):<28}    On  |   {gpu.bus} Off |                    0 |",
            f"| N/A  {gpu.temperature:>3}C    {state}         {round(gpu.power):>6}W / {round(what.power_limit):>4}W | {usage:>22} | {gpu.utilisation:>6}%      Default |",
            "|                                         |                        |             Disabled |",
            "+-----------------------------------------+------------------------+----------------------+",
        ]
    lines += [
        "",
        bar,
        "| Processes:                                                                              |",
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
        "|        ID   ID                                                               Usage      |",
        "|=========================================================================================|",
    ]
    held = [(gpu.index, holder) for gpu in gpus for holder in gpu.holders]
    for index, holder in held:
        size = f"{holder.mib}MiB"
        lines.append(f"| {index:>4}   N/A  N/A {holder.pid:>15}      C   {program(holder)[:38]:<38} {size:>9} |")
    if not held:
        lines.append("|  No running processes found                                                             |")
    return [*lines, bar]


def _short(name: str) -> str:
    """The table's column is narrow."""
    return name if len(name) <= 25 else name[:22] + "..."


def listing(what: gpu_state.Machine, gpus: Sequence[gpu_state.GpuState]) -> list[str]:
    """`nvidia-smi -L`."""
    return [f"GPU {gpu.index}: {what.name} (UUID: {gpu.uuid})" for gpu in gpus]


def xml(what: gpu_state.Machine, gpus: Sequence[gpu_state.GpuState]) -> list[str]:
    """`nvidia-smi -q -x`, the parts that tools read."""
    lines = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">',
        "<nvidia_smi_log>",
        f"\t<timestamp>{time.strftime('%a %b %e %H:%M:%S %Y')}</timestamp>",
        f"\t<driver_version>{what.driver}</driver_version>",
        f"\t<cuda_version>{what.cuda}</cuda_version>",
        f"\t<attached_gpus>{what.count}</attached_gpus>",
    ]
    for gpu in gpus:
        free = what.memory_mib - gpu.used_mib - gpu.reserved_mib
        lines += [
            f'\t<gpu id="{gpu.bus}">',
            f"\t\t<product_name>{what.name}</product_name>",
            "\t\t<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>",
            f"\t\t<uuid>{gpu.uuid}</uuid>",
            f"\t\t<minor_number>{gpu.index}</minor_number>",
            f"\t\t<fb_memory_usage><total>{what.memory_mib} MiB</total><reserved>{gpu.reserved_mib} MiB</reserved>"
            f"<used>{gpu.used_mib} MiB</used><free>{free} MiB</free></fb_memory_usage>",
            f"\t\t<utilization><gpu_util>{gpu.utilisation} %</gpu_util></utilization>",
            "\t\t<ecc_errors><volatile><sram_uncorrectable_parity>0</sram_uncorrectable_parity>"
            "<dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors>",
            f"\t\t<temperature><gpu_temp>{gpu.temperature} C</gpu_temp></temperature>",
            f"\t\t<gpu_power_readings><instant_power_draw>{gpu.power:.2f} W</instant_power_draw>"
            f"<current_power_limit>{what.power_limit:.2f} W</current_power_limit></gpu_power_readings>",
            "\t\t<processes>",
            *(
                f"\t\t\t<process_info><pid>{holder.pid}</pid><type>C</type><process_name>{program(holder)}</process_name>"
                f"<used_memory>{holder.mib} MiB</used_memory></process_info>"
                for holder in gpu.holders
            ),
            "\t\t</processes>",
            "\t</gpu>",
        ]
    return [*lines, "</nvidia_smi_log>"]


def topology(what: gpu_state.Machine) -> list[str]:
    """`nvidia-smi topo -m`: two sockets, PCIe only."""
    half = (what.count + 1) // 2
    lines = [
        "\t" + "\t".join(f"GPU{index}" for index in range(what.count)) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    ]
    for row in range(what.count):
        cells = [
            " X " if row == column else "NODE" if row // half == column // half else "SYS"
            for column in range(what.count)
        ]
        node = row // half
        lines.append(f"GPU{row}\t" + "\t".join(cells) + f"\t{node * 64}-{node * 64 + 63}\t{node}\t\tN/A")
    return [
        *lines,
        "",
        "Legend:",
        "",
        "  X    = Self",
        "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)",
        "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node",
    ]


def version(what: gpu_state.Machine) -> list[str]:
    return [
        f"NVIDIA-SMI version  : {what.driver}",
        f"NVML version        : {what.driver.rpartition('.')[0]}",
        f"DRIVER version      : {what.driver}",
        f"CUDA Version        : {what.cuda}",
    ]


def answer(options: Options, root: Path) -> list[str]:
    """What one round prints."""
    what = gpu_state.machine(root)
    gpus = select(gpu_state.gpus(root), options.only)
    if options.query is not None or options.apps is not None:
        if "csv" not in options.format:
            raise Usage("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.")
        return (query_gpus if options.query is not None else query_apps)(what, gpus, options)
    match options.words:
        case []:
            return table(what, gpus)
        case ["-L" | "--list-gpus"]:
            return listing(what, gpus)
        case ["--version"]:
            return version(what)
        case ["topo", *_]:
            return topology(what)
        case words if "-x" in words and "-q" in words:
            return xml(what, gpus)
    raise Usage(
        f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n{' '.join(options.words)}", 1
    )


def main(argv: Sequence[str]) -> int:
    """Print once, or again and again until the reader goes."""
    root = gpu_state.practice_root()
    try:
        options = Options(argv)
        lines = answer(options, root)
        while True:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()
            if options.every is None:
                return 0
            time.sleep(options.every)
            # the header of a loop is printed once
            lines = answer(options, root)
            if options.query is not None and "noheader" not in options.format:
                lines = lines[1:]
    except Usage as refusal:
        sys.stdout.write(f"{refusal}\n")
        return refusal.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
