"""Simpler expressions of exactly the same value."""

from typing import TYPE_CHECKING

from cwm_cli.planning.traced.node import Node

if TYPE_CHECKING:
    from cwm_cli.planning.traced.graph import Graph

_EXTREMES = {
    ("greater", False): "minimum",
    ("less", False): "maximum",
    ("greater", True): "maximum",
    ("less", True): "minimum",
}
"""What `c if x > c else x` and the like are, by the comparison and whether c comes first."""


def simplified(
    graph: "Graph", operation: str, operands: tuple[Node, ...], kind: str
) -> Node | None:
    """Return a simpler node, if one is known."""
    if operation == "select":
        return _select(graph, *operands)
    if operation in ("logical_and", "logical_or"):
        return _logical(graph, operation, *operands)
    if operation == "logical_not" and operands[0].operation == "logical_not":
        return operands[0].operands[0]
    if operation in ("float", "int") and operands[0].kind == operation[0]:
        return operands[0]
    return _arithmetic(graph, operation, operands, kind)


def _select(graph: "Graph", condition: Node, chosen: Node, other: Node) -> Node | None:
    """Simplify a choice: of one thing, of what is known, of what was chosen before."""
    if condition.is_constant:
        return chosen if condition.value else other
    if condition.operation == "logical_not":
        return graph.select(condition.operands[0], other, chosen)
    shorter = _under(condition, chosen, 1), _under(condition, other, 2)
    if shorter != (chosen, other):
        return graph.select(condition, *shorter)
    if chosen is other:
        return chosen
    if chosen.kind == other.kind == "b":
        yes, no = graph.both(condition, chosen), graph.both(graph.invert(condition), other)
        return graph.either(yes, no) if chosen.is_constant or other.is_constant else None
    return _extreme(graph, condition, chosen, other)


def _under(condition: Node, node: Node, branch: int) -> Node:
    """Return what a node is where a condition is known."""
    known = node.operation == "select" and node.operands[0] is condition
    return node.operands[branch] if known else node


def _extreme(graph: "Graph", condition: Node, chosen: Node, other: Node) -> Node | None:
    """Return a minimum or maximum; where the other is not a number, both are not."""
    if not chosen.is_constant or chosen.kind != other.kind:
        return None
    for pair, is_first in (((other, chosen), False), ((chosen, other), True)):
        name = _EXTREMES.get((condition.operation, is_first))
        if name and condition.operands == pair:
            return graph.apply(name, other, chosen, kind=other.kind)
    return None


def _logical(graph: "Graph", operation: str, one: Node, other: Node) -> Node | None:
    """Simplify a conjunction or disjunction."""
    decisive = operation == "logical_or"
    opposite = "logical_and" if decisive else "logical_or"
    for node, rest in ((one, other), (other, one)):
        if node.is_constant:
            return node if node.value == decisive else rest
        if graph.invert(node) is rest:
            return graph.true if decisive else graph.false
        if node is rest or (rest.operation == opposite and node in rest.operands):
            return node
        if rest.operation == operation and node in rest.operands:
            return rest
    return None


def _arithmetic(
    graph: "Graph", operation: str, operands: tuple[Node, ...], kind: str
) -> Node | None:
    """Drop what does nothing, square by a product, put constants last in extremes."""
    one, last = operands[0], operands[-1]
    if operation in ("minimum", "maximum"):
        if one is last:
            return one
        return graph.apply(operation, last, one, kind=kind) if one.is_constant else None
    if operation == "power" and last.is_constant and last.value == 2:
        return graph.apply("multiply", one, one, kind=kind)
    if operation in ("multiply", "add") and one.is_constant:
        return _neutral(operation, last, one, kind)
    if operation in ("multiply", "add", "subtract", "divide", "power") and last.is_constant:
        return _neutral(operation, one, last, kind)
    return None


def _neutral(operation: str, node: Node, constant: Node, kind: str) -> Node | None:
    """Return the node where the constant changes nothing: -0.0 + 0.0 is another number."""
    if operation in ("add", "subtract"):
        exact = constant.value == 0 and (operation == "subtract" or node.kind == "i")
    else:
        exact = constant.value == 1
    return node if exact and node.kind == kind else None
