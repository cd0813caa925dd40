"""Script files: a list of step or verb names with options, and `expect:` lines that fail the run.

    - preflight
    - download: {deep: true}
    - expect: {step: download, state: [done, satisfied], evidence: "119/119"}
    - redeploy

Pure. A name that is a shipped script stands for its items. Every problem is told at once as file:line:col.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from console.deploy.steps import ORDER
from console.errors import InvalidFile, Problem, RelaunchError, UsageError
from console.state import Snapshot

SHIPPED = Path(__file__).parent.parent.parent / "profiles" / "scripts"
VERBS = frozenset({"rollback"})
"""Names that are no step and may stand in a script all the same."""
_EXPECT_KEYS = ("step", "state", "evidence")
_DEPTH = 8

OptionValue: TypeAlias = str | bool


class ExpectationFailed(RelaunchError):
    """An `expect:` line of the script did not hold."""


@dataclass(frozen=True, slots=True)
class Do:
    """Run one step or verb."""

    name: str
    options: dict[str, OptionValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expect:
    """What must be true at this point: a step's state, and text that its evidence contains."""

    step: str
    states: tuple[str, ...]
    evidence: str
    where: str

    def check(self, snapshot: Snapshot) -> str:
        """The evidence; raises ExpectationFailed with what was found instead."""
        view = snapshot.step(self.step)
        if view is None:
            raise ExpectationFailed(f"{self.where}: expected {self.step}, which is no step of this run")
        if view.state not in self.states:
            raise ExpectationFailed(
                f"{self.where}: expected {self.step} to be {' or '.join(self.states)}, it is {view.state}"
            )
        if self.evidence not in view.detail:
            raise ExpectationFailed(
                f"{self.where}: expected {self.step} to say {self.evidence!r}, it says {view.detail!r}"
            )
        return f"{self.step} is {view.state}"


Item: TypeAlias = Do | Expect


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    items: tuple[Item, ...]

    def names(self) -> tuple[str, ...]:
        """The steps and verbs in order, each once: the checklist of the run."""
        return tuple(dict.fromkeys(item.name for item in self.items if isinstance(item, Do)))


def shipped() -> tuple[str, ...]:
    """Names of the scripts that ship."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def load_script(text: str, stdin: str | None = None) -> Script:
    """The script that the operator named: a shipped name, a step, a file, or `-` for `stdin`."""
    if text == "-":
        return parse_script(stdin or "", "<stdin>")
    if text in shipped():
        return parse_script((SHIPPED / f"{text}.yaml").read_text(), f"{text}.yaml", name=text)
    if text in ORDER or text in VERBS:
        return Script(text, (Do(text),))
    path = Path(text)
    if path.is_file():
        try:
            return parse_script(path.read_text(), text, name=path.stem)
        except UnicodeDecodeError as error:
            raise UsageError(f"{text} is no text file: {error.reason} at byte {error.start}") from error
    near = difflib.get_close_matches(text, (*shipped(), *ORDER, *VERBS), 1)
    hint = f"did you mean {near[0]}?" if near else f"scripts that ship: {', '.join(shipped())}"
    raise UsageError(f"there is no script or file {text!r}", hint)


def parse_script(text: str, file: str, *, name: str = "", depth: int = 0) -> Script:
    """A script from YAML. Raises InvalidFile with every problem."""
    parser = _Parser(file, depth)
    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or yaml.Mark(file, 0, 0, 0, None, 0)
        raise InvalidFile(
            (Problem(file, mark.line + 1, mark.column + 1, "script", error.problem or "not YAML"),)
        ) from error
    if not isinstance(root, yaml.SequenceNode):
        raise InvalidFile((Problem(file, 1, 1, "script", "write a list: one step or verb per line, each after `- `"),))
    items = tuple(item for node in root.value for item in parser.item(node))
    if parser.problems:
        raise InvalidFile(tuple(parser.problems))
    if not items:
        raise InvalidFile((Problem(file, 1, 1, "script", "an empty script does nothing; name a step or verb"),))
    return Script(name or file, items)


class _Parser:
    def __init__(self, file: str, depth: int) -> None:
        self.file = file
        self.depth = depth
        self.problems: list[Problem] = []

    def item(self, node: yaml.Node) -> Iterable[Item]:
        if isinstance(node, yaml.ScalarNode):
            return self._do(node, {})
        if not isinstance(node, yaml.MappingNode) or len(node.value) != 1:
            self._problem(node, "item", "write `- name` or `- name: {option: value}`, one name per line")
            return ()
        ((key, value),) = node.value
        if key.value == "expect":
            return self._expect(value)
        return self._do(key, self._options(value))

    def _do(self, node: yaml.ScalarNode, options: dict[str, OptionValue]) -> Iterable[Item]:
        name = str(node.value)
        if name in ORDER or name in VERBS:
            return (Do(name, options),)
        if name in shipped():
            if self.depth >= _DEPTH:
                self._problem(node, name, "scripts name each other in a circle")
                return ()
            path = SHIPPED / f"{name}.yaml"
            return parse_script(path.read_text(), path.name, name=name, depth=self.depth + 1).items
        near = difflib.get_close_matches(name, (*ORDER, *VERBS, *shipped()), 1)
        self._problem(node, name, "no such step or verb" + (f", did you mean {near[0]}?" if near else ""))
        return ()

    def _options(self, node: yaml.Node) -> dict[str, OptionValue]:
        options: dict[str, OptionValue] = {}
        for key, value in self._pairs(node, "options"):
            if isinstance(value, yaml.ScalarNode):
                text = str(value.value)
                options[key] = text == "true" if text in ("true", "false") else text
            else:
                self._problem(value, key, "write one value")
        return options

    def _expect(self, node: yaml.Node) -> Iterable[Item]:
        found: dict[str, str] = {}
        states: tuple[str, ...] = ("done", "satisfied")
        for key, value in self._pairs(node, "expect"):
            if key not in _EXPECT_KEYS:
                self._problem(value, f"expect.{key}", f"unknown; known are {', '.join(_EXPECT_KEYS)}")
            elif key == "state" and isinstance(value, yaml.SequenceNode):
                states = tuple(str(item.value) for item in value.value)
            elif not isinstance(value, yaml.ScalarNode):
                self._problem(value, f"expect.{key}", "write one value")
            elif key == "state":
                states = (value.value,)
            else:
                found[key] = value.value
        if found.get("step") not in (*ORDER, *VERBS):
            self._problem(node, "expect.step", "name the step that is meant, e.g. {step: ready, state: done}")
            return ()
        where = f"{self.file}:{node.start_mark.line + 1}"
        return (Expect(found["step"], states, found.get("evidence", ""), where),)

    def _pairs(self, node: yaml.Node, what: str) -> Iterable[tuple[str, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            self._problem(node, what, "write {key: value}")
            return
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                self._problem(key, f"{what}.{name}", "stands twice")
            seen.add(name)
            yield name, value

    def _problem(self, node: yaml.Node, where: str, text: str) -> None:
        mark = node.start_mark
        self.problems.append(Problem(self.file, mark.line + 1, mark.column + 1, where, text))
