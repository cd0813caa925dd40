"""`uv` of the practice node: `uv venv PATH`, `uv pip install --python PATH/bin/python vllm==V …`, `uv --version`.

Makes real environments with the stand-in vLLM in them, and prints what uv prints, at a pace one can watch.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from console.rehearsal.vllm.install import VERSIONS, install_vllm, make_venv, site_packages
from console.rehearsal.vllm.standin.gpu_state import practice_root
from console.rehearsal.vllm.standin.pace import Pace

VERSION = "0.9.14"
# what a vLLM brings, with sizes in MiB as uv shows them while downloading
DOWNLOADS = (
    ("torch", 846.5), ("nvidia-cudnn-cu12", 674.0), ("nvidia-cublas-cu12", 566.8), ("vllm", 412.3), ("flashinfer-python", 178.9),
    ("triton", 162.4), ("transformers", 11.4), ("huggingface-hub", 0.6),
)  # fmt: skip
_WITH_VALUE = (
    "--python",
    "-p",
    "--index-url",
    "-i",
    "--extra-index-url",
    "--find-links",
    "-f",
    "--cache-dir",
    "--index",
)


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def split(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options with their values (switches with an empty one), and the rest."""
    options: dict[str, str] = {}
    words: list[str] = []
    rest = list(argv)
    while rest:
        name, equals, value = rest.pop(0).partition("=") if rest[0].startswith("-") else (rest.pop(0), "", "")
        if not name.startswith("-"):
            words.append(name)
        elif name in _WITH_VALUE and not equals:
            options[name] = rest.pop(0) if rest else ""
        else:
            options[name] = value
    return options, words


def venv(argv: Sequence[str]) -> int:
    """`uv venv`."""
    options, words = split(argv)
    folder = Path(words[0] if words else ".venv")
    wanted = options.get("--python", options.get("-p", ""))
    python = wanted if os.path.isabs(wanted) else sys.executable
    if os.path.isabs(wanted) and not os.path.exists(wanted):
        say(f"error: No interpreter found at path `{wanted}`")
        return 2
    if folder.exists() and any(folder.iterdir()) and not {"--clear", "--allow-existing"} & options.keys():
        say(
            f"error: Failed to create virtual environment\n  Caused by: A directory already exists at: {folder}\n\nhint: Use the `--clear` flag or set `UV_VENV_CLEAR=1` to replace the existing directory"
        )
        return 2
    version = ".".join(str(part) for part in sys.version_info[:3])
    say(f"Using CPython {version} interpreter at: {python}")
    say(f"Creating virtual environment at: {folder}")
    make_venv(folder, python)
    say(f"Activate with: source {folder}/bin/activate")
    return 0


def pip_install(argv: Sequence[str]) -> int:
    """`uv pip install`."""
    options, words = split(argv)
    python = options.get("--python", options.get("-p", ""))
    folder = Path(python).parent.parent if python.endswith(("/python", "/python3")) else Path(python or ".venv")
    if not (folder / "pyvenv.cfg").is_file():
        say(f"error: No virtual environment found for path `{python}`; run `uv venv` to create an environment")
        return 2
    root = practice_root()
    pace = Pace(root)
    version = ".".join(str(part) for part in sys.version_info[:3])
    say(f"Using Python {version} environment at: {folder}")
    wanted = next((word for word in words if re.match(r"vllm\s*(==|$)", word)), None)
    number = wanted.partition("==")[2].strip() if wanted else ""
    if wanted and number and number not in VERSIONS:
        say("  × No solution found when resolving dependencies:")
        say(
            f"  ╰─▶ Because there is no version of vllm=={number} and you require vllm=={number}, we can conclude that your requirements are unsatisfiable."
        )
        return 1
    number = number or VERSIONS[-1]
    if wanted and (site_packages(folder) / f"vllm-{number}.dist-info").is_dir():
        say("Audited 1 package in 12ms")
        return 0
    _wait(pace, 0.3)
    say(f"Resolved {148 + len(words)} packages in 1.21s")
    started = time.monotonic()
    for name, size in DOWNLOADS:
        say(f"Downloading {name} ({size}MiB)")
    for name, _ in sorted(DOWNLOADS, key=lambda item: item[1]):
        _wait(pace, 0.2)
        say(f" Downloaded {name}")
    say(f"Prepared {148 + len(words)} packages in {time.monotonic() - started:.2f}s")
    if wanted:
        install_vllm(root, folder, number)
    _wait(pace, 0.2)
    say(f"Installed {148 + len(words)} packages in 890ms")
    say(" + huggingface-hub==2.4.0\n + torch==2.9.1" + (f"\n + vllm=={number}" if wanted else ""))
    return 0


def _wait(pace: Pace, seconds: float) -> None:
    time.sleep(seconds * pace.install)


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    args = [
        arg
        for arg in argv
        if arg not in ("--quiet", "-q", "--no-progress", "--offline", "--no-config", "--no-cache", "--verbose")
    ]
    match args:
        case ["--version" | "-V" | "version", *_] | ["self", "version", *_]:
            sys.stdout.write(f"uv {VERSION}\n")
            return 0
        case ["venv", *rest]:
            return venv(rest)
        case ["pip", "install", *rest]:
            return pip_install(rest)
    say(
        f"error: unrecognized subcommand '{args[0] if args else ''}'\n\nUsage: uv [OPTIONS] <COMMAND>\n\nFor more information, try '--help'."
    )
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
