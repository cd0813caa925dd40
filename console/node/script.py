"""Python that runs on the node: source and question travel on stdin, the answer comes back as JSON.

The source is stdlib-only, Python 3.6-safe, and finds its question in the global `ASK`. Nothing of it shows in `ps`, and
no text is quoted for a shell. A script prints its answer with `print(json.dumps(...))` as the last line of stdout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from console.errors import CommandFailed, RelaunchError, no_room
from console.node.base import Argv, Node, succeeded

# isolated mode: neither the working folder nor PYTHON* variables of the login change what runs
_BOOTSTRAP = (
    "import json,sys;d=json.loads(sys.stdin.buffer.readline().decode());"
    "exec(compile(d['source'],d['name'],'exec'),{'__name__':'__main__','ASK':d['ask']})"
)
_FULL = re.compile(r"\[Errno (?:28|122)\][^:]*(?:: '(.+)')?$")
"""The last line of a traceback of ENOSPC or EDQUOT, with the path where Python tells it."""


def python_call(name: str, source: str, ask: Mapping[str, Any], *, python: str = "python3") -> tuple[Argv, bytes]:
    """The argv and the stdin that run `source` on a node with the global `ASK`; `name` stands in its tracebacks."""
    line = json.dumps({"name": f"<relaunch {name}>", "source": source, "ask": dict(ask)})
    return (python, "-I", "-c", _BOOTSTRAP), line.encode() + b"\n"


async def ask(
    node: Node,
    name: str,
    source: str,
    question: Mapping[str, Any],
    *,
    timeout: float = 60,
    sudo: bool = False,
    mutates: bool = False,
    python: str = "python3",
) -> Any:
    """Run `source` on the node and return the JSON it printed last. Raises what `succeeded` raises, `Refused` when the
    script met a full disk, and `RelaunchError` when the answer is no JSON."""
    argv, stdin = python_call(name, source, question, python=python)
    result = await node.run(argv, input=stdin, timeout=timeout, sudo=sudo, mutates=mutates)
    try:
        answer = succeeded(result, argv)
    except CommandFailed as error:
        last = next((line for line in reversed(error.err.splitlines()) if line.strip()), "no error text")
        if full := _FULL.search(last):
            raise no_room(full[1] or f"what the {name} script writes") from error
        raise CommandFailed((f"{python} ({name})",), error.exit_status, last) from error
    lines = answer.out.rstrip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        raise RelaunchError(f"the {name} script on {node.name} answered without JSON: {answer.out[-200:]!r}") from error
