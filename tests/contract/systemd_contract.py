"""What systemd does, as plain functions over a node: the same assertions for a real systemd and for the practice init.

    @pytest.mark.parametrize("check", systemd_contract.CHECKS, ids=node_contract.name)
    async def test_contract(check, units): await check(units)

`Units` puts unit files on the node, asks systemctl and journalctl, and takes all of it away again.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from console.node import systemd
from console.node.base import Done, Node, capture

_STATE = "LoadState,ActiveState,SubState,Result,MainPID,ExecMainCode,ExecMainStatus,NRestarts,InvocationID,ControlGroup"


@dataclass(slots=True)
class Units:
    """A node whose login is root or may become it, the folder for unit files, and an empty folder for what units write."""

    node: Node
    folder: str
    scratch: str
    cgroup: str
    made: list[str] = field(default_factory=list)

    async def run(self, *argv: str, input: bytes | None = None) -> Done:
        answer = await self.node.run(argv, timeout=60, sudo=True, input=input)
        assert isinstance(answer, Done), answer
        return answer

    async def put(self, name: str, service: str, unit: str = "", install: str = "") -> str:
        """Install a unit file and let systemd read it; returns its name."""
        text = f"[Unit]\nDescription=Contract {name}\n{unit}\n[Service]\n{service}\n{install}"
        await self.node.write(f"{self.folder}/{name}", text.encode(), sudo=True)
        self.made.append(name)
        await self.ok("systemctl", "daemon-reload")
        return name

    async def ok(self, *argv: str) -> str:
        answer = await self.run(*argv)
        assert answer.code == 0, answer
        return answer.out

    async def show(self, name: str, properties: str = _STATE) -> dict[str, str]:
        out = await self.ok("systemctl", "show", "-p", properties, name)
        return dict(line.partition("=")[::2] for line in out.splitlines())

    async def until(self, name: str, **wanted: str) -> dict[str, str]:
        """The unit's properties once they are as wanted. systemd tells changes over D-Bus, a bare `show` has to look."""
        async with asyncio.timeout(30):
            while True:
                found = await self.show(name)
                if all(found[key] == value for key, value in wanted.items()):
                    return found
                await asyncio.sleep(0.05)

    async def members(self, name: str) -> set[str]:
        group = (await self.show(name, "ControlGroup"))["ControlGroup"]
        answer = await self.run("cat", f"{self.cgroup}{group}/cgroup.procs")
        return set(answer.out.split()) if group else set()

    async def log(self, name: str, *options: str) -> list[dict[str, object]]:
        out = await self.ok("journalctl", "-q", "--no-pager", "--all", "-o", "json", "-u", name, *options)
        return [json.loads(line) for line in out.splitlines()]

    async def said(self, name: str) -> str:
        return await self.ok("journalctl", "-q", "--no-pager", "-o", "cat", "-u", name)

    async def hears(self, name: str, *texts: str) -> str:
        """The unit's log once all `texts` stand in it: journald writes a moment after systemd has answered."""
        async with asyncio.timeout(30):
            while True:
                said = await self.said(name)
                if all(text in said for text in texts):
                    return said
                await asyncio.sleep(0.1)

    async def read(self, name: str) -> str:
        return (await self.node.read(f"{self.scratch}/{name}", sudo=True)).decode()


@asynccontextmanager
async def units_of(node: Node, cgroup: str) -> AsyncIterator[Units]:
    """Ready to use; afterwards every unit that was made is stopped, forgotten and removed."""
    path = await capture(node, ("systemctl", "show", "-p", "UnitPath", "--value"))
    folder = next(word for word in path.split() if word.endswith("/etc/systemd/system"))
    scratch = (await capture(node, ("mktemp", "-d"))).strip()
    await node.run(("chmod", "755", scratch), timeout=30, sudo=True)
    units = Units(node, folder, scratch, cgroup)
    try:
        yield units
    finally:
        for name in units.made:
            await units.run("systemctl", "disable", "--now", name)
            await units.run("systemctl", "reset-failed", name)
            await units.run("rm", "-rf", f"{folder}/{name}", f"{folder}/{name}.d")
        await units.run("systemctl", "daemon-reload")


