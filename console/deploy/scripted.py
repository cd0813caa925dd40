"""What stands in a script beside plain steps, walked like steps: expectations, a rollback, a step with options."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from console.deploy import ending, steps
from console.deploy.release import restore_release
from console.deploy.script import Do, Expect, Script
from console.deploy.step import Change, Check, Context, Needed, Satisfied, Step
from console.state import Snapshot


def scripted_steps(script: Script, snapshot: Callable[[], Snapshot]) -> list[Step]:
    """The steps of `script`, in order; `snapshot` is what its expectations look at."""
    walk: list[Step] = []
    for item in script.items:
        match item:
            case Expect():
                walk.append(_Expectation(item, snapshot))
            case Do(name="rollback", options=options):
                walk.append(_WithOptions(_Rollback(), options))
            case Do(name="stop" | "drain" as name, options={ending.OPTION: True}):
                walk.append(ending.Ending(steps.step(name)))
            case Do(name=name, options=options) if options:
                walk.append(_WithOptions(steps.step(name), options))
            case Do(name=name):
                walk.append(steps.step(name))
    return walk


class _Expectation:
    name = "expect"
    downtime = False

    def __init__(self, expect: Expect, snapshot: Callable[[], Snapshot]) -> None:
        self._expect = expect
        self._snapshot = snapshot

    async def check(self, ctx: Context) -> Check:
        return Satisfied(self._expect.check(self._snapshot()))

    async def apply(self, ctx: Context) -> None:
        raise AssertionError("an expectation is never applied")

    async def verify(self, ctx: Context) -> str:
        raise AssertionError("an expectation is never applied")

    async def undo(self, ctx: Context) -> None:
        return None


class _Rollback:
    name = "rollback"
    downtime = False

    async def check(self, ctx: Context) -> Check:
        return Needed((Change("go back to the last good release"),))

    async def apply(self, ctx: Context) -> None:
        ctx.found["rollback"] = await restore_release(ctx)

    async def verify(self, ctx: Context) -> str:
        return str(ctx.found["rollback"])

    async def undo(self, ctx: Context) -> None:
        return None


class _WithOptions:
    """A step whose options in the script are seen by that step alone."""

    def __init__(self, step: Step, options: Mapping[str, Any]) -> None:
        self._step = step
        self._options = dict(options)
        self.name = step.name
        self.downtime = step.downtime

    @contextlib.contextmanager
    def _given(self, ctx: Context) -> Iterator[None]:
        before = ctx.options
        ctx.options = {**before, **self._options}
        try:
            yield
        finally:
            ctx.options = before

    async def check(self, ctx: Context) -> Check:
        with self._given(ctx):
            return await self._step.check(ctx)

    async def apply(self, ctx: Context) -> None:
        with self._given(ctx):
            await self._step.apply(ctx)

    async def verify(self, ctx: Context) -> str:
        with self._given(ctx):
            return await self._step.verify(ctx)

    async def undo(self, ctx: Context) -> None:
        with self._given(ctx):
            await self._step.undo(ctx)
