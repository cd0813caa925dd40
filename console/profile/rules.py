"""What makes a profile wrong although every field has its type: shapes, dangers and contradictions, as sentences.

`problems` looks at data that may be incomplete and yields (location, message) for each thing wrong; it never raises. The
decision per field, for text that could hurt on its way to a node:

* refused: control characters anywhere; `..` in a folder; a leading dash where a program would take it for an option;
  names (unit, user, host, variable, limit, flag, repository, version, venv and environment file) outside a plain alphabet;
  a secret anywhere.
* passed through intact: everything else, above all the texts of flags and of the environment, the served name, prompts
  and the model's folder with spaces, quotes, `$`, `%`, backslashes or any script. No value ever reaches a shell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from console.profile.yamlio import Loc, nearest
from console.text import clean

Finding = tuple[Loc, str]

STAGES = (
    "model_download", "argument_parsing", "device_init", "api_server_start", "config_resolved", "engine_init", "nccl_init", "model_loading",
    "weights_loading", "weights_loaded", "torch_compile", "memory_profiling", "kv_cache_ready", "cuda_graph_capture",
    "cuda_graph_done", "engine_ready", "http_starting", "ready",
)  # fmt: skip
"""Stages of a starting vLLM that may have a stall limit."""

OWN_VARIABLES = ("PATH", "HF_HUB_OFFLINE", "SPT_NOENV", "VLLM_PROCESS_NAME_PREFIX")
"""Environment that Relaunch sets itself, since verification depends on it."""

_OWN_FLAGS = {
    "model": "model.folder", "model-tag": "model.folder", "host": "service.host", "port": "service.port",
    "tensor-parallel-size": "serve.tensor_parallel_size", "tp": "serve.tensor_parallel_size",
    "served-model-name": "model.served_name",
}  # fmt: skip
_SECRET_FLAGS = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}
_REFUSED_FLAGS = {
    "uds": "the ready check needs the port",
    "config": "a file on the node could override what the profile says",
    "headless": "one node serves; Relaunch does not start headless ranks",
    "grpc": "the ready check and the load test speak HTTP",
}
_KV_POLICIES = {"auto": "auto", "bfloat16": "bfloat16", "fp8": "fp8", "fp8_e4m3": "fp8"}

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.-]{0,190}(?:@[A-Za-z0-9:_.-]{1,60})?\.service\Z")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}\Z")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})\Z|[0-9A-Fa-f:]{2,39}\Z")
_VERSION = re.compile(
    r"[0-9]+(?:\.[0-9]+){1,3}(?:(?:a|b|rc)[0-9]+)?(?:\.(?:dev|post)[0-9]+)?(?:\+[A-Za-z0-9.]{1,40})?\Z"
)
_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}\Z")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_.+@/-]+\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FLAG = re.compile(r"[A-Za-z][A-Za-z0-9-]*(?:\.[A-Za-z][A-Za-z0-9_.-]*)?\Z")
_URL = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+(?:/[^\s\"'\\]*)?\Z")
_LIMIT = re.compile(
    r"Limit(?:CPU|FSIZE|DATA|STACK|CORE|RSS|NOFILE|AS|NPROC|MEMLOCK|LOCKS|SIGPENDING|MSGQUEUE|NICE|RTPRIO|RTTIME)\Z"
    r"|(?:TasksMax|MemoryMax|MemoryHigh|OOMScoreAdjust|CPUWeight|IOWeight|Nice)\Z"
)
_LIMIT_VALUE = re.compile(r"(?:infinity|-?[0-9]+[KMGT%]?)(?::(?:infinity|[0-9]+[KMGT]?))?\Z")
SECRET_NAME = re.compile(r"(?:^|_)(?:TOKEN|APIKEY|API_KEY|ACCESS_KEY|PRIVATE_KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS)\Z")
_SECRET_VALUE = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|\b(?:ghp|gho|ghs)_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w-]{16,}|\bnvapi-[\w-]{16,}|\bAKIA[0-9A-Z]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY|(?i:\bbearer )[\w.~+/=-]{16,}"
)
_NEVER_STOPPED = re.compile(
    r"(?:ssh|sshd|dbus|dbus-broker|NetworkManager|nvidia-persistenced|nvidia-fabricmanager)\.service\Z|systemd-"
)


def problems(data: Any) -> Iterator[Finding]:
    """Everything wrong in a profile's data, whose fields may be absent where they could not be read."""
    if not isinstance(data, Mapping):
        return
    yield from _texts(data, ())
    for part, check in _PARTS.items():
        value = data.get(part)
        if value is not None:
            yield from check(value, data)
    if isinstance(data.get("name"), str) and not _NAME.match(data["name"]):
        yield ("name",), "write lower-case letters, digits, dots and dashes, at most 64"


