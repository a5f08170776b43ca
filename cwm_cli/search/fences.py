"""Texts with fenced blocks, as language models write them."""

import re
from collections.abc import Iterator
from itertools import islice

FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})(?P<label>[^`\n]*)")
STRING_MARKS = ('"""', "'''")
MAX_NESTED = 16
"""How many fences may be within a string before the first of them closes the block after all."""


def blocks(text: str) -> Iterator[str]:
    """Yield the contents of the fenced blocks, the last of which may be unclosed."""
    lines = text.split("\n")
    start = 0
    for number, opening in _fences(lines):
        if number >= start:
            end = _closing(lines, number, opening)
            yield _content(lines, number, end, opening)
            start = end + 1


def unfenced(text: str) -> Iterator[str]:
    """Yield the text outside blocks that may be a program: all of it, or what ends at a fence."""
    lines = text.split("\n")
    first = next(_fences(lines), None)
    if first is None:
        yield text
    elif "".join(lines[: first[0]]).strip():
        yield text
        yield "\n".join(lines[: first[0]])


def _fences(lines: list[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the numbers and parts of the lines that open or close a block."""
    for number, line in enumerate(lines):
        if ("```" in line or "~~~" in line) and (fence := FENCE.fullmatch(line)):
            yield number, fence


def _closing(lines: list[str], start: int, opening: re.Match[str]) -> int:
    """Return the line that closes a block: the first fence that is not within a string."""
    mark = opening["mark"]
    close = re.compile(rf"[ \t]*{re.escape(mark[0])}{{{len(mark)},}}[ \t]*")
    marked = (n for n in range(start + 1, len(lines)) if mark in lines[n])
    closing = (n for n in marked if close.fullmatch(lines[n]))
    ends = list(islice(closing, MAX_NESTED))
    for end in ends:
        content = "\n".join(lines[start + 1 : end])
        if all(content.count(quotes) % 2 == 0 for quotes in STRING_MARKS):
            return end
    return ends[0] if ends else len(lines)


def _content(lines: list[str], start: int, end: int, opening: re.Match[str]) -> str:
    """Return the lines of a block without the indentation of its fence."""
    return "\n".join(line.removeprefix(opening["indent"]) for line in lines[start + 1 : end])
