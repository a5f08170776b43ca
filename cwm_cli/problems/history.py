"""What a search has tried so far: which changes did not help, and which episodes were disclosed.

A dead end is a program that is right on all that may be shown and not on what is held back. After
it was asked about once, an episode that was held back and that it gets wrong is disclosed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from cwm_cli.search.contracts import FIX, IMPROVE, Move, Node, Verdict
from cwm_cli.text import clean, percent, share

MOST_ATTEMPTS = 6
MOST_PROGRAMS = 5
LONGEST_LINE = 70
"""Characters of a changed line that are shown: enough to know it again."""

FOLLOWED_UP = (IMPROVE, FIX)


@dataclass
class History:
    """The nodes of a search, and the episodes that were disclosed, in this order."""

    nodes: list[Node] = field(default_factory=list)
    disclosed: tuple[int, ...] = ()

    def update(self, node: Node) -> None:
        """Learn from a node; the first one begins a search."""
        if node.id == 0:
            self.nodes, self.disclosed = [], ()
        self.nodes.append(node)
        if node.disclosed is not None:
            self.disclosed = (*self.disclosed, node.disclosed)

    def questioned(self, node: Node) -> Node | None:
        """Return the program that was asked about, if this answer improves it and is not right."""
        answers = node.asked and node.action == IMPROVE and not node.verdict.solved
        if not answers or node.parent not in range(len(self.nodes)):
            return None
        return self.nodes[node.parent]

    def refuted(self, move: Move) -> str:
        """List the changes to a program, and to those it was made from, that did not help."""
        lines = [_attempt(self.nodes[node.parent], node) for node in self._in_vain(move.parent)]
        if not lines:
            return ""
        shown = lines[-MOST_ATTEMPTS:]
        more = f" (and {len(lines) - len(shown)} before them)" if len(lines) > len(shown) else ""
        return "\n".join([f"These changes were tried{more}, and did not help:", *shown])

    def programs(self) -> str:
        """List the best programs so far with what is wrong with them."""
        order = sorted(self.nodes, key=lambda node: node.verdict.rank, reverse=True)
        if not order:
            return ""
        lines = [f"- {_fault(node.verdict)}" for node in order[:MOST_PROGRAMS]]
        heading = "Other programs were not right. The best of them, which are not shown, reach:"
        return "\n".join([heading, *dict.fromkeys(lines)])

    def _in_vain(self, number: int) -> Iterator[Node]:
        """Yield the answers to questions on a program, and on those above it, that did not help."""
        line = set()
        while number in range(len(self.nodes)):
            line.add(number)
            number = self.nodes[number].parent
        for node in self.nodes:
            if node.program and node.asked and node.action in FOLLOWED_UP and node.parent in line:
                before, after = self.nodes[node.parent].verdict, node.verdict
                if after.is_bug or (not before.is_bug and _worth(after) <= _worth(before)):
                    yield node


def _worth(verdict: Verdict) -> tuple[float, float]:
    """Return what tells whether a change helped: the score, then how far numbers are off."""
    return verdict.score, 0.0 if verdict.error is None else -verdict.error


def _attempt(before: Node, after: Node) -> str:
    """Say in a line what was changed and what came of it."""
    if after.verdict.failure is not None and after.verdict.is_bug:
        came = f"it raised ({after.verdict.failure.message.splitlines()[0][:LONGEST_LINE]})"
    else:
        came = f"score {share(before.verdict.score, 4)} -> {share(after.verdict.score, 4)}"
    return clean(f"- {_change(before.program, after.program)}: {came}")


def _change(before: str, after: str) -> str:
    """Show the first line that was changed, and count the others."""
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
    return f"`{removed}` left out{more}" if removed else f"`{added}` added{more}"


def _fault(verdict: Verdict) -> str:
    """Say in a line how good a program is and where it fails."""
    if verdict.failure is not None and verdict.is_bug:
        return clean(f"it raised: {verdict.failure.message.splitlines()[0][:LONGEST_LINE]}")
    wrong = [
        f"{name.replace('_', ' ')} right in {percent(value)}"
        for name, value in verdict.parts.items()
        if value < 1 and name != "exact"
    ]
    return clean(f"score {share(verdict.score, 4)}: {', '.join(wrong)}".removesuffix(": "))