def _texts(value: Any, loc: Loc) -> Iterator[Finding]:
    """Secrets and control characters, wherever text stands."""
    if isinstance(value, str):
        if _SECRET_VALUE.search(value):
            yield loc, "looks like a secret; a profile is no place for one: name a file in service.environment_file"
        if (
            loc[:1] != ("ready",)
            and not _inside_json(loc)
            and clean(value) != value.replace("\t", "").replace("\n", "")
        ):
            yield loc, "holds control or invisible characters; remove them (a newline never survives a command line)"
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _texts(child, (*loc, key))
    elif isinstance(value, (list, tuple)):
        for index, child in enumerate(value):
            yield from _texts(child, (*loc, index))


def _inside_json(loc: Loc) -> bool:
    # below a flag's own value only JSON can stand, and JSON escapes what a command line cannot carry; a list of text is
    # one level deep with a number last
    return loc[:2] == ("serve", "flags") and (len(loc) > 4 or (len(loc) == 4 and isinstance(loc[3], str)))


def folder_problem(path: str, *, plain: bool = False) -> str | None:
    """What is wrong with a folder on the node, or None. `plain`: only an alphabet that systemd takes unquoted."""
    if not path.startswith(("/", "~/")):
        return "write an absolute folder, or one that begins with ~/"
    parts = path.split("/")[1:]
    if any(part in ("..", ".") for part in parts):
        return "write the folder without . and .. parts"
    if "" in parts[:-1] or len(path) > 1024 or any(len(part.encode()) > 255 for part in parts):
        return "write one slash between names, and names that a file system can hold"
    if not [part for part in parts if part]:
        return "the root and the home folder themselves are not allowed"
    if plain and not _PLAIN_PATH.match(path.removeprefix("~")):
        return "use letters, digits and ._+@- only; the path stands where programs and systemd take no quotes"
    return None


def _folder(data: Mapping[str, Any], key: str, loc: Loc, *, plain: bool = False) -> Iterator[Finding]:
    if isinstance(data.get(key), str) and (wrong := folder_problem(data[key], plain=plain)):
        yield (*loc, key), wrong


def _shape(part: Any, key: str, loc: Loc, pattern: re.Pattern[str], message: str) -> Iterator[Finding]:
    value = part.get(key)
    if isinstance(value, str) and not pattern.match(value):
        yield (*loc, key), message


