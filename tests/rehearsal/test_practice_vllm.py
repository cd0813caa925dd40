# ruff: noqa: ASYNC240 - looks at a few local files
"""The stand-in vLLM: serves, logs, takes memory, fails and stops as vLLM does."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from console.rehearsal import gpu_state
from console.rehearsal.vllm.wheel import build_wheel
from tests.rehearsal.practice_vllm import Node, sandbox, until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with sandbox(tmp_path / "root") as root:
        yield Node(root)


STAGES_0_16 = (
    "non-default args: {",
    "Resolved architecture: KimiK25ForConditionalGeneration",
    "Using max model len 131072",
    "Chunked prefill is enabled",
    "Initializing a V1 LLM engine (v0.16.0) with config:",
    "world_size=8 rank=",
    "vLLM is using nccl==",
    "is assigned as DP rank 0",
    "Starting to load model",
    "Using TRITON_MLA attention backend out of potential backends: ['TRITON_MLA']",
    "Loading safetensors checkpoint shards:   0% Completed | 0/12",
    "Loading safetensors checkpoint shards: 100% Completed | 12/12",
    "Loading weights took",
    "Model loading took 67.94 GiB memory",
    "torch.compile takes",
    "Available KV cache memory:",
    "GPU KV cache size:",
    "Maximum concurrency for 131,072 tokens per request:",
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)",
    "Graph capturing finished in",
    "init engine (profile, create kv cache, warmup model) took",
    "Starting vLLM API server 0 on http://",
    "Started server process",
    "Application startup complete.",
)


async def test_a_patched_model_serves_and_stops_clean(node: Node) -> None:
    async with node.serve(node.overlay(node.model())) as server:
        await server.ready()
        places = [server.log.find(cue) for cue in STAGES_0_16]
        assert -1 not in places
        assert places == sorted(places)
        assert all(used > 80_000 for used in node.used())
        async with server.http() as http:
            async with http.get("/health") as answer:
                assert answer.status == 200
            async with http.get("/v1/models") as answer:
                assert [card["id"] for card in (await answer.json())["data"]] == ["kimi-k2.5"]
            async with http.get("/metrics") as answer:
                assert 'vllm:num_requests_running{engine="0",model_name="kimi-k2.5"} 0.0' in await answer.text()
        chat = await server.post("/v1/chat/completions", messages=[{"role": "user", "content": "Capital of France?"}])
        assert "Paris" in chat["choices"][0]["message"]["content"]
        assert chat["usage"]["completion_tokens"] > 0
        text = await server.post("/v1/completions", prompt="What is 17 + 25? Answer:", max_tokens=8)
        assert "42" in text["choices"][0]["text"]
        assert len(node.shm()) == 3
        server.process.terminate()
        assert await server.code() == 0
    assert node.used() == [gpu_state.IDLE_MIB] * 8
    assert node.shm() == []
    assert list((node.root / "net").iterdir()) == []


async def test_streaming_counts_tokens_and_ends_with_done(node: Node) -> None:
    async with node.serve(node.overlay(node.model())) as server:
        await server.ready()
        body = {"model": "kimi-k2.5", "prompt": "Say on", "max_tokens": 9, "stream": True, "ignore_eos": True}
        body["stream_options"] = {"include_usage": True}
        async with server.http() as http, http.post("/v1/completions", json=body) as answer:
            events = [line[6:].strip() for line in (await answer.text()).splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        parts = [json.loads(event) for event in events[:-1]]
        assert [part["choices"][0]["finish_reason"] for part in parts if part["choices"]] == [None] * 8 + ["length"]
        assert parts[-1]["usage"]["completion_tokens"] == 9
        refused = await server.post("/v1/completions", prompt="x", model="other")
        assert refused["error"]["code"] == 404
        long = await server.post("/v1/completions", prompt="x", max_tokens=200_000)
        assert "maximum context length is 131072" in long["error"]["message"]


async def test_old_logs_prefix_every_line_of_a_named_process(node: Node) -> None:
    async with node.serve(node.overlay(node.model())) as server:
        await server.ready()
        assert re.search(r"^\(APIServer pid=\d+\) INFO:     Started server process", server.log, re.M)
        assert re.search(r"^\(Worker_TP0 pid=\d+\) \rLoading safetensors checkpoint shards:", server.log, re.M)
        assert re.search(r"^INFO \d\d-\d\d [\d:]+ \[parallel_state.py:\d+\] world_size=8 rank=", server.log, re.M)
        assert re.search(r"^\(EngineCore_DP0 pid=\d+\) INFO", server.log, re.M)
        assert re.search(r"GPU KV cache size: [\d,]+ tokens$", server.log, re.M)


async def test_new_logs_prefix_records_alone(node: Node) -> None:
    async with node.serve(node.model("glm"), "--no-enable-expert-parallel", version="0.33.0") as server:
        await server.ready()
        assert re.search(r"^INFO:     Started server process", server.log, re.M)
        assert re.search(r"^\rLoading safetensors checkpoint shards:", server.log, re.M)
        assert re.search(r"^\(Worker pid=\d+\) INFO .* world_size=8 rank=", server.log, re.M)
        assert re.search(
            r"^\(EngineCore pid=\d+\) INFO .* GPU KV cache size: [\d,]+ tokens, Maximum concurrency", server.log, re.M
        )
        assert "Using FLASHINFER_MLA_SPARSE_SM120 attention backend" in server.log
        assert "Starting vLLM server on http://" in server.log
        assert "Using fp8_e4m3 data type to store kv cache" in server.log


async def test_fp8_kv_fails_on_0_16_in_all_ranks_with_the_real_text(node: Node) -> None:
    async with node.serve(node.model()) as server:
        assert await server.code() == 1
    causes = [line for line in server.lines if "ValueError: No valid attention backend found for cuda with" in line]
    assert {re.match(r"\((Worker_TP\d) pid=", line)[1] for line in causes} == {f"Worker_TP{rank}" for rank in range(8)}  # type: ignore[index]
    assert all("TRITON_MLA: [kv_cache_dtype not supported]" in line for line in causes)
    assert "EngineCore failed to start." in server.log
    ends = [line for line in server.lines if "Failed core proc(s): {}" in line]
    assert len(ends) == 1
    assert server.lines.index(causes[0]) < server.lines.index(ends[0]) - 100
    assert node.used() == [gpu_state.IDLE_MIB] * 8
    assert node.shm() == []


async def test_fp8_kv_starts_on_0_18(node: Node) -> None:
    async with node.serve(node.model(), version="0.18.0") as server:
        await server.ready()
        assert "Using TRITON_MLA attention backend" in server.log


async def test_the_fault_fp8_kv_undoes_the_overlay_and_the_flag_helps(node: Node) -> None:
    overlay = node.overlay(node.model())
    node.faults("fp8-kv")
    async with node.serve(overlay) as server:
        assert await server.code() == 1
        assert "No valid attention backend found" in server.log
    async with node.serve(overlay, "--kv-cache-dtype", "bfloat16") as server:
        await server.ready()


async def test_a_truncated_shard_kills_every_rank_without_its_name(node: Node) -> None:
    model = node.overlay(node.model())
    victim = sorted(model.glob("*.safetensors"))[5].resolve()
    victim.write_bytes(victim.read_bytes()[:-100])
    async with node.serve(model) as server:
        assert await server.code() == 1
    text = "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"
    assert sum(text in line for line in server.lines) == 8
    assert "| 12/12" not in server.log


async def test_a_missing_shard_is_refused_by_new_versions_and_garbles_old_ones(node: Node) -> None:
    model = node.model()
    sorted(model.glob("*.safetensors"))[5].unlink()
    async with node.serve(model, version="0.33.0") as server:
        assert await server.code() == 1
        assert "FileNotFoundError: Weight files referenced in index but missing: {" in server.log
    async with node.serve(model, "--kv-cache-dtype", "bfloat16") as server:
        await server.ready()
        answer = await server.post("/v1/completions", prompt="The capital of France is", max_tokens=6)
        assert answer["choices"][0]["text"] == "!!!!!!"


async def test_the_fault_oom_hits_one_rank_while_graphs_are_captured(node: Node) -> None:
    model = node.overlay(node.model())
    node.faults("oom")
    async with node.serve(model) as server:
        assert await server.code() == 1
    causes = [
        line for line in server.lines if re.search(r"Worker_TP\d .*torch\.OutOfMemoryError: CUDA out of memory", line)
    ]
    assert causes
    assert all("Worker_TP3" in line for line in causes)
    assert "Capturing CUDA graphs" in server.log
    assert "Graph capturing finished" not in server.log
    async with node.serve(model, "--gpu-memory-utilization", "0.88") as server:
        await server.ready()


async def test_the_fault_hang_ends_with_the_nccl_line_and_spinning_gpus(node: Node) -> None:
    model = node.overlay(node.model())
    node.faults("hang")
    async with node.serve(model) as server:
        await server.says("vLLM is using nccl==")
        await until(lambda: all(gpu.utilisation == 100 for gpu in gpu_state.gpus(node.root)))
        assert all(gpu.power < 200 for gpu in gpu_state.gpus(node.root))
        assert server.process.returncode is None
        after = server.log.partition("vLLM is using nccl==")[2].splitlines()[1:]
        assert all("world_size=" in line for line in after)  # a late rank may still say that it is there; nothing else


async def test_the_fault_garbage_is_served_healthy(node: Node) -> None:
    model = node.overlay(node.model())
    node.faults("garbage")
    async with node.serve(model) as server:
        await server.ready()
        answer = await server.post("/v1/completions", prompt="The capital of France is", max_tokens=5)
        assert answer["choices"][0]["text"] == "!!!!!"


async def test_the_fault_bad_flag_is_argparse_speaking(node: Node) -> None:
    model = node.model()
    node.faults("bad-flag")
    async with node.serve(model, "--reasoning-parser", "kimi_k2") as server:
        assert await server.code() == 2
    assert server.lines[-2] == "vllm: error: unrecognized arguments: --reasoning-parser kimi_k2"
    code, out, _ = await node.command(node.vllm("0.16.0"), "serve", "--help=all")
    assert code == 0
    assert "--reasoning-parser" in out
    async with node.serve(node.overlay(model), "--max-num-seqs", "8") as server:
        await server.ready()


async def test_flags_come_and_go_with_versions(node: Node) -> None:
    for version, flag, known in (
        ("0.16.0", "--disable-log-requests", True),
        ("0.17.0", "--disable-log-requests", False),
        ("0.16.0", "--shutdown-timeout", False),
        ("0.18.0", "--shutdown-timeout", True),
        ("0.17.0", "--swap-space", True),
        ("0.18.0", "--swap-space", False),
        ("0.33.0", "--logging-config", True),
        ("0.24.0", "--logging-config", False),
    ):
        _, out, _ = await node.command(node.vllm(version), "serve", "--help=all")
        assert (re.search(rf"^  {flag}\b", out, re.M) is not None) is known, (version, flag)
    code, _, err = await node.command(node.vllm("0.33.0"), "serve", "m", "--disable-log-requests")
    assert code == 2
    assert "vllm: error: unrecognized arguments: --disable-log-requests" in err
    code, _, err = await node.command(node.vllm("0.16.0"), "serve", "m", "--kv-cache-dtype", "fp9")
    assert code == 2
    assert (
        "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto', 'bfloat16', 'fp8',"
        in err
    )
    code, out, _ = await node.command(node.vllm("0.16.0"), "serve", "--help=kv_cache_dtype")
    assert code == 0
    assert "{auto,bfloat16,fp8," in out
    assert (await node.command(node.vllm("0.24.0"), "--version"))[1] == "0.24.0\n"


async def test_a_port_in_use_fails_before_the_model_is_read(node: Node) -> None:
    model = node.overlay(node.model())
    async with node.serve(model) as first:
        await first.ready()
        async with node.serve(model) as second:
            assert await second.code() == 1
        assert "OSError: [Errno 98] Address already in use" in second.log
        assert "Resolved architecture" not in second.log
        assert first.process.returncode is None


async def test_connections_are_refused_while_it_loads(node: Node) -> None:
    async with node.serve(node.overlay(node.model()), pace={"load": 0.5}) as server:
        await server.says("Loading safetensors")
        async with server.http() as http:
            with pytest.raises(aiohttp.ClientConnectorError):
                await http.get("/health")
        await server.ready()


async def test_a_context_that_does_not_fit_names_the_longest(node: Node) -> None:
    async with node.serve(node.overlay(node.model()), "--max-model-len", "262144") as server:
        assert await server.code() == 1
    assert (
        "To serve at least one request with the models's max seq len (262144), (17.16 GiB KV cache is needed"
        in server.log
    )
    longest = int(re.search(r"estimated maximum model length is (\d+)\.", server.log)[1])  # type: ignore[index]
    assert 131_072 < longest < 262_144
    assert "Model loading took" in server.log


async def test_memory_of_others_stops_the_rank_it_concerns(node: Node) -> None:
    gpu_state.hold(node.root, 5, 40_000, name="python3", pid=os.getpid())
    try:
        async with node.serve(node.overlay(node.model())) as server:
            assert await server.code() == 1
    finally:
        gpu_state.release(node.root, 5)
    causes = [line for line in server.lines if "on startup is less than desired GPU memory utilization" in line]
    assert len(causes) == 1
    assert "Worker" in causes[0] or "Free memory on device cuda:5" in causes[0]


async def test_the_first_sigterm_of_a_load_is_swallowed_and_the_second_is_not(node: Node) -> None:
    model = node.overlay(node.model())
    async with node.serve(model, pace={"load": 0.5}) as server:
        await server.says("Loading safetensors")
        server.process.terminate()
        await server.ready()
        server.process.terminate()
        assert await server.code() == 0
    async with node.serve(model, pace={"load": 2.0}) as server:
        await server.says("Loading safetensors")
        while server.process.returncode is None:
            server.process.terminate()
            await asyncio.sleep(0.1)  # two signals that meet are one
        assert await server.code() == 1
    assert node.used() == [gpu_state.IDLE_MIB] * 8


async def test_the_fault_slow_stop_needs_sigkill(node: Node) -> None:
    model = node.overlay(node.model())
    node.faults("slow-stop")
    async with node.serve(model) as server:
        await server.ready()
        server.process.terminate()
        await server.says("Waiting for connections to close.")
        await until(lambda: node.used() == [gpu_state.IDLE_MIB] * 8)
        assert not (node.root / "net/8000.json").exists()
        for number in (signal.SIGTERM, signal.SIGINT):
            server.process.send_signal(number)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(server.process.wait()), 0.3)
        server.process.kill()
        assert await server.process.wait() == -signal.SIGKILL


async def test_sigkill_of_the_parent_leaves_orphans_that_hold_memory(node: Node) -> None:
    async with node.serve(node.overlay(node.model())) as server:
        await server.ready()
        server.process.kill()
        await server.process.wait()
        assert all(used > 80_000 for used in node.used())
        assert len(node.shm()) == 3
        holder = gpu_state.gpus(node.root)[0].holders[0]
        assert Path(f"/proc/{holder.pid}/comm").read_text().strip() == "VLLM::Worker_TP"
        assert Path(f"/proc/{holder.pid}/cmdline").read_bytes().rstrip(b"\0") == b"VLLM::Worker_TP0"
        assert Path(f"/proc/{holder.pid}/environ").read_bytes().strip(b"\0") == b""


async def test_a_killed_rank_ends_the_server_with_code_0(node: Node) -> None:
    async with node.serve(node.overlay(node.model())) as server:
        await server.ready()
        os.kill(gpu_state.gpus(node.root)[2].holders[0].pid, signal.SIGKILL)
        await server.says("died unexpectedly, shutting down client.")
        async with server.http() as http, http.get("/health") as answer:
            assert answer.status == 503
        assert await server.code() == 0
    assert "Worker proc VllmWorker-2 died unexpectedly, shutting down executor." in server.log


async def test_bench_measures_and_writes_the_result(node: Node) -> None:
    model = node.overlay(node.model())
    async with node.serve(model) as server:
        await server.ready()
        bench = (
            node.vllm("0.16.0"), "bench", "serve", "--backend", "openai", "--base-url", "http://127.0.0.1:8000",
            "--model", "kimi-k2.5", "--tokenizer", str(model), "--dataset-name", "random", "--random-input-len", "64",
            "--random-output-len", "8", "--num-prompts", "12", "--max-concurrency", "4", "--ignore-eos", "--seed", "7",
            "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99", "--save-result",
            "--result-dir", "results", "--result-filename", "r.json", "--metadata", "release=3", "--num-warmups", "2",
        )  # fmt: skip
        code, out, err = await node.command(*bench)
        assert code == 0, err
        assert "============ Serving Benchmark Result ============" in out
        data = json.loads((node.root / "results/r.json").read_text())
        assert (data["completed"], data["failed"], data["release"], data["request_rate"]) == (12, 0, "3", "inf")
        assert (data["total_input_tokens"], data["total_output_tokens"]) == (12 * 64, 12 * 8)
        assert data["max_concurrent_requests"] == 4
        assert data["output_throughput"] == pytest.approx(96 / data["duration"])
        for name in ("ttft", "tpot", "itl", "e2el"):
            assert 0 < data[f"p50_{name}_ms"] <= data[f"p99_{name}_ms"]
        assert "rtfx" not in data
        bad = [part if part != str(model) else "/nowhere" for part in bench]
        code, _, err = await node.command(*bad)
        assert code == 1
        assert "Can't load tokenizer for '/nowhere'" in err
        server.process.terminate()
        await server.code()
    code, _, err = await node.command(*bench, "--ready-check-timeout-sec", "0")
    assert code == 1
    assert "Initial test run failed" in err


async def test_unknown_variables_are_named_from_0_18_on(node: Node) -> None:
    for version, told in (("0.17.0", False), ("0.18.0", True)):
        argv = (node.vllm(version), "serve", "/nowhere")
        _, out, _ = await node.command("env", "VLLM_SLEEP_WHEN_IDEL=1", "VLLM_PORT=1", *argv)
        assert ("Unknown vLLM environment variable detected: VLLM_SLEEP_WHEN_IDEL" in out) is told
        assert "detected: VLLM_PORT" not in out


async def test_probes_read_the_installed_files(node: Node) -> None:
    for version, types in (
        ("0.16.0", ["auto", "bfloat16"]),
        ("0.18.0", ["auto", "float16", "bfloat16", "fp8", "fp8_e4m3"]),
    ):
        python = node.vllm(version).with_name("python")
        source = (
            "from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend as T; import json, vllm, vllm.envs as e;"
            "print(json.dumps([T.supported_kv_cache_dtypes, vllm.__version__,"
            " 'VLLM_SLEEP_WHEN_IDLE' in e.environment_variables]))"
        )
        _, out, _ = await node.command(python, "-c", source)
        assert json.loads(out) == [types, version, version == "0.16.0"]


def test_the_wheel_installs_with_pip(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "index", "0.16.0")
    assert wheel.name == "vllm-0.16.0-py3-none-any.whl"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]
    target = tmp_path / "site"
    subprocess.run([*pip, "--find-links", tmp_path / "index", "--target", target, "vllm==0.16.0"], check=True)
    out = subprocess.run(
        [sys.executable, "-m", "vllm.entrypoints.cli.main", "--version"],
        check=True, capture_output=True, text=True, env={"PYTHONPATH": str(target), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert out.stdout == "0.16.0\n"
