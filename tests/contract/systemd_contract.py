"""What systemd does with services, as plain functions over a node: the same assertions for a real systemd and for the practice init.

@pytest.mark.parametrize("check", systemd_contract.CHECKS, ids=node_contract.name)
async def test_contract(check, units): await check(units)
"""

from __future__ import annotations

import json
import re

from console.node import systemd
from console.node.base import Done
from tests.contract.units import Check, Units, counts, eventually, has_text, ignores_sigterm, says, sh


async def starts_and_shows_what_it_started(units: Units) -> None:
    name = await units.put("c-plain.service", "Type=exec\n" + sh("sleep 300 & exec sleep 301"))
    await units.ok("systemctl", "start", name)
    found = await units.show(name)
    assert (found["LoadState"], found["ActiveState"], found["SubState"]) == ("loaded", "active", "running")
    assert re.fullmatch(r"[0-9a-f]{32}", found["InvocationID"])
    assert found["ControlGroup"] == f"/system.slice/{name}"
    await eventually(lambda: counts(units, name, 2))
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
    await eventually(lambda: ignores_sigterm(units, pid))
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
    await eventually(lambda: has_text(units, "orphan"))
    orphan = (await units.read("orphan")).strip()
    assert orphan in await units.members(name)
    await units.ok("systemctl", "stop", name)
    assert (await units.run("kill", "-0", orphan)).code != 0


async def ends_the_rest_when_the_main_process_is_killed(units: Units) -> None:
    name = await units.put("c-main.service", "Type=exec\n" + sh(f"sleep 300 & echo $! >{units.scratch}/rest; wait"))
    await units.ok("systemctl", "start", name)
    await eventually(lambda: has_text(units, "rest"))
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
    await eventually(lambda: has_text(units, "deaf"))
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
        await eventually(lambda name=name: says(units, name, "up"))  # type: ignore[misc]
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
)
