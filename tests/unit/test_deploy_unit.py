"""The unit file: golden text, nothing lost on the way through systemd's syntax, changes told flag by flag."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.checkpoint.patch import PatchOutcome
from console.deploy.unit import (
    environment_changes,
    flag_changes,
    serve_argv,
    service_environment,
    unit_diff,
    unit_text,
)
from console.deploy.unitfile import parse_unit, split_words
from console.profile.load import SHIPPED, find_profile
from tests.unit.profile_samples import facts, profile

GOLDEN = Path(__file__).parent / "golden"
PLAIN = PatchOutcome("/home/op/srv/Model")


# ---- systemd's own unquoting, written again from systemd.syntax(7) and systemd.service(5), independent of the code

_C = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "s": " ",
    "\\": "\\",
    '"': '"',
    "'": "'",
}


def systemd_words(text: str) -> list[str]:
    words, word, quote, inside, at = [], "", "", False, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            following = text[at + 1]
            if following == "x":
                word += chr(int(text[at + 2 : at + 4], 16))
                at += 4
            else:
                word += _C[following]
                at += 2
            inside = True
            continue
        if char in "'\"" and (not inside or quote):
            if quote == char:
                quote = ""
            elif quote:
                word += char
            else:
                quote, inside = char, True
        elif char == " " and not quote:
            if inside:
                words.append(word)
            word, inside = "", False
        else:
            word += char
            inside = True
        at += 1
    assert not quote
    return [*words, word] if inside else words


def specifiers(text: str) -> str:
    assert not re.search(r"%", text.replace("%%", "")), text
    return text.replace("%%", "%")


def variables(text: str) -> str:
    assert not re.search(r"\$", text.replace("$$", "")), text
    return text.replace("$$", "$")


def values(text: str, name: str) -> list[str]:
    return [line.partition("=")[2] for line in text.split("\n") if line.startswith(f"{name}=")]


def executed(text: str) -> list[str]:
    (line,) = values(text, "ExecStart")
    program, *arguments = systemd_words(specifiers(line))
    return [program, *map(variables, arguments)]


def environment(text: str) -> dict[str, str]:
    pairs = [word for line in values(text, "Environment") for word in systemd_words(specifiers(line))]
    return dict(pair.split("=", 1) for pair in pairs)


# ---------------------------------------------------------------------------------------------------------- the text


@pytest.mark.parametrize("name", ["kimi-k2.5-nvfp4", "rehearsal"])
def test_golden(name: str) -> None:
    outcome = PatchOutcome("/var/lib/relaunch/overlays/Kimi-K2.5-NVFP4-1", {"kv-cache-dtype": "auto"})
    text = unit_text(find_profile(name, [SHIPPED]), facts(), outcome)
    path = GOLDEN / f"{name}.service"
    assert text == path.read_text(), f"when the change is meant, write {path} again"


def test_the_text_is_deterministic() -> None:
    one = profile(
        serve__flags={"b": 1, "a": 2},
        environment={"Y": {"value": "1"}, "X": {"value": "2"}},
        replaces=["b.service", "a.service"],
    )
    two = profile(
        serve__flags={"a": 2, "b": 1},
        environment={"X": {"value": "2"}, "Y": {"value": "1"}},
        replaces=["a.service", "b.service"],
    )
    assert unit_text(one, facts(), PLAIN) == unit_text(two, facts(), PLAIN)


def test_what_keeps_a_stop_from_leaving_orphans() -> None:
    text = unit_text(profile(service__stop_seconds=77, replaces=["old.service"]), facts(), PLAIN)
    for line in (
        "Type=exec", "KillMode=control-group", "KillSignal=SIGTERM", "SendSIGKILL=yes", "TimeoutStopSec=77", "Restart=on-failure",
        "RestartPreventExitStatus=2", "StartLimitBurst=3", "Conflicts=old.service", "LimitMEMLOCK=infinity", "User=root",
        "RequiresMountsFor=/home/op/srv/Model /home/op/opt/vllm-0.16.0", "WantedBy=multi-user.target",
    ):  # fmt: skip
        assert line in text.splitlines()
    assert int(values(text, "RestartSec")[0]) >= 30
    assert text.startswith("# Written by Relaunch from the profile sample;")


def test_the_environment_that_relaunch_sets() -> None:
    env = service_environment(
        profile(environment={"CUDA_HOME": {"value": "/usr/local/cuda/"}, "NCCL_DEBUG": {"value": "INFO"}}), facts()
    )
    assert env["PATH"].startswith("/home/op/opt/vllm-0.16.0/bin:/usr/local/cuda/bin:/usr/local/sbin:")
    assert env["HF_HUB_OFFLINE"] == env["PYTHONUNBUFFERED"] == env["NO_COLOR"] == env["SPT_NOENV"] == "1"
    assert env["VLLM_PROCESS_NAME_PREFIX"] == "vllm-new"
    assert env["VLLM_ENGINE_READY_TIMEOUT_S"] == "3600"
    assert env["NCCL_DEBUG"] == "INFO"
    assert list(env) == sorted(env)


def test_secrets_are_a_path_only() -> None:
    text = unit_text(profile(service__environment_file="/etc/relaunch/kimi.env"), facts(), PLAIN)
    assert "EnvironmentFile=/etc/relaunch/kimi.env" in text.splitlines()


def test_the_command_line() -> None:
    flags: dict[str, Any] = {
        "trust-remote-code": True, "enable-prefix-caching": False, "max-model-len": -1, "gpu-memory-utilization": 0.93,
        "chat-template": "-x", "root-path": "", "middleware": ["a", "b"], "hf-overrides": {"a": 0.5, "b": ["é\n"]},
        "kv-cache-dtype": "nvfp4",
    }  # fmt: skip
    argv = serve_argv(profile(serve__flags=flags), facts(), PatchOutcome("/overlay", {"kv-cache-dtype": "bfloat16"}))
    assert argv == (
        "/home/op/opt/vllm-0.16.0/bin/vllm", "serve", "/overlay", "--served-model-name", "model", "--host", "127.0.0.1", "--port",
        "8000", "--tensor-parallel-size", "2", "--chat-template=-x", "--no-enable-prefix-caching", "--gpu-memory-utilization",
        "0.93", "--hf-overrides", '{"a":0.5,"b":["\\u00e9\\n"]}', "--kv-cache-dtype", "bfloat16", "--max-model-len=-1",
        "--middleware", "a", "b", "--root-path=", "--trust-remote-code",
    )  # fmt: skip


TRICKY = [
    "a b",
    "a'b",
    'a"b',
    "$(id)",
    "${HOME}",
    "$HOME",
    "%h %n",
    "a\\b",
    "a;b",
    "é日本語",
    "#x",
    "*",
    "a\tb",
    "{}",
    "\\n",
    "'",
    '"',
]


@pytest.mark.parametrize("text", TRICKY)
def test_values_survive(text: str) -> None:
    one = profile(serve__flags={"chat-template": text}, environment={"X": {"value": text}}, model__served_name=text)
    rendered = unit_text(one, facts(), PatchOutcome(f"/srv/{text}"))
    assert executed(rendered) == list(serve_argv(one, facts(), PatchOutcome(f"/srv/{text}")))
    assert environment(rendered)["X"] == text
    assert parse_unit(rendered).argv == tuple(executed(rendered))
    assert parse_unit(rendered).environment == environment(rendered)


no_breaks = st.text(alphabet=st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00"), max_size=40)


@given(
    st.lists(no_breaks, min_size=1, max_size=6),
    no_breaks.filter(lambda t: not re.search("[\x00-\x08\x0b-\x1f\x7f]", t)),
)
def test_any_argument_and_value_survives(arguments: list[str], value: str) -> None:
    one = profile(serve__flags={"middleware": arguments}, environment={"X": {"value": value}})
    text = unit_text(one, facts(), PLAIN)
    assert executed(text) == list(serve_argv(one, facts(), PLAIN))
    assert environment(text)["X"] == value
    assert parse_unit(text).argv == tuple(executed(text))


def test_nothing_can_add_a_line() -> None:
    """Even what the rules refuse cannot become a setting of its own."""
    evil = "x\nExecStartPre=/bin/evil\n[Service]"
    one = profile(
        serve__flags={"chat-template": evil}, environment={"X": {"value": evil}}, model__served_name=evil, title=evil
    )
    text = unit_text(one, facts(), PatchOutcome("/srv/" + evil))
    assert not values(text, "ExecStartPre")
    assert text.count("\n[Service]\n") == 1


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("/srv/My Models", 'RequiresMountsFor="/srv/My Models" /home/op/opt/vllm-0.16.0'),
        ("/srv/a%b", "RequiresMountsFor=/srv/a%%b /home/op/opt/vllm-0.16.0"),
        ("/srv/it's", 'RequiresMountsFor="/srv/it\'s" /home/op/opt/vllm-0.16.0'),
        ('/srv/a"b', "RequiresMountsFor='/srv/a\"b' /home/op/opt/vllm-0.16.0"),
        ("/srv/a\\b", "RequiresMountsFor=/home/op/opt/vllm-0.16.0"),
    ],
)
def test_mounts_of_odd_folders(folder: str, line: str) -> None:
    assert line in unit_text(profile(model__folder=folder), facts(), PLAIN).splitlines()


# -------------------------------------------------------------------------------------------------------- the changes

BY_HAND = """\
[Unit]
Description=old

