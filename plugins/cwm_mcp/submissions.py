"""Submitted programs as the completions of a search: the strategy and the backend of `cwm mcp`.

The server puts a `Submission` into the `Inbox`, and advances the search by one completion. The
strategy then selects the move of the submission, and the backend returns its program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cwm_cli.errors import CwmError
from cwm_cli.problems.world_model import MARKER, NO_OPTION
from cwm_cli.search.contracts import (
    FIX,
    GENERATE,
    IMPROVE,
    ROOT,
    Backend,
    Completion,
    Move,
    Node,
    Request,
    Strategy,
    Usage,
)


class Submission(NamedTuple):
    """A submitted program, the node that it improves, and the contract that it asks for, if any."""

    program: str
    parent: int = ROOT
    contract: str = ""

    @property
    def text(self) -> str:
        """The submission as a completion: the program in a fenced block."""
        request = f"{MARKER} {self.contract}\n\n" if self.contract else ""
        if self.program.lstrip().startswith("```"):  # the client wrote the block itself
            return request + self.program
        return f"{request}```python\n{self.program}\n```\n"


@dataclass
class Inbox:
    """The submission that the search reads next, None if there is none."""

    submission: Submission | None = None


@dataclass
class SubmittedMoves(Strategy):
    """Selects the move of the submitted program: write, improve or fix.

    Without a submission each move writes a program.
    """

    moves = (GENERATE, IMPROVE, FIX)

    inbox: Inbox = field(default_factory=Inbox, repr=False, compare=False, metadata=NO_OPTION)
    _nodes: list[Node] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def repeats(self) -> bool:
        """Prompts may repeat, since the client does not answer them."""
        return True

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Select the move that leads from the named parent to the submission."""
        submission = self.inbox.submission
        if submission is None or submission.parent == ROOT:
            return Move(GENERATE)
        node = self._nodes[submission.parent]
        action = FIX if node.verdict.is_bug else IMPROVE
        return Move(action, node.id, node.program, node.verdict)

    def update(self, node: Node) -> None:
        """Remember the node as a possible parent."""
        self._nodes.append(node)


@dataclass
class SubmittedPrograms(Backend):
    """Programs that a client of `cwm mcp` submits. Their cost is unknown."""

    model: str = ""
    inbox: Inbox = field(default_factory=Inbox, repr=False, compare=False, metadata=NO_OPTION)

    def complete(self, request: Request) -> Completion:
        """Return the submission as a completion."""
        submission = self.inbox.submission
        if submission is None:
            raise CwmError(
                "the backend 'submissions' only returns programs of clients of `cwm mcp`: use "
                "that command, or choose another --backend"
            )
        return Completion(submission.text, Usage(cost=None))
