"""Verbs that need no node: logs, catalogues, profiles and model folders on this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from console.errors import ExitCode, InvalidFile, UsageError
from console.session import Session, connected, profile_folders
from console.settings import config_folder
from console.text import plural

if TYPE_CHECKING:
    from console.profile.load import Listed


async def diagnose(session: Session) -> int:
    """The first cause of a log file, of stdin, or of a unit's journal on a node."""
    from console.triage import command

    rules = session.given("rules")
    path = None if rules is None else Path(rules)
    if session.given("unit"):
        return await _diagnose_unit(session, path)
    if session.given("node"):
        raise UsageError("--node names a machine, but no unit of it", "add --unit NAME.service")
    return await asyncio.to_thread(command.diagnose, session.given("file"), as_json=session.as_json, rules=path)


async def _diagnose_unit(session: Session, rules: Path | None) -> int:
    from console.autopsy import explain_unit
    from console.triage import command, load_rules, page

    async with connected(session) as where:
        found = await explain_unit(where.node, session.given("unit"), load_rules(rules))
    session.tell_json(found.to_json()) if session.as_json else session.tell(
        page.answer(found, command.terminal_width())
    )
    return command.exit_code(found)


async def catalogue(session: Session) -> int:
    """Lint a user's failure catalogue."""
    from console.triage import command

    return await asyncio.to_thread(command.check, Path(session.given("file")))


async def profile(session: Session) -> int:
    """Check, list or show profiles."""
    from console.profile import load

    folders = profile_folders(session)
    names = session.given("names")
    match session.given("what"):
        case "list":
            for found in load.list_profiles(folders):
                session.tell_json(_listed(found)) if session.as_json else session.tell(_listed_line(found))
        case "show" if len(names) == 1:
            session.tell(load.describe(load.find_profile(names[0], folders)))
        case "show":
            raise UsageError("name one profile to show", "`relaunch profile list` shows what there is")
        case _:
            return _check_profiles(session, names)
    return ExitCode.DONE


def _listed(found: Listed) -> dict[str, object]:
    title = found.profile.title if found.profile else None
    return {
        "name": found.name,
        "path": str(found.path),
        "title": title,
        "shipped": found.shipped,
        "problems": [str(problem) for problem in found.problems],
    }


def _listed_line(found: Listed) -> str:
    if found.profile is None:
        return f"{found.name:<20} BROKEN: {plural(len(found.problems), 'problem')}, see relaunch profile check {found.path}"
    return f"{found.name:<20} {found.profile.title}{'' if found.shipped else f'  ({found.path})'}"


def _check_profiles(session: Session, files: list[str]) -> int:
    from console.profile.load import lint

    if not files:
        raise UsageError("name the profile files to check", "relaunch profile check FILE …")
    problems = [problem for file in files for problem in lint(Path(file))]
    if problems:
        raise InvalidFile(tuple(problems))
    session.tell(f"{plural(len(files), 'profile')}: no problem found")
    return ExitCode.DONE


async def patch(session: Session) -> int:
    """The KV decision and patch of a local model folder."""
    from console.checkpoint.kv import user_rules
    from console.checkpoint.local import patch_folder

    overlay = session.given("overlay")
    report = await asyncio.to_thread(
        patch_folder,
        Path(session.given("folder")),
        session.given("kv"),
        session.given("cc"),
        session.given("vllm"),
        None if overlay is None else Path(overlay),
        bool(session.given("in_place")),
        bool(session.given("dry_run", False)),
        bool(session.given("restore")),
        rules=user_rules(config_folder(os.environ)),
    )
    session.tell_json(report.to_json()) if session.as_json else session.tell(str(report))
    return ExitCode.DONE


async def fit(session: Session) -> int:
    """The memory fit of a local model folder."""
    from console.checkpoint.kv import user_rules
    from console.checkpoint.local import fit_folder

    report = await asyncio.to_thread(
        lambda: fit_folder(
            Path(session.given("folder")),
            tensor_parallel=session.given("tp"),
            context_parallel=session.given("dcp"),
            gpu_memory=int(session.given("gpu_gib") * 2**30),
            utilization=session.given("utilization"),
            vllm=session.given("vllm"),
            cc=session.given("cc"),
            kv=session.given("kv"),
            max_model_len=session.given("max_model_len"),
            rules=user_rules(config_folder(os.environ)),
        )
    )
    session.tell_json(report.to_json()) if session.as_json else session.tell(str(report))
    return ExitCode.DONE


HANDLERS: dict[str, Callable[[Session], Awaitable[int]]] = {
    "diagnose": diagnose,
    "catalogue": catalogue,
    "profile": profile,
    "patch": patch,
    "fit": fit,
}
