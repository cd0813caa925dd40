"""One file read or replaced by `node_file.py` on the node: as root, or where there is no SFTP."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

from console.errors import CommandFailed, no_room
from console.node.base import Node, NoSuchFile
from console.node.script import ask

_SCRIPT = Path(__file__).with_name("node_file.py")
_SLOWEST = 32 * 1024
"""Bytes per second below which a transfer counts as stuck."""


async def read_by_script(node: Node, path: str, limit: int, *, sudo: bool, python: str = "python3") -> bytes:
    """What `Node.read` promises."""
    answer = await _answer(node, {"op": "read", "path": path, "limit": limit}, limit, sudo=sudo, python=python)
    if "missing" in answer:
        raise NoSuchFile(f"there is no file {path}")
    return base64.b64decode(answer["data"])


async def write_by_script(
    node: Node, path: str, data: bytes, mode: int, *, sudo: bool, python: str = "python3"
) -> None:
    """What `Node.write` promises."""
    question = {"op": "write", "path": path, "mode": mode, "data": base64.b64encode(data).decode()}
    answer = await _answer(node, question, len(data), sudo=sudo, python=python)
    if "missing" in answer:
        raise CommandFailed(("write", path), 1, "the folder it should stand in does not exist")


async def _answer(node: Node, question: dict[str, object], size: int, *, sudo: bool, python: str) -> dict[str, str]:
    source = await asyncio.to_thread(_SCRIPT.read_text, encoding="utf-8")
    verb, path = str(question["op"]), str(question["path"])
    answer: dict[str, str] = await ask(
        node, f"{verb} file", source, question, timeout=60 + size / _SLOWEST, sudo=sudo, mutates=verb == "write",
        python=python,
    )  # fmt: skip
    if "full" in answer:
        raise no_room(path)
    if "error" in answer:
        raise CommandFailed((verb, path), 1, answer["error"])
    return answer
