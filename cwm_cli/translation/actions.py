"""One expression for the results of all discrete actions."""

from collections.abc import Sequence
from typing import Any

from cwm_cli.translation.expressions import Graph, TraceNode

# Constants that change no real number, to the last bit.
_NEUTRAL = {"subtract": 0.0, "add": -0.0, "multiply": 1.0, "divide": 1.0}

# Operations are compared to this depth, to find corresponding ones.
_DEPTH = 3

# A node for each action; None if the value does not matter.
Nodes = tuple[TraceNode | None, ...]


class Unifier:
    """A merger of the nodes of all actions: constants that differ become tables indexed by action.

    Args:
        graph: The graph of the nodes.
        action: The node of the action.
        actions: All actions, which are consecutive integers.
    """

    def __init__(self, graph: Graph, action: TraceNode, actions: Sequence[Any]) -> None:
        self._graph, self._place = graph, action
        if len(actions) > 1 and actions[0] != 0:
            self._place = graph.apply("subtract", action, actions[0])
        self._memo: dict[Nodes, TraceNode | None] = {}

    def unify(self, nodes: Nodes) -> TraceNode | None:
        """Return one node for the nodes of all actions."""
        if len(nodes) == 1:
            return nodes[0]
        if nodes not in self._memo:
            self._graph.count(len(nodes))
            self._memo[nodes] = self._unify(self._pad(nodes))
        return self._memo[nodes]

    def _unify(self, nodes: Nodes) -> TraceNode | None:
        present = [node for node in nodes if node is not None]
        distinct = list(dict.fromkeys(present))
        if len(distinct) < 2:
            return distinct[0] if distinct else None
        if all(node.op == "const" for node in present) and len({n.kind for n in present}) == 1:
            values = [present[0].value if node is None else node.value for node in nodes]
            return self._graph.cast(self._table(values), present[0].kind)
        if len(set(map(_head, present))) == 1 and present[0].args and _share_operand(distinct):
            return self._operation(nodes, present[0])
        # No common operation: split off the first group of equal operations by a selection.
        groups: dict[Any, list[TraceNode]] = {}
        for node in distinct:
            groups.setdefault("const" if node.op == "const" else _head(node), []).append(node)
        first = set(next(iter(groups.values()))) if len(groups) > 1 else {distinct[0]}
        mask = self._table([node in first for node in nodes])
        one = self.unify(tuple(node if node in first else None for node in nodes))
        other = self.unify(tuple(None if node in first else node for node in nodes))
        assert one is not None and other is not None
        return self._graph.apply("select", mask, one, other)

    def _table(self, values: Sequence[Any]) -> TraceNode:
        return self._graph.gather(values, self._place)

    def _operation(self, nodes: Nodes, first: TraceNode) -> TraceNode:
        """Return one operation on unified operands."""
        args = []
        for place in range(len(first.args)):
            arg = self.unify(tuple(None if node is None else node.args[place] for node in nodes))
            assert arg is not None
            args.append(arg)
        if first.op == "gather":
            return self._graph.gather(first.value, args[0])
        if first.op in ("whole", "real", "single", "isnan"):
            return self._graph.make(first.op, tuple(args), first.kind)
        return self._graph.apply(first.op, *args)

    def _pad(self, nodes: Nodes) -> Nodes:
        """Add a neutral operation to nodes that lack an operation with a constant.

        So `x + 1` for one action and `x` for another become `x + 1` and `x + -0.0`.
        """
        present = [node for node in dict.fromkeys(nodes) if node is not None]
        if len(present) < 2:
            return nodes
        for model in present:
            if model.op not in _NEUTRAL or model.kind != "f" or model.args[1].op != "const":
                continue
            if model.args[0].op in ("const", "symbol"):
                continue
            inner = _signature(model.args[0])
            if any(node.kind == "f" and _signature(node) == inner for node in present):
                neutral = self._graph.const(_NEUTRAL[model.op])
                return tuple(
                    self._graph.make(model.op, (node, neutral), "f")
                    if node is not None and node.kind == "f" and _signature(node) == inner
                    else node
                    for node in nodes
                )
        return nodes


def _head(node: TraceNode) -> Any:
    return node.op, len(node.args), node.kind, repr(node.value)


def _share_operand(nodes: Sequence[TraceNode]) -> bool:
    """Return whether an operand has the same operation and kind in all nodes."""
    return any(
        len({(node.args[place].op, node.args[place].kind) for node in nodes}) == 1
        for place in range(len(nodes[0].args))
    )


def _signature(node: TraceNode, depth: int = _DEPTH) -> Any:
    if node.op == "const":
        return "c"
    if node.op in ("symbol", "action"):
        return node.value
    return (node.op, *[_signature(arg, depth - 1) for arg in node.args]) if depth else node.op