def sh(script: str) -> str:
    """ExecStart= of a shell script."""
    return "ExecStart=" + systemd.exec_line(("/bin/sh", "-c", script))


# ---------------------------------------------------------------------------------------------------------- starting


async def starts_and_shows_what_it_started(units: Units) -> None:
    name = await units.put("c-plain.service", "Type=exec\n" + sh("sleep 300 & exec sleep 301"))
    await units.ok("systemctl", "start", name)
    found = await units.show(name)
    assert (found["LoadState"], found["ActiveState"], found["SubState"]) == ("loaded", "active", "running")
    assert re.fullmatch(r"[0-9a-f]{32}", found["InvocationID"])
    assert found["ControlGroup"] == f"/system.slice/{name}"
    await _eventually(lambda: _count(units, name, 2))
    assert found["MainPID"] in await units.members(name)
    assert (await units.run("systemctl", "is-active", name)).out == "active\n"
    await units.ok("systemctl", "start", name)
    assert (await units.show(name))["InvocationID"] == found["InvocationID"]
    await units.ok("systemctl", "stop", name)
    found = await units.show(name)
    assert (found["ActiveState"], found["Result"], found["MainPID"]) == ("inactive", "success", "0")
    assert (await units.run("systemctl", "is-active", name)) == Done(3, "inactive\n", "")
    jobs = [f"{verb} {name}" for verb in ("Starting", "Started", "Stopping", "Stopped")]
    await units.hears(name, *jobs, "Deactivated successfully")


async def refuses_what_it_does_not_know(units: Units) -> None:
    started = await units.run("systemctl", "start", "c-none.service")
    assert (started.code, started.err) == (5, "Failed to start c-none.service: Unit c-none.service not found.\n")
    stopped = await units.run("systemctl", "stop", "c-none.service")
    assert (stopped.code, stopped.err) == (5, "Failed to stop c-none.service: Unit c-none.service not loaded.\n")
    found = await units.show("c-none.service")
    assert (found["LoadState"], found["ActiveState"]) == ("not-found", "inactive")
    assert (await units.run("systemctl", "is-enabled", "c-none.service")).code != 0
    assert (await units.run("systemctl", "reset-failed", "c-none.service")).code == 1
    assert (await units.run("systemctl", "cat", "c-none.service")).code == 1


async def refuses_a_bad_unit_file(units: Units) -> None:
    name = await units.put("c-bad.service", "Type=exec")
    answer = await units.run("systemctl", "start", name)
    assert answer.code == 1
    assert "has a bad unit file setting" in answer.err
    assert (await units.show(name))["LoadState"] == "bad-setting"


async def tells_that_a_program_cannot_be_executed(units: Units) -> None:
    name = await units.put("c-203.service", "Type=exec\nExecStart=/no/such/program --flag")
    answer = await units.run("systemctl", "start", name)
    assert answer.code == 1
    assert f"Job for {name} failed because the control process exited with error code." in answer.err
    found = await units.show(name)
    assert (found["ActiveState"], found["Result"], found["ExecMainStatus"]) == ("failed", "exit-code", "203")
    await units.hears(
        name, "Failed at step EXEC spawning /no/such/program: No such file", "status=203/EXEC", "'exit-code'"
    )
    assert (await units.run("systemctl", "is-failed", name)) == Done(0, "failed\n", "")
    await units.ok("systemctl", "reset-failed", name)
    assert (await units.show(name))["ActiveState"] == "inactive"


async def calls_a_simple_service_started_before_it_is_executed(units: Units) -> None:
    name = await units.put("c-simple.service", "Type=simple\nExecStart=/no/such/program")
    await units.ok("systemctl", "start", name)
    assert (await units.until(name, ActiveState="failed"))["ExecMainStatus"] == "203"


async def tells_a_missing_folder_and_a_missing_user(units: Units) -> None:
    for name, line, status, text in (
        (
            "c-200.service",
            "WorkingDirectory=/no/such/folder",
            "200",
            "Changing to the requested working directory failed",
        ),
        ("c-217.service", "User=c-nobody-at-all", "217", "Failed to determine user credentials"),
    ):
        await units.put(name, f"Type=exec\n{line}\nExecStart=/bin/true")
        assert (await units.run("systemctl", "start", name)).code == 1
        assert (await units.show(name))["ExecMainStatus"] == status
        await units.hears(name, text)


