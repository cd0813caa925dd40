"""What every `Node` must do, as plain functions: the same assertions for SSH, local, practice and real nodes.

    @pytest.mark.parametrize("check", node_contract.CHECKS, ids=node_contract.name)
    async def test_contract(check, bench): await check(bench)

A `Bench` is a node and an empty folder on it that the login may write to. `SUDO_CHECKS` need a login that may become root.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from console.errors import CommandFailed, Refused
from console.node.base import Denied, Done, Lost, Node, NoSuchFile, capture
from console.node.http import Http, NoReply

HOSTILE = (
    "",
    " ",
    "two words",
    "it's",
    'say "hi"',
    "$(touch pwned)",
    "`id`",
    "$HOME ${PATH}",
    "a;b&c|d>e<f",
    "line\nbreak\n",
    "tab\there",
    "\r\n",
    "-n",
    "--",
    "../../etc/passwd",
    "*",
    "?[a-z]{1,2}",
    "!history",
    "#comment",
    "~root",
    "back\\slash\\",
    "%s%n",
    "Ünïcödé 模型 🦙",
    "\u202eright to left",
    "\x1b[31mred\x07",
    "x" * 5000,
)
_SHOW_ARGV = "import json,sys; print(json.dumps(sys.argv[1:]))"
_SERVER = """
import os, socket, sys
root = os.environ.get("RELAUNCH_PRACTICE_ROOT")
if root:
    os.makedirs(root + "/net", exist_ok=True)
    server = socket.socket(socket.AF_UNIX); port = 18099; path = "%s/net/%d.sock" % (root, port)
    if os.path.exists(path): os.unlink(path)
    server.bind(path)
else:
    server = socket.socket(); server.bind(("127.0.0.1", 0)); port = server.getsockname()[1]
