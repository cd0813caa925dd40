"""Triage whatever the log looks like: any interleaving, chunking, line end, prefix, noise, or bytes that are no log at all."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.triage import Diagnosis, Reader, load_rules
from console.triage.entries import Noise

RULES = load_rules()
RELAXED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

START = [
    "(APIServer pid=10) INFO 11-01 08:00:01 [utils.py:1] vLLM API server version 0.16.0",
    "(APIServer pid=10) INFO 11-01 08:00:05 [model.py:529] Resolved architecture: KimiK25ForConditionalGeneration",
    "(EngineCore_DP0 pid=20) INFO 11-01 08:00:09 [core.py:97] Initializing a V1 LLM engine (v0.16.0) with config: model='/m'",
]
MESSAGE = (
    "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=576, kv_cache_dtype=fp8, "
    "use_mla=True, use_sparse=False). Reasons: {TRITON_MLA: [kv_cache_dtype not supported]}."
)


def rank_lines(rank: int) -> list[str]:
    head = f"(Worker_TP{rank} pid={30 + rank}) ERROR 11-01 08:00:20 [multiproc_executor.py:783] "
    texts = [
        "WorkerProc failed to start.",
        "Traceback (most recent call last):",
        '  File "/v/multiproc_executor.py", line 754, in worker_main',
        "    worker = WorkerProc(*args, **kwargs)",
        '  File "/v/gpu_worker.py", line 292, in load_model',
        "    self.model_runner.load_model()",
        MESSAGE,
    ]
    return [f"(Worker_TP{rank} pid={30 + rank}) INFO 11-01 08:00:19 [x.py:1] Starting to load model /m..."] + [
        head + text for text in texts
    ]


END = [
    "(EngineCore_DP0 pid=20) ERROR 11-01 08:00:22 [core.py:946] EngineCore failed to start.",
    "(EngineCore_DP0 pid=20) ERROR 11-01 08:00:22 [core.py:946] Traceback (most recent call last):",
    '(EngineCore_DP0 pid=20) ERROR 11-01 08:00:22 [core.py:946]   File "/v/core.py", line 937, in run_engine_core',
    "(EngineCore_DP0 pid=20) ERROR 11-01 08:00:22 [core.py:946] Exception: WorkerProc initialization failed due to an "
    "exception in a background process. See stack trace for root cause.",
    "(APIServer pid=10) Traceback (most recent call last):",
    '(APIServer pid=10)   File "/v/utils.py", line 984, in wait_for_engine_startup',
    "(APIServer pid=10) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]
FAILED = [*START, *(line for rank in range(8) for line in rank_lines(rank)), *END]
READY = [
    *START,
    *(
        f"(Worker_TP{rank} pid={30 + rank}) INFO 11-01 08:00:19 [x.py:1] Starting to load model /m..."
        for rank in range(8)
    ),
    "(Worker_TP0 pid=30) Loading safetensors checkpoint shards:  33% Completed | 40/119 [01:10<02:20,  1.77s/it]",
    "(Worker_TP0 pid=30) INFO 11-01 08:01:00 [x.py:1] Loading weights took 40.10 seconds",
    "(Worker_TP0 pid=30) INFO 11-01 08:01:10 [x.py:1] Dynamo bytecode transform time: 5.66 s",
    "(Worker_TP0 pid=30) INFO 11-01 08:02:00 [x.py:1] Available KV cache memory: 18.10 GiB",
    "(EngineCore_DP0 pid=20) INFO 11-01 08:02:01 [x.py:1] GPU KV cache size: 189,392 tokens",
    "(Worker_TP0 pid=30) Capturing CUDA graphs (decode, FULL):  10%|█  | 3/30 [00:01<00:02]",
    "(EngineCore_DP0 pid=20) INFO 11-01 08:03:01 [x.py:1] init engine (profile, create kv cache, warmup model) took 120 s",
    "(APIServer pid=10) INFO 11-01 08:03:02 [x.py:1] Starting vLLM API server 0 on http://0.0.0.0:8000",
    "(APIServer pid=10) INFO:     Application startup complete.",
]


def read(data: bytes) -> Diagnosis:
    reader = Reader(RULES)
    reader.feed(data)
    return reader.diagnosis()


def text_of(lines: list[str], end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode()


def told(found: Diagnosis) -> tuple[object, ...]:
    cause = found.cause
    return found.outcome, found.stage, found.category, found.fix, cause and cause.line, cause and cause.text


@given(st.randoms(use_true_random=False))
@RELAXED
def test_any_interleaving_that_keeps_the_first_failing_rank_first(dice: random.Random) -> None:
    queues = {rank: rank_lines(rank) for rank in range(8)}
    first = dice.randrange(8)
    mixed: list[str] = []
    while any(queues.values()):
        rank = dice.choice([rank for rank, queue in queues.items() if queue])
        # nobody says the sentence before the first one did
        if rank != first and queues[first] and MESSAGE in queues[rank][0]:
            rank = first
        mixed.append(queues[rank].pop(0))
    found = read(text_of([*START, *mixed, *END]))
    assert found.cause is not None
    assert (found.outcome, found.category, found.fix) == (
        "failed",
        "attention_backend_unsupported_kv_dtype",
        "kv-patch",
    )
    assert (found.cause.text, found.cause.process, found.cause.ranks) == (MESSAGE, f"Worker_TP{first}", 8)
    assert found.cause.line == [*START, *mixed].index(next(line for line in mixed if MESSAGE in line)) + 1


@given(st.lists(st.integers(0, 4000), max_size=60), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans())
@RELAXED
def test_any_chunking_and_line_end(cuts: list[int], end: str, ready: bool, asked: bool) -> None:
    lines = READY if ready else FAILED
    data = text_of(lines, end)
    reader = Reader(RULES)
    at = 0
    for cut in sorted(cuts):
        reader.feed(data[at:cut])
        at = max(at, cut)
        if asked:
            assert reader.diagnosis().lines <= len(lines)
            _ = reader.stage, reader.progress, reader.failed
    reader.feed(data[at:])
    assert told(reader.diagnosis()) == told(read(text_of(lines)))


@given(st.integers(0, 200))
@RELAXED
def test_line_by_line_and_a_truncated_last_line(cut: int) -> None:
    reader = Reader(RULES)
    for line in FAILED:
        reader.feed_line(line)
    assert told(reader.diagnosis()) == told(read(text_of(FAILED)))
    data = text_of(FAILED)
    assert told(read(data[: len(data) - 1])) == told(read(data))
    assert read(data[: len(data) - cut]).category == "attention_backend_unsupported_kv_dtype"


def _journal_json(number: int, line: str) -> str:
    return json.dumps({"__CURSOR": f"s={number}", "MESSAGE": line, "PRIORITY": "6", "_PID": "4711"})


PREFIXES: dict[str, Callable[[int, str], str]] = {
    "syslog": lambda n, line: f"Nov 29 10:{n // 60 % 60:02}:{n % 60:02} node1 vllm[4711]: {line}",
    "syslog 5424": lambda n, line: f"<14>1 2026-11-29T10:00:{n % 60:02}.120Z node1 vllm 4711 - - {line}",
    "journal iso": lambda n, line: f"2026-11-29T10:{n // 60 % 60:02}:{n % 60:02}+0000 node1 python3.12[4711]: {line}",
    "compose": lambda n, line: f"vllm-1  | {line}",
    "docker -t": lambda n, line: f"2026-11-29T10:{n // 60 % 60:02}:{n % 60:02}.120456789Z {line}",
    "cri": lambda n, line: f"2026-11-29T10:{n // 60 % 60:02}:{n % 60:02}.120456789+00:00 stderr F {line}",
    "kubectl": lambda n, line: f"[pod/kimi-0/vllm] {line}",
    "docker json": lambda n, line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-29T10:00:00Z"}),
    "journal json": _journal_json,
    "nobody knows": lambda n, line: f"@@{n}:gpu7> {line}",
    "colours": lambda n, line: line.replace("(", "\x1b[0;36m(", 1).replace(")", ")\x1b[0;0m", 1),
    "nul": lambda n, line: "\x00\x00" + line,
}


@pytest.mark.parametrize("name", PREFIXES)
@pytest.mark.parametrize("lines", [FAILED, READY], ids=["failed", "ready"])
def test_with_and_without_prefixes(name: str, lines: list[str]) -> None:
    dressed = [PREFIXES[name](number, line) for number, line in enumerate(lines)]
    assert told(read(text_of(dressed))) == told(read(text_of(lines)))


@given(st.binary(max_size=3000))
@RELAXED
def test_bytes_that_are_no_log_never_crash(data: bytes) -> None:
    reader = Reader(RULES)
    reader.feed(data)
    found = reader.diagnosis()
    json.dumps(found.to_json())
    reader.feed(data)
    assert reader.diagnosis().lines >= found.lines


SHAPES = [
    b"Traceback (most recent call last):",
    b"\r",
    b"\n",
    b'{"log":"',
    b"\x1b[0m",
    b"(Worker_TP0 pid=1) ",
    b"ValueError: x",
]


@given(
    st.lists(st.sampled_from([*SHAPES, b"\xff", b"\x00", b" ", b"ERROR 11-01 08:00:20 [x.py:1] ", b"}"]), max_size=60)
)
@RELAXED
def test_pieces_of_logs_never_crash(parts: list[bytes]) -> None:
    found = read(b"".join(parts))
    assert found.outcome in ("failed", "unfinished", "empty", "ready")


@pytest.mark.parametrize("entry", RULES.noise, ids=[entry.id for entry in RULES.noise])
def test_every_noise_entry_anywhere_changes_nothing_but_a_count(entry: Noise) -> None:
    plain = read(text_of(READY))
    noise, stages, example = entry.id, entry.stages, entry.example
    places = range(len(READY) + 1) if not stages else range(5, len(READY))
    for place in places:
        lines = [*READY[:place], *example.splitlines(), *READY[place:]]
        found = read(text_of(lines))
        assert told(found) == told(plain), (noise, place)
        before = {each.id: each.count for each in plain.noise}
        after = {each.id: each.count for each in found.noise}
        changed = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
        # an entry that holds in some stages only is no noise elsewhere, and is not hidden there
        assert changed == {noise: 1} or (stages and not changed), (place, changed)


def test_a_megabyte_of_line_and_a_storm_stay_small() -> None:
    reader = Reader(RULES)
    reader.feed(text_of(START))
    reader.feed(b"x" * 5_000_000)
    reader.feed(b" ValueError: too long\n")
    for number in range(3000):
        head = f"(Worker_TP{number % 64} pid={number}) ERROR 11-01 08:00:20 [x.py:1] "
        reader.feed_line(head + "Traceback (most recent call last):")
        reader.feed_line(head + f"OddError{number}: what {number} nobody knows")
    assert reader.stage == "engine_init"
    launch = reader._launch
    assert len(launch.candidates.kept) <= 96
    assert len(launch.ranks) <= 1024
    assert len(launch.tracebacks.open) <= 64
    assert reader.diagnosis().outcome == "failed"
