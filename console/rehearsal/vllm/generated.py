"""Source text that the installer writes for a version: what tools read from a real vLLM's files without importing it.

`_version.py`, `envs.py` with its table of environment variables, and the TRITON_MLA backend with its literal list of KV types.
"""

from __future__ import annotations

from console.rehearsal.vllm.standin.kv import triton_mla_dtypes
from console.rehearsal.vllm.standin.versions import release_of

# name: (first release with it, first release without it); DOMAIN E.3 where a window is given
_VARIABLES: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    **dict.fromkeys(
        (
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_API_KEY", "VLLM_ALLREDUCE_USE_SYMM_MEM", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT",
            "VLLM_CONFIGURE_LOGGING", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_DEBUG_LOG_API_SERVER_RESPONSE", "VLLM_DO_NOT_TRACK",
            "VLLM_DP_MASTER_IP", "VLLM_DP_MASTER_PORT", "VLLM_ENGINE_ITERATION_TIMEOUT_S", "VLLM_ENGINE_READY_TIMEOUT_S",
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "VLLM_HOST_IP", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH",
            "VLLM_LOGGING_COLOR", "VLLM_LOGGING_CONFIG_PATH", "VLLM_LOGGING_LEVEL", "VLLM_LOGGING_PREFIX", "VLLM_LOGGING_STREAM",
            "VLLM_LOG_STATS_INTERVAL", "VLLM_NCCL_SO_PATH", "VLLM_NO_USAGE_STATS", "VLLM_PLUGINS", "VLLM_PORT",
            "VLLM_PROCESS_NAME_PREFIX", "VLLM_RINGBUFFER_WARNING_INTERVAL", "VLLM_RPC_BASE_PATH", "VLLM_SKIP_P2P_CHECK",
            "VLLM_TARGET_DEVICE", "VLLM_TORCH_PROFILER_DIR", "VLLM_USE_DEEP_GEMM", "VLLM_USE_MODELSCOPE", "VLLM_WORKER_MULTIPROC_METHOD",
        ),
        ((0, 0), (99, 0)),
    ),
    "VLLM_SLEEP_WHEN_IDLE": ((0, 0), (0, 18)),
    "VLLM_NVFP4_GEMM_BACKEND": ((0, 0), (0, 24)),
    "VLLM_USE_FLASHINFER_MOE_FP4": ((0, 0), (0, 24)),
    "VLLM_FLASHINFER_MOE_BACKEND": ((0, 0), (0, 24)),
    "VLLM_RPC_TIMEOUT": ((0, 0), (0, 24)),
    "VLLM_TEST_FORCE_FP8_MARLIN": ((0, 0), (0, 33)),
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": ((0, 18), (99, 0)),
    "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC": ((0, 33), (99, 0)),
}  # fmt: skip


def variables(version: str) -> tuple[str, ...]:
    """Names of the environment variables that a version knows."""
    release = release_of(version)[:2]
    return tuple(sorted(name for name, (since, until) in _VARIABLES.items() if since <= release < until))


def modules(version: str, root: object) -> dict[str, str]:
    """Every generated file by its path within the package."""
    rows = "".join(f'    "{name}": lambda: os.getenv("{name}"),\n' for name in variables(version))
    return {
        "_version.py": f'"""Written by the installer."""\n\n__version__ = {version!r}\nROOT = {str(root) if root else None!r}\n',
        "envs.py": "import os\nfrom typing import Any, Callable\n\n"
        f"environment_variables: dict[str, Callable[[], Any]] = {{\n{rows}}}\n",
        "v1/attention/backends/mla/triton_mla.py": _TRITON.format(dtypes=list(triton_mla_dtypes(release_of(version)))),
    }


_TRITON = """from typing import ClassVar


class TritonMLABackend:
    supported_kv_cache_dtypes: ClassVar[list[str]] = {dtypes}

    @staticmethod
    def get_name() -> str:
        return "TRITON_MLA"

    @classmethod
    def supports_kv_cache_dtype(cls, dtype) -> bool:
        return dtype is None or dtype in cls.supported_kv_cache_dtypes
"""
