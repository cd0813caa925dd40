from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from console import commands
from console.cli import build_parser, main
from console.deploy.steps import ORDER, SUMMARIES
from console.deploy.store import open_store
from console.errors import Refused
from console.events import Noted, RunEnded
from console.node.target import Target
from console.session import Session, _confirm
from console.settings import Settings
from console.verbs import VERBS, verb

ROOT = Path(__file__).parent.parent.parent
HEAVY = ("textual", "rich", "asyncssh", "aiohttp", "huggingface_hub", "pynvml", "pydantic")


def modules_after(*argv: str) -> set[str]:
    """Every module that a `relaunch` process with these arguments loads."""
    code = (
        "import sys,json\nfrom console.cli import main\n"
        "try: main(json.loads(sys.argv[1]))\nexcept SystemExit: pass\n"
        "sys.stderr.write('\\nMODULES '+json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(argv)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    return set(json.loads(done.stderr.rsplit("MODULES ", 1)[1]))


@pytest.mark.parametrize("argv", [("--help",), ("--version",), ("plan", "--help")])
def test_help_loads_nothing_heavy(argv: tuple[str, ...]) -> None:
    assert not {name.split(".")[0] for name in modules_after(*argv)} & {*HEAVY, "hyperscan", "yaml", "sqlite3"}


def test_diagnose_loads_neither_a_screen_nor_a_network(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("INFO 11-29 10:00:00 [api_server.py:1] vLLM API server version 0.16.0\n")
    loaded = {name.split(".")[0] for name in modules_after("diagnose", str(log))}
    assert not loaded & {"textual", "rich", "asyncssh", "aiohttp", "huggingface_hub", "pynvml", "screens"}


def test_the_redeploy_loads_no_screen() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, console.engine, console.headless; print(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert not {"textual", "rich", "screens"} & set(loaded)


def test_every_verb_has_a_handler_or_a_script_and_stands_on_the_command_line() -> None:
    for item in VERBS:
        assert bool(item.script) != (item.name in commands.HANDLERS), item.name
    assert set(commands.HANDLERS) == {item.name for item in VERBS if not item.script}
    help_text = build_parser().format_help()
    assert all(item.name in help_text for item in VERBS)
    with pytest.raises(StopIteration):
        verb("no such verb")


def test_keys_are_unique_and_destructive_ones_are_capitals_away_from_movement() -> None:
    keys = [item.key for item in VERBS if item.key]
    assert len(keys) == len(set(keys))
    assert not set(keys) & set("jkhlgG") - {"l", "g"}
    assert all(item.key.isupper() for item in VERBS if item.destructive and item.key)
    assert all(item.mutates for item in VERBS if item.destructive)


def test_steps_have_summaries() -> None:
    assert tuple(SUMMARIES) == (*ORDER, "rollback")


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--nonsense"], 2, "unrecognized arguments"),
        (["redploy"], 2, "there is no 'redploy'; did you mean redeploy?"),
        (["nonsense"], 2, "there is no 'nonsense'"),
        (["plan"], 2, "no node named"),
        (["--node", "local", "plan"], 2, "no profile named"),
        (["--node", "x y", "--profile", "rehearsal", "plan"], 2, "x y"),
        (["--script", "redploy"], 2, "no script or file"),
        (["--script", "redeploy", "--fault", "oom", "--node", "local"], 2, "--rehearse"),
        (["show", "77"], 2, "no run 77"),
        (["show", "abc"], 2, "no run number"),
        (["--script", "redeploy", "plan"], 2, "exclude"),
    ],
)
def test_wrong_use_ends_with_2_and_says_what_would_be_right(
    argv: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_options_stand_before_or_after_the_verb() -> None:
    before = build_parser().parse_args(["--node", "a", "--json", "plan"])
    after = build_parser().parse_args(["plan", "--node", "a", "--json"])
    assert (before.node, before.json) == (after.node, after.json) == ("a", True)


def test_history_and_replay(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    assert "no runs yet" in capsys.readouterr().out
    with open_store() as store:
        run = store.begin("redeploy", "gpu1", "kimi", script="redeploy", rehearsal=True, started=1.0)
        store.append(run, Noted(time=2.0, text="hello"))
        store.append(run, RunEnded(time=3.0, run=run, code=11, text="restored"))
    assert main(["runs"]) == 0
    line = capsys.readouterr().out
    assert "0001" in line
    assert "REHEARSAL" in line
    assert "restored" in line
    assert main(["show", "1", "--json"]) == 0
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [item["event"] for item in lines] == ["note", "run-ended"]
    assert main(["show", "0001"]) == 0
    assert "hello" in capsys.readouterr().out


def test_a_settings_file_with_problems_names_them_all(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = own_home / "config" / "relaunch"
    folder.mkdir(parents=True)
    (folder / "settings.yaml").write_text("nod: a\nprofile: [x]\nprofile: y\n")
    assert main(["runs"]) == 2
    error = capsys.readouterr().err
    assert "settings.yaml:1:1: nod: unknown key; did you mean node" in error
    assert "settings.yaml:3:1: profile: stands twice" in error


@pytest.mark.parametrize(
    ("given", "production", "refused"),
    [
        ({"verb": "stop"}, False, True),
        ({"verb": None, "script": "stop"}, False, True),
        ({"verb": "stop", "yes": True}, True, False),
        ({"verb": "stop", "dry_run": True}, True, False),
        ({"verb": "redeploy"}, False, False),
        ({"verb": "redeploy"}, True, True),
        ({"verb": "status"}, True, False),
    ],
)
async def test_what_asks_first_is_refused_where_nobody_can_answer(
    given: dict[str, Any], production: bool, refused: bool
) -> None:
    options = argparse.Namespace(**{"script": None, **given})
    session = Session(options, Settings(), cast(Any, None))
    target = Target(name="gpu1", host="gpu1", production=production)
    with pytest.raises(Refused) if refused else contextlib.nullcontext():
        await _confirm(session, target)
