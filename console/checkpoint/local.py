"""`relaunch patch DIR` and `relaunch fit DIR`: the KV decision, the patch and the fit of a folder on this machine.

No node is needed. The same code that works on a node does the writing here (`node_overlay`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from console.checkpoint import node_overlay, node_shards
from console.checkpoint.card import ModelCard, read_card
from console.checkpoint.fit import Fit, Plan, estimate, fit_table
from console.checkpoint.kv import KvDecision, KvRules, decide
from console.checkpoint.overlay import FileEdit, OverlayPlan
from console.checkpoint.patch import edit_diff
from console.checkpoint.quant import Document, Edited, InvalidConfig, Target, edit, read_document
from console.checkpoint.question import CONFIGS
from console.checkpoint.shards import REPLICATED
from console.errors import Refused, RelaunchError, UsageError

Kv = Literal["bfloat16", "fp8", "auto"]

MISSION_CC = "12.0"
MISSION_VLLM = "0.16.0"
"""What `--kv auto` decides for when nothing else is said: the mission's GPU and vLLM. The report says so."""
MISSION_GPU = 97_887 << 20


@dataclass(frozen=True, slots=True)
class FileReport:
    """One JSON file: what changed in it, and its sha256 before and after."""

    path: str
    changed: bool
    fields: tuple[str, ...]
    sha256_before: str
    sha256_after: str
    diff: str = ""


