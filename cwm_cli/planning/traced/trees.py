"""Values of a program's attributes as trees with nodes at their leaves."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cwm_cli.planning.batched import lanes
from cwm_cli.planning.model import Unbatched
from cwm_cli.planning.traced.graph import Graph
from cwm_cli.planning.traced.node import Node
from cwm_cli.planning.traced.symbols import LANES, Symbols, nodes, settled


@dataclass(frozen=True)
class Numbers:
    """A number, or an array of them but for the lane axis."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    leaves: tuple[Node, ...]


@dataclass(frozen=True)
class Branch:
    """A tuple, list or dict."""

    type: type
    keys: tuple[Any, ...]
    children: tuple["Tree", ...]


@dataclass(frozen=True)
class Fixed:
    """Something that is never computed with."""

    value: Any


@dataclass(frozen=True)
class Maybe:
    """Something that may be None."""

    value: "Tree"
    absent: Node


Tree = Numbers | Branch | Fixed | Maybe


class Trees:
    """Makes trees of values and values of trees."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def tree(self, value: Any) -> Tree:
        """Return the tree of a value."""
        if isinstance(value, lanes.Maybe):
            return Maybe(self.tree(value.value), self.numbers(value.missing).leaves[0])
        if isinstance(value, bool | int | float | np.generic | np.ndarray):
            return self.numbers(value)
        for sequence in (tuple, list):
            if isinstance(value, sequence):
                return Branch(sequence, (), tuple(map(self.tree, value)))
        if isinstance(value, dict):
            return Branch(dict, tuple(value), tuple(map(self.tree, value.values())))
        return Fixed(value)

    def numbers(self, value: Any) -> Numbers:
        """Return the nodes of one lane."""
        array = np.asarray(value) if not isinstance(value, np.ndarray) else value
        known = nodes(array, self.graph)
        one = np.asarray(known[..., 0] if array.ndim else known, object)
        return Numbers(one.shape, array.dtype, tuple(one.flat))

    def value(self, tree: Tree) -> Any:
        """Return the value of a tree."""
        if isinstance(tree, Fixed):
            return tree.value
        if isinstance(tree, Maybe):
            none = self.value(Numbers((), np.dtype(bool), (tree.absent,)))
            return lanes.Maybe(self.value(tree.value), none)
        if isinstance(tree, Branch):
            children = map(self.value, tree.children)
            return dict(zip(tree.keys, children, strict=True)) if tree.keys else tree.type(children)
        return self._array(tree)

    def _array(self, tree: Numbers) -> Any:
        """Return an array with a lane axis, or a number that is known."""
        if not tree.shape and tree.leaves[0].is_constant:
            return tree.leaves[0].value
        shaped = np.empty((*tree.shape, 1), object)
        shaped.reshape(-1)[:] = tree.leaves
        if all(node.is_constant for node in tree.leaves):
            return settled(shaped, self.graph, tree.dtype)
        return Symbols.of(np.repeat(shaped, LANES, -1), self.graph, tree.dtype)


def leaves(form: Tree, tree: Tree, graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a tree in the order that a form of more possibilities gives them."""
    if isinstance(form, Numbers):
        assert isinstance(tree, Numbers)
        yield from tree.leaves
    elif isinstance(form, Branch):
        assert isinstance(tree, Branch)
        for one, other in zip(form.children, tree.children, strict=True):
            yield from leaves(one, other, graph)
    elif isinstance(form, Maybe):
        value = tree.value if isinstance(tree, Maybe) else tree
        if is_none(value):
            yield from (graph.zero(node.kind) for node in leaves(form.value, form.value, graph))
        else:
            yield from leaves(form.value, value, graph)
        yield absent(graph, tree)


def is_none(tree: Tree) -> bool:
    """Whether a tree is for None."""
    return isinstance(tree, Fixed) and tree.value is None


def absent(graph: Graph, tree: Tree) -> Node:
    """Return whether a tree stands for None."""
    return tree.absent if isinstance(tree, Maybe) else graph.constant(is_none(tree))


def numbers_in(tree: Tree) -> Iterator[Node]:
    """Yield the nodes of a tree that has nothing else."""
    if isinstance(tree, Numbers):
        yield from tree.leaves
    elif isinstance(tree, Branch):
        for child in tree.children:
            yield from numbers_in(child)
    else:
        raise Unbatched("step returns something else than numbers")


def replaced(tree: Tree, new: Mapping[Node, Node]) -> Tree:
    """Return a tree with other nodes; what is never None, or always, is no longer doubtful."""
    if isinstance(tree, Numbers):
        return replace(tree, leaves=tuple(new[node] for node in tree.leaves))
    if isinstance(tree, Branch):
        return replace(tree, children=tuple(replaced(child, new) for child in tree.children))
    if isinstance(tree, Maybe):
        value, none = replaced(tree.value, new), new[tree.absent]
        if none.is_constant:
            return Fixed(None) if none.value else value
        return Maybe(value, none)
    return tree
