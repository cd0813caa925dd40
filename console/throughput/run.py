"""One load point, measured on the node: a detached job that outlives the link, its result file read back.

The load runs where the server is, so that no network stands in the figures. A point that this run has measured already is
not measured again: its job is found by name and its result read.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from console.errors import RelaunchError
from console.events import Measured
from console.node.base import Node, NoSuchFile
from console.node.facts import Facts
from console.node.jobs import JobSpec, JobState, digest_of, follow_job, job_folder, job_state, start_job
from console.text import clean
from console.throughput import counters
from console.throughput.parse import parse_result
from console.throughput.plan import RESULT_NAME, Bench, patience, sent_ahead

Tell = Callable[[int, int], None]
"""Called with requests done and requests in all, as far as the tool's own progress shows them."""

_BAR = re.compile(r"(\d+)/(\d+) \[")
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "NO_COLOR": "1"}
# `bench serve` wants the server's key under another name; it is in the unit's EnvironmentFile and nowhere else
_WITH_KEY = (
    "python3",
    "-c",
    "import os,sys;os.environ['OPENAI_API_KEY']=os.environ.get('VLLM_API_KEY','');os.execv(sys.argv[1],sys.argv[1:])",
)


def job_spec(facts: Facts, bench: Bench, *, environment_file: str | None = None) -> JobSpec:
    """The job that runs one load point. Its time limit is systemd's, so that it holds without us."""
    argv = (*bench.argv, "--result-dir", job_folder(facts, bench.name))
    properties = {"RuntimeMaxSec": f"{patience(bench.point)}s"}
    if environment_file is not None:
        argv = (*_WITH_KEY, *argv)
        properties["EnvironmentFile"] = environment_file
    return JobSpec(
        name=bench.name,
        argv=argv,
        description=f"Relaunch load test at concurrency {bench.point.concurrency}",
        environment=_ENVIRONMENT,
        properties=properties,
    )


async def measure(
    node: Node,
    facts: Facts,
    bench: Bench,
    *,
    port: int,
    environment_file: str | None = None,
    tell: Tell | None = None,
) -> Measured:
    """Measure one load point against the server on `port`, or read what this run has measured. Raises RelaunchError with
    the tool's last words, and Unreachable when the link is lost: then the job goes on, and calling this again adopts it."""
    spec = job_spec(facts, bench, environment_file=environment_file)
    state = await job_state(node, facts, bench.name)
    said: deque[str] = deque(maxlen=12)
    if state.phase != "done" or state.digest != digest_of(spec):
        state = await _run(node, facts, spec, bench, said, port, tell)
        if state.phase == "lost":  # nothing tells why, and a load test can be had again
            state = await _run(node, facts, spec, bench, said, port, tell)
    if state.phase != "done":
        raise _failed(bench, state, said)
    path = f"{job_folder(facts, bench.name)}/{RESULT_NAME}"
    try:
        text = await node.read(path, sudo=True)
    except NoSuchFile as error:
        raise RelaunchError(f"the load test ended well and left no result: {_last(said)}") from error
    return parse_result(text, bench.point, time=time.time())


async def _run(
    node: Node, facts: Facts, spec: JobSpec, bench: Bench, said: deque[str], port: int, tell: Tell | None
) -> JobState:
    """Start the job, or adopt it, and follow it to its end; how it ended."""
    async with _counted(node, bench, port, tell):
        await start_job(node, facts, spec)
        async with follow_job(node, facts, bench.name) as log:
            async for entry in log:
                _listen(entry.message, said, tell)
            return log.state or await job_state(node, facts, bench.name)


@asynccontextmanager
async def _counted(node: Node, bench: Bench, port: int, tell: Tell | None) -> AsyncIterator[None]:
    """Tells how far the test is, for as long as the context lasts."""
    if tell is None:
        yield
        return
    total = bench.point.prompts

    def count(done: int) -> None:
        tell(min(done, total), total)

    task = asyncio.ensure_future(counters.watch(node.http(port), sent_ahead(bench), count))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, RelaunchError):  # whether the node is there is for the log to say
            await task


def _listen(message: str, said: deque[str], tell: Tell | None) -> None:
    for line in re.split(r"[\r\n]+", message):
        bars = _BAR.findall(line)
        if bars and tell is not None:
            done, total = bars[-1]
            tell(int(done), int(total))
        elif line.strip() and not bars:
            said.append(clean(line.strip()))


def _failed(bench: Bench, state: JobState, said: deque[str]) -> RelaunchError:
    where = f"the load test at concurrency {bench.point.concurrency}"
    if state.phase == "lost":
        return RelaunchError(
            f"{where} vanished twice without a record: {_last(said)}",
            "look in the journal of the load test's unit for who ended it; was the node restarted?",
        )
    if state.stopped or state.signal is not None:
        limit = patience(bench.point)
        return RelaunchError(
            f"{where} was ended by {f'signal {state.signal}' if state.signal else 'a stop'}: {_last(said)}",
            f"it may have passed its time limit of {limit} s: look whether the service still answers",
        )
    return RelaunchError(
        f"{where} ended with code {state.code}: {state.error or _last(said)}", "look at the log of the load test's unit"
    )


def _last(said: deque[str]) -> str:
    """The line that tells most: the last one that names an error, else the last one."""
    errors = [line for line in said if re.search(r"\b\w*(?:Error|Exception)\b|error:", line)]
    return (errors or list(said) or ["it said nothing"])[-1]
