"""GPU findings in words: what each trouble means on a serving machine and what to do about it.

One table, so that NVML errors, nvidia-smi texts and kernel lines that mean the same get the same id and remedy.
"""

from __future__ import annotations

from typing import NamedTuple

from console.node.gpudata import GpuFinding


class _Words(NamedTuple):
    text: str
    remedy: str


# Meanings: DOMAIN D.19, D.29; nvidia-smi manual (exit codes 6, 9, 18); docs.nvidia.com/deploy/xid-errors
_WORDS = {
    "driver-mismatch": _Words(
        "the NVIDIA kernel module and the user-space library are of different versions; running CUDA programs go on, "
        "new ones fail",
        "reboot, or unload and load the nvidia modules; hold the driver packages against unattended upgrades",
    ),
    "driver-not-loaded": _Words(
        "the NVIDIA kernel module is not loaded",
        "look at `dkms status` and Secure Boot, then `modprobe nvidia`, or reboot",
    ),
    "no-devices": _Words(
        "the driver runs and sees no GPU it can use",
        "look at the kernel log; Blackwell cards need the -open flavour of the driver",
    ),
    "no-driver": _Words(
        "there is neither an NVIDIA library nor nvidia-smi on this machine",
        "install the NVIDIA driver",
    ),
    "nvml-failed": _Words("NVML cannot be used", "look at the kernel log for NVRM lines"),
    "no-permission": _Words("this login may not use the NVIDIA devices", "look at the owner of /dev/nvidia*"),
    "smi-wedged": _Words(
        "nvidia-smi gave no answer in time, as it does when a GPU hangs in the driver",
        "look at the kernel log for Xid lines; a GPU reset or a reboot is needed",
    ),
    "smi-unreadable": _Words("the answer of nvidia-smi is not in a known form", ""),
    "smi-cut": _Words("the answer of nvidia-smi ends in the middle; what is not whole counts as unknown", ""),
    "smi-broken-xml": _Words("the XML of nvidia-smi is broken; only whole GPUs before the break are read", ""),
    "gpu-lost": _Words(
        "the GPU has fallen off the bus; new CUDA programs can fail on all GPUs until a reboot",
        "reboot or power-cycle; look for Xid 79, then at power, riser and temperature",
    ),
    "needs-reset": _Words("the GPU must be reset before it can be used again", "reset the GPU or reboot"),
    "index-unsure": _Words(
        "fewer GPUs are listed than are attached, so the indices are the order of the list and may be wrong", ""
    ),
    "unified-memory": _Words(
        "the GPU has no memory of its own and uses the machine's RAM, so its memory cannot be told from here",
        "use the machine's RAM as the bound",
    ),
    "mig": _Words(
        "MIG is on: the GPU is split into instances, and its utilisation is not told",
        "tensor parallelism needs whole GPUs: turn MIG off with `nvidia-smi -mig 0`",
    ),
    "ecc-uncorrected": _Words(
        "uncorrected memory errors since the driver was loaded", "restart what ran; watch the count"
    ),
    "remap-pending": _Words(
        "memory rows wait to be remapped", "reset the GPU or reboot, so that the rows get remapped"
    ),
    "remap-failed": _Words("memory rows could not be remapped", "the card is to be exchanged (RMA)"),
    "field-error": _Words("the driver reports an error in place of some readings", "look at the kernel log"),
    "xid": _Words("the driver reported a fault", "see docs.nvidia.com/deploy/xid-errors"),
}

XID = {
    13: "a fault of the program on the GPU",
    31: "a memory fault of the program on the GPU",
    43: "the program's work on the GPU was stopped",
    45: "the program's work on the GPU was cancelled",
    48: "an uncorrectable memory error",
    63: "a memory row or page was marked for remapping",
    64: "a memory row or page could not be remapped",
    74: "an NVLink error",
    79: "the GPU fell off the bus (power, riser, temperature); reboot or power-cycle",
    94: "a contained memory error",
    95: "an uncontained memory error; reset the GPU",
    109: "a context switch timed out",
    119: "the GPU's system processor (GSP) does not answer; reset or reboot",
    120: "the GPU's system processor (GSP) failed; reset or reboot",
    154: "the driver asks for a recovery action (reset or reboot, see the line)",
}

APPLICATION_XIDS = frozenset({13, 31, 43, 45})
"""Xids that usually are the program's fault and leave the GPU usable."""


def finding(id: str, gpu: int | None = None, detail: str = "") -> GpuFinding:
    """The finding `id` in words; `detail` is what the source said itself, e.g. a bus id or NVML's own text."""
    words = _WORDS[id]
    where = "" if gpu is None else f"GPU {gpu}: "
    text = f"{where}{words.text}" + (f" ({detail})" if detail else "")
    return GpuFinding(id=id, gpu=gpu, text=text, remedy=words.remedy)


def xid_finding(number: int, gpu: int | None, detail: str = "") -> GpuFinding:
    """An Xid of the kernel log or of NVML's event queue."""
    meaning = XID.get(number, "see docs.nvidia.com/deploy/xid-errors")
    where = "" if gpu is None else f"GPU {gpu}: "
    text = f"{where}Xid {number}, {meaning}" + (f" ({detail})" if detail else "")
    return GpuFinding(id="xid", gpu=gpu, text=text, remedy=_WORDS["xid"].remedy)
