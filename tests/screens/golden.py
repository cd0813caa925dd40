"""Text goldens: what a screen shows, as plain lines, compared with a file in goldens/.

`screen_text(app)` is the one way from a running app to text. The clock is the app's own and stands still in tests, so
nothing in the text needs to be masked. `pytest --update-goldens` writes the files anew.
"""

from __future__ import annotations

from pathlib import Path

from screens.app import ConsoleApp

GOLDENS = Path(__file__).parent / "goldens"
SIZES = ((140, 40), (80, 24))


def screen_text(app: ConsoleApp) -> str:
    """The rows of the terminal as they stand, trailing blanks removed."""
    width, height = app.size
    rows = app.screen._compositor.render_strips(app.size)
    assert len(rows) == height
    return "\n".join(row.crop(0, width).text.rstrip() for row in rows) + "\n"


def check_golden(name: str, text: str, *, update: bool) -> None:
    """`text` is what goldens/NAME.txt holds; with `update` it becomes so."""
    path = GOLDENS / f"{name}.txt"
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return
    assert path.exists(), f"no golden {path.name}: run pytest --update-goldens and read what it wrote"
    wanted = path.read_text()
    assert text == wanted, f"{path.name} differs; what is shown now:\n{text}"
