"""What the screens' tests share: a source that stands still, an app over it, and the golden files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from console.deploy.store import Store
from console.live import Glance
from console.logs.harmless import harmless
from console.logs.spool import Spool
from console.triage import load_rules
from screens.app import ConsoleApp
from screens.glyphs import ASCII, UNICODE
from screens.source import FixedSource, Moment
from tests.screens.golden import by_colour_alone, check_golden, colours_left, screen_text

NOW = Moment(wall=1_760_000_287.0, mono=5_000.0)
"""The moment at which all goldens are taken; 08:58:07 UTC."""

MakeApp: TypeAlias = Callable[..., ConsoleApp]
Golden: TypeAlias = Callable[[str, ConsoleApp], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the text goldens of the screens anew")


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clock times in goldens are UTC, wherever the tests run."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="session", autouse=True)
def known_noise() -> None:
    """The noise rules are compiled before the first screen is drawn, so that no golden depends on which test comes first."""
    harmless(load_rules())


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool(tmp_path / "service.log") as opened:
        yield opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "relaunch.db")
    yield opened
    opened.close()


@pytest.fixture
def make_app(spool: Spool, store: Store) -> MakeApp:
    """make_app(glance, ascii=False, …): an app over a source that stands still; errors in it fail the test."""

    def make(glance: Glance | None = None, *, ascii: bool = False, **given: object) -> ConsoleApp:
        source = FixedSource(glance or Glance(), spool, store)
        app = ConsoleApp(source, glyphs=ASCII if ascii else UNICODE, clock=lambda: NOW, **given)  # type: ignore[arg-type]
        app.strict = True
        return app

    return make


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """golden(name, app): what the app shows now is the golden of that name, and says the same without colour."""
    update = bool(request.config.getoption("--update-goldens"))

    def check(name: str, app: ConsoleApp) -> None:
        text = screen_text(app)
        if "ascii" in name:
            assert text.isascii(), [char for char in text if not char.isascii()]
        check_golden(name, text, update=update)
        assert by_colour_alone(app) == {}, "said by colour alone"
        assert colours_left(app) == set()

    return check
