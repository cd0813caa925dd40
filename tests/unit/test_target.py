"""What an operator may type for a node, and the nodes file with every problem at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.errors import InvalidFile, UsageError
from console.node.nodes_file import default_nodes_file, load_nodes
from console.node.ssh_login import known_hosts_files, openssh_settings, route
from console.node.target import LOCAL, Target, parse_target, split_address


@pytest.mark.parametrize(
    ("text", "user", "host", "port"),
    [
        ("gpu1", None, "gpu1", None),
        ("root@gpu1", "root", "gpu1", None),
        ("root@gpu1.example.org:2222", "root", "gpu1.example.org", 2222),
        ("10.0.0.1:22", None, "10.0.0.1", 22),
        ("[fe80::1%eth0]:22", None, "fe80::1%eth0", 22),
        ("root@[::1]", "root", "::1", None),
        ("::1", None, "::1", None),
        ("ssh://ops@gpu1:22/", "ops", "gpu1", 22),
        ("me@corp.example@gpu1", "me@corp.example", "gpu1", None),
        ("maschine-ä", None, "maschine-ä", None),
    ],
)
def test_addresses(text: str, user: str | None, host: str, port: int | None) -> None:
    assert split_address(text) == (user, host, port)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "@", "root@", "@gpu1", "-oProxyCommand=id", "root@-oProxyCommand=id", "-l@gpu1", "a b", "a;b@gpu1",
        "$(id)@gpu1", "gpu1:", "gpu1:0", "gpu1:65536", "gpu1:ssh", "gpu1:²", "[::1", "[gpu1]:22", "[::1]:", "[::1]22",
        "gpu1/..", "gpu1\n", "gpu\0", "`id`",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert "user@host:port" in caught.value.remedy


def test_local_is_this_machine() -> None:
    assert parse_target("local") is LOCAL


def test_a_name_of_the_nodes_file_wins() -> None:
    path = default_nodes_file()
    path.parent.mkdir(parents=True)
    path.write_text("nodes:\n  gpu1: {host: 10.0.0.11, user: root, port: 2222, production: true, sudo: never}\n")
    target = parse_target("gpu1")
    assert (target.name, target.host, target.user, target.port) == ("gpu1", "10.0.0.11", "root", 2222)
    assert (target.production, target.sudo) == (True, "never")
    assert parse_target("gpu2").host == "gpu2"


def test_a_nodes_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        parse_target("gpu1", tmp_path / "none.yaml")


def test_every_problem_of_a_nodes_file_is_told_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(
        "nodes:\n"
        "  gpu1: {host: 10.0.0.1, uesr: root}\n"
        "  gpu2: {host: 'a b', port: 0x10, sudo: maybe}\n"
        "  gpu2: {}\n"
        "  gpu3: {jump: 'ok,-oBad', production: yes, port: 70000}\n"
        "  local: {}\n"
        "  gpu4: {host: 'root@h:22', user: 'a b', host_key: AAAA}\n"
        "  gpu5: {jump: gpu6}\n"
        "  gpu6: {jump: gpu5}\n"
    )
    with pytest.raises(InvalidFile) as caught:
        load_nodes(path)
    told = [(problem.line, problem.field) for problem in caught.value.problems]
    assert told == [
        (2, "nodes.gpu1.uesr"), (3, "nodes.gpu2.host"), (3, "nodes.gpu2.port"), (3, "nodes.gpu2.sudo"), (4, "nodes.gpu2"),
        (5, "nodes.gpu3.jump"), (5, "nodes.gpu3.production"), (5, "nodes.gpu3.port"), (6, "nodes.local"),
        (7, "nodes.gpu4.host"), (7, "nodes.gpu4.user"), (7, "nodes.gpu4.host_key"), (8, "nodes.gpu5.jump"),
        (9, "nodes.gpu6.jump"),
    ]  # fmt: skip
    assert "did you mean user?" in caught.value.message
    assert f"{path}:2:" in caught.value.message


def test_jumps_may_name_other_nodes(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(
        "nodes:\n"
        "  door: {host: 192.0.2.1, user: gate, identity: ~/.ssh/door}\n"
        "  gpu1: {host: 10.0.0.11, jump: door}\n"
        "  gpu2: {host: 10.0.0.12, jump: 'ops@other:2222, door'}\n"
        "  gpu3: {host: 10.0.0.13, jump: none}\n"
    )
    nodes = load_nodes(path)
    assert [(hop.host, hop.user) for hop in route(nodes["gpu1"])] == [("192.0.2.1", "gate"), ("10.0.0.11", None)]
    assert [(hop.host, hop.port) for hop in route(nodes["gpu2"])] == [
        ("other", 2222), ("192.0.2.1", None), ("10.0.0.12", None),
    ]  # fmt: skip
    assert [hop.host for hop in route(nodes["gpu3"])] == ["10.0.0.13"]
    assert not nodes["door"].identity_files[0].startswith("~")


def test_proxyjump_of_the_openssh_config_is_followed_hop_by_hop(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host gpu1\n  ProxyJump inner\n  HostName 10.0.0.11\n"
        "Host inner\n  ProxyJump gate@outer:2222\n  HostName 192.0.2.2\n"
        "Host circle\n  ProxyJump circle\n"
    )
    target = Target(name="gpu1", host="gpu1", config=(str(config),))
    assert [(hop.host, hop.user, hop.port) for hop in route(target)] == [
        ("outer", "gate", 2222), ("inner", None, None), ("gpu1", None, None),
    ]  # fmt: skip
    straight = Target(name="gpu1", host="gpu1", config=(str(config),), jump="")
    assert route(straight) == [straight]
    with pytest.raises(UsageError, match="circle"):
        route(Target(name="circle", host="circle", config=(str(config),)))


def test_known_hosts_files_of_the_openssh_config(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a\n  UserKnownHostsFile ~/one /two\nHost b\n  UserKnownHostsFile none\n")

    def files(host: str) -> tuple[str, ...]:
        target = Target(name=host, host=host, config=(str(config),))
        return known_hosts_files(target, openssh_settings(target))

    home = str(Path.home())
    assert files("a")[:2] == (f"{home}/one", "/two")
    assert files("b") == ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
    assert files("c")[0] == f"{home}/.ssh/known_hosts"


def test_a_broken_openssh_config_is_a_usage_error(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Port nine\n")
    with pytest.raises(UsageError, match="OpenSSH config cannot be read"):
        route(Target(name="a", host="a", config=(str(config),)))
