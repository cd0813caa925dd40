"""The reader: bytes in, in any pieces; stage, progress and diagnosis out, at any time.

Blocks are scanned for every pattern at once, and Python looks only at lines in which something was found, and at all lines
while a traceback is open. CR ends a piece of a line (progress bars) and LF a line; lines are counted by LF. Colour codes
and NUL bytes are dropped, bytes that are no UTF-8 replaced. JSON lines (Docker, journald, vLLM's own formatter) are
taken apart first. A last line without its end counts for every answer and is read again when its rest comes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Final

from console.triage import jsonlines
from console.triage.ahead import Ahead
from console.triage.diagnosis import Diagnosis, LoadProgress, Outside, RankState
from console.triage.entries import ORDER
from console.triage.launch import Launch
from console.triage.matcher import Hits
from console.triage.prefix import LOUD, Line, parse, unknown_lead
from console.triage.rules import ALARMS, EXCEPTION_ID, JSON_ID, LOUD_ID, Rules, Target, load_rules
from console.triage.tracebacks import alike
from console.triage.verdict import diagnose, load_progress, rank_states

BLOCK: Final = 1 << 18
"""Bytes gathered before they are scanned, when nobody asks in between."""
LONGEST_LINE: Final = 4 << 20
"""A line longer than this is read in pieces."""
LOOKED_AT: Final = 16 << 10
"""Bytes of a line that Python looks at, around what was found."""
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_CR_TO_LF = bytes.maketrans(b"\r", b"\n")
MOST_LEADS: Final = 4
PADDING: Final = " \t│"
"""Behind a line: what a table, a pager or a terminal has filled it up with."""


class Reader:
    """One log. `rules` default to the shipped catalogue; `stalls` are a profile's own limits, seconds by stage. `ahead`
    searches in a second thread, for a long file that is read in one go; end it with `close`."""

    def __init__(
        self, rules: Rules | None = None, stalls: Mapping[str, float] | None = None, *, ahead: bool = False
    ) -> None:
        rules = rules or load_rules()
        self._rules = rules.with_stalls(stalls) if stalls else rules
        self._launch = Launch(self._rules)
        self._launches = 1
        self._last: Launch | None = None
        """The launch before, when it failed: what counts while the new one has said nothing, as where a unit restarts."""
        self._markers: dict[str, str] = {}
        self._number = 1
        """Number of the line that comes next."""
        self._tail = b""
        self._pending: list[bytes] = []
        self._size = 0
        self._asking = False
        """Whether what is pending may change the stage, or whether it failed."""
        self._failed = False
        self._above: list[bytes] = []
        self._blank = True
        self._leads: list[re.Pattern[str]] = []
        self._ahead = Ahead(self._rules.matcher.scan) if ahead else None
        self._searched: tuple[bytes, bytes] | None = None
        """With `ahead`: the bytes and the block that were given to the search and are read next."""

    def close(self) -> None:
        """End the thread of `ahead`."""
        if self._ahead is not None:
            self._ahead.close()

    # ---- feeding ---------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the log."""
        self._pending.append(data)
        self._size += len(data)
        self._asking = True
        if self._size < BLOCK:
            return
        if self._ahead is None:
            self._flush()
        else:
            self._take_in()

    def feed_line(self, text: str) -> None:
        """Take one line, without its end."""
        data = text.encode("utf-8", "replace") + b"\n"
        self._pending.append(data)
        self._size += len(data)
        if self._size >= BLOCK:
            self._flush()
        elif not self._asking:
            self._asking = self._tells(data)

    # ---- answers ---------------------------------------------------------------------------------------------

    @property
    def stage(self) -> str | None:
        """The furthest stage of the last launch; None before the first cue. Asked of complete lines, as are progress, ranks
        and failed: cheap enough to be asked after every line."""
        if self._asking:
            self._flush()
        return self._launch.stage

    @property
    def failed(self) -> bool:
        """Whether the log already proves that the launch is dead or dying."""
        if self._asking:
            self._flush()
        return self._failed

    @property
    def progress(self) -> LoadProgress | None:
        """Weight loading so far; None before the first shard is named."""
        self._flush()
        return load_progress(self._launch)

    @property
    def ranks(self) -> tuple[RankState, ...]:
        """Every worker seen, with the last stage that it reported."""
        self._flush()
        return rank_states(self._launch)

    @property
    def lines(self) -> int:
        """Lines so far, the last one counted even without its end."""
        self._flush()
        return self._number - 1 + bool(self._tail)

    def diagnosis(self, outside: Outside | None = None) -> Diagnosis:
        """What is known now. Never waits; may be asked after every line."""
        self._flush()
        launch, last = self._current()
        if last is not None and launch.silent and not (outside and outside.alive):
            launch = last
        return diagnose(launch, outside or Outside(), lines=self.lines, launches=self._launches, blank=self._blank)

    def _current(self) -> tuple[Launch, Launch | None]:
        """The launch and the failed one before it, with an unfinished last line read into a copy."""
        if not self._tail.strip():
            return self._launch, self._last
        trial = copy.copy(self)
        trial._ahead = None
        trial._launch = copy.deepcopy(self._launch)
        trial._markers = dict(self._markers)
        trial._above = list(self._above)
        trial._leads = list(self._leads)
        trial._scan(self._tail + b"\n")
        self._blank = self._blank and trial._blank
        return trial._launch, trial._last

    def _parse(self, text: str) -> Line:
        """Take the line apart; a prefix that nobody knows is learned where a known record stands behind it, and taken off
        lines that have nothing else. A progress bar without a line end glues itself before a record in the same way."""
        line = parse(text)
        if line.process is not None or line.level is not None:
            return line
        for lead in self._leads:
            if found := lead.match(text):
                return parse(text[found.end() :])
        size = unknown_lead(line.text)
        if not size:
            return line
        start = len(text) - len(line.text) + size
        if len(self._leads) < MOST_LEADS and size <= 80 and "it/s" not in text[:start]:
            self._leads.append(alike(text[:start]))
        return parse(text[start:])

    # ---- blocks ----------------------------------------------------------------------------------------------

    def _tells(self, data: bytes) -> bool:
        """Whether this line alone, or the lines that wait before it with it, may change an answer that is asked for after
        every line. Those that cannot are read later, many at once."""
        if self._tail or b"\x1b" in data or b"\x00" in data or b"\r" in data:
            return True
        rules, launch = self._rules, self._launch
        if self._failed:
            telling = rules.moving
        elif launch.ready:
            telling = rules.deadly
        elif launch.wants_all:
            return True
        else:
            telling = rules.telling
        if telling.finds(data):
            return True
        return launch.stage != "serving" and rules.busy.finds(data)

    def _flush(self) -> None:
        if self._pending:
            self._take_in()
        elif self._searched is None:
            return
        if self._searched is not None:
            last, self._searched = self._searched, None
            self._read_block(*last)
        launch = self._launch
        self._asking = False
        self._failed = bool(
            launch.dead or any(each.strength >= 2 and not each.of_kernel for each in launch.candidates.kept)
        )

    def _take_in(self) -> None:
        parts = [self._tail, *self._pending]
        self._pending, self._size = [], 0
        last = parts.pop()
        cut = max(last.rfind(b"\n"), last.rfind(b"\r")) + 1
        if cut:
            # one copy: the tail of the last block, and this one up to its last line end
            self._tail = last[cut:]
            self._scan(b"".join([*parts, memoryview(last)[:cut]]) if cut < len(last) or any(parts) else last)
            return
        whole = b"".join([*parts, last])
        cut = max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
        if len(whole) - cut > LONGEST_LINE:
            cut = len(whole)
        self._tail = whole[cut:]
        if cut:
            self._scan(whole[:cut])

    def _scan(self, raw: bytes) -> None:
        """Read complete lines (the very last may be a piece of a line that is too long)."""
        if b"\x1b" in raw:
            raw = _ANSI.sub(b"", raw)
        if b"\x00" in raw:
            raw = raw.replace(b"\x00", b"")
        if self._blank and raw.strip():
            self._blank = False
        block = raw.translate(_CR_TO_LF) if b"\r" in raw else raw
        if self._ahead is None:
            self._read_block(raw, block)
            return
        self._ahead.ask(block)
        last, self._searched = self._searched, (raw, block)
        if last is not None:
            self._read_block(*last)

    def _read_block(self, raw: bytes, block: bytes) -> None:
        """Read complete lines; `block` is `raw` with every CR as an LF."""
        hits = None if self._ahead is None else self._ahead.answer()
        if jsonlines.begins(raw) or not self._block(raw, block, hits, counting=True):
            for piece, ends in jsonlines.lines(raw):
                self._block(piece, piece.translate(_CR_TO_LF), None, counting=False)
                self._number += ends

    def _search(self, block: bytes) -> Hits:
        return self._rules.matcher.scan(block) if self._ahead is None else self._ahead.now(block)

    def _block(self, raw: bytes, block: bytes, hits: Hits | None, *, counting: bool) -> bool:
        """Read a block whose `hits` may be known. Without `counting` all of it is one line of the input; with it, False, and
        nothing read, when there are JSON lines in it."""
        at = 0
        start_number = self._number
        while at < len(block):
            step = _Pass(self, raw, block, at, counting, hits if at == 0 else None)
            if counting and step.json and at == 0:
                return False
            at = len(block) if step.nothing_else() else step.run()
        if not counting:
            self._number = start_number
        keep = block[-2048:].split(b"\n")[:-1]
        self._above = (self._above + keep)[-3:]
        return True


