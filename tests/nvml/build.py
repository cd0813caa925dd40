"""Builds the stand-in NVML library (and a program that queries it as nvidia-smi does) with the machine's C compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
NO_COMPILER = "no C compiler (cc) on this machine, so the stand-in NVML library cannot be built"


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def library(folder: Path) -> Path:
    """`libnvidia-ml.so.1` in `folder`, which goes into LD_LIBRARY_PATH."""
    made = folder / "libnvidia-ml.so.1"
    cc = compiler()
    assert cc is not None, NO_COMPILER
    subprocess.run([cc, "-O1", "-Wall", "-shared", "-fPIC", "-o", str(made), str(HERE / "standin.c")], check=True)
    return made


def query_program(folder: Path) -> Path:
    """`nvidia-smi`: one process per query, over the library in `folder`."""
    made = folder / "nvidia-smi"
    cc = compiler()
    assert cc is not None, NO_COMPILER
    subprocess.run([cc, "-O1", "-Wall", "-o", str(made), str(HERE / "query.c"), "-ldl"], check=True)
    return made
