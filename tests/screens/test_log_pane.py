from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from console.live import Glance, LogView
from console.logs.spool import GAP, Spool
from console.settings import own_presets
from console.triage import Reader
from screens import clipboard, filter_bar
from screens.app import ConsoleApp
from screens.log import LogScreen
from screens.log_file import FileSource
from screens.widgets.log_pane import LogPane
from tests.screens.conftest import NOW, Golden, MakeApp
from tests.screens.golden import screen_text

START = [
    "(APIServer pid=5) INFO 02-20 16:57:30 [api_server.py:1] vLLM API server version 0.16.0",
    "(APIServer pid=5) INFO 02-20 16:57:31 [utils.py:1] non-default args: {'model': '/srv/kimi'}",
    "(EngineCore pid=9) INFO 02-20 16:57:41 [core.py:58] Initializing a V1 LLM engine (v0.16.0) with config: model='/srv/kimi'",
    *(f"(Worker_TP{r} pid={20 + r}) INFO 02-20 16:57:49 [p.py:1] world_size=8 backend=nccl" for r in range(8)),
    *(f"(Worker_TP{r} pid={20 + r}) WARNING 02-20 16:57:50 [s.py:1] SymmMemCommunicator: Device capability 12.0 not supported, "
      "communicator is not available." for r in range(8)),
]  # fmt: skip
TRACE = [
    "(Worker_TP0 pid=20) ERROR 02-20 16:58:01 [w.py:1] Traceback (most recent call last):",
    *(
        f'(Worker_TP0 pid=20) ERROR 02-20 16:58:01 [w.py:1]   File "/opt/vllm/a{n}.py", line {n}, in call{n}'
        for n in range(12)
    ),
    "(Worker_TP0 pid=20) ERROR 02-20 16:58:01 [w.py:1] ValueError: No valid attention backend found for cuda with "
    "AttentionSelectorConfig(kv_cache_dtype=fp8). Reasons: {TRITON_MLA: [kv_cache_dtype not supported]}.",
    "(EngineCore pid=9) ERROR 02-20 16:58:02 [core.py:1] EngineCore failed to start.",
]
LOG = [
    *START,
    *TRACE,
    f"{GAP}link lost 16:58:02 to 16:58:14; what came meanwhile is below",
    "bare line é \U0001f600 end",
]


@pytest.fixture(autouse=True)
def _no_past() -> Iterator[None]:
    yield
    filter_bar.PAST.clear()


def glance(lines: list[str] | None = None) -> Glance:
    log = LogView(unit="vllm-kimi.service", following=True, seen=NOW.mono - 1)
    if lines is not None:
        reader = Reader()
        reader.feed("".join(f"{line}\n" for line in lines).encode())
        log = replace(log, diagnosis=reader.diagnosis())
    return Glance(node="gpu1", log=log)


@asynccontextmanager
async def opened(app: ConsoleApp, size: tuple[int, int] = (100, 16)) -> AsyncIterator[tuple[Pilot[int], LogPane]]:
    app._first = "log"
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        assert isinstance(app.screen, LogScreen)
        yield pilot, app.screen.pane


async def settle(pilot: Pilot[int]) -> None:
    await pilot.pause()
    await asyncio.wait_for(pilot.app.workers.wait_for_complete(), 60)
    await pilot.pause()


async def typed(pilot: Pilot[int], key: str, text: str) -> None:
    await pilot.press(key)
    await pilot.pause()
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")
    await settle(pilot)


def body(pane: LogPane) -> list[str]:
    return pane.text().splitlines()[1:]


@pytest.mark.parametrize("size", [(140, 40), (80, 24), (40, 15)])
@pytest.mark.parametrize("ascii", [False, True])
async def test_the_log_as_it_looks(
    spool: Spool, make_app: MakeApp, golden: Golden, size: tuple[int, int], ascii: bool
) -> None:
    spool.append_lines(LOG)
    app = make_app(glance(LOG), ascii=ascii)
    async with opened(app, size) as (pilot, pane):
        signs = "-ascii" if ascii else ""
        golden(f"log-{size[0]}x{size[1]}{signs}", app)
        for name, key in (("presets", "at"), ("filter", "slash")):
            await pilot.press(key)
            await settle(pilot)
            golden(f"log-{name}-{size[0]}x{size[1]}{signs}", app)
            await pilot.press("escape")
        await pilot.press("w", "k", "k", "k")
        await settle(pilot)
        assert not pane.page.follow


