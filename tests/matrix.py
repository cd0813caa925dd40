"""The fault matrix and the kill loop, as a program; `tests/README.md` holds what it found, written by itself.

    python -m tests.matrix [--node real] [--steps stop,launch] [--faults kill,cut] [--missing] [--folder DIR]
    python -m tests.matrix kills --count 200 --seed 1 [--folder DIR]

Each result is written as soon as it is there, so that a run that is interrupted keeps what it has. Exit code 1: a cell that
was run, or a round, was bad; what its consoles said is in DIR/said. See `tests.matrix_cells` for what a cell is.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from console.deploy.steps import ORDER
from console.rehearsal import practice as rehearsal
from tests.field import Ground
from tests.field_practice import practice_site
from tests.matrix_cells import FAULTS, Cell, possible, run_cell
from tests.matrix_kills import Tally, kill_at_random
from tests.matrix_table import NEVER, README, Table, rewrite


@asynccontextmanager
async def ground_of(kind: str, folder: Path) -> AsyncIterator[Ground]:
    """A furnished node in `folder`, with no disk or history of an earlier call."""
    await rehearsal.reset(folder / "node")
    await asyncio.to_thread(_clear, folder)
    if kind == "real":
        from tests.field_lab import lab_site

        async with lab_site(folder) as lab:
            await lab.furnish()
            yield lab
    else:
        async with practice_site(folder) as practice:
            await practice.furnish()
            yield practice


def _clear(folder: Path) -> None:
    for pattern in ("disk-*", "home-*", "said", "wheels", "programs", "old", "new"):
        for old in folder.glob(pattern):
            shutil.rmtree(old, ignore_errors=True)


def wanted(table: Table, steps: Sequence[str], faults: Sequence[str], *, missing: bool) -> list[tuple[str, str]]:
    """The cells to run; those that cannot be are written down as such."""
    cells = []
    for step in steps:
        for fault in faults:
            if not possible(table.kind, step, fault):
                table.put(step, fault, NEVER)
            elif not missing or table.empty(step, fault):
                cells.append((step, fault))
    return cells


async def matrix(folder: Path, table: Table, cells: Sequence[tuple[str, str]]) -> int:
    """Run the cells and write each one down; how many were bad."""
    bad = 0
    async with ground_of(table.kind, folder) as ground:
        for step, fault in cells:
            cell = await run_cell(ground, step, fault)
            bad += bool(cell.trouble)
            table.put(step, fault, str(cell))
            print(f"{step:<11} {fault:<10} {cell.seconds:6.1f} s  {cell}", flush=True)
            keep_words(folder / "said", cell)
    return bad


def keep_words(folder: Path, cell: Cell) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{cell.step}-{cell.fault}.txt").write_text("\n\n---\n\n".join((str(cell), *cell.told)) + "\n")


async def kills(folder: Path, page: Path, kind: str, count: int, seed: int) -> int:
    """How many rounds were bad."""

    def write(tally: Tally) -> None:
        rewrite(page, "kills", lambda _: str(tally))

    async with ground_of(kind, folder) as ground:
        return (await kill_at_random(ground, count, seed, write)).bad


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix")
    parser.add_argument("what", nargs="?", choices=("cells", "kills"), default="cells")
    parser.add_argument("--node", choices=("rehearsal", "real"), default="rehearsal")
    parser.add_argument("--steps", default=",".join(ORDER))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--missing", action="store_true", help="only cells that are empty in the table")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--page", type=Path, default=README, help="where the results are written")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="relaunch-matrix-"))
    folder.mkdir(parents=True, exist_ok=True)
    if options.what == "kills":
        return 1 if asyncio.run(kills(folder, options.page, options.node, options.count, options.seed)) else 0
    columns = [fault for fault in FAULTS if options.node == "real" or fault != "systemd"]
    table = Table(options.page, options.node, columns)
    chosen = [fault for fault in options.faults.split(",") if fault in columns]
    cells = wanted(table, options.steps.split(","), chosen, missing=options.missing)
    return 1 if asyncio.run(matrix(folder, table, cells)) else 0


if __name__ == "__main__":
    sys.exit(main())
