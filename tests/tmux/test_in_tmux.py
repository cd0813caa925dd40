"""The real program in a real tmux: what an operator does by keys, and what happens to the terminal meanwhile."""

from __future__ import annotations

import json

import pytest

from tests.tmux.conftest import Console, Terminal

PACE = {"load": 0.3, "tokens": 0.0, "install": 0.0, "hub": 0.2}


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The practice node does not make anyone wait."""
    monkeypatch.setenv("RELAUNCH_PRACTICE_PACE", json.dumps(PACE))


def test_opens_with_nothing_configured_and_leaves(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # as `docker exec -e COLUMNS` leaves it; the terminal itself is right
    pane = console(width=80, height=24)
    shown = pane.wait("Nothing is configured yet")
    assert max(map(len, shown.splitlines())) <= 80
    pane.keys("?")
    pane.wait(r"Keys ─")
    pane.keys("q")
    shown = pane.wait("Nothing is configured yet")
    assert "rehearse" in shown
    assert "a log file" in shown
    pane.keys("q")
    assert pane.exit_code() == 0


def test_a_fault_that_does_not_exist_is_told_before_the_screen_is_taken(console: Console) -> None:
    pane = console("--rehearse", "--fault", "flood")
    assert pane.exit_code() == 2
    assert "there is no fault 'flood'" in pane.text()


def test_a_redeploy_by_keys_with_detach_attach_resize_filter_and_copy(console: Console, terminal: Terminal) -> None:
    pane = console("--rehearse", width=140, height=40)
    pane.wait(r"link \d+ ms")
    pane.wait("vllm-glm5.service  active")
    pane.keys("D")
    pane.wait(r"\[ Cancel \]")
    pane.keys("l", "Enter")
    pane.wait(r"✓ preflight")

    with pane.attached():  # someone looks, and goes again
        pane.wait(r"▶ (engine|space|download|shards)")
    assert pane.asked("#{session_attached}") == "0"
    pane.wait(r"▶ launch")  # it went on with nobody there

    for width, height in ((80, 24), (40, 15), (10, 4), (80, 24)):
        pane.resize(width, height)
    pane.wait(r"^▌ Steps")  # the keys go somewhere again
    pane.resize(140, 40)
    pane.wait(r"✓ keep")
    shown = pane.wait("last good +release 1")
    assert "serves    vllm-kimi.service  active" in shown

    pane.keys("/")
    pane.wait("words include")
    pane.type("safetensors")
    pane.keys("Enter")
    shown = pane.wait(r"filter: safetensors")
    rows = [row[57:] for row in shown.splitlines()]
    title = next(place for place, row in enumerate(rows) if "Log ─" in row)
    lines = [row for row in rows[title + 1 : 39] if row.strip()]
    assert lines
    assert [row for row in lines if "safetensors" not in row] == []

    pane.keys("y")
    pane.wait("1 line in tmux's buffer")
    copied = pane.call("show-buffer")
    assert "Loading safetensors checkpoint shards: 100% Completed" in copied

    pane.keys("x", "q")
    assert pane.exit_code() == 0


def test_the_terminal_is_killed_in_the_middle_and_the_run_is_taken_up_again(console: Console) -> None:
    pane = console("--rehearse", width=100, height=30)
    pane.wait("vllm-glm5|unclaimed")
    pane.wait(r"link \d+ ms")
    pane.keys("D")
    pane.wait(r"\[ Cancel \]")
    pane.keys("l", "Enter")
    pane.wait(r"▶ (download|shards)")
    pane.kill()

    again = console("--rehearse", width=100, height=30)
    again.wait(r"link \d+ ms")
    again.keys(":")
    again.wait("Command ─")
    again.type("resume")
    again.keys("Enter")
    again.wait(r"\[ Cancel \]|run 0002")
    if "Cancel" in again.text():
        again.keys("l", "Enter")
    again.wait(r"run 0002")
    again.wait(r"done in")
    again.keys("r")
    shown = again.wait(r"Runs ─ 2")
    first = next(row for row in shown.splitlines() if " 0001 " in row)
    assert "130" in first or "unfinished" in first or "?" in first, first
    again.keys("q")
    again.wait("Steps ─")
    again.keys("q")
    assert again.exit_code() == 0


def test_leaving_in_the_middle_says_what_goes_on(console: Console) -> None:
    pane = console("--rehearse", width=80, height=24)
    pane.wait(r"link \d+ ms")
    pane.wait(r"0 \S{13} +\d")
    pane.keys("D")
    pane.wait(r"\[ Cancel \]")
    pane.keys("l", "Enter")
    pane.wait(r"▶ (engine|space|download|shards|patch)")
    pane.keys("q")
    shown = pane.wait("Leave run 0001")
    assert "What runs on the node goes on" in shown
    pane.keys("Enter")
    assert pane.exit_code() == 0


def test_a_link_that_is_cut_is_shown_and_the_console_goes_on_when_it_is_back(console: Console) -> None:
    pane = console("--rehearse", "--fault", "drop:inspect", width=80, height=24)
    pane.wait(r"✗ link down: (?!connecting)")
    pane.wait(r"link \d+ ms")
    pane.wait(r"0 \S{13} +\d")
    pane.keys("q")
    assert pane.exit_code() == 0
