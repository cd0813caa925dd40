"""The load test's pure parts: its command line, its result file, its gates."""

from __future__ import annotations

import asyncio
import json
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from console.errors import RelaunchError
from console.events import Measured
from console.node.http import NoReply, Reply
from console.node.jobs import JobState, Phase
from console.profile.model import Engine, Gate, LoadPoint, Model, Profile, Serve, Service
from console.throughput import counters, run
from console.throughput.gate import summary, verdicts
from console.throughput.parse import parse_result
from console.throughput.plan import bench, job_name, seed, sent_ahead, version

POINT = LoadPoint(concurrency=4, prompts=16, input_tokens=128, output_tokens=32)


def profile(version: str = "0.16.0", *, host: str = "127.0.0.1", trust: bool = True) -> Profile:
    return Profile(
        name="p",
        model=Model(repo="o/m", revision="0" * 40, folder="/m", served_name="kimi"),
        vllm=Engine(version=version, venv="/v"),
        serve=Serve(tensor_parallel_size=8, flags={"trust-remote-code": True} if trust else {}),
        service=Service(unit="k.service", host=host, port=8001),
    )


def option(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_the_command_line_asks_for_what_the_gates_need() -> None:
    made = bench(profile(), POINT, run="r1", program="/v/bin/vllm", tokenizer="/m/overlay")
    argv = made.argv
    assert argv[:3] == ("/v/bin/vllm", "bench", "serve")
    assert option(argv, "--base-url") == "http://127.0.0.1:8001"
    assert option(argv, "--model") == "kimi"
    assert option(argv, "--tokenizer") == "/m/overlay"
    assert option(argv, "--metric-percentiles") == "50,90,95,99"
    assert option(argv, "--max-concurrency") == "4"
    assert option(argv, "--num-prompts") == "16"
    assert {"--ignore-eos", "--save-result", "--trust-remote-code"} <= set(argv)
    assert int(option(argv, "--num-warmups")) >= 4


def test_what_only_some_versions_or_profiles_want() -> None:
    assert "--num-warmups" not in bench(profile("0.10.2"), POINT, run="r", program="v", tokenizer="/m").argv
    assert "--trust-remote-code" not in bench(profile(trust=False), POINT, run="r", program="v", tokenizer="/m").argv
    any_address = bench(profile(host="::"), POINT, run="r", program="v", tokenizer="/m").argv
    assert option(any_address, "--base-url") == "http://127.0.0.1:8001"


def test_seed_and_job_are_of_the_run_and_the_point() -> None:
    other = POINT.model_copy(update={"concurrency": 8})
    assert seed("r1", POINT) == seed("r1", POINT)
    assert len({seed("r1", POINT), seed("r2", POINT), seed("r1", other)}) == 3
    assert 0 <= seed("r1", POINT) < 2**31
    assert job_name("2026/11 x", POINT) == "bench-2026-11-x-c4-128x32"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.16.0rc2.dev313+gabc", (0, 16)), ("v0.33.0", (0, 33)), ("1.2", (1, 2)), ("nightly", None), ("", None)],
)
def test_version(text: str, expected: tuple[int, int] | None) -> None:
    assert version(text) == expected


OLD = {
    "date": "20261101-120000", "backend": "openai", "num_prompts": 16, "request_rate": "inf", "duration": 2.0,
    "completed": 16, "total_input_tokens": 2048, "total_output_tokens": 512, "output_throughput": 256.0,
    "total_token_throughput": 1280.0, "mean_ttft_ms": 40.0, "median_ttft_ms": 38.0, "std_ttft_ms": 3.0,
    "p99_ttft_ms": 60.0, "mean_tpot_ms": 11.0, "p99_tpot_ms": 15.0, "mean_itl_ms": 11.0, "p99_itl_ms": 30.0,
}  # fmt: skip
NEW = {
    **OLD,
    "failed": 1,
    "completed": 15,
    "p50_ttft_ms": 37.0,
    "p95_e2el_ms": 1.0,
    "rtfx": 0.0,
    "max_concurrent_requests": 4,
}


def measured(data: object) -> Measured:
    return parse_result(json.dumps(data), POINT, time=1.0)


def test_an_old_result_has_what_it_has() -> None:
    point = measured(OLD)
    assert (point.completed, point.failed) == (16, 0)
    assert (point.output_tokens_per_s, point.total_tokens_per_s) == (256.0, 1280.0)
    assert point.ttft_ms == {"mean": 40.0, "median": 38.0, "std": 3.0, "p99": 60.0, "p50": 38.0}
    assert "p90" not in point.itl_ms


def test_a_new_result_says_what_failed() -> None:
    point = measured(NEW)
    assert (point.completed, point.failed) == (15, 1)
    assert point.ttft_ms["p50"] == 37.0


def test_what_is_no_number_is_unknown_and_what_is_missing_failed() -> None:
    data = {**OLD, "completed": 10, "output_throughput": None, "total_token_throughput": "fast"}
    broken = json.dumps(data)[:-1] + ', "p90_ttft_ms": NaN, "p95_ttft_ms": true}'
    point = parse_result(broken, POINT, time=1.0)
    assert point.output_tokens_per_s is None
    assert point.total_tokens_per_s is None
    assert {"p90", "p95"}.isdisjoint(point.ttft_ms)
    assert point.failed == 6


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"detail": "Not Found"}', "null"])
def test_no_result_is_an_error_with_a_remedy(text: str) -> None:
    with pytest.raises(RelaunchError) as caught:
        parse_result(text, POINT, time=1.0)
    assert caught.value.remedy


