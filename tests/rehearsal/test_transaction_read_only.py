"""Read-only, proved at the node and not in the verbs: whatever is asked with --read-only, the node stays byte for byte."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from console.errors import CommandFailed, Refused
from console.node import jobs
from console.node.base import Denied
from console.node.facts import Question, read_facts
from console.verbs import VERBS
from tests.field import OURS
from tests.field_practice import Site, practice_site
from tests.rehearsal.conftest import log_in

pytestmark = pytest.mark.timeout(240)
OWN = frozenset({"report", "show", "runs", "diagnose", "catalogue", "patch", "fit", "profile", "rehearsal"})
"""Verbs that talk to no node."""
ON_NODE = [verb.name for verb in VERBS if verb.name not in OWN]
AT_ONCE = 4
"""Consoles that look at the node together."""
PLACES = ("etc", "srv", "opt", "var/lib", "bin", "dev/shm")
"""Everything of the node's disk but what its own life writes: journal, cgroups, GPU memory, sockets."""


def fingerprint(root: Path) -> dict[str, str]:
    """Mode, owner, time and content of everything in `PLACES`."""
    found = {}
    for place in PLACES:
        for path in sorted((root / place).rglob("*")):
            info = path.lstat()
            what = str(path.readlink()) if path.is_symlink() else ""
            if path.is_file() and not path.is_symlink():
                what = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(root))] = f"{info.st_mode:o} {info.st_uid} {info.st_mtime_ns} {what}"
    return found


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with practice_site(tmp_path) as made:
        yield made


async def units(site: Site) -> str:
    return await site.sh("systemctl", "show", "-p", "ActiveState,InvocationID,UnitFileState", "vllm-glm5.service", OURS)


async def test_no_verb_changes_a_byte(site: Site) -> None:
    before, running = await asyncio.to_thread(fingerprint, site.root), await units(site)
    assert before
    for start in range(0, len(ON_NODE), AT_ONCE):
        names = ON_NODE[start : start + AT_ONCE]
        consoles = [await site.console(name, "--yes", "--read-only", who=name) for name in names]
        for name, console in zip(names, consoles, strict=True):
            code = await console.ended()
            assert code in (0, 3, 6), (name, code, console.told())
        after = await asyncio.to_thread(fingerprint, site.root)
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        assert changed == set(), (names, changed)
    assert await units(site) == running
    assert (await site.serving()).model == "glm-5"


async def test_the_session_itself_says_no(site: Site) -> None:
    before = await asyncio.to_thread(fingerprint, site.root)
    async with log_in(site.practice, read_only=True) as node:
        facts = await read_facts(node, Question())
        assert isinstance(await node.run(("systemctl", "stop", "vllm-glm5.service"), timeout=30, sudo=True), Denied)
        assert isinstance(await node.run(("touch", f"{facts.paths.home}/srv/x"), timeout=30), Denied)
        with pytest.raises(Refused):
            await node.write(f"{facts.paths.units}/x.service", b"")
        with pytest.raises(CommandFailed):
            await jobs.start_job(node, facts, jobs.JobSpec("x", ("true",)))
        with pytest.raises(CommandFailed):
            await jobs.stop_job(node, "x")
    assert await asyncio.to_thread(fingerprint, site.root) == before
