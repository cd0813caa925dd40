"""The command line of one load point: `vllm bench serve` on the node, against the server's own loopback.

Pure. The options are those of vLLM 0.16 to 0.33 (DOMAIN F.1); what only some of them know is asked of the version.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from console.profile.model import LoadPoint, Profile

RESULT_NAME = "result.json"
PERCENTILES = "50,90,95,99"
WARMUPS_SINCE = (0, 12)
"""First release whose `bench serve` knows `--num-warmups`."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One load point as it will be run: the job's name and its argv, without the folder for its result."""

    name: str
    point: LoadPoint
    argv: tuple[str, ...]


def version(text: str) -> tuple[int, int] | None:
    """`0.16.0rc2.dev313+g1234` -> (0, 16); None when it does not begin like a version."""
    match = re.match(r"v?(\d+)\.(\d+)", text.strip())
    return (int(match[1]), int(match[2])) if match else None


def seed(run: str, point: LoadPoint) -> int:
    """A seed of this run and point: the same when the run is resumed, another in the next run, so that random prompts
    never meet the prefix cache that an earlier run left (DOMAIN F.4)."""
    digest = hashlib.sha256(f"{run} {point.concurrency} {point.input_tokens} {point.output_tokens}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def warmups(point: LoadPoint) -> int:
    """Requests before the clock starts: enough that every kernel has been compiled at this batch size."""
    return min(max(2, point.concurrency), point.prompts)


def sent_ahead(bench: Bench) -> int:
    """Requests that the tool sends before those that it counts: one to try the server, and its warm-ups."""
    return 1 + (warmups(bench.point) if "--num-warmups" in bench.argv else 0)


def job_name(run: str, point: LoadPoint) -> str:
    """Name of the detached job: one per run and load point, so that a resumed run finds its own."""
    safe = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")[:40] or "run"
    return f"bench-{safe}-c{point.concurrency}-{point.input_tokens}x{point.output_tokens}"


def patience(point: LoadPoint) -> int:
    """Seconds after which a load test is given up: every stream at 2 tokens per second, and five minutes to begin."""
    rounds = -(-point.prompts // point.concurrency) + 1
    return 300 + rounds * (point.output_tokens // 2 + point.input_tokens // 50 + 10)


def bench(profile: Profile, point: LoadPoint, *, run: str, program: str, tokenizer: str) -> Bench:
    """The load test of one point. `program` is the venv's `vllm`, `tokenizer` the folder that the server was given: a
    path, so that nothing is looked up on a hub."""
    host = profile.service.host
    target = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost", "") else host  # noqa: S104
    argv = [
        program, "bench", "serve",
        "--backend", "openai",
        "--base-url", f"http://{target}:{profile.service.port}",
        "--endpoint", "/v1/completions",
        "--model", profile.model.served_name,
        "--tokenizer", tokenizer,
        "--dataset-name", "random",
        "--random-input-len", str(point.input_tokens),
        "--random-output-len", str(point.output_tokens),
        "--num-prompts", str(point.prompts),
        "--max-concurrency", str(point.concurrency),
        "--seed", str(seed(run, point)),
        "--ignore-eos",
        "--temperature", "0",
        "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--metric-percentiles", PERCENTILES,
        "--save-result",
        "--result-filename", RESULT_NAME,
    ]  # fmt: skip
    known = version(profile.vllm.version)
    if known is None or known >= WARMUPS_SINCE:
        argv += ["--num-warmups", str(warmups(point))]
    if profile.serve.flags.get("trust-remote-code") is True:
        argv.append("--trust-remote-code")  # the client needs the model's own tokenizer class too (DOMAIN D4)
    return Bench(job_name(run, point), point, tuple(argv))
