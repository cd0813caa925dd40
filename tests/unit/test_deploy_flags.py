"""Flags and variables against what one vLLM accepts: its help text, the remembered answer, and the table by version."""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path
from typing import Any

import pytest

from console.deploy import flags, node_flags
from console.deploy.flags import (
    advice_for,
    cache_path,
    cached_table,
    check_flags,
    flag_data,
    flags_from_help,
    table_for,
)
from tests.unit.profile_samples import facts, profile

# The shapes that argparse gives: 3.8-3.12 repeat the metavar after each name, 3.13 does not; choices stand in braces, may be
# long, and a help text may begin with something that looks like an option.
HELP = """\
usage: vllm serve [model_tag] [options]

Launch a local OpenAI-compatible API server.

positional arguments:
  model_tag             The model tag to serve (optional if specified in config)

options:
  --headless            Run in headless mode. (default: False)
  --api-server-count API_SERVER_COUNT, -asc API_SERVER_COUNT
                        How many API server processes to run.
  -h, --help            show this help message and exit

ModelConfig:
  Configuration for the model.

  --dtype {auto,bfloat16,float,float16,float32,half}
                        Data type. See also
                        --not-an-option for more. (default: auto)
  --max-model-len MAX_MODEL_LEN
                        Model context length. (default: None)
  --trust-remote-code, --no-trust-remote-code
                        Trust remote code. (default: False)
  --tensor-parallel-size, -tp TENSOR_PARALLEL_SIZE
                        Number of tensor parallel groups. (default: 1)
  --kv-cache-dtype {auto,bfloat16,fp8,
fp8_e4m3}
                        Data type for kv cache storage.
  --hf-overrides HF_OVERRIDES
  --middleware MIDDLEWARE
  --enable-auto-tool-choice, --no-enable-auto-tool-choice
"""


def table() -> flags.FlagTable:
    return flags_from_help(HELP, "0.16.0", frozenset({"VLLM_CACHE_ROOT", "VLLM_LOG_STATS_INTERVAL"}))


def test_help_is_read() -> None:
    found = table()
    assert set(found.flags) == {
        "headless", "api-server-count", "help", "dtype", "max-model-len", "trust-remote-code", "no-trust-remote-code",
        "tensor-parallel-size", "kv-cache-dtype", "hf-overrides", "middleware", "enable-auto-tool-choice",
        "no-enable-auto-tool-choice",
    }  # fmt: skip
    assert found.flags["headless"].switch
    assert found.flags["trust-remote-code"].switch
    assert found.flags["max-model-len"].switch is False
    assert found.flags["tensor-parallel-size"].switch is False
    assert found.flags["kv-cache-dtype"].choices == ("auto", "bfloat16", "fp8", "fp8_e4m3")
    assert found.flags["dtype"].choices[0] == "auto"


def test_a_real_argparse_is_read_back() -> None:
    parser = argparse.ArgumentParser(prog="vllm serve")
    group = parser.add_argument_group("G", "described")
    group.add_argument("--one", "-o", type=int, help="--two is not here")
    group.add_argument("--three", action=argparse.BooleanOptionalAction, help="x" * 200)
    group.add_argument("--four-five", choices=["a", "b"])
    group.add_argument("--six", nargs="+")
    group.add_argument("--seven", action="store_true")
    # vLLM gives lists as metavar where a flag takes other text as well
    group.add_argument("--eight", "-q", metavar=["a b", "c"])  # type: ignore[arg-type]
    found = flags_from_help("\x1b[1m" + parser.format_help() + "\x1b[0m").flags
    assert set(found) == {"help", "one", "three", "no-three", "four-five", "six", "seven", "eight"}
    assert {name for name, flag in found.items() if flag.switch} == {"help", "three", "no-three", "seven"}
    assert found["four-five"].choices == ("a", "b")


def levels(found: tuple[Any, ...]) -> list[tuple[str, str]]:
    return [(finding.level, finding.rule) for finding in found]


def test_all_known() -> None:
    good = profile(serve__flags={"trust-remote-code": True, "max-model-len": 5, "hf-overrides.rope.theta": 1, "dtype": "auto"},
                   environment={"VLLM_CACHE_ROOT": {"value": "/x"}, "NCCL_DEBUG": {"value": "WARN"}})  # fmt: skip
    found = check_flags(good, table())
    assert levels(found) == [("allow", "flags")]
    assert "4 flags and 1 VLLM_* variables" in found[0].text


