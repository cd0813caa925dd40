"""The hub as seen from a run: the manifest of a pinned commit, what of it lies in a folder, and the download job.

The manifest (every file with size and hash) is asked once per commit and remembered on the node, so that a folder that
is complete costs a look at facts and nothing else. The download itself is a detached job (`node_download.py`).
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.checkpoint.node_overlay import BACKUP
from console.checkpoint.question import CONFIGS, manifest_file, model_key
from console.errors import DownloadFailed, RelaunchError
from console.node.base import Node
from console.node.script import ask
from console.text import Secret, size

if TYPE_CHECKING:
    from console.deploy.step import Context
    from console.node.facts import Facts, FolderState
    from console.node.jobs import JobSpec
    from console.profile.model import Profile

PUBLIC_HUB = "https://huggingface.co"
STALL_SECONDS = 120.0
FOUND = "manifest"
"""Key in `Context.found` of the manifest that a run works with."""
WORKERS = 8

_TREE = Path(__file__).with_name("node_tree.py")
_JOB = Path(__file__).with_name("node_download.py")

REMEDIES: Mapping[str, tuple[str, str]] = {
    "gated_repo": (
        "the hub keeps this model behind a licence",
        "Accept the licence on the model's page with the account of your token, and give Relaunch that token (HF_TOKEN).",
    ),
    "auth_invalid": (
        "the hub wants a valid token (401): none was given, or it is not accepted; a repository that does not exist or is "
        "private answers the same",
        "Check model.repo, and give Relaunch a valid token in HF_TOKEN.",
    ),
    "forbidden": (
        "the token may not read this model (403)",
        "Use a token with read access to the repository, and accept the model's licence with its account.",
    ),
    "not_found": (
        "the hub has no such repository, commit or file (404)",
        "Check model.repo and model.revision in the profile.",
    ),
    "rate_limited": (
        "the hub answers with 429, too many requests from this address",
        "Wait a few minutes and run again; a token raises the limit. What was fetched stays.",
    ),
    "disk_full": (
        "the disk is full",
        "Free space, or name old model folders in space.may_remove, and run again. What was fetched stays.",
    ),
    "truncated_download": (
        "a file arrived shorter than the hub said",
        "Run again; a nearly full disk or a proxy that cuts answers gives the same text.",
    ),
    "permission": (
        "the login may not write to the model folder",
        "Give the folder to the login, or choose another one in model.folder.",
    ),
    "no_hub": (
        "the virtual environment has no huggingface_hub",
        "Run the engine step again; vLLM's own environment brings it.",
    ),
    "needs_xet": (
        "a file is over 50 GB, which the hub serves through Xet alone",
        "Install hf_xet in the virtual environment.",
    ),
    "stalled": (
        "the download stands still, also without Xet",
        "Check the network path to the hub, set model.endpoint to a mirror, and run again. What was fetched stays.",
    ),
    "server_error": ("the hub answers with an error of its own (5xx)", "Wait and run again; what was fetched stays."),
    "network": ("the node cannot reach the hub", "Check name resolution, proxy and model.endpoint on the node."),
    "busy": ("another download writes to the same folder", "Let it end, or stop it, then run again."),
    "incomplete": (
        "the hub's client says all is there, and it is not",
        "Run again; if it repeats, remove the folder's .cache.",
    ),
}


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of the commit. `sha256` for LFS files, `blob` (git's sha1) for the others; `size` in bytes."""

    path: str
    size: int
    sha256: str | None
    blob: str | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Every file of a pinned commit, as the hub lists it."""

    repo: str
    revision: str
    files: tuple[HubFile, ...]
    configs: Mapping[str, str] = field(default_factory=dict)
    """Text of the JSON files that say what the model is, by path, as far as the hub gave it; so that KV cache and memory
    can be decided before anything is downloaded."""

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def weights(self) -> int:
        """Bytes of the safetensors files."""
        return sum(file.size for file in self.shards)

    @property
    def shards(self) -> tuple[HubFile, ...]:
        return tuple(file for file in self.files if file.path.endswith(".safetensors"))


@dataclass(frozen=True, slots=True)
class Presence:
    """What of a manifest lies in a folder, by size alone. `patched`: files edited in place, with the original kept."""

    here: tuple[HubFile, ...]
    missing: tuple[HubFile, ...]
    wrong: tuple[tuple[HubFile, int], ...]
    patched: tuple[str, ...]
    unfinished: int
    """Bytes in `.incomplete` files."""

    @property
    def done(self) -> int:
        """Bytes that need not be fetched."""
        return sum(file.size for file in self.here)

    @property
    def todo(self) -> tuple[HubFile, ...]:
        return self.missing + tuple(file for file, _ in self.wrong)

    @property
    def needed(self) -> int:
        """Bytes to fetch. A wrong file is removed before, so it frees what it holds."""
        return sum(file.size for file in self.missing) + sum(max(0, file.size - have) for file, have in self.wrong)


def endpoint(profile: Profile) -> str:
    """The hub or mirror that the profile names."""
    return (profile.model.endpoint or PUBLIC_HUB).rstrip("/")


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as it is remembered on the node."""
    data = {
        "repo": manifest.repo,
        "revision": manifest.revision,
        "files": [asdict(file) for file in manifest.files],
        "configs": dict(manifest.configs),
    }
    return json.dumps(data, indent=1).encode() + b"\n"


