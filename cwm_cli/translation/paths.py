"""Symbolic execution: both outcomes of an open decision are explored, each on its own path.

On a path, decisions become facts about symbolic numbers, and comparisons narrow their ranges
(interval arithmetic).
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cwm_cli.translation.expressions import Graph, TraceNode, Unsupported, topological_order

MAX_VALUES = 64  # of an integer, for a fork with one path per value

# Larger numbers of states, observations and actions are left to the program. So the product of a
# few numbers never exceeds the range of double precision, single precision or 64-bit integers.
LIMITS = {"f": 1e30, "s": 1e9, "i": 2.0**31, "b": 1.0}

Range = tuple[float, float]
T = TypeVar("T")
Decision = tuple[TraceNode, bool]
# The decisions of a path, its fallback condition, and its result or exception.
PathResult = tuple[list[Decision], TraceNode | None, Any]

ROUNDINGS = {"floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "rint": round}


class AbandonedPath(BaseException):
    """The program itself computes this path."""


class Path:
    """The facts on one path through a program that is being traced.

    `fallback` is the condition under which the program itself computes the step, because it raises
    or because plain numbers and arrays behave differently. `cache` contains the results of regions
    on this path and on paths with the same first decisions.
    """

    def __init__(
        self, prefix: Sequence[bool], parent: "Path | None", known: dict[Any, Any] | None = None
    ) -> None:
        self.prefix, self.decisions = prefix, list[Decision]()
        self.cache = {} if known is None else known
        self._region_count = 0
        # A path inside a region starts with the facts of the path around it.
        self.facts: dict[TraceNode, bool] = dict(parent.facts) if parent else {}
        self.bounds: dict[TraceNode, Range] = dict(parent.bounds) if parent else {}
        self.ranges: dict[TraceNode, Range] = dict(parent.ranges) if parent else {}
        self.counts: Counter[int] = Counter(parent.counts) if parent else Counter()
        self.fallback: TraceNode | None = None

    def next_region(self) -> Any:
        """Return a key for the next region; paths share it until their decisions differ."""
        self._region_count += 1
        return self._region_count, tuple([choice for _, choice in self.decisions])


class Tracer:
    """The graph of a program, and the path that is being traced.

    `constants` are the identities of containers that the program must not change. With
    `exact_types`, numbers of Python and of NumPy are never merged, because they are rounded
    differently in operations with single precision.
    """

    def __init__(
        self, progress: Callable[[], None] = lambda: None, *, exact_types: bool = False
    ) -> None:
        self.graph = Graph(progress)
        self.exact_types = exact_types
        self.path: Path | None = None
        self.bounds: dict[TraceNode, Range] = {}
        self.constants: set[int] = set()
        self.depth = 0
        self._ranges: dict[TraceNode, Range] = {}
        self._assumed: dict[TraceNode, Range] = {}

    def assume(self, node: TraceNode, low: float, high: float) -> None:
        """Assume a range on this path; the caller has added a fallback for values outside it."""
        self._assumed[node] = low, high
        self._narrow(node, low, high)

    def bound(self, symbol: TraceNode, low: float, high: float) -> None:
        """Set the range of a symbol."""
        self.bounds[symbol] = low, high
        self._ranges = {}

    def range(self, node: TraceNode) -> Range:
        """Return the lowest and highest possible value of a number, which may be infinite."""
        if node.op == "const":
            return node.value, node.value
        memo = self.path.ranges if self.path else self._ranges
        results = memo.get(node)
        if results is None:
            for each in topological_order([node], memo):
                if each.op != "const":
                    self.graph.count()
                    memo[each] = self._compute_range(each)
            results = memo[node]
        return results

    def range_before_assumptions(self, node: TraceNode) -> Range:
        """Return the range of a number, without the one assumed for the number itself."""
        ranges = [self.range(arg) for arg in node.args]
        try:
            low, high = compute_range(node, ranges)
        except (ArithmeticError, ValueError):
            low, high = -math.inf, math.inf
        if math.isnan(low) or math.isnan(high):
            low, high = -math.inf, math.inf
        for known in (self.bounds.get(node), self.path and self.path.bounds.get(node)):
            if known:
                low, high = max(low, known[0]), min(high, known[1])
        return low, high

    def _compute_range(self, node: TraceNode) -> Range:
        low, high = self.range_before_assumptions(node)
        assumed = self._assumed.get(node) if self.path else None
        return (max(low, assumed[0]), min(high, assumed[1])) if assumed else (low, high)

    def truth(self, node: TraceNode) -> bool | None:
        """Return whether a condition holds on this path, or None if both are possible."""
        if node.op == "const":
            return bool(node.value)
        facts = self.path.facts if self.path else {}
        if node in facts:
            return facts[node]
        if node.op == "logical_not":
            inner = self.truth(node.args[0])
            return None if inner is None else not inner
        if node.op in ("logical_and", "logical_or"):
            deciding = node.op == "logical_or"
            known = [self.truth(arg) for arg in node.args]
            if deciding in known:
                return deciding
            return None if None in known else not deciding
        return self._decide_comparison(node) if node.op in ("less", "equal") else None

    def _decide_comparison(self, node: TraceNode) -> bool | None:
        (a, b), (c, d) = self.range(node.args[0]), self.range(node.args[1])
        if node.op == "less":
            return True if b < c else False if a >= d else None
        if b < c or d < a:
            return False
        return True if a == b == c == d else None

    def learn(self, node: TraceNode, value: bool) -> None:
        """Add a fact to this path, with the facts that follow from it."""
        path = self.path
        assert path is not None
        path.facts[node] = value
        if node.op == "logical_not":
            self.learn(node.args[0], not value)
        elif node.op == ("logical_and" if value else "logical_or"):
            for arg in node.args:
                self.learn(arg, value)
        elif node.op == "equal":
            self._learn_equal(node.args[0], node.args[1], value)
        elif node.op == "less":
            self._learn_less(node.args[0], node.args[1], value)

    def _learn_equal(self, x: TraceNode, y: TraceNode, value: bool) -> None:
        (low, high), (low2, high2) = self.range(x), self.range(y)
        if value:
            both = max(low, low2), min(high, high2)
            self._narrow(x, *both)
            self._narrow(y, *both)
        elif y.op == "const" and x.kind == "i":  # a whole number at the end of its range
            self._narrow(x, low + (low == y.value), high - (high == y.value))

    def _learn_less(self, x: TraceNode, y: TraceNode, value: bool) -> None:
        (low, high), (low2, high2) = self.range(x), self.range(y)
        if value:
            gap = 1 if x.kind == y.kind == "i" else 0
            self._narrow(x, low, min(high, high2 - gap))
            self._narrow(y, max(low2, low + gap), high2)
            assert self.path is not None
            self.path.facts[self.graph.apply("less", y, x)] = False
            self.path.facts[self.graph.apply("equal", x, y)] = False
        else:
            self._narrow(x, max(low, low2), high)
            self._narrow(y, low2, min(high2, high))

    def _narrow(self, node: TraceNode, low: float, high: float) -> None:
        """Narrow a range, and discard the ranges that were computed from it."""
        path = self.path
        assert path is not None
        if node.op == "const" or (low, high) == path.ranges.get(node):
            return
        path.bounds[node] = low, high
        ranges = path.ranges
        stack = [node]
        while stack:
            each = stack.pop()
            if ranges.pop(each, None) is not None:
                self.graph.count()
                stack += [user for user in each.users if user in ranges]

    def decide(self, node: TraceNode) -> bool:
        """Return whether a condition holds; if both are possible, fork the path."""
        node = self.graph.cast(node, "b")
        known = self.truth(node)
        if known is not None:
            return known
        path = self.path
        if path is None:
            raise Unsupported("a decision outside of a step")
        number = len(path.decisions)
        choice = path.prefix[number] if number < len(path.prefix) else True
        path.decisions.append((node, choice))
        if number >= 200:  # the prefixes of all paths would fill the memory
            raise Unsupported("too many decisions")
        self.learn(node, choice)
        return choice

    def fork_on_value(self, node: TraceNode) -> int:
        """Return an integer as a plain value, after forking over all possible values."""
        if node.op == "const" and node.kind in "bi":
            return int(node.value)
        if node.kind not in "bi":
            raise Unsupported("a real number is an index or key")
        if node.op == "gather":
            values: Sequence[int] = sorted(set(node.value))
        else:
            low, high = self.range(node)
            if not high - low < MAX_VALUES:
                raise Unsupported("a whole number without small bounds is an index or key")
            values = range(int(low), int(high) + 1)
        for value in values:
            if self.decide(self.graph.apply("equal", node, value)):
                return value
        raise AbandonedPath("no value is left")

    def explore(
        self, run: Callable[[], Any], before: Callable[[], None] = lambda: None
    ) -> list[PathResult]:
        """Run a function on every path through it.

        Args:
            run: The function.
            before: Called before each run, for example to restore containers.
        """
        results: list[PathResult] = []
        waiting: list[list[bool]] = [[]]
        parent, known = self.path, dict[Any, Any]()
        while waiting:
            prefix = waiting.pop()
            self.graph.count(50)
            if len(results) >= 256:  # more paths would take seconds
                raise Unsupported("too many paths")
            self.path = path = Path(prefix, parent, known)
            try:
                before()
                result = run()
            except (Exception, AbandonedPath) as error:  # noqa: BLE001  # what the program raises
                result = error
            finally:
                self.path = parent
            # Each new decision of this run took the first outcome: queue a run for the second.
            for number in range(len(prefix), len(path.decisions)):
                decisions = [choice for _, choice in path.decisions[: number + 1]]
                waiting.append([*decisions[:-1], not decisions[-1]])
            results.append((path.decisions, path.fallback, result))
        return results

    def fall_back_if(self, where: TraceNode | None) -> None:
        """Leave the step to the program if a condition holds; None means never."""
        if where is not None and self.path is not None and self.truth(where) is not False:
            self.path.fallback = self.graph.either(self.path.fallback, where)


def merge_by_decisions(
    results: Sequence[tuple[list[Decision], T]],
    merge: Callable[[TraceNode, T, T], T],
    depth: int = 0,
) -> T:
    """Merge the results of paths, from the leaves of the tree of their decisions."""
    if len(results) == 1:
        return results[0][1]
    node = results[0][0][depth][0]
    sides = [[each for each in results if each[0][depth][1] is side] for side in (True, False)]
    if not all(sides):
        return merge_by_decisions(sides[0] or sides[1], merge, depth + 1)
    one, other = (merge_by_decisions(side, merge, depth + 1) for side in sides)
    return merge(node, one, other)


_RANGES = {
    **dict.fromkeys(("sin", "cos", "tanh"), (-1.0, 1.0)),
    **dict.fromkeys(("sqrt", "exp", "hypot"), (0.0, math.inf)),
    # Pi, also in single precision.
    **dict.fromkeys(("arctan2", "arctan"), (-3.1415927411, 3.1415927411)),
}


def compute_range(  # noqa: C901, PLR0912  # a case for each operation
    node: TraceNode, ranges: Sequence[Range]
) -> Range:
    """Return the range of an operation; rounding never crosses a bound of the exact result.

    Bounds are computed in the same rounding as the numbers, which is monotonic.
    """
    op = node.op
    low, high = (0.0, 1.0) if node.kind == "b" else (-math.inf, math.inf)
    if not ranges:
        return low, high
    (a, b), (c, d) = ranges[0], ranges[-1]
    if op == "multiply" and node.args[0] is node.args[1]:
        low, high = (0.0 if a < 0 < b else min(a * a, b * b)), max(a * a, b * b)
    elif op == "add":
        low, high = a + c, b + d
    elif op == "subtract":
        low, high = a - d, b - c
    elif op == "multiply" or (op == "divide" and (c > 0 or d < 0)):
        if op == "divide":
            corners = [x / y for x in (a, b) for y in (c, d)]
        else:  # 0 * inf is 0 here, because infinity stands for a large number
            corners = [x * y if x and y else 0.0 for x in (a, b) for y in (c, d)]
        if not any(map(math.isnan, corners)):
            low, high = min(corners), max(corners)
    elif op == "power" and node.args[1].op == "const" and node.args[1].value % 2 == 0:
        low = 0.0
    elif op == "negative":
        low, high = -b, -a
    elif op == "absolute":
        low, high = max(0.0, a, -b), max(abs(a), abs(b))
    elif op == "sign":
        low, high = float((a > 0) - (a < 0)), float((b > 0) - (b < 0))
    elif op == "remainder" and c == d > 0:
        low, high = 0.0, d - (node.kind == "i")
    elif op == "floor_divide" and c == d > 0 and node.kind == "i":
        low, high = (x if math.isinf(x) else x // c for x in (a, b))
    elif op == "minimum":
        low, high = min(a, c), min(b, d)
    elif op == "maximum":
        low, high = max(a, c), max(b, d)
    elif op == "select":
        (a, b) = ranges[1]
        low, high = min(a, c), max(b, d)
    elif op == "gather":
        low, high = min(node.value), max(node.value)
    elif op in ("real", "whole", *ROUNDINGS):
        turn: Any = {"real": float, "whole": math.trunc, **ROUNDINGS}[op]
        low, high = (x if math.isinf(x) else turn(x) for x in (a, b))
    elif op in _RANGES:
        low, high = _RANGES[op]
    if node.kind == "s":
        # Single precision rounds the bounds to 24 bits.
        margin, largest = 1e-6 * max(abs(low), abs(high), 1e-30), 3.4e38
        low = low - margin if low > -largest else -math.inf
        high = high + margin if high < largest else math.inf
    return low, high
