"""Why a start failed, in words: what triage found in the log, and what systemd's own result says when there is no log.

Pure. Exit codes 200 to 245 are systemd's: the program never ran (systemd.exec(5), "Process Exit Codes").
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from console.events import CauseFound
from console.node.facts import UnitState
from console.text import duration

if TYPE_CHECKING:
    from console.triage import Diagnosis

SENTENCE = 160
"""Characters of a cause within another sentence."""
_CHECK_UNIT = "look at the unit file and run: systemd-analyze verify"
SYSTEMD_EXITS: dict[int, tuple[str, str]] = {
    200: ("CHDIR: the working folder cannot be entered", "make the folder, or correct WorkingDirectory="),
    202: ("FDS: file descriptors could not be set up", _CHECK_UNIT),
    203: (
        "EXEC: the program could not be executed: it is not there, is not executable, or its interpreter is missing",
        "look whether the virtual environment of the profile holds bin/vllm, and whether its python still exists",
    ),
    205: ("LIMITS: a resource limit was refused", "lower the limit in the profile's service.limits"),
    206: ("OOM_ADJUST: the OOM score was refused", _CHECK_UNIT),
    208: ("STDIN: standard input could not be set up", _CHECK_UNIT),
    209: ("STDOUT: standard output could not be set up", "look at StandardOutput= and at the disk"),
    214: ("SETSCHEDULER: the scheduling policy was refused", _CHECK_UNIT),
    216: ("GROUP: there is no such group", "create the account, or correct service.user"),
    217: ("USER: there is no such account", "create the account, or correct service.user"),
    218: ("CAPABILITIES: capabilities could not be set", _CHECK_UNIT),
    219: ("CGROUP: the control group could not be set up", "look at the kernel log and at TasksMax="),
    224: ("PAM: the PAM session could not be opened", "look at the authentication log"),
    226: ("NAMESPACE: the mount namespace could not be set up", "look whether every path in the unit exists"),
    227: ("NO_NEW_PRIVILEGES: could not be set", _CHECK_UNIT),
    233: ("RUNTIME_DIRECTORY: could not be made", "look at /run"),
    238: ("STATE_DIRECTORY: could not be made", "look at /var/lib"),
    239: ("CACHE_DIRECTORY: could not be made", "look at /var/cache"),
    240: ("LOGS_DIRECTORY: could not be made", "look at /var/log"),
    243: ("CREDENTIALS: credentials could not be set up", "look whether every credential file exists"),
}
_RESULTS: dict[str, tuple[str, str]] = {
    "start-limit-hit": (
        "it was started too often in too short a time",
        "correct what made it fail before; the counter was reset and ran over again",
    ),
    "timeout": ("it did not start, or did not stop, in the time that the unit allows", "look at TimeoutStartSec="),
    "oom-kill": ("the kernel's OOM killer ended it", "look at the kernel log; the node's RAM ran out"),
    "exec-condition": ("its ExecCondition= said no", "look at the unit file"),
    "resources": ("systemd could not get what the unit needs", "look at the unit file and at systemd's own log"),
    "protocol": ("it broke the unit's start protocol", "the unit must be Type=exec; vLLM has no sd_notify"),
}
_NO_LOG = (
    "look whether the unit sends its output elsewhere (StandardOutput=), whether PYTHONUNBUFFERED=1 is set, and whether "
    "the disk that holds the virtual environment answers"
)


@dataclass(frozen=True, slots=True)
class Story:
    """A failure as one sentence, with what to do. `started`: a process of the unit ran at all."""

    text: str
    remedy: str
    started: bool
    category: str = ""


def cause_event(diagnosis: Diagnosis, step: str) -> CauseFound:
    """What triage found, as event. Without a cause in the log the text says what is known."""
    cause = diagnosis.cause
    text = cause.text if cause else (diagnosis.meaning or f"ended in stage {diagnosis.stage or 'unknown'}")
    return CauseFound(
        time=time.time(),
        step=step,
        text=text,
        category=diagnosis.category or "",
        meaning=diagnosis.meaning,
        remedy=diagnosis.remedy,
        fix=diagnosis.fix or "",
        process=(cause.process or "") if cause else "",
        ranks=cause.ranks if cause else None,
        line=cause.line if cause else None,
    )


def ran(state: UnitState | None, wrote: bool) -> bool:
    """A process of the unit ran: it wrote something, or it ended by itself and not by an exit code of systemd's own."""
    if wrote:
        return True
    if state is None or state.result in ("start-limit-hit", "resources", "exec-condition"):
        return False
    return bool(state.exit_kind) and not (state.exit_kind == "exited" and state.exit_status in SYSTEMD_EXITS)


