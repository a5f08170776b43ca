"""The history of a search: changes that did not help, other programs, and disclosed episodes.

A dead end is a program that is right on all rows that prompts may show and wrong on hidden ones.
After one question about it, a hidden episode that the program predicts wrongly is disclosed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import SequenceMatcher, unified_diff

import numpy as np

from cwm_cli.search.contracts import FIX, IMPROVE, Move, Node, Verdict
from cwm_cli.text import clean, estimated_tokens, percent, share

MAX_LINE = 70
"""Characters of a line of a program that lists show: enough to recognise it."""


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

    def unimproved_parent(self, node: Node) -> Node | None:
        """Return the parent of a node that is a wrong answer to an improve prompt, else None."""
        is_wrong_answer = node.asked and node.action == IMPROVE and not node.verdict.solved
        if not is_wrong_answer or node.parent not in range(len(self.nodes)):
            return None
        return self.nodes[node.parent]

    def describe_failed_changes(self, move: Move) -> str:
        """List the last six changes of a program and its ancestors that did not help."""
        ancestry, number = set[int](), move.parent
        while number in range(len(self.nodes)):
            ancestry.add(number)
            number = self.nodes[number].parent
        lines = []
        for node in self.nodes:
            is_change = node.program and node.asked and node.action in (IMPROVE, FIX)
            if is_change and node.parent in ancestry:
                before, after = self.nodes[node.parent].verdict, node.verdict
                # A program that runs improves one that raises, at any score.
                if after.is_bug or (not before.is_bug and _quality(after) <= _quality(before)):
                    lines.append(_describe_change(self.nodes[node.parent], node))
        if not lines:
            return ""
        shown = lines[-6:]
        more = f" (and {len(lines) - len(shown)} earlier ones)" if len(lines) > len(shown) else ""
        return "\n".join([f"These changes were tried{more} and did not help:", *shown])

    def describe_programs(self) -> str:
        """List the scores and mistakes of the five best programs so far."""
        order = sorted(self.nodes, key=lambda node: node.verdict.rank, reverse=True)
        if not order:
            return ""
        lines = []
        for verdict in (node.verdict for node in order[:5]):
            if verdict.failure is not None and verdict.is_bug:
                words = f"it raised: {verdict.failure.message.splitlines()[0][:MAX_LINE]}"
            else:
                words = f"score {_describe_parts(verdict, wrong_only=True)}"
            lines.append(f"- {clean(words)}")
        heading = "Earlier programs were not right. The best, which are not shown:"
        return "\n".join([heading, *dict.fromkeys(lines)])

    def best_others(self, move: Move) -> list[Node]:
        """Return all other programs that run, the best first, without duplicates."""
        order = sorted(self.nodes, key=lambda node: node.verdict.rank, reverse=True)
        # Later entries replace earlier ones, so the reversed order keeps the best duplicate.
        others = {node.program: node for node in reversed(order) if not node.verdict.is_bug}
        others.pop(move.program, None)
        return sorted(others.values(), key=lambda node: node.verdict.rank, reverse=True)


def other_programs(
    history: History,
    move: Move,
    rights: Callable[[str], np.ndarray | None],
    tokens: int,
) -> str:
    """Return the section on other programs of a stuck search, "" if there are none.

    It shows the best two programs, and the most different one of the next four, as OpenEvolve
    (https://github.com/codelion/openevolve) does with its top and diverse programs. The most
    different program is right on the most rows that the program of the move gets wrong.

    Args:
        history: The nodes of the search.
        move: The move: its program is the one to improve.
        rights: Returns the mask of the rows that a program predicts exactly, None if it fails.
        tokens: The allowance, in estimated tokens.
    """
    candidates = history.best_others(move)[:6]
    mine = rights(move.program)
    if not candidates or mine is None or move.verdict is None:
        return ""
    masks = {node.id: rights(node.program) for node in candidates}
    gained = {
        node.id: 0 if (mask := masks[node.id]) is None else int((mask & ~mine).sum())
        for node in candidates
    }

    def difference(node: Node) -> tuple[int, float]:
        lines = move.program.splitlines(), node.program.splitlines()
        similarity = SequenceMatcher(None, *lines, autojunk=False).ratio()
        return gained[node.id], -similarity

    chosen = candidates[:2]
    if rest := candidates[2:]:
        chosen.append(max(rest, key=difference))
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
        program = _shorter_form(move.program, node.program)
        part = f"Score {_describe_parts(node.verdict)}.{rows}\n\n{program}"
        tokens -= estimated_tokens(part)
        if tokens >= 0:
            parts.append(part)
    return clean("\n\n".join(parts), newlines=True) if len(parts) > 1 else ""


def _describe_parts(verdict: Verdict, *, wrong_only: bool = False) -> str:
    """Write the score of a program, and the share of each (wrong) part that is right."""
    parts = ", ".join(
        f"{name.replace('_', ' ')} right in {percent(value)}"
        for name, value in verdict.parts.items()
        if name != "exact" and (value < 1 or not wrong_only)
    )
    return f"{share(verdict.score, 4)}{': ' * bool(parts)}{parts}"


def _shorter_form(program: str, other: str) -> str:
    """Write another program as a whole, or as its differences if these are shorter."""
    difference = unified_diff(program.splitlines(), other.splitlines(), lineterm="", n=1)
    lines = [line for line in difference if not line.startswith(("---", "+++"))]
    if sum(map(len, lines)) < len(other):
        return "\n".join(["Its differences from the program above:", "", "```diff", *lines, "```"])
    return "\n".join(["```python", other.rstrip(), "```"])


def _quality(verdict: Verdict) -> tuple[float, float]:
    """Return the score and the negative error."""
    return verdict.score, 0.0 if verdict.error is None else -verdict.error


def _describe_change(before: Node, after: Node) -> str:
    """Write a change and its result in one line."""
    if after.verdict.failure is not None and after.verdict.is_bug:
        result = f"it raised ({after.verdict.failure.message.splitlines()[0][:MAX_LINE]})"
    else:
        result = f"score {share(before.verdict.score, 4)} -> {share(after.verdict.score, 4)}"
    return clean(f"- {_first_change(before.program, after.program)}: {result}")


def _first_change(before: str, after: str) -> str:
    """Write the first changed line, and count the other changed lines."""
    old, new = ([line.strip() for line in text.splitlines()] for text in (before, after))
    # `autojunk` would ignore frequent lines of long programs.
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
    if not blocks:
        return "the same program again"
    _, start, end, first, last = blocks[0]
    removed, added = (
        next((line[:MAX_LINE] for line in lines if line), "")
        for lines in (old[start:end], new[first:last])
    )
    count = sum(max(b - a, d - c) for _, a, b, c, d in blocks) - 1
    more = f", and {count} more line{'' if count == 1 else 's'}" if count else ""
    if removed and added:
        return f"`{removed}` became `{added}`{more}"
    return f"`{removed}` removed{more}" if removed else f"`{added}` added{more}"
