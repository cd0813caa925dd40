"""What `vllm serve` of the installed version accepts, and what of a profile it does not.

The installed vLLM is the authority: its own `--help=all` is asked once per (environment, version), which takes some 15
seconds on a real one, and remembered on the node under `state:/cache`. The table `profiles/flags.yaml` is the fallback
where it cannot be asked (not installed yet, or it gives no answer), and the source of advice about names that went.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from console.checkpoint.version import Version, parse_version
from console.deploy.checks import asked
from console.deploy.node_flags import parse_help
from console.errors import RelaunchError
from console.findings import Finding, allow, refuse, warn
from console.node.base import succeeded
from console.node.script import ask
from console.profile.yamlio import load, nearest

if TYPE_CHECKING:
    from console.deploy.step import Context
    from console.node.base import Node
    from console.node.facts import Facts
    from console.profile.model import FlagValue, Profile

ASK_SECONDS = 90
"""Real vLLM answers in 12 to 20 s, most of it imports; a cold disk takes longer."""
_TABLE = Path(__file__).resolve().parents[2] / "profiles" / "flags.yaml"
_SCRIPT = Path(__file__).with_name("node_flags.py")
_PAIRS = {"enable": "disable", "disable": "enable"}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `switch`: it takes no value, None when unknown. `choices`: accepted values, empty when open."""

    switch: bool | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FlagTable:
    """What one vLLM accepts. `asked`: the program itself said so; else it is the table's knowledge."""

    version: str
    asked: bool
    flags: Mapping[str, Flag]
    """Long names without dashes, `no-` forms included where the program lists them."""
    variables: frozenset[str] | None
    """VLLM_* variables it reads; None when unknown."""
    doubtful: frozenset[str] = field(default_factory=frozenset)
    """Names of which the table does not know whether this very version has them."""


def flags_from_help(text: str, version: str = "", variables: frozenset[str] | None = None) -> FlagTable:
    """The table in the output of `vllm serve --help=all`."""
    return _table(parse_help(text), version, variables)


def _table(flags: Mapping[str, Any], version: str, variables: frozenset[str] | None) -> FlagTable:
    named = {name: Flag(bool(f["switch"]), tuple(f["choices"])) for name, f in flags.items()}
    return FlagTable(version, True, named, variables)


# -------------------------------------------------------------------------------------------------- the shipped table


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Span(_Strict):
    first: str | None = None
    last: str | None = None
    names: tuple[str, ...]


class Names(_Strict):
    always: tuple[str, ...]
    spans: tuple[Span, ...]


class Advice(_Strict):
    name: str
    kind: Literal["flag", "variable"]
    instead: str
    source: str
    gone: str | None = None
    deprecated: str | None = None


class FlagData(_Strict):
    """The content of `profiles/flags.yaml`."""

    compared: tuple[str, ...]
    flags: Names
    variables: Names
    advice: tuple[Advice, ...]


@functools.cache
def flag_data() -> FlagData:
    return load(_TABLE, FlagData)


def table_for(version: str) -> FlagTable:
    """What the shipped table knows of `version`. A pre-release counts as its release."""
    data, release = flag_data(), parse_version(version)
    flags, doubtful_flags = _known(data.flags, data.compared, release)
    variables, doubtful_variables = _known(data.variables, data.compared, release)
    known = {name: Flag() for name in flags}
    return FlagTable(version, False, known, frozenset(variables), frozenset(doubtful_flags | doubtful_variables))


def _known(names: Names, compared: tuple[str, ...], version: Version) -> tuple[set[str], set[str]]:
    """The names that `version` has for sure, and those that it may have."""
    releases = [parse_version(text).release for text in compared]
    present, doubtful = set(names.always), set[str]()
    for span in names.spans:
        first = parse_version(span.first).release if span.first else None
        last = parse_version(span.last).release if span.last else None
        before = max((r for r in releases if first and r < first), default=None)
        after = min((r for r in releases if last and r > last), default=None)
        if (first is None or version.release >= first) and (last is None or version.release <= last):
            present.update(span.names)
        elif (first and before and before < version.release < first) or (
            last and after and last < version.release < after
        ):
            doubtful.update(span.names)
    if version.release < releases[0]:
        # older than all compared: whatever the oldest has is likely, nothing is sure
        doubtful |= present
    return present, doubtful


