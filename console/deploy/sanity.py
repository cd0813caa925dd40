"""Does an answer make sense: the shapes of the garbage that wrong NVFP4 kernels produce, told from odd but honest text.

Pure. A server that answers 200 and prints `!!!!`, one token over and over, or letters of every script at once is the
failure that no error line announces (DOMAIN D15). Short answers, code, tables and other scripts that were asked for are
not garbage. Nothing here judges whether an answer is right, except the text that a prompt says it must contain.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from itertools import groupby

from console.text import clean

SHOWN = 120
"""Characters of an answer that an operator is shown."""

# what people draw lines, tables and indents with
_RULERS = frozenset("-=_*#~.·─━═ \t\n|+")
_OTHER_LANGUAGE = re.compile(
    r"\b(?:translat\w*|language|chinese|mandarin|cantonese|japanese|korean|russian|ukrainian|greek|arabic|hebrew|hindi|"
    r"thai|persian|farsi|cyrillic|kanji|hiragana|katakana|hangul|emoji|unicode|script)\b",
    re.IGNORECASE,
)
_SCRIPTS = {
    "CJK": "Han", "HIRAGANA": "Japanese", "KATAKANA": "Japanese", "HANGUL": "Korean", "LATIN": "Latin",
    "FULLWIDTH": "Latin", "GREEK": "Greek", "CYRILLIC": "Cyrillic", "ARABIC": "Arabic", "HEBREW": "Hebrew",
    "DEVANAGARI": "Devanagari", "THAI": "Thai",
}  # fmt: skip
# scripts that stand side by side in honest text
_TOGETHER = ({"Han", "Japanese"}, {"Han", "Korean"})


def sense(text: str, prompt: str, expect: str | None = None) -> str | None:
    """Why `text` is no sensible answer to `prompt`, as the end of the sentence "the answer …"; None when it is one.

    `expect` is text that the answer must contain, in any case and spacing.
    """
    body = text.strip()
    if not body:
        return "is empty"
    for judge in (_broken_characters, _one_character, _one_word, _loop, _no_words):
        if reason := judge(body):
            return reason
    if reason := _wrong_script(body, prompt):
        return reason
    if expect and _folded(expect) not in _folded(body):
        return f"does not contain {expect!r}"
    return None


def shown(text: str, limit: int = SHOWN) -> str:
    """`text` as it may stand on a terminal: cleaned, on one line, shortened, in quotes; `(nothing)` when it is empty."""
    line = " ".join(clean(text).split())
    if not line:
        return "(nothing)"
    return f"“{line}”" if len(line) <= limit else f"“{line[: limit - 1]}…”"


def _broken_characters(body: str) -> str | None:
    broken = sum(1 for char in body if char == "\ufffd" or unicodedata.category(char) in ("Co", "Cn", "Cc"))
    broken -= sum(body.count(char) for char in "\n\t\r")
    # one at the end is a character cut in two by the token limit
    if body.endswith("\ufffd"):
        broken -= len(body) - len(body.rstrip("\ufffd"))
    if broken >= 2 and broken > 0.02 * len(body):
        return f"holds {broken} broken characters in {len(body)}"
    return None


def _one_character(body: str) -> str | None:
    char, length = max(((key, sum(1 for _ in group)) for key, group in groupby(body)), key=lambda run: run[1])
    dense = sum(1 for c in body if not c.isspace())
    if char in _RULERS:
        # a rule or an indent is part of a text; alone it is none
        return f"is nothing but {char!r}" if dense >= 8 and set(body) <= {char, " ", "\n"} else None
    if length >= 4 and length >= 0.5 * dense and not char.isdigit():
        return f"is {char!r} {length} times in a row"
    if length >= 24:
        return f"holds {char!r} {length} times in a row"
    if len(body) >= 16 and set(body) <= {char, " ", "\n"} and not char.isalnum():
        return f"is nothing but {char!r}"
    return None


def _one_word(body: str) -> str | None:
    words = re.findall(r"\w+", body.casefold())
    runs = [(word, sum(1 for _ in group)) for word, group in groupby(words)]
    if not runs:
        return None
    word, length = max(runs, key=lambda run: run[1])
    if length >= 8 and length >= 0.3 * len(words):
        return f"repeats {word!r} {length} times in a row"
    if len(words) >= 20:
        common, count = Counter(words).most_common(1)[0]
        if count >= 0.6 * len(words):
            return f"is {common!r} in {count} of {len(words)} words"
    return None


def _loop(body: str) -> str | None:
    """The same stretch over and over, at the end, where a model that has lost its way stays."""
    if len(body) < 48:
        return None
    for period in range(2, len(body) // 4 + 1):
        unit = body[-period:]
        if set(unit) <= _RULERS:
            continue
        length = _tail(body, period)
        if length >= 4 * period and length >= max(40, 0.5 * len(body)):
            return f"repeats {' '.join(unit.split())[:24]!r} {length // period} times"
    words = re.findall(r"\w+", body.casefold())
    if len(words) >= 40:
        triples = list(zip(words, words[1:], words[2:], strict=False))
        if len(set(triples)) < 0.2 * len(triples):
            return f"goes round in circles: {len(set(triples))} different three-word groups of {len(triples)}"
    return None


def _tail(body: str, period: int) -> int:
    """Length of the longest end of `body` that has this period."""
    length = period
    while length < len(body) and body[-length - 1] == body[-length - 1 + period]:
        length += 1
    return length


def _no_words(body: str) -> str | None:
    """A long answer without letters or digits to speak of."""
    if len(body) >= 16 and set(body) <= _RULERS:
        return "is nothing but drawn lines"
    dense = [char for char in body if char not in _RULERS]
    worded = sum(1 for char in dense if char.isalnum() or unicodedata.category(char) in ("Mn", "Mc", "So"))
    if len(dense) >= 32 and worded < 0.15 * len(dense):
        return f"is nearly all punctuation: {worded} letters and digits of {len(dense)} characters"
    return None


def _wrong_script(body: str, prompt: str) -> str | None:
    found = Counter(script for char in body if (script := _script(char)))
    total = sum(found.values())
    if total < 8:
        return None
    asked = {script for char in prompt if (script := _script(char))} or {"Latin"}
    if len(_distinct(found, total)) >= 4 and not _OTHER_LANGUAGE.search(prompt):
        return f"mixes the scripts {', '.join(sorted(_distinct(found, total)))}"
    if _OTHER_LANGUAGE.search(prompt):
        return None
    allowed = set(asked) | {"Latin"}
    for group in _TOGETHER:
        if asked & group:
            allowed |= group
    foreign = sum(count for script, count in found.items() if script not in allowed)
    if foreign > 0.3 * total:
        worst = max((s for s in found if s not in allowed), key=lambda s: found[s])
        return f"is written in {worst} script, and the question is not"
    return None


def _distinct(found: Counter[str], total: int) -> set[str]:
    """Scripts with more than a stray letter; those that honest text mixes count once."""
    present = {script for script, count in found.items() if count >= max(2, 0.03 * total)}
    if "Japanese" in present or "Korean" in present:
        present.discard("Han")
    return present


def _script(char: str) -> str | None:
    """The script of a letter, by its Unicode name; None for anything else."""
    if char.isascii():
        return "Latin" if char.isalpha() else None
    if not char.isalpha():
        return None
    first = unicodedata.name(char, "").split(" ")[0].split("-")[0]
    return _SCRIPTS.get(first, first.capitalize() or None)


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
