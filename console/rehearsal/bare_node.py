"""What makes a bare Linux machine a practice GPU node: for test nodes with a real systemd and a real sshd.

There is no practice server there; the stand-ins find their state in /var/lib/relaunch-practice, and vLLM, installed by pip
from `console.rehearsal.vllm.wheel.build_wheel`, listens on real TCP and keeps its shared memory in /dev/shm.
"""

from __future__ import annotations

from pathlib import Path

from console.rehearsal import standins
from console.rehearsal.vllm import install

STATE = "/var/lib/relaunch-practice"
"""The folder that must exist on the node."""


def programs(python: str = "/usr/bin/python3") -> dict[str, bytes]:
    """Files for one folder of the node's PATH, by name: `nvidia-smi`, `orphan`, and the module they share. The programs
    must be executable."""
    folder = Path(standins.__file__).parent
    found = {"gpu_state.py": (install.PACKAGE / "gpu_state.py").read_bytes()}
    for name in ("nvidia_smi", "orphan"):
        head = f"#!{python} -IS\n".encode()
        found[name.replace("_", "-")] = head + (folder / f"{name}.py").read_bytes()
    return found
