"""What masks mean where all lanes are the same and none is known."""

from typing import Any

from cwm_cli.planning.batched import lanes
from cwm_cli.planning.batched.lanes import Mask
from cwm_cli.planning.traced.graph import Graph
from cwm_cli.planning.traced.node import Node
from cwm_cli.planning.traced.symbols import Symbols, nodes

UNROLLED = 4
"""How often a `while` loop goes round; a program that goes on is asked itself."""


class Masks:
    """Replaces what decides over lanes: any may be alive as long as nobody knows.

    What a program must not come to is collected: `odd` is where it does.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._before: Node | None = None
        self._rounds = 0
        self.odd = graph.false

    def replacing(self) -> Any:
        """Return a context in which programs use these masks."""
        return lanes.replaced(settled=self._settled, none_left=self._none_left, demand=self._demand)

    def taken(self) -> Node:
        """Return where the program did what it must not, and forget it."""
        odd, self.odd = self.odd, self._graph.false
        if odd is self._graph.true:
            lanes.refuse("it always fails")
        return odd

    def _settled(self, mask: Mask) -> Mask:
        """Return True or False where that is known."""
        return mask if isinstance(mask, Symbols) else _SETTLED(mask)

    def _none_left(self, mask: Mask) -> bool:
        """Leave a loop after some rounds: it is odd if it would go on."""
        if not isinstance(mask, Symbols):
            return _SETTLED(mask) is False
        node = nodes(mask)[0]
        same = self._before is not None and self._before in node.operands
        self._rounds = self._rounds + 1 if same else 0
        self._before = node
        if self._rounds < UNROLLED:
            return False
        self.odd = self._graph.either(self.odd, node)
        return True

    def _demand(self, holds: Mask, mask: Mask, reason: str) -> None:
        """Note where something does not hold."""
        broken = self._settled(lanes.without(mask, holds))
        if broken is True:
            lanes.refuse(reason)
        if isinstance(broken, Symbols):
            self.odd = self._graph.either(self.odd, nodes(broken)[0])


_SETTLED = lanes.settled