class _Pass:
    """One walk over the hits of a block; ended early where a new launch begins, since then the first hit counts again."""

    def __init__(self, reader: Reader, raw: bytes, block: bytes, at: int, counting: bool, hits: Hits | None) -> None:
        self.reader = reader
        self.raw, self.block, self.start, self.at = raw, block, at, at
        self.counted = at
        self.counting = counting
        self.targets = reader._rules.targets
        launch = reader._launch
        self.stalled = bool(launch.stalls)
        part = block[at:] if at else block
        rules = reader._rules
        self.hits = reader._search(part) if hits is None else hits
        names = {name for _, name in self.hits}
        self.json = JSON_ID in names
        more: Hits = []
        if launch.wants_all or not ALARMS.isdisjoint(names):
            more += rules.late.scan(part)
        if launch.stage != "serving" or launch.stalls:
            more += rules.busy.scan(part)
        if more:
            self.hits = sorted(self.hits + more)
            names.update(name for _, name in more)
        self.names = names

    def nothing_else(self) -> bool:
        """Whether a server that is ready says nothing here but what is harmless anywhere; if so, it is counted."""
        launch, rules = self.reader._launch, self.reader._rules
        if launch.wants_all or (self.names and not (launch.ready and self.names <= rules.plain_noise)):
            return False
        counts: dict[int, int] = {}
        find = self.block.find
        stop = last = -1
        for end, name in self.hits:
            end += self.start
            if end <= stop:
                if name != last:
                    return False  # two reasons for one line: the first counts
                continue
            stop, last = find(b"\n", end), name
            if stop < 0:
                stop = len(self.block)
            counts[name] = counts.get(name, 0) + 1
        for name, count in counts.items():
            entry = self.targets[name].entry.id
            launch.noise[entry] = launch.noise.get(entry, 0) + count
        self._number(len(self.block))
        return True

    def run(self) -> int:
        """Read until the end, or until a launch began; the offset to go on from."""
        hits, block, size = self.hits, self.block, len(self.block)
        place, many = 0, len(hits)
        launch = self.reader._launch
        while True:
            if launch.tracebacks.leads and not launch.waiting and self.counting and self.raw is self.block:
                place = self._frames(launch, place)
            if launch.wants_all:
                begin = self.at
                if begin >= size:
                    break
            elif place < many:
                begin = block.rfind(b"\n", self.at, self.start + hits[place][0] - 1) + 1 or self.at
            else:
                break
            end = block.find(b"\n", max(begin, 0))
            if end < 0:
                end = size
            ids: list[int] = []
            limit = end - self.start
            while place < many and hits[place][0] <= limit:
                if not ids or hits[place][1] not in ids:
                    ids.append(hits[place][1])
                place += 1
            ids.sort()
            self.at = end + 1
            if self._read(begin, end, ids):
                self._number(min(self.at, size))
                return self.at
            launch = self.reader._launch
            if launch.stalls and not self.stalled:
                # the next sign of life counts, and such patterns are found once per scan
                self._number(min(self.at, size))
                return self.at
        self._number(size)
        return size

    def _frames(self, launch: Launch, place: int) -> int:
        """Take the frames that come next, of any process, known by their prefixes alone; the next hit's place. Most lines
        of a log full of tracebacks are such."""
        block, hits, many, start = self.block, self.hits, len(self.hits), self.start
        find, leads, frame = block.find, launch.tracebacks.leads, launch.tracebacks.frame
        at, size = self.at, len(block)
        number = self._number(at)
        while at < size:
            cut = find(b"] ", at, at + 400) + 2
            if cut < 2 or block[cut : cut + 1] not in (b" ", b"\t") or (lead := leads.get(block[at:cut])) is None:
                break
            end = find(b"\n", cut)
            if end < 0:
                break
            here = place
            while here < many and hits[here][0] + start <= end and hits[here][1] == LOUD_ID:
                here += 1
            if (here < many and hits[here][0] + start <= end) or end - cut > 2000:
                break
            if not frame(number, lead, block[cut:end]):
                break
            place, at, number = here, end + 1, number + 1
        if at > self.at:
            # every line end that was passed is one of the input
            self.at, self.counted, self.reader._number = at, at, number
        return place

    def _number(self, offset: int) -> int:
        if self.counting and offset > self.counted:
            self.reader._number += _line_ends(self.raw, self.counted, offset)
            self.counted = offset
        return self.reader._number

    def _read(self, begin: int, end: int, ids: list[int]) -> bool:
        """Read one line; True when a launch began with it."""
        launch = self.reader._launch
        found = [self.targets[name] for name in ids]
        if launch.ready and not launch.wants_all and len(ids) == 1 and ids[0] in self.reader._rules.plain_noise:
            name = found[0].entry.id
            launch.noise[name] = launch.noise.get(name, 0) + 1
            return False
        number = self._number(begin)
        raw = (self.block[begin:end] if end - begin <= LOOKED_AT else self._window(begin, end)).decode(
            "utf-8", "replace"
        )
        raw = raw.rstrip(PADDING)
        line = self.reader._parse(raw)
        found = [target for target in found if target.confirmed(line.text, raw)]
        if not (line.level in LOUD or launch.tracebacks or self.reader._rules.targets[EXCEPTION_ID] in found):
            found = [target for target in found if not target.late]
            if not (found or launch.wants_all):
                return False
        began = any(target.kind == "launch" and self._begins(number, target, line) for target in found)
        began = began or (launch.ready and launch.stopping and self._rises(number, line, found))
        launch = self.reader._launch
        launch.line(number, line, found, lambda: self._before(begin))
        if launch.tracebacks and self.counting and self.raw is self.block and raw.isascii():
            launch.tracebacks.knows(raw, line)
        return began

    def _window(self, begin: int, end: int) -> bytes:
        """The start and the end of a line of a megabyte; what was found stands in one of them, or in the middle is lost."""
        first = next((hit for hit, _ in self.hits if begin < self.start + hit <= end), 0) + self.start
        if first <= begin + LOOKED_AT:
            return self.block[begin : begin + LOOKED_AT]
        return (
            self.block[begin : begin + 512] + b" ... " + self.block[max(begin, first - LOOKED_AT // 2) : first + 2048]
        )

    def _before(self, begin: int) -> list[str]:
        """The up to three lines above, of this block or the one before."""
        lines: list[bytes] = []
        end = begin - 1
        while len(lines) < 3 and end >= 0:
            start = self.block.rfind(b"\n", 0, end) + 1
            lines.insert(0, self.block[start : min(end, start + 2000)])
            end = start - 1
        if len(lines) < 3 and self.reader._above:
            lines = [*self.reader._above[-(3 - len(lines)) :], *lines]
        return [line[:2000].decode("utf-8", "replace") for line in lines]

    def _begins(self, number: int, target: Target, line: Line) -> bool:
        """A marker starts a new launch when this launch has had it already, or is too far for it. A log may print several
        markers per launch, each once; two servers' processes differ in their pid."""
        reader = self.reader
        launch, marker, key = reader._launch, target.entry.id, line.key
        again = marker in reader._markers and (not key or reader._markers[marker] != key)
        past = bool(launch.dead) or launch.order > 4
        fresh = launch.order < 0 and not launch.dead and not launch.candidates.kept and not launch.recent
        first = not reader._markers
        reader._markers[marker] = key
        if not (again or past or (first and not fresh and launch.candidates.kept)):
            return False
        reader._markers = {marker: key}
        self._start(number)
        return True

    def _rises(self, number: int, line: Line, found: list[Target]) -> bool:
        """A server that was ready and told to stop does not load weights again, and one that has ended does not fail: this is
        another launch, its head cut off."""
        launch = self.reader._launch
        failures = [target.entry for target in found if target.kind == "failure"]
        early = (target.kind == "stage" and ORDER[target.stage] < ORDER["http_starting"] for target in found)
        if not (any(early) or launch.begins_anew(line, failures)):
            return False
        self.reader._markers = {}
        self._start(number)
        # a traceback that is open is the new one's
        self.reader._launch.tracebacks = launch.tracebacks
        return True

    def _start(self, number: int) -> None:
        reader = self.reader
        if not reader._launch.silent:
            reader._last = reader._launch if reader._launch.dead else None
        reader._launch = Launch(reader._rules, first=number)
        reader._launches += 1


def _line_ends(data: bytes, start: int, stop: int) -> int:
    """`data.count(b"\\n", start, stop)`, for long stretches in half of its time: taking them out goes from one to the next
    by memchr, where count looks at every byte."""
    if stop - start < 2048:
        return data.count(b"\n", start, stop)
    part = data[start:stop]
    return stop - start - len(part.replace(b"\n", b""))