def end_in_words(state: UnitState | None) -> str:
    """`exited with code 1`, `was killed by signal 9 (oom-kill)`: how the main process ended."""
    if state is None or not state.exit_kind:
        return "ended" if state is None or state.result == "success" else f"ended with result {state.result}"
    if state.exit_kind == "exited":
        return f"exited with code {state.exit_status}"
    result = f" ({state.result})" if state.result not in ("signal", "core-dump", "success") else ""
    return f"was killed by signal {state.exit_status}{result}"


def story(
    kind: str,
    unit: str,
    state: UnitState | None,
    *,
    wrote: bool,
    said: tuple[str, ...] = (),
    seconds: float | None = None,
    stage: str | None = None,
    diagnosis: Diagnosis | None = None,
) -> Story:
    """The failure `kind` of `console.deploy.starting.Ended` in words; triage's cause comes first where there is one."""
    if kind in ("crashed", "restarted") and not ran(state, wrote):
        kind = "never-started"
    if kind == "never-started":
        return _never_started(unit, state, said, diagnosis)
    if kind == "no-log":
        text = f"{unit} runs and wrote nothing for {duration(seconds or 0)}"
        return Story(text, _NO_LOG, started=True, category="no_log")
    found = "" if diagnosis is None or diagnosis.cause is None else f": {_short(diagnosis.cause.text)}"
    remedy = "" if diagnosis is None else diagnosis.remedy
    where = f"in stage {stage}" if stage else "before its first stage"
    if kind == "hung":
        text = f"{unit} is hung {where}: nothing moved for {duration(seconds or 0)}{found}"
        return Story(text, remedy, started=True)
    if kind == "failed":
        return Story(f"{unit} failed {where} and its process lives on{found}", remedy, started=True)
    again = " and systemd started it again" if kind == "restarted" else ""
    text = f"{unit} {end_in_words(state)} {where}{again}{found}"
    return Story(text, remedy or _result(state)[1], started=True)


def _short(text: str) -> str:
    """The cause as it fits into a sentence; the event holds all of it."""
    line = " ".join(text.split())
    return line if len(line) <= SENTENCE else f"{line[: SENTENCE - 1]}…"


def _never_started(unit: str, state: UnitState | None, said: tuple[str, ...], diagnosis: Diagnosis | None) -> Story:
    status = state.exit_status if state is not None and state.exit_kind == "exited" else None
    if status in SYSTEMD_EXITS:
        reason, remedy = SYSTEMD_EXITS[status]
        text = f"{unit} never started: systemd gave {status}/{reason}"
    elif state is not None and state.load not in ("loaded", ""):
        text = f"{unit} never started: systemd has it as {state.load}"
        remedy = "unmask it with systemctl unmask" if state.load == "masked" else _CHECK_UNIT
    else:
        reason, remedy = _result(state)
        text = f"{unit} never started: {reason or 'systemd did not run it; a condition or a dependency is not met'}"
    last = next((line for line in said if "ailed" in line), "")
    category = (diagnosis.category if diagnosis else None) or "never_started"
    return Story(f"{text} ({last})" if last else text, remedy or _CHECK_UNIT, started=False, category=category)


def _result(state: UnitState | None) -> tuple[str, str]:
    if state is None:
        return "", ""
    return _RESULTS.get(state.result, ("", ""))
