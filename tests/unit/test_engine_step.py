"""The engine step: what is there already, what is never touched, and the job's script run for real with a small uv."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from console.deploy import node_engine
from console.deploy.node_engine import MARKER, building_file
from console.deploy.step import Needed, Satisfied
from console.deploy.steps import engine
from console.errors import DownloadFailed, Refused
from console.node.jobs import JobState
from tests.unit.profile_samples import facts, profile, venv
from tests.unit.test_preflight import Quiet, context

UV = """\
#!/usr/bin/env python3
import os, sys
print("uv", *sys.argv[1:], flush=True)
if sys.argv[1] == "venv":
    os.makedirs(sys.argv[-1] + "/bin", exist_ok=True)
    open(sys.argv[-1] + "/pyvenv.cfg", "w").close()
elif os.environ.get("FAKE_FAIL"):
    print("  × No solution found when resolving dependencies:", file=sys.stderr)
    sys.exit(1)
else:
    open(os.path.dirname(os.path.dirname(sys.argv[4])) + "/installed", "w").write(" ".join(sys.argv[1:]))
"""


def job(folder: Path, ask: dict[str, Any], **environment: str) -> subprocess.CompletedProcess[str]:
    """The job's script as the job runs it: in its own folder, with its question in a file."""
    folder.mkdir(exist_ok=True)
    (folder / "install.py").write_bytes(Path(node_engine.__file__).read_bytes())
    (folder / "ask.json").write_text(json.dumps(ask))
    return subprocess.run(
        [sys.executable, "-I", "install.py"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def ask(tmp_path: Path) -> dict[str, Any]:
    uv = tmp_path / "uv"
    uv.write_text(UV.replace("/usr/bin/env python3", sys.executable))
    uv.chmod(0o755)
    return {
        "do": "install", "venv": str(tmp_path / "opt/vllm-0.16.0"), "version": "0.16.0", "packages": ["blobfile>=3"],
        "python": "python3.12", "index": "", "uv": str(uv), "run": "r1",
    }  # fmt: skip


def test_a_new_environment_is_made_and_marked(tmp_path: Path, ask: dict[str, Any]) -> None:
    done = job(tmp_path / "job", ask)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = Path(ask["venv"])
    assert f"uv venv --python python3.12 {folder}" in done.stdout
    assert (folder / "installed").read_text() == f"pip install --python {folder}/bin/python vllm==0.16.0 blobfile>=3"
    assert json.loads((folder / MARKER).read_text())["run"] == "r1"
    assert not Path(building_file(str(folder))).exists()
    steps = [json.loads(line)["relaunch_engine"]["done"] for line in done.stdout.splitlines() if line.startswith("{")]
    assert steps == [0, 1, 3]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("https://index.example/simple", "--index-url https://index.example/simple"),
        ("/srv/wheels", "--no-index --find-links /srv/wheels"),
    ],
)
def test_an_index_or_a_folder_of_wheels(tmp_path: Path, ask: dict[str, Any], index: str, words: str) -> None:
    assert job(tmp_path / "job", {**ask, "index": index}).returncode == 0
    assert words in (Path(ask["venv"]) / "installed").read_text()


def test_what_is_not_ours_is_left_alone(tmp_path: Path, ask: dict[str, Any]) -> None:
    folder = Path(ask["venv"])
    folder.mkdir(parents=True)
    (folder / "precious").write_text("x")
    done = job(tmp_path / "job", ask)
    assert done.returncode == 10
    assert "was not made by Relaunch" in done.stdout
    assert (folder / "precious").exists()


def test_a_link_is_never_followed(tmp_path: Path, ask: dict[str, Any]) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / "precious").write_text("x")
    folder = Path(ask["venv"])
    folder.parent.mkdir(parents=True)
    folder.symlink_to(target)
    Path(building_file(str(folder))).write_text("{}")
    assert job(tmp_path / "job", ask).returncode == 10
    assert (target / "precious").exists()


