"""Text goldens: what a screen shows, as plain lines, compared with a file in goldens/.

`screen_text(app)` is the one way from a running app to text. The clock is the app's own and stands still in tests, so
nothing in the text needs to be masked. `pytest --update-goldens` writes the files anew. Each golden goes for colour and for
NO_COLOR: the text is the same, and what is shown must say nothing by colour alone.
"""

from __future__ import annotations

from pathlib import Path

from textual.filter import NoColor

from screens.app import ConsoleApp

GOLDENS = Path(__file__).parent / "goldens"
SIZES = ((140, 40), (80, 24))


def screen_text(app: ConsoleApp) -> str:
    """The rows of the terminal as they stand, trailing blanks removed."""
    width, height = app.size
    rows = app.screen._compositor.render_strips(app.size)
    assert len(rows) == height
    return "\n".join(row.crop(0, width).text.rstrip() for row in rows) + "\n"


def by_colour_alone(app: ConsoleApp) -> dict[str, list[str]]:
    """What a terminal without colour would lose: texts that stand on the screen in two colours and are alike without.

    Bold, dim, reverse and underlined are left to such a terminal; a sign that is plain in one place and coloured in another
    says the same in both.
    """
    looks: dict[tuple[str, str], set[str]] = {}
    for segment in (segment for row in app.screen._compositor.render_strips(app.size) for segment in row):
        style = segment.style
        if style and style.color and not style.color.is_default and segment.text.strip():
            looks.setdefault((segment.text.strip(), str(style.without_color)), set()).add(style.color.name)
    return {text: sorted(colours) for (text, _), colours in looks.items() if len(colours) > 1}


def colours_left(app: ConsoleApp) -> set[str]:
    """The colours that NO_COLOR lets through: none."""
    bare = NoColor()
    rows = app.screen._compositor.render_strips(app.size)
    cells = [segment for row in rows for segment in bare.apply(list(row), app.screen.background_colors[1])]
    styles = [segment.style for segment in cells if segment.style]
    return {
        colour.name for style in styles for colour in (style.color, style.bgcolor) if colour and not colour.is_default
    }


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
