"""Detached jobs: named transient units that outlive the link, found again by name, followed by journal cursor.

A job lives in `<state>/jobs/<name>/` on the node, a folder that only its own account can read: the files it was given,
its secrets (0600, deleted when it ends), `run.py` that runs it and records the end in `status.json`, and whatever it writes
itself. The unit is `relaunch-<name>.service`. A lost link loses nothing: `start_job` adopts a live job of the same name,
`job_state` tells how one ended long ago, and a job that vanished without a record (power loss, SIGKILL) is `lost`, which
is never the same as failed or done.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from console.errors import CommandFailed, Refused, RelaunchError, UsageError
from console.node import systemd
from console.node.base import Node, done
from console.node.facts import Facts
from console.node.journal import Entry, entries_call, parse_entry, whole_lines
from console.node.script import ask, python_call
from console.text import Secret

_SCRIPT = Path(__file__).with_name("node_job.py")
_WRAPPER = Path(__file__).with_name("node_job_run.py")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_RESERVED = frozenset({"run.py", "job.json", "status.json", ".status.json.new"})

Phase = Literal["absent", "running", "done", "failed", "lost"]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What to run. `{folder}` in no field is expanded; a job's working folder is its own folder unless `cwd` is given."""

    name: str
    argv: tuple[str, ...]
    description: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files put into the job's folder, by relative path."""
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    """Likewise, 0600 and deleted when the job ends. They travel on stdin only."""
    cwd: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Never a secret: it is kept in job.json."""
    user: str | None = None
    """Account to run as; the login when None."""
    stop_seconds: int = 20
    """Seconds between SIGTERM and SIGKILL of the cgroup when the job is stopped."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Further unit settings, e.g. Nice."""


@dataclass(frozen=True, slots=True)
class JobState:
    """What is known of a job. `code` is None unless it exited by itself; `signal` likewise for a death by signal.

    `lost`: it has run and vanished without a record. Times are the node's UNIX seconds.
    """

    name: str
    phase: Phase
    code: int | None = None
    signal: int | None = None
    stopped: bool = False
    """It was told to stop, so how it ended says nothing of the work."""
    error: str = ""
    started: float | None = None
    ended: float | None = None
    pid: int | None = None
    ticks: int | None = None
    """Start time of `pid` in clock ticks since boot: together the identity of the process."""
    invocation: str = ""
    digest: str = ""
    """Of the spec that it was started with; see `digest_of`."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that runs, or ended just now. `adopted`: it was running before; `same`: with this very spec."""

    name: str
    unit: str
    folder: str
    state: JobState
    adopted: bool
    same: bool


def job_unit(name: str) -> str:
    """The unit name of a job; raises `UsageError` for a name that is not made of a-z, 0-9, `.`, `_` and `-`."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no job name", "use a-z, 0-9, '.', '_' and '-', 80 characters at most")
    return f"relaunch-{name}.service"


def job_user(facts: Facts, folder: str) -> str | None:
    """The account that a job which writes into `folder` runs under: the login in its own home, root elsewhere."""
    within_home = folder.startswith(facts.paths.home.rstrip("/") + "/")
    return None if within_home or facts.uid == 0 else "root"


def job_folder(facts: Facts, name: str) -> str:
    """The job's folder on the node."""
    job_unit(name)
    return f"{facts.paths.state}/jobs/{name}"