@pytest.mark.parametrize(
    ("flag", "value", "rule", "remedy"),
    [
        ("max-model-length", 5, "flag-unknown", "did you mean --max-model-len?"),
        ("disable-log-requests", True, "flag-removed", "leave it out"),
        ("swap-space", 4, "flag-removed", "leave it out"),
        ("task", "generate", "flag-removed", "use runner and convert"),
        ("zzzzzz", True, "flag-unknown", "remove it"),
        ("trust-remote-code", "yes", "flag-value", "write trust-remote-code: true"),
        ("max-model-len", True, "flag-value", "write the value"),
        ("dtype", "bfloat1", "flag-value", "did you mean bfloat16?"),
        ("headless", False, "flag-value", "leave headless out"),
    ],
)
def test_what_the_program_does_not_take_is_refused(flag: str, value: Any, rule: str, remedy: str) -> None:
    found = check_flags(profile(serve__flags={flag: value}), table())
    assert levels(found) == [("refuse", rule)]
    assert remedy in found[0].remedy


def test_flags_that_relaunch_adds_are_checked_too() -> None:
    assert levels(check_flags(profile(), table(), {"kv-cache-dtype": "nvfp4"})) == [("refuse", "flag-value")]
    assert levels(check_flags(profile(), table(), {"kv-cache-dtype": "bfloat16"})) == [("allow", "flags")]


def test_variables_without_effect_warn() -> None:
    env = {"VLLM_CACHE_ROT": {"value": "1"}, "VLLM_ATTENTION_BACKEND": {"value": "TRITON_MLA"}, "FOO": {"value": "1"}}
    found = check_flags(profile(environment=env), table())
    assert levels(found) == [("warn", "variable-unknown")] * 2
    assert found[0].remedy == "use the flag attention-backend"
    assert found[1].remedy == "did you mean VLLM_CACHE_ROOT?"
    assert not [f for f in check_flags(profile(environment=env), flags_from_help(HELP, "0.16.0")) if f.level != "allow"]


@pytest.mark.parametrize(
    ("flag", "version", "level", "rule"),
    [
        ("disable-log-requests", "0.16.0", "allow", "flags"),
        ("disable-log-requests", "0.16.0rc2.dev313+g662205d34", "allow", "flags"),
        ("disable-log-requests", "0.17.0", "refuse", "flag-removed"),
        ("swap-space", "0.17.0", "allow", "flags"),
        ("swap-space", "0.18.0", "refuse", "flag-removed"),
        ("moe-backend", "0.16.0", "refuse", "flag-unknown"),
        ("moe-backend", "0.17.0", "allow", "flags"),
        ("language-model-only", "0.17.0", "allow", "flags"),
        ("shutdown-timeout", "0.17.0", "refuse", "flag-unknown"),
        ("shutdown-timeout", "0.18.0", "allow", "flags"),
        ("linear-backend", "0.21.0", "warn", "flag-unknown"),
        ("linear-backend", "0.24.0", "allow", "flags"),
        ("max-num-partial-prefills", "0.24.0", "allow", "flags"),
        ("max-num-partial-prefills", "0.27.0", "warn", "flag-unknown"),
        ("max-num-partial-prefills", "0.33.0", "refuse", "flag-removed"),
        ("calculate-kv-scales", "0.29.0", "refuse", "flag-removed"),
        ("logging-config", "0.33.0", "allow", "flags"),
        ("log-config-file", "0.33.0", "warn", "flag-deprecated"),
        ("brand-new-thing", "0.99.0", "warn", "flag-unknown"),
        ("max-model-ln", "0.33.0", "refuse", "flag-unknown"),
    ],
)
def test_the_table_by_version(flag: str, version: str, level: str, rule: str) -> None:
    assert levels(check_flags(profile(serve__flags={flag: "x"}), table_for(version))) == [(level, rule)]


def test_a_flag_that_came_later_says_when() -> None:
    found = check_flags(profile(serve__flags={"shutdown-timeout": 30}), table_for("0.16.0"))
    assert "it came with 0.18.0" in found[0].text


def test_the_table_holds_together() -> None:
    data = flag_data()
    for names in (data.flags, data.variables):
        everything = [*names.always, *(name for span in names.spans for name in span.names)]
        assert len(everything) == len(set(everything))
        for span in names.spans:
            assert span.first in (*data.compared, None)
            assert span.last in (*data.compared, None)
    assert advice_for("disable-log-requests") is not None
    assert advice_for("enforce-eager") is None


@pytest.mark.skipif(not Path("/work/shared/vllm-lab/flags-0.32.0.json").exists(), reason="the shared lab is not here")
def test_the_table_agrees_with_the_real_parser_of_0_32() -> None:
    actions = json.loads(Path("/work/shared/vllm-lab/flags-0.32.0.json").read_text())["actions"]
    real = {name[2:] for action in actions for name in action["flags"] if name.startswith("--")}
    known = table_for("0.32.0")
    assert set(known.flags) <= real
    positive = {name for name in real if not (name.startswith("no-") and name[3:] in real)} - {"help"}
    assert positive - set(known.flags) <= known.doubtful


