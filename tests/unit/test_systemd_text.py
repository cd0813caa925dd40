"""Commands for systemd, unit text and the answers of `systemctl show`. What a real systemd makes of it: tests/node."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.errors import UsageError
from console.node import systemd

SHOW = """Id=vllm-kimi.service
LoadState=loaded
ActiveState=failed
SubState=failed
Result=timeout
MainPID=0
InvocationID=0123456789abcdef0123456789abcdef
ControlGroup=/system.slice/vllm-kimi.service
FragmentPath=/etc/systemd/system/vllm-kimi.service
NeedDaemonReload=yes
UnitFileState=enabled
NRestarts=2
ExecMainCode=2
ExecMainStatus=9

Id=nothing.service
LoadState=not-found
ActiveState=inactive
SubState=dead
"""


def test_commands_are_argv() -> None:
    assert systemd.start("a.service") == ("systemctl", "start", "a.service")
    assert systemd.stop("a.service", "b.service") == ("systemctl", "stop", "a.service", "b.service")
    assert systemd.daemon_reload() == ("systemctl", "daemon-reload")
    assert systemd.reset_failed("a.service") == ("systemctl", "reset-failed", "a.service")
    assert systemd.verify_file("/x y") == ("systemd-analyze", "verify", "/x y")
    assert systemd.show(("a.service",), ("Id", "MainPID")) == ("systemctl", "show", "-p", "Id,MainPID", "a.service")
    assert systemd.show((), ("Version",)) == ("systemctl", "show", "-p", "Version")


@pytest.mark.parametrize(
    "name", ["", "a", "-a.service", "a b.service", "a.service\n", "../a.service", "é.service", "a" * 250 + ".service"]
)
def test_what_is_no_unit_name_reaches_no_command(name: str) -> None:
    with pytest.raises(UsageError):
        systemd.stop(name)


@pytest.mark.parametrize("name", ["vllm-kimi.service", "a@b:c.service", "dev-disk\\x2d1.mount", "user@1000.service"])
def test_unit_names(name: str) -> None:
    assert systemd.unit_name(name) == name


def test_transient() -> None:
    argv = systemd.transient(
        "job.service",
        ("python3", "$HOME", "a b"),
        properties={"User": "ops"},
        description="A job",
        environment={"A": "b c"},
    )
    assert argv == (
        "systemd-run", "--unit=job.service", "--collect", "--quiet", "--description=A job", "--property=Type=exec",
        "--property=User=ops", "--setenv=A=b c", "--", "python3", "$$HOME", "a b",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("plain", "plain"),
        ("--max-model-len=131072", "--max-model-len=131072"),
        ("", '""'),
        ("two words", '"two words"'),
        ("50%", '"50%%"'),
        ("$HOME", '"$$HOME"'),
        ('{"a": 1}', '"{\\"a\\": 1}"'),
        ("back\\slash", '"back\\\\slash"'),
        ("line\nbreak\ttab", '"line\\nbreak\\ttab"'),
        (";", '";"'),
        ("'", '"\'"'),
        ("\x01", '"\\x01"'),
        ("模型", '"模型"'),
    ],
)
def test_escape_exec(argument: str, text: str) -> None:
    assert systemd.escape_exec(argument) == text


def test_environment_doubles_percent_and_leaves_the_dollar() -> None:
    assert systemd.environment_entry("A", "50% of $HOME") == '"A=50%% of $HOME"'
    assert systemd.environment_entry("NCCL_PROTO", "LL") == "NCCL_PROTO=LL"
    assert systemd.escape_value("A=b c") == '"A=b c"'


@pytest.mark.parametrize(
    ("name", "value"),
    [("1A", "x"), ("A B", "x"), ("", "x"), ("A", "\r"), ("A", "\x00"), ("A", "\x7f"), ("A", "\x1b[0m")],
)
def test_what_systemd_would_drop_is_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError):
        systemd.environment_entry(name, value)


@pytest.mark.parametrize("argument", ["\0", "\ud800"])
def test_what_systemd_cannot_carry_is_refused(argument: str) -> None:
    with pytest.raises(UsageError):
        systemd.escape_exec(argument)


def test_exec_line_needs_an_absolute_program_and_leaves_its_dollar() -> None:
    assert systemd.exec_line(("/opt/v $1/bin/vllm", "serve", "a b")) == '"/opt/v $1/bin/vllm" serve "a b"'
    with pytest.raises(UsageError):
        systemd.exec_line(("vllm", "serve"))


@pytest.mark.parametrize("text", ["a\nb", " a", "a\\", "a\x1b"])
def test_a_plain_setting_is_one_line(text: str) -> None:
    with pytest.raises(UsageError):
        systemd.escape_setting(text)
    assert systemd.escape_setting("50% of it") == "50%% of it"


def unescaped(line: str) -> list[str]:
    """What systemd.syntax(7) says of a command line: quotes and C escapes, then `%%`, then `$$`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    lexer.escape, lexer.quotes = "", '"'
    words, word, at = [], "", 0
    named = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"'}
    quoted = started = False
    while at < len(line):
        char = line[at]
        if quoted and char == "\\":
            code = line[at + 1]
            if code == "x":
                word += chr(int(line[at + 2 : at + 4], 16))
                at += 4
                continue
            word += named[code]
            at += 2
            continue
        if char == '"':
            quoted, started = not quoted, True
        elif char == " " and not quoted:
            words.append(word)
            word, started = "", False
        else:
            word, started = word + char, True
        at += 1
    if started:
        words.append(word)
    return [each.replace("%%", "%").replace("$$", "$") for each in words]


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30), min_size=1, max_size=6
    )
)
def test_escaping_is_undone_by_systemds_rules(arguments: list[str]) -> None:
    line = " ".join(map(systemd.escape_exec, arguments))
    assert "\n" not in line
    assert unescaped(line) == arguments


def test_states_of_a_show() -> None:
    first, second = systemd.parse_show(SHOW)
    state = systemd.parse_state("vllm-kimi.service", first, "[Unit]\n")
    assert (state.active, state.result, state.need_reload, state.restarts) == ("failed", "timeout", True, 2)
    assert (state.exit_kind, state.exit_status, state.text) == ("killed", 9, "[Unit]\n")
    missing = systemd.parse_state("nothing.service", second)
    assert (missing.load, missing.main_pid, missing.exit_status, missing.text) == ("not-found", 0, None, None)
    assert not systemd.is_up(state)


def test_show_takes_values_of_several_lines() -> None:
    assert systemd.parse_show("A=1\nsecond line\nB=2\n\n\nA=3\n") == ({"A": "1\nsecond line", "B": "2"}, {"A": "3"})


@given(st.text(max_size=200))
def test_show_never_crashes(text: str) -> None:
    for block in systemd.parse_show(text):
        systemd.parse_state("a.service", block)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10.0),
        ("1min 30s", 90.0),
        ("2min", 120.0),
        ("1h 1ms", 3600.001),
        ("infinity", None),
        ("", None),
        ("soon", None),
    ],
)
def test_spans(text: str, seconds: float | None) -> None:
    assert systemd.parse_span(text) == seconds
