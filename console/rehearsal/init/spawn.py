"""One command of a unit as a process: variables expanded, program found, folder, user and limits as the unit says."""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Mapping

from console.rehearsal.init.group import Group, Spawned
from console.rehearsal.init.settings import Settings
from console.rehearsal.init.text import Command, executable
from console.rehearsal.init.words import expand


async def spawn(
    group: Group, settings: Settings, command: Command, env: Mapping[str, str], *, broken: bool = False
) -> tuple[Spawned, list[str]]:
    """Start the command in the unit's group. The second part is what systemd's child says when it could not become the
    program. `broken`: it cannot be executed, as when the interpreter in its first line is gone."""
    program, *arguments = command.argv
    argv = [program, *(expand(arguments, env) if command.expands else arguments)]
    path = _path(program, env)
    fail = None
    if not _user_exists(settings.user):
        fail = ("USER", errno.ESRCH)
    elif broken:
        fail = ("EXEC", errno.ENOENT)
    spawned = await group.spawn(
        argv, path, env=env, cwd=_directory(settings, env), limits=settings.limits, umask=settings.umask, fail=fail
    )
    return spawned, _complaints(spawned, program, path) if spawned.step is not None else []


def child_name(command: Command, env: Mapping[str, str]) -> str:
    """What the forked child is called until it is the program: `(vllm)`."""
    return f"({os.path.basename(_path(command.argv[0], env))[:8]})"


def _path(program: str, env: Mapping[str, str]) -> str:
    return executable(program, env.get("PATH", os.defpath)) or program


def _directory(settings: Settings, env: Mapping[str, str]) -> str:
    directory = settings.working_directory
    directory = env.get("HOME", "/") if directory == "~" else directory
    return "/" if settings.directory_optional and not os.path.isdir(directory) else directory


def _user_exists(user: str) -> bool:
    """Processes keep the practice's own user; one that the machine does not know is an error all the same."""
    if not user or user.isdigit():
        return True
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _complaints(spawned: Spawned, program: str, path: str) -> list[str]:
    reason = os.strerror(spawned.errno)
    verb = "execute" if os.path.exists(path) else "locate executable"
    first = {
        "EXEC": f"Failed to {verb} {program}: {reason}",
        "CHDIR": f"Changing to the requested working directory failed: {reason}",
        "USER": f"Failed to determine user credentials: {reason}",
    }.get(str(spawned.step), reason)
    return [first, f"Failed at step {spawned.step} spawning {program}: {reason}"]
