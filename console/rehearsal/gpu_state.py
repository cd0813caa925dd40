"""The practice node's GPUs, for the practice server and its tests; the code stands in the stand-in vLLM's package."""

from console.rehearsal.vllm.standin.gpu_state import (
    IDLE_MIB,
    GpuState,
    Holder,
    Machine,
    gpu,
    gpus,
    hold,
    holders,
    machine,
    practice_root,
    release,
    start_ticks,
)

__all__ = [
    "IDLE_MIB",
    "GpuState",
    "Holder",
    "Machine",
    "gpu",
    "gpus",
    "hold",
    "holders",
    "machine",
    "practice_root",
    "release",
    "start_ticks",
]
