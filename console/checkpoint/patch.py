"""What the patch step does and leaves behind: the folder that vLLM must serve, and flags.

`plan_patch` is pure: facts and profile in, decision and overlay out. `planned` gives the outcome alone, so that a plan
can render the unit before anything was changed.
"""

from __future__ import annotations

import difflib
import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from console.checkpoint import hub
from console.checkpoint.card import ModelCard, effective_kv, read_card
from console.checkpoint.kv import KvDecision, KvRules, Policy, decide
from console.checkpoint.node_overlay import BACKUP
from console.checkpoint.overlay import FileEdit, OverlayPlan, overlay_path
from console.checkpoint.probe import known
from console.checkpoint.quant import Document, InvalidConfig, Target, edit, read_document
from console.checkpoint.question import CONFIGS, draft_folder
from console.checkpoint.version import parse_version, within
from console.profile.model import FlagValue

if TYPE_CHECKING:
    from console.deploy.step import Context
    from console.node.facts import Facts
    from console.profile.model import Profile

UNKNOWN_CAPABILITY = (0, 0)
_SPECULATIVE = ("speculative-config", "speculative_config")


@dataclass(frozen=True, slots=True)
class PatchOutcome:
    """`model_path`: absolute folder on the node that the unit serves (overlay or the plain download). `flags`: serve
    flags keyed like `profile.serve.flags` (no dashes); they override the profile's flag of the same name. `known` is
    False while the node holds no config.json to decide by (nothing downloaded yet)."""

    model_path: str
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    decision: KvDecision | None = None
    edits: tuple[FileEdit, ...] = ()
    known: bool = True
    drafts: tuple[str, ...] = ()
    """Overlays of draft models, which stand beside that of the model."""
    rewritten: Mapping[str, str] = field(default_factory=dict)
    """sha256 of each rewritten file that the server reads, by absolute path on the node: in the overlay of the model, in
    that of a draft, or in the download itself. Empty when nothing is rewritten."""

    @property
    def overlays(self) -> tuple[str, ...]:
        """Every overlay that the server will read, to be verified before a start."""
        return ((self.model_path,) if self.edits else ()) + self.drafts


@dataclass(frozen=True, slots=True)
class PatchPlan:
    """The outcome with everything that brings it about. `overlays`: of the model and of a draft model. `in_place`: edits of
    the download itself that the profile asks for and that have not been made yet."""

    outcome: PatchOutcome
    overlays: tuple[OverlayPlan, ...] = ()
    in_place: tuple[OverlayPlan, ...] = ()
    card: ModelCard | None = None
    warnings: tuple[str, ...] = ()


def planned(ctx: Context) -> PatchOutcome:
    """What the unit will serve, from facts and profile alone; of a model that is not there yet, by the configs that the hub
    gave with its list of files. A config.json that cannot be read is as good as none: it is fetched again."""
    found = ctx.found.get("patch")
    if isinstance(found, PatchOutcome):
        return found
    try:
        return plan_for(ctx).outcome
    except InvalidConfig:
        return PatchOutcome(ctx.facts.path(ctx.profile.model.folder.rstrip("/")), known=False)


def plan_for(ctx: Context, files: Mapping[str, bytes] | None = None) -> PatchPlan:
    """The plan of a run: its facts, what its vLLM was probed to take, the operator's own KV rules (`kv_rules` among the
    options). `files`: bytes of configs that were read beside the facts."""
    folder = ctx.facts.path(ctx.profile.model.folder.rstrip("/"))
    listed = ctx.facts.folders.get(folder)
    there = {entry.name for entry in listed.files} if listed else set()
    manifest = hub.known(ctx)
    told = {
        posixpath.join(folder, name): text.encode()
        for name, text in (manifest.configs if manifest else {}).items()
        if name not in there and posixpath.join(folder, name) not in ctx.facts.files
    }
    rules = ctx.options.get("kv_rules")
    return plan_patch(ctx.facts, ctx.profile, known(ctx), files={**told, **(files or {})}, rules=rules)


