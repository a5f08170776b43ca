"""Paths through a program: decisions are tried both ways, what is decided becomes known."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cwm_cli.translation.expressions import Graph, Refused, TraceNode

MOST_PATHS, MOST_DECISIONS, MOST_VALUES = 256, 200, 64
"""Of a region of a program; decisions of one path; values of a whole number to fork over."""

LIMITS = {"f": 1e30, "s": 1e9, "i": 2.0**31, "b": 1.0}
"""Numbers of states, observations and actions are below this by kind, or the program answers.

So no product of a few of them leaves the range of doubles, of singles or of 64 bits.
"""

_LARGEST_SINGLE = 3.4e38

Range = tuple[float, float]
T = TypeVar("T")
Decision = tuple[TraceNode, bool]
Found = tuple[list[Decision], tuple[TraceNode | None, TraceNode | None], Any]
"""The decisions of a path, where it is left to the program, and its result or exception."""

ROUNDED = {"floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "rint": round}


class Abandoned(BaseException):
    """A path that is left to the program."""


class Path:
    """What is known on the way to where a program is being traced.

    `odd` is where the program does something else, `soft` where plain numbers
    fail and arrays go on. `known` is what regions came to on this path and those that
    began like it.
    """

    def __init__(
        self, prefix: Sequence[bool], parent: "Path | None", known: dict[Any, Any] | None = None
    ) -> None:
        self.prefix, self.taken = prefix, list[Decision]()
        self.known = {} if known is None else known
        self._regions = 0
        self.facts: dict[TraceNode, bool] = dict(parent.facts) if parent else {}
        self.bounds: dict[TraceNode, Range] = dict(parent.bounds) if parent else {}
        self.ranges: dict[TraceNode, Range] = dict(parent.ranges) if parent else {}
        self.counts: Counter[int] = Counter(parent.counts) if parent else Counter()
        self.odd: TraceNode | None = None
        self.soft: TraceNode | None = None

    def region(self) -> Any:
        """Return the name of the next region: other paths come by the same one until they part."""
        self._regions += 1
        return self._regions, tuple([choice for _, choice in self.taken])


class Tracer:
    """The graph, and the path on which a program is.

    `constants` are the identities of containers that nobody may change. Where
    `exact_types` are asked for, numbers of Python and of numpy are never merged:
    beside single precision they are rounded in other ways.
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
        """Trace on as if a number lay between bounds; where it does not has been noted."""
        self._assumed[node] = low, high
        self._limit(node, low, high)

    def bound(self, symbol: TraceNode, low: float, high: float) -> None:
        """Say between what a symbol lies."""
        self.bounds[symbol] = low, high
        self._ranges = {}

    def range(self, node: TraceNode) -> Range:
        """Return between what a number lies, infinite where that is possible."""
        if node.op == "const":
            return node.value, node.value
        memo = self.path.ranges if self.path else self._ranges
        found = memo.get(node)
        if found is None:
            for each in _unknown(node, memo):
                self.graph.count()
                memo[each] = self._found(each)
            found = memo[node]
        return found

    def unassumed(self, node: TraceNode) -> Range:
        """Return the range of a number without what was assumed elsewhere."""
        ranges = [self.range(arg) for arg in node.args]
        try:
            low, high = computed(node, ranges)
        except (ArithmeticError, ValueError):
            low, high = -math.inf, math.inf
        if math.isnan(low) or math.isnan(high):
            low, high = -math.inf, math.inf
        for known in (self.bounds.get(node), self.path and self.path.bounds.get(node)):
            if known:
                low, high = max(low, known[0]), min(high, known[1])
        return low, high

    def _found(self, node: TraceNode) -> Range:
        """Return the range of a node of which those of the operands are known."""
        low, high = self.unassumed(node)
        assumed = self._assumed.get(node) if self.path else None
        return (max(low, assumed[0]), min(high, assumed[1])) if assumed else (low, high)

    def truth(self, node: TraceNode) -> bool | None:
        """Return whether something holds, None where that is not known."""
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
        return self._compared(node) if node.op in ("less", "equal") else None

    def _compared(self, node: TraceNode) -> bool | None:
        """Decide a comparison by ranges."""
        (a, b), (c, d) = self.range(node.args[0]), self.range(node.args[1])
        if node.op == "less":
            return True if b < c else False if a >= d else None
        if b < c or d < a:
            return False
        return True if a == b == c == d else None

    def learn(self, node: TraceNode, value: bool) -> None:
        """Take a truth for known on this path."""
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
            self._limit(x, *both)
            self._limit(y, *both)
        elif y.op == "const" and x.kind == "i":  # a whole number at the end of its range
            self._limit(x, low + (low == y.value), high - (high == y.value))

    def _learn_less(self, x: TraceNode, y: TraceNode, value: bool) -> None:
        (low, high), (low2, high2) = self.range(x), self.range(y)
        if value:
            gap = 1 if x.kind == y.kind == "i" else 0
            self._limit(x, low, min(high, high2 - gap))
            self._limit(y, max(low2, low + gap), high2)
            assert self.path is not None
            self.path.facts[self.graph.apply("less", y, x)] = False
            self.path.facts[self.graph.apply("equal", x, y)] = False
        else:
            self._limit(x, max(low, low2), high)
            self._limit(y, low2, min(high2, high))

    def _limit(self, node: TraceNode, low: float, high: float) -> None:
        """Narrow a range, and forget the ranges that follow from it."""
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
        """Return whether something holds; where that is open, on each of two paths."""
        node = self.graph.cast(node, "b")
        known = self.truth(node)
        if known is not None:
            return known
        path = self.path
        if path is None:
            raise Refused("a decision outside of a step")
        number = len(path.taken)
        choice = path.prefix[number] if number < len(path.prefix) else True
        path.taken.append((node, choice))
        if number >= MOST_DECISIONS:
            raise Refused("too many decisions")
        self.learn(node, choice)
        return choice

    def value_of(self, node: TraceNode) -> int:
        """Fork over the values of a whole number; the program goes on with a plain one."""
        if node.op == "const" and node.kind in "bi":
            return int(node.value)
        if node.kind not in "bi":
            raise Refused("a real number is an index or key")
        if node.op == "gather":
            values: Sequence[int] = sorted(set(node.value))
        else:
            low, high = self.range(node)
            if not high - low < MOST_VALUES:
                raise Refused("a whole number without small bounds is an index or key")
            values = range(int(low), int(high) + 1)
        for value in values:
            if self.decide(self.graph.apply("equal", node, self.graph.const(value))):
                return value
        raise Abandoned("no value is left")

    def explore(
        self, run: Callable[[], Any], before: Callable[[], None] = lambda: None
    ) -> list[Found]:
        """Run a function on all paths through it."""
        found: list[Found] = []
        waiting: list[list[bool]] = [[]]
        parent, known = self.path, dict[Any, Any]()
        while waiting:
            prefix = waiting.pop()
            self.graph.count(50)
            if len(found) >= MOST_PATHS:
                raise Refused("too many paths")
            self.path = path = Path(prefix, parent, known)
            try:
                before()
                result = run()
            except (Exception, Abandoned) as error:  # noqa: BLE001  # what the program raises
                result = error
            finally:
                self.path = parent
            for number in range(len(prefix), len(path.taken)):
                decisions = [choice for _, choice in path.taken[: number + 1]]
                waiting.append([*decisions[:-1], not decisions[-1]])
            found.append((path.taken, (path.odd, path.soft), result))
        return found

    def note(self, where: TraceNode | None, *, soft: bool = False) -> None:
        """Leave some of what comes this way to the program."""
        if where is None or self.path is None or self.truth(where) is False:
            return
        if soft:
            self.leave(where)
        else:
            self.path.odd = self.graph.either(self.path.odd, where)

    def leave(self, where: TraceNode) -> None:
        """Leave it to the program where arrays would go on, whatever was assumed before."""
        assert self.path is not None
        self.path.soft = self.graph.either(self.path.soft, where)


