"""The nodes of a search, each with its prompt, completion, program and score.

`cwm runs show DIR --node N` prints a node; the page of a search draws them as a tree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import unified_diff
from typing import Any, Literal

from pydantic import BaseModel

from cwm_cli.runs.prompts import pieces
from cwm_cli.sandbox.failures import NO_ANSWER
from cwm_cli.search.contracts import ROOT, Message, Node

NodeState = Literal["solved", "runs", "bug", "no answer"]
"""State of a candidate: exact, running, failing, or missing."""

LONGEST = 5000
"""Longest program, in lines, that is compared: the time is the product of both lengths."""


class SearchRecord(BaseModel):
    """A line of the journal: a node, and the text of the completion that it was read from."""

    node: Node
    text: str


@dataclass(frozen=True)
class NodeDetails:
    """A node of a search with its prompt, its completion and its parent's program.

    `prompt` is None if there was no completion, or if the prompt was not kept. `before` is None
    for a program that was written from scratch.
    """

    node: Node
    completion: str
    prompt: tuple[Message, ...] | None
    before: str | None
    is_best: bool

    @property
    def state(self) -> NodeState:
        """State of the candidate."""
        verdict = self.node.verdict
        if verdict.failure is not None and verdict.failure.kind == NO_ANSWER:
            return "no answer"
        return "bug" if verdict.is_bug else "solved" if verdict.solved else "runs"

    @property
    def prompt_words(self) -> str:
        """Return the reason why there is no prompt."""
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
        if max(len(old), len(new)) > LONGEST:
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
            **{name.replace("_", " "): value for name, value in verdict.parts.items()},
            "floor": verdict.floor,
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
        """Return what `--json` prints."""
        return {
            **asdict(self.node),
            "state": self.state,
            "is_best": self.is_best,
            "prompt_hash": self.node.prompt,
            "prompt": None if self.prompt is None else [m.model_dump() for m in self.prompt],
            "completion": self.completion,
            "difference": self.difference(),
        }


def detailed(
    records: Sequence[SearchRecord], prompts: Mapping[str, tuple[Message, ...]]
) -> list[NodeDetails]:
    """Return the details of all nodes, from the lines of a journal and the prompts."""
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
