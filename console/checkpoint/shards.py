"""Is every file of the model what the hub says it is: the check as a detached job, and its remembered result.

The record on the node holds size, mtime and inode of each file that was found good. As long as the folder's listing
shows the same, the check is a look at facts: no exec, no byte read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.checkpoint.hub import Manifest
from console.checkpoint.node_overlay import BACKUP
from console.checkpoint.question import model_key, shards_file
from console.errors import DownloadFailed
from console.text import plural, size

if TYPE_CHECKING:
    from console.node.facts import Facts, FolderState
    from console.node.jobs import JobSpec
    from console.profile.model import Profile

_JOB = Path(__file__).with_name("node_shards.py")
WORKERS = 8

REPLICATED = (
    r"norm",
    r"\.mlp\.gate\.",
    r"e_score_correction_bias",
    r"\.(q_a_proj|kv_a_proj_with_mqa|fused_qkv_a_proj)\.",
    r"\.indexer\.",
    r"_scale(_2|_inv)?$",
    r"vision_tower|visual\.|mm_projector|multi_modal_projector",
)
"""Tensors that each tensor-parallel rank keeps whole in vLLM: norms, routers, MLA's down-projections, vision."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One file that is wrong, and how."""

    path: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path} {self.text}"


@dataclass(frozen=True, slots=True)
class ShardReport:
    """A check's result. `unchecked`: files that the record does not cover any more. Weights in bytes; 0 is unknown."""

    good: int
    faults: tuple[Fault, ...]
    unchecked: tuple[str, ...]
    index: tuple[str, ...]
    surplus: tuple[str, ...]
    hashed: int
    """Files whose content was compared with the hub's hash."""
    checked: float | None
    weights: int = 0
    replicated: int = 0

    complete: bool = False
    """The check came to its end, the index included."""

    @property
    def whole(self) -> bool:
        return self.complete and not (self.faults or self.unchecked or self.index)


def job_name(profile: Profile) -> str:
    """The name of the check's job."""
    return f"shards-{model_key(profile)[-12:]}"


def shards_job(profile: Profile, facts: Facts, manifest: Manifest, *, deep: bool = False) -> JobSpec:
    """The detached job that checks every file of the manifest; `deep` reads again what was found good before."""
    from console.node.jobs import JobSpec, job_folder

    name = job_name(profile)
    job = job_folder(facts, name)
    question = {
        "folder": facts.path(profile.model.folder.rstrip("/")),
        "record": facts.path(shards_file(profile)),
        "files": [
            {"path": file.path, "size": file.size, "sha256": file.sha256, "blob": file.blob} for file in manifest.files
        ],
        "replicated": list(REPLICATED),
        "workers": min(WORKERS, max(1, facts.cpus)),
        "deep": deep,
    }
    return JobSpec(
        name=name,
        argv=("python3", "-I", f"{job}/shards.py", f"{job}/ask.json"),
        description=f"Relaunch: check {manifest.repo}",
        files={"shards.py": _JOB.read_bytes(), "ask.json": json.dumps(question).encode()},
        user=None if facts.uid == 0 else "root",  # it writes its record into Relaunch's folder
    )


def report(manifest: Manifest, record: Mapping[str, Any] | None, folder: FolderState | None) -> ShardReport:
    """What the record says of the folder as it is now. Pure."""
    files = (record or {}).get("files", {})
    now = {entry.name: entry for entry in folder.files} if folder else {}
    faults, unchecked, good, hashed = [], [], 0, 0
    for file in manifest.files:
        entry = files.get(file.path)
        there = now.get(file.path)
        original = now.get(file.path + BACKUP)  # of a file that was edited in place since, or before
        if there is None:
            faults.append(Fault(file.path, "missing", "is not there"))
        elif not entry or not (_same(entry, there) or (original is not None and _same(entry, original))):
            unchecked.append(file.path)
        elif entry.get("problem"):
            faults.append(Fault(file.path, str(entry["problem"]["kind"]), str(entry["problem"]["text"])))
        elif (want := file.sha256 or file.blob) and entry.get("hash") != want:
            unchecked.append(file.path)
        else:
            good += 1
            hashed += bool(entry.get("hash"))
    weights = (record or {}).get("weights", {})
    return ShardReport(
        good=good,
        faults=tuple(faults),
        unchecked=tuple(unchecked),
        index=tuple(str(text) for text in (record or {}).get("index", ())),
        surplus=tuple(str(path) for path in (record or {}).get("surplus", ())),
        hashed=hashed,
        checked=(record or {}).get("checked") or None,
        weights=int(weights.get("total", 0)),
        replicated=int(weights.get("replicated", 0)),
        complete=bool((record or {}).get("complete")),
    )


def remembered(facts: Facts, profile: Profile) -> Mapping[str, Any] | None:
    """The record of the last check, as the facts hold it."""
    text = facts.files.get(facts.path(shards_file(profile)))
    try:
        data = json.loads(text) if text else None
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def evidence(manifest: Manifest, found: ShardReport) -> str:
    """`119/119 shards, 540.1 GB, sha256 match`."""
    count = len(manifest.shards)
    words = f"{count}/{count} shards, {size(manifest.total)}"
    hashable = sum(bool(file.sha256 or file.blob) for file in manifest.files)
    words += ", sha256 match" if found.hashed == hashable and hashable else ", headers and sizes match"
    if found.surplus:
        words += f"; {plural(len(found.surplus), 'file')} that the index does not name: {', '.join(found.surplus[:3])}"
    return words


def failure(found: ShardReport) -> DownloadFailed:
    """The error for files that stay wrong after they were fetched again."""
    wrong = [str(fault) for fault in found.faults] + list(found.index)
    shown = "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
    return DownloadFailed(
        f"{plural(len(wrong), 'file')} of the model {'is' if len(wrong) == 1 else 'are'} wrong: {shown}",
        "Check the disk (dmesg, SMART) and the mirror in model.endpoint, then run the download step again.",
    )


def _same(entry: Mapping[str, Any], there: Any) -> bool:
    return (entry.get("size"), entry.get("mtime_ns"), entry.get("inode")) == (there.size, there.mtime_ns, there.inode)
