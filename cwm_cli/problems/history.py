"""The history of a search: changes that did not help, other programs, and disclosed episodes.

A dead end is a program that is right on all rows that prompts may show and wrong on hidden ones.
After one question about it, a hidden episode that the program predicts wrongly is disclosed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher, unified_diff

import numpy as np

from cwm_cli.search.contracts import FIX, IMPROVE, Move, Node, Verdict
from cwm_cli.text import clean, estimated_tokens, percent, share

MOST_ATTEMPTS = 6
MOST_PROGRAMS = 5
LONGEST_LINE = 70
"""Characters of a changed line that are shown, enough to recognise it."""
MOST_BEST, MOST_JUDGED = 2, 6
"""Best other programs that are shown, and best ones among which the most different is chosen."""

FOLLOWED_UP = (IMPROVE, FIX)


@dataclass
class History:
    """The nodes of a search, and the disclosed episodes in the order of their disclosure.

    Nodes with an id below `since` were found under a former contract.
    """

    nodes: list[Node] = field(default_factory=list)
    disclosed: tuple[int, ...] = ()
    since: int = 0

    def update(self, node: Node) -> None:
        """Add a node; node 0 starts a new search."""
        if node.id == 0:
            self.nodes, self.disclosed = [], ()
        self.nodes.append(node)
        if node.disclosed is not None:
            self.disclosed = (*self.disclosed, node.disclosed)

    @property
    def stuck(self) -> int:
        """Return the number of completions since the last better program, or since `since`."""
        best, waited = None, 0
        for node in self.nodes:
            waited += node.asked and node.id >= self.since
            if best is None or node.verdict.rank > best:
                best, waited = node.verdict.rank, 0
        return waited

    def questioned(self, node: Node) -> Node | None:
        """Return the program that a node improves, if the node is an answer that is not right."""
        answers = node.asked and node.action == IMPROVE and not node.verdict.solved
        if not answers or node.parent not in range(len(self.nodes)):
            return None
        return self.nodes[node.parent]

    def refuted(self, move: Move) -> str:
        """List the changes of a program and its ancestors that did not help."""
        lines = [_attempt(self.nodes[node.parent], node) for node in self._in_vain(move.parent)]
        if not lines:
            return ""
        shown = lines[-MOST_ATTEMPTS:]
        more = f" (and {len(lines) - len(shown)} earlier ones)" if len(lines) > len(shown) else ""
        return "\n".join([f"These changes were tried{more} and did not help:", *shown])

    def programs(self) -> str:
        """List the scores and faults of the best programs so far."""
        order = sorted(self.nodes, key=lambda node: node.verdict.rank, reverse=True)
        if not order:
            return ""
        lines = [f"- {_fault(node.verdict)}" for node in order[:MOST_PROGRAMS]]
        heading = "Earlier programs were not right. The best, which are not shown:"
        return "\n".join([heading, *dict.fromkeys(lines)])

    def best_others(self, move: Move) -> list[Node]:
        """Return other programs that run, the best first, each text once."""
        order = sorted(self.nodes, key=lambda node: node.verdict.rank, reverse=True)
        others = {node.program: node for node in reversed(order) if not node.verdict.is_bug}
        others.pop(move.program, None)
        return sorted(others.values(), key=lambda node: node.verdict.rank, reverse=True)

    def _in_vain(self, number: int) -> Iterator[Node]:
        """Yield the answers to questions about a program or its ancestors that did not help."""
        line = set()
        while number in range(len(self.nodes)):
            line.add(number)
            number = self.nodes[number].parent
        for node in self.nodes:
            if node.program and node.asked and node.action in FOLLOWED_UP and node.parent in line:
                before, after = self.nodes[node.parent].verdict, node.verdict
                if after.is_bug or (not before.is_bug and _worth(after) <= _worth(before)):
                    yield node


def other_programs(
    history: History,
    move: Move,
    rights: Callable[[str], np.ndarray | None],
    tokens: int,
) -> str:
    """Return the section on other programs of a stuck search, "" if there are none.

    It shows the best one or two programs and the most different one of the best, as OpenEvolve
    (https://github.com/codelion/openevolve) does with its top and diverse programs.

    Args:
        history: The nodes of the search.
        move: The move: its program is the one to improve.
        rights: Returns the mask of the rows that a program predicts exactly, None if it fails.
        tokens: The allowance, in estimated tokens.
    """
    candidates = history.best_others(move)[:MOST_JUDGED]
    mine = rights(move.program)
    if not candidates or mine is None or move.verdict is None:
        return ""
    masks = {node.id: rights(node.program) for node in candidates}
    gained = {
        node.id: 0 if (mask := masks[node.id]) is None else int((mask & ~mine).sum())
        for node in candidates
    }
    chosen = candidates[:MOST_BEST]
    rest = candidates[MOST_BEST:]
    if rest:
        chosen.append(max(rest, key=lambda node: (gained[node.id], -_alike(move, node))))
    head = (
        f"## Other programs of this search\n\nThe last {history.stuck} completions gave no better "
        f"program. The program above scores {share(move.verdict.score, 4)}. Use what these "
        "programs do better."
    )
    parts = [head]
    tokens -= estimated_tokens(head)
    for node in chosen:
        mask = masks[node.id]
        rows = ""
        if mask is not None:
            lost = int((mine & ~mask).sum())
            rows = (
                f" It is right on {gained[node.id]} transitions that the program above gets wrong, "
                f"and wrong on {lost} transitions that the program above gets right."
            )
        part = f"{_right_parts(node.verdict)}{rows}\n\n{_shorter_form(move.program, node.program)}"
        tokens -= estimated_tokens(part)
        if tokens >= 0:
            parts.append(part)
    return clean("\n\n".join(parts), newlines=True) if len(parts) > 1 else ""


def _alike(move: Move, node: Node) -> float:
    """Return how similar two programs are, from 0 to 1."""
    lines = move.program.splitlines(), node.program.splitlines()
    return SequenceMatcher(None, *lines, autojunk=False).ratio()


def _right_parts(verdict: Verdict) -> str:
    """Write the score of a program and the share of each part that is right."""
    parts = ", ".join(
        f"{name.replace('_', ' ')} right in {percent(value)}"
        for name, value in verdict.parts.items()
        if name != "exact"
    )
    return f"Score {share(verdict.score, 4)}: {parts}.".replace(": .", ".")


def _shorter_form(program: str, other: str) -> str:
    """Write another program as a whole, or as its differences if these are shorter."""
    difference = unified_diff(program.splitlines(), other.splitlines(), lineterm="", n=1)
    lines = [line for line in difference if not line.startswith(("---", "+++"))]
    if sum(map(len, lines)) < len(other):
        return "\n".join(["Its differences from the program above:", "", "```diff", *lines, "```"])
    return "\n".join(["```python", other.rstrip(), "```"])


def _worth(verdict: Verdict) -> tuple[float, float]:
    """Return the score and the negative error, to compare changes."""
    return verdict.score, 0.0 if verdict.error is None else -verdict.error


def _attempt(before: Node, after: Node) -> str:
    """Write a change and its result in a line."""
    if after.verdict.failure is not None and after.verdict.is_bug:
        result = f"it raised ({after.verdict.failure.message.splitlines()[0][:LONGEST_LINE]})"
    else:
        result = f"score {share(before.verdict.score, 4)} -> {share(after.verdict.score, 4)}"
    return clean(f"- {_change(before.program, after.program)}: {result}")


def _change(before: str, after: str) -> str:
    """Write the first changed line, and count all further ones."""
    old, new = ([line.strip() for line in text.splitlines()] for text in (before, after))
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
    if not blocks:
        return "the same program again"
    _, start, end, first, last = blocks[0]
    removed, added = (
        next((line[:LONGEST_LINE] for line in lines if line), "")
        for lines in (old[start:end], new[first:last])
    )
    count = sum(max(b - a, d - c) for _, a, b, c, d in blocks) - 1
    more = f", and {count} more line{'' if count == 1 else 's'}" if count else ""
    if removed and added:
        return f"`{removed}` became `{added}`{more}"
    return f"`{removed}` removed{more}" if removed else f"`{added}` added{more}"


def _fault(verdict: Verdict) -> str:
    """Write the score of a program and its wrong parts in a line."""
    if verdict.failure is not None and verdict.is_bug:
        return clean(f"it raised: {verdict.failure.message.splitlines()[0][:LONGEST_LINE]}")
    wrong = [
        f"{name.replace('_', ' ')} right in {percent(value)}"
        for name, value in verdict.parts.items()
        if value < 1 and name != "exact"
    ]
    return clean(f"score {share(verdict.score, 4)}: {', '.join(wrong)}".removesuffix(": "))
