"""Step 3: the wanted vLLM in an environment of its own, made by uv or pip as a detached job beside what serves now.

An existing environment is never changed: one with another vLLM is refused, one that a job left half made is made again.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

from console.deploy import checks
from console.deploy.node_engine import building_file
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.errors import DownloadFailed, Refused, RelaunchError, UnitFailed
from console.events import Progressed
from console.node import jobs
from console.node.facts import Question, Venv
from console.node.script import ask
from console.profile.model import Profile
from console.text import clean

NAME = "engine"
_JOB_SCRIPT = Path(__file__).parents[1] / "node_engine.py"
_LOOK_SCRIPT = Path(__file__).parents[1] / "node_vllm.py"
IMPORT_SECONDS = 180
"""The first import of a new environment compiles bytecode and may read 10 GB from a cold disk."""
_REASON = re.compile(
    r"(?i)^(?:\s*[×╰─▶]*\s*)?(?:error|.*no space left|.*no solution found|.*no matching distribution|.*not found in)"
)
_KEPT = 60


def question(profile: Profile) -> Question:
    """What this step asks of the node's facts: the environment, and the mark of one that is being made."""
    venv = profile.vllm.venv
    return Question(venvs=(venv,), disks=(venv,), read=(building_file(venv.rstrip("/")),))


class Engine:
    name = NAME
    downtime = False

    async def check(self, ctx: Context) -> Check:
        venv = checks.asked(ctx.facts.venvs, ctx.facts, ctx.profile.vllm.venv)
        wanted = ctx.profile.vllm.version
        half = half_made(ctx)
        if not half and (conflict := checks.venv_conflict(ctx.profile, venv)):
            raise Refused(conflict, "name another folder in vllm.venv; an environment is never changed in place")
        if venv is not None and venv.vllm == wanted and not half:
            return Satisfied(evidence(venv))
        tool = "uv" if "uv" in ctx.facts.tools else "pip"
        verb = "finish" if half else "make"
        return Needed((Change(f"{verb} {ctx.profile.vllm.venv} with vLLM {wanted} by {tool}"),))

    async def apply(self, ctx: Context) -> None:
        job = await jobs.start_job(ctx.node, ctx.facts, job_spec(ctx))
        log: list[str] = []
        async with jobs.follow_job(ctx.node, ctx.facts, job.name) as entries:
            async for entry in entries:
                self._progress(ctx, entry.message, log)
            state = entries.state
        if state is None or state.phase != "done":
            raise failure(ctx, state, log)

    async def verify(self, ctx: Context) -> str:
        folder = ctx.facts.path(ctx.profile.vllm.venv).rstrip("/")
        source = _LOOK_SCRIPT.read_text(encoding="utf-8")
        found = await ask(
            ctx.node, "vllm", source, {"look": True}, timeout=IMPORT_SECONDS, python=f"{folder}/bin/python"
        )
        if found["version"] != ctx.profile.vllm.version:
            text = f"{folder} holds vLLM {found['version'] or 'nothing'}, not {ctx.profile.vllm.version}"
            raise UnitFailed(text, "look at the job's log; remove the folder and run again")
        if not found["imported"]:
            raise UnitFailed(
                f"vLLM in {folder} cannot be imported: {clean(str(found['error']))}", "the installation is broken"
            )
        return f"vLLM {found['version']} in {folder}, Python {found['python']}, imports"

    async def undo(self, ctx: Context) -> None:
        """Remove the environment that this very run made; its mark says so."""
        folder = ctx.facts.path(ctx.profile.vllm.venv).rstrip("/")
        source = _JOB_SCRIPT.read_text(encoding="utf-8")
        what = {"do": "remove", "venv": folder, "run": ctx.run}
        await ask(ctx.node, "engine", source, what, timeout=600, sudo=True, mutates=True)

    def _progress(self, ctx: Context, message: str, log: list[str]) -> None:
        done = total = None
        text = clean(message).strip()
        if text.startswith('{"relaunch_engine"'):
            told: dict[str, Any] = json.loads(text)["relaunch_engine"]
            text, done, total = str(told["text"]), float(told["done"]), float(told["total"])
        if text:
            log.append(text)
            del log[:-_KEPT]
            ctx.emit(Progressed(time=time.time(), step=NAME, text=text[:200], done=done, total=total, unit="steps"))


def job_spec(ctx: Context) -> jobs.JobSpec:
    """The detached job. Its name says what it makes, so that a later run which wants the same adopts it."""
    engine, facts = ctx.profile.vllm, ctx.facts
    folder = facts.path(engine.venv).rstrip("/")
    index = engine.index_url or ""
    what = {
        "do": "install",
        "venv": folder,
        "version": engine.version,
        "packages": list(engine.packages),
        "python": engine.python,
        "index": index if "://" in index else facts.path(index) if index else "",
        "uv": facts.tools.get("uv", ""),
    }
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
    name = f"engine-{re.sub(r'[^a-z0-9._-]', '-', engine.version.lower())}-{digest}"
    return jobs.JobSpec(
        name=name,
        argv=("python3", "-I", "install.py"),
        description=f"Relaunch installs vLLM {engine.version} into {engine.venv}",
        files={"install.py": _JOB_SCRIPT.read_bytes(), "ask.json": json.dumps({**what, "run": ctx.run}).encode()},
        environment={"HOME": facts.paths.home},
        user=jobs.job_user(facts, folder),
    )


def half_made(ctx: Context) -> bool:
    """True when a job of ours began the environment and did not finish."""
    return ctx.facts.path(building_file(ctx.profile.vllm.venv.rstrip("/"))) in ctx.facts.files


def evidence(venv: Venv) -> str:
    """`vLLM 0.16.0 in /opt/vllm-0.16.0, Python 3.12.3`."""
    return f"vLLM {venv.vllm} in {venv.path}" + (f", Python {venv.python}" if venv.python else "")


def failure(ctx: Context, state: jobs.JobState | None, log: list[str]) -> RelaunchError:
    """Why the job did not do it: its own code first, then the line of the log that names the reason."""
    folder = ctx.facts.path(ctx.profile.vllm.venv)
    reason = next((line for line in log if _REASON.match(line)), log[-1] if log else "it left no log")
    code = state.code if state else None
    if code == 10:
        return Refused(reason.removeprefix("error: "), "name another folder in vllm.venv, or remove that one yourself")
    if code == 11:
        remedy = f"install uv or the venv package of {ctx.profile.vllm.python} on the node"
        return DownloadFailed(f"no environment could be made in {folder}: {reason}", remedy)
    if code == 12:
        remedy = "check vllm.version, vllm.packages and the node's way to the package index; run again to continue"
        return DownloadFailed(f"vLLM {ctx.profile.vllm.version} could not be installed: {reason}", remedy)
    how = "was stopped" if state and state.stopped else f"ended as {state.phase}" if state else "ended unseen"
    return DownloadFailed(f"the installation {how}: {reason}", "run again; it begins anew where that is needed")


STEP = Engine()
