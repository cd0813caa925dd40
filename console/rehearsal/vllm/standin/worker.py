"""One rank: a process that takes memory of its GPU, reads the shards' headers, and says what a worker says.

It does what the engine tells it over its channel, one stage at a time, and answers {"ok": true} or {"error": text}.
"""

from __future__ import annotations

import time
from typing import Any

from . import faults, gpu_state, kv, memory, model
from .launch import Launch
from .log import Log, bar, shard_bar
from .process import Channel
from .tracebacks import WORKER, render

OOM_RANK = 3
"""The rank that runs out of memory under the fault `oom`."""


class Worker:
    """Rank `rank` of a start."""

    def __init__(self, launch: Launch, log: Log, rank: int, engine: Channel) -> None:
        self.launch = launch
        self.log = log
        self.rank = rank
        self.engine = engine
        self.mib = 0.0
        self.budget: memory.Budget | None = None
        self.broken = False
        """Shards are missing and this version does not mind."""

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def title(self) -> str:
        return f"VLLM::Worker_TP{self.rank}"

    def run(self) -> int:
        """Serve the engine until it says `exit` or is gone."""
        stages = {
            "init": self._init,
            "join": self._join,
            "load": self._load,
            "compile": self._compile,
            "capture": self._capture,
        }
        while True:
            message = self.engine.receive()
            if message is None or message.get("failed"):
                where = f"multiproc_executor.py:{self.launch.traits.lines['parent_exit']}"
                self.log.info(where, "Parent process exited, terminating worker")
                return 0
            name = str(message["do"])
            if name == "exit":
                return 0
            if name == "busy":
                self._hold(busy=int(message["percent"]))
                continue
            if name == "available":
                if self.first:
                    text = f"Available KV cache memory: {float(message['gib']):.2f} GiB"
                    self.log.info(self.launch.traits.where("gpu_worker.py"), text)
                self.engine.send({"ok": True})
                continue
            if name == "kv":
                self._take(float(message["gib"]) * 1024)
                self.engine.send({"ok": True})
                continue
            try:
                answer = stages[name]()
            except model.Failure as failure:
                self._report(failure)
                self.engine.send({"error": failure.text, "kind": failure.kind})
                continue
            self.engine.send({"ok": True, **answer})

    def _report(self, failure: model.Failure) -> None:
        traits = self.launch.traits
        where = f"multiproc_executor.py:{traits.lines['worker_error']}"
        text = render(WORKER[failure.frames], f"{failure.kind}: {failure.text}")
        if failure.frames == "capture":
            self.log.error(where, f"WorkerProc hit an exception.\n{text}\n{text}\n")
        else:
            self.log.error(where, f"WorkerProc failed to start.\n{text}")

    def _hold(self, *, busy: int = 0, name: str = "") -> None:
        gpu_state.hold(self.launch.root, self.rank, round(self.mib), busy=busy, name=name or self.title)

    def _take(self, mib: float) -> None:
        self.mib += mib
        self._hold()

    def _init(self) -> dict[str, Any]:
        launch, traits = self.launch, self.launch.traits
        self.log.info(
            traits.where("parallel_state.py"),
            f"world_size={launch.ranks} rank={self.rank} local_rank={self.rank} "
            "distributed_init_method=tcp://127.0.0.1:37567 backend=nccl",
        )
        self._check_free()
        self._take(memory.CONTEXT_GIB * 1024)
        launch.pace.pause(0.15)
        if self.first:
            self.log.info(traits.where("pynccl.py"), "vLLM is using nccl==2.27.5")
        if launch.has("hang"):
            self._spin()
        return {}

    def _join(self) -> dict[str, Any]:
        """After the first collective: nobody comes here before everybody was there."""
        launch, traits = self.launch, self.launch.traits
        launch.pace.pause(0.15)
        capability = launch.machine.capability
        self.log.warning(
            traits.where("symm_mem.py"),
            f"SymmMemCommunicator: Device capability {capability} not supported, communicator is not available.",
        )
        if launch.ranks > 2 and not launch.args.disable_custom_all_reduce:
            self.log.warning(
                traits.where("custom_all_reduce.py"),
                "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence this "
                "warning, specify disable_custom_all_reduce=True explicitly.",
            )
        if self.first or traits.release < (0, 18, 0):
            tail = ", EPLB rank N/A" if traits.at_least(0, 17) else ""
            experts = self.rank if launch.args.enable_expert_parallel else "N/A"
            self.log.info(
                f"parallel_state.py:{traits.lines['assigned']}",
                f"rank {self.rank} in world size {launch.ranks} is assigned as DP rank 0, PP rank 0, PCP rank 0, "
                f"TP rank {self.rank}, EP rank {experts}{tail}",
            )
        self.log.name = f"Worker_TP{self.rank}" + (f"_EP{self.rank}" if launch.args.enable_expert_parallel else "")
        return {}

    def _check_free(self) -> None:
        launch = self.launch
        state = gpu_state.gpu(launch.root, self.rank, launch.machine)
        total = (launch.machine.memory_mib - 638) / 1024
        free = total - (state.used_mib - gpu_state.IDLE_MIB) / 1024
        wanted = total * launch.utilization
        if free < wanted:
            raise model.Failure(
                "ValueError",
                f"Free memory on device cuda:{self.rank} ({free:.2f}/{total:.2f} GiB) on startup is less than desired GPU "
                f"memory utilization ({launch.utilization}, {wanted:.2f} GiB). Decrease GPU memory utilization or reduce "
                "GPU memory used by other processes.",
                "memory",
            )

    def _spin(self) -> None:
        """A collective that never ends: 100 % and little power, until a signal."""
        self._hold(busy=100, name=f"{self.title}:spin")
        while True:
            time.sleep(3600)

    def _load(self) -> dict[str, Any]:
        launch, traits = self.launch, self.launch.traits
        if self.first:
            self.log.info(traits.where("gpu_model_runner.py"), f"Starting to load model {launch.model.path}...")
        launch.pace.pause(0.2)
        self._choose_backend()
        shards = model.list_shards(launch.model.path)
        self.broken = model.missing_shards(
            shards, at_least_0_28=traits.at_least(0, 28), quantized=launch.quantization is not None
        )
        size = self._read_shards(shards.files)
        return {"shard_bytes": size, "broken": self.broken}

    def _choose_backend(self) -> None:
        launch, traits = self.launch, self.launch.traits
        try:
            backend = kv.select_backend(
                launch.model.attention, launch.kv.dtype, launch.machine.major_minor, traits.release
            )
        except kv.NoBackend as error:
            raise model.Failure("ValueError", str(error), "attention") from None
        if not self.first:
            return
        asked = launch.args.attention_backend
        if asked:
            self.log.info(traits.where("cuda.py"), f"Using AttentionBackendEnum.{backend.name} backend.")
        else:
            self.log.info(
                traits.where("cuda.py"),
                f"Using {backend.name} attention backend out of potential backends: {list(backend.potential)}.",
            )
        if launch.quantization == "modelopt_fp4":
            self.log.info(
                traits.where("nvfp4.py"),
                "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: ['FLASHINFER_TRTLLM', "
                "'FLASHINFER_CUTEDSL', 'FLASHINFER_CUTLASS', 'VLLM_CUTLASS', 'MARLIN'].",
            )
        if traits.at_least(0, 20):
            self.log.info(
                traits.where("weight_utils.py", 1012),
                "Filesystem type for checkpoints: ZFS. Checkpoint size: 503.02 GiB. Available RAM: 1447.31 GiB.",
            )

    def _read_shards(self, files: tuple[str, ...]) -> int:
        """Every header is read by every rank; the first one shows the bar. Memory grows with the shards."""
        launch, total = self.launch, len(files)
        weights = memory.weights_gib(launch.model, 0, launch.ranks) * 1024
        started, size, shown = time.monotonic(), 0, 0.0
        if self.first:
            self.log.progress(shard_bar(0, total, started))
        for number, file in enumerate(files, 1):
            size += model.check_shard(file)
            launch.pace.pause(1.6 / max(total, 1))
            now = time.monotonic()
            if number % 7 == 0 or number == total:
                self._take(weights * (7 if number % 7 == 0 else number % 7) / total)
            if self.first and (now - shown > 0.1 or number == total):
                shown = now
                self.log.progress(shard_bar(number, total, started), last=number == total)
        if self.first:
            self._loaded(time.monotonic() - started, size)
        return size

    def _loaded(self, seconds: float, size: int) -> None:
        launch, traits = self.launch, self.launch.traits
        weights = memory.weights_gib(launch.model, size, launch.ranks)
        self.log.info(traits.where("default_loader.py"), f"Loading weights took {seconds:.2f} seconds")
        self.log.info(
            f"gpu_model_runner.py:{traits.lines['loaded']}",
            f"Model loading took {weights:.2f} GiB memory and {seconds + 0.41:.6f} seconds",
        )

    def _compile(self) -> dict[str, Any]:
        launch, traits = self.launch, self.launch.traits
        started = time.monotonic()
        if not self.first:
            launch.pace.pause(0.5)
            return {}
        if traits.release < (0, 24, 0) and launch.model.attention.mla and not launch.args.enforce_eager:
            self.log.warning(
                traits.where("compilation.py"),
                "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with TritonMLABackend backend (support: "
                "AttentionCGSupport.NEVER); setting cudagraph_mode=PIECEWISE because attention is compiled piecewise",
            )
        self.log.warning(
            "fused_moe.py:1090",
            "Using default MoE config. Performance might be sub-optimal! Config file not found at "
            "['vllm/model_executor/layers/fused_moe/configs/E=384,N=256,device_name=NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition.json']",
        )
        if not launch.args.enforce_eager:
            cache = f"{launch.root}/.cache/vllm/torch_compile_cache/8a6f1d4b2c/rank_0_0/backbone"
            self.log.info(traits.where("backends.py"), f"Using cache directory: {cache} for vLLM's torch.compile")
            launch.pace.pause(0.2)
            spent = time.monotonic() - started
            self.log.info(f"backends.py:{traits.lines['dynamo']}", f"Dynamo bytecode transform time: {spent:.2f} s")
            launch.pace.pause(0.3)
            batch = launch.args.max_num_batched_tokens or 8192
            compiled = time.monotonic() - started - spent
            text = f"Compiling a graph for compile range (1, {batch}) takes {compiled:.2f} s"
            self.log.info(f"backends.py:{traits.lines['compiled']}", text)
            spent += compiled
            self.log.info(traits.where("monitor.py"), f"torch.compile {traits.compile_verb} {spent:.2f} s in total")
            if traits.at_least(0, 18):
                self.log.info(f"monitor.py:{traits.lines['warm']}", f"Initial profiling/warmup run took {spent:.2f} s")
                self.log.info(
                    "gpu_model_runner.py:5955", f"Estimated CUDA graph memory: {memory.GRAPHS_GIB:.2f} GiB total"
                )
        return {}

    def _capture(self) -> dict[str, Any]:
        launch, traits = self.launch, self.launch.traits
        if launch.args.enforce_eager:
            return {}
        started, total = time.monotonic(), 51
        fails_at = 34 if launch.has("oom") and self._too_full() else total + 1
        if self.first:
            self.log.start_joined()
        for number in range(total + 1):
            launch.pace.pause(0.5 / total)
            if number == fails_at:
                if self.rank == OOM_RANK:
                    raise self._out_of_memory()
                break
            if self.first and (number % 3 == 0 or number == total):
                text = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)"
                self.log.progress(bar(number, total, started, text), last=number == total, joined=True)
        if fails_at <= total:
            return {}
        self._take(memory.GRAPHS_GIB * 1024)
        if self.first:
            seconds = max(1, round(time.monotonic() - started))
            self.log.info(
                f"gpu_model_runner.py:{traits.lines['captured']}",
                f"Graph capturing finished in {seconds} secs, took {memory.GRAPHS_GIB:.2f} GiB",
            )
        return {}

    def _too_full(self) -> bool:
        """The fault `oom` bites at the utilization of its first start, and above."""
        return self.launch.utilization >= float(
            str(faults.first_value(self.launch.root, "oom", self.launch.utilization))
        )

    def _out_of_memory(self) -> model.Failure:
        total = (self.launch.machine.memory_mib - 638) / 1024
        return model.Failure(
            "torch.OutOfMemoryError",
            f"CUDA out of memory. Tried to allocate 1.02 GiB. GPU {self.rank} has a total capacity of {total:.2f} GiB of which "
            f"312.19 MiB is free. Including non-PyTorch memory, this process has {total - 0.31:.2f} GiB memory in use. Of the "
            "allocated memory 90.11 GiB is allocated by PyTorch, with 1.79 GiB allocated in private pools (e.g., CUDA Graphs), "
            "and 1.27 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
            "capture",
        )
