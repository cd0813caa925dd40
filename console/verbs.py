"""The typed registry of everything an operator can do; keys, palette, the command line and scripts all use it.

Data only, and cheap to import: what a verb does stands in `console.headless` and in the screens. A verb that mutates the
node says so here; a destructive one has a capital key and asks first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Arg:
    """One argument of a verb: a positional when `name` has no dashes. `extra` goes to argparse as it is."""

    name: str
    help: str
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing to do. `needs` says what must be known first; `script` names the script that a verb stands for."""

    name: str
    help: str
    key: str = ""
    needs: Literal["", "node", "node+profile"] = ""
    mutates: bool = False
    destructive: bool = False
    asks: bool = False
    """Asked about on a terminal whatever the node is; a destructive verb else only where the node is marked production."""
    script: str = ""
    args: tuple[Arg, ...] = ()


def _flag(name: str, text: str) -> Arg:
    return Arg(name, text, MappingProxyType({"action": "store_true"}))


def _number(name: str, text: str, default: int) -> Arg:
    return Arg(name, f"{text} (default {default})", MappingProxyType({"type": int, "default": default}))


def _value(name: str, text: str, metavar: str, default: str | None = None) -> Arg:
    return Arg(name, text, MappingProxyType({"metavar": metavar, "default": default}))


def _optional(name: str, text: str, metavar: str, default: str | None) -> Arg:
    return Arg(name, text, MappingProxyType({"nargs": "?", "metavar": metavar, "default": default}))


def _choice(name: str, text: str, default: str, choices: tuple[str, ...]) -> Arg:
    return Arg(name, text, MappingProxyType({"choices": choices, "default": default}))


_KV = ("auto", "bfloat16", "fp8")

VERBS: tuple[Verb, ...] = (
    Verb("redeploy", "the whole job: from the profile to a serving, measured model", "D", "node+profile", True, True,
         script="redeploy"),
    Verb("prepare", "everything that needs no downtime: environment, download, patch", "", "node+profile", True,
         script="prepare"),
    Verb("plan", "what a redeploy would change: steps, unit, flags, environment, files", "p", "node+profile"),
    Verb("preflight", "would it work? looks at everything and changes nothing", "", "node+profile", script="preflight"),
    Verb("resume", "take up the last unfinished run of this node", "", "node+profile", True),
    Verb("rollback", "back to the release before, or to the one named", "B", "node+profile", True, True, script="rollback",
         args=(_optional("release", "release number; the one before when absent", "RELEASE", default=""),)),
    Verb("stop", "end what serves, and prove that it is gone; nothing serves afterwards", "X", "node+profile", True, True,
         asks=True, script="stop"),
    Verb("bench", "measure what serves now, against the profile's gates", "t", "node+profile", True, script="bench"),
    Verb("status", "what the node is, what serves there, and since when", "s", "node+profile"),
    Verb("gpus", "memory, utilisation, power, temperature and processes of each GPU", "g", "node",
         args=(_flag("--follow", "a sample a second until interrupted"),)),
    Verb("logs", "the log of the service, live or as far as it goes", "l", "node+profile",
         args=(_optional("file", "a log file on this machine instead of a node's", "FILE", default=None),
               _value("--filter", "what to show: `@preset`, words, !words, /expressions/", "F"),
               Arg("--unit", "another unit than the profile's"), _number("--lines", "how many lines back to begin", 200),
               _flag("--follow", "go on until interrupted"))),
    Verb("unlock", "remove the lock of a run that is gone; shows whose it is", "", "node+profile", True, True),
    Verb("runs", "the history of runs", "r", args=(_number("--limit", "how many", 20),)),
    Verb("report", "one run as a self-contained page: checklist, cause, log, GPU memory, load test, versions",
         args=(Arg("run", "run number, e.g. 0142"), _value("--out", "where to write it (default: relaunch-RUN.html)", "FILE"))),
    Verb("audit", "who changed what on the node, and what came of it", "", "node", args=(_number("--limit", "how many", 50),)),
    Verb("show", "replay one run", args=(Arg("run", "run number, e.g. 0142"),)),
    Verb("diagnose", "the first cause of any vLLM or SGLang log; no node needed", "c",
         args=(_optional("file", "a log file; - or nothing is stdin", "FILE", default="-"),
               _value("--unit", "with --node: the journal of this unit instead of a file", "U"),
               _value("--rules", "failures, noise and stages of your own, before ours", "YAML"))),
    Verb("catalogue", "check a failure catalogue of your own: every problem as file:line:col",
         args=(Arg("what", "", MappingProxyType({"choices": ("check",)})), Arg("file", "a YAML file of rules"))),
    Verb("patch", "the KV decision and patch of a local model folder",
         args=(Arg("folder", "a model folder"), _choice("--kv", "what the cache shall be (default auto)", "auto", _KV),
               _value("--cc", "compute capability, e.g. 12.0", "CC"), _value("--vllm", "vLLM version", "V"),
               _value("--overlay", "write the overlay there", "DIR"),
               _flag("--in-place", "edit the files themselves, with a backup"),
               _flag("--restore", "bring back what stood there before"))),
    Verb("fit", "will a local model folder fit, and with how much context",
         args=(Arg("folder", "a model folder"), _choice("--kv", "what the cache shall be (default auto)", "auto", _KV),
               _value("--cc", "compute capability", "CC", default="12.0"),
               _value("--vllm", "vLLM version", "V", default="0.16.0"),
               _number("--tp", "tensor-parallel size", 8), _number("--dcp", "decode context parallel size", 1),
               Arg("--gpu-gib", "memory of one GPU (default 95.6)",
                   MappingProxyType({"type": float, "default": 97887 / 1024})),
               Arg("--utilization", "gpu-memory-utilization", MappingProxyType({"type": float})),
               Arg("--max-model-len", "tokens of one request", MappingProxyType({"type": int})))),
    Verb("profile", "check, list or show profiles",
         args=(Arg("what", "", MappingProxyType({"choices": ("check", "list", "show")})),
               Arg("names", "files to check, or the profile to show", MappingProxyType({"nargs": "*"})))),
    Verb("rehearsal", "the practice node of this machine: status, reset, stop",
         args=(Arg("what", "", MappingProxyType({"choices": ("status", "reset", "stop")})),)),
)  # fmt: skip


def verb(name: str) -> Verb:
    """The verb called `name`. Raises KeyError."""
    return next(item for item in VERBS if item.name == name)