def merged_by_decisions(
    found: Sequence[tuple[list[Decision], T]], merge: Callable[[TraceNode, T, T], T], depth: int = 0
) -> T:
    """Merge what belongs to paths, from the leaves of the tree of their decisions."""
    if len(found) == 1:
        return found[0][1]
    node = found[0][0][depth][0]
    sides = [[each for each in found if each[0][depth][1] is side] for side in (True, False)]
    if not all(sides):
        return merged_by_decisions(sides[0] or sides[1], merge, depth + 1)
    one, other = (merged_by_decisions(side, merge, depth + 1) for side in sides)
    return merge(node, one, other)


def _unknown(node: TraceNode, memo: dict[TraceNode, Range]) -> list[TraceNode]:
    """Return the nodes under one whose ranges are not known, operands first."""
    out, stack, seen = [], [(node, False)], set()
    while stack:
        each, done = stack.pop()
        if done:
            out.append(each)
        elif each not in seen and each not in memo and each.op != "const":
            seen.add(each)
            stack.append((each, True))
            stack += [(arg, False) for arg in each.args]
    return out


def computed(  # noqa: C901, PLR0912  # a case for each operation
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
    elif op in ("add", "subtract", "multiply"):
        low, high = _arithmetic(op, (a, b), (c, d))
    elif op == "divide" and (c > 0 or d < 0):
        corners = [x / y for x in (a, b) for y in (c, d)]
        low, high = min(corners), max(corners)
        if any(map(math.isnan, corners)):
            low, high = -math.inf, math.inf
    elif op == "power" and node.args[1].op == "const" and node.args[1].value % 2 == 0:
        low = 0.0
    elif op in ("negative", "absolute", "sign"):
        low, high = _signed(op, a, b)
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
    elif op in ("real", "whole", *ROUNDED):
        turn: Any = {"real": float, "whole": math.trunc, **ROUNDED}[op]
        low, high = (x if math.isinf(x) else turn(x) for x in (a, b))
    elif op in ("sin", "cos", "tanh"):
        low, high = -1.0, 1.0
    elif op in ("sqrt", "exp", "hypot"):
        low = 0.0
    elif op in ("arctan2", "arctan"):
        low, high = -3.1415927411, 3.1415927411  # pi, also in single precision
    if node.kind == "s":
        margin = 1e-6 * max(abs(low), abs(high), 1e-30)  # of rounding to 24 bits
        low = low - margin if low > -_LARGEST_SINGLE else -math.inf
        high = high + margin if high < _LARGEST_SINGLE else math.inf
    return low, high


def _arithmetic(op: str, left: Range, right: Range) -> Range:
    (a, b), (c, d) = left, right
    if op == "add":
        return a + c, b + d
    if op == "subtract":
        return a - d, b - c
    corners = [x * y if x and y else 0.0 for x in (a, b) for y in (c, d)]
    return min(corners), max(corners)


def _signed(op: str, a: float, b: float) -> Range:
    if op == "negative":
        return -b, -a
    if op == "absolute":
        return max(0.0, a, -b), max(abs(a), abs(b))
    return float((a > 0) - (a < 0)), float((b > 0) - (b < 0))
