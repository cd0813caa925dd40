"""What the stand-in answers: short sense to simple prompts, an echo to others, and how text counts as tokens. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_CAPITALS = {
    "france": "Paris",
    "germany": "Berlin",
    "italy": "Rome",
    "spain": "Madrid",
    "japan": "Tokyo",
    "england": "London",
    "switzerland": "Bern",
}
_FILLER = (
    "Large models are served by many processes that share the work, and each of them keeps a part of the weights in the "
    "memory of its own accelerator while requests come and go."
).split()
GARBAGE = "!"


def count_tokens(text: str) -> int:
    """Words and marks; close enough to a tokenizer for a rehearsal."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def prompt_tokens(prompt: object) -> int:
    """Tokens of a prompt as the API takes it: text, or token ids."""
    if isinstance(prompt, str):
        return count_tokens(prompt)
    if isinstance(prompt, list):
        if all(isinstance(item, int) for item in prompt):
            return len(prompt)
        return sum(prompt_tokens(item) for item in prompt)
    return 0


def answer(prompt: str, *, chat: bool) -> str:
    """The text of an answer."""
    low = prompt.lower()
    asked = re.search(r"capital (?:city )?of (\w+)", low)
    if asked and asked[1] in _CAPITALS:
        city = _CAPITALS[asked[1]]
        return f"The capital of {asked[1].capitalize()} is {city}." if chat else f" {city}."
    sum_ = re.search(r"(\d{1,9})\s*([+*x×-]|plus|minus|times)\s*(\d{1,9})", low)
    if sum_:
        left, right = int(sum_[1]), int(sum_[3])
        value = {"+": left + right, "plus": left + right, "-": left - right, "minus": left - right}.get(
            sum_[2], left * right
        )
        return f"{left} {sum_[2]} {right} = {value}." if chat else f" {value}."
    counting = re.search(r"count (?:from )?(\d+) (?:to|up to) (\d+)", low)
    if counting and 0 <= int(counting[2]) - int(counting[1]) < 200:
        return ", ".join(str(number) for number in range(int(counting[1]), int(counting[2]) + 1)) + "."
    if re.search(r"\b(hello|hi|hey)\b", low):
        return "Hello! How can I help you today?"
    words = re.findall(r"\w+", prompt)[:12]
    return f"You asked about {' '.join(words)}. " + " ".join(_FILLER[:20]) + "." if words else " ".join(_FILLER) + "."


def pieces(prompt: str, *, chat: bool, garbage: bool, ignore_eos: bool) -> Iterator[str]:
    """The answer token by token; endless with `ignore_eos` and for garbage."""
    if garbage:
        while True:
            yield GARBAGE
    # marks count as tokens of their own, so that streamed pieces and usage agree
    yield from re.findall(r"\s*\w+|\s*[^\w\s]", answer(prompt, chat=chat))
    number = 0
    while ignore_eos:
        yield " " + _FILLER[number % len(_FILLER)].rstrip(".")
        number += 1
