from __future__ import annotations

from pathlib import Path

import pytest

from console.deploy.script import Do, Expect, ExpectationFailed, load_script, parse_script, shipped
from console.deploy.steps import ORDER
from console.errors import InvalidFile, UsageError
from console.state import Snapshot, StepView


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_script_loads(name: str) -> None:
    assert load_script(name).items


def test_redeploy_is_the_fourteen_steps_in_their_order() -> None:
    assert load_script("redeploy").names() == ORDER


def test_names_options_expectations_and_scripts_within_scripts() -> None:
    text = """
- preflight
- throughput: {again: true, note: 0123}
- expect: {step: throughput, state: [done], evidence: tok/s}
- bench
"""
    script = parse_script(text, "mine.yaml")
    assert script.items[0] == Do("preflight")  # inside a file a name means the step before the script of that name
    assert Do("throughput", {"again": True, "note": "0123"}) in script.items
    assert Expect("throughput", ("done",), "tok/s", "mine.yaml:4") in script.items
    assert script.items[-1] == Do("throughput", {"again": True})


def test_all_problems_are_told_at_once_with_their_places() -> None:
    text = "- dwonload\n- expect: {stepp: x}\n- download: {a: [1], a: 2}\n- {patch: {}, unit: {}}\n"
    with pytest.raises(InvalidFile) as caught:
        parse_script(text, "s.yaml")
    lines = [str(problem) for problem in caught.value.problems]
    assert any(line.startswith("s.yaml:1:3: dwonload") and "did you mean download?" in line for line in lines)
    assert any(line.startswith("s.yaml:2:") and "stepp" in line for line in lines)
    assert any(line.startswith("s.yaml:3:") and "stands twice" in line for line in lines)
    assert any(line.startswith("s.yaml:4:") and "one name per line" in line for line in lines)


@pytest.mark.parametrize("text", ["", "redeploy", "a: b", "[]", "- [", "\t- x", "- !!python/object:os.system x"])
def test_what_is_no_script_is_said(text: str) -> None:
    with pytest.raises(InvalidFile):
        parse_script(text, "s.yaml")


def test_a_script_comes_from_a_name_a_step_a_file_or_stdin(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("- download\n")
    assert load_script(str(path)).items == (Do("download"),)
    assert load_script("-", "- shards\n").items == (Do("shards"),)
    assert load_script("patch").items == (Do("patch"),)
    with pytest.raises(UsageError, match="no script or file") as caught:
        load_script("redploy")
    assert "redeploy" in caught.value.remedy
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="no text file"):
        load_script(str(tmp_path / "binary"))


def test_an_expectation_fails_with_what_was_found() -> None:
    snapshot = Snapshot(steps=(StepView("shards", "done", "119/119 shards"),))
    assert Expect("shards", ("done",), "119/119", "f:1").check(snapshot) == "shards is done"
    for expect in (
        Expect("shards", ("satisfied",), "", "f:1"),
        Expect("shards", ("done",), "120", "f:1"),
        Expect("patch", ("done",), "", "f:1"),
    ):
        with pytest.raises(ExpectationFailed, match="f:1: expected"):
            expect.check(snapshot)


async def test_options_of_a_script_are_seen_by_their_step_alone() -> None:
    from typing import Any, cast

    from console.deploy.scripted import scripted_steps
    from console.deploy.step import Context

    seen: list[tuple[str, dict[str, Any]]] = []

    async def listen(self: Any, ctx: Context) -> Any:
        seen.append((self.name, dict(ctx.options)))

    script = parse_script("- shards: {deep: true}\n- patch\n", "s.yaml")
    with_options, plain = scripted_steps(script, Snapshot)
    kind = type(with_options._step)  # type: ignore[attr-defined]
    original, kind.check = kind.check, listen
    try:
        ctx = cast(Context, type("Ctx", (), {"options": {"evidence_dir": "x"}})())
        await with_options.check(ctx)
    finally:
        kind.check = original
    assert seen == [("shards", {"evidence_dir": "x", "deep": True})]
    assert ctx.options == {"evidence_dir": "x"}
    assert plain.name == "patch"
