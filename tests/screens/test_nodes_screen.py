"""Nodes and single GPUs by keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from console.deploy.store import Store
from console.errors import RelaunchError
from console.profile.load import profile_folders
from console.seen import Seen
from screens.gpu_detail import GpuPane, shares
from screens.known_nodes import KnownNode, known_nodes
from screens.nodes import NodeList, NodesScreen
from screens.profile_choice import ProfileChoice
from tests.screens import other_samples as samples
from tests.screens.conftest import MakeApp
from tests.screens.golden import screen_text
from tests.screens.test_other_screens import fill, home, write_nodes
from tests.screens.turning import on

__all__ = ["home"]


async def test_digits_show_one_gpu_and_a_shows_all(make_app: MakeApp) -> None:
    app = make_app(samples.base(gpus=samples.gpu_view()), first="status")
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "gpu", index=3)
        pane = app.screen.query_one(GpuPane)
        assert "GPU 3" in screen_text(app)
        for number in range(1, 9):
            await pilot.press(str(number))
            assert pane.one == number - 1
        await pilot.press("right")
        assert pane.one == 0
        await pilot.press("left")
        assert pane.one == 7
        await pilot.press("a")
        assert pane.one is None


async def test_a_gpu_that_is_not_there_is_said(make_app: MakeApp) -> None:
    view = samples.gpu_view()
    assert view.sample is not None
    two = replace(view, sample=replace(view.sample, gpus=view.sample.gpus[:2], findings=()))
    app = make_app(samples.base(gpus=two), first="status")
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "gpu")
        await pilot.press("5")
        await pilot.pause()
        assert "there is no GPU number 5" in screen_text(app)


def test_shares_of_memory_add_up_and_unknown_stays_unknown() -> None:
    mib = samples.MIB
    known = shares(samples.gpu(0, 80000, mine=60000, other=9000), samples.UNIT)
    assert (known.ours, known.foreign, known.loose, known.free) == (
        60000 * mib,
        9000 * mib,
        11000 * mib,
        (97887 - 80000 - 638) * mib,
    )
    hidden = samples.gpu(0, 80000)
    hidden = replace(hidden, processes=(replace(hidden.processes[0], memory=None),))
    assert shares(hidden, samples.UNIT).ours is None
    nothing = shares(samples.gpu(0, None, mine=0), samples.UNIT)
    assert (nothing.ours, nothing.foreign, nothing.loose, nothing.free) == (None, None, None, None)
    assert shares(samples.gpu(0, 0, mine=0), "").ours == 0


def test_every_source_of_nodes_is_listed_once(store: Store, home: Path) -> None:
    write_nodes(home)
    with (home / "home" / ".ssh" / "config").open("a") as config:
        config.write("\nHost gpu1\n  User root\n")
    fill(store)
    nodes, trouble = known_nodes(store)
    by_name = {node.name: node for node in nodes}
    assert not trouble
    assert len(by_name) == len(nodes)
    assert set(by_name) >= {"rehearsal", "local", "gpu1", "lab", "dgx", "bastion"}
    assert (by_name["gpu1"].kind, by_name["gpu1"].production, by_name["gpu1"].where) == ("file", True, "root@10.0.0.11")
    assert by_name["lab"].where == "ops@lab.example.org via bastion.example.org"
    assert by_name["dgx"].kind == "openssh"
    assert by_name["gpu1"].good is not None
    assert by_name["gpu1"].last is not None
    assert (by_name["gpu1"].good.id, by_name["gpu1"].last.id) == ("0001", "0006")
    assert by_name["rehearsal"].up is False


async def test_a_nodes_file_with_problems_is_said_and_the_rest_is_listed(make_app: MakeApp, home: Path) -> None:
    write_nodes(home, "nodes:\n  gpu1: {hots: 10.0.0.11}\n")
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "nodes")
        text = screen_text(app)
        assert "the nodes file cannot be used" in text
        assert "rehearsal" in text
        assert "dgx" in text


class Opened:
    """An opening that remembers what it was asked for and has nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def folders(self) -> tuple[Path, ...]:
        return profile_folders([])

    def node_live(self, node: str, profile: str = "") -> object:
        self.asked.append((node, profile))
        raise RelaunchError(f"{node} is not to be opened in a test")

    def practice(self, profile: str = "") -> object:
        self.asked.append(("practice", profile))
        raise RelaunchError("no practice node in a test")


@pytest.mark.parametrize(
    ("name", "asked"),
    [("rehearsal", ("practice", "")), ("local", ("local", "kimi-k2.5-nvfp4")), ("dgx", ("dgx", "kimi-k2.5-nvfp4"))],
)
async def test_enter_asks_the_app_for_the_node(
    name: str, asked: tuple[str, str], make_app: MakeApp, home: Path
) -> None:
    write_nodes(home)
    app = make_app(samples.base(), first="status")
    opening = Opened()
    app.opening = opening  # type: ignore[assignment]
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "nodes")
        table = app.screen.query_one(NodeList)
        assert table.chosen == "gpu1"
        table._go(table.keys().index(name))
        await pilot.press("enter")
        await pilot.pause()
        if name != "rehearsal":
            assert opening.asked == []
            assert isinstance(app.screen, ProfileChoice)
            shown = screen_text(app)
            assert "glm-5" in shown
            assert "never there" in shown
            await pilot.press("enter")  # the profile in hand is chosen at first
            await pilot.pause()
        assert opening.asked == [asked]
        assert "in a test" in screen_text(app)


async def test_a_node_that_was_left_is_listed_as_it_was_last_seen(make_app: MakeApp, store: Store, home: Path) -> None:
    write_nodes(home)
    seen = Seen(samples.WALL - 7200, "kimi-k2.5", 8, "NVIDIA RTX PRO 6000", 600 << 30, 764 << 30)
    store.note_seen("dgx", replace(seen, serves="old"), rehearsal=False)
    store.note_seen("dgx", seen, rehearsal=False)
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "nodes")
        (row,) = [text for text in screen_text(app).splitlines() if " dgx " in text]
        for words in ("? not connected", "kimi-k2.5", "8 ×", "600/764 GiB", "2 h ago"):
            assert words in row


async def test_enter_on_the_node_that_one_is_on_goes_back(make_app: MakeApp, home: Path) -> None:
    write_nodes(home)
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "nodes")
        assert isinstance(app.screen, NodesScreen)
        await pilot.press("enter")
        await pilot.pause()
        assert not isinstance(app.screen, NodesScreen)


async def test_a_node_of_the_command_line_is_listed_too(make_app: MakeApp) -> None:
    app = make_app(samples.base(node="root@10.9.9.9"), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "nodes")
        assert "root@10.9.9.9" in screen_text(app)
        assert app.screen.query_one(NodeList).get("root@10.9.9.9") == KnownNode(
            "root@10.9.9.9", "openssh", "named on the command line"
        )