def test_the_answer_is_remembered_by_environment_and_version() -> None:
    path = "/var/lib/relaunch" + cache_path("/home/op/opt/v", "0.16.0").removeprefix("state:")
    stored = json.dumps({"version": "0.16.0", "flags": node_flags.parse_help(HELP), "variables": ["VLLM_X"]})
    there = facts(files={path: stored})
    found = cached_table(there, "~/opt/v", "0.16.0")
    assert found is not None
    assert found.asked
    assert found.flags == table().flags
    assert found.variables == {"VLLM_X"}
    assert cached_table(there, "~/opt/other", "0.16.0") is None
    assert cached_table(there, "~/opt/v", "0.17.0") is None
    for broken in (
        "",
        "{",
        "[]",
        "{}",
        '{"version": "0.16.0"}',
        '{"version": "0.16.0", "flags": 5, "variables": null}',
    ):
        assert cached_table(facts(files={path: broken}), "~/opt/v", "0.16.0") is None


def make_program(venv: Path, body: str) -> None:
    (venv / "bin").mkdir(parents=True)
    program = venv / "bin" / "vllm"
    program.write_text("#!/usr/bin/env python3\nimport sys, time\n" + body)
    program.chmod(0o755)


def test_the_program_itself_is_asked(tmp_path: Path) -> None:
    make_program(tmp_path, f"assert sys.argv[1:] == ['serve', '--help=all']\nprint({HELP!r})\n")
    package = tmp_path / "lib/python3.12/site-packages/vllm"
    package.mkdir(parents=True)
    (package / "envs.py").write_text(
        'import os\nVLLM_A: int = 1\nenvironment_variables: dict[str, object] = {\n  "VLLM_A": lambda: 1,\n  "VLLM_B": lambda: os.environ,\n}\n'
    )
    answer = node_flags.answer({"venv": str(tmp_path), "timeout": 60})
    assert answer["flags"] == node_flags.parse_help(HELP)
    assert answer["variables"] == ["VLLM_A", "VLLM_B"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("print('ImportError: no torch', file=sys.stderr); sys.exit(1)", "ended with code 1: ImportError: no torch"),
        ("print('nothing useful')", "ended with code 0: no error text"),
        ("time.sleep(60)", "gave no answer in 1 s"),
    ],
)
def test_a_program_that_gives_no_answer(tmp_path: Path, body: str, says: str) -> None:
    make_program(tmp_path, body)
    assert says in node_flags.answer({"venv": str(tmp_path), "timeout": 1 if "sleep" in body else 60})["error"]


def test_no_program(tmp_path: Path) -> None:
    assert "cannot be run: No such file" in node_flags.answer({"venv": str(tmp_path), "timeout": 5})["error"]


@pytest.mark.parametrize("name", ["node_flags.py", "node_engine.py"])
def test_what_runs_on_nodes_is_python_3_6(name: str) -> None:
    source = (Path(flags.__file__).parent / name).read_text()
    ast.parse(source, feature_version=(3, 6))


def test_pairs_of_enable_and_disable() -> None:
    """Since 0.33 help shows --disable-x where it showed --no-enable-x, and both are taken."""
    found = flags_from_help(
        "  --enable-prefix-caching, --disable-prefix-caching\n  --enforce-eager, --no-enforce-eager\n", "0.33.0"
    )
    for name, value in (
        ("enable-prefix-caching", False), ("disable-prefix-caching", True), ("no-enable-prefix-caching", True), ("enforce-eager", False),
    ):  # fmt: skip
        assert levels(check_flags(profile(serve__flags={name: value}), found)) == [("allow", "flags")], name
    assert levels(check_flags(profile(serve__flags={"disable-prefix-caching": True}), table_for("0.33.0"))) == [
        ("allow", "flags")
    ]
    assert levels(check_flags(profile(serve__flags={"disable-prefix-caching": True}), table_for("0.31.0"))) != [
        ("allow", "flags")
    ]


def test_the_examples_that_close_a_real_help_are_no_flags() -> None:
    closing = """
options:
  --config CONFIG       Read CLI options from a file.

When passing JSON CLI arguments, the following sets of arguments are equivalent:
   --json-arg '{"key1": "value1", "key2": {"key3": "value2"}}'
   --json-arg.key1 value1 --json-arg.key2.key3 value2
"""
    assert set(flags_from_help(closing).flags) == {"config"}