def advice_for(name: str) -> Advice | None:
    """What to do instead of a flag or variable that went."""
    return next((entry for entry in flag_data().advice if entry.name == name), None)


# ------------------------------------------------------------------------------------------------------- the check


def check_flags(
    profile: Profile, table: FlagTable, extra: Mapping[str, FlagValue] | None = None
) -> tuple[Finding, ...]:
    """Findings about every flag and every VLLM_* variable of the profile, and about `extra` flags that Relaunch adds.

    One `allow` finding when all is well. A flag that the program itself does not list is refused; a flag that only the
    table does not list is refused when a known name is near or it is known to be gone, else a warning.
    """
    flags = {**profile.serve.flags, **(extra or {})}
    found = [*_flag_findings(flags, table), *_variable_findings(profile, table)]
    bad = [finding for finding in found if finding.level != "allow"]
    source = f"vllm serve --help of {table.version}" if table.asked else f"the flag table for {table.version}"
    if not bad:
        return (allow("flags", f"{len(flags)} flags and {_own(profile)} VLLM_* variables are known to {source}"),)
    return tuple(bad)


def _own(profile: Profile) -> int:
    return sum(name.startswith("VLLM_") for name in profile.environment)


def _flag_findings(flags: Mapping[str, FlagValue], table: FlagTable) -> Iterator[Finding]:
    for name, value in sorted(flags.items()):
        base = name.split(".", 1)[0]
        known = _lookup(base, table)
        advice = advice_for(base)
        if known is None:
            yield _unknown_flag(base, table, advice)
            continue
        if advice is not None and advice.deprecated and _at_least(table.version, advice.deprecated):
            yield warn(
                "flag-deprecated", f"--{base} is deprecated in vLLM {advice.deprecated} and later", advice.instead
            )
        yield from _value_findings(base, value, known, table)


def _lookup(name: str, table: FlagTable) -> Flag | None:
    """The flag called `name`, also by its `no-` form, and by the inverse of --enable-x and --disable-x, which vLLM pairs
    since 0.33: its help lists the pair then, and the parser still takes the `no-` forms that help no longer shows."""
    positive = name.removeprefix("no-")
    found = table.flags.get(name) or table.flags.get(positive)
    if found is None and not table.asked and _at_least(table.version, "0.33"):
        found = table.flags.get(_inverse(positive))
    return found


def _inverse(name: str) -> str:
    kind, _, rest = name.partition("-")
    return f"{_PAIRS.get(kind, kind)}-{rest}"


def _unknown_flag(name: str, table: FlagTable, advice: Advice | None) -> Finding:
    if name in table.doubtful:
        text = f"whether vLLM {table.version} has --{name} is not known, and it could not be asked"
        return warn("flag-unknown", text, "the start will tell")
    if advice is not None:
        gone = f"; it went with {advice.gone}" if advice.gone else ""
        return refuse("flag-removed", f"vLLM {table.version} has no --{name}{gone}", advice.instead)
    text = f"vLLM {table.version} has no --{name}"
    span = next((span for span in flag_data().flags.spans if name in span.names), None)
    if span is not None and span.first and not _at_least(table.version, span.first):
        return refuse(
            "flag-unknown", f"{text}; it came with {span.first}", "remove it from serve.flags, or deploy that vLLM"
        )
    near = nearest(name, table.flags)
    remedy = f"did you mean --{near}?" if near else "remove it from serve.flags"
    if table.asked or near or span is not None:
        return refuse("flag-unknown", text, remedy)
    return warn("flag-unknown", f"{text} as far as the table knows, and it could not be asked", remedy)


def _value_findings(name: str, value: FlagValue, flag: Flag, table: FlagTable) -> Iterator[Finding]:
    if flag.switch is True and not isinstance(value, bool):
        yield refuse("flag-value", f"--{name} is a switch and takes no value, not {value!r}", f"write {name}: true")
    elif flag.switch is False and value is True:
        yield refuse("flag-value", f"--{name} needs a value, not true", f"write the value for {name}")
    elif value is False and table.asked and not {f"no-{name}", _inverse(name)} & (table.flags.keys() - {name}):
        yield refuse("flag-value", f"vLLM {table.version} has no --no-{name}", f"leave {name} out")
    elif flag.choices and not isinstance(value, (bool, dict)):
        # some flags take several of their choices, joined by commas
        values = value if isinstance(value, list) else str(value).split(",")
        wrong = [item for item in values if item not in flag.choices]
        if wrong:
            near = nearest(wrong[0], flag.choices)
            hint = f"did you mean {near}?" if near else f"one of {', '.join(flag.choices[:12])}"
            yield refuse("flag-value", f"--{name} of vLLM {table.version} does not take {', '.join(wrong)}", hint)