async def needs_an_environment_file(units: Units) -> None:
    path = f"{units.scratch}/env"
    name = await units.put("c-env.service", f"Type=oneshot\nEnvironmentFile={path}\n" + sh(f'echo "$A|$B" >{path}.out'))
    assert (await units.run("systemctl", "start", name)).code == 1
    assert (await units.show(name))["Result"] == "resources"
    await units.node.write(path, b'# note\nA=plain words\nB="quoted $x"\n', sudo=True)
    await units.ok("systemctl", "start", name)
    assert await units.read("env.out") == "plain words|quoted $x\n"


async def passes_every_argument_and_variable_through(units: Units) -> None:
    hostile = (
        "", " ", "two words", "it's", 'say "hi"', "$HOME ${PATH} $$", "%n %% %i", "a;b&c", "line\nbreak\n", "tab\there",
        "back\\slash\\", "Ünïcödé 模型", "#c", "*", "; rm",
    )  # fmt: skip
    code = "import json,os,sys; open(sys.argv[1],'w').write(json.dumps([sys.argv[2:], os.environ['HOSTILE']]))"
    python = (await units.ok("sh", "-c", "command -v python3")).strip()
    line = systemd.exec_line((python, "-c", code, f"{units.scratch}/argv", *hostile))
    value = "a b'c\"d$e%f\\g;h"
    variable = "Environment=" + systemd.environment_entry("HOSTILE", value)
    name = await units.put("c-argv.service", f"Type=oneshot\n{variable}\nExecStart={line}")
    await units.ok("systemctl", "start", name)
    assert json.loads(await units.read("argv")) == [list(hostile), value]


async def runs_what_comes_before_and_after(units: Units) -> None:
    mark = f"{units.scratch}/order"
    name = await units.put(
        "c-order.service",
        f"Type=exec\nExecStartPre=/bin/sh -c 'echo pre >>{mark}'\nExecStart=/bin/sh -c 'exec sleep 300'\n"
        f"ExecStartPost=/bin/sh -c 'echo post >>{mark}'\nExecStopPost=/bin/sh -c 'echo stopped >>{mark}'",
    )
    await units.ok("systemctl", "start", name)
    await units.ok("systemctl", "stop", name)
    assert await units.read("order") == "pre\npost\nstopped\n"
    name = await units.put("c-pre.service", "Type=exec\nExecStartPre=/bin/sh -c 'exit 4'\nExecStart=/bin/true")
    assert (await units.run("systemctl", "start", name)).code == 1
    found = await units.show(name)
    assert (found["Result"], found["ExecMainStatus"]) == ("exit-code", "0")
    await units.hears(name, "Control process exited, code=exited, status=4")


async def gives_up_a_start_that_takes_too_long(units: Units) -> None:
    name = await units.put(
        "c-slow.service", "Type=exec\nTimeoutStartSec=1\nExecStartPre=/bin/sleep 300\nExecStart=/bin/true"
    )
    answer = await units.run("systemctl", "start", name)
    assert answer.code == 1
    assert "a timeout was exceeded" in answer.err
    assert (await units.show(name))["Result"] == "timeout"
    await units.hears(name, "start-pre operation timed out. Terminating.")


async def knows_oneshot_and_remain(units: Units) -> None:
    name = await units.put(
        "c-once.service", "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\nExecStart=/bin/true"
    )
    await units.ok("systemctl", "start", name)
    found = await units.show(name)
    assert (found["ActiveState"], found["SubState"]) == ("active", "exited")
    name = await units.put("c-fail.service", "Type=oneshot\nExecStart=/bin/false")
    assert (await units.run("systemctl", "start", name)).code == 1
    assert (await units.show(name))["ActiveState"] == "failed"


