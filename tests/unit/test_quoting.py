"""The one quoting function: every argv it accepts comes through a POSIX shell intact."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.node.quoting import LONGEST, Unspeakable, command_line, guarded
from tests.contract.node_contract import HOSTILE

SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh", "busybox") if shutil.which(shell)]
SHOW = (sys.executable, "-c", "import json,sys; print(json.dumps(sys.argv[1:]))")


def through(shell: str, line: str) -> list[str]:
    words = [shell, "sh", "-c", line] if shell == "busybox" else [shell, "-c", line]
    done = subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    parsed: list[str] = json.loads(done.stdout)
    return parsed


@pytest.mark.parametrize("shell", SHELLS)
def test_hostile_arguments_come_through_every_shell(shell: str) -> None:
    assert through(shell, command_line((*SHOW, *HOSTILE))) == list(HOSTILE)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=6))
def test_any_text_comes_through(arguments: list[str]) -> None:
    assert through("sh", command_line((*SHOW, *arguments))) == arguments


def test_a_guarded_helper_gets_its_arguments_and_no_stdin() -> None:
    show = "import json,sys; print(json.dumps([*sys.argv[1:], sys.stdin.read()]))"
    with subprocess.Popen(
        guarded((sys.executable, "-c", show, *HOSTILE)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        helper.stdin.write(b"for the guard alone")
        helper.stdin.flush()
        assert json.loads(helper.stdout.read()) == [*HOSTILE, ""]
        assert helper.wait(timeout=30) == 0  # its stdin is still open


def test_a_guard_passes_the_exit_status_on_and_ends_with_its_helper() -> None:
    helper = subprocess.Popen(guarded(("sh", "-c", "exit 7")), stdin=subprocess.PIPE)
    assert helper.wait(timeout=30) == 7  # its stdin is still open
    assert helper.stdin is not None
    helper.stdin.close()


def test_a_guard_ends_a_silent_helper_when_stdin_closes() -> None:
    helper = subprocess.Popen(guarded(("sleep", "1000")), stdin=subprocess.PIPE)
    assert helper.stdin is not None
    helper.stdin.close()
    assert helper.wait(timeout=30) == 128 + 15


@pytest.mark.parametrize("argv", [(), ("",), ("a", "b\0c"), ("a\0",), ("a", "\udce4"), ("a", "x" * LONGEST)], ids=ascii)
def test_what_no_shell_can_be_told_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(Unspeakable):
        command_line(argv)