def decode_manifest(data: Any) -> Manifest:
    """The manifest in JSON data; raises `ValueError` for anything else, and for paths that leave the folder."""
    try:
        files = tuple(
            HubFile(_inside(row["path"]), int(row["size"]), row.get("sha256"), row.get("blob")) for row in data["files"]
        )
        configs = {str(path): str(text) for path, text in (data.get("configs") or {}).items()}
        return Manifest(str(data["repo"]), str(data["revision"]), files, configs)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no manifest: {error}") from error


def remembered(facts: Facts, profile: Profile) -> Manifest | None:
    """The manifest that an earlier run left on the node, when it is of the pinned commit."""
    text = facts.files.get(facts.path(manifest_file(profile)))
    try:
        manifest = decode_manifest(json.loads(text)) if text else None
    except ValueError:
        return None
    if manifest is None or (manifest.repo, manifest.revision) != (profile.model.repo, profile.model.revision):
        return None
    return manifest


def known(ctx: Context) -> Manifest | None:
    """The manifest as far as this run knows it, without asking anybody."""
    found = ctx.found.get(FOUND)
    return found if isinstance(found, Manifest) else remembered(ctx.facts, ctx.profile)


def presence(manifest: Manifest, folder: FolderState | None) -> Presence:
    """Compare a manifest with a folder's listing."""
    sizes = {entry.name: entry.size for entry in folder.files} if folder else {}
    here, missing, wrong, patched = [], [], [], []
    for file in manifest.files:
        have = sizes.get(file.path)
        if have == file.size:
            here.append(file)
        elif have is None:
            missing.append(file)
        elif sizes.get(file.path + BACKUP) == file.size:
            here.append(file)
            patched.append(file.path)
        else:
            wrong.append((file, have))
    allocated = {entry.name: min(entry.size, entry.allocated) for entry in folder.files} if folder else {}
    unfinished = sum(count for name, count in allocated.items() if name.endswith(".incomplete"))
    return Presence(tuple(here), tuple(missing), tuple(wrong), tuple(patched), unfinished)


async def ask_manifest(node: Node, profile: Profile, token: Secret) -> Manifest:
    """Ask the hub, from the node, for every file of the pinned commit. The token travels on stdin."""
    question = {
        "endpoint": endpoint(profile),
        "repo": profile.model.repo,
        "revision": profile.model.revision,
        "token": token.reveal(),
        "configs": list(CONFIGS),
    }
    source = _TREE.read_text(encoding="utf-8")
    answer = await ask(node, "hub tree", source, question, timeout=180)
    if "error" in answer:
        problem = answer["error"]
        from console.checkpoint.node_download import classify

        raise failure(profile, classify(problem["status"], str(problem["text"])), str(problem["text"]))
    try:
        manifest = decode_manifest({**answer, "repo": profile.model.repo, "revision": profile.model.revision})
    except ValueError as error:
        raise DownloadFailed(f"the hub's list of files cannot be used: {error}", "Check model.endpoint.") from error
    if not manifest.files:
        raise DownloadFailed(
            f"{profile.model.repo} has no files at that commit", "Check model.revision in the profile."
        )
    return manifest


