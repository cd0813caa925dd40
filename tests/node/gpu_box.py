"""A real systemd and OpenSSH node that looks like a GPU box: what a test machine lacks is a stand-in, all else is real.

Real: systemd, sshd, sudo, journald, pip and venv, huggingface_hub, TCP. Stand-ins: the GPUs (`nvidia-smi`), vLLM (a wheel
that pip installs), the model hub (served from this machine over the lab's network). The old model serves when this is
done, in an environment that pip made, under a unit that was written by hand.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from console.profile.load import find_profile
from console.profile.model import Profile
from console.rehearsal.checkpoint import make_checkpoint, make_old_checkpoint
from console.rehearsal.hub import start_hub
from console.rehearsal.vllm.wheel import build_wheel
from tests.node.lab import CACHE, Machine

PRACTICE = "/var/lib/relaunch-practice"
WHEELS = "/opt/wheels"
OLD_VERSION, NEW_VERSION = "0.33.0", "0.16.0"
HUB_PACKAGE = "huggingface_hub"
_STANDINS = Path(sys.modules["console"].__file__ or "").parent / "rehearsal"
OLD_UNIT = f"""\
[Unit]
Description=vLLM GLM-5 NVFP4

[Service]
Type=exec
ExecStart=/opt/vllm-{OLD_VERSION}/bin/vllm serve /srv/models/GLM-5-NVFP4 --served-model-name glm-5 \\
    --tensor-parallel-size 8 --kv-cache-dtype fp8 --gpu-memory-utilization 0.86 --host 127.0.0.1 --port 8000
Restart=on-failure
TimeoutStopSec=10

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class GpuBox:
    """The node, the profile that is deployed on it, and the hub it downloads from."""

    machine: Machine
    profile: Profile
    endpoint: str


def wheels(folder: Path) -> Path:
    """Wheels of both stand-in versions, of huggingface_hub and of all it needs; kept between test runs."""
    kept = CACHE / "wheels"
    if not any(kept.glob("huggingface_hub-*.whl")):
        kept.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
             "--constraint", str(_pins(folder)), "--dest", str(kept), HUB_PACKAGE],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    ready = folder / "wheels"
    shutil.copytree(kept, ready)
    for version in (OLD_VERSION, NEW_VERSION):
        build_wheel(ready, version, requires=(HUB_PACKAGE,))
    return ready


def _pins(folder: Path) -> Path:
    """The versions that this environment runs with, so that the node gets the same."""
    frozen = subprocess.run(
        [sys.executable, "-m", "pip", "freeze", "--exclude-editable"], check=True, capture_output=True
    )
    pins = folder / "pins.txt"
    pins.write_bytes(frozen.stdout)
    return pins


def furnish(machine: Machine, folder: Path) -> None:
    """Turn a bare node into the box: GPUs, wheels, the old model serving."""
    machine.put_tree(wheels(folder), WHEELS)
    machine.put_tree(_programs(folder), "/usr/local/lib/practice")
    machine.put(
        "/usr/local/bin/nvidia-smi", b'#!/bin/sh\nexec python3 -I -S /usr/local/lib/practice/nvidia_smi.py "$@"\n'
    )
    machine.put(f"{PRACTICE}/pace.json", b'{"load": 0.1, "tokens": 0.2, "hub": 0}', 0o644)
    make_old_checkpoint(folder / "old")
    machine.put_tree(folder / "old", "/srv/models/GLM-5-NVFP4")
    machine.put("/etc/systemd/system/vllm-glm5.service", OLD_UNIT.encode(), 0o644)
    machine.ssh(
        f"mkdir -p {PRACTICE} && python3 -m venv /opt/vllm-{OLD_VERSION} && "
        f"/opt/vllm-{OLD_VERSION}/bin/pip -q install --disable-pip-version-check --no-index --find-links {WHEELS} "
        f"vllm=={OLD_VERSION} && systemctl daemon-reload && systemctl enable -q --now vllm-glm5.service"
    )


def _programs(folder: Path) -> Path:
    programs = folder / "programs"
    programs.mkdir()
    for source in (_STANDINS / "standins" / "nvidia_smi.py", _STANDINS / "vllm" / "standin" / "gpu_state.py"):
        shutil.copy(source, programs)
    return programs


@asynccontextmanager
async def gpu_box(machine: Machine, folder: Path) -> AsyncIterator[GpuBox]:
    """The furnished node, with its hub while the context lasts."""
    make_checkpoint(folder / "new")
    profile = find_profile("rehearsal")
    host = machine.address.rsplit(".", 1)
    gateway = machine.ssh("ip -4 neigh show | cut -d' ' -f1").split() or [f"{host[0]}.1"]
    with socket.create_server((gateway[0], 0)) as listening:
        endpoint, close = await start_hub({profile.model.repo: folder / "new"}, sock=listening)
        address = f"http://{gateway[0]}:{endpoint.rsplit(':', 1)[1]}"
        try:
            yield GpuBox(machine, box_profile(profile, address), address)
        finally:
            await close()


def box_profile(profile: Profile, endpoint: str) -> Profile:
    """The rehearsal's profile with the folders of a real machine, its environments made by pip."""
    return profile.model_copy(
        update={
            "model": profile.model.model_copy(update={"folder": "/srv/models/Kimi-K2.5-NVFP4", "endpoint": endpoint}),
            "vllm": profile.vllm.model_copy(update={"venv": f"/opt/vllm-{NEW_VERSION}", "index_url": WHEELS}),
        }
    )
