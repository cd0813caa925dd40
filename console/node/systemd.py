"""systemd as argv and as text: commands built purely, answers parsed from `systemctl show`, unit text escaped.

Commands are argv tuples for `Node.run`; nothing here runs one except `unit_state`, `states` and `watch_unit`. State is
read from `systemctl show -p` alone, never from `status` or from exit codes. What goes into unit text passes `escape_exec`
(one argument of ExecStart=) or `environment_entry` (one assignment of Environment=), so that it comes out of systemd
byte for byte as it went in; what systemd cannot carry is refused with `UsageError`.

Sources: systemd.service(5) "Command lines", systemd.exec(5) "Environment", systemd.syntax(7); the escaping is proved
against a real systemd in `tests/node/test_systemd_real.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from console.errors import RelaunchError, UsageError
from console.node.base import Argv, Node, capture
from console.node.facts import UnitState
from console.node.script import python_call

PROPERTIES = (
    "Id", "LoadState", "ActiveState", "SubState", "Result", "MainPID", "InvocationID", "ControlGroup", "FragmentPath",
    "NeedDaemonReload", "UnitFileState", "NRestarts", "ExecMainCode", "ExecMainStatus",
)  # fmt: skip
"""What `unit_state` asks for; `parse_state` tolerates any of them to be absent."""

# systemd.unit(5): a name is up to 255 characters of these, with a type suffix
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*\.(?:service|slice|scope|target|timer|socket|mount|path)")
_WATCH = Path(__file__).with_name("node_unit_watch.py")


def unit_name(name: str) -> str:
    """`name` itself when systemd accepts it as a unit name with its type suffix; raises `UsageError` otherwise."""
    if len(name) > 255 or not _UNIT_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no unit name", "a unit name is letters, digits and :_.\\@- with a suffix such as .service"
        )
    return name


# ---------------------------------------------------------------------------------------------------------- commands


def start(*units: str) -> Argv:
    """Start the units and wait for their jobs. With Type=exec that proves the exec, not readiness."""
    return ("systemctl", "start", *map(unit_name, units))


def stop(*units: str) -> Argv:
    """Stop the units and wait for their jobs, which last until systemd's own escalation to SIGKILL is through."""
    return ("systemctl", "stop", *map(unit_name, units))


def restart(*units: str) -> Argv:
    return ("systemctl", "restart", *map(unit_name, units))


def kill(unit: str, signal: str = "SIGKILL") -> Argv:
    """Signal every process in the unit's cgroup."""
    return ("systemctl", "kill", f"--signal={signal}", unit_name(unit))


def enable(*units: str) -> Argv:
    return ("systemctl", "enable", *map(unit_name, units))


def disable(*units: str) -> Argv:
    return ("systemctl", "disable", *map(unit_name, units))


def daemon_reload() -> Argv:
    return ("systemctl", "daemon-reload")


def reset_failed(*units: str) -> Argv:
    """Forget failures and the start-limit counter. Fails for a unit that is not loaded."""
    return ("systemctl", "reset-failed", *map(unit_name, units))


def verify_file(path: str) -> Argv:
    """Let systemd itself check a unit file: warnings on stderr, exit status 0 when it would load."""
    return ("systemd-analyze", "verify", path)


def show(units: Sequence[str], properties: Sequence[str] = PROPERTIES) -> Argv:
    """Properties of units, one block per unit in the order asked; no units asks the manager itself."""
    return ("systemctl", "show", "-p", ",".join(properties), *map(unit_name, units))


def transient(
    name: str,
    argv: Sequence[str],
    *,
    properties: Mapping[str, str] | None = None,
    description: str = "",
    environment: Mapping[str, str] | None = None,
) -> Argv:
    """Run `argv` as the transient unit `name`, which is forgotten when it ends, failed or not.

    Returns when the program was executed (Type=exec). systemd expands `$` in the arguments of transient units as in
    ExecStart=, so it is doubled here; specifiers are not expanded there. `environment` can be read by everyone over
    D-Bus: never a secret.
    """
    settings = {"Type": "exec", **(properties or {})}
    return (
        "systemd-run",
        f"--unit={unit_name(name)}",
        "--collect",
        "--quiet",
        *((f"--description={description}",) if description else ()),
        *(f"--property={key}={value}" for key, value in settings.items()),
        *(f"--setenv={key}={value}" for key, value in (environment or {}).items()),
        "--",
        *(argument.replace("$", "$$") for argument in argv),
    )


# ---------------------------------------------------------------------------------------------------------- unit text

_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", '"': '\\"'}
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@+-]+")


