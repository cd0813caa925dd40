"""Scripts that run on a node compile for the oldest Python there, and import nothing but its standard library."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from console import checkpoint

SCRIPTS = sorted(Path(checkpoint.__file__).parent.glob("node_*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_is_python_3_6_and_stands_alone(script: Path) -> None:
    tree = ast.parse(script.read_text(), feature_version=(3, 6))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).split(".")[0])
    assert names - {"huggingface_hub"} <= sys.stdlib_module_names
    assert "__future__" not in names, "annotations of the future are younger than 3.6"
