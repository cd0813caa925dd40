"""Runs on the node as a detached job: a new virtual environment with one vLLM, or the removal of one that a run made.

Standard library only, Python 3.6. The question stands in `ask.json` beside it, or in the global ASK when it is asked
directly: {"do": "install" | "remove", "venv", "version", "packages", "python", "index", "uv", "run"}. A file beside the
environment, written before anything else, says that it is being made; a mark inside, written last, says by which run.
Only what the first names is ever made anew, only what carries the second is ever removed.
Exit codes: 0 done, 10 the folder is not ours, 11 no environment could be made, 12 the installation failed.
"""

import json
import os
import shutil
import subprocess
import sys
from typing import Any, Dict, List, Optional

ASK = globals().get("ASK", {})  # type: Dict[str, Any]

MARKER = ".relaunch-engine.json"


def say(text: str, done: int) -> None:
    sys.stdout.write(json.dumps({"relaunch_engine": {"text": text, "done": done, "total": 3}}) + "\n")
    sys.stdout.flush()


def building_file(venv: str) -> str:
    """The file that stands beside an environment while it is being made."""
    return os.path.join(os.path.dirname(venv), ".%s.relaunch-building.json" % os.path.basename(venv))


def read_mark(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path) as stream:
            data = json.load(stream)
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def write_mark(path: str, ask: Dict[str, Any]) -> None:
    with open(path + ".new", "w") as stream:
        json.dump({"version": ask["version"], "run": ask["run"]}, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(path + ".new", path)


def run(argv: List[str], environment: Dict[str, str]) -> int:
    """The exit code of a program whose output goes to the job's log."""
    sys.stdout.write("$ " + " ".join(argv) + "\n")
    sys.stdout.flush()
    try:
        return subprocess.call(argv, stdin=subprocess.DEVNULL, env=environment)
    except OSError as error:
        sys.stdout.write("error: %s: %s\n" % (argv[0], error.strerror))
        return 127


def make_argv(ask: Dict[str, Any]) -> List[str]:
    if ask["uv"]:
        return [ask["uv"], "venv", "--python", ask["python"], ask["venv"]]
    return [ask["python"], "-m", "venv", ask["venv"]]


def install_argv(ask: Dict[str, Any]) -> List[str]:
    python = os.path.join(ask["venv"], "bin", "python")
    wanted = ["vllm==" + ask["version"], *ask["packages"]]
    index = []  # type: List[str]
    if ask["index"]:
        # a folder of wheels is searched alone; an address replaces the public index
        index = (
            ["--no-index", "--find-links", ask["index"]]
            if ask["index"].startswith("/")
            else ["--index-url", ask["index"]]
        )
    if ask["uv"]:
        return [ask["uv"], "pip", "install", "--python", python, *index, *wanted]
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    return [python, "-m", "pip", "install", *quiet, *index, *wanted]


def install(ask: Dict[str, Any]) -> int:
    venv = ask["venv"]
    building = building_file(venv)
    if os.path.lexists(venv) and (os.path.islink(venv) or not os.path.isdir(venv) or os.listdir(venv)):
        if read_mark(building) is None or os.path.islink(venv):
            sys.stdout.write("error: %s exists and was not made by Relaunch\n" % venv)
            return 10
        # half made by a job that was interrupted: begun again from nothing, with the downloads in the installer's cache
        shutil.rmtree(venv)
    environment = dict(os.environ, NO_COLOR="1", UV_NO_PROGRESS="1", PYTHONUNBUFFERED="1")
    environment.pop("PYTHONPATH", None)
    say("making the environment", 0)
    os.makedirs(os.path.dirname(venv), exist_ok=True)
    write_mark(building, ask)
    if run(make_argv(ask), environment) != 0:
        return 11
    say("installing vLLM %s" % ask["version"], 1)
    if run(install_argv(ask), environment) != 0:
        return 12
    write_mark(os.path.join(venv, MARKER), ask)
    os.unlink(building)
    say("installed", 3)
    return 0


def remove(ask: Dict[str, Any]) -> Dict[str, Any]:
    """Remove the environment that the run `ask["run"]` made; anything else is left alone."""
    marker = read_mark(os.path.join(ask["venv"], MARKER))
    if marker is None or marker.get("run") != ask["run"] or os.path.islink(ask["venv"]):
        return {"removed": False}
    shutil.rmtree(ask["venv"])
    return {"removed": True}


def main() -> int:
    if ASK:
        sys.stdout.write(json.dumps(remove(ASK)) + "\n")
        return 0
    with open("ask.json") as stream:
        return install(json.load(stream))


if __name__ == "__main__":
    sys.exit(main())
