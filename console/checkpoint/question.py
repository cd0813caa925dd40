"""What the steps over the model's files ask of the node's facts: one `Question`, read once per run."""

from __future__ import annotations

import hashlib
import re

from console.checkpoint.node_remove import LEAVING
from console.node.facts import Question
from console.profile.model import Profile

CONFIGS = ("config.json", "hf_quant_config.json")
"""The JSON files of a model folder that may hold a KV scheme."""


def model_key(profile: Profile) -> str:
    """A name for the pinned commit of the profile's model, safe as a file name: `Kimi-K2.5-NVFP4-1a2b3c4d5e6f`."""
    tail = profile.model.repo.rsplit("/", 1)[-1]
    name = re.sub(r"[^A-Za-z0-9._-]", "_", tail).strip(".") or "model"
    digest = hashlib.sha256(f"{profile.model.repo}@{profile.model.revision}".encode()).hexdigest()
    return f"{name}-{digest[:12]}"


def manifest_file(profile: Profile) -> str:
    """Where the hub's own list of files, sizes and hashes of the pinned commit is remembered."""
    return f"state:/manifests/{model_key(profile)}.json"


def shards_file(profile: Profile) -> str:
    """Where the result of the last shard check is remembered."""
    return f"state:/shards/{model_key(profile)}.json"


def draft_folder(profile: Profile) -> str | None:
    """The local folder of a draft model for speculative decoding, when the profile's flags name one."""
    for name in ("speculative-config", "speculative_config"):
        value = profile.serve.flags.get(name)
        if isinstance(value, dict):
            model = value.get("model")
            if isinstance(model, str) and model.startswith(("/", "~/")):
                return model.rstrip("/")
    return None


def question(profile: Profile) -> Question:
    """The folders, files and disks that space, download, shards and patch look at."""
    folder = profile.model.folder.rstrip("/")
    draft = draft_folder(profile)
    removed = [old.rstrip("/") + LEAVING for old in profile.space.may_remove]
    folders = [folder, *([draft] if draft else []), *profile.space.may_remove, *removed]
    read = [
        *(f"{folder}/{name}" for name in CONFIGS),
        *(f"{draft}/{name}" for name in CONFIGS if draft),
        manifest_file(profile),
        shards_file(profile),
        "state:/overlays/*.json",
        "state:/probe/*.json",
    ]
    return Question(venvs=(profile.vllm.venv,), folders=tuple(folders), disks=(folder, "state:/"), read=tuple(read))
