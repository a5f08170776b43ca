"""A search tree that knows the size and the best node of every subtree."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cwm_cli.search.contracts import ROOT, Node

Rank = tuple[float, float, int]
"""Orders nodes: the smallest rank is the best score, and of equal ones the earliest."""

WORST: Rank = (0.0, 0.0, ROOT)


@dataclass(slots=True)
class Branch:
    """A node with what lies below it; `children` have the best subtree first."""

    parent: int = ROOT
    rank: Rank = WORST
    best: Rank = WORST
    below: int = 0
    children: list[tuple[Rank, int]] = field(default_factory=list)


class SearchTree:
    """The nodes learned so far; a new one costs a step per ancestor, whatever the tree's size."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: dict[int, Node] = {}
        self.branches: dict[int, Branch] = {ROOT: Branch()}
        self.tokens = 0
        self.cost: float | None = 0.0
        for node in nodes:
            self.add(node)

    def __len__(self) -> int:
        """Count the nodes."""
        return len(self.nodes)

    @property
    def best(self) -> Node | None:
        """The best node."""
        return self.nodes.get(self.branches[ROOT].best[2])

    def newest(self) -> Iterator[int]:
        """Yield the ids of the nodes, the newest first."""
        return reversed(self.nodes)

    def ancestors(self, node: int) -> Iterator[int]:
        """Yield the ids of the nodes above a node, the nearest first."""
        while (node := self.branches[node].parent) != ROOT:
            yield node

    def add(self, node: Node) -> None:
        """Take a node in and tell its ancestors."""
        usage = node.usage
        self.tokens += usage.tokens
        if self.cost is not None:
            self.cost = None if usage.cost is None else self.cost + usage.cost
        rank = (-node.verdict.score, -node.verdict.validation, node.id)
        self.nodes[node.id] = node
        self.branches[node.id] = Branch(node.parent, rank, rank)
        insort(self.branches[node.parent].children, (rank, node.id))
        for ancestor in self.ancestors(node.id):
            self.branches[ancestor].below += 1
            self._improve(ancestor, rank)
        top = self.branches[ROOT]
        top.below += 1
        top.best = top.children[0][0]

    def _improve(self, node: int, rank: Rank) -> None:
        """Note a node below another one if it is the best there."""
        branch = self.branches[node]
        if rank < branch.best:
            siblings = self.branches[branch.parent].children
            del siblings[bisect_left(siblings, (branch.best, node))]
            insort(siblings, (rank, node))
            branch.best = rank
