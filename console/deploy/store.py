"""The store: every run and every event of it, in one SQLite file in the state folder; the history that `show` replays.

Each event is committed before it is shown, so that a killed console loses nothing that a person saw. A store that a newer
Relaunch wrote is refused with a sentence instead of being misread. Secrets never reach it: events are redacted when made.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from console.errors import RelaunchError, UsageError
from console.events import Event, RunEnded, RunStarted, decode, encode
from console.seen import Seen

SCHEMA = 1
_TABLES = """
create table if not exists runs (
    id integer primary key autoincrement, verb text not null, node text not null, profile text not null,
    rehearsal integer not null, started real not null, ended real, code integer, text text, script text not null
);
create table if not exists seen (
    node text not null, rehearsal integer not null, body text not null, primary key (node, rehearsal)
) without rowid;
create table if not exists events (
    run integer not null references runs(id), seq integer not null, body text not null, primary key (run, seq)
) without rowid;
"""
_RUNS = (
    "select id, verb, node, profile, rehearsal, started, ended, code, text, script, "
    "(select json_extract(body, '$.downtime') from events where run = id and json_extract(body, '$.event') = 'run-ended' "
    "order by seq desc limit 1) from runs where (?1 is null or node = ?1) and (?2 is null or id = ?2) "
    "order by id desc limit ?3"
)


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of the history. `code` is None for a run that never ended: its console was killed, or it still runs."""

    id: str
    verb: str
    node: str
    profile: str
    rehearsal: bool
    started: float
    ended: float | None
    code: int | None
    text: str
    script: str
    downtime: float | None = None
    """Seconds; None when there was none."""


def state_folder() -> Path:
    """$XDG_STATE_HOME/relaunch, made with mode 0700."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = Path(base) / "relaunch"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


class Store:
    """An open store. One instance per process; several processes may share the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10)
            os.chmod(path, 0o600)
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=normal")
            (version,) = self._db.execute("pragma user_version").fetchone()
            if version > SCHEMA:
                raise UsageError(
                    f"{path} was written by a newer Relaunch (format {version}, this one knows {SCHEMA})",
                    "use that Relaunch, or set XDG_STATE_HOME to another folder",
                )
            self._db.executescript(_TABLES)
            self._db.execute(f"pragma user_version={SCHEMA}")
        except sqlite3.DatabaseError as error:
            raise RelaunchError(
                f"the run history {path} cannot be opened: {error}", "move the file away; a new one is made"
            ) from error

    def close(self) -> None:
        self._db.close()

    def begin(self, verb: str, node: str, profile: str, *, script: str, rehearsal: bool, started: float) -> str:
        """Reserve a run and return its id, four digits or more."""
        cursor = self._db.execute(
            "insert into runs (verb, node, profile, rehearsal, started, script) values (?, ?, ?, ?, ?, ?)",
            (verb, node, profile, int(rehearsal), started, script),
        )
        return f"{cursor.lastrowid:04d}"

    def append(self, run: str, event: Event) -> None:
        """Add one event; a `RunEnded` also closes the run."""
        key = _key(run)
        self._db.execute(
            "insert into events (run, seq, body) select ?, coalesce(max(seq), 0) + 1, ? from events where run = ?",
            (key, json.dumps(encode(event), ensure_ascii=False), key),
        )
        if isinstance(event, RunEnded):
            self._db.execute(
                "update runs set ended = ?, code = ?, text = ? where id = ?", (event.time, event.code, event.text, key)
            )

    def runs(self, *, node: str | None = None, limit: int = 50) -> tuple[RunRow, ...]:
        """The newest runs first."""
        rows = self._db.execute(_RUNS, (node, None, limit))
        return tuple(_row(row) for row in rows)

    def run(self, run: str) -> RunRow:
        """One run. Raises UsageError for one that is not there."""
        rows = self._db.execute(_RUNS, (None, _key(run), 1)).fetchall()
        if not rows:
            raise UsageError(f"there is no run {run}", "`relaunch runs` lists them")
        return _row(rows[0])

    def events(self, run: str) -> Iterator[Event]:
        """The events of a run, in order."""
        for (body,) in self._db.execute("select body from events where run = ? order by seq", (_key(run),)):
            yield decode(json.loads(body))

    def told(self, run: str, kind: str) -> tuple[Event, ...]:
        """The events of one kind of a run, in order."""
        rows = self._db.execute(
            "select body from events where run = ? and json_extract(body, '$.event') = ? order by seq",
            (_key(run), kind),
        )
        return tuple(decode(json.loads(body)) for (body,) in rows)

    def note_seen(self, node: str, seen: Seen, *, rehearsal: bool) -> None:
        """Remember how a node was, in place of what was known of it before; a store that cannot take it now is left so."""
        body = json.dumps(asdict(seen), ensure_ascii=False)
        with suppress(sqlite3.Error):
            self._db.execute(
                "insert or replace into seen (node, rehearsal, body) values (?, ?, ?)", (node, int(rehearsal), body)
            )

    def seen(self) -> dict[tuple[str, bool], Seen]:
        """How every node was when this account last looked, by name and whether it is a practice node."""
        rows = self._db.execute("select node, rehearsal, body from seen")
        return {(node, bool(rehearsal)): Seen(**json.loads(body)) for node, rehearsal, body in rows}

    def durations(self, node: str, profile: str) -> dict[str, float]:
        """Seconds that each step took when it last did something on this node with this profile."""
        rows = self._db.execute(
            "select json_extract(body, '$.step'), json_extract(body, '$.seconds') from events join runs on runs.id = run "
            "where node = ? and profile = ? and json_extract(body, '$.event') = 'step' "
            "and json_extract(body, '$.state') = 'done' order by run, seq",
            (node, profile),
        )
        return {step: seconds for step, seconds in rows if step and seconds}

    def last_downtime(self, node: str, profile: str, *, before: str) -> float | None:
        """Seconds of downtime of the newest run before `before` that changed this node with this profile and did it."""
        rows = self._db.execute(
            "select json_extract(body, '$.downtime') from events join runs on runs.id = run "
            "where node = ? and profile = ? and code = 0 and runs.id < ? and json_extract(body, '$.event') = 'run-ended' "
            "and json_extract(body, '$.downtime') is not null order by run desc limit 1",
            (node, profile, _key(before)),
        )
        found = rows.fetchone()
        return None if found is None else float(found[0])


@contextmanager
def open_store(path: Path | None = None) -> Iterator[Store]:
    """The store of this account, or the one at `path`."""
    store = Store(path or state_folder() / "relaunch.db")
    try:
        yield store
    finally:
        store.close()


def started(store: Store, run: str) -> RunStarted | None:
    """The first event of a run, None for a run that was reserved and never began."""
    event = next(iter(store.events(run)), None)
    return event if isinstance(event, RunStarted) else None


def _key(run: str) -> int:
    if not run.isdecimal():
        raise UsageError(f"{run!r} is no run number", "`relaunch runs` lists them, e.g. 0142")
    return int(run)


def _row(
    row: tuple[int, str, str, str, int, float, float | None, int | None, str | None, str, float | None],
) -> RunRow:
    number, verb, node, profile, rehearsal, began, ended, code, text, script, downtime = row
    return RunRow(
        f"{number:04d}", verb, node, profile, bool(rehearsal), began, ended, code, text or "", script, downtime
    )
