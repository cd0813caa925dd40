"""The app around the screens: failing screens, missing ones, hostile text, colour, first use, step detail, the command line."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from textual import events
from textual.app import ComposeResult

from console.events import StepChanged
from console.live import Glance
from console.node.base import LinkState
from console.node.prompts import UnknownHost
from screens import app as app_module
from screens.base import ConsoleScreen
from screens.command_line import matches
from screens.dialogs import Question, password, unknown_host
from screens.first_use import openssh_hosts, remember
from screens.source import Moment
from screens.widgets.lines import Note, line
from tests.screens import glances
from tests.screens.conftest import NOW, Golden, MakeApp
from tests.screens.golden import SIZES, screen_text


class Broken(ConsoleScreen):
    """A screen that fails as soon as it is shown."""

    def body(self) -> ComposeResult:
        yield Note([line("fine so far")])

    def show(self, glance: Glance, moment: Moment) -> None:
        raise RuntimeError("a defect")


async def test_a_screen_that_fails_says_so_and_the_console_goes_on(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    monkeypatch.setitem(app_module.SCREENS, "broken", f"{__name__}:Broken")
    app = make_app(glances.idle())
    app.strict = False
    monkeypatch.setattr(app, "_made", lambda name, **given: Broken(app.source))
    async with app.run_test(size=(140, 40)) as pilot:
        app.open("broken")
        await pilot.pause()
        await pilot.pause()
        assert "Broken failed: RuntimeError: a defect" in screen_text(app)
    assert "a defect" in _written(own_home)


def _written(home: Path) -> str:
    return "".join(path.read_text() for path in home.rglob("console-errors.log"))


async def test_a_screen_that_is_not_there_says_so(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(app_module.SCREENS, "nodes", "screens.never_written:NodesScreen")
    app = make_app(glances.idle())
    async with app.run_test(size=(140, 40)) as pilot:
        app.open("nodes")
        await pilot.pause()
        await pilot.pause()
        assert "not here yet" in screen_text(app)
        assert type(app.screen).__name__ == "MainScreen"


async def test_escape_sequences_from_a_node_do_not_reach_the_terminal(make_app: MakeApp) -> None:
    bad = "evil\x1b]2;owned\x07\x1b[31m\x9b0mtext"
    glance = replace(
        glances.failed(),
        node=f"gpu{bad}",
        link=LinkState(False, None, bad),
        run=glances.run(StepChanged(time=NOW.wall, step="inspect", state="failed", detail=bad)),
    )
    app = make_app(glance)
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.pause()
        text = screen_text(app)
        assert "eviltext" in text
        assert not [char for char in text if (char != "\n" and ord(char) < 32) or 0x7F <= ord(char) < 0xA0]


async def test_markup_in_remote_text_is_text(make_app: MakeApp) -> None:
    glance = replace(
        glances.idle(),
        run=glances.run(StepChanged(time=NOW.wall, step="inspect", state="failed", detail="[bold]x[/nope]")),
    )
    app = make_app(glance)
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.pause()
        assert "[bold]x[/nope]" in screen_text(app)


async def test_without_colour_the_words_are_the_same(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for value in (None, "1"):
        if value:
            monkeypatch.setenv("NO_COLOR", value)
        app = make_app(glances.failed())
        assert app.no_color is bool(value)
        async with app.run_test(size=(140, 40)) as pilot:
            await pilot.pause()
            texts.append(screen_text(app))
            if value:
                colours = {
                    segment.style.color.name
                    for row in app.screen._compositor.render_strips(app.size)
                    for segment in app._filters[-1].apply(list(row), app.screen.background_colors[1])
                    if segment.style and segment.style.color
                }
                assert colours <= {"default"}
    assert texts[0] == texts[1]


@pytest.mark.parametrize("size", SIZES, ids=["140x40", "80x24"])
@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
async def test_golden_first_use(
    size: tuple[int, int], ascii_only: bool, make_app: MakeApp, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("screens.first_use.openssh_config_files", lambda: ())
    app = make_app(Glance(link=LinkState(False)), first="first-use", ascii=ascii_only)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        golden(f"first-use-{size[0]}x{size[1]}-{'ascii' if ascii_only else 'unicode'}", app)


@pytest.mark.parametrize("size", SIZES, ids=["140x40", "80x24"])
@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
async def test_golden_step_detail(size: tuple[int, int], ascii_only: bool, make_app: MakeApp, golden: Golden) -> None:
    app = make_app(glances.loading(), ascii=ascii_only)
    async with app.run_test(size=size) as pilot:
        await pilot.press("enter")
        await pilot.pause()
        golden(f"step-launch-{size[0]}x{size[1]}-{'ascii' if ascii_only else 'unicode'}", app)
        await pilot.press("q")
        await pilot.pause()
        assert type(app.screen).__name__ == "MainScreen"


async def test_a_step_shows_its_findings_and_its_diff(make_app: MakeApp) -> None:
    app = make_app(glances.finished())
    async with app.run_test(size=(140, 40)) as pilot:
        app.open("step", step="unit")
        await pilot.pause()
        assert "+  --max-model-len 262144" in screen_text(app)
        await pilot.press("q")
        app.open("step", step="preflight")
        await pilot.pause()
        await pilot.pause()
        assert "expect a slower all-reduce" in screen_text(app)


@pytest.mark.parametrize("size", SIZES, ids=["140x40", "80x24"])
@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
async def test_golden_dialog_and_command_line(
    size: tuple[int, int], ascii_only: bool, make_app: MakeApp, golden: Golden
) -> None:
    signs = "ascii" if ascii_only else "unicode"
    app = make_app(glances.idle(), ascii=ascii_only)
    async with app.run_test(size=size) as pilot:
        await pilot.press("D")
        await pilot.pause()
        golden(f"dialog-redeploy-{size[0]}x{size[1]}-{signs}", app)
        await pilot.press("q", "colon", "s", "a")
        await pilot.pause()
        golden(f"command-line-{size[0]}x{size[1]}-{signs}", app)


def test_completion_knows_beginnings_aliases_and_parts() -> None:
    assert matches("red")[0][0] == "redeploy"
    assert matches("deploy")[0][0] == "redeploy"
    assert "run launch" in [name for name, _ in matches("launch")]


async def test_an_unknown_command_names_the_nearest(make_app: MakeApp) -> None:
    app = make_app(glances.idle())
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.press("colon", *"rolback", "enter")
        await pilot.pause()
        await pilot.pause()
        assert "did you mean rollback?" in screen_text(app)


async def test_prompts_of_a_login_are_dialogs(make_app: MakeApp) -> None:
    import asyncio

    app = make_app(glances.idle())
    async with app.run_test(size=(80, 24)) as pilot:
        question = UnknownHost("gpu1", "gpu1", 22, "ssh-ed25519", "SHA256:abc", "/x/known_hosts")
        asked = asyncio.ensure_future(app.answer(lambda: unknown_host(question)))
        await pilot.pause()
        await pilot.pause()
        assert isinstance(app.screen, Question)
        assert "SHA256:abc" in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert await asked is False
        given = asyncio.ensure_future(app.answer(lambda: password("sudo on gpu1")))
        await pilot.pause()
        await pilot.pause()
        await pilot.press(*"hunter2")
        await pilot.pause()
        assert "hunter2" not in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
        secret = await given
        assert secret is not None
        assert secret.reveal() == "hunter2"


def test_hosts_of_the_openssh_config_are_offered_without_patterns(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host gpu7\n  User root\n")
    config = tmp_path / "config"
    config.write_text(f"Include {tmp_path}/more\nHost gpu1 *.lan !bad gpu2\n  User ops\nHost *\n  Port 22\n")
    assert openssh_hosts((str(config), str(tmp_path / "absent"))) == ("gpu7", "gpu1", "gpu2")


def test_a_chosen_host_is_written_to_the_nodes_file_and_the_rest_stays(own_home: Path) -> None:
    path = remember("gpu1")
    path.write_text("# mine\nnodes:\n  lab: {host: lab.example.org}  # keep\n")
    assert remember("gpu2") == path
    assert path.read_text() == "# mine\nnodes:\n  gpu2: {}\n  lab: {host: lab.example.org}  # keep\n"


async def test_a_tick_without_news_repaints_nothing(make_app: MakeApp) -> None:
    app = make_app(glances.loading())
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.pause()
        painted: list[object] = []
        for pane in app.screen.query("*"):
            pane.refresh = lambda *given, pane=pane, **more: painted.append((pane, given))  # type: ignore[method-assign,assignment]
        app.tick(again=True)
        assert painted == []


def test_the_first_frame_waits_for_nothing_that_works_on_a_node_or_reads_a_profile() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import sys, screens.session, screens.first_use; print(*sys.modules)"],
        check=True, capture_output=True, text=True, timeout=100,
    ).stdout.split()  # fmt: skip
    late = (
        "asyncssh",
        "aiohttp",
        "huggingface_hub",
        "pydantic",
        "hyperscan",
        "yaml",
        "console.engine",
        "console.triage",
    )
    assert [name for name in late if name in found] == []


async def test_a_command_that_comes_in_one_burst_is_not_lost(make_app: MakeApp) -> None:
    app = make_app(glances.idle())
    async with app.run_test(size=(80, 24)) as pilot:
        for key in ("colon", *"help", "enter"):
            app.post_message(events.Key(key, ":" if key == "colon" else key if len(key) == 1 else None))
        for _ in range(600):
            if type(app.screen).__name__ == "HelpScreen":
                break
            await pilot.pause(0.05)
        assert type(app.screen).__name__ == "HelpScreen"
