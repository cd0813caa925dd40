"""The systemd unit of a deployment, rendered from structured data alone, and what changes against the installed one.

The text is deterministic: the same profile, paths and patch outcome give the same bytes, so that "installed text equals
rendered text" is the whole check. Why each setting is as it is: vLLM has no sd_notify, so Type=exec makes a failed exec
visible and readiness is probed from outside; a SIGKILLed parent leaves orphans that hold GPU memory, SIGTERM under load may
hang and SIGTERM while loading is swallowed, so systemd ends the whole cgroup, by force after `stop_seconds`; a wrong
command line exits with 2 and must not be repeated with eight GPU initialisations every half minute.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from console.deploy.unitfile import UnitFile, parse_unit
from console.node.systemd import environment_entry, escape_setting, exec_line
from console.profile.rules import SECRET_NAME
from console.text import MASK, clean

if TYPE_CHECKING:
    from console.checkpoint.patch import PatchOutcome
    from console.node.facts import Facts
    from console.profile.model import FlagValue, Profile

HEADER = "# Written by Relaunch"
RESTART_SECONDS = 30
READY_SECONDS = 3600
"""VLLM_ENGINE_READY_TIMEOUT_S unless the profile says otherwise: a cold load of 590 GB takes 15 minutes and more."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def serve_argv(profile: Profile, facts: Facts, outcome: PatchOutcome) -> tuple[str, ...]:
    """The command line of the server. The outcome's flags override the profile's; flags stand in alphabetical order."""
    flags = {**profile.serve.flags, **outcome.flags}
    return (
        f"{facts.path(profile.vllm.venv).rstrip('/')}/bin/vllm",
        "serve",
        outcome.model_path,
        *_option("served-model-name", profile.model.served_name),
        *_option("host", profile.service.host),
        *_option("port", profile.service.port),
        *_option("tensor-parallel-size", profile.serve.tensor_parallel_size),
        *(word for name in sorted(flags) for word in _option(name, flags[name])),
    )


def _option(name: str, value: FlagValue) -> tuple[str, ...]:
    if value is True:
        return (f"--{name}",)
    if value is False:
        return (f"--no-{name}",)
    if isinstance(value, list):
        return (f"--{name}", *value)
    # ASCII JSON: no newline, no character that a terminal or a journal could take for something else
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else str(value)
    # argparse takes a value with a leading dash for an option, and vLLM's own parser one with a dot in it for a JSON key
    return (f"--{name}={text}",) if text.startswith("-") or not text else (f"--{name}", text)


def service_environment(profile: Profile, facts: Facts) -> dict[str, str]:
    """Every variable that the unit sets, by name, sorted; secrets are never among them."""
    own = {name: variable.value for name, variable in profile.environment.items()}
    cuda = (f"{own['CUDA_HOME'].rstrip('/')}/bin",) if own.get("CUDA_HOME") else ()
    defaults = {"NCCL_DEBUG": "WARN", "VLLM_ENGINE_READY_TIMEOUT_S": str(READY_SECONDS)}
    fixed = {
        "PATH": ":".join((f"{facts.path(profile.vllm.venv).rstrip('/')}/bin", *cuda, _SYSTEM_PATH)),
        "HF_HUB_OFFLINE": "1",  # the pinned files are on disk; a look at the hub could only change what is served
        "PYTHONUNBUFFERED": "1",  # log lines when they happen
        "NO_COLOR": "1",
        # workers blank their environment and titles when they rename themselves; these two keep them identifiable
        "SPT_NOENV": "1",
        "VLLM_PROCESS_NAME_PREFIX": profile.service.unit.removesuffix(".service"),
    }
    return dict(sorted({**defaults, **own, **fixed}.items()))