async def waits_for_a_notice(units: Units) -> None:
    script = (
        "import os,socket,time; time.sleep(0.3); s=socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM);"
        "a=os.environ['NOTIFY_SOCKET']; s.connect('\\0'+a[1:] if a[0]=='@' else a); s.send(b'READY=1'); time.sleep(300)"
    )
    python = (await units.ok("sh", "-c", "command -v python3")).strip()
    line = systemd.exec_line((python, "-c", script))
    name = await units.put("c-notify.service", f"Type=notify\nExecStart={line}")
    await units.ok("systemctl", "start", name)
    assert (await units.show(name))["SubState"] == "running"
    name = await units.put("c-mute.service", "Type=notify\nExecStart=/bin/true")
    assert (await units.run("systemctl", "start", name)).code == 1
    assert (await units.show(name))["Result"] == "protocol"


# ---------------------------------------------------------------------------------------------------------- stopping


async def kills_what_ignores_sigterm(units: Units) -> None:
    script = "trap '' TERM; while :; do sleep 300; done"
    name = await units.put("c-deaf.service", "Type=exec\nTimeoutStopSec=1\n" + sh(script))
    await units.ok("systemctl", "start", name)
    pid = (await units.show(name))["MainPID"]
    await _eventually(lambda: _ignores(units, pid))
    await units.ok("systemctl", "stop", name)
    found = await units.show(name)
    assert (found["ActiveState"], found["Result"], found["ExecMainStatus"]) == ("failed", "timeout", "9")
    await units.hears(name, "State 'stop-sigterm' timed out. Killing.", f"Killing process {pid} ")
    assert (await units.run("kill", "-0", pid)).code != 0


async def ends_orphans_with_the_unit(units: Units) -> None:
    """A worker in a session of its own, whose parent is gone, still belongs to the unit."""
    script = f"setsid sh -c 'setsid sleep 300 & echo $! >{units.scratch}/orphan' & sleep 301"
    name = await units.put("c-orphan.service", "Type=exec\n" + sh(script))
    await units.ok("systemctl", "start", name)
    await _eventually(lambda: _has_text(units, "orphan"))
    orphan = (await units.read("orphan")).strip()
    assert orphan in await units.members(name)
    await units.ok("systemctl", "stop", name)
    assert (await units.run("kill", "-0", orphan)).code != 0


async def ends_the_rest_when_the_main_process_is_killed(units: Units) -> None:
    name = await units.put("c-main.service", "Type=exec\n" + sh(f"sleep 300 & echo $! >{units.scratch}/rest; wait"))
    await units.ok("systemctl", "start", name)
    await _eventually(lambda: _has_text(units, "rest"))
    await units.ok("systemctl", "kill", "--kill-who=main", "--signal=SIGKILL", name)
    found = await units.until(name, ActiveState="failed")
    assert (found["Result"], found["ExecMainCode"], found["ExecMainStatus"]) == ("signal", "2", "9")
    assert (await units.run("kill", "-0", (await units.read("rest")).strip())).code != 0
    await units.hears(name, "Main process exited, code=killed, status=9/KILL")


async def knows_mixed(units: Units) -> None:
    """SIGTERM for the main process alone, SIGKILL for what is left."""
    deaf = f"sh -c 'trap \"\" TERM; echo up >{units.scratch}/deaf; while :; do sleep 300; done' &"
    script = f"trap 'exit 0' TERM; {deaf} while :; do sleep 0.1; done"
    name = await units.put("c-mixed.service", "Type=exec\nKillMode=mixed\nTimeoutStopSec=20\n" + sh(script))
    await units.ok("systemctl", "start", name)
    await _eventually(lambda: _has_text(units, "deaf"))
    await units.ok("systemctl", "stop", name)
    found = await units.show(name)
    assert (found["ActiveState"], found["Result"]) == ("inactive", "success")


async def counts_some_exits_as_clean(units: Units) -> None:
    for name, extra, script, result in (
        ("c-143.service", "", "trap 'exit 143' TERM; echo up; while :; do sleep 0.1; done", "exit-code"),
        (
            "c-143s.service",
            "SuccessExitStatus=143",
            "trap 'exit 143' TERM; echo up; while :; do sleep 0.1; done",
            "success",
        ),
    ):
        await units.put(name, f"Type=exec\n{extra}\n" + sh(script))
        await units.ok("systemctl", "start", name)
        await _eventually(lambda name=name: _says(units, name, "up"))  # type: ignore[misc]
        await units.ok("systemctl", "stop", name)
        assert (await units.show(name))["Result"] == result


