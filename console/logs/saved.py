"""The operator's own saved filters: one YAML file that the log view, `relaunch logs --filter @name` and people's editors share.

A preset is added at the end of the file, or its own lines are taken out; every other byte, comments among them, stays. What
would come out is read again before it is written, and a file that is not understood, or is not in block form, is left as it
is and said. The file is replaced whole, so that no reader sees half of it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile

import yaml

from console.errors import UsageError
from console.logs.filters import Filter, parse_presets

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}\Z")


def save(path: Path, name: str, wanted: Filter) -> None:
    """Add `wanted` to the file as `@name`. Raises UsageError for a bad name or one that is taken, InvalidFile."""
    wrong = wrong_name(path, name)
    if wrong:
        raise UsageError(f"{name}: {wrong}" if name else wrong)
    before = _text(path)
    after = with_preset(before, name, wanted, str(path))
    _replace(path, after)


def delete(path: Path, name: str) -> None:
    """Take `@name` out of the file. Raises UsageError when it is not in it, InvalidFile."""
    if name not in _known(_text(path), str(path)):
        raise UsageError(f"@{name} comes with Relaunch", "save a filter of yours under this name to replace it")
    _replace(path, without_preset(_text(path), name, str(path)))


def owned(path: Path) -> frozenset[str]:
    """The names in the operator's own file. Raises InvalidFile."""
    return frozenset(_known(_text(path), str(path)))


def wrong_name(path: Path, name: str) -> str:
    """What keeps a new preset from being called so; empty when nothing does. Raises InvalidFile."""
    if not name:
        return "no name; Esc leaves without saving"
    if not NAME.match(name):
        return "letters, digits, . _ and - make a name, 32 of them at most, a letter or a digit first"
    if name in owned(path):
        return f"there is @{name} already; @ lists it and X deletes it there"
    return ""


def with_preset(text: str, name: str, wanted: Filter, file: str = "filters.yaml") -> str:
    """The file's text with one preset more. Raises UsageError where it cannot be added without touching the rest."""
    before = _known(text, file)
    body = {
        key: value
        for key in ("include", "exclude", "process", "level", "noise", "reason")
        if (value := getattr(wanted, key))
    }
    lines = [f"  {key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in body.items()]
    end = "" if not text or text.endswith("\n") else "\n"
    after = f"{text}{end}{name}:{'' if lines else ' {}'}\n{''.join(lines)}"
    return _checked(after, {**before, name: replace(wanted, name=name)}, file)


def without_preset(text: str, name: str, file: str = "filters.yaml") -> str:
    """The file's text without a preset's own lines. Raises UsageError where they are not lines of their own."""
    left = {key: value for key, value in _known(text, file).items() if key != name}
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    lines = text.splitlines(keepends=True)
    for key, value in root.value if isinstance(root, yaml.MappingNode) and not root.flow_style else ():
        if key.value == name:
            del lines[key.start_mark.line : _last_line(value) + 1]
    return _checked("".join(lines), left, file)


def _last_line(node: yaml.Node) -> int:
    """The last line of a node's own text: a block collection's end mark lies behind the comments that follow it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _last_line(last[1] if isinstance(last, tuple) else last)
    mark = node.end_mark
    return mark.line if mark.column else mark.line - 1


def _known(text: str, file: str) -> dict[str, Filter]:
    return {item.name: item for item in parse_presets(text, file)}


def _checked(text: str, wanted: Mapping[str, Filter], file: str) -> str:
    """`text`, if it says what is wanted and nothing else."""
    try:
        same = _known(text, file) == dict(wanted)
    except UsageError:
        same = False
    if not same:
        raise UsageError(f"{file} is written in a form that is not changed from here", "edit it by hand")
    return text


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _replace(path: Path, text: str) -> None:
    """Put `text` in place of the file, through a link to it where it is one."""
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        with NamedTemporaryFile(
            "w", encoding="utf-8", newline="", dir=path.parent, prefix=".filters-", delete=False
        ) as file:
            try:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise UsageError(f"{path} is not written: {error.strerror}") from error