def _model(part: Any, data: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _shape(part, "repo", ("model",), _REPO, "write owner/name, as the hub does")
    revision = part.get("revision")
    if isinstance(revision, str) and not _COMMIT.match(revision):
        yield (
            ("model", "revision"),
            ("write the full commit, 40 digits of 0-9a-f; a branch or a short hash can mean other files tomorrow"),
        )
    yield from _folder(part, "folder", ("model",))
    yield from _shape(part, "endpoint", ("model",), _URL, "write an http(s) address without user name or password")
    name = part.get("served_name")
    if isinstance(name, str) and (not name.strip() or name != name.strip() or len(name) > 256):
        yield ("model", "served_name"), "write a name of 1 to 256 characters without spaces around it"


def _engine(part: Any, data: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _shape(
        part, "version", ("vllm",), _VERSION, "write one exact version, e.g. 0.16.0; no range and no operator"
    )
    yield from _folder(part, "venv", ("vllm",), plain=True)
    python = part.get("python")
    if isinstance(python, str) and not _PROGRAM.match(python) and folder_problem(python, plain=True):
        yield ("vllm", "python"), "write a program's name, e.g. python3.12, or its absolute path"
    index = part.get("index_url")
    if isinstance(index, str) and not _URL.match(index) and folder_problem(index, plain=True):
        yield ("vllm", "index_url"), "write an http(s) address without user name or password, or an absolute folder"
    for position, package in enumerate(part.get("packages") or ()):
        if isinstance(package, str) and not re.match(r"[A-Za-z0-9]", package):
            yield ("vllm", "packages", position), "write a requirement, e.g. blobfile>=3; an option is not allowed here"
    model = data.get("model")
    folder, venv = (model or {}).get("folder"), part.get("venv")
    if isinstance(folder, str) and isinstance(venv, str) and (_within(folder, venv) or _within(venv, folder)):
        yield ("vllm", "venv"), "the environment and the model's folder must not lie in one another"


def _within(inner: str, outer: str) -> bool:
    return (inner.rstrip("/") + "/").startswith(outer.rstrip("/") + "/")


def _serve(part: Any, data: Mapping[str, Any]) -> Iterator[Finding]:
    flags = part.get("flags")
    if not isinstance(flags, Mapping):
        return
    seen: dict[str, str] = {}
    for flag, value in flags.items():
        loc: Loc = ("serve", "flags", flag)
        if wrong := _flag_problem(flag, value):
            yield loc, wrong
            continue
        base = flag.removeprefix("no-")
        if base in seen:
            yield loc, f"contradicts or repeats {seen[base]}"
        seen[base] = flag
        if isinstance(value, list) and not value:
            yield loc, "an empty list; leave the flag out"
        if isinstance(value, list) and any(isinstance(item, str) and item.startswith("-") for item in value):
            yield loc, "an item with a leading dash would be taken for another flag"


def _flag_problem(flag: str, value: Any) -> str | None:
    bare = flag.lstrip("-")
    normal = bare.replace("_", "-") if "." not in bare else bare
    if normal in _OWN_FLAGS:
        return f"is not set by hand; say it in {_OWN_FLAGS[normal]}"
    if normal in _SECRET_FLAGS:
        return f"is a secret; put {_SECRET_FLAGS[normal]} into the file named by service.environment_file"
    if normal in _REFUSED_FLAGS:
        return f"is not allowed: {_REFUSED_FLAGS[normal]}"
    if flag != normal:
        return f"write {normal}" if _FLAG.match(normal) else "write a flag's name, without dashes before it"
    if not _FLAG.match(flag):
        return "write a flag's long name: letters, digits and dashes"
    if normal == "kv-cache-dtype" and isinstance(value, str) and value in _KV_POLICIES:
        return f"is decided by Relaunch; say kv_cache: {{policy: {_KV_POLICIES[value]}}}"
    return None


def _environment(part: Any, data: Mapping[str, Any]) -> Iterator[Finding]:
    for name in part:
        loc: Loc = ("environment", name)
        if not _VARIABLE.match(name):
            yield loc, "write a variable's name: letters, digits and underscores"
        elif name in OWN_VARIABLES:
            hint = "; say CUDA_HOME, and its bin folder joins PATH" if name == "PATH" else ""
            yield loc, f"is set by Relaunch itself{hint}"
        elif SECRET_NAME.search(name):
            yield loc, "is a secret by its name; put it into the file named by service.environment_file"


def _service(part: Any, data: Mapping[str, Any]) -> Iterator[Finding]:
    here: Loc = ("service",)
    yield from _shape(
        part, "unit", here, _UNIT, "write a unit's name with letters, digits and :_.- that ends in .service"
    )
    if isinstance(part.get("unit"), str) and part["unit"].startswith("relaunch-"):
        yield (*here, "unit"), "names that begin with relaunch- are those of Relaunch's own jobs"
    yield from _shape(part, "user", here, _USER, "write an account's name")
    yield from _shape(part, "host", here, _HOST, "write an address or a host name")
    yield from _folder(part, "environment_file", here, plain=True)
    if str(part.get("environment_file") or "").startswith("~"):
        yield (*here, "environment_file"), "write an absolute path; systemd knows no ~"
    limits = part.get("limits")
    for name, value in limits.items() if isinstance(limits, Mapping) else ():
        if not _LIMIT.match(name):
            yield (
                (*here, "limits", name),
                "is not a limit of systemd; e.g. LimitMEMLOCK, LimitNOFILE, TasksMax, OOMScoreAdjust",
            )
        elif isinstance(value, str) and not _LIMIT_VALUE.match(value):
            yield (*here, "limits", name), f"write a number or infinity, not {value!r}"


def _replaces(part: Any, data: Mapping[str, Any]) -> Iterator[Finding]:
    own = (data.get("service") or {}).get("unit") if isinstance(data.get("service"), Mapping) else None
    for index, unit in enumerate(part):
        loc: Loc = ("replaces", index)
        if not isinstance(unit, str):
            continue
        if not _UNIT.match(unit):
            yield loc, "write a unit's name that ends in .service"
        elif unit == own:
            yield loc, "is the profile's own unit; it is restarted when it must be"
        elif _NEVER_STOPPED.match(unit):
            yield loc, "is a service that the node itself needs; Relaunch does not stop it"
        elif unit in part[:index]:
            yield loc, "stands twice"


def _space(part: Any, data: Mapping[str, Any]) -> Iterator[Finding]:
    kept = [
        value
        for section, key in (("model", "folder"), ("vllm", "venv"))
        if isinstance(data.get(section), Mapping) and isinstance(value := data[section].get(key), str)
    ]
    for index, folder in enumerate(part.get("may_remove") or ()):
        loc: Loc = ("space", "may_remove", index)
        if not isinstance(folder, str):
            continue
        wrong = folder_problem(folder)
        if wrong:
            yield loc, wrong
        elif not folder.startswith("~/") and len([name for name in folder.split("/") if name]) < 2:
            yield loc, "a folder directly under the root is never removed; name the one inside it"
        elif any(_within(path, folder) or _within(folder, path) for path in kept):
            yield loc, "holds, or lies in, a folder that this profile needs"


def _ready(part: Any, data: Mapping[str, Any]) -> Iterator[Finding]:
    stalls = part.get("stalls")
    for stage, seconds in stalls.items() if isinstance(stalls, Mapping) else ():
        if stage not in STAGES:
            near = nearest(stage, STAGES)
            yield ("ready", "stalls", stage), f"unknown stage; {f'did you mean {near}?' if near else ', '.join(STAGES)}"
        elif isinstance(seconds, (int, float)) and seconds <= 0:
            yield ("ready", "stalls", stage), "write seconds, more than 0"
    for index, prompt in enumerate(part.get("prompts") or ()):
        if isinstance(prompt, Mapping):
            for key in ("prompt", "expect"):
                if isinstance(prompt.get(key), str) and not prompt[key].strip():
                    yield ("ready", "prompts", index, key), "is empty; any answer, or none, would pass"


def _throughput(part: Any, data: Mapping[str, Any]) -> Iterator[Finding]:
    points = [point for point in part.get("points") or () if isinstance(point, Mapping)]
    longest = _max_model_len(data)
    seen: set[tuple[Any, ...]] = set()
    for index, point in enumerate(part.get("points") or ()):
        if not isinstance(point, Mapping):
            continue
        loc: Loc = ("throughput", "points", index)
        wide, count = point.get("concurrency"), point.get("prompts")
        if isinstance(wide, int) and isinstance(count, int) and count < wide:
            yield (*loc, "prompts"), f"{count} prompts never reach a concurrency of {wide}; write at least {wide}"
        lengths = (point.get("input_tokens", 1024), point.get("output_tokens", 256))
        if longest is not None and all(isinstance(n, int) for n in lengths) and sum(lengths) > longest:
            yield loc, f"{sum(lengths):,} tokens do not fit max-model-len {longest:,}"
        if (wide, *lengths) in seen:
            yield loc, "stands twice"
        seen.add((wide, *lengths))
    for index, gate in enumerate(part.get("gates") or ()):
        if isinstance(gate, Mapping):
            yield from _gate(gate, ("throughput", "gates", index), {point.get("concurrency") for point in points})


def _gate(gate: Mapping[str, Any], loc: Loc, measured: set[Any]) -> Iterator[Finding]:
    wide = gate.get("concurrency")
    if wide is not None and wide not in measured:
        known = ", ".join(str(n) for n in sorted(n for n in measured if isinstance(n, int))) or "none"
        yield (*loc, "concurrency"), f"no load point has concurrency {wide}; measured: {known}"
    bounds = {key: value for key, value in gate.items() if key != "concurrency" and value is not None}
    if not bounds:
        yield loc, "has no bound, so it can never fail; write min_output_tokens_per_s or another"
    for key, value in bounds.items():
        top = 100 if key == "tolerance_percent" else None
        if isinstance(value, (int, float)) and (value < 0 or (value == 0 and top is None) or (top and value > top)):
            yield (*loc, key), "write a percentage from 0 to 100" if top else "write a number above 0"


def _max_model_len(data: Mapping[str, Any]) -> int | None:
    serve = data.get("serve")
    flags = serve.get("flags") if isinstance(serve, Mapping) else None
    value = flags.get("max-model-len") if isinstance(flags, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


_PARTS: dict[str, Callable[[Any, Mapping[str, Any]], Iterator[Finding]]] = {
    "model": _model, "vllm": _engine, "serve": _serve, "environment": _environment, "service": _service,
    "replaces": _replaces, "space": _space, "ready": _ready, "throughput": _throughput,
}  # fmt: skip