async def stops_what_conflicts(units: Units) -> None:
    old = await units.put("c-old.service", "Type=exec\nExecStart=/bin/sleep 300")
    new = await units.put("c-new.service", "Type=exec\nExecStart=/bin/sleep 300", unit=f"Conflicts={old}")
    await units.ok("systemctl", "start", old)
    await units.ok("systemctl", "start", new)
    await units.until(old, ActiveState="inactive")
    assert (await units.show(new))["ActiveState"] == "active"


# ---------------------------------------------------------------------------------------------------------- restarts


async def restarts_on_failure_until_the_limit(units: Units) -> None:
    name = await units.put(
        "c-again.service",
        "Type=exec\nRestart=on-failure\nRestartSec=50ms\n" + sh("sleep 0.2; exit 3"),
        unit="StartLimitIntervalSec=60\nStartLimitBurst=3",
    )
    await units.ok("systemctl", "start", name)
    first = (await units.show(name))["InvocationID"]
    found = await units.until(name, ActiveState="failed")
    assert (found["NRestarts"], found["Result"], found["ExecMainStatus"]) == ("3", "exit-code", "3")
    assert found["InvocationID"] != first
    said = await units.hears(name, "Start request repeated too quickly.")
    assert said.count("Scheduled restart job, restart counter is at") == 3
    answer = await units.run("systemctl", "start", name)
    assert answer.code == 1
    assert answer.err.startswith(f"Job for {name} failed")
    await units.ok("systemctl", "reset-failed", name)
    await units.ok("systemctl", "start", name)


async def restarts_not_where_it_is_told_not_to(units: Units) -> None:
    name = await units.put(
        "c-never.service", "Type=exec\nRestart=on-failure\nRestartPreventExitStatus=3\n" + sh("sleep 0.2; exit 3")
    )
    await units.ok("systemctl", "start", name)
    assert (await units.until(name, ActiveState="failed"))["NRestarts"] == "0"
    name = await units.put("c-clean.service", "Type=exec\nRestart=on-failure\n" + sh("sleep 0.2; exit 0"))
    await units.ok("systemctl", "start", name)
    assert (await units.until(name, ActiveState="inactive"))["Result"] == "success"


# ------------------------------------------------------------------------------------------------------- unit files


async def reads_files_when_told(units: Units) -> None:
    name = await units.put("c-file.service", "Type=exec\nExecStart=/bin/sleep 300")
    await units.ok("systemctl", "start", name)
    asked = "NeedDaemonReload,FragmentPath,Description"
    before = await units.show(name, asked)
    assert before == {
        "NeedDaemonReload": "no",
        "FragmentPath": f"{units.folder}/{name}",
        "Description": f"Contract {name}",
    }
    text = "[Unit]\nDescription=Changed\n[Service]\nType=exec\nExecStart=/bin/sleep 301\n"
    await units.node.write(f"{units.folder}/{name}", text.encode(), sudo=True)
    after = await units.show(name, asked)
    assert (after["NeedDaemonReload"], after["Description"]) == ("yes", f"Contract {name}")
    await units.ok("systemctl", "daemon-reload")
    assert (await units.show(name, asked))["Description"] == "Changed"
    assert (await units.show(name))["ActiveState"] == "active"
    assert "ExecStart=/bin/sleep 301" in await units.ok("systemctl", "cat", name)


async def obeys_drop_ins(units: Units) -> None:
    name = await units.put(
        "c-drop.service", "Type=oneshot\nEnvironment=A=file\n" + sh(f"echo $A >{units.scratch}/drop")
    )
    await units.run("mkdir", "-p", f"{units.folder}/{name}.d")
    await units.node.write(f"{units.folder}/{name}.d/10-x.conf", b"[Service]\nEnvironment=A=dropin\n", sudo=True)
    await units.ok("systemctl", "daemon-reload")
    await units.ok("systemctl", "start", name)
    assert await units.read("drop") == "dropin\n"


