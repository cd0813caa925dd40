"""The audit file on the node: `<state>/audit.jsonl`, one line per mutation, append-only.

Each line has time (the node's), operator, run, step, action, result and seconds. `Audited` stands at the Node boundary: a
mutating command goes through a small program on the node that runs it and writes the line, so the line is there however
the console or the link ends, and before the step is told done; a command that never reached the node has none. The lock
and the dead man's switch write their own lines, by the same function. No line holds what went to a command's stdin.
"""

from __future__ import annotations

import base64
import functools
import json
import shlex
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.node import agent
from console.node.base import Argv, Line, LinkState, Node, NoSuchFile, Result
from console.node.facts import Facts
from console.node.file_script import write_by_script
from console.text import clean, redact

if TYPE_CHECKING:
    from console.node.http import Http

AUDIT_FILE = "state:/audit.jsonl"
LONGEST = 400
"""Characters of an action in the file."""
_SOURCE = Path(__file__).with_name("node_audit.py")
_BOOT = "import sys,base64,zlib;exec(zlib.decompress(base64.b64decode(sys.argv.pop(1))))"
_TOLD = ("op", "do", "action")
_PLACES = ("path", "folder", "overlay", "venv", "unit")


def action_of(argv: Argv, stdin: bytes | None) -> str:
    """What a command does, in one line: the command itself, or a script's name with what it is asked to do and where."""
    if argv[1:3] == ("-I", "-c") and stdin:
        try:
            sent = json.loads(stdin.split(b"\n", 1)[0])
            asked: Mapping[str, Any] = sent["ask"]
            name = str(sent["name"]).removeprefix("<relaunch ").removesuffix(">")
        except (ValueError, KeyError, TypeError):
            return "a Python script"
        words = [str(asked[key]) for key in (*_TOLD, *_PLACES) if isinstance(asked.get(key), str)]
        return _short(" ".join((name, *(word for word in words if word not in name.split()))))
    return _short(shlex.join(argv))


def _short(text: str) -> str:
    safe = redact(" ".join(clean(text).split()))
    return safe if len(safe) <= LONGEST else f"{safe[: LONGEST - 1]}…"


def entry(operator: str, run: str, step: str, action: str) -> dict[str, str]:
    """The part of a line that is known before the action."""
    return {"operator": _short(operator), "run": run, "step": step, "action": action}


@functools.cache
def _program() -> str:
    source = agent.program(_SOURCE.read_text(encoding="utf-8"), ("audit",))
    return base64.b64encode(zlib.compress(source.encode(), 9)).decode()


class Audited:
    """A node whose mutations are written down. `step` is what the next one belongs to; whoever walks sets it."""

    def __init__(self, node: Node, facts: Facts, *, operator: str, run: str) -> None:
        self._node = node
        self._file = facts.path(AUDIT_FILE)
        self._operator = operator
        self._run = run
        self.step = ""

    @property
    def name(self) -> str:
        return self._node.name

    @property
    def read_only(self) -> bool:
        return self._node.read_only

    def link(self) -> LinkState:
        return self._node.link()

    async def run(
        self, argv: Argv, *, input: bytes | None = None, timeout: float, sudo: bool = False, mutates: bool = True
    ) -> Result:
        if not mutates or self.read_only or not argv:
            return await self._node.run(argv, input=input, timeout=timeout, sudo=sudo, mutates=mutates)
        about = json.dumps(entry(self._operator, self._run, self.step, action_of(argv, input)), ensure_ascii=False)
        noted = ("python3", "-I", "-c", _BOOT, _program(), self._file, about, *argv)
        return await self._node.run(noted, input=input, timeout=timeout, sudo=sudo)

    def stream(
        self, argv: Argv, *, input: bytes = b"", sudo: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[Line]]:
        return self._node.stream(argv, input=input, sudo=sudo)

    async def read(self, path: str, *, sudo: bool = False, limit: int = 64 << 20) -> bytes:
        return await self._node.read(path, sudo=sudo, limit=limit)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, sudo: bool = False) -> None:
        if self.read_only:
            return await self._node.write(path, data, mode=mode, sudo=sudo)  # says no, in its own words
        return await write_by_script(self, path, data, mode, sudo=sudo)  # a command like any other, so it has its line

    def http(self, port: int, *, host: str = "127.0.0.1") -> Http:
        return self._node.http(port, host=host)


async def read_audit(node: Node, facts: Facts, *, last: int = 50) -> tuple[dict[str, Any], ...]:
    """The newest lines, oldest first; lines that are no JSON object are left out."""
    try:
        text = (await node.read(facts.path(AUDIT_FILE), sudo=True)).decode(errors="replace")
    except NoSuchFile:
        return ()
    return parse_audit(text)[-last:]


def parse_audit(text: str) -> tuple[dict[str, Any], ...]:
    """Every line of an audit file that is a JSON object."""
    found = []
    for line in text.splitlines():
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict):
            found.append(data)
    return tuple(found)