def test_an_interrupted_job_begins_again(tmp_path: Path, ask: dict[str, Any]) -> None:
    folder = Path(ask["venv"])
    done = job(tmp_path / "job", ask, FAKE_FAIL="1")
    assert done.returncode == 12
    assert Path(building_file(str(folder))).exists()
    (folder / "half").write_text("x")
    assert job(tmp_path / "job", ask).returncode == 0
    assert not (folder / "half").exists()
    assert (folder / "installed").exists()


def test_no_interpreter(tmp_path: Path, ask: dict[str, Any]) -> None:
    done = job(tmp_path / "job", {**ask, "uv": "", "python": "python9.9"})
    assert done.returncode == 11
    assert "error: python9.9: No such file or directory" in done.stdout


def test_only_what_this_run_made_is_removed(tmp_path: Path, ask: dict[str, Any]) -> None:
    job(tmp_path / "job", ask)
    assert node_engine.remove({"venv": ask["venv"], "run": "other"}) == {"removed": False}
    assert Path(ask["venv"]).exists()
    assert node_engine.remove({"venv": ask["venv"], "run": "r1"}) == {"removed": True}
    assert not Path(ask["venv"]).exists()
    assert node_engine.remove({"venv": ask["venv"], "run": "r1"}) == {"removed": False}


async def test_check() -> None:
    async def outcome(**changes: Any) -> Any:
        return await engine.STEP.check(context(profile(), facts(**changes), Quiet())[0])

    there = {"~/opt/vllm-0.16.0": venv()}
    satisfied = await outcome(venvs=there)
    assert isinstance(satisfied, Satisfied)
    assert satisfied.evidence == "vLLM 0.16.0 in /home/op/opt/vllm-0.16.0, Python 3.12.3"
    assert isinstance(await outcome(), Needed)
    half = {building_file("/home/op/opt/vllm-0.16.0"): "{}"}
    finish = await outcome(venvs=there, files=half)
    assert isinstance(finish, Needed)
    assert finish.changes[0].text.startswith("finish")
    with pytest.raises(Refused, match=r"holds vLLM 0\.15\.0"):
        await outcome(venvs={"~/opt/vllm-0.16.0": venv("0.15.0")})


def test_the_question_asks_for_the_mark_beside_the_environment() -> None:
    assert engine.question(profile()).read == ("~/opt/.vllm-0.16.0.relaunch-building.json",)


def test_the_job_is_the_same_for_the_same_environment() -> None:
    one, _ = context(profile(), facts(), Quiet())
    two, _ = context(profile(), facts(), Quiet())
    two.run = "another"
    assert engine.job_spec(one).name == engine.job_spec(two).name
    other, _ = context(profile(vllm__packages=["x"]), facts(), Quiet())
    assert engine.job_spec(other).name != engine.job_spec(one).name
    assert engine.job_spec(one).user is None
    root, _ = context(profile(vllm__venv="/opt/v"), facts(), Quiet())
    assert engine.job_spec(root).user == "root"


@pytest.mark.parametrize(
    ("code", "log", "kind", "says"),
    [
        (10, ["error: /x exists and was not made by Relaunch"], Refused, "/x exists"),
        (11, ["$ python3 -m venv", "error: python9: No such file"], DownloadFailed, "no environment could be made"),
        (
            12,
            ["Resolved", "  × No solution found when resolving", "  ╰─▶ Because"],
            DownloadFailed,
            "No solution found",
        ),
        (12, ["ERROR: No matching distribution found for vllm==9"], DownloadFailed, "No matching distribution"),
        (12, ["OSError: [Errno 28] No space left on device"], DownloadFailed, "No space left"),
        (None, [], DownloadFailed, "ended as lost"),
    ],
)
def test_why_it_failed(code: int | None, log: list[str], kind: type[Exception], says: str) -> None:
    ctx, _ = context(profile(), facts(), Quiet())
    error = engine.failure(ctx, JobState("engine", "lost" if code is None else "failed", code=code), log)
    assert isinstance(error, kind)
    assert says in error.message
    assert error.remedy
