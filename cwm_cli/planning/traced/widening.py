"""The form of a state that no step leaves."""

from typing import Any

import numpy as np

from cwm_cli.planning.model import Unbatched
from cwm_cli.planning.traced.graph import Graph
from cwm_cli.planning.traced.node import Node
from cwm_cli.planning.traced.trees import Branch, Fixed, Maybe, Numbers, Tree, absent, is_none


class Widening:
    """Finds the form that a state has before every step, and its symbols."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.symbols: list[Node] = []

    def __call__(self, before: Tree, after: Tree) -> Tree:
        """Return a tree for all that either of the trees is for."""
        if (
            isinstance(before, Maybe)
            or isinstance(after, Maybe)
            or is_none(before) != is_none(after)
        ):
            return self._maybe(before, after)
        if isinstance(before, Numbers) and isinstance(after, Numbers):
            return self._numbers(before, after)
        if isinstance(before, Branch) and isinstance(after, Branch):
            return self._branch(before, after)
        if isinstance(before, Fixed) and before == after:
            return before
        raise Unbatched("an attribute changes its type")

    def _numbers(self, before: Numbers, after: Numbers) -> Numbers:
        """Keep the constants that stay and give symbols to the other numbers."""
        if before.shape != after.shape:
            raise Unbatched("an attribute changes its shape")
        dtype = np.promote_types(before.dtype, after.dtype)
        pairs = zip(before.leaves, after.leaves, strict=True)
        leaves = tuple(self._leaf(*pair, dtype) for pair in pairs)
        return Numbers(before.shape, dtype, leaves)

    def _leaf(self, before: Node, after: Node, dtype: np.dtype[Any]) -> Node:
        """Keep what stays, as what it is."""
        kind = dtype.kind.replace("u", "i")
        if before.kind == kind and before in self.symbols:
            return before
        if before.is_constant and after is before:
            return before
        return self._symbol(kind)

    def _symbol(self, kind: str) -> Node:
        """Return a new symbol."""
        self.symbols.append(self._graph.symbol(f"s{len(self.symbols)}", kind))
        return self.symbols[-1]

    def _branch(self, before: Branch, after: Branch) -> Branch:
        """Widen the parts."""
        sequences = {before.type, after.type} <= {list, tuple}  # which are read alike
        if before.keys != after.keys or not (sequences or before.type is after.type):
            raise Unbatched("an attribute changes its type")
        if len(before.children) != len(after.children):
            raise Unbatched("an attribute changes its length")
        return Branch(after.type, before.keys, tuple(map(self, before.children, after.children)))

    def _maybe(self, before: Tree, after: Tree) -> Tree:
        """Widen what may be there, and whether it is."""
        value, others = (
            tree.value if isinstance(tree, Maybe) else tree for tree in (before, after)
        )
        inner = others if is_none(value) else value if is_none(others) else self(value, others)
        if not isinstance(before, Maybe):
            return Maybe(inner, self._symbol("b"))
        return Maybe(inner, self._leaf(before.absent, absent(self._graph, after), np.dtype(bool)))
