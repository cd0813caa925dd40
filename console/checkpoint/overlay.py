"""The overlay: what it holds, where it lies, and making, checking and removing it on a node.

`node_overlay.py` does the work over there; this side decides what goes in. An overlay's name carries a hash of what it
holds, so a release that refers to one is never changed under its feet.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from console.checkpoint.quant import KvField
from console.errors import RelaunchError
from console.node.base import Node
from console.node.script import ask

SOURCE = Path(__file__).with_name("node_overlay.py").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class FileEdit:
    """One JSON file before and after. `fields` are the paths whose value was replaced."""

    name: str
    before: bytes
    after: bytes
    fields: tuple[KvField, ...]

    @property
    def sha_before(self) -> str:
        return hashlib.sha256(self.before).hexdigest()

    @property
    def sha_after(self) -> str:
        return hashlib.sha256(self.after).hexdigest()


@dataclass(frozen=True, slots=True)
class OverlayPlan:
    """An overlay as it must be. `path` and `source` are absolute on the node."""

    path: str
    source: str
    edits: tuple[FileEdit, ...]
    repo: str = ""
    revision: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        """What is written beside the overlay."""
        return {
            "source": self.source,
            "repo": self.repo,
            "revision": self.revision,
            "made": round(time.time(), 3),
            "files": {
                edit.name: {
                    "before": edit.sha_before,
                    "after": edit.sha_after,
                    "fields": [field.path for field in edit.fields],
                }
                for edit in self.edits
            },
        }

    def question(self, operation: str) -> dict[str, Any]:
        """The ASK for `node_overlay.py`."""
        files: dict[str, dict[str, str]] = {}
        for edit in self.edits:
            files[edit.name] = {"before": edit.sha_before, "after": edit.sha_after}
            if operation in ("build", "edit"):
                files[edit.name]["data"] = base64.b64encode(edit.after).decode()
        return {
            "op": operation,
            "source": self.source,
            "overlay": self.path,
            "state": str(Path(self.path).parent.parent),
            "files": files,
            "manifest": self.manifest(),
        }


def overlay_path(state: str, name: str, source: str, revision: str, edits: tuple[FileEdit, ...]) -> str:
    """`<state>/overlays/<name>-<hash12>`: the hash is of the source folder, the revision and every edit."""
    parts = [source, revision, *(f"{edit.name} {edit.sha_before} {edit.sha_after}" for edit in edits)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{state}/overlays/{name}-{digest[:12]}"


async def build_overlay(node: Node, plan: OverlayPlan, *, sudo: bool = True) -> bool:
    """Make the overlay; False when a good one stood there already. Raises `RelaunchError` when it is not right after."""
    answer = await ask(node, "overlay", SOURCE, plan.question("build"), sudo=sudo, mutates=True, timeout=120)
    _raise(plan, answer)
    return bool(answer.get("made"))


async def overlay_problems(node: Node, plan: OverlayPlan, *, sudo: bool = True) -> tuple[str, ...]:
    """What is wrong with the overlay as it lies on the node; empty when it is whole."""
    answer = await ask(node, "overlay", SOURCE, plan.question("verify"), sudo=sudo, timeout=120)
    return tuple(str(problem) for problem in answer["problems"])


async def verify_overlay(node: Node, overlay: str, *, sudo: bool = True) -> str:
    """Check an overlay against the manifest beside it, before a start; evidence in words, or `RelaunchError`.

    A folder without a manifest is no overlay of ours and has nothing to verify.
    """
    try:
        manifest = json.loads(await node.read(f"{overlay}.json", sudo=sudo))
    except RelaunchError as error:
        raise RelaunchError(
            f"the overlay {overlay} has no manifest: {error.message}", "Run the patch step again."
        ) from error
    question = {"op": "verify", "source": manifest["source"], "overlay": overlay, "files": manifest["files"]}
    answer = await ask(node, "overlay", SOURCE, question, sudo=sudo, timeout=120)
    if answer["problems"]:
        raise RelaunchError(
            f"the overlay {overlay} is not what was built: {'; '.join(answer['problems'][:3])}",
            "Run the patch step again; it rebuilds the overlay.",
        )
    return f"{answer['links']} links and {len(manifest['files'])} rewritten files match"


async def remove_overlay(node: Node, overlay: str, *, sudo: bool = True) -> None:
    """Remove an overlay and its manifest; the download is not touched."""
    await ask(node, "overlay", SOURCE, {"op": "remove", "overlay": overlay}, sudo=sudo, mutates=True)


async def edit_in_place(node: Node, plan: OverlayPlan, *, sudo: bool = True) -> None:
    """Rewrite the files in the download itself; the originals stay beside them as NAME.before-relaunch."""
    answer = await ask(node, "patch", SOURCE, plan.question("edit"), sudo=sudo, mutates=True, timeout=120)
    _raise(plan, answer)


async def restore_in_place(node: Node, source: str, *, sudo: bool = True) -> dict[str, str]:
    """Bring the originals of an in-place edit back; the sha256 of each by name."""
    answer = await ask(node, "patch", SOURCE, {"op": "restore", "source": source}, sudo=sudo, mutates=True)
    return {str(name): str(digest) for name, digest in answer["restored"].items()}


def _raise(plan: OverlayPlan, answer: Mapping[str, Any]) -> None:
    if answer["problems"]:
        raise RelaunchError(
            f"patching {plan.source} failed: {'; '.join(answer['problems'][:3])}",
            "See whether something else is writing to the model folder, then run the patch step again.",
        )
