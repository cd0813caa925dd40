"""Step 12: ready means that it generates sense. The downtime ends with the first sensible generation."""

from __future__ import annotations

import time

from console.checkpoint.forecast import compare
from console.deploy import ready
from console.deploy.evidence import explain_later
from console.deploy.release import already_serving, candidate
from console.deploy.starting import Starting
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.errors import Nonsense, NotReady
from console.events import Downtime

NAME = "ready"


class Ready:
    name = NAME
    downtime = True

    async def check(self, ctx: Context) -> Check:
        served = ctx.profile.model.served_name
        if ctx.options.get("again") or already_serving(ctx):
            if "ready_evidence" in ctx.found or await ready.probe_serving(ctx):
                return Satisfied(str(ctx.found["ready_evidence"]))
            return Needed((Change(f"wait until {served} answers: {ctx.found['ready_evidence']}"),))
        return Needed((Change(f"wait until {served} answers, and let it generate"),))

    async def apply(self, ctx: Context) -> None:
        try:
            await ready.until_healthy(ctx, self._server(ctx))
        except NotReady as error:
            raise await explain_later(ctx, error, step=NAME) from error

    async def verify(self, ctx: Context) -> str:
        try:
            evidence = await ready.pass_gate(ctx, self._server(ctx), ctx.profile.ready.prompts)
        except (NotReady, Nonsense) as error:
            raise await explain_later(ctx, error, step=NAME) from error
        ctx.found.pop("serving", None)
        starting = ctx.found.get("launch")
        if isinstance(starting, Starting):
            for event in compare(ctx, (*starting.spool.head, *starting.spool.tail)):
                ctx.emit(event)
        known = candidate(ctx)
        began = ctx.found.get("downtime_started") or (known.downtime_started if known else None)
        ctx.emit(Downtime(time=time.time(), state="ended", seconds=ready.since(began)))
        return evidence

    async def undo(self, ctx: Context) -> None:
        return None  # nothing was changed

    def _server(self, ctx: Context) -> ready.Server:
        starting = ctx.found.get("launch")
        return ready.wanted(ctx, starting.invocation if isinstance(starting, Starting) else "")


STEP = Ready()
