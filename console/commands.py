"""What each verb does headless. `HANDLERS` maps every verb that is no script to its coroutine; each returns an exit code."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from console import local
from console.deploy.script import Script, load_script
from console.deploy.store import RunRow, state_folder
from console.errors import ExitCode, UsageError
from console.events import Event, RunEnded, encode
from console.printing import Printer, glyphs, wants_colour
from console.session import Connected, Session, ask_on_terminal, connected, hub_token
from console.text import duration, gib, headline, plural

if TYPE_CHECKING:
    from console.node.facts import Facts
    from console.rehearsal.practice import Practice

Handler: TypeAlias = Callable[[Session], Awaitable[int]]


async def run_script(session: Session, name: str, *, dry_run: bool = False, resume: bool = False) -> int:
    """Run a script on the node of the command line; the exit code of its last event."""
    script = load_script(name, sys.stdin.read() if name == "-" else None)
    # A run that finds all as wanted is mostly waiting for the node and loading ourselves, so the two go side by side:
    # the question while the link comes up, the engine while the node answers.
    async with connected(session, loading="console.deploy.question") as where:
        asking = asyncio.ensure_future(_first_facts(where))
        try:
            await asyncio.to_thread(_load_engine, script)
            return await _run_script(session, where, script, asking, dry_run=dry_run, resume=resume)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def _first_facts(where: Connected) -> Facts:
    from console.deploy.question import redeploy_question
    from console.node.facts import read_facts

    return await read_facts(where.node, redeploy_question(where.needed_profile()))


def _load_engine(script: Script) -> None:
    """What the run will want of ours whatever the node answers: code, and the tables that preflight looks into."""
    from console.checkpoint.kv import load_rules
    from console.deploy import steps
    from console.deploy.flags import flag_data

    import_module("console.engine")
    for name in {*script.names()} & {*steps.ORDER}:
        steps.step(name)
    load_rules()
    flag_data()


async def _run_script(
    session: Session, where: Connected, script: Script, asking: Awaitable[Facts], *, dry_run: bool, resume: bool
) -> int:
    from console.engine import Engine, RunOptions, agree

    engine = Engine(where.node, where.needed_profile(), session.store)
    engine.subscribe(_sink(session))
    end = await engine.run(
        script,
        RunOptions(
            dry_run=dry_run or bool(session.given("dry_run", False)),
            fix=bool(session.given("fix", False)),
            resume=resume,
            rehearsal=where.rehearsal,
            confirm=agree if session.given("yes", False) else ask_on_terminal,
            token=hub_token(os.environ),
            evidence=state_folder() / "evidence",
            lock_wait=float(session.given("lock_wait", 0.0)),
            deep=bool(session.given("deep", False)),
            facts=asking,
            release=str(session.given("release", None) or ""),
        ),
    )
    return end.code


def _printer(session: Session) -> Printer:
    colour = wants_colour(sys.stderr, os.environ, refused=bool(session.given("no_color", False)))
    return Printer(sys.stderr, colour=colour)


def _sink(session: Session) -> Callable[[Event], None]:
    printer = _printer(session)

    def for_people(event: Event) -> None:
        printer(event)
        if isinstance(event, RunEnded):
            session.tell(f"run {event.run}: {headline(event.text, 400)}")

    def for_programs(event: Event) -> None:
        session.tell_json(encode(event))
        if isinstance(event, RunEnded) and event.code:
            printer(event)

    return for_programs if session.as_json else for_people


async def plan(session: Session) -> int:
    """What a redeploy would change."""
    return await run_script(session, "redeploy", dry_run=True)


async def resume(session: Session) -> int:
    """Run the script of the last unfinished run of this node again; every step looks at the node first. With --fix also
    after a run that ended: when its failure has a known remedy, launch with it."""
    from console.deploy import deadman
    from console.deploy.remedy import last_launch
    from console.deploy.resume import unfinished
    from console.engine import Engine

    async with connected(session) as where:
        name, profile = where.node.name, where.needed_profile()
        facts = await Engine(where.node, profile, session.store).facts()
    found = unfinished(session.store, name, facts)
    if found is None:
        last = last_launch(session.store, name, profile.name)
        if last is not None and last.found is not None:
            known = f"run {last.run} failed, and its remedy is known: {last.found.text}"
            if session.given("fix", False):
                sys.stderr.write(f"mending: {known}\n")
                return await run_script(session, "redeploy")
            session.tell(f"{known}; --fix launches with it")
        session.tell(f"no unfinished run of {name}: nothing to resume")
        if told := deadman.sentence(facts):
            session.tell(f"! {told}")
        return ExitCode.DONE
    sys.stderr.write(f"resuming: {found.text}\n")
    return await run_script(session, found.script, resume=True)


async def status(session: Session) -> int:
    """What the node is and what serves there."""
    from console.deploy import deadman
    from console.deploy.lock import holder
    from console.deploy.release import last_good
    from console.engine import Engine

    async with connected(session) as where:
        profile = where.needed_profile()
        facts = await Engine(where.node, profile, session.store).facts()
        good, lock, switch = last_good(facts), holder(facts), deadman.sentence(facts)
    units = [facts.units[name] for name in (profile.service.unit, *profile.replaces) if name in facts.units]
    if session.as_json:
        session.tell_json(
            {
                "node": where.node.name,
                "host": facts.host,
                "units": {unit.name: f"{unit.active}/{unit.sub}" for unit in units},
                "last_good": None if good is None else good.number,
                "lock": None if lock is None else str(lock),
                "deadman": switch or None,
                "gpus": None if facts.gpus is None else len(facts.gpus.gpus),
                "missing": list(facts.missing),
            }
        )
        return ExitCode.DONE
    session.tell(f"{where.node.name}  {facts.host}, {facts.kernel}, {plural(facts.cpus, 'CPU')}, {gib(facts.memory)}")
    for unit in units:
        session.tell(f"  {unit.name}  {unit.active} ({unit.sub}){'' if unit.text else '  no unit file'}")
    for listener in facts.listeners:
        session.tell(f"  port {listener.port}  {listener.unit or listener.command or 'unknown process'}")
    session.tell(f"  last good  {'none yet' if good is None else f'release {good.number}, {good.profile}'}")
    session.tell(f"  lock       {'free' if lock is None else lock}")
    if switch:
        session.tell(f"  ! {switch}")
    for sentence in facts.missing:
        session.tell(f"  unknown: {sentence}")
    return ExitCode.DONE


async def gpus(session: Session) -> int:
    """One sample of every GPU, or one a second."""
    from console.node.gpu import GpuSample, watch_gpus

    def show(sample: GpuSample) -> None:
        if session.as_json:
            session.tell_json(asdict(sample))
            return
        session.tell(f"driver {sample.driver or 'unknown'}  CUDA {sample.cuda or 'unknown'}  read by {sample.source}")
        for gpu in sample.gpus:
            used = "?" if gpu.memory_used is None else gib(gpu.memory_used)
            total = "?" if gpu.memory_total is None else gib(gpu.memory_total)
            rest = (("%", gpu.utilisation), ("W", gpu.power), ("°", gpu.temperature))
            words = "  ".join(f"{'?' if value is None else f'{value:.0f}'}{unit}" for unit, value in rest)
            session.tell(f"  {gpu.index}  {used:>9} of {total}  {words}  {gpu.name or 'unknown GPU'}")
            for process in gpu.processes:
                held = "?" if process.memory is None else gib(process.memory)
                session.tell(f"       {held:>9}  pid {process.pid} {process.owner or '?'} {process.unit or ''}")
        for finding in sample.findings:
            session.tell(f"  ! {finding.text}{'; ' + finding.remedy if finding.remedy else ''}")

    async with connected(session) as where, watch_gpus(where.node) as samples:
        async for sample in samples:
            show(sample)
            if not session.given("follow", False):
                break
    return ExitCode.DONE


async def logs(session: Session) -> int:
    """The log of the service, or of a file, as far as the filter shows it."""
    from console.logs.filters import understood
    from console.logs.harmless import harmless
    from console.logs.view import keeper
    from console.node import journal
    from console.settings import own_presets
    from console.triage import load_rules

    wanted = session.given("filter")
    shown = keeper(understood(wanted, own=own_presets()), harmless(load_rules())) if wanted else lambda line: True
    if session.given("file"):
        return await asyncio.to_thread(_tell_file, session, Path(session.given("file")), shown)
    async with connected(session) as where:
        unit = session.given("unit") or where.needed_profile().service.unit
        lines = int(session.given("lines", 200))
        async with journal.read(where.node, unit, lines=lines, follow=bool(session.given("follow"))) as entries:
            async for entry in entries:
                if shown(entry.message):
                    session.tell_json(asdict(entry)) if session.as_json else session.tell(entry.message)
    return ExitCode.DONE


def _tell_file(session: Session, path: Path, shown: Callable[[str], bool]) -> int:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if shown(line.rstrip("\n")):
                    session.tell(line.rstrip("\n"))
    except BrokenPipeError:
        raise  # the reader of our output left, which is no fault of the file
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "name a log file that can be read") from error
    return ExitCode.DONE


async def unlock(session: Session) -> int:
    """Show whose the lock is, ask, remove it."""
    from console.deploy import deadman
    from console.deploy.lock import break_lock, holder
    from console.engine import Engine

    async with connected(session) as where:
        facts = await Engine(where.node, where.needed_profile(), session.store).facts()
        owner = holder(facts)
        session.tell(f"{where.node.name} is not locked" if owner is None else f"locked by {owner}")
        if switch := deadman.sentence(facts):
            session.tell(f"! {switch}")  # a lock that goes takes no switch with it
        if owner is None:
            return ExitCode.DONE
        if not (session.given("yes", False) or await ask_on_terminal("Remove this lock?", "unlock")):
            session.tell("left as it is")
            return ExitCode.LOCKED
        gone = await break_lock(where.node, facts, owner)
        session.tell("removed" if gone else "it had changed hands meanwhile; left as it is")
        return ExitCode.DONE if gone else ExitCode.LOCKED


async def runs(session: Session) -> int:
    """The history."""
    rows = session.store.runs(limit=int(session.given("limit", 20)))
    if session.as_json:
        for row in rows:
            session.tell_json(asdict(row))
        return ExitCode.DONE
    if not rows:
        session.tell("no runs yet; `relaunch --rehearse --script redeploy` makes the first, on the practice node")
    for row in rows:
        session.tell(_run_line(row))
    return ExitCode.DONE


def _run_line(row: RunRow) -> str:
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.started))
    spent = "unfinished" if row.ended is None else duration(row.ended - row.started)
    code = "?" if row.code is None else str(row.code)
    mark = " REHEARSAL" if row.rehearsal else ""
    down = "" if row.downtime is None else f"downtime {duration(row.downtime)}  "
    return f"{row.id}  {began}  {code:>3}  {spent:>10}  {row.node} › {row.profile} › {row.verb}{mark}  {down}{row.text[:80]}"


async def show(session: Session) -> int:
    """Replay one run exactly as it was told."""
    row = session.store.run(session.given("run"))
    printer = Printer(sys.stdout, signs=glyphs(os.environ))
    for event in session.store.events(row.id):
        session.tell_json(encode(event)) if session.as_json else printer(event)
    if row.code is None and not session.as_json:
        session.tell(f"run {row.id} has no end: its console was killed, or it still runs")
    return ExitCode.DONE


async def report(session: Session) -> int:
    """One run as a self-contained page, to hand to a colleague."""
    from console.deploy.report import write_report

    path = session.given("out")
    row = session.store.run(session.given("run"))
    written = write_report(
        session.store, row, state_folder() / "evidence" / row.id, None if path is None else Path(path)
    )
    session.tell_json({"run": row.id, "path": str(written)}) if session.as_json else session.tell(str(written))
    return ExitCode.DONE


async def audit(session: Session) -> int:
    """Who changed what on the node, as the node itself wrote it down."""
    from console.deploy.audit import read_audit
    from console.node.facts import Question, read_facts

    async with connected(session) as where:
        facts = await read_facts(where.node, Question())
        lines = await read_audit(where.node, facts, last=int(session.given("limit", 50)))
    for line in lines:
        if session.as_json:
            session.tell_json(line)
            continue
        words = (str(line.get(name, "")) for name in ("time", "operator", "run", "step", "result", "action"))
        session.tell("  ".join(word or "-" for word in words))
    if not lines and not session.as_json:
        session.tell("nothing was changed there by Relaunch yet")
    return ExitCode.DONE


async def rehearsal(session: Session) -> int:
    """The practice node's process."""
    from console.rehearsal import practice

    folder = state_folder() / "rehearsal"
    match session.given("what"):
        case "stop":
            session.tell("stopped" if await practice.stop(folder) else "it was not running")
        case "reset":
            await practice.reset(folder)
            session.tell("the practice node is as it was at first")
        case _:
            session.tell(_practice_line(practice.status(folder)))
    return ExitCode.DONE


def _practice_line(practice: Practice | None) -> str:
    if practice is None:
        return "not running; `relaunch --rehearse status` starts it"
    faults = f", faults {', '.join(practice.faults)}" if practice.faults else ""
    return f"running as pid {practice.pid} on {practice.host}:{practice.port}, root {practice.root}{faults}"


HANDLERS: dict[str, Handler] = {
    "plan": plan,
    "resume": resume,
    "status": status,
    "gpus": gpus,
    "logs": logs,
    "unlock": unlock,
    "runs": runs,
    "show": show,
    "report": report,
    "audit": audit,
    "rehearsal": rehearsal,
    **local.HANDLERS,
}
