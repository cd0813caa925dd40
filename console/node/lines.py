"""Bytes of a remote stream into lines, whatever the chunking.

`\\n` and `\\r\\n` end a line; `\\r` alone ends a line that the next one replaces (progress bars). UTF-8 is decoded across
chunk borders, bad bytes become U+FFFD. A line longer than `CAP` characters comes in pieces, all but the last marked `cut`,
so that one endless line never holds more than that in memory. The same bytes give the same lines in any chunking.
"""

from __future__ import annotations

import codecs
import re

from console.node.base import Line

CAP = 64 * 1024
"""Characters."""

_ENDS = re.compile(r"(\r*\n|\r+)")


class Splitter:
    """One per stream. `err` marks its lines as stderr's."""

    __slots__ = ("_cap", "_decoder", "_err", "_tail")

    def __init__(self, *, err: bool = False, cap: int = CAP) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tail = ""
        self._err = err
        self._cap = cap

    def feed(self, data: bytes) -> list[Line]:
        """The lines that `data` completes. A CR at the very end waits for the next byte, which may be its LF."""
        return self._split(self._decoder.decode(data))

    def close(self) -> list[Line]:
        """What is left when the stream has ended: a last line without terminator."""
        lines = self._split(self._decoder.decode(b"", final=True))
        rest, self._tail = self._tail, ""
        if rest:
            self._emit(lines, rest.rstrip("\r"), replaces=rest.endswith("\r"))
        return lines

    def _split(self, text: str) -> list[Line]:
        text = self._tail + text
        body = text.rstrip("\r")
        held = "\r" if len(body) < len(text) else ""
        lines: list[Line] = []
        if "\r" not in body:
            *whole, tail = body.split("\n")
            for piece in whole:
                self._emit(lines, piece, replaces=False)
        else:
            *pairs, tail = _ENDS.split(body)
            for piece, end in zip(pairs[::2], pairs[1::2], strict=True):
                self._emit(lines, piece, replaces=not end.endswith("\n"))
        while len(tail) > self._cap:
            lines.append(Line(tail[: self._cap], self._err, cut=True))
            tail = tail[self._cap :]
        self._tail = tail + held
        return lines

    def _emit(self, lines: list[Line], text: str, *, replaces: bool) -> None:
        while len(text) > self._cap:
            lines.append(Line(text[: self._cap], self._err, cut=True))
            text = text[self._cap :]
        if text or not replaces:  # a bar that begins with CR replaces nothing yet
            lines.append(Line(text, self._err, replaces))
