"""The faults of a rehearsal that concern vLLM, from `ROOT/faults.json`.

The file holds {"name": NAME}, {"names": [NAME, ...]} or a list of names or of such objects; read when a command starts.
Start-up faults meet the new model only: the old service and a roll-back to it go well.
"""

from __future__ import annotations

import json
from pathlib import Path

OLD_FAMILIES = ("glm", "glm_moe_dsa")


def active(root: Path) -> frozenset[str]:
    """Names of the faults that are on."""
    try:
        data = json.loads((root / "faults.json").read_text())
    except (OSError, ValueError):
        return frozenset()
    return frozenset(_names(data))


def _names(data: object) -> list[str]:
    if isinstance(data, str):
        return [data]
    if isinstance(data, list):
        return [name for item in data for name in _names(item)]
    if isinstance(data, dict):
        found = _names(data.get("names", []))
        return found + ([str(data["name"])] if data.get("name") else []) + _names(data.get("faults", []))
    return []


def for_model(root: Path, family: str) -> frozenset[str]:
    """The faults that meet a model of this family."""
    names = active(root)
    return names & {"slow-stop"} if family in OLD_FAMILIES else names


def first_value(root: Path, name: str, value: object) -> object:
    """What `value` was when this fault first bit, so that the remedy (a lower figure, a dropped flag) helps. Kept in
    `ROOT/run/faults/NAME` until the node is reset or the faults are set anew."""
    path = root / "run" / "faults" / name
    try:
        if path.stat().st_mtime_ns >= (root / "faults.json").stat().st_mtime_ns:
            return json.loads(path.read_text())
    except (OSError, ValueError):
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return value