def unit_text(profile: Profile, facts: Facts, outcome: PatchOutcome) -> str:
    """The whole unit file. Raises `UsageError` for a value that systemd cannot carry."""
    blocks = (
        (
            f"{HEADER} from the profile {escape_setting(profile.name)}; edit the profile, this file is replaced at the next run.",
        ),
        ("[Unit]", *_unit_section(profile, facts)),
        ("[Service]", *_service_section(profile, facts, outcome)),
        ("[Install]", "WantedBy=multi-user.target"),
    )
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def _unit_section(profile: Profile, facts: Facts) -> Iterator[str]:
    name = " ".join(profile.model.served_name.split()).rstrip("\\")
    yield f"Description={escape_setting(f'vLLM {profile.vllm.version} serving {name}')}"
    yield "Wants=network-online.target"
    yield "After=network-online.target nvidia-persistenced.service"
    mounts = [_mount(facts.path(path).rstrip("/")) for path in (profile.model.folder, profile.vllm.venv)]
    if any(mounts):
        yield f"RequiresMountsFor={' '.join(path for path in mounts if path)}"
    if profile.replaces:
        # one model per set of GPUs: starting either stops the other
        yield f"Conflicts={' '.join(sorted(profile.replaces))}"
    yield "StartLimitIntervalSec=900"
    yield "StartLimitBurst=3"


def _mount(path: str) -> str:
    """A path for RequiresMountsFor=, which keeps backslashes as they are; empty where it cannot be written there."""
    if "\\" in path or ('"' in path and "'" in path) or clean(path) != path or "\n" in path:
        return ""
    mark = "'" if '"' in path else '"' if set(path) & set(" '") else ""
    return mark + path.replace("%", "%%") + mark


def _service_section(profile: Profile, facts: Facts, outcome: PatchOutcome) -> Iterator[str]:
    service = profile.service
    yield "Type=exec"
    yield f"User={escape_setting(service.user)}"
    yield f"ExecStart={exec_line(serve_argv(profile, facts, outcome))}"
    for name, value in service_environment(profile, facts).items():
        yield f"Environment={environment_entry(name, value)}"
    if service.environment_file:
        yield f"EnvironmentFile={escape_setting(service.environment_file)}"
    yield "KillMode=control-group"
    yield "KillSignal=SIGTERM"
    yield "SendSIGKILL=yes"
    yield f"TimeoutStopSec={service.stop_seconds}"
    yield "Restart=on-failure"
    yield f"RestartSec={RESTART_SECONDS}"
    yield "RestartPreventExitStatus=2"
    # vLLM also exits with 0 when its engine or a worker was killed; systemctl stop never restarts
    yield "RestartForceExitStatus=0"
    for name, value in sorted(service.limits.items()):
        yield f"{escape_setting(name)}={escape_setting(value)}"


def unit_diff(old: str | None, new: str) -> str:
    """What changes, as a unified diff; empty when nothing does. `old` is None where no unit is installed."""
    if old == new:
        return ""
    before, after = ((text or "").removesuffix("\n").split("\n") for text in (old, new))
    return "\n".join(difflib.unified_diff(before if old else [], after, "installed", "rendered", lineterm=""))


def environment_changes(old: str | None, new: str) -> tuple[str, ...]:
    """One line per variable that is added (`+`), removed (`-`) or changed (`~`) between two unit texts."""
    return _changes(parse_unit(old or "").environment, parse_unit(new).environment)


def flag_changes(old: str | None, new: str) -> tuple[str, ...]:
    """One line per flag of the command line that is added, removed or changed between two unit texts."""
    return _changes(unit_flags(parse_unit(old or "")), unit_flags(parse_unit(new)))


def unit_flags(unit: UnitFile) -> dict[str, str]:
    """Flags of a unit's command line, each with its values as one text; the program is `program`, what stands before the
    first flag is `arguments`."""
    flags: dict[str, str] = {"program": unit.argv[0]} if unit.argv else {}
    name = "arguments"
    for word in unit.argv[1:]:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            flags[name] = value
        else:
            flags[name] = f"{flags[name]} {word}".strip() if name in flags else word
    return flags


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(_lines(old, new, sorted(old.keys() | new.keys())))


def _lines(old: Mapping[str, str], new: Mapping[str, str], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        before, after = old.get(name), new.get(name)
        hidden = SECRET_NAME.search(name.lstrip("-").upper().replace("-", "_")) is not None
        if before == after:
            continue
        if before is None:
            yield f"+ {_pair(name, after, hidden)}"
        elif after is None:
            yield f"- {_pair(name, before, hidden)}"
        else:
            yield f"~ {name}: {MASK if hidden else before} -> {MASK if hidden else after}"


def _pair(name: str, value: str | None, hidden: bool) -> str:
    if not value:
        return name
    join = " " if name.startswith("--") or name in ("program", "arguments") else "="
    return f"{name}{join}{MASK if hidden else value}"
