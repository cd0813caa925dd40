"""What differs between vLLM versions, as data: log shapes, defaults, names. Pure.

Source of each window: DOMAIN B, C and E.3 (read in the published sources of 0.16.0 to 0.33.0) and VLLM-LAB (measured on 0.32.0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


def release_of(version: str) -> tuple[int, int, int]:
    """(major, minor, patch) of a version; suffixes of nightlies are dropped: "0.16.0rc2.dev313+g66" is (0, 16, 0)."""
    numbers = [int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3]]
    padded = [*numbers, 0, 0, 0][:3]
    return padded[0], padded[1], padded[2]


@dataclass(frozen=True)
class Traits:
    """How one version looks and behaves."""

    version: str
    release: tuple[int, int, int]
    wraps_streams: bool
    """Every line of a process has its prefix, raw tracebacks and progress bars too (up to 0.29)."""
    engine_name: str
    prefixes_early_workers: bool
    """Workers have a prefix before they know their rank."""
    one_line_kv: bool
    compile_verb: str
    api_start: str
    default_utilization: float
    fp8_name: str
    """How the log names the FP8 KV type."""
    lines: dict[str, int]
    """Line numbers in the log's [file.py:line], by file; the nearest older release that was looked at."""

    def at_least(self, major: int, minor: int) -> bool:
        return self.release >= (major, minor, 0)

    def where(self, file: str, fallback: int = 100) -> str:
        return f"{file}:{self.lines.get(file, fallback)}"


# fmt: off
_LINES: dict[tuple[int, int], dict[str, int]] = {
    (0, 16): {"utils.py": 287, "args": 223, "model.py": 529, "max_len": 1549, "modelopt.py": 1034, "cache.py": 216,
              "scheduler.py": 224, "vllm.py": 689, "core.py": 97, "multiproc_executor.py": 921, "parallel_state.py": 1234,
              "pynccl.py": 111, "symm_mem.py": 67, "custom_all_reduce.py": 154, "assigned": 1445, "gpu_model_runner.py": 4124,
              "cuda.py": 364, "nvfp4.py": 122, "default_loader.py": 293, "loaded": 4221, "backends.py": 916, "dynamo": 976,
              "compiled": 266, "monitor.py": 34, "gpu_worker.py": 356, "kv_cache_utils.py": 1307, "concurrency": 1312,
              "captured": 5051, "engine_up": 272, "api_server.py": 495, "launcher.py": 38, "route": 47, "loggers.py": 259,
              "worker_error": 783, "core_error": 1006, "parent_exit": 732, "compilation.py": 1096, "serving.py": 185},
    (0, 18): {"utils.py": 302, "args": 238, "model.py": 531, "max_len": 1554, "core.py": 101, "scheduler.py": 231,
              "vllm.py": 747, "parallel_state.py": 1393, "assigned": 1715, "gpu_model_runner.py": 4481, "captured": 5386,
              "gpu_worker.py": 424, "kv_cache_utils.py": 1314, "concurrency": 1319, "monitor.py": 48, "warm": 76,
              "api_server.py": 580, "worker_error": 852, "core_error": 1046, "cuda.py": 334},
    (0, 24): {"utils.py": 299, "args": 233, "model.py": 602, "max_len": 1801, "core.py": 112, "parallel_state.py": 1514,
              "assigned": 1893, "gpu_model_runner.py": 5204, "captured": 6488, "gpu_worker.py": 498, "kv_cache_utils.py": 1702,
              "concurrency": 1707, "worker_error": 903, "core_error": 1199, "default_loader.py": 412},
    (0, 33): {"utils.py": 347, "args": 286, "model.py": 741, "max_len": 2166, "core.py": 135, "vllm.py": 1712,
              "multiproc_executor.py": 153, "parallel_state.py": 1911, "assigned": 2355, "gpu_model_runner.py": 6120,
              "base_loader.py": 82, "weight_utils.py": 1108, "default_loader.py": 503, "loaded": 6304, "kv_cache_utils.py": 2331,
              "engine_up": 404, "entry.py": 136, "launcher.py": 186, "route": 195, "worker_error": 953, "core_error": 1512,
              "captured": 7011, "gpu_worker.py": 551, "monitor.py": 53, "warm": 81, "kernel.py": 467},
}
# fmt: on


def traits(version: str) -> Traits:
    """The traits of `version`."""
    release = release_of(version)
    lines: dict[str, int] = {}
    for start, table in sorted(_LINES.items()):
        if release[:2] >= start or not lines:
            lines.update(table)
    return Traits(
        version=version,
        release=release,
        wraps_streams=release < (0, 30, 0),
        engine_name="EngineCore_DP0" if release < (0, 18, 0) else "EngineCore",
        prefixes_early_workers=release >= (0, 18, 0),
        one_line_kv=release >= (0, 26, 0),
        compile_verb="takes" if release < (0, 18, 0) else "took",
        api_start="Starting vLLM API server 0 on" if release < (0, 18, 0) else "Starting vLLM server on",
        default_utilization=0.9 if release < (0, 20, 0) else 0.92,
        fp8_name="fp8_e4m3" if release >= (0, 28, 0) else "fp8",
        lines=lines,
    )