async def remember(node: Node, facts: Facts, profile: Profile, manifest: Manifest) -> None:
    """Write the manifest where the next run's facts find it."""
    path = facts.path(manifest_file(profile))
    await make_folder(node, posixpath.dirname(path))
    await node.write(path, encode_manifest(manifest), sudo=True)


async def make_folder(node: Node, path: str) -> None:
    """A folder of Relaunch's own on the node, made when it is missing."""
    argv = ("mkdir", "-p", "-m", "755", path)
    result = await node.run(argv, timeout=30, sudo=True)
    from console.node.base import succeeded

    succeeded(result, argv)


def job_name(profile: Profile) -> str:
    """The name of the download job of the pinned commit."""
    return f"download-{model_key(profile)[-12:]}"


def download_job(
    profile: Profile,
    facts: Facts,
    manifest: Manifest,
    token: Secret,
    *,
    replace: tuple[str, ...] = (),
    stall_seconds: float | None = None,
) -> JobSpec:
    """The detached job that brings every file of the manifest about. `replace`: files known to be wrong."""
    from console.node.jobs import JobSpec, job_folder, job_user

    name = job_name(profile)
    folder = facts.path(profile.model.folder.rstrip("/"))
    job = job_folder(facts, name)
    cache = f"{facts.paths.home}/.cache/huggingface"
    question = {
        "folder": folder,
        "repo": manifest.repo,
        "revision": manifest.revision,
        "endpoint": endpoint(profile),
        "files": [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in manifest.files],
        "replace": list(replace),
        "workers": WORKERS,
        "stall_seconds": stall_seconds or profile.ready.stalls.get("model_download", STALL_SECONDS),
        "token_paths": [f"{job}/token", f"{cache}/token"],
        "adopt": [f"{cache}/hub/models--{manifest.repo.replace('/', '--')}/snapshots/{manifest.revision}"],
        "job": job,
    }
    return JobSpec(
        name=name,
        argv=(f"{facts.path(profile.vllm.venv)}/bin/python", "-I", f"{job}/download.py", f"{job}/ask.json"),
        description=f"Relaunch: download {manifest.repo}",
        files={"download.py": _JOB.read_bytes(), "ask.json": json.dumps(question).encode()},
        secrets={"token": token} if token else {},
        user=job_user(facts, folder),
    )


def failure(profile: Profile, kind: str, text: str) -> DownloadFailed:
    """The error of a kind of failure, with what it means and what to do."""
    meaning, remedy = REMEDIES.get(kind, ("the download failed", "See the text, and run again."))
    where = f"{profile.model.repo} from {endpoint(profile)}"
    return DownloadFailed(f"downloading {where} failed: {meaning}" + (f" ({text})" if text else ""), remedy)


def sentence(manifest: Manifest, found: Presence) -> str:
    """`119/119 shards, 540.1 GB`."""
    whole = {file.path for file in found.here}
    shards = sum(file.path in whole for file in manifest.shards)
    words = f"{shards}/{len(manifest.shards)} shards, {size(found.done)}"
    if len(whole) < len(manifest.files):
        words += f" of {size(manifest.total)}"
    return words + (f"; {', '.join(found.patched)} edited in place, original kept" if found.patched else "")


def _inside(path: Any) -> str:
    """A repository path that stays in its folder."""
    text = str(path)
    if not text or text.startswith(("/", "~")) or "\\" in text or ".." in text.split("/") or "\0" in text:
        raise ValueError(f"the path {text!r} leaves the model folder")
    return text


def relaunch_error(error: RelaunchError) -> DownloadFailed:
    """Any error while talking about the download, as one of the download."""
    return error if isinstance(error, DownloadFailed) else DownloadFailed(error.message, error.remedy)
