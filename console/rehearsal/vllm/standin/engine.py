"""The engine core: forks the ranks, leads them through the stages, checks the KV memory, and dies as vLLM's dies."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any

from . import memory
from .launch import Launch
from .log import Log
from .process import Channel, SharedMemory, reap, spawn
from .tracebacks import CORE, PROCESS, render
from .worker import Worker

_INIT_FAILED = (
    "WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
)


class StartFailed(Exception):
    """The engine cannot start: the exception line and which frames lead to it."""

    def __init__(self, error: str, frames: str) -> None:
        super().__init__(error)
        self.error = error
        self.frames = frames


class Engine:
    """The engine process of one start. `api` is the channel to the API server."""

    def __init__(self, launch: Launch, log: Log, api: Channel) -> None:
        self.launch = launch
        self.log = log
        self.api = api
        self.workers: list[tuple[int, Channel]] = []
        self.shm: SharedMemory | None = None

    def run(self) -> int:
        """Start, tell the API server, and serve until told to stop."""
        signal.signal(signal.SIGTERM, lambda *_: self._terminated())
        self._announce()
        self.shm = SharedMemory(self.launch.root)
        self._fork_workers()
        try:
            ready = self._start()
        except StartFailed as failure:
            return self._fail(failure)
        self.api.send({"ready": True, **ready})
        return self._serve()

    def _announce(self) -> None:
        launch, traits, args = self.launch, self.launch.traits, self.launch.args
        path = launch.model.path
        self.log.info(
            traits.where("core.py"),
            f"Initializing a V1 LLM engine (v{traits.version}) with config: model='{path}', speculative_config=None, "
            f"tokenizer='{args.tokenizer or path}', skip_tokenizer_init=False, tokenizer_mode=auto, revision=None, "
            f"tokenizer_revision=None, trust_remote_code={args.trust_remote_code}, dtype=torch.bfloat16, "
            f"max_seq_len={launch.max_len}, download_dir=None, load_format={args.load_format}, "
            f"tensor_parallel_size={launch.ranks}, pipeline_parallel_size=1, data_parallel_size=1, "
            f"disable_custom_all_reduce={args.disable_custom_all_reduce}, quantization={launch.quantization}, "
            f"enforce_eager={args.enforce_eager}, kv_cache_dtype={launch.kv.dtype}, device_config=cuda, seed={args.seed}, "
            f"served_model_name={launch.names[0]}, enable_prefix_caching=True, enable_chunked_prefill=True",
        )
        text = (
            f"Reducing Torch parallelism from {os.cpu_count()} threads to 1 to avoid unnecessary CPU contention. Set "
            "OMP_NUM_THREADS in the external environment to tune this value as needed."
        )
        if "OMP_NUM_THREADS" not in os.environ:
            self.log.warning(traits.where("multiproc_executor.py"), text)
        if traits.at_least(0, 18):
            text = (
                "DP group leader: node_rank=0, node_rank_within_dp=0, master_addr=127.0.0.1, mq_connect_ip=192.0.2.10 "
                f"(local), world_size={launch.ranks}, local_world_size={launch.ranks}"
            )
            self.log.info("multiproc_executor.py:134", text)
        launch.pace.pause(0.3)

    def _fork_workers(self) -> None:
        early = "Worker" if self.launch.traits.prefixes_early_workers else ""
        for rank in range(self.launch.ranks):
            mine, theirs = Channel.pair()
            others = [channel for _, channel in self.workers]

            def run(
                rank: int = rank, mine: Channel = mine, theirs: Channel = theirs, others: list[Channel] = others
            ) -> int:
                # the ends of the others must not stay open here, or nobody would see the engine go
                for channel in (mine, self.api, *others):
                    channel.close()
                return Worker(self.launch, self.log.forked(early), rank, theirs).run()

            pid = spawn(run, f"VLLM::Worker_TP{rank}")
            theirs.close()
            self.workers.append((pid, mine))

    def _start(self) -> dict[str, Any]:
        launch, traits = self.launch, self.launch.traits
        self._stage("init", _INIT_FAILED, "init")
        self._stage("join", _INIT_FAILED, "init")
        loaded = self._stage("load", _INIT_FAILED, "init")
        self._stage("compile", _INIT_FAILED, "init")
        started = time.monotonic()
        budget = self._kv_cache(int(loaded[0]["shard_bytes"]))
        self._tell({"do": "kv", "gib": max(0.0, budget.wanted - budget.weights - memory.CONTEXT_GIB)})
        self._answers()
        self._stage("capture", "", "capture")
        self.log.info(
            f"core.py:{traits.lines['engine_up']}",
            f"init engine (profile, create kv cache, warmup model) took {time.monotonic() - started:.2f} seconds",
        )
        launch.pace.pause(0.1)
        return {"tokens": budget.tokens, "broken": bool(loaded[0]["broken"])}

    def _stage(self, name: str, error: str, frames: str) -> list[dict[str, Any]]:
        """Let every rank do a stage; raises `StartFailed` when one cannot."""
        self._tell({"do": name})
        answers = self._answers()
        failed = [answer for answer in answers if "error" in answer]
        if failed:
            first = failed[0]["error"]
            text = error or f"Worker failed with error '{first}', please check the stack trace above for the root cause"
            raise StartFailed(f"{'Exception' if error else 'RuntimeError'}: {text}", frames)
        return answers

    def _tell(self, message: dict[str, Any]) -> None:
        for _, channel in self.workers:
            channel.send(message)

    def _answers(self) -> list[dict[str, Any]]:
        found = []
        for rank, (_, channel) in enumerate(self.workers):
            answer = channel.receive()
            if answer is None:
                self.log.error(
                    "multiproc_executor.py:246",
                    f"Worker proc VllmWorker-{rank} died unexpectedly, shutting down executor.",
                )
                raise StartFailed(f"Exception: {_INIT_FAILED}", "init")
            found.append(answer)
        return found

    def _kv_cache(self, shard_bytes: int) -> memory.Budget:
        """Stages 15 and 16: what is left for the cache, and whether one request fits."""
        launch, traits, args = self.launch, self.launch.traits, self.launch.args
        sparse = launch.model.attention.sparse and traits.at_least(0, 24) and launch.kv.dtype != "bfloat16"
        budget = memory.budget(
            launch.model,
            "fp8_ds_mla" if sparse else launch.kv.dtype,
            total_mib=launch.machine.memory_mib,
            utilization=launch.utilization,
            ranks=launch.ranks,
            dcp=args.decode_context_parallel_size,
            shard_bytes=shard_bytes,
            kv_bytes=args.kv_cache_memory_bytes,
            profile_graphs=traits.at_least(0, 20),
        )
        if budget.kv <= 0:
            raise StartFailed(
                "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
                "initializing the engine.",
                "kv",
            )
        self._tell({"do": "available", "gib": budget.kv})
        self._answers()
        length = launch.max_len if launch.max_len > 0 else min(launch.model.max_len, budget.tokens)
        if budget.tokens < length:
            raise StartFailed(self._too_small(budget, length), "kv")
        size = f"GPU KV cache size: {budget.tokens:,} tokens"
        most = f"Maximum concurrency for {length:,} tokens per request: {budget.tokens / length:.2f}x"
        if traits.one_line_kv:
            self.log.info(traits.where("kv_cache_utils.py"), f"{size}, {most}")
        else:
            self.log.info(traits.where("kv_cache_utils.py"), size)
            self.log.info(f"kv_cache_utils.py:{traits.lines['concurrency']}", most)
        return budget

    def _too_small(self, budget: memory.Budget, length: int) -> str:
        owner = "models's" if self.launch.traits.release < (0, 18, 0) else "model's"
        return (
            f"ValueError: To serve at least one request with the {owner} max seq len ({length}), "
            f"({budget.per_token * length / 2**30:.2f} GiB KV cache is needed, which is larger than the available KV cache "
            f"memory ({budget.kv:.2f} GiB). Based on the available memory, the estimated maximum model length is "
            f"{budget.tokens}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the "
            "engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
        )

    def _fail(self, failure: StartFailed) -> int:
        """Log the failure twice, as the engine core does: as a record, and as the last traceback of the process."""
        traits = self.launch.traits
        self._end_workers(failed=True)
        if failure.frames != "kv":
            self.log.foreign(
                "[rank0]:[W"
                + time.strftime("%m%d %H:%M:%S").lstrip("0")
                + ".103771240 ProcessGroupNCCL.cpp:1524] Warning: WARNING: "
                "destroy_process_group() was not called before program exit, which can leak resources. For more info, please "
                "see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())"
            )
        frames = CORE[failure.frames]
        where = f"core.py:{traits.lines['core_error']}"
        self.log.error(where, "EngineCore failed to start.\n" + render(frames, failure.error))
        self.log.raw(f"Process {traits.engine_name}:\n" + render(PROCESS + frames, failure.error))
        return 1

    def _serve(self) -> int:
        """Pass load on to the ranks; end on the API server's word. An API server that was killed leaves this one behind."""
        listening: list[Channel] = [self.api, *(channel for _, channel in self.workers)]
        while True:
            readable, _, _ = select.select(listening, [], [])
            for channel in readable:
                message = channel.receive()
                if message is None and channel is self.api:
                    listening.remove(channel)
                elif message is None:
                    rank = next(number for number, (_, other) in enumerate(self.workers) if other is channel)
                    text = f"Worker proc VllmWorker-{rank} died unexpectedly, shutting down executor."
                    self.log.error("multiproc_executor.py:246", text)
                    self._end_workers()
                    return 1
                elif message and message.get("do") == "stop":
                    self._end_workers()
                    return 0
                elif message and channel is self.api:
                    self._tell(message)

    def _end_workers(self, *, failed: bool = False) -> None:
        for pid, channel in self.workers:
            if not channel.send({"do": "exit", "failed": failed}):
                continue
            # a rank that hangs in a stage does not read: the executor kills it, as vLLM's does after its grace time
            if not _gone(pid, 2.0):
                os.kill(pid, signal.SIGKILL)
                reap(pid)
        if self.shm is not None:
            self.shm.unlink()

    def _terminated(self) -> None:
        for pid, _ in self.workers:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        for pid, _ in self.workers:
            reap(pid)
        if self.shm is not None:
            self.shm.unlink()
        raise SystemExit(0)


def _gone(pid: int, seconds: float) -> bool:
    """Wait for a child at most so long. Polled: a child's end has no descriptor to wait on in every Python."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return True
        time.sleep(0.005)
    return False