[Service]
# a comment
Environment="A=1 2" B=x
Environment=HF_TOKEN=hf_secretsecretsecret
Environment='C=it''s'
ExecStart=-/opt/v/bin/vllm serve /m \\
  # in between
  --max-model-len 8192 --api-key topsecret \\
  --trust-remote-code --hf-overrides '{"a": 1}'
"""


def test_units_written_by_hand_are_read() -> None:
    unit = parse_unit(BY_HAND)
    assert unit.argv == (
        "/opt/v/bin/vllm", "serve", "/m", "--max-model-len", "8192", "--api-key", "topsecret", "--trust-remote-code",
        "--hf-overrides", '{"a": 1}',
    )  # fmt: skip
    assert unit.environment["A"] == "1 2"
    assert unit.environment["B"] == "x"


def test_changes_are_told_and_secrets_hidden() -> None:
    new = unit_text(profile(serve__flags={"max-model-len": 4096}, environment={"B": {"value": "y"}}), facts(), PLAIN)
    flags = flag_changes(BY_HAND, new)
    assert "~ --max-model-len: 8192 -> 4096" in flags
    assert "- --trust-remote-code" in flags
    assert "- --api-key ••••••" in flags
    assert "~ arguments: serve /m -> serve /home/op/srv/Model" in flags
    env = environment_changes(BY_HAND, new)
    assert "- HF_TOKEN=••••••" in env
    assert "~ B: x -> y" in env
    assert "- A=1 2" in env
    assert not any("hf_secret" in line or "topsecret" in line for line in (*flags, *env))


def test_diff() -> None:
    text = unit_text(profile(), facts(), PLAIN)
    assert unit_diff(text, text) == ""
    assert flag_changes(text, text) == environment_changes(text, text) == ()
    assert unit_diff(None, text).splitlines()[:2] == ["--- installed", "+++ rendered"]
    other = unit_text(profile(service__port=9000), facts(), PLAIN)
    changed = [
        line for line in unit_diff(text, other).splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert len(changed) == 2


@given(st.text(max_size=300))
def test_any_text_is_read_without_raising(text: str) -> None:
    parse_unit(text)
    parse_unit(f"[Service]\nExecStart={text}\nEnvironment={text}")
    split_words(text)
