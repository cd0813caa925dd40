"""Nodes, plan, cause, throughput, runs, replay and GPUs: what they show in each state, at both sizes and sets of signs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from console.deploy.store import Store
from console.events import Event, RunEnded
from console.live import Glance
from console.state import fold
from screens.app import ConsoleApp
from screens.glyphs import UNICODE
from screens.widgets.lines import Note, line
from tests.screens import other_samples as samples
from tests.screens.conftest import Golden, MakeApp
from tests.screens.golden import SIZES, by_colour_alone, screen_text

NODES = """\
nodes:
  gpu1: {host: 10.0.0.11, user: root, production: true}
  lab: {host: lab.example.org, user: ops, jump: bastion.example.org}
"""


@dataclass(frozen=True)
class State:
    """A screen in one state: the glance, whether the store holds a history, the keys pressed."""

    screen: str
    glance: Callable[[], Glance]
    keys: tuple[str, ...] = ()
    history: bool = False
    given: tuple[tuple[str, Any], ...] = ()


def stale() -> Glance:
    return samples.base(gpus=replace(samples.gpu_view(), seen=samples.MONO - 95, trouble="the link is lost"))


def planned(**given: Any) -> Callable[[], Glance]:
    def glance() -> Glance:
        return samples.base(run=fold(samples.plan_events(**given)), running=given.get("end") is False)

    return glance


def measuring_unknown() -> Glance:
    points = (replace(samples.NOW[0], ttft_ms={}, itl_ms={}), samples.point(8, None, (900, 1000), (20, 21), failed=4))
    return samples.throughput(measured=points)


STATES: dict[str, State] = {
    "gpus-all": State("gpu", lambda: samples.base(gpus=samples.gpu_view())),
    "gpus-one": State("gpu", lambda: samples.base(gpus=samples.gpu_view()), ("4",)),
    "gpus-unknown": State("gpu", lambda: samples.base(gpus=samples.gpu_view()), ("6",)),
    "gpus-stale": State("gpu", stale),
    "gpus-empty": State("gpu", samples.empty),
    "plan-made": State("plan", samples.plan),
    "plan-refused": State("plan", planned(refused=True)),
    "plan-looking": State("plan", planned(end=False)),
    "plan-empty": State("plan", samples.base),
    "cause-failed": State("cause", samples.failed),
    "cause-empty": State("cause", samples.base),
    "throughput-measured": State("throughput", samples.throughput),
    "throughput-kept": State("throughput", lambda: samples.base(good=samples.GOOD)),
    "throughput-unknown": State("throughput", measuring_unknown),
    "throughput-empty": State("throughput", samples.base),
    "runs-some": State("runs", samples.base, ("j",), history=True),
    "runs-empty": State("runs", samples.base),
    "replay-end": State("replay", samples.base, ("e",), history=True, given=(("run", "0005"),)),
    "replay-empty": State("replay", samples.base),
    "nodes-some": State("nodes", lambda: samples.base(gpus=samples.gpu_view(), facts=samples.facts()), history=True),
    "nodes-none": State("nodes", samples.empty),
    "status": State("status", lambda: samples.base(gpus=samples.gpu_view(), facts=samples.facts())),
    "help": State("help", samples.base),
}


def put_run(
    store: Store, verb: str, node: str, at: float, end: tuple[int, str] | None, *, rehearsal: bool = False
) -> str:
    """A run without steps."""
    run = store.begin(verb, node, samples.PROFILE.name, script=verb, rehearsal=rehearsal, started=at)
    if end is not None:
        store.append(run, RunEnded(time=at + 120, run=run, code=end[0], text=end[1]))
    return run


def put_events(store: Store, events: list[Event]) -> str:
    run = store.begin(
        "redeploy", "gpu1", samples.PROFILE.name, script="redeploy", rehearsal=False, started=events[0].time
    )
    for event in events:
        store.append(run, event)
    return run


def fill(store: Store) -> None:
    """Six runs with every sort of end; 0005 is the failed one."""
    wall = samples.WALL
    put_run(
        store,
        "redeploy",
        "gpu1",
        wall - 90000,
        (0, "done: download, unit, stop, drain, launch, ready, throughput, keep"),
    )
    put_run(
        store,
        "redeploy",
        "rehearsal",
        wall - 80000,
        (0, "done: unit, stop, drain, launch, ready, keep"),
        rehearsal=True,
    )
    put_run(store, "bench", "gpu1", wall - 7000, (10, "concurrency 32: output 500.0 tok/s, at least 700"))
    put_run(store, "redeploy", "lab", wall - 5000, None)
    put_events(store, samples.failed_events())
    put_run(store, "plan", "gpu1", wall - 60, (0, "nothing has been changed; needed: download, shards, patch, unit"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own: no node, no key, no history of the person who runs the tests."""
    for name, folder in (("HOME", "home"), ("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "state")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    return tmp_path


def write_nodes(home: Path, text: str = NODES) -> None:
    (home / "config" / "relaunch").mkdir(exist_ok=True)
    (home / "config" / "relaunch" / "nodes.yaml").write_text(text)
    (home / "home" / ".ssh").mkdir(exist_ok=True)
    (home / "home" / ".ssh" / "config").write_text("Host dgx bastion\n  User me\n\nHost *.example.org\n  Port 22\n")


async def opened(app: ConsoleApp, pilot: Any, state: State) -> None:
    """The screen in its state, everything drawn."""
    app.open(state.screen, **dict(state.given))
    await pilot.pause()
    for key in state.keys:
        await pilot.press(key)
    await pilot.pause()


@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", SIZES, ids=["140x40", "80x24"])
@pytest.mark.parametrize("name", STATES)
async def test_golden(
    name: str, size: tuple[int, int], ascii_only: bool, make_app: MakeApp, golden: Golden, store: Store, home: Path
) -> None:
    state = STATES[name]
    if state.history:
        fill(store)
        write_nodes(home)
    app = make_app(state.glance(), ascii=ascii_only, first="status")
    async with app.run_test(size=size) as pilot:
        await opened(app, pilot, state)
        golden(f"{name}-{size[0]}x{size[1]}-{'ascii' if ascii_only else 'unicode'}", app)


async def test_what_differs_by_colour_alone_is_found(make_app: MakeApp) -> None:
    app = make_app(samples.base(), first="status")
    good = [line(("on", "green"), " ", ("on", "green bold"), " ", ("on", "red reverse"), " on", (" off", "red"))]
    async with app.run_test(size=(80, 24)) as pilot:
        for rows, alike in ((good, {}), ([*good, line(("on", "red"))], {"on": ["green", "red"]})):
            note = Note(rows)
            await app.screen.mount(note)
            while not note.text():
                await pilot.pause()
            await pilot.pause()
            assert by_colour_alone(app) == alike


@pytest.mark.parametrize("name", STATES)
async def test_any_size_is_drawn_without_a_crash(name: str, make_app: MakeApp, store: Store, home: Path) -> None:
    state = STATES[name]
    if state.history:
        fill(store)
        write_nodes(home)
    app = make_app(state.glance(), first="status")
    async with app.run_test(size=(200, 60)) as pilot:
        await opened(app, pilot, state)
        for size in ((40, 15), (20, 6), (99, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert screen_text(app).strip()


@pytest.mark.parametrize("screen", ["gpu", "plan", "cause", "throughput", "runs", "replay", "nodes"])
async def test_an_empty_screen_names_what_will_stand_there(screen: str, make_app: MakeApp) -> None:
    app = make_app(samples.empty(), first="status")
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot, State(screen, samples.empty))
        text = " ".join(screen_text(app).split())
        assert "here" in text or "rehearsal" in text
        assert " 0 " not in text


@pytest.mark.parametrize("screen", ["gpu", "plan", "cause", "throughput", "runs", "replay", "nodes"])
async def test_every_key_has_an_id_and_q_goes_back(screen: str, make_app: MakeApp) -> None:
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot, State(screen, samples.base))
        owners = [type(app.screen), *type(app.screen).PANES]  # type: ignore[attr-defined]
        ours = [item for owner in owners for cls in owner.__mro__ if cls.__module__.startswith("screens.")
                for item in vars(cls).get("BINDINGS", ())]  # fmt: skip
        assert ours
        assert all(binding.id for binding in ours), [binding.key for binding in ours if not binding.id]
        depth = len(app.screen_stack)
        await pilot.press("q")
        await pilot.pause()
        assert len(app.screen_stack) == depth - 1


async def test_what_a_node_says_cannot_move_the_cursor(make_app: MakeApp, store: Store, home: Path) -> None:
    bad = "\x1b]2;owned\x07\x1b[31mred\x9b2J"
    put_run(store, "redeploy", f"gpu1{bad}", samples.WALL - 60, (7, f"unit {bad} failed"))
    events = samples.failed_events()
    end = events[-1]
    assert isinstance(end, RunEnded)
    put_events(store, [*events[:-1], replace(end, text=bad)])
    broken = samples.gpu(0)
    held = replace(broken.processes[0], command=bad, owner=bad, unit=bad)
    sample = samples.gpu_view().sample
    assert sample is not None
    view = replace(samples.gpu_view(), sample=replace(sample, gpus=(replace(broken, name=bad, processes=(held,)),)))
    run = replace(samples.failed().run, cause=replace(samples.failed().run.cause, text=bad, meaning=bad))  # type: ignore[type-var]
    app = make_app(samples.base(node=f"n{bad}", gpus=view, run=run), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        for screen, keys in (
            ("gpu", ("1",)),
            ("cause", ()),
            ("runs", ()),
            ("nodes", ()),
            ("replay", ("e",)),
            ("plan", ()),
        ):
            await opened(app, pilot, State(screen, samples.base, keys))
            text = screen_text(app)
            assert not [char for char in text if ord(char) < 32 and char != "\n"], screen
            assert not [char for char in text if 0x7F <= ord(char) < 0xA0], screen


def test_all_signs_in_use_are_one_cell_wide() -> None:
    from rich.cells import cell_len

    from screens.widgets.plots import EIGHTHS

    assert all(cell_len(sign) == 1 for sign in EIGHTHS + UNICODE.thumb)
