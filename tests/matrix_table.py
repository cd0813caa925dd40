"""The results of the matrix in `tests/README.md`: a table for each kind of node, written cell by cell between markers.

    table = Table(README, "real", faults)
    table.empty("stop", "kill")
    table.put("stop", "kill", "killed → done, new")

Two programs may write the same page at once: each change reads it anew under a lock, and replaces it whole.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from console.deploy.steps import ORDER

README = Path(__file__).with_name("README.md")
NEVER = "–"
"""The fault cannot happen there."""
LONGEST = 160
"""Characters of a cell."""

Cells = dict[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of one kind of node on `page`."""

    page: Path
    kind: str
    faults: Sequence[str]

    def empty(self, step: str, fault: str) -> bool:
        return not self.cells().get((step, fault))

    def cells(self) -> Cells:
        return read_cells(section(self.page.read_text(), self.kind))

    def put(self, step: str, fault: str, text: str) -> None:
        def change(old: str) -> str:
            cells = read_cells(old)
            cells[step, fault] = " ".join(text.replace("|", "/").split())[:LONGEST]
            return written(cells, self.faults)

        rewrite(self.page, self.kind, change)


def read_cells(text: str) -> Cells:
    """The cells of a Markdown table by step and fault."""
    rows = [[word.strip() for word in line.strip().strip("|").split("|")] for line in text.splitlines() if "|" in line]
    if not rows:
        return {}
    return {(row[0], fault): cell for row in rows[2:] for fault, cell in zip(rows[0][1:], row[1:], strict=False)}


def written(cells: Cells, faults: Sequence[str]) -> str:
    """The table, every step a row."""
    lines = [f"| step | {' | '.join(faults)} |", f"|--|{'--|' * len(faults)}"]
    for step in ORDER:
        lines.append(f"| {step} | {' | '.join(cells.get((step, fault), '') for fault in faults)} |")
    return "\n".join(lines)


def section(page: str, name: str) -> str:
    """What stands between the markers of `name`. Raises ValueError when they are not there."""
    begin, end = _markers(name)
    start = page.index(begin) + len(begin)
    return page[start : page.index(end, start)].strip("\n")


def rewrite(path: Path, name: str, change: Callable[[str], str]) -> None:
    """Replace what stands between the markers of `name`."""
    with _alone(path):
        page = path.read_text()
        old = section(page, name)
        begin, end = _markers(name)
        start = page.index(begin) + len(begin)
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(f"{page[:start]}\n{change(old)}\n{page[page.index(end, start) :]}")
        os.replace(fresh, path)


def _markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: written by tests.matrix -->", f"<!-- end of {name} -->"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