async def enables_and_disables(units: Units) -> None:
    name = await units.put(
        "c-boot.service", "Type=exec\nExecStart=/bin/sleep 300", install="[Install]\nWantedBy=multi-user.target\n"
    )
    assert (await units.run("systemctl", "is-enabled", name)) == Done(1, "disabled\n", "")
    await units.ok("systemctl", "enable", "--now", name)
    assert (await units.run("systemctl", "is-enabled", name)) == Done(0, "enabled\n", "")
    found = await units.show(name, "UnitFileState,ActiveState")
    assert found == {"UnitFileState": "enabled", "ActiveState": "active"}
    await units.ok("systemctl", "disable", name)
    assert (await units.show(name, "UnitFileState"))["UnitFileState"] == "disabled"
    static = await units.put("c-static.service", "Type=exec\nExecStart=/bin/sleep 300")
    assert (await units.run("systemctl", "is-enabled", static)) == Done(0, "static\n", "")


async def finds_what_is_wrong_with_a_file(units: Units) -> None:
    path = f"{units.scratch}/c-verify.service"
    await units.node.write(path, b"[Service]\nExecStart=/bin/true\nBogus=1\n", sudo=True)
    answer = await units.run("systemd-analyze", "verify", path)
    assert answer.code == 0
    assert f"{path}:3: Unknown key " in answer.err
    assert "'Bogus'" in answer.err
    await units.node.write(path, b"[Service]\nExecStart=/no/such/program\n", sudo=True)
    answer = await units.run("systemd-analyze", "verify", path)
    assert answer.code == 1
    assert "Command /no/such/program is not executable: No such file or directory" in answer.err
    await units.node.write(path, b"[Service]\nType=exec\n", sudo=True)
    answer = await units.run("systemd-analyze", "verify", path)
    assert answer.code == 1
    assert "Service has no ExecStart=" in answer.err


async def lists_units(units: Units) -> None:
    name = await units.put("c-list.service", "Type=exec\nExecStart=/bin/sleep 300")
    await units.ok("systemctl", "start", name)
    out = await units.ok("systemctl", "list-units", "--type=service", "--state=active", "--no-legend", "--plain", "c-*")
    assert out.split() == [name, "loaded", "active", "running", "Contract", name]
    rows = json.loads(await units.ok("systemctl", "list-units", "--type=service", "-o", "json", "c-*"))
    assert rows[0]["unit"] == name
    assert rows[0]["sub"] == "running"


# ---------------------------------------------------------------------------------------------------- transient units


async def runs_a_job_that_leaves_nothing(units: Units) -> None:
    path = f"{units.scratch}/job"
    argv = systemd.transient(
        "c-job.service",
        ("sh", "-c", f'echo "$NAME|$1|100%n" >{path}; sleep 0.5; exit 7', "sh", "a $b 'c'"),
        properties={"WorkingDirectory": units.scratch},
        environment={"NAME": "two words"},
    )
    await units.ok(*argv)
    await _eventually(lambda: _has_text(units, "job"))
    assert await units.read("job") == "two words|a $b 'c'|100%n\n"
    await units.until("c-job.service", LoadState="not-found")
    await units.hears("c-job.service", "status=7")


async def refuses_a_second_job_of_a_name(units: Units) -> None:
    argv = systemd.transient("c-twice.service", ("sleep", "300"))
    await units.ok(*argv)
    try:
        again = await units.run(*argv)
        assert again.code == 1
        assert "was already loaded or has a fragment file" in again.err
        found = await units.show("c-twice.service", "UnitFileState,ActiveState")
        assert found == {"UnitFileState": "transient", "ActiveState": "active"}
    finally:
        await units.ok("systemctl", "stop", "c-twice.service")
    await units.until("c-twice.service", LoadState="not-found")


async def refuses_a_job_without_a_program(units: Units) -> None:
    answer = await units.run("systemd-run", "--unit=c-nothing.service", "/no/such/program")
    assert answer.code != 0
    assert "/no/such/program" in answer.err


async def waits_for_a_job_and_passes_its_streams(units: Units) -> None:
    answer = await units.run(
        "systemd-run", "--quiet", "--wait", "--pipe", "sh", "-c", "cat; echo e >&2; exit 4", input=b"in\n"
    )
    assert (answer.code, answer.out) == (4, "in\n")
    assert "e\n" in answer.err