def plan_patch(
    facts: Facts,
    profile: Profile,
    backend_dtypes: tuple[str, ...] | None,
    *,
    files: Mapping[str, bytes] | None = None,
    rules: KvRules | None = None,
) -> PatchPlan:
    """The decision and what it takes. `files`: bytes of config files by absolute path, where the facts hold none."""
    folder = facts.path(profile.model.folder.rstrip("/"))
    documents = _documents(facts, folder, files or {})
    if not documents:
        return PatchPlan(PatchOutcome(folder, known=False))
    card = read_card(documents[0], documents[1] if len(documents) > 1 else None)
    capability = capability_of(facts) or UNKNOWN_CAPABILITY
    decision = _decide(card, capability, profile, backend_dtypes, rules)
    warnings = list(card.warnings)
    if capability == UNKNOWN_CAPABILITY:
        warnings.append("the GPUs' compute capability is unknown, so only vLLM's version and the files decide")
    flags: dict[str, FlagValue] = dict(decision.flags)
    edits = file_edits(documents, "bfloat16") if decision.action == "patch" else ()
    if decision.action == "patch" and not edits:
        warnings.append("the decision is to patch, and no file holds a scheme that is known; nothing is changed")
    own = _overlay(facts, profile, folder, edits) if edits else None
    draft = _draft(facts, profile, capability, backend_dtypes, files or {}, rules)
    plans = tuple(plan for plan in (own, draft) if plan is not None)
    rewritten = _rewritten(facts, profile, files or {}, plans)
    if profile.kv_cache.in_place:
        outcome = PatchOutcome(folder, flags, decision, rewritten=rewritten)
        return PatchPlan(outcome, (), tuple(replace(plan, path=plan.source) for plan in plans), card, tuple(warnings))
    if draft is not None:
        flags.update(_draft_flag(profile, draft.path))
    drafts = (draft.path,) if draft is not None else ()
    outcome = PatchOutcome(own.path if own else folder, flags, decision, edits, drafts=drafts, rewritten=rewritten)
    return PatchPlan(outcome, plans, (), card, tuple(warnings))


def file_edits(documents: tuple[Document, ...], target: Target) -> tuple[FileEdit, ...]:
    """The edits that bring the documents to `target`; unchanged documents have none."""
    found = []
    for document in documents:
        result = edit(document, target)
        if result.changed:
            found.append(FileEdit(document.name, document.raw, result.raw, result.changed))
    return tuple(found)


def capability_of(facts: Facts) -> tuple[int, int] | None:
    """The compute capability of the node's GPUs, the lowest where they differ; None when it is not known."""
    seen = [gpu.capability for gpu in facts.gpus.gpus if gpu.capability] if facts.gpus else []
    return min(seen) if seen else None


def edit_diff(change: FileEdit) -> str:
    """The edit as a unified diff of the lines it touches."""
    before = change.before.decode(errors="replace").splitlines()
    after = change.after.decode(errors="replace").splitlines()
    head = 0
    while head < min(len(before), len(after)) and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    start = max(0, head - 2)
    lines = difflib.unified_diff(
        [_clip(line) for line in before[start : len(before) - max(0, tail - 2)]],
        [_clip(line) for line in after[start : len(after) - max(0, tail - 2)]],
        change.name,
        change.name,
        lineterm="",
        n=2,
    )
    return "\n".join(_shift(line, start) for line in lines)


def _clip(line: str) -> str:
    return line if len(line) <= 200 else line[:199] + "…"


def _shift(line: str, start: int) -> str:
    """A hunk's line numbers in the whole file; the diff was made of a part of it."""
    match = re.match(r"@@ -(\d+)(.*) \+(\d+)(.*) @@$", line)
    if match is None:
        return line
    return f"@@ -{int(match[1]) + start}{match[2]} +{int(match[3]) + start}{match[4]} @@"


def _documents(facts: Facts, folder: str, files: Mapping[str, bytes]) -> tuple[Document, ...]:
    """config.json first, and hf_quant_config.json when it is there; empty without config.json."""
    found = []
    for name in CONFIGS:
        path = posixpath.join(folder, name)
        raw = files.get(path)
        if raw is None and path in facts.files:
            raw = facts.files[path].encode(errors="surrogateescape")
        if raw is not None:
            found.append(read_document(name, raw))
        elif name == "config.json":
            return ()
    return tuple(found)


