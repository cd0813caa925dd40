"""Step 13: the load points, measured on the node and held against the profile's gates and the last good release."""

from __future__ import annotations

import time
from collections.abc import Sequence

from console.checkpoint.patch import planned
from console.deploy.release import already_serving, last_good
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.errors import BelowGate
from console.events import Measured, Progressed
from console.profile.model import LoadPoint
from console.text import plural
from console.throughput.gate import summary, verdicts
from console.throughput.plan import bench
from console.throughput.run import measure

NAME = "throughput"


class Throughput:
    name = NAME
    downtime = False

    async def check(self, ctx: Context) -> Check:
        points = ctx.profile.throughput.points
        if not points:
            return Satisfied("the profile names no load points")
        good = last_good(ctx.facts)
        if good is not None and not ctx.options.get("again") and already_serving(ctx):
            kept = [point for wanted in points if (point := _of(good.baseline, wanted)) is not None]
            if len(kept) == len(points):
                found = verdicts(ctx.profile.throughput.gates, kept)
                if all(verdict.kept for verdict in found):
                    return Satisfied(f"measured for release {good.number}: {summary(found, kept)}")
        tests = ", ".join(f"concurrency {point.concurrency} with {point.prompts} prompts" for point in points)
        return Needed((Change(f"measure {plural(len(points), 'load point')}: {tests}"),))

    async def apply(self, ctx: Context) -> None:
        points = ctx.profile.throughput.points
        done: list[Measured] = []
        for index, point in enumerate(points):
            one = bench(
                ctx.profile,
                point,
                run=self._identity(ctx),
                program=f"{ctx.facts.path(ctx.profile.vllm.venv)}/bin/vllm",
                tokenizer=planned(ctx).model_path,
            )
            label = f"load point {index + 1}/{len(points)}, concurrency {point.concurrency}"
            self._tell(ctx, label, 0, point.prompts)
            measured = await measure(
                ctx.node,
                ctx.facts,
                one,
                port=ctx.profile.service.port,
                environment_file=ctx.profile.service.environment_file,
                tell=lambda n, total, label=label: self._tell(ctx, label, n, total),  # type: ignore[misc]
            )
            ctx.emit(measured)
            done.append(measured)
        ctx.found[NAME] = tuple(done)

    async def verify(self, ctx: Context) -> str:
        if NAME not in ctx.found:
            await self.apply(ctx)
        measured: tuple[Measured, ...] = ctx.found[NAME]
        good = last_good(ctx.facts)
        found = verdicts(ctx.profile.throughput.gates, measured, good.baseline if good else ())
        broken = [verdict for verdict in found if not verdict.kept]
        if broken:
            remedies = dict.fromkeys(verdict.remedy for verdict in broken if verdict.remedy)
            raise BelowGate("; ".join(verdict.text for verdict in broken), "; ".join(remedies))
        return summary(found, measured)

    async def undo(self, ctx: Context) -> None:
        ctx.found.pop(NAME, None)

    def _identity(self, ctx: Context) -> str:
        """Of this run and of the start that it measures: run numbers are each operator's own, and start over."""
        unit = ctx.facts.units.get(ctx.profile.service.unit)
        return f"{ctx.run or 'by-hand'}-{unit.invocation[:8] if unit else ''}"

    def _tell(self, ctx: Context, label: str, done: int, total: int) -> None:
        ctx.emit(
            Progressed(time=time.time(), step=NAME, text=label, done=float(done), total=float(total), unit="requests")
        )


def _of(baseline: Sequence[Measured], wanted: LoadPoint) -> Measured | None:
    shape = (wanted.concurrency, wanted.input_tokens, wanted.output_tokens)
    return next((m for m in baseline if (m.concurrency, m.input_tokens, m.output_tokens) == shape), None)


STEP = Throughput()
