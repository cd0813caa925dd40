"""The verb `stop`: the steps stop and drain, for good. What is wanted and serves is stopped too, and nothing comes back by itself.

Made of the redeploy's own steps; only what they take for granted there differs: that something is to serve afterwards. A
console that dies half-way still leaves the dead man's switch armed, so that a half-done stop is not the end of a service.
"""

from __future__ import annotations

import time

from console.deploy.step import Check, Context, Satisfied, Step
from console.events import Noted

OPTION = "serving"
"""The option of the steps stop and drain in a script that says so."""
WAY_BACK = "the way back: redeploy brings the profile's model up, rollback what was last good"


class Ending:
    """Stop or drain without a successor. `downtime` is False: a stop that fails is left as it is, and said."""

    downtime = False

    def __init__(self, step: Step) -> None:
        self._step = step
        self.name = step.name

    async def check(self, ctx: Context) -> Check:
        ctx.found["serving"] = False  # nothing that runs is to be kept, as after a look that found no answer
        if self.name == "drain" and not ("stopped" in ctx.found or "adopted" in ctx.found):
            return Satisfied("nothing was stopped, so there is no memory to wait for")
        check = await self._step.check(ctx)
        if self.name == "stop" and isinstance(check, Satisfied):
            return Satisfied(f"nothing serves: {', '.join(_units(ctx))} not running")
        return check

    async def apply(self, ctx: Context) -> None:
        await self._step.apply(ctx)

    async def verify(self, ctx: Context) -> str:
        evidence = await self._step.verify(ctx)
        if self.name == "stop":
            boots = [name for name in _units(ctx) if (u := ctx.facts.units.get(name)) and u.enabled == "enabled"]
            later = f"; {', '.join(boots)} will start again at the node's next boot" if boots else ""
            ctx.emit(Noted(time=time.time(), text=f"{WAY_BACK}{later}"))
        return evidence

    async def undo(self, ctx: Context) -> None:
        """What was ended on purpose stays ended."""


def _units(ctx: Context) -> tuple[str, ...]:
    return tuple(dict.fromkeys((ctx.profile.service.unit, *ctx.profile.replaces)))
