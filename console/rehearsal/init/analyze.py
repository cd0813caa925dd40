"""`systemd-analyze verify`, as systemd 252 says it: what it ignores on stderr with exit code 0, what it refuses with 1."""

from __future__ import annotations

import os
from pathlib import Path

from console.rehearsal.init import text
from console.rehearsal.init.pid1 import Pid1
from console.rehearsal.init.reply import Reply

_SUFFIXES = (".service", ".timer", ".target", ".socket", ".slice", ".path", ".mount")


def answer(pid1: Pid1, argv: list[str], folder: str, reply: Reply) -> int:
    """Do what `systemd-analyze ARGV` does; returns its exit code."""
    words = [word for word in argv if not word.startswith("-")]
    if "--version" in argv:
        reply.out("systemd 252 (252-relaunch-practice)\n")
        return 0
    if words[:1] != ["verify"] or len(words) < 2:
        reply.err(
            "Too few arguments.\n" if words[:1] == ["verify"] else f"Unknown command verb {''.join(words[:1])}.\n"
        )
        return 1
    return max(_verify(pid1, Path(os.path.join(folder, word)), reply) for word in words[1:])


def _verify(pid1: Pid1, path: Path, reply: Reply) -> int:
    if not path.name.endswith(_SUFFIXES):
        reply.err(f"Failed to prepare filename {path}: Invalid argument\n")
        return 1
    if not path.exists():
        reply.err(f"Unit {path.name} not found.\n")
        return 1
    unit = text.load(path)
    complaints = list(unit.warnings)
    if unit.fatal:
        complaints += [f"{unit.name}: {unit.fatal}", f"Unit {unit.name} has a bad unit file setting."]
    else:
        complaints += _missing_programs(pid1, unit)
    reply.err("".join(f"{line}\n" for line in complaints))
    return int(len(complaints) > len(unit.warnings))


def _missing_programs(pid1: Pid1, unit: text.UnitText) -> list[str]:
    found = []
    path = pid1.base_environment()["PATH"]
    for key in ("ExecStartPre", "ExecStart", "ExecStartPost", "ExecStop", "ExecStopPost"):
        for command in text.commands(unit, key, pid1.specifiers(unit.name)):
            program = command.argv[0]
            if text.executable(program, path) is None:
                reason = "Permission denied" if os.path.exists(program) else "No such file or directory"
                found.append(f"{unit.name}: Command {program} is not executable: {reason}")
    return found
