"""Putting the stand-in vLLM into a virtual environment, as uv or pip would leave it there.

The environment is a real one (pyvenv.cfg, bin/python, site-packages) without pip; huggingface_hub and what it needs are
linked in from the console's own environment, since a real vLLM brings them along.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from console.rehearsal.vllm.generated import modules

VERSIONS = ("0.16.0", "0.17.0", "0.18.0", "0.24.0", "0.33.0")
"""Versions that the practice index has."""
PACKAGE = Path(__file__).with_name("standin")
_SITE_RECORD = ".site-packages"


def install_vllm(root: Path, venv: Path, version: str, python: str = sys.executable) -> None:
    """Make `venv` where it is missing and install the stand-in of `version`; another version there is replaced.

    `root` is the practice node's ROOT: the installed program finds it even when its environment does not name it.
    """
    make_venv(venv, python)
    site = site_packages(venv)
    for old in (*site.glob("vllm-*.dist-info"), site / "vllm"):
        shutil.rmtree(old, ignore_errors=True)
    copy_package(site / "vllm", version, root)
    write_metadata(site / f"vllm-{version}.dist-info", version)
    script(venv / "bin" / "vllm", venv / "bin" / "python")
    link_hub(root, site)


def make_venv(venv: Path, python: str = sys.executable) -> None:
    """An empty environment, as `uv venv` makes it."""
    base = os.path.realpath(python)
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    site_packages(venv).mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3", f"python{sys.version_info.major}.{sys.version_info.minor}"):
        link = venv / "bin" / name
        if not link.is_symlink():
            link.symlink_to(base if name == "python" else "python")
    version = ".".join(str(part) for part in sys.version_info[:3])
    (venv / "pyvenv.cfg").write_text(
        f"home = {os.path.dirname(base)}\nimplementation = CPython\nversion = {version}\n"
        f"version_info = {version}\ninclude-system-site-packages = false\n"
    )


def site_packages(venv: Path) -> Path:
    """Where packages of the environment stand."""
    return venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def copy_package(target: Path, version: str, root: Path | None) -> None:
    """The package's files, with those that depend on the version written for it."""
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for name, text in modules(version, root).items():
        (target / name).write_text(text)


def metadata(version: str, requires: tuple[str, ...] = ()) -> str:
    """The METADATA of the distribution."""
    lines = ["Metadata-Version: 2.1", "Name: vllm", f"Version: {version}", "Summary: stand-in vLLM of a rehearsal"]
    lines.append("Requires-Python: >=3.10")
    return "\n".join([*lines, *(f"Requires-Dist: {name}" for name in requires)]) + "\n"


def write_metadata(folder: Path, version: str) -> None:
    """A dist-info folder, as an installer leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(metadata(version))
    (folder / "INSTALLER").write_text("uv\n")
    (folder / "entry_points.txt").write_text("[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n")
    (folder / "RECORD").write_text("")


def script(path: Path, python: Path) -> None:
    """A console script. A kernel cuts long interpreter lines, so that those go through /bin/sh, as pip does it."""
    body = "import sys\nfrom vllm.entrypoints.cli.main import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    if len(str(python)) < 120 and " " not in str(python):
        head = f"#!{python}\n"
    else:
        quoted = str(python).replace("\\", "\\\\").replace('"', '\\"')
        head = f"#!/bin/sh\n'''exec' \"{quoted}\" \"$0\" \"$@\"\n' '''\n"
    path.write_text(head + body)
    path.chmod(0o755)


def link_hub(root: Path, site: Path) -> None:
    """Link huggingface_hub and its dependencies into `site`, if this machine has them."""
    source = _own_site(root)
    if source is None:
        return
    for name in _closure("huggingface_hub", source):
        for entry in _top_level(name, source):
            target, link = source / entry, site / entry
            if target.exists() and not link.exists():
                link.symlink_to(target)


def _own_site(root: Path) -> Path | None:
    """The folder that huggingface_hub was imported from; kept in ROOT for stand-ins that run without site-packages."""
    record = root / _SITE_RECORD
    spec = importlib.util.find_spec("huggingface_hub")
    if spec is not None and spec.origin:
        site = Path(spec.origin).parent.parent
        if root.is_dir():
            record.write_text(json.dumps(str(site)))
        return site
    try:
        return Path(json.loads(record.read_text()))
    except (OSError, ValueError):
        return None


def _closure(name: str, site: Path) -> Iterator[str]:
    """The distribution and all it requires on this platform, as far as they are installed."""
    queue, seen = [name], set()
    while queue:
        wanted = re.sub(r"[-_.]+", "-", queue.pop()).lower()
        if wanted in seen:
            continue
        seen.add(wanted)
        found = next(iter(importlib.metadata.distributions(name=wanted, path=[str(site)])), None)
        if found is None:
            continue
        yield wanted
        required = (line for line in found.requires or () if "extra ==" not in line)
        queue += [re.split(r"[^A-Za-z0-9._-]", line.strip(), maxsplit=1)[0] for line in required]


def _top_level(name: str, site: Path) -> set[str]:
    found = next(iter(importlib.metadata.distributions(name=name, path=[str(site)])), None)
    entries = {Path(str(file)).parts[0] for file in (found.files if found else None) or ()}
    return {entry for entry in entries if entry not in ("..", "__pycache__", "/")}
