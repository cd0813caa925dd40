"""Keys: every verb's key does something, no two bindings of a screen share one, and a bad keymap is told line by line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from console.errors import InvalidFile
from screens.app import VERB_SCREENS, ConsoleApp
from screens.keys import Scope, bindings_of, keyed_verbs, load_keymap, parse_keymap, problem_of
from screens.main import MainScreen
from screens.session import scopes
from screens.widgets.checklist import Checklist
from tests.screens import glances
from tests.screens.conftest import MakeApp

MAIN = Scope("main", bindings_of(Checklist, MainScreen, ConsoleApp))


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidFile) as caught:
        parse_keymap(text, "keys.yaml", (MAIN,))
    return [str(problem) for problem in caught.value.problems]


def test_every_verb_with_a_key_is_bound_on_the_main_screen() -> None:
    bound = {binding.id: binding.key for binding in MAIN.bindings}
    from console.verbs import verb

    assert {name: bound.get(name) for name in keyed_verbs()} == {name: verb(name).key for name in keyed_verbs()}


def test_every_verb_with_a_key_is_a_screen_or_a_script() -> None:
    from console.verbs import verb

    assert [name for name in keyed_verbs() if name not in VERB_SCREENS and not verb(name).script] == []


def test_no_two_bindings_of_the_main_screen_and_the_app_share_a_key() -> None:
    own = bindings_of(MainScreen, ConsoleApp)
    keys = Counter(key.strip() for binding in own for key in binding.key.split(",") if binding.id != "back")
    assert [key for key, count in keys.items() if count > 1] == []


def test_every_scope_has_ids_for_its_keys() -> None:
    assert {scope.name for scope in scopes()} >= {"main", "help", "step", "status", "first-use"}


def test_a_keymap_is_taken() -> None:
    assert parse_keymap("plan: P\nchecklist.next: j,down,ctrl+n\n", "keys.yaml", (MAIN,)) == {
        "plan": "P",
        "checklist.next": "j,down,ctrl+n",
    }


def test_an_empty_or_absent_file_changes_nothing(tmp_path: Path) -> None:
    assert parse_keymap("", "keys.yaml", (MAIN,)) == {}
    assert load_keymap(tmp_path / "keys.yaml", (MAIN,)) == {}


def test_an_unknown_id_names_the_nearest() -> None:
    assert problems("plam: P\n") == ["keys.yaml:1:1: plam: no such binding, did you mean plan?"]


def test_a_key_that_another_binding_has_is_refused() -> None:
    assert problems("plan: D\n") == ["keys.yaml:1:7: plan: D is the key of redeploy in the main screen"]


def test_two_ids_may_swap_their_keys() -> None:
    assert parse_keymap("plan: l\nlogs: p\n", "keys.yaml", (MAIN,)) == {"plan": "l", "logs": "p"}


def test_prefixes_of_multiplexers_are_refused() -> None:
    (told,) = problems("plan: ctrl+b\n")
    assert "tmux" in told
    assert problem_of("ctrl+a")
    assert problem_of("ctrl+q")


def test_every_problem_is_told_at_once_with_its_place() -> None:
    told = problems("plan: ctrl+shift+banana\nnosuch: x\nlogs: ''\nplan: P\n")
    assert [text.split(" ")[0] for text in told] == [
        "keys.yaml:1:7:",
        "keys.yaml:2:1:",
        "keys.yaml:3:7:",
    ] or len(told) == 4


def test_what_is_no_yaml_is_told_with_its_line() -> None:
    (told,) = problems("plan: [\n")
    assert told.startswith("keys.yaml:2:1:")


async def test_a_chosen_key_works_and_is_named(make_app: MakeApp) -> None:
    app = make_app(glances.idle(), keymap={"help": "f1"})
    async with app.run_test(size=(140, 200)) as pilot:
        await pilot.press("f1")
        await pilot.pause()
        assert type(app.screen).__name__ == "HelpScreen"
        assert "f1" in app.screen.query_one("#help").text()  # type: ignore[attr-defined]


async def test_help_names_every_live_binding_with_an_id(make_app: MakeApp) -> None:
    app = make_app(glances.idle())
    async with app.run_test(size=(140, 200)) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        text = app.screen.query_one("#help").text()  # type: ignore[attr-defined]
        assert all(
            name in text for name in ("redeploy", "rollback", "checklist.open", "gpus.next", "command", ":save"[1:])
        )
