"""Step 2: everything that can be known to go wrong is found while the old model still serves.

All findings are told, and any refusal ends the run with exit code 3 and all refusals at once; nothing was changed then.
With a remembered answer of the installed vLLM's own help this costs one exec, and none when what is wanted serves.
"""

from __future__ import annotations

from collections.abc import Iterator

from console.checkpoint import forecast, patch
from console.deploy import access, checks, flags
from console.deploy.step import Check, Context, Satisfied
from console.errors import Refused
from console.findings import Finding, allow, refuse, warn
from console.text import plural

NAME = "preflight"


class Preflight:
    name = NAME
    downtime = False

    async def check(self, ctx: Context) -> Check:
        findings = await self._findings(ctx)
        ctx.found[NAME] = findings
        for finding in findings:
            ctx.emit(finding.event(NAME))
        refusals = [finding for finding in findings if finding.level == "refuse"]
        if refusals:
            remedies = dict.fromkeys(finding.remedy for finding in refusals if finding.remedy)
            raise Refused("\n".join(finding.text for finding in refusals), "; ".join(remedies))
        return Satisfied(sentence(findings))

    async def apply(self, ctx: Context) -> None:
        """There is nothing to apply: preflight refuses or is satisfied."""

    async def verify(self, ctx: Context) -> str:
        return sentence(ctx.found.get(NAME, ()))

    async def undo(self, ctx: Context) -> None:
        """Nothing was changed."""

    async def _findings(self, ctx: Context) -> tuple[Finding, ...]:
        found = [*checks.machine(ctx.profile, ctx.facts), *await access.findings(ctx)]
        table, note = await flags.installed_table(ctx)
        if note is not None:
            found.append(note)
        found += model_findings(ctx)
        extra = patch.planned(ctx).flags
        found += flags.check_flags(ctx.profile, table, extra)
        return tuple(found)


def model_findings(ctx: Context) -> Iterator[Finding]:
    """The KV decision, as far as the model's config is known before it is downloaded."""
    outcome = patch.planned(ctx)
    decision = outcome.decision
    if decision is None:
        yield allow("kv", "the KV cache is decided when the model's config is on the node")
    elif decision.action == "refuse":
        yield refuse("kv", decision.reason, decision.remedy)
    else:
        yield allow("kv", f"{decision.action}: {decision.reason}")
        for text in decision.warnings:
            yield warn("kv", text)
    yield forecast.finding(forecast.forecasts(ctx))
    folder = checks.asked(ctx.facts.folders, ctx.facts, ctx.profile.model.folder)
    if (folder is None or not folder.exists) and not ctx.token:
        yield allow("token", f"no hub token is given; {ctx.profile.model.repo} must be open to everyone")


def sentence(findings: tuple[Finding, ...]) -> str:
    """`14 checks passed, 1 warning`."""
    good = sum(finding.level == "allow" for finding in findings)
    warned = sum(finding.level == "warn" for finding in findings)
    return f"{plural(good, 'check')} passed" + (f", {plural(warned, 'warning')}" if warned else "")


STEP = Preflight()