def _decide(
    card: ModelCard,
    capability: tuple[int, int],
    profile: Profile,
    backend_dtypes: tuple[str, ...] | None,
    rules: KvRules | None,
) -> KvDecision:
    """The decision; a `kv-cache-dtype` that the profile sets itself is a policy of its own, and already a flag."""
    own = profile.serve.flags.get("kv-cache-dtype", profile.serve.flags.get("kv_cache_dtype"))
    policy: Policy = profile.kv_cache.policy
    if isinstance(own, str) and own != "auto":
        policy = "fp8" if own.startswith("fp8") else "bfloat16"
    context = profile.serve.flags.get("decode-context-parallel-size", 1)
    decision = decide(
        card,
        capability,
        profile.vllm.version,
        backend_dtypes,
        policy,
        tensor_parallel=profile.serve.tensor_parallel_size,
        context_parallel=context if isinstance(context, int) else 1,
        rules=rules,
    )
    if not isinstance(own, str) or own == "auto" or decision.action not in ("flag", "patch"):
        return decision
    version = parse_version(profile.vllm.version)
    beaten = card.method == "compressed-tensors" and within(version, ("<0.33",))
    if beaten and effective_kv(card, version.minor).dtype and policy == "bfloat16":
        return decision
    return replace(
        decision, action="none", flags={}, rule="profile-flag", reason=f"the profile sets --kv-cache-dtype {own} itself"
    )


def _overlay(facts: Facts, profile: Profile, folder: str, edits: tuple[FileEdit, ...]) -> OverlayPlan:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", posixpath.basename(folder)).strip(".") or "model"
    path = overlay_path(facts.paths.state, name, folder, profile.model.revision, edits)
    return OverlayPlan(path, folder, edits, profile.model.repo, profile.model.revision)


def _draft(
    facts: Facts,
    profile: Profile,
    capability: tuple[int, int],
    backend_dtypes: tuple[str, ...] | None,
    files: Mapping[str, bytes],
    rules: KvRules | None,
) -> OverlayPlan | None:
    """The overlay of a draft model for speculative decoding, which has a KV field of its own (DOMAIN A.1)."""
    asked = draft_folder(profile)
    folder = facts.path(asked) if asked else None
    documents = _documents(facts, folder, files) if folder else ()
    if folder is None or not documents:
        return None
    card = read_card(documents[0], documents[1] if len(documents) > 1 else None)
    if _decide(card, capability, profile, backend_dtypes, rules).action != "patch":
        return None
    edits = file_edits(documents, "bfloat16")
    return _overlay(facts, profile, folder, edits) if edits else None


def _rewritten(
    facts: Facts, profile: Profile, files: Mapping[str, bytes], plans: tuple[OverlayPlan, ...]
) -> dict[str, str]:
    """`PatchOutcome.rewritten`. What was edited in place before is known by the original that is kept beside it."""
    found: dict[str, str] = {}
    overlaid = set() if profile.kv_cache.in_place else {plan.source for plan in plans}
    for asked in (profile.model.folder.rstrip("/"), draft_folder(profile)):
        folder = facts.path(asked) if asked else ""
        listed = facts.folders.get(folder)
        names = {entry.name for entry in listed.files} if listed and folder not in overlaid else set()
        for document in _documents(facts, folder, files) if names else ():
            if document.name + BACKUP in names:
                found[posixpath.join(folder, document.name)] = hashlib.sha256(document.raw).hexdigest()
    for plan in plans:
        place = plan.source if profile.kv_cache.in_place else plan.path
        found.update({posixpath.join(place, edit.name): edit.sha_after for edit in plan.edits})
    return found


def _draft_flag(profile: Profile, path: str) -> dict[str, FlagValue]:
    for name in _SPECULATIVE:
        value: Any = profile.serve.flags.get(name)
        if isinstance(value, dict):
            return {name: {**value, "model": path}}
    return {}
