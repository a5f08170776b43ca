"""The prompts of a search, in a file beside its journal, which has only their hashes.

A line is a piece of text, with its number, or a prompt, whose messages are made of pieces: what
prompts share, such as the description of the environment, is there once. The journal does not
depend on this file. It is written before the node that a prompt led to, and what of it cannot be
read, or is not there because an earlier version kept none, is a prompt that was not kept.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cwm_cli.data.reading import UnreadableError, open_for_appending, parse_json, read_lines
from cwm_cli.search.contracts import Message, prompt_hash

PROMPTS = "prompts.jsonl"

SHORTEST = 120
"""Characters of a piece that is worth a line of its own; shorter ones go with the next."""

_PARAGRAPH = re.compile(r"(?<=\n)\n+")
_MESSAGES: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])


def pieces(text: str) -> Iterator[str]:
    """Yield the pieces of a text, which are whole paragraphs: equal parts are equal pieces."""
    start = 0
    for gap in _PARAGRAPH.finditer(text):
        if gap.end() - start >= SHORTEST:
            yield text[start : gap.end()]
            start = gap.end()
    if start < len(text):
        yield text[start:]


class PromptFile:
    """The prompts of a run: each is written down once, whatever ends the process."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / PROMPTS
        self._pieces: dict[str, int] = {}
        self._known: set[str] | None = None

    def keep(self, key: str, messages: Sequence[Message]) -> None:
        """Write a prompt down, unless it is there; `key` is its hash."""
        with open_for_appending(self.file) as file:
            if self._known is None:
                self._known = self._read()
                file.truncate(_whole(file.read()))
            if key in self._known:
                return
            lines: list[dict[str, Any]] = []
            numbers = dict(self._pieces)
            free = count(max(numbers.values(), default=-1) + 1)
            for message in messages:
                for piece in pieces(message.content):
                    if piece not in numbers:
                        numbers[piece] = next(free)
                        lines.append({"piece": numbers[piece], "text": piece})
            made = [[one.role, [numbers[p] for p in pieces(one.content)]] for one in messages]
            lines.append({"prompt": key, "messages": made})
            content = "".join(json.dumps(line) + "\n" for line in lines).encode()
            size = file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(size)  # a line that is there in part would spoil the next
                raise
        self._pieces, self._known = numbers, self._known | {key}

    def read(self) -> dict[str, tuple[Message, ...]]:
        """Return the prompts that can be read, by their hash."""
        texts: dict[int, str] = {}
        found: dict[str, tuple[Message, ...]] = {}
        for line in self._lines():
            with suppress(ValueError, KeyError, TypeError):
                if "piece" in line:
                    texts[int(line["piece"])] = str(line["text"])
                    continue
                messages = _MESSAGES.validate_python(
                    [
                        {"role": role, "content": "".join(texts[number] for number in numbers)}
                        for role, numbers in line["messages"]
                    ]
                )
                if prompt_hash(messages) == line["prompt"]:  # else a piece was changed
                    found[line["prompt"]] = messages
        return found

    def _read(self) -> set[str]:
        """Learn what is there already; what cannot be used is written again under new numbers."""
        known = set(self.read())
        for line in self._lines():
            number, text = line.get("piece"), line.get("text")
            if isinstance(number, int) and isinstance(text, str):
                self._pieces[text] = number
        return known

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that are objects; a file that cannot be read has none."""
        with suppress(UnreadableError):
            for line in read_lines(self.file):
                with suppress(ValueError):
                    found = parse_json(line)
                    if isinstance(found, dict):
                        yield found


def _whole(content: bytes) -> int:
    """Return the length of a file up to the end of its last whole line."""
    return content.rfind(b"\n") + 1
