"""The nodes of a search, each with its prompt, completion, program and score.

`cwm runs show DIR --node N` prints a node; the page of a search draws them as a tree.

The journal contains only the hashes of the prompts. `prompts.jsonl` contains the prompts: each
line is a numbered piece of text, or a prompt, which refers to pieces. So the parts that prompts
share, such as the description of the environment, are stored once. The journal does not depend on
this file. A prompt is written before its node. Unreadable prompts, and prompts of versions that
saved none, count as not saved.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import unified_diff
from itertools import count
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from cwm_cli.data.reading import UnreadableError, open_for_appending, parse_json, read_lines
from cwm_cli.sandbox.failures import NO_ANSWER
from cwm_cli.search.contracts import ROOT, Message, Node, prompt_hash

NodeState = Literal["solved", "runs", "bug", "no answer"]


class SearchRecord(BaseModel):
    """A journal line: a node, and the text of its completion."""

    node: Node
    text: str


@dataclass(frozen=True)
class NodeDetails:
    """A node of a search with its prompt, its completion and its parent's program.

    `prompt` is None if there was no completion, or if the prompt was not saved. `before` is None
    for a program that was written from scratch.
    """

    node: Node
    completion: str
    prompt: tuple[Message, ...] | None
    before: str | None
    is_best: bool

    @property
    def state(self) -> NodeState:
        """State of the candidate: exact, running, failing, or missing."""
        verdict = self.node.verdict
        if verdict.failure is not None and verdict.failure.kind == NO_ANSWER:
            return "no answer"
        return "bug" if verdict.is_bug else "solved" if verdict.solved else "runs"

    @property
    def prompt_words(self) -> str:
        """The reason why there is no prompt."""
        return (
            "prompt not saved"
            if self.node.asked
            else "no completion: written by a refiner or a start program"
        )

    def difference(self) -> list[str] | None:
        """Return the lines of a unified difference to the parent's program.

        None without a parent, or if a program is too long.
        """
        if self.before is None:
            return None
        old, new = self.before.splitlines(), self.node.program.splitlines()
        if max(len(old), len(new)) > 5000:  # the time is the product of both lengths
            return None
        titles = (f"#{self.node.parent}", f"#{self.node.id}")
        return list(unified_diff(old, new, *titles, lineterm=""))

    def figures(self) -> dict[str, Any]:
        """Return the measurements of the node by name, without unknown ones."""
        verdict, usage = self.node.verdict, self.node.usage
        known: dict[str, Any] = {
            "model": self.node.model or None,
            "score": verdict.score,
            "validation": verdict.validation,
            **{
                "all parts" if name == "exact" else name.replace("_", " "): value
                for name, value in verdict.parts.items()
            },
            "baseline": verdict.floor,
            "error (decimal logarithm)": verdict.error,
            "standard error": verdict.stderr,
            "log-likelihood": verdict.log_likelihood,
            "tokens of the prompt": usage.prompt_tokens or None,
            "cached tokens of the prompt": usage.cached_tokens or None,
            "tokens of the completion": usage.completion_tokens or None,
            "reasoning tokens": usage.reasoning_tokens or None,
            "cost in US dollars": usage.cost if self.node.asked else None,
            "seconds": round(usage.seconds, 3) or None,
        }
        found = {name: value for name, value in known.items() if value is not None}
        return found | ({"cost in US dollars": "unknown"} if usage.cost is None else {})

    def as_json(self) -> dict[str, Any]:
        """Return the output of `--json`."""
        return {
            **asdict(self.node),
            "state": self.state,
            "is_best": self.is_best,
            "prompt_hash": self.node.prompt,
            "prompt": None if self.prompt is None else [m.model_dump() for m in self.prompt],
            "completion": self.completion,
            "difference": self.difference(),
        }


def node_details(
    records: Sequence[SearchRecord], prompts: Mapping[str, tuple[Message, ...]]
) -> list[NodeDetails]:
    """Return the details of all nodes, from the lines of a journal and the prompts by hash."""
    programs = {line.node.id: line.node.program for line in records}
    best = max(records, key=lambda line: line.node.verdict.rank, default=None)
    return [
        NodeDetails(
            node=line.node,
            completion=line.text,
            prompt=prompts.get(line.node.prompt) if line.node.asked else None,
            before=programs.get(line.node.parent),
            is_best=line is best,
        )
        for line in records
    ]


def tree_data(nodes: Iterable[NodeDetails]) -> dict[str, Any]:
    """Return the data of a section that draws a tree.

    `texts` holds each piece of the prompts, completions, programs and differences once; nodes
    refer to pieces by number.
    """
    texts: dict[str, int] = {}

    def places(text: str) -> list[int]:
        return [texts.setdefault(piece, len(texts)) for piece in pieces(text)]

    drawn = [
        {
            "id": one.node.id,
            "parent": one.node.parent,
            "action": one.node.action,
            "state": one.state,
            "score": one.node.verdict.score,
            "asked": one.node.asked,
            "best": one.is_best,
            "figures": [[name, value] for name, value in one.figures().items()],
            "failure": asdict(one.node.verdict.failure) if one.node.verdict.failure else None,
            "findings": places(one.node.verdict.findings),
            "no_prompt": one.prompt_words,
            "prompt": one.prompt and [[m.role, places(m.content)] for m in one.prompt],
            "completion": places(one.completion),
            "program": places(one.node.program),
            "difference": None if lines is None else places("\n".join(lines)),
        }
        for one in nodes
        for lines in [one.difference()]
    ]
    return {"nodes": drawn, "root": ROOT, "texts": list(texts)}


PROMPTS = "prompts.jsonl"


_PARAGRAPH = re.compile(r"(?<=\n)\n+")
_MESSAGES: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])


def pieces(text: str) -> Iterator[str]:
    """Yield the pieces of a text: whole paragraphs, so that equal parts give equal pieces.

    Pieces have at least 120 characters; shorter paragraphs are joined with the next one.
    """
    start = 0
    for gap in _PARAGRAPH.finditer(text):
        if gap.end() - start >= 120:
            yield text[start : gap.end()]
            start = gap.end()
    if start < len(text):
        yield text[start:]


class PromptFile:
    """The prompts of a run; a crash at any time damages no saved prompt."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / PROMPTS
        self._pieces: dict[str, int] = {}
        self._known: set[str] | None = None

    def keep(self, key: str, messages: Sequence[Message]) -> None:
        """Save a prompt unless it is saved already; `key` is its hash."""
        with open_for_appending(self.file) as file:
            if self._known is None:
                # Pieces that cannot be used get new numbers.
                known = set(self.read())
                for line in self._lines():
                    number, text = line.get("piece"), line.get("text")
                    if isinstance(number, int) and isinstance(text, str):
                        self._pieces[text] = number
                self._known = known
                file.truncate(file.read().rfind(b"\n") + 1)  # cut off an incomplete line
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
            parts = [[one.role, [numbers[p] for p in pieces(one.content)]] for one in messages]
            lines.append({"prompt": key, "messages": parts})
            content = "".join(json.dumps(line) + "\n" for line in lines).encode()
            size = file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(size)  # an incomplete line would damage the next one
                raise
        self._pieces, self._known = numbers, self._known | {key}

    def read(self) -> dict[str, tuple[Message, ...]]:
        """Return the readable prompts by their hash."""
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
                if prompt_hash(messages) == line["prompt"]:  # else the file was changed
                    found[line["prompt"]] = messages
        return found

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that are JSON objects; an unreadable file has none."""
        with suppress(UnreadableError):
            for line in read_lines(self.file):
                with suppress(ValueError):
                    found = parse_json(line)
                    if isinstance(found, dict):
                        yield found