async def runs_something_later(units: Units) -> None:
    path = f"{units.scratch}/later"
    await units.ok(
        "systemd-run", "--unit=c-later", "--on-active=1", "--timer-property=AccuracySec=100ms", "touch", path
    )
    assert (await units.show("c-later.timer", "ActiveState"))["ActiveState"] == "active"
    await _eventually(lambda: _exists(units, path))


async def keeps_a_failed_job_until_it_is_forgotten(units: Units) -> None:
    await units.ok("systemd-run", "--quiet", "--unit=c-kept.service", "sh", "-c", "exit 3")
    units.made.append("c-kept.service")
    found = await units.until("c-kept.service", ActiveState="failed")
    assert (found["LoadState"], found["ExecMainStatus"]) == ("loaded", "3")
    await units.ok("systemctl", "reset-failed", "c-kept.service")
    assert (await units.show("c-kept.service"))["LoadState"] == "not-found"


# ----------------------------------------------------------------------------------------------------------- journal


async def keeps_what_each_process_said(units: Units) -> None:
    script = (
        r"echo out; echo err >&2; printf '10%%\r20%%\rdone\n'; printf '\n'; printf '<3>bad\n'; printf '\033[31mred\n';"
        r" sh -c 'echo child'; printf 'half'; sleep 0.5"
    )
    name = await units.put("c-log.service", "Type=oneshot\n" + sh(script))
    await units.ok("systemctl", "start", name)
    await units.hears(name, f"Finished {name}")
    invocation = (await units.log(name, "SYSLOG_IDENTIFIER=sh"))[0]["_SYSTEMD_INVOCATION_ID"]
    entries = await units.log(name, f"_SYSTEMD_INVOCATION_ID={invocation}")
    said = {_message(entry): entry for entry in entries}
    assert set(said) == {"out", "err", "10%\r20%\rdone", "bad", "\x1b[31mred", "child", "half"}
    assert said["bad"]["PRIORITY"] == "3"
    assert said["out"]["PRIORITY"] == "6"
    assert said["child"]["_PID"] != said["out"]["_PID"]
    assert isinstance(said["\x1b[31mred"]["MESSAGE"], list)
    assert said["out"]["_SYSTEMD_UNIT"] == name
    assert "[" in await units.ok("journalctl", "-q", "-u", name, "-o", "short")
    about = [entry for entry in await units.log(name) if entry["_PID"] == "1"]
    assert about
    assert all(entry["UNIT"] == name and entry["SYSLOG_IDENTIFIER"] == "systemd" for entry in about)
    assert any(entry.get("INVOCATION_ID") == invocation for entry in about)


async def splits_and_hides_long_lines(units: Units) -> None:
    python = (await units.ok("sh", "-c", "command -v python3")).strip()
    line = systemd.exec_line(
        (python, "-c", "import time; print('x' * 100_000); print('y' * 5000, flush=True); time.sleep(0.5)")
    )
    name = await units.put("c-long.service", f"Type=oneshot\nExecStart={line}")
    await units.ok("systemctl", "start", name)
    await units.hears(name, f"Finished {name}")
    lengths = [len(str(entry["MESSAGE"])) for entry in await units.log(name, f"_SYSTEMD_UNIT={name}")]
    assert lengths == [49152, 49152, 1696, 5000]
    out = await units.ok("journalctl", "-q", "-o", "json", "-n", "1", f"_SYSTEMD_UNIT={name}")
    assert json.loads(out)["MESSAGE"] is None


async def goes_on_after_a_cursor(units: Units) -> None:
    name = await units.put("c-cursor.service", "Type=oneshot\n" + sh("for i in 1 2 3 4 5; do echo $i; done; sleep 0.5"))
    await units.ok("systemctl", "start", name)
    await units.hears(name, f"Finished {name}")
    entries = await units.log(name, f"_SYSTEMD_UNIT={name}")
    assert [entry["MESSAGE"] for entry in entries] == ["1", "2", "3", "4", "5"]
    cursor = str(entries[2]["__CURSOR"])
    rest = await units.log(name, f"--after-cursor={cursor}", f"_SYSTEMD_UNIT={name}")
    assert [entry["MESSAGE"] for entry in rest] == ["4", "5"]
    last = await units.ok("journalctl", "-q", "-n", "1", "--show-cursor", "-o", "cat", f"_SYSTEMD_UNIT={name}")
    assert last.splitlines()[0] == "5"
    assert last.splitlines()[1] == f"-- cursor: {entries[4]['__CURSOR']}"
    assert await units.log(name, f"--after-cursor={entries[4]['__CURSOR']}", f"_SYSTEMD_UNIT={name}") == []
    times = [int(str(entry["__REALTIME_TIMESTAMP"])) for entry in entries]
    assert times == sorted(times)