def _quoted(text: str) -> str:
    """`text` in double quotes with C escapes, specifiers doubled."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{text!r} is not valid Unicode, so systemd cannot carry it") from error
    if "\0" in text:
        raise UsageError("a NUL character cannot stand in a unit")
    body = "".join(_NAMED.get(char) or (f"\\x{ord(char):02x}" if char < " " else char) for char in text)
    return '"' + body.replace("%", "%%") + '"'


def escape_exec(argument: str) -> str:
    """One argument of ExecStart= (not the program itself), so that the service receives exactly `argument`.

    `%` and `$` are doubled; anything but plain characters is put in double quotes with C escapes.
    """
    if _PLAIN.fullmatch(argument):
        return argument
    return _quoted(argument.replace("$", "$$"))


def exec_line(argv: Sequence[str]) -> str:
    """The value of ExecStart= that runs `argv`. The program must be an absolute path; variables are not expanded in it,
    so its `$` stands single."""
    program = argv[0]
    if not program.startswith("/"):
        raise UsageError(f"{program!r} cannot start a service", "ExecStart= needs an absolute path")
    head = program if _PLAIN.fullmatch(program) else _quoted(program)
    return " ".join((head, *map(escape_exec, argv[1:])))


def escape_value(text: str) -> str:
    """One whole item of a quoted list setting such as Environment=: `%` doubled, quotes and C escapes where needed.

    For Environment= the item is the assignment, `escape_value("NAME=value")`; see `environment_entry`.
    """
    return text if _PLAIN.fullmatch(text) else _quoted(text)


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def environment_entry(name: str, value: str) -> str:
    """The value of Environment= that sets `name` to `value`. systemd drops values with control characters other than tab
    and newline (env_value_is_valid), so they are refused here instead of lost there."""
    if not _VARIABLE.fullmatch(name):
        raise UsageError(f"{name!r} is no name for an environment variable", "letters, digits and _, no digit first")
    if re.search("[\x00-\x08\x0b-\x1f\x7f]", value):
        raise UsageError(
            f"{name}: systemd drops values with control characters", "only tab and newline may stand in it"
        )
    return escape_value(f"{name}={value}")


def escape_setting(text: str) -> str:
    """A plain setting such as Description= or WorkingDirectory=: one line, `%` doubled, no quoting."""
    if re.search(r"[\x00-\x1f\x7f]", text) or text != text.strip() or text.endswith("\\"):
        raise UsageError(f"{text!r} cannot stand in a unit", "one line, no control characters, no blanks at the ends")
    return text.replace("%", "%%")


# ---------------------------------------------------------------------------------------------------------- answers


def parse_show(text: str) -> tuple[dict[str, str], ...]:
    """The blocks of `systemctl show`, in order. A line without `=` continues the value before it."""
    blocks: list[dict[str, str]] = []
    current: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if not line.strip():
            if current:
                blocks.append(current)
            current, last = {}, ""
            continue
        key, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[A-Za-z0-9]+", key):
            current[key], last = value, key
        elif last:
            current[last] += "\n" + line
    if current:
        blocks.append(current)
    return tuple(blocks)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


_EXITS = {1: "exited", 2: "killed", 3: "dumped"}


def parse_state(name: str, block: Mapping[str, str], text: str | None = None) -> UnitState:
    """A `UnitState` from one block of `systemctl show`; `text` is the unit file's content where it was read."""
    code = block.get("ExecMainCode", "")
    exit_kind = _EXITS.get(_number(code), code if code in _EXITS.values() else "")
    return UnitState(
        name=name,
        load=block.get("LoadState", "") or "not-found",
        active=block.get("ActiveState", "") or "inactive",
        sub=block.get("SubState", "") or "dead",
        result=block.get("Result", "") or "success",
        main_pid=_number(block.get("MainPID")),
        invocation=block.get("InvocationID", ""),
        cgroup=block.get("ControlGroup", ""),
        fragment=block.get("FragmentPath", ""),
        text=text,
        need_reload=block.get("NeedDaemonReload") == "yes",
        enabled=block.get("UnitFileState", ""),
        restarts=_number(block.get("NRestarts")),
        exit_kind=exit_kind,
        exit_status=_number(block.get("ExecMainStatus")) if exit_kind else None,
    )


_SPAN_UNITS = {
    "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "month": 2629800.0,
    "y": 31557600.0,
}  # fmt: skip


def parse_span(text: str) -> float | None:
    """Seconds in a time span as `systemctl show` prints it (`1min 30s`); None for `infinity` and for what is none."""
    total = 0.0
    for word in text.split():
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)", word)
        if match is None or match[2] not in _SPAN_UNITS:
            return None
        total += float(match[1]) * _SPAN_UNITS[match[2]]
    return total if text.strip() else None


def is_up(state: UnitState) -> bool:
    """True while the unit runs, starts, stops, or waits for its automatic restart."""
    return state.active not in ("inactive", "failed")


async def states(node: Node, units: Iterable[str]) -> dict[str, UnitState]:
    """The state of several units by one `systemctl show`; the unit files are not read (`text` is None)."""
    names = tuple(units)
    if not names:
        return {}
    blocks = parse_show(await capture(node, show(names)))
    if len(blocks) != len(names):
        raise RelaunchError(f"systemctl on {node.name} answered for {len(blocks)} units where {len(names)} were asked")
    return {name: parse_state(name, block) for name, block in zip(names, blocks, strict=True)}


async def unit_state(node: Node, unit: str, *, text: bool = False) -> UnitState:
    """The state of one unit. `text=True` also reads its unit file (one more exec); else `text` is None."""
    state = (await states(node, (unit,)))[unit]
    if not text or not state.fragment:
        return state
    return replace(state, text=(await node.read(state.fragment, sudo=True)).decode(errors="replace"))


# ---------------------------------------------------------------------------------------------------------- watching


def watch_call(unit: str) -> tuple[Argv, bytes]:
    """The attached helper that prints one JSON object of properties now and at every change of `unit`."""
    question = {"unit": unit_name(unit), "properties": list(PROPERTIES)}
    return python_call("unit watch", _WATCH.read_text(), question)


@asynccontextmanager
async def watch_unit(node: Node, unit: str) -> AsyncIterator[AsyncIterator[UnitState]]:
    """The unit's state now and at every change, through one attached helper that wakes on D-Bus signals.

    Where there is no D-Bus the helper looks at the unit's processes without forking, and asks systemctl once a second.
    Raises `Unreachable` when the link is lost.
    """
    argv, stdin = watch_call(unit)
    async with node.stream(argv, input=stdin) as lines:

        async def changes() -> AsyncIterator[UnitState]:
            async for line in lines:
                if line.err:
                    continue
                block: Any = json.loads(line.text)
                yield parse_state(unit, {str(key): str(value) for key, value in block.items()})

        yield changes()
