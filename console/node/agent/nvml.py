"""Runs on the node: the GPUs through NVML, by whatever pynvml there is. Stdlib only, Python 3.6-safe.

pynvml is the node's own, one in a virtual environment that was named, or the bundled source, in this order.
"""

import base64
import ctypes
import glob
import os
import sys
import time
import types
import zlib
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from console.node.agent.processes import ROOT, Processes, read

HOLDERS_EVERY, SLOW_EVERY = 2, 10
"""Samples between two looks at the processes, and at what changes rarely. Memory itself is read every time."""

# NVML return codes: nvml.h, nvmlReturn_t
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 3, 4, 9, 12
FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, MISMATCH = 13, 15, 16, 18
INIT_FINDINGS = {NO_PERMISSION: "no-permission", DRIVER_NOT_LOADED: "driver-not-loaded", MISMATCH: "driver-mismatch"}


def pynvml_sources(venvs: Iterable[str], bundle: str) -> Iterator[Tuple[str, str, str]]:
    """(source name, code, file) of every pynvml within reach, best first. Root runs no file that others could write."""
    trusted = {0, int(os.environ.get("SUDO_UID", "0"))}
    for venv in venvs:
        pattern = os.path.join(os.path.expanduser(venv), "lib", "python3*", "site-packages")
        for name in ("pynvml.py", "vllm/third_party/pynvml.py"):
            for path in glob.glob(os.path.join(pattern, name)):
                if os.geteuid() != 0 or os.stat(path).st_uid in trusted:
                    yield "nvml", read(path), path
    if bundle:
        yield "nvml-bundled", zlib.decompress(base64.b64decode(bundle)).decode(), "<bundled pynvml>"


def usable(module: Any) -> bool:
    return all(hasattr(module, name) for name in ("nvmlInit", "nvmlDeviceGetCount", "NVMLError"))


def load_pynvml(venvs: Iterable[str], bundle: str) -> Tuple[Any, str]:
    """(module, source name); (None, "") when there is none."""
    try:
        import pynvml

        if usable(pynvml):
            return pynvml, "nvml"
    except Exception:  # a broken installation on the node must not end telemetry
        pass
    for source, code, path in pynvml_sources(venvs, bundle):
        module = types.ModuleType("pynvml")
        sys.modules["pynvml"] = module
        try:
            exec(compile(code, path, "exec"), module.__dict__)
        except Exception:
            continue
        if usable(module):
            return module, source
    return None, ""


class Lost(Exception):
    """The GPU does not answer any more."""


class Gone(Exception):
    """No GPU tells anything any more: the driver was unloaded or replaced, so NVML must be opened anew."""


def text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def whole(value: Any) -> Optional[int]:
    """The value where it is a number that NVML does tell, else None."""
    return None if value is None or value < 0 or value >= 0xFFFFFFFFFFFFFFFF else int(value)