server.listen(8)
print(port, flush=True)
while True:
    peer, _ = server.accept()
    asked = b""
    while b"\\r\\n\\r\\n" not in asked:
        more = peer.recv(4096)
        if not more: break
        asked += more
    body = asked.split(b" ")[1] if asked else b""
    peer.sendall(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    peer.close()
"""


@dataclass(frozen=True, slots=True)
class Bench:
    node: Node
    folder: str
    """Absolute, without a slash at the end."""


@asynccontextmanager
async def bench_of(node: Node) -> AsyncIterator[Bench]:
    """A bench whose folder is gone afterwards, with whatever root put there."""
    folder = (await capture(node, ("mktemp", "-d"))).strip()
    try:
        yield Bench(node, folder)
    finally:
        await node.run(("rm", "-rf", folder), timeout=30, sudo=True)


Check = Callable[[Bench], Awaitable[None]]


def name(check: object) -> str:
    return str(getattr(check, "__name__", check))


async def keeps_exit_status_and_streams_apart(bench: Bench) -> None:
    answer = await bench.node.run(("sh", "-c", "echo out; echo err >&2; exit 7"), timeout=30)
    assert answer == Done(7, "out\n", "err\n")


async def tells_a_signal_as_128_plus_n(bench: Bench) -> None:
    answer = await bench.node.run(("sh", "-c", "kill -KILL $$"), timeout=30)
    assert isinstance(answer, Done)
    assert answer.code == 137


async def passes_hostile_arguments_through_intact(bench: Bench) -> None:
    text = await capture(bench.node, ("python3", "-c", _SHOW_ARGV, *HOSTILE))
    assert json.loads(text) == list(HOSTILE)


async def passes_hostile_arguments_to_a_helper_intact(bench: Bench) -> None:
    async with bench.node.stream(("python3", "-c", _SHOW_ARGV, *HOSTILE)) as lines:
        text = [line.text async for line in lines]
    assert json.loads("".join(text)) == list(HOSTILE)


async def sends_stdin_and_ends_it(bench: Bench) -> None:
    data = bytes(range(256)) * 2000
    answer = await bench.node.run(("sha256sum",), input=data, timeout=30)
    assert isinstance(answer, Done)
    assert answer.out.split()[0] == hashlib.sha256(data).hexdigest()


async def closes_stdin_when_there_is_no_input(bench: Bench) -> None:
    assert await bench.node.run(("cat",), timeout=30) == Done(0, "", "")
    assert await bench.node.run(("cat",), input=b"", timeout=30) == Done(0, "", "")


async def survives_a_command_that_reads_no_stdin(bench: Bench) -> None:
    answer = await bench.node.run(("true",), input=b"x" * 4_000_000, timeout=30)
    assert answer == Done(0, "", "")


async def takes_much_output_on_both_streams(bench: Bench) -> None:
    script = "import sys\nfor i in range(300):\n sys.stdout.write('o'*10000); sys.stderr.write('e'*10000)"
    answer = await bench.node.run(("python3", "-c", script), timeout=60)
    assert answer == Done(0, "o" * 3_000_000, "e" * 3_000_000)


async def replaces_bytes_that_are_no_text(bench: Bench) -> None:
    answer = await bench.node.run(("printf", r"a\377b\303\244"), timeout=30)
    assert answer == Done(0, "a\ufffdbä", "")


async def answers_127_for_a_program_that_is_not_there(bench: Bench) -> None:
    answer = await bench.node.run(("relaunch-no-such-program",), timeout=30)
    assert isinstance(answer, Done)
    assert answer.code == 127


async def denies_what_no_shell_can_be_told(bench: Bench) -> None:
    for argv in ((), ("",), ("echo", "a\0b"), ("echo", "\ud800"), ("echo", "x" * 140_000)):
        assert isinstance(await bench.node.run(argv, timeout=30), Denied)


async def gives_up_at_the_deadline(bench: Bench) -> None:
    for mutates in (True, False):
        answer = await bench.node.run(("sleep", "20"), timeout=0.5, mutates=mutates)
        assert isinstance(answer, Lost)
        assert answer.sent
    assert await bench.node.run(("echo", "still here"), timeout=30) == Done(0, "still here\n", "")


async def runs_more_commands_than_there_are_sessions(bench: Bench) -> None:
    answers = await asyncio.gather(*(bench.node.run(("echo", str(n)), timeout=60) for n in range(25)))
    assert answers == [Done(0, f"{n}\n", "") for n in range(25)]


async def writes_exactly_and_atomically(bench: Bench) -> None:
    path = f"{bench.folder}/a file's $(name)"
    data = bytes(range(256)) * 1000
    await bench.node.write(path, b"old", mode=0o644)
    before = await capture(bench.node, ("stat", "-c", "%i", path))
    await bench.node.write(path, data, mode=0o600)
    assert await bench.node.read(path) == data
    assert await capture(bench.node, ("stat", "-c", "%a", path)) == "600\n"
    assert await capture(bench.node, ("stat", "-c", "%i", path)) != before
    await bench.node.write(path, b"", mode=0o664)  # a mode that the umask would narrow
    assert await capture(bench.node, ("stat", "-c", "%a %s", path)) == "664 0\n"
    assert await capture(bench.node, ("ls", "-A", bench.folder)) == "a file's $(name)\n"


async def replaces_a_link_and_writes_not_through_it(bench: Bench) -> None:
    await bench.node.write(f"{bench.folder}/target", b"precious")
    await bench.node.run(("ln", "-s", "target", f"{bench.folder}/link"), timeout=30)
    await bench.node.write(f"{bench.folder}/link", b"new")
    assert await bench.node.read(f"{bench.folder}/target") == b"precious"
    assert await bench.node.read(f"{bench.folder}/link") == b"new"


async def leaves_nothing_behind_when_a_write_fails(bench: Bench) -> None:
    await bench.node.run(("mkdir", "-p", f"{bench.folder}/way"), timeout=30)
    with pytest.raises(CommandFailed):
        await bench.node.write(f"{bench.folder}/way", b"x")
    with pytest.raises(CommandFailed, match="does not exist"):
        await bench.node.write(f"{bench.folder}/nowhere/file", b"x")
    assert await capture(bench.node, ("ls", "-A", bench.folder)) == "way\n"


async def tells_why_a_file_cannot_be_read(bench: Bench) -> None:
    with pytest.raises(NoSuchFile):
        await bench.node.read(f"{bench.folder}/none")
    with pytest.raises(CommandFailed, match="folder"):
        await bench.node.read(bench.folder)
    await bench.node.run(("mkfifo", f"{bench.folder}/pipe"), timeout=30)
    with pytest.raises(CommandFailed, match="no regular file"):
        await bench.node.read(f"{bench.folder}/pipe")
    await bench.node.write(f"{bench.folder}/big", b"x" * 1001)
    assert len(await bench.node.read(f"{bench.folder}/big", limit=1001)) == 1001
    with pytest.raises(CommandFailed, match="more than"):
        await bench.node.read(f"{bench.folder}/big", limit=1000)


async def reads_files_that_tell_no_size(bench: Bench) -> None:
    assert b"MemTotal" in await bench.node.read("/proc/meminfo")


async def streams_lines_as_they_come(bench: Bench) -> None:
    script = r"printf 'one\ntwo\r\n10%%\r20%%\rdone\nhalf \303'; printf '\244 \377\n'; printf 'no end'"
    async with bench.node.stream(("sh", "-c", script)) as lines:
        got = [(line.text, line.replaces) async for line in lines]
    assert got == [
        ("one", False), ("two", False), ("10%", True), ("20%", True), ("done", False), ("half ä \ufffd", False),
        ("no end", False),
    ]  # fmt: skip


async def streams_long_lines_in_pieces(bench: Bench) -> None:
    async with bench.node.stream(("python3", "-c", "print('x'*1_000_000); print('y')")) as lines:
        got = [line async for line in lines]
    assert "".join(line.text for line in got) == "x" * 1_000_000 + "y"
    assert max(len(line.text) for line in got) <= 64 * 1024
    assert [line.text for line in got if not line.cut][-1] == "y"


async def streams_more_than_any_buffer_holds(bench: Bench) -> None:
    seen = 0
    async with bench.node.stream(("python3", "-c", "for i in range(300_000): print(i)")) as lines:
        async for line in lines:
            assert line.text == str(seen)
            seen += 1
    assert seen == 300_000


async def tells_how_a_helper_failed(bench: Bench) -> None:
    with pytest.raises(CommandFailed) as caught:
        async with bench.node.stream(("sh", "-c", "echo fine; echo broken >&2; exit 3")) as lines:
            got = [(line.text, line.err) async for line in lines]
    assert caught.value.exit_status == 3
    assert "broken" in caught.value.err
    del caught
    with pytest.raises(CommandFailed) as missing:
        async with bench.node.stream(("relaunch-no-such-program",)) as lines:
            got = [(line.text, line.err) async for line in lines]
    assert missing.value.exit_status == 127
    assert not [text for text, err in locals().get("got", ()) if not err and text != "fine"]


async def ends_a_silent_helper_when_it_is_left(bench: Bench) -> None:
    async with bench.node.stream(("sh", "-c", "echo $$; exec sleep 1000")) as lines:
        pid = (await anext(lines)).text
    await ended(bench.node, pid)


async def ends_a_helper_by_closing_its_stdin(bench: Bench) -> None:
    script = (
        "import os,sys; print(os.getpid(), sys.stdin.readline().strip(), flush=True); sys.stdin.read(); open(%r,'w')"
    )
    argv = ("python3", "-c", script % f"{bench.folder}/saw-the-end")
    async with bench.node.stream(argv, input=b"question\n") as lines:
        pid, word = (await anext(lines)).text.split()
        assert word == "question"
    await ended(bench.node, pid)


async def reaches_http_on_the_nodes_loopback(bench: Bench) -> None:
    async with bench.node.stream(("python3", "-c", _SERVER)) as lines:
        port = int((await anext(lines)).text)
        for path in ("/health", "/v1/models"):
            reply = await bench.node.http(port).request("GET", path, limit=20)
            assert (reply.status, reply.text) == (200, path)
    with pytest.raises(NoReply):
        await _until_closed(bench.node.http(port))


async def knows_its_link_is_up(bench: Bench) -> None:
    assert bench.node.link().up


async def becomes_root(bench: Bench) -> None:
    answer = await bench.node.run(("id", "-u"), timeout=30, sudo=True, mutates=False)
    assert answer == Done(0, "0\n", "")
    answer = await bench.node.run(("cat",), input=b"for the command alone", timeout=30, sudo=True)
    assert answer == Done(0, "for the command alone", "")


async def passes_hostile_arguments_through_sudo_intact(bench: Bench) -> None:
    argv = ("python3", "-c", _SHOW_ARGV, *HOSTILE)
    answer = await bench.node.run(argv, timeout=30, sudo=True, mutates=False)
    assert isinstance(answer, Done)
    assert json.loads(answer.out) == list(HOSTILE)
    assert isinstance(await bench.node.run(("A=b", "true"), timeout=30, sudo=True), Denied)


async def reads_and_writes_as_root(bench: Bench) -> None:
    folder = f"{bench.folder}/only root's"
    await bench.node.run(("mkdir", "-m", "700", folder), timeout=30, sudo=True)
    data = bytes(range(256)) * 100
    await bench.node.write(f"{folder}/a", b"old", sudo=True)
    await bench.node.write(f"{folder}/a", data, mode=0o640, sudo=True)
    assert await bench.node.read(f"{folder}/a", sudo=True) == data
    shown = await bench.node.run(("stat", "-c", "%a %u", f"{folder}/a"), timeout=30, sudo=True)
    assert shown == Done(0, "640 0\n", "")
    with pytest.raises(NoSuchFile):
        await bench.node.read(f"{folder}/b", sudo=True)
    with pytest.raises(CommandFailed, match="more than"):
        await bench.node.read(f"{folder}/a", sudo=True, limit=10)
    with pytest.raises(CommandFailed, match="does not exist"):
        await bench.node.write(f"{folder}/none/a", b"", sudo=True)
    listed = await bench.node.run(("ls", "-A", folder), timeout=30, sudo=True)
    assert listed == Done(0, "a\n", "")


async def streams_as_root_and_ends_the_helper(bench: Bench) -> None:
    async with bench.node.stream(("sh", "-c", "id -u; echo $$; exec sleep 1000"), sudo=True) as lines:
        assert (await anext(lines)).text == "0"
        pid = (await anext(lines)).text
    await ended(bench.node, pid)


async def read_only_denies_what_mutates(node: Node, folder: str) -> None:
    """For a node that was opened read-only."""
    assert node.read_only
    assert isinstance(await node.run(("touch", f"{folder}/touched"), timeout=30), Denied)
    with pytest.raises(Refused):
        await node.write(f"{folder}/written", b"x")
    with pytest.raises(Refused):
        await node.write(f"{folder}/written", b"x", sudo=True)
    assert await node.run(("ls", "-A", folder), timeout=30, mutates=False) == Done(0, "", "")
    assert b"MemTotal" in await node.read("/proc/meminfo")


async def ended(node: Node, pid: str) -> None:
    """Returns when a process of the node has ended."""
    answer = await node.run(("tail", "-s", "0.1", "--pid", pid, "-f", "/dev/null"), timeout=20, mutates=False)
    assert answer == Done(0, "", ""), f"process {pid} still runs"


async def _until_closed(http: Http) -> None:
    """Ask until the server has gone, which its helper's end promises soon, not at once. Raises what asking raises."""
    async with asyncio.timeout(20):
        while True:
            await http.request("GET", "/", limit=20)
            await asyncio.sleep(0.05)


CHECKS: tuple[Check, ...] = (
    keeps_exit_status_and_streams_apart,
    tells_a_signal_as_128_plus_n,
    passes_hostile_arguments_through_intact,
    passes_hostile_arguments_to_a_helper_intact,
    sends_stdin_and_ends_it,
    closes_stdin_when_there_is_no_input,
    survives_a_command_that_reads_no_stdin,
    takes_much_output_on_both_streams,
    replaces_bytes_that_are_no_text,
    answers_127_for_a_program_that_is_not_there,
    denies_what_no_shell_can_be_told,
    gives_up_at_the_deadline,
    runs_more_commands_than_there_are_sessions,
    writes_exactly_and_atomically,
    replaces_a_link_and_writes_not_through_it,
    leaves_nothing_behind_when_a_write_fails,
    tells_why_a_file_cannot_be_read,
    reads_files_that_tell_no_size,
    streams_lines_as_they_come,
    streams_long_lines_in_pieces,
    streams_more_than_any_buffer_holds,
    tells_how_a_helper_failed,
    ends_a_silent_helper_when_it_is_left,
    ends_a_helper_by_closing_its_stdin,
    reaches_http_on_the_nodes_loopback,
    knows_its_link_is_up,
)
SUDO_CHECKS: tuple[Check, ...] = (
    becomes_root,
    passes_hostile_arguments_through_sudo_intact,
    reads_and_writes_as_root,
    streams_as_root_and_ends_the_helper,
)