GATE = Gate(
    concurrency=4,
    min_output_tokens_per_s=200,
    max_ttft_p99_ms=100,
    max_tpot_p99_ms=20,
    max_itl_p99_ms=50,
    tolerance_percent=5,
)


def test_gates_that_are_kept() -> None:
    found = verdicts([GATE], [measured(OLD)], [measured(OLD)])
    assert all(verdict.kept for verdict in found)
    assert len(found) == 6
    assert summary(found, [measured(OLD)]) == "256.0 tok/s at 4; 6/6 bounds kept"


def test_each_bound_breaks_in_words_with_a_remedy() -> None:
    slow = {**OLD, "output_throughput": 150.0, "p99_ttft_ms": 140.0, "p99_tpot_ms": 25.0, "p99_itl_ms": 90.0}
    broken = [verdict for verdict in verdicts([GATE], [measured(slow)], [measured(OLD)]) if not verdict.kept]
    assert len(broken) == 5
    assert all(verdict.remedy for verdict in broken)
    assert "150.0 tok/s, at least 200" in broken[0].text
    assert "-41.4 %" in broken[4].text


def test_failed_requests_are_red_whatever_the_speed() -> None:
    assert not verdicts([], [measured(NEW)])[0].kept
    assert not verdicts([], [measured({**OLD, "completed": 0, "failed": 0})])[0].kept


def test_what_was_not_measured_breaks_a_bound_but_no_baseline_does_not() -> None:
    unknown = {key: value for key, value in OLD.items() if key not in ("output_throughput", "p99_ttft_ms")}
    broken = [verdict for verdict in verdicts([GATE], [measured(unknown)]) if not verdict.kept]
    assert ["unknown" in verdict.text for verdict in broken] == [True, True]
    assert not verdicts([GATE], [])[0].kept


def test_a_baseline_of_another_shape_is_not_compared() -> None:
    other = parse_result(
        json.dumps({**OLD, "output_throughput": 9999}), POINT.model_copy(update={"input_tokens": 8192}), time=1
    )
    assert all(verdict.kept for verdict in verdicts([GATE], [measured(OLD)], [other]))


def test_slow_single_stream_names_the_usual_reasons() -> None:
    one = POINT.model_copy(update={"concurrency": 1})
    point = parse_result(json.dumps({**OLD, "output_throughput": 16.0}), one, time=1)
    (_, verdict) = verdicts([Gate(concurrency=1, min_output_tokens_per_s=30)], [point])
    assert "P2P" in verdict.remedy


METRICS = """\
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="kimi"}} {stop}
vllm:request_success_total{{engine="0",finished_reason="length",model_name="kimi"}} {length}
vllm:request_success_created{{engine="0",finished_reason="stop",model_name="kimi"}} 1.7e+09
"""


async def test_the_servers_counters_tell_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench(profile(), POINT, run="r1", program="v", tokenizer="/m")
    texts = [METRICS.format(stop=7.0, length=100.0), None, METRICS.format(stop=8.0, length=103.0), "nothing known"]
    texts += [METRICS.format(stop=8.0, length=119.0)]
    told: list[int] = []
    ended = asyncio.Event()

    class Server:
        async def request(self, method: str, path: str, *, limit: float) -> Reply:
            if not texts:
                ended.set()
                await asyncio.Event().wait()
            if (text := texts.pop(0)) is None:
                raise NoReply("nobody")
            return Reply(200, text.encode())

    monkeypatch.setattr(counters, "EVERY", 0)
    task = asyncio.ensure_future(counters.watch(Server(), sent_ahead(made), told.append))  # type: ignore[arg-type]
    await ended.wait()
    task.cancel()
    assert told == [0, 0, 15], "one to try, four warm-ups, fifteen of the sixteen"


@pytest.mark.parametrize("phases", [("lost", "done"), ("lost", "lost")])
async def test_a_load_test_that_vanished_is_run_once_more(
    monkeypatch: pytest.MonkeyPatch, phases: tuple[Phase, Phase]
) -> None:
    made = bench(profile(), POINT, run="r1", program="v", tokenizer="/m")
    left = list(phases)

    async def state(node: Any, facts: Any, name: str) -> JobState:
        return JobState(name, "absent")

    async def start(node: Any, facts: Any, spec: Any) -> None:
        return None

    @asynccontextmanager
    async def follow(node: Any, facts: Any, name: str) -> AsyncIterator[Any]:
        class Log:
            state = JobState(name, left.pop(0))

            async def __aiter__(self) -> AsyncIterator[Any]:
                yield types.SimpleNamespace(message="the last word")

        yield Log()

    class Node:
        async def read(self, path: str, *, sudo: bool) -> bytes:
            return json.dumps(OLD).encode()

    for name, fake in (("job_state", state), ("start_job", start), ("follow_job", follow)):
        monkeypatch.setattr(run, name, fake)
    facts: Any = types.SimpleNamespace(paths=types.SimpleNamespace(state="/s"))
    node: Any = Node()
    if phases[1] == "done":
        assert (await run.measure(node, facts, made, port=8001)).completed == 16
    else:
        with pytest.raises(RelaunchError, match="vanished twice without a record: the last word"):
            await run.measure(node, facts, made, port=8001)
    assert left == []