async def test_an_empty_log_says_what_will_stand_there(make_app: MakeApp, spool: Spool) -> None:
    async with opened(make_app(glance())) as (pilot, pane):
        assert "No line of vllm-kimi.service has come yet" in pane.text()
        spool.append_lines(["INFO something"])
        pane.want(replace(pane.wanted, include=("nothing of the kind",)))
        await settle(pilot)
        assert "x drops it" in pane.text()


async def test_noise_is_hidden_counted_explained_and_shown(spool: Spool, make_app: MakeApp) -> None:
    spool.append_lines(LOG)
    async with opened(make_app(glance())) as (pilot, pane):
        assert "noise hidden: 8 (n)" in pane.text()
        assert "SymmMem" not in pane.text()
        await pilot.press("Z")
        await settle(pilot)
        assert "symm-mem-sm120" in screen_text(pilot.app)
        assert "another all-reduce is used." in screen_text(pilot.app)
        await pilot.press("enter")
        await settle(pilot)
        assert len(pane.page.view) == 8
        await pilot.press("x", "n")
        await settle(pilot)
        assert pane.wanted.noise
        assert "noise shown" in pane.text()


async def test_filters_include_exclude_and_a_bad_one_keeps_the_old(spool: Spool, make_app: MakeApp) -> None:
    spool.append_lines(LOG)
    async with opened(make_app(glance()), (120, 16)) as (pilot, pane):
        await typed(pilot, "slash", "attention !/EngineCore/")
        assert len(pane.page.view) == 1
        assert "filter: attention !/EngineCore/" in pane.text()
        await typed(pilot, "slash", "/(/")
        assert "is no regular expression" in screen_text(pilot.app)
        await pilot.press("escape")
        await settle(pilot)
        assert pane.wanted.include == ("attention",)
        await typed(pilot, "slash", "@errors")
        assert pane.wanted.level == "error"
        await typed(pilot, "slash", "@nonsense")
        assert "there is no preset" in screen_text(pilot.app)
        await pilot.press("escape", "x")
        await settle(pilot)
        assert str(pane.wanted) == "none"
        await pilot.press("escape")
        await settle(pilot)
        assert not isinstance(pilot.app.screen, LogScreen) or pilot.app.return_code is not None


async def test_process_level_and_preset_are_chosen_from_lists(spool: Spool, make_app: MakeApp) -> None:
    spool.append_lines(LOG)
    async with opened(make_app(glance()), (100, 30)) as (pilot, pane):
        await pilot.press("a", "j", "j")
        await pilot.pause()
        assert "EngineCore" in screen_text(pilot.app)
        await pilot.press("enter")
        await settle(pilot)
        assert pane.wanted.process == "EngineCore"
        assert len(pane.page.view) == 2
        await pilot.press("x", "v", "v")
        await settle(pilot)
        assert pane.wanted.level == "error"
        await pilot.press("at")
        await pilot.pause()
        assert "warnings, errors and tracebacks" in screen_text(pilot.app)
        await pilot.press("j", "enter")
        await settle(pilot)
        assert pane.wanted.name == "trouble"


