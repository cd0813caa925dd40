"""What is sent to nodes runs on the oldest and the newest Python found on this machine, not only on ours."""

from __future__ import annotations

import ast
import glob
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from console.node.facts import Question, facts_source, parse_facts
from console.node.gpu import Decoder, agent_call
from console.node.script import python_call
from tests.nvml.build import NO_COMPILER, compiler, library

HERE = Path(__file__).parents[2] / "console"
SCRIPTS = sorted(path for path in HERE.rglob("*.py") if path.name.startswith("node_") or path.parent.name == "agent")


def interpreters() -> list[str]:
    """Pythons from 3.6 on: on PATH by name, and those of pyenv."""
    named = [shutil.which(f"python3.{minor}") for minor in range(6, 15)]
    found = [path for path in named if path] + glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python"))
    versions: dict[str, str] = {}
    for path in found:
        ask = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            versions.setdefault(done.stdout.strip(), path)
    ordered = sorted(versions.items(), key=lambda item: tuple(map(int, item[0].split("."))))
    return [path for _, path in (ordered[0], ordered[-1])] if len(ordered) > 1 else [sys.executable]


@pytest.mark.parametrize("path", [path for path in SCRIPTS if path.name != "__init__.py"], ids=lambda path: path.name)
def test_grammar(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("python", interpreters())
def test_facts(python: str, tmp_path: Path) -> None:
    argv, stdin = python_call("facts", facts_source(), asdict(Question(folders=("~/",), ports=(1,))), python=python)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "RELAUNCH_PRACTICE_ROOT": str(tmp_path)}
    done = subprocess.run(argv, input=stdin, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()
    facts = parse_facts(json.loads(done.stdout.decode().splitlines()[-1]))
    assert facts.paths.home == str(tmp_path)


@pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)
@pytest.mark.parametrize("python", interpreters())
def test_agent_with_the_bundled_pynvml(python: str, tmp_path: Path) -> None:
    library(tmp_path)
    argv, stdin = agent_call(0.05, python=python)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "NVML_STANDIN": f"gpus=2 held=1:{os.getpid()}:5"}
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(stdin)
    process.stdin.flush()
    decoder = Decoder()
    lines = (line.decode() for line in iter(process.stdout.readline, b""))
    sample = next(found for found in map(decoder.feed, lines) if found is not None)
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    process.stdout.close()
    assert [gpu.memory_used for gpu in sample.gpus] == [4 << 20, 9 << 20]
    assert sample.gpus[1].processes[0].pid == os.getpid()
