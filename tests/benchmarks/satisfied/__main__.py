"""A redeploy in which all is satisfied, on a real systemd and OpenSSH node, against Ansible and pyinfra with the same checks.

Whole processes, in turn, wall and CPU: `relaunch redeploy`, `ansible-playbook` (11 tasks), `pyinfra` (6 operations). Then, on one open
connection: how many commands a satisfied redeploy runs beside the facts script (aim 12 or fewer), and its time in
multiples of one bare exec. Needs root; Ansible and pyinfra are installed into a virtual environment of their own, kept in
.pytest_cache.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from console.deploy.script import load_script
from console.deploy.store import open_store
from console.engine import Engine, RunOptions, agree
from console.node.base import Argv
from console.node.ssh import connect
from tests.benchmarks.figures import in_turn
from tests.node.gpu_box import GpuBox, furnish, gpu_box
from tests.node.lab import CACHE, Machine, open_lab

HERE = Path(__file__).parent
PEERS = CACHE.parent / "bench-peers"
RELAUNCH = str(Path(sys.executable).parent / "relaunch")
RUNS = 5


def peers() -> Path:
    """A folder with ansible-playbook and pyinfra."""
    if not (PEERS / "bin" / "pyinfra").exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        pip = [str(PEERS / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "ansible-core", "pyinfra"], check=True)
    return PEERS / "bin"


def profile_file(box: GpuBox, folder: Path) -> Path:
    import json

    path = folder / "rehearsal.yaml"
    path.write_text(json.dumps(box.profile.model_dump(mode="json", exclude_defaults=True)))
    return path


async def deploy(box: GpuBox) -> None:
    with open_store() as store:
        async with connect(box.machine.target()) as node:
            end = await Engine(node, box.profile, store).run(load_script("redeploy"), RunOptions(confirm=agree))
    if end.code:
        raise SystemExit(f"the first redeploy failed: {end.text}")


async def counted(box: GpuBox) -> None:
    """Commands of a satisfied redeploy, and its time in multiples of a bare exec."""
    with open_store() as store:
        async with connect(box.machine.target()) as node:
            bare = []
            for _ in range(30):
                began = time.perf_counter()
                await node.run(("true",), timeout=10, mutates=False)
                bare.append(time.perf_counter() - began)
            engine = Engine(node, box.profile, store)
            facts = []
            for _ in range(5):
                began = time.perf_counter()
                await engine.facts()
                facts.append(time.perf_counter() - began)
            calls: list[Argv] = []
            run, stream = node.run, node.stream

            async def listen(argv: Argv, **how: Any) -> Any:
                calls.append(argv)
                return await run(argv, **how)

            def listen_stream(argv: Argv, **how: Any) -> Any:
                calls.append(argv)
                return stream(argv, **how)

            node.run, node.stream = listen, listen_stream  # type: ignore[method-assign, assignment]
            spent = []
            for _ in range(RUNS):
                calls.clear()
                began = time.perf_counter()
                end = await engine.run(load_script("redeploy"), RunOptions(confirm=agree))
                spent.append(time.perf_counter() - began)
                if not end.text.startswith("already so"):
                    raise SystemExit(f"not satisfied: {end.text}")
    exec_, facts_, all_ = map(statistics.median, (bare, facts, spent))
    print(f"commands beside the facts script: {len(calls) - 1}; aim 12 or fewer")
    print(
        f"on an open connection: {all_ * 1000:.0f} ms in all, facts {facts_ * 1000:.0f} ms, one bare exec {exec_ * 1000:.1f} ms; "
        f"beside the facts {(all_ - facts_) / exec_:.1f} bare execs"
    )


def ssh_words(machine: Machine) -> list[str]:
    return [
        f"ansible_host={machine.address}", "ansible_user=root", f"ansible_ssh_private_key_file={CACHE / 'id_ed25519'}",
        f"ansible_ssh_common_args='-o UserKnownHostsFile={machine.folder / 'known_hosts'}'",
        "ansible_python_interpreter=/usr/bin/python3",
    ]  # fmt: skip


def main() -> None:
    home = tempfile.mkdtemp(prefix="relaunch-bench-")
    os.environ |= {
        "XDG_STATE_HOME": f"{home}/state",
        "XDG_CACHE_HOME": f"{home}/cache",
        "XDG_CONFIG_HOME": f"{home}/config",
    }
    with open_lab() as lab:
        machine = lab.boot("bench")
        furnish(machine, Path(tempfile.mkdtemp(dir=home)))
        asyncio.run(measure(machine, Path(home)))


async def measure(machine: Machine, home: Path) -> None:
    async with gpu_box(machine, Path(tempfile.mkdtemp(dir=home))) as box:
        await deploy(box)
        await counted(box)
        await asyncio.to_thread(against_peers, box, home)


def against_peers(box: GpuBox, home: Path) -> None:
    machine, tools = box.machine, peers()
    nodes = home / "config" / "relaunch"
    nodes.mkdir(parents=True, exist_ok=True)
    (nodes / "nodes.yaml").write_text(
        f"nodes:\n  bench:\n    host: {machine.address}\n    user: root\n    identity: {CACHE / 'id_ed25519'}\n"
        f"    known_hosts: {machine.folder / 'known_hosts'}\n"
    )
    ours = [RELAUNCH, "--node", "bench", "--profile", str(profile_file(box, home)), "redeploy"]
    unit = home / "vllm-kimi.service"
    unit.write_text(machine.ssh("cat /etc/systemd/system/vllm-kimi.service"))
    inventory = home / "inventory"
    inventory.write_text(f"bench {' '.join(ssh_words(machine))}\n")
    playbook = [
        str(tools / "ansible-playbook"),
        "-i",
        str(inventory),
        str(HERE / "playbook.yaml"),
        "-e",
        f"unit={unit}",
    ]
    deploy_file = [
        str(tools / "pyinfra"), "-y", machine.address, "--user", "root", "--key", str(CACHE / "id_ed25519"),
        "--data", f"ssh_known_hosts_file={machine.folder / 'known_hosts'}", "--data", f"unit={unit}", str(HERE / "deploy.py"),
    ]  # fmt: skip
    calm = {"env": os.environ | {"ANSIBLE_NOCOWS": "1"}}
    in_turn("Ansible, 11 tasks, against relaunch, whole processes", playbook, ours, 3, aim="10 or more", **calm)
    in_turn("pyinfra, 6 operations, against relaunch, whole processes", deploy_file, ours, 9, aim="2 or more")


if __name__ == "__main__":
    main()
