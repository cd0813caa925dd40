"""Pictures of the console for the README, taken from the real program on the practice node: `make pictures`.

    python -m tests.pictures [--into pictures]

One rehearsal is driven by keys; at each place worth seeing the app's own screenshot is written as SVG, made smaller: fonts are
those of the reader, every run of text keeps its width and its blanks. Where rsvg-convert is there, PNGs beside them are for
looking at (`--png`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIZE = (124, 36)
PACE = {"load": 5.0, "tokens": 0.2, "install": 0.0, "hub": 0.1}
FONT = "ui-monospace, 'DejaVu Sans Mono', 'Cascadia Mono', Menlo, Consolas, monospace"


async def take(into: Path) -> list[Path]:
    """Drive the console and write the pictures; their paths."""
    from tests.screens.seat import Seat, seated

    taken: list[Path] = []

    async def picture(seat: Seat, name: str) -> None:
        await seat.pilot.pause()
        path = into / f"{name}.svg"
        path.write_text(smaller(seat.app.export_screenshot(title="relaunch --rehearse")))
        taken.append(path)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB", flush=True)

    async with seated("oom", size=SIZE) as seat:
        await seat.press("p")
        await seat.wait("No plan yet|verdict")
        await seat.press("p")
        await seat.wait("verdict  ✓ can be done")
        await seat.wait(r"^ enter")
        await picture(seat, "plan")
        await seat.press("q")

        await seat.wait("^ D redeploy")
        await seat.press("D")
        await seat.wait(r"\[ Cancel \]")
        await seat.press("l", "enter")
        await seat.wait(r"▶ launch")
        await seat.wait(r"shards: +[4-9]\d%")
        await seat.wait(r"TP7|shards: +9\d%")  # whose memory it is, is looked at every few seconds
        await picture(seat, "main-loading")
        await seat.wait("F fix and relaunch")
        await seat.wait("serves +vllm-glm5")
        await seat.wait("locked by", gone=True)
        await seat.wait(r" 7 ▓+░")  # whose memory it is, is looked at every few seconds
        await picture(seat, "main-failed")
        await seat.press("c")
        await seat.wait("First cause ─")
        await picture(seat, "cause")
        await seat.press("q")

        await seat.press("F")
        await seat.wait(r"\[ Cancel \]")
        await seat.press("l", "enter")
        await seat.wait("last good +release")
        await seat.press("t")
        await seat.wait("Throughput ─ run")
        await picture(seat, "throughput")
        await seat.press("q")
        await seat.press("l")
        await seat.wait("Log ─")
        await seat.press("slash")
        await seat.wait("words include")
        await seat.type("/took|kv cache|concurrency|backend|error:/ !frames")
        await seat.press("enter")
        await seat.wait("filter: /took")
        await picture(seat, "log")
    return taken


def smaller(svg: str) -> str:
    """Textual's screenshot without the fonts that it would load from elsewhere, and without what repeats itself."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;]*;", f"font-family: {FONT};", svg)
    found = re.search(r"\.(terminal-(\d+)-)matrix", svg)
    if found:
        svg = svg.replace(f"terminal-{found.group(2)}-", "t").replace(f"terminal-{found.group(2)}", "t")
    svg = re.sub(r'<clipPath id="tline-\d+">\s*<rect [^>]*/>\s*</clipPath>\s*', "", svg)
    svg = re.sub(r' clip-path="url\(#tline-\d+\)"', "", svg)
    # blanks at the ends of a run are dropped by some viewers, unless they are told not to
    svg = svg.replace("&#160;", " ").replace("<text ", '<text xml:space="preserve" ')
    return re.sub(r"\n\s+", "\n", svg).strip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--into", type=Path, default=ROOT / "pictures")
    parser.add_argument("--png", action="store_true", help="PNGs beside them, by rsvg-convert")
    options = parser.parse_args()
    options.into.mkdir(exist_ok=True)
    home = Path(tempfile.gettempdir()) / "relaunch-pictures"  # paths of it are in the pictures: no random name
    if home.exists():
        print(f"{home} exists; another run of this makes pictures, or was killed: remove it", file=sys.stderr)
        return 1
    home.mkdir(mode=0o700)
    try:
        os.environ |= {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("STATE", "CONFIG", "CACHE")}
        os.environ |= {"HOME": str(home), "RELAUNCH_PRACTICE_PACE": json.dumps(PACE)}
        taken = asyncio.run(take(options.into.resolve()))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    for path in taken if options.png else ():
        subprocess.run(("rsvg-convert", "-w", "1600", "-o", str(path.with_suffix(".png")), str(path)), check=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
