"""The check of flags and variables against the real vLLM: its help as Relaunch reads it, and its parser's own answer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from console.deploy.flags import FlagTable, check_flags, flags_from_help, table_for
from console.deploy.node_flags import read_variables
from console.findings import Finding
from console.profile.load import load_profile
from console.profile.model import FlagValue, Profile, Variable
from tests.vllm.box import PROFILE
from tests.vllm.environment import VERSION

# the first test may have to make the environment
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def asked(venv: Path) -> FlagTable:
    """What Relaunch makes of `vllm serve --help=all`."""
    argv = (str(venv / "bin/vllm"), "serve", "--help=all")
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/root", "COLUMNS": "200", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    said = subprocess.run(argv, check=True, capture_output=True, text=True, env=environment).stdout
    variables = read_variables(str(venv))
    assert variables is not None
    return flags_from_help(said, VERSION, frozenset(variables))


@pytest.fixture(scope="module")
def parser(venv: Path) -> dict[str, dict[str, object]]:
    """What the parser object itself says."""
    script = Path(__file__).with_name("ask_parser.py")
    said = subprocess.run([str(venv / "bin/python"), str(script)], check=True, capture_output=True, text=True)
    found: dict[str, dict[str, object]] = json.loads(said.stdout.splitlines()[-1])
    return found


def test_its_help_names_the_flags_of_its_parser_and_no_others(
    asked: FlagTable, parser: dict[str, dict[str, object]]
) -> None:
    assert set(asked.flags) == set(parser)
    assert len(parser) > 350


def test_switches_and_choices_are_those_of_the_parser(asked: FlagTable, parser: dict[str, dict[str, object]]) -> None:
    assert {name: flag.switch for name, flag in asked.flags.items()} == {
        name: about["switch"] for name, about in parser.items()
    }
    for name, about in parser.items():
        if about["choices"]:
            assert list(asked.flags[name].choices) == about["choices"], name
    # the parser takes any name, since plugins may add one; its help lists those that there are
    assert "kimi_k2" in asked.flags["tool-call-parser"].choices


def test_the_variables_are_those_that_the_real_module_reads(asked: FlagTable, venv: Path) -> None:
    code = "import json, vllm.envs as e; print(json.dumps(sorted(e.environment_variables)))"
    said = subprocess.run([str(venv / "bin/python"), "-c", code], check=True, capture_output=True, text=True)
    assert asked.variables == frozenset(json.loads(said.stdout.splitlines()[-1]))


def test_the_profile_is_right_for_it(asked: FlagTable) -> None:
    (finding,) = check_flags(load_profile(PROFILE), asked)
    assert finding.level == "allow", finding


@pytest.mark.parametrize(
    ("flags", "level", "text", "remedy"),
    [
        ({"disable-log-requests": True}, "refuse", "no --disable-log-requests", ""),
        ({"swap-space": 4}, "refuse", "no --swap-space", ""),
        ({"max-model-length": 4096}, "refuse", "no --max-model-length", "max-model-len"),
        ({"kv-cache-dtype": "fp9"}, "refuse", "fp9", "fp8"),
        ({"enforce-eager": 1}, "refuse", "is a switch", "true"),
        ({"max-model-len": True}, "refuse", "needs a value", ""),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_it_would_not_take_is_found_before(
    asked: FlagTable, flags: dict[str, FlagValue], level: str, text: str, remedy: str
) -> None:
    (finding,) = _findings(asked, flags=flags)
    assert finding.level == level, finding
    assert text in finding.text
    assert remedy in finding.remedy


def test_a_misspelt_variable_has_no_effect_and_is_told(asked: FlagTable) -> None:
    (finding,) = _findings(asked, variables={"VLLM_CACHE_ROT": "/var/cache"})
    assert finding.level == "warn"
    assert "VLLM_CACHE_ROOT" in finding.remedy


def test_the_shipped_table_knows_every_flag_of_it(asked: FlagTable) -> None:
    """The table is what counts while nothing is installed; what it would refuse and the real one takes is its fault."""
    table = table_for("0.32.0")
    known = (
        {"help"} | {name.removeprefix("no-") for name in table.flags} | {n.removeprefix("no-") for n in table.doubtful}
    )
    assert {name.removeprefix("no-") for name in asked.flags} - known == set()


def _findings(
    asked: FlagTable, flags: dict[str, FlagValue] | None = None, variables: dict[str, str] | None = None
) -> tuple[Finding, ...]:
    profile: Profile = load_profile(PROFILE)
    serve = profile.serve.model_copy(update={"flags": {**profile.serve.flags, **(flags or {})}})
    own = {name: Variable(value=value) for name, value in (variables or {}).items()}
    return check_flags(
        profile.model_copy(update={"serve": serve, "environment": {**profile.environment, **own}}), asked
    )