async def test_a_filter_is_saved_listed_loaded_and_deleted_by_key(spool: Spool, make_app: MakeApp) -> None:
    spool.append_lines(LOG)
    file = own_presets()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("# mine\n")
    async with opened(make_app(glance()), (140, 30)) as (pilot, pane):
        await pilot.press("slash", *"nccl", "f2")
        await settle(pilot)
        assert pane.wanted.include == ("nccl",)
        await pilot.press(*"all of it", "enter")
        await pilot.pause()
        assert "letters, digits" in screen_text(pilot.app)
        pilot.app.screen.query_one(Input).value = "ranks"
        await pilot.press("enter")
        await settle(pilot)
        assert file.read_text() == '# mine\nranks:\n  include: ["nccl"]\n'
        assert pane.wanted.name == "ranks"

        await pilot.press("x", "at", "j")
        await settle(pilot)
        assert re.search(r"ranks +nccl +yours", screen_text(pilot.app))
        await pilot.press("enter")
        await settle(pilot)
        assert pane.wanted.include == ("nccl",)

        await pilot.press("at", "j", "j", "X")  # one of ours
        await settle(pilot)
        assert "comes with Relaunch" in screen_text(pilot.app)
        await pilot.press("at", "j", "X")
        await settle(pilot)
        await pilot.press("l", "enter")
        await settle(pilot)
        assert file.read_text() == "# mine\n"
        await pilot.press("x", "at", "s")
        await settle(pilot)
        assert "there is no filter to save" in screen_text(pilot.app)


async def test_equal_lines_of_ranks_are_one_row_and_tracebacks_fold(spool: Spool, make_app: MakeApp) -> None:
    spool.append_lines(LOG)
    async with opened(make_app(glance()), (120, 40)) as (pilot, pane):
        assert sum("world_size=8" in row for row in body(pane)) == 1
        assert "Worker ×8" in pane.text()
        assert "12 lines folded" in pane.text()
        assert "call3" not in pane.text()
        item = next(item for item in pane.page.items.after(0, 50) if item.kind == "fold")
        pane.page.jump(item.offset)
        await pilot.press("enter")
        assert "call3" in pane.text()
        await pilot.press("enter")
        assert "call3" not in pane.text()
        ranks = next(item for item in pane.page.items.after(0, 50) if item.kind == "ranks")
        pane.page.jump(ranks.offset)
        await pilot.press("enter")
        assert sum("world_size=8" in row for row in body(pane)) == 8


async def test_following_ends_with_a_step_up_says_so_and_begins_again(spool: Spool, make_app: MakeApp) -> None:
    spool.append_lines(f"line {number}" for number in range(500))
    async with opened(make_app(glance())) as (pilot, pane):
        assert body(pane)[-1].endswith("line 499")
        spool.append_lines(["line new"])
        pane.beat()
        assert body(pane)[-1].endswith("line new")
        await pilot.press("k")
        before = body(pane)
        assert not pane.page.follow
        spool.append_lines(f"later {number}" for number in range(3))
        pane.beat()
        assert body(pane) == before
        assert "paused, 3 new below (G)" in pane.text()
        await pilot.press("G")
        assert body(pane)[-1].endswith("later 2")
        assert "following" in pane.text()
        await pilot.press("g")
        assert body(pane)[0].endswith("line 0")
        await pilot.press("pagedown", "j", "j")
        assert not pane.page.follow
        await pilot.press("s")
        assert pane.page.follow


async def test_every_line_is_met_once_by_paging_down_and_up(spool: Spool, make_app: MakeApp) -> None:
    spool.append_lines(f"line {number} {'x' * (number % 150)}" for number in range(300))
    async with opened(make_app(glance()), (60, 12)) as (pilot, pane):
        for keys in (["g"], ["g", "w"]):
            await pilot.press(*keys)
            met: list[str] = []
            for _ in range(400):
                met += [row.split("line ")[1].split(" ")[0] for row in body(pane) if "line " in row]
                if met[-1] == "299":
                    break
                pane.action_pages(1)  # what the key does, without a turn of the whole app for each
            assert list(dict.fromkeys(met)) == [str(number) for number in range(300)]
            up: list[str] = []
            for _ in range(400):
                up += reversed([row.split("line ")[1].split(" ")[0] for row in body(pane) if "line " in row])
                if up[-1] == "0":
                    break
                pane.action_pages(-1)
            assert list(dict.fromkeys(up)) == [str(number) for number in reversed(range(300))]


