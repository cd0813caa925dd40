"""The sandbox as an operator first finds it: the old model serving, an empty place for the new one.

Runs as a program of its own (`python -m console.rehearsal.seed STATE`), beside the server's start. Idempotent: what is
there already stays, since the sandbox outlives the server as a disk outlives a reboot; only the programs in ROOT/bin are
made anew, for they belong to the console's version.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from console.rehearsal.init.pid1 import TARGET
from console.rehearsal.layout import Layout

OLD_UNIT = "vllm-glm5.service"
OLD_VENV = "opt/vllm-0.33.0"
OLD_VERSION = "0.33.0"
OLD_MODEL = "srv/models/GLM-5-NVFP4"
OLD_PORT = 8000
_FOLDERS = (
    "bin", "dev/shm", "etc/systemd/system", "gpu", "opt", "run/systemd/transient", "srv/models", "sys/fs/cgroup",
    "tmp", "var/lib", "var/log/journal",
)  # fmt: skip
_STANDINS = Path(__file__).with_name("standins")


def build(layout: Layout) -> None:
    """Make what is missing of ROOT. What a reboot clears is cleared."""
    for folder in ("dev/shm", "run/systemd/transient", "sys/fs/cgroup", "gpu"):
        for left in (layout.root / folder).glob("*"):
            if left.name != "config.json":
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    for folder in _FOLDERS:
        (layout.root / folder).mkdir(parents=True, exist_ok=True)
    (layout.root / "dev/kmsg").touch()
    install_programs(layout.bin)
    if not (layout.root / ".seeded").exists():
        _old_service(layout)
        (layout.root / ".seeded").touch()


def install_programs(folder: Path) -> None:
    """Every stand-in under its name, and `python3` as the interpreter that runs the console."""
    python = sys._base_executable if hasattr(sys, "_base_executable") else sys.executable
    for source in sorted(_STANDINS.glob("[a-z]*.py")):
        script = f'#!/bin/sh\nexec {shlex.quote(python)} -I -S {shlex.quote(str(source))} "$@"\n'
        target = folder / source.stem.replace("_", "-")
        staged = target.with_name(f".{target.name}.new")
        staged.write_text(script)
        staged.chmod(0o755)
        staged.rename(target)
    link = folder / "python3"
    link.unlink(missing_ok=True)
    link.symlink_to(python)


def _old_service(layout: Layout) -> None:
    """The model that serves before a redeploy: its files, its environment, its unit, enabled."""
    from console.rehearsal.checkpoint import make_old_checkpoint
    from console.rehearsal.vllm.install import install_vllm

    make_old_checkpoint(layout.root / OLD_MODEL)
    install_vllm(layout.root, layout.root / OLD_VENV, OLD_VERSION)
    unit = layout.units / OLD_UNIT
    unit.write_text(old_unit_text(layout))
    wants = layout.units / f"{TARGET}.wants"
    wants.mkdir(exist_ok=True)
    (wants / OLD_UNIT).symlink_to(unit)


def old_unit_text(layout: Layout) -> str:
    """A unit as a colleague would have written it by hand, before Relaunch."""
    return f"""\
[Unit]
Description=vLLM GLM-5 NVFP4
After=network-online.target

[Service]
Type=exec
WorkingDirectory=~
Environment=NCCL_P2P_LEVEL=SYS NCCL_PROTO=LL
ExecStart=%h/{OLD_VENV}/bin/vllm serve %h/{OLD_MODEL} --served-model-name glm-5 --tensor-parallel-size 8 \\
    --kv-cache-dtype fp8 --gpu-memory-utilization 0.86 --host 127.0.0.1 --port {OLD_PORT}
Restart=on-failure
RestartSec=5
TimeoutStopSec=10

[Install]
WantedBy={TARGET}
"""


def main() -> int:
    build(Layout(Path(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
