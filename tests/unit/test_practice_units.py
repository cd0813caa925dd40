"""How the practice init reads unit files: quoting, variables, settings, and what it complains of, in systemd's words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.node import systemd
from console.rehearsal import faults
from console.rehearsal.init import shown, text, words
from console.rehearsal.init.settings import settings, status_words
from console.rehearsal.init.text import UnitText

ANY = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"))


def read(body: str, name: str = "x.service") -> UnitText:
    unit = UnitText(name, f"/u/{name}")
    text.read_into(unit, body, f"/u/{name}")
    return unit


@given(st.lists(ANY, max_size=5))
def test_what_the_console_escapes_is_what_the_init_reads(argv: list[str]) -> None:
    """The same escaping is proved against a real systemd in tests/node."""
    line = systemd.exec_line(("/bin/x", *argv))
    unit = read(f"[Service]\nExecStart={line}\n")
    (command,) = text.commands(unit, "ExecStart", {})
    assert [*words.expand(list(command.argv[1:]), {})] == argv


@given(st.lists(ANY, min_size=1, max_size=5))
def test_transient_units_keep_their_arguments(argv: list[str]) -> None:
    line = " ".join(words.quoted(word) for word in argv)
    (again, unknown) = words.split(words.specifiers(line, {}))
    assert (again, unknown) == (argv, False)


def test_variables() -> None:
    given_words = ["$A", "x${A}y", "$$A", "$B", "a$A"]
    assert words.expand(given_words, {"A": "one two"}) == ["one", "two", "xone twoy", "$A", "a$A"]


@pytest.mark.parametrize(
    ("span", "value"),
    [("90", 90), ("1min 30s", 90), ("100ms", 0.1), ("2h", 7200), ("infinity", float("inf")), ("1.5s", 1.5)],
)
def test_time_spans(span: str, value: float) -> None:
    assert words.seconds(span) == pytest.approx(value)


def test_time_spans_that_are_none() -> None:
    for bad in ("", "soon", "5 parsecs", "-1"):
        with pytest.raises(ValueError):
            words.seconds(bad)


def test_spans_are_shown_as_systemctl_shows_them() -> None:
    assert [shown.span(value) for value in (90, 0.1, float("inf"), 0, 3661)] == [
        "1min 30s", "100ms", "infinity", "0", "1h 1min 1s",
    ]  # fmt: skip


def test_complaints_are_those_of_systemd_252() -> None:
    """Recorded from `systemd-analyze verify` of systemd 252."""
    unit = read(
        "[Unit]\nDescription=x\nFoo=bar\n[Service]\nType=exec\nExecStart=/nonexistent/bin --a\nLimitNOFILE=abc\n"
        'TimeoutStopSec=xx\nBogus=1\nRestart=sometimes\nKillSignal=SIGFOO\nEnvironment="A=b c" D="unterminated\n'
        "nonsense line\n[Bar]\nX=1\n[X-Foo]\nY=1\n"
    )
    assert unit.warnings == [
        "/u/x.service:3: Unknown key 'Foo' in section [Unit], ignoring.",
        "/u/x.service:7: Failed to parse resource value, ignoring: abc",
        "/u/x.service:8: Failed to parse time value, ignoring: xx",
        "/u/x.service:9: Unknown key 'Bogus' in section [Service], ignoring.",
        "/u/x.service:10: Failed to parse service restart specifier, ignoring: sometimes",
        "/u/x.service:11: Failed to parse signal name, ignoring: SIGFOO",
        '/u/x.service:12: Invalid syntax, ignoring: "A=b c" D="unterminated',
        "/u/x.service:13: Missing '=', ignoring line.",
        "/u/x.service:14: Unknown section 'Bar'. Ignoring.",
    ]


def test_settings(tmp_path: Path) -> None:
    path = tmp_path / "a.service"
    path.write_text(
        '# a comment\n[Unit]\nDescription=%N of %h\n[Service]\nType=exec\nEnvironment=A=1 "B=two words"\nEnvironment=C=%%n\n'
        "ExecStart=/bin/sh \\\n  -c true\nTimeoutSec=7\nRestart=on-failure\nSuccessExitStatus=143 SIGUSR1\n"
        "RestartPreventExitStatus=2\nLimitNOFILE=1024:4096\nLimitMEMLOCK=infinity\n[Install]\nWantedBy=multi-user.target\n"
    )
    unit = text.load(path)
    assert not unit.warnings
    found = settings(unit, {"N": "a", "h": "/root"})
    assert found.description == "a of /root"
    assert found.commands["ExecStart"][0].argv == ("/bin/sh", "-c", "true")
    assert found.environment == {"A": "1", "B": "two words", "C": "%n"}
    assert (found.start_timeout, found.stop_timeout) == (7, 7)
    assert found.is_clean(143)
    assert found.is_clean(-10)
    assert found.is_clean(-15)
    assert not found.is_clean(1)
    assert found.prevent.holds(2)
    assert sorted(limit[1:] for limit in found.limits) == [(-1, -1), (1024, 4096)]
    assert found.wanted_by == ("multi-user.target",)


def test_an_empty_assignment_clears() -> None:
    unit = read("[Service]\nExecStart=/bin/a\nExecStart=\nExecStart=/bin/b\n")
    assert unit.all("Service", "ExecStart") == ["/bin/b"]


def test_exits_in_words() -> None:
    assert [status_words(code) for code in (1, 203, 99, -9, -15)] == [
        "code=exited, status=1/FAILURE", "code=exited, status=203/EXEC", "code=exited, status=99/n/a",
        "code=killed, status=9/KILL", "code=killed, status=15/TERM",
    ]  # fmt: skip


def test_every_fault_of_the_issue_is_there() -> None:
    names = {fault.name for fault in faults.CATALOGUE}
    assert names == {
        "fp8-kv", "bad-flag", "oom", "missing-shard", "stall", "disk-full", "port-in-use", "orphan", "never-starts", "hang",
        "garbage", "slow-stop", "drop", "slow",
    }  # fmt: skip
    assert all(fault.step in faults.STEPS and fault.text for fault in faults.CATALOGUE)


def test_the_fault_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "root" / "faults.json"
    chosen = faults.parse(("oom:launch", "drop"))
    faults.write(path, chosen)
    assert faults.read(path) == chosen
    assert faults.chosen(path, "drop") == faults.Chosen("drop", "download")
    faults.write(path, ())
    assert faults.read(path) == ()
