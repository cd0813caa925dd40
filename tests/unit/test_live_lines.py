from __future__ import annotations

import pytest

from console.live import as_shown


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        ("plain", ["plain"]),
        ("", [""]),
        ("a\r\nb", ["a", "b"]),
        ("(Worker_TP0 pid=7) \rLoading:  6% | 8/119", ["(Worker_TP0 pid=7) Loading:  6% | 8/119"]),
        ("(Worker_TP0 pid=7) \rLoading:  6%\rLoading: 12%\r", ["(Worker_TP0 pid=7) Loading: 12%"]),
        ("Loading:  6%\rLoading: 12%", ["Loading: 12%"]),
        ("two\nlines", ["two", "lines"]),
    ],
)
def test_an_entry_stands_as_a_terminal_would_leave_it(message: str, lines: list[str]) -> None:
    assert as_shown(message) == lines
