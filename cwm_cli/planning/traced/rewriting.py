"""Expressions under an assumption."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from cwm_cli.planning.traced.graph import Graph
from cwm_cli.planning.traced.node import Node


def ordered(
    outputs: Iterable[Node], known: Mapping[Node, object] = MappingProxyType({})
) -> list[Node]:
    """Return the nodes that outputs need and that are not known, operands first."""
    found: set[Node] = set()
    waiting = [node for node in outputs if node not in known]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [operand for operand in node.operands if operand not in known]
    return sorted(found, key=lambda node: node.number)


def assuming(graph: Graph, outputs: Sequence[Node], node: Node, *, holds: bool) -> list[Node]:
    """Return outputs as they are where a node is true, or where it is false."""
    known: dict[Node, Node] = {}
    _assume(graph, node, holds, known)
    for inner in ordered(outputs, known):
        known[inner] = graph.again(inner, [known[operand] for operand in inner.operands])
    return [known[output] for output in outputs]


def _assume(graph: Graph, node: Node, holds: bool, known: dict[Node, Node]) -> None:
    """Note what follows from a node being true, or false."""
    known[node] = graph.true if holds else graph.false
    if node.operation == "logical_not":
        _assume(graph, node.operands[0], not holds, known)
    elif node.operation == ("logical_and" if holds else "logical_or"):
        for operand in node.operands:
            _assume(graph, operand, holds, known)
