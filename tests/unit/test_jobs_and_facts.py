"""What is asked of a node for jobs and facts, and how its answers are read. On real nodes: tests/node, tests/rehearsal."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.errors import CommandFailed, Refused, RelaunchError, UsageError
from console.node.facts import Facts, Question, facts_source, parse_facts, read_facts
from console.node.jobs import JobSpec, digest_of, job_folder, job_unit, parse_job, start_job, start_question
from console.node.local import LocalNode
from console.node.script import python_call
from console.text import Secret

SENTINEL = "hf_SENTINEL0123456789"


@pytest.fixture(scope="session")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A real answer of the facts script, from this machine as a bare sandbox."""
    root = tmp_path_factory.mktemp("root")
    (root / "m").mkdir()
    (root / "m" / "config.json").write_bytes(b'{"x": "\xff"}')
    site = root / "venv" / "lib" / "python3.12" / "site-packages"
    for name, version in (("vllm", "0.16.0"), ("huggingface_hub", "1.2.3"), ("vllm_flash", "9")):
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nVersion: no\n")
    for version in ("0.16.0", "0.33.0"):
        half = root / "half" / "lib" / "python3.12" / "site-packages" / f"vllm-{version}.dist-info"
        half.mkdir(parents=True)
        (half / "METADATA").write_text(f"Name: vllm\nVersion: {version}\n")
    (root / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.4\n")
    question = Question(
        venvs=("~/venv", "~/half"),
        folders=("~/m",),
        disks=("~/not/yet",),
        read=("~/m/*.json", "~/none"),
        ports=(1,),
        units=("a.service",),
    )
    argv, stdin = python_call("facts", facts_source(), asdict(question))
    env = {"PATH": "/usr/bin:/bin", "HOME": str(root), "RELAUNCH_PRACTICE_ROOT": str(root)}
    done = subprocess.run(argv, input=stdin, capture_output=True, check=True, env=env)
    found: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
    return found


def test_facts_of_a_sandbox(answer: dict[str, Any]) -> None:
    facts = parse_facts(answer)
    home = facts.paths.home
    assert facts.paths.state == f"{home}/var/lib/relaunch"
    venv = facts.venvs["~/venv"]
    assert (venv.exists, venv.python, venv.vllm, venv.hub) == (True, "3.12.4", "0.16.0", "1.2.3")
    assert facts.venvs[f"{home}/venv"] == venv
    assert facts.files[f"{home}/m/config.json"].encode(errors="surrogateescape") == b'{"x": "\xff"}'
    assert [entry.name for entry in facts.folders["~/m"].files] == ["config.json"]
    assert facts.disks["~/not/yet"].free > 0
    assert facts.path("~/venv") == f"{home}/venv"
    assert facts.path("state:/x") == f"{facts.paths.state}/x"
    assert facts.path("~/elsewhere") == f"{home}/elsewhere"


def test_two_versions_at_once_are_no_version(answer: dict[str, Any]) -> None:
    """A half upgraded environment: told, not guessed."""
    assert parse_facts(answer).venvs["~/half"].vllm is None
    assert any("0.16.0 and 0.33.0" in sentence for sentence in answer["missing"])


@pytest.mark.parametrize("field", ["host", "uid", "paths", "listeners", "clock", "tools", "files", "missing"])
def test_a_wrong_field_is_named(answer: dict[str, Any], field: str) -> None:
    with pytest.raises(RelaunchError, match=field):
        parse_facts(answer | {field: None})


@given(
    st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=5), st.booleans()),
        lambda inner: st.lists(inner, max_size=3),
    ),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_no_answer_crashes_otherwise(answer: dict[str, Any], junk: object, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(answer)))
    try:
        assert isinstance(parse_facts(answer | {key: junk}), Facts)
    except (RelaunchError, ValueError, TypeError):
        pass


async def test_a_node_without_sudo_is_read_all_the_same() -> None:
    """`LocalNode(sudo="never")` denies root unless the login is root."""
    facts = await read_facts(LocalNode(sudo="never"), Question())
    assert facts.host


def spec(**more: Any) -> JobSpec:
    return JobSpec(
        name="download-kimi",
        argv=("python3", "x.py", "$HOME"),
        secrets={"token": Secret(SENTINEL)},
        files={"x.py": b"1"},
        **more,
    )


def test_a_secret_stands_in_the_question_alone(answer: dict[str, Any]) -> None:
    question = start_question(spec(), parse_facts(answer))
    assert question["secrets"] == {"token": SENTINEL}
    assert SENTINEL not in json.dumps({key: value for key, value in question.items() if key != "secrets"})
    assert SENTINEL not in repr(spec())
    assert digest_of(spec()) == digest_of(spec())
    assert digest_of(spec()) != digest_of(spec(cwd="/x"))


def test_the_command_holds_nothing_of_the_job_but_its_folder(answer: dict[str, Any]) -> None:
    facts = parse_facts(answer)
    command = start_question(spec(), facts)["command"]
    assert command[-4:] == [
        "python3",
        "-I",
        f"{job_folder(facts, 'download-kimi')}/run.py",
        job_folder(facts, "download-kimi"),
    ]
    assert "--unit=relaunch-download-kimi.service" in command


def test_another_login_than_root_runs_its_jobs_itself(answer: dict[str, Any]) -> None:
    facts = parse_facts(answer | {"uid": 1001, "user": "ops"})
    assert "--property=User=ops" in start_question(spec(), facts)["command"]
    assert "--property=User=vllm" in start_question(spec(user="vllm"), facts)["command"]
    root = parse_facts(answer | {"uid": 0, "user": "root"})
    assert not any("User=" in word for word in start_question(spec(), root)["command"])


@pytest.mark.parametrize("name", ["", "A", "-a", "a b", "a/b", "..", "a" * 81, "é"])
def test_job_names(name: str) -> None:
    with pytest.raises(UsageError):
        job_unit(name)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../b", "run.py", "status.json", "", "./a", "a//b"])
def test_files_stay_in_the_jobs_folder(answer: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError):
        start_question(JobSpec(name="a", argv=("x",), files={name: b""}), parse_facts(answer))


async def test_without_systemd_nothing_is_started(answer: dict[str, Any]) -> None:
    facts = parse_facts(answer | {"tools": {"systemctl": "/usr/bin/systemctl"}})
    with pytest.raises(Refused, match="systemd-run"):
        await start_job(LocalNode(), facts, spec())


def test_states() -> None:
    told = {
        "phase": "failed",
        "code": None,
        "signal": 9,
        "stopped": False,
        "started": 1.0,
        "ended": 2.0,
        "pid": 7,
        "ticks": 8,
    }
    state = parse_job("a", {"relaunch_job": told})
    assert (state.phase, state.code, state.signal, state.ended) == ("failed", None, 9, 2.0)
    with pytest.raises(CommandFailed, match="no room"):
        parse_job("a", {"relaunch_job": {"phase": "refused", "error": "no room"}})
    with pytest.raises(Refused, match="job a cannot be put on the node: /jobs/a: No space left"):
        parse_job("a", {"relaunch_job": {"phase": "unwritten", "error": "/jobs/a: No space left on device"}})
    for answer in (None, [], {}, {"relaunch_job": {"phase": "happy"}}):
        with pytest.raises(RelaunchError):
            parse_job("a", answer)
