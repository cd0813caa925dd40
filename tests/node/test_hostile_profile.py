"""A hostile profile on a real systemd: refused by validation, or argv and environment arrive byte for byte, and no shell
ever sees them. The unit's program is a few lines of Python that write down what they were given."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from console.checkpoint.patch import PatchOutcome
from console.deploy.flags import ask_table, cached_table, check_flags
from console.deploy.step import Context, Needed, Satisfied
from console.deploy.steps import unit as unit_step
from console.deploy.unit import serve_argv, service_environment
from console.errors import UnitFailed
from console.node import systemd
from console.node.base import Node, succeeded
from console.node.facts import Facts, Question, read_facts
from console.profile.load import parse_profile
from console.profile.model import Profile
from tests.node.conftest import Machine
from tests.unit.profile_samples import profile_data

VENV = "/opt/hostile-0.16.0"
UNIT = "hostile-profile.service"
DUMP = "/run/hostile-profile.json"
CANARY = "/run/hostile-canary"
PROGRAM = f"""\
#!/usr/bin/python3 -I
import json, os, sys
text = json.dumps({{"argv": sys.argv, "env": dict(os.environ)}}, ensure_ascii=True)
with open("{DUMP}.new", "w") as stream:
    stream.write(text)
os.replace("{DUMP}.new", "{DUMP}")
import signal
signal.pause()
"""

TEXTS = [
    "plain", "a b", "  two  blanks ", "a'b", 'a"b', "''", '""', f"$(touch {CANARY})", f"`touch {CANARY}`", f"; touch {CANARY} #",
    f"| touch {CANARY}", f"&& touch {CANARY}", f"> {CANARY}", "${HOME}", "$HOME", "$$", "$", "%h", "%n %i %% %", "100%", "a\\b", "\\n",
    "\\x41", "\\", "é日本語🙂", "#c", ";c", "*", "?", "~", "~root", "{a,b}", "!!", "@x", "-x", "--help", "=", "a=b", "", "\u00a0",
    "../../etc/passwd", "{}", "[Service]", "ExecStartPre=/bin/false", "e\u0301",
]  # fmt: skip


def hostile(*texts: str) -> Profile | None:
    """The profile with all `texts` in every place that may take several, the first in every place that takes one; None
    when validation refuses it."""
    text = texts[0]
    data = profile_data(
        model__folder="/srv/models/Model",
        model__served_name=f"name {text} end",
        vllm__venv=VENV,
        service__unit=UNIT,
        service__limits={},
        serve__flags={
            "chat-template": text,
            "middleware": [f"m{text}" if text.startswith("-") else text for text in texts],
            "hf-overrides": {
                "keys": {f"k{text}": number for number, text in enumerate(texts)},
                "texts": [*texts, 1, None],
            },
            "enable-prefix-caching": False,
            "max-model-len": -1,
        },
        environment={f"TRICKY_{number}": {"value": text} for number, text in enumerate(texts)},
    )
    return parse_profile(json.dumps(data, ensure_ascii=False), file="hostile.yaml")[0]


async def facts_of(node: Node) -> Facts:
    return await read_facts(node, Question(units=(UNIT,), venvs=(VENV,), read=("state:/cache/*.json",)))


def context(node: Node, profile: Profile, facts: Facts, outcome: PatchOutcome) -> Context:
    async def confirm(question: str, word: str) -> bool:
        return False

    async def refresh() -> Facts:
        ctx.facts = await facts_of(node)
        return ctx.facts

    ctx = Context(node, profile, facts, lambda event: None, confirm, refresh)
    ctx.found["patch"] = outcome
    return ctx


async def dumped(machine: Machine) -> dict[str, Any]:
    """What the program wrote; it writes right after its start, so a short bounded look is enough."""
    for _ in range(100):
        text = await asyncio.to_thread(machine.ssh, f"cat {DUMP} 2>/dev/null", check=False)
        if text:
            return dict(json.loads(text))
        await asyncio.sleep(0.1)  # nothing tells when a file appears; 10 s are generous
    raise AssertionError("the program was never started")


async def mutate(node: Node, argv: tuple[str, ...]) -> None:
    succeeded(await node.run(argv, timeout=60, sudo=True), argv)


@pytest.fixture
def program(machine: Machine) -> Machine:
    machine.put(f"{VENV}/bin/vllm", PROGRAM.encode())
    machine.ssh(f"rm -f {DUMP} {CANARY}")
    return machine


async def test_every_text_arrives_intact_and_no_shell_sees_it(program: Machine, real_node: Any) -> None:
    facts = await facts_of(real_node)
    # all of them together, then the nastiest alone in the places that take one text
    for texts in (
        TEXTS,
        *([text] for text in (f"$(touch {CANARY})", "%h %n $$ ${HOME}", "a\\ \"b' c", "-x", "é日本語🙂")),
    ):
        profile = hostile(*texts)
        assert profile is not None
        ctx = context(real_node, profile, facts, PatchOutcome(f"/srv/overlay {texts[0]}", {"root-path": texts[0]}))
        await unit_step.STEP.apply(ctx)
        await unit_step.STEP.verify(ctx)
        await mutate(real_node, systemd.start(UNIT))
        try:
            seen = await dumped(program)
        finally:
            await mutate(real_node, systemd.stop(UNIT))
        assert seen["argv"] == list(serve_argv(profile, facts, ctx.found["patch"]))
        assert set(texts) <= {seen["env"][f"TRICKY_{number}"] for number in range(len(texts))}
        for name, value in service_environment(profile, facts).items():
            assert seen["env"][name] == value, name
        program.ssh(f"rm -f {DUMP}")
    assert program.ssh(f"test -e {CANARY} && echo there || echo none").strip() == "none"
    await unit_step.STEP.undo(ctx)
    await mutate(real_node, ("rm", "-f", f"/etc/systemd/system/{UNIT}"))
    await mutate(real_node, systemd.daemon_reload())


@pytest.mark.parametrize("text", ["a\nExecStartPre=/bin/false", "a\x00b", "a\x1b[31m", "a\rb", "a\u202eb"])
def test_what_cannot_arrive_is_refused_before_any_node(text: str) -> None:
    assert hostile(text) is None


async def test_the_step_writes_verifies_and_goes_back(program: Machine, real_node: Any) -> None:
    """As in a redeploy: needed with a diff, written, satisfied; and undo brings back the bytes that stood before."""
    profile = hostile("one")
    assert profile is not None
    outcome = PatchOutcome("/srv/overlay")
    ctx = context(real_node, profile, await facts_of(real_node), outcome)
    first = await unit_step.STEP.check(ctx)
    assert isinstance(first, Needed)
    assert first.changes[0].text == f"write /etc/systemd/system/{UNIT}"
    await unit_step.STEP.apply(ctx)
    assert "is loaded" in await unit_step.STEP.verify(ctx)
    former = program.ssh(f"cat /etc/systemd/system/{UNIT}")
    await ctx.refresh()
    assert isinstance(await unit_step.STEP.check(ctx), Satisfied)

    other = context(real_node, hostile("two") or profile, ctx.facts, outcome)
    changed = await unit_step.STEP.check(other)
    assert isinstance(changed, Needed)
    assert "-Environment=TRICKY_0=one" in changed.changes[0].diff.splitlines()
    assert "+Environment=TRICKY_0=two" in changed.changes[0].diff.splitlines()
    assert "~ TRICKY_0: one -> two" in [change.text for change in changed.changes]
    await unit_step.STEP.apply(other)
    await unit_step.STEP.verify(other)
    await unit_step.STEP.undo(other)
    assert program.ssh(f"cat /etc/systemd/system/{UNIT}") == former
    assert not (await facts_of(real_node)).units[UNIT].need_reload
    await unit_step.STEP.undo(ctx)
    assert program.ssh(f"test -e /etc/systemd/system/{UNIT} && echo there || echo none").strip() == "none"


async def test_a_text_that_systemd_dislikes_is_taken_back(program: Machine, real_node: Any) -> None:
    profile = hostile("one")
    assert profile is not None
    good = context(real_node, profile, await facts_of(real_node), PatchOutcome("/srv/overlay"))
    await unit_step.STEP.apply(good)
    await unit_step.STEP.verify(good)
    former = program.ssh(f"cat /etc/systemd/system/{UNIT}")
    service = profile.service.model_copy(update={"limits": {"LimitNOFILE": "banana"}})
    bad = context(
        real_node, profile.model_copy(update={"service": service}), await good.refresh(), PatchOutcome("/srv/overlay")
    )
    await unit_step.STEP.apply(bad)
    with pytest.raises(UnitFailed, match="systemd-analyze verify complains"):
        await unit_step.STEP.verify(bad)
    assert program.ssh(f"cat /etc/systemd/system/{UNIT}") == former
    gone = profile.model_copy(update={"vllm": profile.vllm.model_copy(update={"venv": "/opt/not-there"})})
    missing = context(real_node, gone, await good.refresh(), PatchOutcome("/srv/overlay"))
    await unit_step.STEP.apply(missing)
    with pytest.raises(UnitFailed, match="not executable"):
        await unit_step.STEP.verify(missing)
    await unit_step.STEP.undo(good)


@pytest.mark.parametrize("user", ["root", "ops"])
async def test_the_flags_are_asked_and_remembered(user: str, machine: Machine, connect_to: Any) -> None:
    """As root, and as a user whose state folder is root's."""
    folder = f"/opt/asked-{user}"
    help_text = "  --tensor-parallel-size N\n  --chat-template TEXT\n  --enable-x, --no-enable-x\n"
    machine.put(f"{folder}/bin/vllm", f"#!/usr/bin/python3\nprint({help_text!r})\n".encode())
    async with connect_to(machine, user=user) as node:
        facts = await facts_of(node)
        assert cached_table(facts, folder, "0.16.0") is None
        table = await ask_table(node, facts, folder, "0.16.0")
        assert cached_table(await facts_of(node), folder, "0.16.0") == table
    data = profile_data(serve__flags={"chat-templat": "x"})
    findings = check_flags(Profile.model_validate(data), table)
    assert [(f.level, f.remedy) for f in findings] == [("refuse", "did you mean --chat-template?")]