class Nvml:
    """One NVML session. Every field is a value or None; a GPU that fell off the bus is marked lost and asked no more."""

    def __init__(self, module: Any, source: str) -> None:
        self.nv, self.source = module, source
        self.nv.nvmlInit()
        self.processes = Processes()
        self.head_shown: Optional[Dict[str, Any]] = None
        self.turn, self.said = 0, 0
        self.unified: Set[int] = set()
        self.slow: Dict[int, Dict[str, Any]] = {}
        self.old_memory = False
        self.xids: List[Dict[str, Any]] = []
        self.driver = text(self.ask("nvmlSystemGetDriverVersion"))
        cuda = self.ask("nvmlSystemGetCudaDriverVersion_v2") or self.ask("nvmlSystemGetCudaDriverVersion")
        self.cuda = "%d.%d" % (cuda // 1000, cuda % 1000 // 10) if cuda else None
        self.handles: List[Any] = []
        self.lost: Dict[int, str] = {}
        self.fixed: List[Dict[str, Any]] = []
        for index in range(self.nv.nvmlDeviceGetCount()):
            handle: Any = None
            fixed: Dict[str, Any] = {"index": index}
            try:
                handle = self.nv.nvmlDeviceGetHandleByIndex(index)
                fixed.update(self.fixed_of(handle))
            except Lost as failure:
                self.lost[index] = str(failure)
            except self.nv.NVMLError as failure:
                self.lost[index] = str(failure)
            self.handles.append(handle)
            self.fixed.append(fixed)
        self.totals: List[Optional[int]] = [None] * len(self.handles)
        self.held: List[List[Tuple[int, Optional[int]]]] = [[] for _ in self.handles]
        self.events = self.event_set()

    def ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        """The answer of one NVML call, None when the driver does not give it; raises Lost for a GPU that is gone."""
        try:
            return getattr(self.nv, name)(*arguments, **named)
        except self.nv.NVMLError as failure:
            self.said = failure.value
            if failure.value in (GPU_IS_LOST, RESET_REQUIRED):
                raise Lost(str(failure)) from failure
        except (AttributeError, TypeError, ValueError, KeyError, ctypes.ArgumentError):
            self.said = FUNCTION_NOT_FOUND  # an older or newer pynvml without this function or this shape
        return None

    def fixed_of(self, handle: Any) -> Dict[str, Any]:
        pci = self.ask("nvmlDeviceGetPciInfo", handle)
        capability = self.ask("nvmlDeviceGetCudaComputeCapability", handle)
        return {
            "uuid": text(self.ask("nvmlDeviceGetUUID", handle)),
            "name": text(self.ask("nvmlDeviceGetName", handle)),
            "bus": text(getattr(pci, "busId", None)),
            "capability": list(capability) if capability else None,
        }

    def event_set(self) -> Any:
        """Xid faults from now on, where the driver tells them."""
        events = self.ask("nvmlEventSetCreate")
        if events is None:
            return None
        told = False
        for handle in self.handles:
            if handle is not None:
                try:
                    self.nv.nvmlDeviceRegisterEvents(handle, 0x8, events)  # nvmlEventTypeXidCriticalError
                    told = True
                except (self.nv.NVMLError, AttributeError):
                    pass
        return events if told else None

    def new_xids(self) -> None:
        for _ in range(16):
            try:
                data = self.nv.nvmlEventSetWait_v2(self.events, 0)
            except (self.nv.NVMLError, AttributeError, TypeError):
                return  # nothing happened, or this driver cannot tell
            address = ctypes.cast(data.device, ctypes.c_void_p).value
            index = None
            for number, handle in enumerate(self.handles):
                if handle is not None and ctypes.cast(handle, ctypes.c_void_p).value == address:
                    index = number
            self.xids.append({"id": "xid", "gpu": index, "xid": int(data.eventData)})

    def memory(self, index: int, handle: Any) -> Tuple[Optional[int], Optional[int], Optional[int]]:
        """(total, used, reserved) in bytes. The second form counts what the driver keeps for itself apart."""
        info = None
        if not self.old_memory:
            info = self.ask("nvmlDeviceGetMemoryInfo", handle, version=getattr(self.nv, "nvmlMemory_v2", None))
        if info is None:
            info = self.ask("nvmlDeviceGetMemoryInfo", handle)
            self.old_memory = info is not None
        if info is None or not info.total:
            if info is not None or self.said == NOT_SUPPORTED:
                self.unified.add(index)
            return None, None, None
        return info.total, info.used, getattr(info, "reserved", None)

    def holders(self, handle: Any) -> List[Tuple[int, Optional[int]]]:
        found: Dict[int, Optional[int]] = {}
        for kind in ("Compute", "Graphics"):
            for process in self.ask("nvmlDeviceGet%sRunningProcesses" % kind, handle) or ():
                found[int(process.pid)] = whole(process.usedGpuMemory)
        return sorted(found.items())

    def slow_of(self, handle: Any) -> Dict[str, Any]:
        """What changes rarely."""
        remapped = self.ask("nvmlDeviceGetRemappedRows", handle)
        mig = self.ask("nvmlDeviceGetMigMode", handle)
        limit = self.ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        return {
            "limit": limit / 1000.0 if limit else None,
            "mig": bool(mig[0]) if mig else None,
            "ecc": whole(self.ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0)),  # uncorrected, since driver load
            "pending": bool(remapped[2]) if remapped else None,
            "failed": bool(remapped[3]) if remapped else None,
        }

    def quick_of(self, index: int, handle: Any) -> List[Any]:
        rates = self.ask("nvmlDeviceGetUtilizationRates", handle)
        power = self.ask("nvmlDeviceGetPowerUsage", handle)
        self.totals[index], used, reserved = self.memory(index, handle)
        if self.turn % HOLDERS_EVERY == 0:
            self.held[index] = self.holders(handle)
        return [
            used, reserved, int(rates.gpu) if rates else None, power / 1000.0 if power is not None else None,
            self.ask("nvmlDeviceGetTemperature", handle, 0), self.held[index],
        ]  # fmt: skip

    def sample(self) -> List[Dict[str, Any]]:
        """The lines of one sample: a head when it changed, and the figures. Raises Gone when the driver has left."""
        lost_before, slow = len(self.lost), self.turn % SLOW_EVERY == 0
        figures: List[List[Any]] = []
        for index, handle in enumerate(self.handles):
            values: List[Any] = [None, None, None, None, None, []]
            if index not in self.lost:
                try:
                    values = self.quick_of(index, handle)
                    if slow:
                        self.slow[index] = self.slow_of(handle)
                except Lost as failure:
                    self.lost[index] = str(failure)
            figures.append(values)
        asked = [index for index in range(len(self.handles)) if index not in self.lost]
        if asked and not self.unified and all(self.totals[index] is None for index in asked):
            raise Gone("NVML tells nothing of any GPU any more")
        faults = len(self.xids)
        if self.events is not None:
            self.new_xids()
        moved = slow or len(self.lost) != lost_before or len(self.xids) != faults
        lines = []
        if moved or self.turn % HOLDERS_EVERY == 0:
            head = self.head({pid for values in figures for pid, _ in values[5]})
            if head != self.head_shown:
                self.head_shown = head
                lines.append({"head": head})
        self.turn += 1
        return [*lines, {"t": time.time(), "g": figures}]

    def head(self, pids: Set[int]) -> Dict[str, Any]:
        gpus: List[Dict[str, Any]] = []
        for index, fixed in enumerate(self.fixed):
            gpu = dict(fixed, **self.slow.get(index, {}))
            gpu["total"], gpu["lost"] = self.totals[index], index in self.lost
            gpu["unified"] = index in self.unified
            gpus.append(gpu)
        findings: List[Dict[str, Any]] = [
            {"id": "gpu-lost", "gpu": index, "detail": said} for index, said in sorted(self.lost.items())
        ]
        if not gpus:
            findings.append({"id": "no-devices", "gpu": None, "detail": ""})
        return {
            "source": self.source, "driver": self.driver, "cuda": self.cuda, "gpus": gpus,
            "who": self.processes.of(sorted(pids)), "findings": findings + self.xids[-32:],
        }  # fmt: skip

    def close(self) -> None:
        try:
            self.nv.nvmlShutdown()
        except self.nv.NVMLError:
            pass


def broken(source: str, said: str, id: str = "nvml-failed") -> List[Dict[str, Any]]:
    """A sample that says why there is none."""
    known = {"id": id, "gpu": None, "detail": said}
    head: Dict[str, Any] = {"source": source, "driver": None, "cuda": None, "gpus": [], "who": {}, "findings": [known]}
    return [{"head": head}, {"t": time.time(), "g": []}]


def open_nvml(venvs: Sequence[str] = (), bundle: str = "") -> Tuple[Optional[Nvml], Optional[List[Dict[str, Any]]]]:
    """(Nvml, None), (None, lines that tell the trouble), or (None, None) where there is no NVML at all."""
    if ROOT:
        return None, None  # a practice node has no GPU of its own, and must not show those of its host
    module, source = load_pynvml(venvs, bundle)
    if module is None:
        return None, None
    try:
        return Nvml(module, source), None
    except module.NVMLError as failure:
        return (
            (None, None)
            if failure.value == LIBRARY_NOT_FOUND
            else (None, broken(source, str(failure), INIT_FINDINGS.get(failure.value, "nvml-failed")))
        )
