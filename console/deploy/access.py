"""What preflight asks the node about the service's account: that it exists and can reach its environment and its model,
that the environment file is there, and that the model's folder can be made. One exec, and none when nothing will start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from console.deploy.release import already_serving
from console.deploy.step import Context
from console.errors import RelaunchError, Unreachable
from console.findings import Finding, allow, refuse, warn
from console.node.script import ask

_SOURCE = Path(__file__).with_name("node_access.py")


async def findings(ctx: Context) -> tuple[Finding, ...]:
    """The findings; what could not be asked is one warning. Raises Unreachable."""
    if already_serving(ctx):
        return ()
    facts, profile = ctx.facts, ctx.profile
    folder, venv = facts.path(profile.model.folder.rstrip("/")), facts.path(profile.vllm.venv)
    file = profile.service.environment_file
    question = {
        "user": profile.service.user,
        "environment_file": facts.path(file) if file else None,
        "folder": folder,
        "reach": [folder, f"{venv}/bin/python"],
    }
    try:
        answer = await ask(
            ctx.node, "access", _SOURCE.read_text(encoding="utf-8"), question, timeout=60, sudo=facts.uid != 0
        )
        return tuple(told(profile.service.user, file, folder, answer))
    except Unreachable:
        raise
    except (RelaunchError, KeyError, TypeError, ValueError) as error:
        why = error.message if isinstance(error, RelaunchError) else "its answer is not understood"
        return (warn("access", f"what {profile.service.user} may reach on the node is unknown: {why}"),)


def told(user: str, file: str | None, folder: str, answer: Mapping[str, Any]) -> Iterator[Finding]:
    """The node's answer as findings. Pure."""
    if not answer["user"]:
        text = f"there is no account {user} on the node, and systemd would not start the service (217/USER)"
        yield refuse("service-user", text, f"make it (useradd --system {user}), or name another in service.user")
    elif answer["reach"]:
        for path, barrier in answer["reach"]:
            text = f"the account {user} cannot reach {path}: {barrier} is closed to it"
            yield refuse("service-user", text, f"open {barrier} to {user}, or put it where {user} can read")
    else:
        yield allow("service-user", f"the account {user} reaches its environment and its model")
    if file is not None:
        yield _environment_file(file, str(answer["file"]))
    place, why = answer["parent"]
    if why:
        yield refuse("model-folder", f"{folder} cannot be made or filled: {place}: {why}", "put model.folder elsewhere")
    else:
        yield allow("model-folder", f"{folder} can be written")


def _environment_file(file: str, state: str) -> Finding:
    rule = "environment-file"
    if state == "missing":
        return refuse(rule, f"{file} does not exist, and systemd would not start the service", "make it, mode 0600")
    if state == "open":
        return warn(rule, f"every account of the node can read {file}, which is the place for secrets", "chmod 600 it")
    if state != "good":
        return refuse(rule, f"{file} is no regular file", "name a file in service.environment_file")
    return allow(rule, f"{file} is there")