def _variable_findings(profile: Profile, table: FlagTable) -> Iterator[Finding]:
    """Unknown variables do no harm, so they warn: a misspelt or removed one has no effect, which is worse than it looks."""
    if table.variables is None:
        return
    for name in sorted(profile.environment):
        if not name.startswith("VLLM_") or name in table.variables or name in table.doubtful:
            continue
        advice = advice_for(name)
        near = nearest(name, table.variables)
        remedy = advice.instead if advice else f"did you mean {near}?" if near else "remove it from environment"
        yield warn("variable-unknown", f"vLLM {table.version} does not read {name}; it has no effect", remedy)


def _at_least(version: str, bound: str) -> bool:
    return parse_version(version).release >= parse_version(bound).release


# ------------------------------------------------------------------------------------------------- asking, remembering


def cache_path(venv: str, version: str) -> str:
    """Where the answer of the vLLM `version` in `venv` (absolute) is remembered: `state:/cache/flags-….json`."""
    digest = hashlib.sha256(f"{venv.rstrip('/')}\n{version}".encode()).hexdigest()
    return f"state:/cache/flags-{digest[:12]}.json"


def cached_table(facts: Facts, venv: str, version: str) -> FlagTable | None:
    """The remembered answer, from the facts alone; None when there is none that can be used."""
    text = facts.files.get(facts.path(cache_path(facts.path(venv), version)))
    try:
        data = json.loads(text) if text else None
        if not isinstance(data, dict) or data.get("version") != version:
            return None
        variables = data["variables"]
        return _table(data["flags"], version, frozenset(variables) if variables is not None else None)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


async def ask_table(node: Node, facts: Facts, venv: str, version: str) -> FlagTable:
    """Ask the installed vLLM, and remember the answer on the node unless it is read-only. Raises `RelaunchError` with
    the reason when the program gives no usable answer."""
    folder = facts.path(venv).rstrip("/")
    question = {"venv": folder, "timeout": ASK_SECONDS}
    answer = await ask(node, "flags", _SCRIPT.read_text(encoding="utf-8"), question, timeout=ASK_SECONDS + 15)
    if "error" in answer:
        raise RelaunchError(str(answer["error"]), "look at the environment on the node; it may be half installed")
    variables = answer["variables"]
    table = _table(answer["flags"], version, frozenset(variables) if variables is not None else None)
    if not node.read_only:
        await _remember(node, facts, cache_path(folder, version), {"version": version, **answer})
    return table


async def _remember(node: Node, facts: Facts, path: str, data: Mapping[str, Any]) -> None:
    target = facts.path(path)
    make = ("mkdir", "-p", "--", target.rsplit("/", 1)[0])
    succeeded(await node.run(make, timeout=20, sudo=True), make)
    await node.write(target, json.dumps(data, separators=(",", ":")).encode(), sudo=True)


async def installed_table(ctx: Context) -> tuple[FlagTable, Finding | None]:
    """What the wanted vLLM accepts: remembered, asked, or from the shipped table with the reason why. No exec when it is
    remembered, or not installed yet."""
    wanted, facts = ctx.profile.vllm, ctx.facts
    there = asked(facts.venvs, facts, wanted.venv)
    if there is None or there.vllm != wanted.version:
        return table_for(wanted.version), None
    table = cached_table(facts, wanted.venv, wanted.version) or ctx.found.get(cache_path(there.path, wanted.version))
    if table is None:
        try:
            table = await ask_table(ctx.node, facts, wanted.venv, wanted.version)
        except RelaunchError as error:
            return table_for(wanted.version), warn("flags-asked", error.message, error.remedy)
        # the facts of a read-only session never come to hold it
        ctx.found[cache_path(there.path, wanted.version)] = table
    return table, None
