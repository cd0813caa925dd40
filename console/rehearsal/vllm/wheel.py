"""The stand-in vLLM as a real wheel, for a real `pip install vllm==VERSION --find-links FOLDER` on a test node."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from console.rehearsal.vllm.generated import modules
from console.rehearsal.vllm.install import PACKAGE, metadata


def build_wheel(folder: Path, version: str, requires: tuple[str, ...] = ()) -> Path:
    """Write `vllm-VERSION-py3-none-any.whl` into `folder`; `requires` are requirements that the installer must find too."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"vllm-{version}.dist-info"
    files: dict[str, bytes] = {
        f"vllm/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes() for path in sorted(PACKAGE.rglob("*.py"))
    }
    files |= {f"vllm/{name}": text.encode() for name, text in modules(version, None).items()}
    files[f"{info}/METADATA"] = metadata(version, requires).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: relaunch\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n"
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    target = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data)
    return target


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