async def test_a_wrapped_line_longer_than_the_page_is_read_to_its_end(spool: Spool, make_app: MakeApp) -> None:
    words = " ".join(f"word{number}" for number in range(400))
    spool.append_lines(["before", f"long {words}", "after"])
    async with opened(make_app(glance()), (60, 12)) as (pilot, pane):
        for step in (pane.action_by, pane.action_pages):
            await pilot.press("w") if not pane.wrap else None
            await pilot.press("g")
            seen = ""
            for _ in range(200):
                seen += "".join(row[12:] for row in body(pane))
                if "after" in seen:
                    break
                step(1)
            assert "word399" in seen.replace(" ", "")
        await pilot.press("G", "k", "k")
        assert "after" not in pane.text() or "word399" in pane.text()


async def test_search_finds_upwards_and_hides_nothing(spool: Spool, make_app: MakeApp) -> None:
    spool.append_lines(f"line {number}{' needle' if number % 100 == 7 else ''}" for number in range(1000))
    async with opened(make_app(glance())) as (pilot, pane):
        await typed(pilot, "backslash", "needle")
        assert pane.page.item is not None
        assert pane.page.item.raw == "line 907 needle"
        assert "search: needle 10 (n N)" in pane.text()
        await pilot.press("N")
        assert pane.page.item.raw == "line 807 needle"
        await pilot.press("n")
        assert pane.page.item.raw == "line 907 needle"
        assert len(pane.page.view) == 1000
        await pilot.press("n")
        await settle(pilot)
        assert "no match below" in screen_text(pilot.app)
        await pilot.press("escape")
        assert "search" not in pane.text()


async def test_windows_of_time_and_the_launch_before(spool: Spool, make_app: MakeApp) -> None:
    spool.append_lines(START, now=NOW.wall - 4000)
    spool.append_lines(
        ["(EngineCore pid=9) INFO 02-20 16:57:59 [core.py:1] init engine took 3 seconds"], now=NOW.wall - 600
    )
    spool.append_lines([line.replace("pid=", "pid=10") for line in START], now=NOW.wall - 30)
    async with opened(make_app(glance()), (120, 30)) as (pilot, pane):
        pane.show(pane.source.glance(), NOW)
        await pilot.press("2")
        await settle(pilot)
        assert "last 1 min" in pane.text()
        assert len(pane.page.view) == 11
        await pilot.press("4")
        await settle(pilot)
        assert len(pane.page.view) == 12
        await pilot.press("0", "p")
        await settle(pilot)
        assert "previous launch" in pane.text()
        assert len(pane.page.view) == 12
        assert "not live" in pane.text()
        await pilot.press("p")
        await settle(pilot)
        assert len(pane.page.view) == 23
        await pilot.press("e")
        await settle(pilot)
        assert "engine init" in screen_text(pilot.app)


async def test_what_a_log_says_is_shown_and_never_obeyed(spool: Spool, make_app: MakeApp) -> None:
    hostile = "user said [bold red]hi[/] \x1b]2;title\x07\x1b[31m \x9b2J ‮ [/nonsense]"
    spool.append_lines([hostile])
    async with opened(make_app(glance()), (100, 12)) as (_, pane):
        assert "[bold red]hi[/]" in pane.text()
        assert "[/nonsense]" in pane.text()
        assert not any(char in screen_text(pane.app) for char in "\x1b\x07\x9b‮")  # type: ignore[arg-type]