def digest_of(spec: JobSpec) -> str:
    """A short hash of what a spec does, without its secrets."""
    parts: dict[str, Any] = {
        "argv": spec.argv,
        "cwd": spec.cwd,
        "environment": dict(spec.environment),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in spec.files.items()},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _relative(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or str(path) != name or name in _RESERVED:
        raise UsageError(f"{name!r} cannot be a file of a job", "a plain relative path")
    return name


def _need_systemd(facts: Facts, node: Node) -> None:
    missing = [tool for tool in ("systemctl", "systemd-run", "journalctl") if tool not in facts.tools]
    if missing:
        raise Refused(
            f"{node.name} has no {' and no '.join(missing)}, so work cannot be left running on it",
            "Relaunch needs a node whose services systemd runs",
        )


def _question(op: str, name: str, folder: str) -> dict[str, Any]:
    return {"op": op, "name": name, "unit": job_unit(name), "folder": folder}


def start_question(spec: JobSpec, facts: Facts) -> dict[str, Any]:
    """What the node's script is asked to start; holds the secrets in the clear, so it goes to a stdin and nowhere else."""
    folder, unit = job_folder(facts, spec.name), job_unit(spec.name)
    user = spec.user or (facts.user if facts.uid != 0 else None)
    settings = {"TimeoutStopSec": f"{spec.stop_seconds}s", "OOMPolicy": "continue", **spec.properties}
    if user is not None:
        settings["User"] = user
    command = systemd.transient(
        unit,
        ("python3", "-I", f"{folder}/run.py", folder),
        properties=settings,
        description=spec.description or f"Relaunch job {spec.name}",
    )
    return {
        **_question("start", spec.name, folder),
        "wrapper": _WRAPPER.read_text(),
        "job": {
            "name": spec.name,
            "unit": unit,
            "argv": list(spec.argv),
            "cwd": spec.cwd,
            "environment": dict(spec.environment),
            "secrets": [_relative(name) for name in spec.secrets],
            "digest": digest_of(spec),
        },
        "files": {_relative(name): base64.b64encode(data).decode() for name, data in spec.files.items()},
        "secrets": {name: secret.reveal() for name, secret in spec.secrets.items()},
        "user": user,
        "command": list(command),
    }


def parse_job(name: str, answer: Any) -> JobState:
    """The state in the answer of the node's script."""
    data = answer.get("relaunch_job") if isinstance(answer, dict) else None
    if not isinstance(data, dict) or data.get("phase") not in (
        "absent",
        "running",
        "done",
        "failed",
        "lost",
        "refused",
        "unwritten",
    ):
        raise RelaunchError(f"the answer about job {name} is in no known form")
    if data["phase"] == "unwritten":
        raise Refused(
            f"job {name} cannot be put on the node: {data.get('error')}", "make room there, or see who may write"
        )
    if data["phase"] == "refused":
        raise CommandFailed(("systemd-run",), 1, str(data.get("error", "")))
    return JobState(
        name=name,
        phase=data["phase"],
        code=data.get("code"),
        signal=data.get("signal"),
        stopped=bool(data.get("stopped")),
        error=str(data.get("error") or ""),
        started=data.get("started"),
        ended=data.get("ended"),
        pid=data.get("pid"),
        ticks=data.get("ticks"),
        invocation=str(data.get("invocation") or ""),
        digest=str(data.get("digest") or ""),
    )


async def start_job(node: Node, facts: Facts, spec: JobSpec) -> Job:
    """Start the job, or adopt a live one of the same name. One exec.

    A job of that name that ended before is replaced with its folder. Raises `Refused` without systemd and where its folder
    cannot be written, `CommandFailed` when systemd-run refuses, `Unreachable` when the link is lost; then calling it again adopts what
    was started.
    """
    _need_systemd(facts, node)
    question = start_question(spec, facts)
    answer = await ask(node, f"job {spec.name}", _SCRIPT.read_text(), question, sudo=True, mutates=True)
    state = parse_job(spec.name, answer)
    return Job(
        name=spec.name,
        unit=job_unit(spec.name),
        folder=question["folder"],
        state=state,
        adopted=bool(answer["relaunch_job"].get("adopted")),
        same=state.digest == digest_of(spec),
    )


async def job_state(node: Node, facts: Facts, name: str) -> JobState:
    """What is known of the job. One exec, reads only."""
    question = _question("state", name, job_folder(facts, name))
    return parse_job(name, await ask(node, f"job {name}", _SCRIPT.read_text(), question, sudo=True))


class JobLog:
    """The journal entries of a job, in order; ends when the job has ended, and then `state` says how."""

    def __init__(self, name: str, cursor: str | None, lines: AsyncIterator[str]) -> None:
        self.name = name
        self.cursor = cursor
        """The place of the last entry given out: where to go on after a lost link."""
        self.state: JobState | None = None
        self._lines = lines

    def __aiter__(self) -> JobLog:
        return self

    async def __anext__(self) -> Entry:
        async for line in self._lines:
            entry = parse_entry(line)
            if entry is not None:
                self.cursor = entry.cursor
                return entry
            if line.startswith('{"relaunch_job"'):
                self.state = parse_job(self.name, json.loads(line))
        raise StopAsyncIteration


@asynccontextmanager
async def follow_job(node: Node, facts: Facts, name: str, cursor: str | None = None) -> AsyncIterator[JobLog]:
    """The job's log after `cursor`, or from its beginning, through one attached helper that ends with the job.

    Raises `Unreachable` from the iteration when the link is lost; following again with `log.cursor` misses nothing and
    repeats nothing.
    """
    journal = entries_call(job_unit(name), cursor=cursor)
    question = {
        **_question("follow", name, job_folder(facts, name)),
        "journal": [part for part in journal[:-2] if not part.startswith("--after-cursor")],
        "cursor": cursor or "",
    }
    argv, stdin = python_call(f"job {name}", _SCRIPT.read_text(), question)
    async with node.stream(argv, input=stdin, sudo=True) as raw, aclosing(whole_lines(raw)) as lines:
        yield JobLog(name, cursor, lines)


async def stop_job(node: Node, name: str) -> None:
    """Stop the job and wait until its cgroup is empty. Does nothing when it does not run."""
    argv = systemd.stop(job_unit(name))
    answer = done(await node.run(argv, timeout=120, sudo=True), argv)
    if answer.code != 0 and "not loaded" not in answer.err:
        raise CommandFailed(argv, answer.code, answer.err)
