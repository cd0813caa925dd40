"""What systemd does with transient units and what journald keeps, asserted like `systemd_contract`."""

from __future__ import annotations

import asyncio
import json

from console.node import systemd
from tests.contract.units import Check, Units, eventually, exists, has_text, message_of, sh

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
    await eventually(lambda: has_text(units, "job"))
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
    await eventually(lambda: exists(units, path))


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
    said = {message_of(entry): entry for entry in entries}
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


CHECKS: tuple[Check, ...] = (
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