async def test_marks_yank_and_write(
    spool: Spool, make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    spool.append_lines(LOG)
    async with opened(make_app(glance(LOG)), (120, 40)) as (pilot, pane):
        item = next(item for item in pane.page.items.after(0, 50) if item.kind == "fold")
        pane.page.jump(item.offset)
        await pilot.press("y")
        await settle(pilot)
        saved = sorted((tmp_path / "state/relaunch/saved").iterdir())
        assert saved[0].read_text().splitlines() == TRACE[:14]
        assert saved[0].stat().st_mode & 0o777 == 0o600
        assert "14 lines in" in screen_text(pilot.app)
        await pilot.press("Y")
        await settle(pilot)
        newest = max((tmp_path / "state/relaunch/saved").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        assert "No valid attention backend" in newest.read_text()
        assert "  do:  " in newest.read_text()
        await pilot.press("g", "m", "j", "m")
        await typed(pilot, "W", str(tmp_path / "out.log"))
        assert (tmp_path / "out.log").read_text().splitlines() == LOG[:2]
        await typed(pilot, "W", str(tmp_path / "out.log"))
        assert "exists" in screen_text(pilot.app)
        await pilot.press("escape", "x")
        await typed(pilot, "W", str(tmp_path / "all.log"))
        assert (tmp_path / "all.log").read_text().splitlines() == [line for line in LOG if "SymmMem" not in line]


async def test_the_cause_is_pinned_and_reached(spool: Spool, make_app: MakeApp) -> None:
    more = [f"(APIServer pid=5) INFO 02-20 16:59:00 [x.py:1] afterwards {number}" for number in range(200)]
    spool.append_lines([*LOG, *more])
    async with opened(make_app(glance(LOG))) as (pilot, pane):
        assert "first cause Worker_TP0 ValueError: No valid attention backend" in body(pane)[0]
        await pilot.press("full_stop")
        await settle(pilot)
        assert pane.page.item is not None
        assert "No valid attention backend" in pane.page.item.raw


async def test_a_plain_file_is_viewed_without_a_node(make_app: MakeApp, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes("\n".join(LOG).encode() + b"\nshards:  10%\rshards: 100%\nno end \x1b[31m")
    app = make_app(first="log")
    async with app.run_test(size=(120, 30)) as pilot:
        app.open("log", path=path)
        await settle(pilot)
        screen = app.screen
        assert isinstance(screen, LogScreen)
        assert isinstance(screen.source, FileSource)
        assert "no end" in screen.pane.text()
        assert "shards: 100%" in screen.pane.text()
        assert "shards:  10%" not in screen.pane.text()
        async with asyncio.timeout(60):
            while "first cause" not in screen.pane.text():
                await pilot.pause(0.05)
                app.tick(again=True)
        with path.open("a") as file:
            file.write(" now ended\nnext\n")
        screen.pane.beat()
        assert "no end  now ended" in screen.pane.text().replace("end now", "end  now")
        assert "next" in screen.pane.text()
        await pilot.press("3")
        await settle(pilot)
        assert "last 5 min of the file" in screen.pane.text()
        await pilot.press("x", "q")
        await settle(pilot)
        app.open("log", path=tmp_path / "missing")
        await settle(pilot)
        assert "no such file" in screen_text(app)


async def test_what_is_copied_goes_where_it_can_and_says_where(tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path)}
    sent: list[str] = []
    done = await clipboard.copy("abc\n", {"TERM": "xterm-256color", **home}, sent.append, "1 line")
    assert (done.how, sent) == ("osc52", ["abc\n"])
    for environment in ({"TERM": "linux"}, {"TERM": "xterm", "STY": "1"}, {}):
        done = await clipboard.copy("abc\n", {**environment, **home}, sent.append)
        assert done.how == "file"
        assert done.path is not None
        assert str(done.path) in done.words
        assert done.path.read_text() == "abc\n"
    done = await clipboard.copy("x" * 100_000, {"TERM": "xterm", **home}, sent.append)
    assert done.how == "file"
    assert len(sent) == 1


async def test_tmux_that_refuses_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    tmux = tmp_path / "bin" / "tmux"
    taken = tmp_path / "taken"
    for script, how in (
        (f"#!/bin/sh\ncat > {taken}\n", "tmux"),
        ("#!/bin/sh\ncat >/dev/null\necho no server >&2\nexit 1\n", "file"),
    ):
        tmux.write_text(script)
        tmux.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        done = await clipboard.copy("abc\n", {"TMUX": "/tmp/x", "XDG_STATE_HOME": str(tmp_path)}, lambda text: None)
        assert done.how == how
    assert taken.read_text() == "abc\n"
    assert "no server" in done.words