async def follows_as_it_is_said(units: Units) -> None:
    fifo = f"{units.scratch}/fifo"
    await units.ok("mkfifo", fifo)
    name = await units.put("c-follow.service", "Type=exec\n" + sh(f"echo ready; cat {fifo}; exec sleep 300"))
    await units.ok("systemctl", "start", name)
    argv = ("journalctl", "-q", "--no-pager", "-f", "--lines=all", "-o", "cat", f"_SYSTEMD_UNIT={name}")
    async with asyncio.timeout(30), units.node.stream(argv, sudo=True) as lines:
        assert (await anext(lines)).text == "ready"
        await units.ok("sh", "-c", f"printf 'one\\ntwo\\n' >{fifo}")
        assert [(await anext(lines)).text, (await anext(lines)).text] == ["one", "two"]


async def tells_when_there_is_nothing(units: Units) -> None:
    assert await units.ok("journalctl", "--no-pager", "-u", "c-silent.service") == "-- No entries --\n"
    assert await units.ok("journalctl", "-q", "--no-pager", "-u", "c-silent.service") == ""


# ------------------------------------------------------------------------------------------------------------ helpers


def _message(entry: dict[str, object]) -> str:
    message = entry["MESSAGE"]
    return bytes(message).decode() if isinstance(message, list) else str(message)


async def _eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what a process on the node does by itself and tells nobody."""
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110 - it happens on another machine
            await asyncio.sleep(0.05)


async def _count(units: Units, name: str, wanted: int) -> bool:
    return len(await units.members(name)) == wanted


async def _ignores(units: Units, pid: str) -> bool:
    """Whether the process ignores SIGTERM by now."""
    status = (await units.node.read(f"/proc/{pid}/status", sudo=True)).decode()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(mask, 16) & 1 << 14)


async def _has_text(units: Units, name: str) -> bool:
    return (await units.run("test", "-s", f"{units.scratch}/{name}")).code == 0


async def _exists(units: Units, path: str) -> bool:
    return (await units.run("test", "-e", path)).code == 0


async def _says(units: Units, name: str, text: str) -> bool:
    return text in (await units.said(name)).splitlines()


Check = Callable[[Units], Awaitable[None]]
CHECKS: tuple[Check, ...] = (
    starts_and_shows_what_it_started,
    refuses_what_it_does_not_know,
    refuses_a_bad_unit_file,
    tells_that_a_program_cannot_be_executed,
    calls_a_simple_service_started_before_it_is_executed,
    tells_a_missing_folder_and_a_missing_user,
    needs_an_environment_file,
    passes_every_argument_and_variable_through,
    runs_what_comes_before_and_after,
    gives_up_a_start_that_takes_too_long,
    knows_oneshot_and_remain,
    waits_for_a_notice,
    kills_what_ignores_sigterm,
    ends_orphans_with_the_unit,
    ends_the_rest_when_the_main_process_is_killed,
    knows_mixed,
    counts_some_exits_as_clean,
    stops_what_conflicts,
    restarts_on_failure_until_the_limit,
    restarts_not_where_it_is_told_not_to,
    reads_files_when_told,
    obeys_drop_ins,
    enables_and_disables,
    finds_what_is_wrong_with_a_file,
    lists_units,
    runs_a_job_that_leaves_nothing,
    refuses_a_second_job_of_a_name,
    refuses_a_job_without_a_program,
    waits_for_a_job_and_passes_its_streams,
    runs_something_later,
    keeps_a_failed_job_until_it_is_forgotten,
    keeps_what_each_process_said,
    splits_and_hides_long_lines,
    goes_on_after_a_cursor,
    follows_as_it_is_said,
    tells_when_there_is_nothing,
)