@dataclass(frozen=True, slots=True)
class PatchReport:
    """What `relaunch patch` did, or would do."""

    decision: str
    reason: str
    files: tuple[FileReport, ...]
    warnings: tuple[str, ...]
    target: str | None = None
    """The folder to serve: the overlay, or the model folder itself."""
    written: bool = False
    alternatives: tuple[str, ...] = ()
    cost: str = ""
    reads: str | None = None
    """The file whose quantization config vLLM reads."""

    def __str__(self) -> str:
        lines = [f"{self.decision}: {self.reason}", *([self.cost] if self.cost else [])]
        for file in self.files:
            what = ", ".join(file.fields) if file.changed else "unchanged"
            lines.append(f"  {file.path}: {what}")
            if file.changed:
                lines.append(f"    sha256 {file.sha256_before} -> {file.sha256_after}")
        lines += [file.diff for file in self.files if file.diff and not self.written]
        if self.written:
            lines.append(f"serve {self.target}")
        elif any(file.changed for file in self.files):
            lines.append(f"nothing was written; it would go to {self.target}")
        lines += [f"or: {text}" for text in self.alternatives]
        lines += [f"note: {text}" for text in self.warnings]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The contract of `relaunch patch --json`."""
        return {
            "decision": self.decision,
            "reason": self.reason,
            "files": [
                {
                    "path": file.path,
                    "changed": file.changed,
                    "fields": list(file.fields),
                    "sha256_before": file.sha256_before,
                    "sha256_after": file.sha256_after,
                }
                for file in self.files
            ],
            "warnings": list(self.warnings),
            "folder": self.target,
            "written": self.written,
            "read_by_vllm": self.reads,
            "alternatives": list(self.alternatives),
            "cost": self.cost,
        }


@dataclass(frozen=True, slots=True)
class FitReport:
    """What `relaunch fit` found."""

    fit: Fit
    weights: int
    source: str
    warnings: tuple[str, ...] = field(default=())

    def rows(self) -> tuple[tuple[str, str], ...]:
        """The table per GPU."""
        return (("read from", self.source), *fit_table(self.fit))

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        lines = [f"{name.ljust(width)}  {value}" for name, value in rows]
        return "\n".join([*lines, *(f"note: {text}" for text in (*self.warnings, *self.fit.notes))])

    def to_json(self) -> dict[str, Any]:
        """Bytes and tokens; null is unknown."""
        fit = self.fit
        return {
            "loads": fit.loads,
            "reason": fit.why,
            "gpu_bytes": fit.gpu,
            "utilization": fit.utilization,
            "weights_bytes": round(fit.weights),
            "reserve_bytes": round(fit.reserve),
            "kv_bytes": round(fit.kv),
            "kv_dtype": fit.dtype,
            "bytes_per_token": round(fit.cost.per_token) if fit.cost else None,
            "tokens": fit.tokens,
            "max_model_len": fit.wanted,
            "longest_request": fit.longest,
            "requests_at_once": round(fit.requests, 3) if fit.requests is not None else None,
            "alternatives": [{"change": other.label, "tokens": other.tokens} for other in fit.alternatives],
            "warnings": [*self.warnings, *fit.notes],
        }


def parse_capability(text: str) -> tuple[int, int]:
    """`12.0` as (12, 0)."""
    match = re.fullmatch(r"(?:sm_?)?(\d+)\.(\d+)a?|sm_?(\d+)(\d)a?", text.strip().lower())
    if match is None:
        raise UsageError(f"{text!r} is no compute capability", "Write it like 12.0.")
    return (int(match[1]), int(match[2])) if match[1] else (int(match[3]), int(match[4]))


def patch_folder(
    folder: Path,
    kv: Kv = "auto",
    cc: str | None = None,
    vllm: str | None = None,
    overlay: Path | None = None,
    in_place: bool = False,
    dry_run: bool = False,
    restore: bool = False,
    rules: KvRules | None = None,
) -> PatchReport:
    """Decide and patch a local folder.

    `bfloat16` and `fp8` are edits on request; `auto` decides by `cc` and `vllm` (the mission's, where they are not
    given). The overlay stands beside the folder unless `overlay` says where. Raises `UsageError` for a folder without
    config.json, `InvalidConfig` for a broken file, `Refused` for a patch that would break what works.
    """
    folder = _model_folder(folder)
    if restore:
        return _restore(folder, overlay)
    documents, troubles = _documents(folder)
    card = read_card(documents[0], next((doc for doc in documents[1:] if doc.name == CONFIGS[1]), None))
    decision, warnings = _decide(card, kv, cc, vllm, rules)
    warnings += troubles
    if decision is not None and decision.action == "refuse" and (decision.forbids_patch or kv != "bfloat16"):
        raise Refused(decision.reason, decision.remedy)
    if decision is not None and decision.action == "refuse":
        warnings.append(decision.reason)
    target = _target(kv, decision)
    edited = [(document, edit(document, target) if target else Edited(document.raw, (), ())) for document in documents]
    edits = tuple(FileEdit(doc.name, doc.raw, done.raw, done.changed) for doc, done in edited if done.changed)
    warnings += [text for document in documents for text in document.warnings if text not in card.warnings]
    place, written = str(folder), False
    if edits:
        place = str(folder if in_place else overlay or folder.with_name(f"{folder.name}-kv-{target}"))
        written = not dry_run
        if written:
            _write(folder, Path(place), edits, in_place)
    return PatchReport(
        decision="patch" if edits else "none" if target or decision is None else decision.action,
        reason=_reason(kv, decision, bool(edits), target),
        files=tuple(_file_report(folder, document, done) for document, done in edited),
        warnings=(*card.warnings, *warnings),
        target=place,
        written=written,
        alternatives=decision.alternatives if decision else (),
        cost=decision.cost if decision else "",
        reads=card.read_from,
    )


def fit_folder(
    folder: Path,
    *,
    tensor_parallel: int = 8,
    context_parallel: int = 1,
    gpu_memory: int = MISSION_GPU,
    utilization: float | None = None,
    vllm: str = MISSION_VLLM,
    cc: str = MISSION_CC,
    kv: Kv = "auto",
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    rules: KvRules | None = None,
) -> FitReport:
    """The memory fit of a local folder; `gpu_memory` in bytes per GPU, as nvidia-smi shows it."""
    folder = _model_folder(folder)
    documents, _ = _documents(folder)
    card = read_card(documents[0], next((doc for doc in documents[1:] if doc.name == CONFIGS[1]), None))
    decision = decide(card, parse_capability(cc), vllm, None, kv, tensor_parallel=tensor_parallel, rules=rules)
    weights, replicated, source = _weights(folder)
    dtype = decision.dtype
    if kv != "auto":
        dtype = kv
    plan = Plan(
        tensor_parallel=tensor_parallel,
        vllm=vllm,
        kv_dtype=dtype,
        context_parallel=context_parallel,
        utilization=utilization,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
    )
    warnings = (decision.reason,) if decision.action == "refuse" else ()
    return FitReport(estimate(card, plan, gpu_memory, weights, replicated), weights, source, warnings)


def _model_folder(folder: Path) -> Path:
    folder = Path(os.path.abspath(folder.expanduser()))
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder", "Name the folder that holds the model's config.json.")
    return folder


def _documents(folder: Path) -> tuple[list[Document], list[str]]:
    """config.json, hf_quant_config.json, and those of folders in it with a KV field, where draft models stand; and what
    could not be read of the latter."""
    names = [name for name in CONFIGS if (folder / name).exists()]
    if CONFIGS[0] not in names:
        raise UsageError(f"{folder} has no config.json", "Name the folder that holds the model's config.json.")
    documents = [read_document(name, (folder / name).read_bytes()) for name in names]
    troubles = []
    for child in sorted(folder.iterdir()):
        for name in CONFIGS if child.is_dir() and not child.name.startswith(".") else ():
            path = child / name
            try:
                document = read_document(f"{child.name}/{name}", path.read_bytes()) if path.is_file() else None
            except InvalidConfig as error:
                troubles.append(f"{error.message}; left as it is")
                continue
            if document is not None and any(field.form != "none" for field in document.fields):
                documents.append(document)
    return documents, troubles


def _decide(
    card: ModelCard, kv: Kv, cc: str | None, vllm: str | None, rules: KvRules | None
) -> tuple[KvDecision | None, list[str]]:
    if kv != "auto" and (cc is None or vllm is None):
        return None, []
    warnings = []
    if cc is None or vllm is None:
        warnings.append(
            f"decided for compute capability {cc or MISSION_CC} and vLLM {vllm or MISSION_VLLM}; say --cc and --vllm"
        )
    capability = parse_capability(cc or MISSION_CC)
    return decide(card, capability, vllm or MISSION_VLLM, None, kv, rules=rules), warnings


def _target(kv: Kv, decision: KvDecision | None) -> Target | None:
    if kv != "auto":
        return kv
    return "bfloat16" if decision is not None and decision.action == "patch" else None


def _reason(kv: Kv, decision: KvDecision | None, changed: bool, target: Target | None) -> str:
    if kv == "auto" and decision is not None:
        return decision.reason
    if changed:
        return f"{target} KV was asked for; {'the scheme is set to null' if target == 'bfloat16' else 'the scheme is set to FP8'}."
    return f"{target} KV was asked for, and the files already say so." if target else "Nothing to do."


def _file_report(folder: Path, document: Document, done: Edited) -> FileReport:
    diff = edit_diff(FileEdit(document.name, document.raw, done.raw, done.changed)) if done.changed else ""
    return FileReport(
        path=document.name,
        changed=bool(done.changed),
        fields=tuple(field.path for field in done.changed),
        sha256_before=hashlib.sha256(document.raw).hexdigest(),
        sha256_after=hashlib.sha256(done.raw).hexdigest(),
        diff=diff,
    )


def _write(folder: Path, place: Path, edits: tuple[FileEdit, ...], in_place: bool) -> None:
    if not in_place and place.exists() and not Path(f"{place}.json").exists():
        raise UsageError(f"{place} is there and is no overlay of Relaunch", "Name another place with --overlay.")
    question = OverlayPlan(str(place), str(folder), edits).question("edit" if in_place else "build")
    question["state"] = str(place.parent)
    try:
        answer = node_overlay.answer(question)
    except OSError as error:
        raise RelaunchError(
            f"cannot write {error.filename or place}: {error.strerror}",
            "Name a place that you may write to with --overlay.",
        ) from error
    if answer["problems"]:
        raise RelaunchError("; ".join(answer["problems"]), "See whether something else writes to the folder.")


def _restore(folder: Path, overlay: Path | None) -> PatchReport:
    """Bring the originals back, or remove the overlay."""
    place = overlay or folder.with_name(f"{folder.name}-kv-bfloat16")
    if overlay is None and any(_backups(folder)):
        before = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in _backups(folder)}
        answer = node_overlay.answer({"op": "restore", "source": str(folder)})
        files = tuple(
            FileReport(name, True, (), before.get(name, ""), digest)
            for name, digest in sorted(answer["restored"].items())
        )
        return PatchReport("restore", "the originals stand in their place again", files, (), str(folder), True)
    manifest = Path(f"{place}.json")
    if manifest.exists():
        data = json.loads(manifest.read_text(encoding="utf-8"))
        node_overlay.answer({"op": "remove", "overlay": str(place)})
        source = Path(data["source"])
        files = tuple(
            FileReport(name, True, (), entry["after"], hashlib.sha256((source / name).read_bytes()).hexdigest())
            for name, entry in sorted(data["files"].items())
        )
        return PatchReport(
            "restore", f"the overlay {place} is removed; the download was never changed", files, (), str(source), True
        )
    return PatchReport("restore", "nothing was patched here", (), (), str(folder), False)


def _backups(folder: Path) -> Iterator[str]:
    """Files with a kept original, by their own name."""
    for path in sorted(folder.rglob(f"*{node_overlay.BACKUP}")):
        yield str(path.relative_to(folder)).removesuffix(node_overlay.BACKUP)


def _weights(folder: Path) -> tuple[int, int | None, str]:
    """Bytes of tensors, of replicated ones, and where the figures are from."""
    found = node_shards.weigh(str(folder), list(REPLICATED))
    if found["total"]:
        return found["total"], found["replicated"], "safetensors headers"
    index = folder / node_shards.INDEX
    try:
        total = json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"]
        return int(total), None, node_shards.INDEX
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{folder} holds neither safetensors files nor {node_shards.INDEX}", "Download the index at least."
        ) from None
