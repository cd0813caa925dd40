"""Where the way back leads: decided from the facts alone."""

from __future__ import annotations

from typing import Any

import pytest

from console.deploy import rollback
from console.errors import Refused
from console.node.local import LocalNode
from tests.unit import test_release as cases

OLD_TEXT = """[Service]
ExecStart=/opt/vllm/bin/vllm serve /m --served-model-name glm-5 glm --port 8123 \\
  --kv-cache-dtype=fp8 --enforce-eager
"""


def old(**changes: Any) -> Any:
    return cases.unit(name="old.service", text=OLD_TEXT, **changes)


def where(known: Any, monkeypatch: pytest.MonkeyPatch, **found: Any) -> list[Any]:
    ctx = cases.context(known, monkeypatch)
    ctx.found.update(found)
    return list(rollback.served_before(ctx))


def facts(*kept: Any, **units: Any) -> Any:
    named = {"old.service": old(), "k.service": cases.unit(active="inactive"), **units}
    return cases.replace(cases.facts(*kept, units=named), listeners=())


def test_what_this_run_stopped_comes_back_as_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    (target,) = where(facts(), monkeypatch, stopped=("old.service",))
    assert (target.unit, target.text, target.port, target.served) == ("old.service", None, 8123, "glm-5")


def test_after_a_lost_console_the_candidate_says_what_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    known = facts(cases.release(1, state="candidate", stopped=("old.service",)))
    assert [target.unit for target in where(known, monkeypatch)] == ["old.service"]


def test_a_unit_that_is_a_release_comes_back_with_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cases.facts(cases.release(1), good="1", units={"k.service": cases.unit(active="inactive", text="new")})
    (target,) = where(cases.replace(known, listeners=()), monkeypatch, stopped=("k.service",))
    assert target.text == cases.TEXT
    assert target.release == cases.release(1)


def test_nothing_served_and_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cases.replace(cases.facts(units={}), listeners=())
    assert where(known, monkeypatch) == []


def earlier(known: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    ctx = cases.context(known, monkeypatch)
    ctx.options, ctx.node = options, LocalNode()
    return rollback._earlier(ctx, cases.last_good(known))


def serving(*kept: Any) -> Any:
    named = {"old.service": old(active="inactive"), "k.service": cases.unit()}
    return cases.replace(cases.facts(*kept, good="2", units=named), listeners=())


def test_from_the_release_that_serves_to_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    known = serving(cases.release(1, unit_text="one"), cases.release(2, former=1))
    (target,), number = earlier(known, monkeypatch)
    assert (target.text, number) == ("one", 1)


def test_from_the_first_release_to_what_it_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    (target,), number = earlier(serving(cases.release(2, stopped=("old.service",))), monkeypatch)
    assert (target.unit, number) == ("old.service", None)


def test_to_the_last_good_one_when_it_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cases.replace(
        cases.facts(cases.release(2), good="2", units={"k.service": cases.unit(active="failed")}), listeners=()
    )
    (target,), number = earlier(known, monkeypatch)
    assert (target.unit, number) == ("k.service", 2)


def test_to_a_release_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    known = serving(cases.release(1, unit_text="one"), cases.release(2))
    assert earlier(known, monkeypatch, release="1")[1] == 1
    for wrong in ("7", "x", "-1"):
        with pytest.raises(Refused, match="there is no release") as caught:
            earlier(known, monkeypatch, release=wrong)
        assert "1, 2" in caught.value.remedy


def test_nowhere_to_go_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="replaced nothing"):
        earlier(serving(cases.release(2)), monkeypatch)
    with pytest.raises(Refused, match="no last good"):
        earlier(cases.facts(), monkeypatch)


def test_what_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    both = facts(**{"k.service": cases.unit()})
    ctx = cases.context(both, monkeypatch)
    back = rollback.Target("old.service", None, 8000, None)
    assert rollback._in_the_way(ctx, both, [back]) == ["k.service"]
    ours = rollback.Target("k.service", cases.TEXT, 8000, "kimi", cases.release(1))
    assert rollback._in_the_way(ctx, both, [ours]) == ["old.service"]
    other = rollback.Target("k.service", cases.TEXT, 8000, "kimi", cases.release(1, invocation="f" * 32))
    assert rollback._in_the_way(ctx, both, [other]) == ["k.service", "old.service"]
