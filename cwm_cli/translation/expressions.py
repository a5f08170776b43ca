"""A graph of operations on symbolic numbers; equal operations share a node.

The kind of a node is `b` (truth), `i` (64-bit integer), `s` (single precision) or `f` (double
precision). No node is NaN: if an operation could result in NaN, the program itself computes the
step (see `numbers`).
"""

import math
import operator
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

# A larger program would take more than a second to compile.
MAX_NODES = 12_000

# Operations visited while a program is traced; this many take one or two seconds.
MAX_WORK = 300_000


class Unsupported(BaseException):
    """A program cannot be translated, for the reason in the text.

    It is a BaseException, so that the program cannot catch it with `except Exception`.
    """


class AmbiguousType(Unsupported):
    """A merged number is Python's on one path and NumPy's on another, and the result differs."""


class TraceNode:
    """An operation on other nodes; constants, symbols and tables have a `value`."""

    __slots__ = ("args", "kind", "number", "op", "users", "value")

    def __init__(self, op: str, args: tuple["TraceNode", ...], kind: str, value: Any, number: int):
        self.op, self.args, self.kind, self.value, self.number = op, args, kind, value, number
        self.users: list[TraceNode] = []

    def __repr__(self) -> str:
        return f"{self.op}{self.number}"


class Operation(NamedTuple):
    """The kind of the result, and templates in plain Python and in NumPy.

    The kind `n` means the kind of the operands.
    """

    kind: str
    plain: str
    lanes: str


# Functions of one real number, by NumPy's names.
FUNCTIONS = (
    *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
    *("arcsinh", "arccosh", "arctanh", "exp", "expm1", "log", "log2", "log10", "log1p"),
    *("sqrt", "cbrt"),
)

MATH_NAMES = {name: name.replace("arc", "a") for name in FUNCTIONS}

OPERATIONS = {
    name: Operation(kind, plain, lanes)
    for name, kind, plain, lanes in (
        ("add", "n", "({0} + {1})", "({0} + {1})"),
        ("subtract", "n", "({0} - {1})", "({0} - {1})"),
        ("multiply", "n", "({0} * {1})", "({0} * {1})"),
        ("divide", "f", "({0} / {1})", "({0} / {1})"),
        ("floor_divide", "n", "({0} // {1})", "({0} // {1})"),
        ("remainder", "n", "({0} % {1})", "np.remainder({0}, {1})"),
        ("fmod", "n", "fmod({0}, {1})", "np.fmod({0}, {1})"),
        ("power", "n", "({0} ** {1})", "np.power({0}, {1})"),
        ("negative", "n", "(-{0})", "(-{0})"),
        ("absolute", "n", "abs({0})", "np.abs({0})"),
        ("sign", "n", "(({0} > 0) - ({0} < 0))", "np.sign({0})"),
        ("minimum", "n", "({1} if {1} < {0} else {0})", "np.minimum({0}, {1})"),
        ("maximum", "n", "({1} if {1} > {0} else {0})", "np.maximum({0}, {1})"),
        ("equal", "b", "({0} == {1})", "({0} == {1})"),
        ("less", "b", "({0} < {1})", "({0} < {1})"),
        ("logical_and", "b", "({0} and {1})", "({0} & {1})"),
        ("logical_or", "b", "({0} or {1})", "({0} | {1})"),
        ("logical_not", "b", "(not {0})", "np.logical_not({0})"),
        ("isfinite", "b", "isfinite({0})", "np.isfinite({0})"),
        ("isnan", "b", "({0} != {0})", "np.isnan({0})"),
        ("select", "n", "({1} if {0} else {2})", "np.where({0}, {1}, {2})"),
        ("real", "f", "float({0})", "np.asarray({0}, float)"),
        ("single", "s", "unpack(pack({0}))[0]", "np.float32({0})"),
        ("whole", "i", "int({0})", "np.asarray({0}).astype(np.int64)"),
        ("floor", "n", "float(floor({0}))", "np.floor({0})"),
        ("ceil", "n", "float(ceil({0}))", "np.ceil({0})"),
        ("trunc", "n", "float(int({0}))", "np.trunc({0})"),
        ("rint", "n", "float(round({0}))", "np.rint({0})"),
        ("arctan2", "f", "atan2({0}, {1})", "np.arctan2({0}, {1})"),
        ("hypot", "f", "hypot({0}, {1})", "np.hypot({0}, {1})"),
        ("copysign", "f", "copysign({0}, {1})", "np.copysign({0}, {1})"),
        ("gather", "n", "{t}[{0}]", "{t}[{0}]"),
        *((name, "f", f"{MATH_NAMES[name]}({{0}})", f"np.{name}({{0}})") for name in FUNCTIONS),
    )
}

_ROUNDING = ("floor", "ceil", "trunc", "rint")
_NUMPY_TYPES: dict[str, Callable[[Any], Any]] = {
    "b": np.bool_,
    "i": int,
    "s": np.float32,
    "f": np.float64,
}
PYTHON_TYPES: dict[str, Callable[[Any], Any]] = {"b": bool, "i": int, "s": float, "f": float}


def kind_of(value: Any) -> str:
    """Return the kind of a Python or NumPy number."""
    if isinstance(value, bool | np.bool_):
        return "b"
    if isinstance(value, int | np.int64):
        return "i"
    if isinstance(value, np.float32):
        return "s"
    if isinstance(value, float):
        return "f"
    raise Unsupported(f"it computes with a {type(value).__name__}")


def promote_kinds(kinds: Iterable[str]) -> str:
    """Return the kind of a result from the kinds of its operands, as NumPy promotes them."""
    found = set(kinds)
    if found >= {"i", "s"}:
        return "f"
    return next(kind for kind in "fsib" if kind in found)


def is_nan(node: TraceNode) -> bool:
    """Return whether a node is the constant NaN."""
    return node.op == "const" and _is_nan(node.value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and math.isnan(value)


class Graph:
    """A factory of nodes that folds constants and simplifies exactly.

    `names` has the first variable of the program that had the value of a node.
    """

    def __init__(self, progress: Callable[[], None] = lambda: None) -> None:
        self._nodes: dict[Any, TraceNode] = {}
        self.work, self._reported, self._progress = 0, 0, progress
        self.names: dict[TraceNode, str] = {}
        self.false = self.const(False)

    def make(self, op: str, args: tuple[TraceNode, ...], kind: str, value: Any = None) -> TraceNode:
        """Return the node of an operation without simplifying it.

        Ranges and comparisons are not valid for NaN. Therefore a comparison of a symbolic number
        with NaN is False, and every other operation raises `Unsupported`.
        """
        self.count()
        if any(map(is_nan, args)) or (op == "gather" and value and any(map(_is_nan, value))):
            if op in ("less", "equal"):
                return self.false
            raise Unsupported("an unknown value next to a value that is not a number")
        # The text of a value tells 0.0 from -0.0 and 1 from True, which are equal.
        key = (op, tuple([arg.number for arg in args]), kind, repr(value))
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = TraceNode(op, args, kind, value, len(self._nodes))
            for arg in args:
                arg.users.append(node)
            if len(self._nodes) > MAX_NODES:
                raise Unsupported("too many operations")
        return node

    def count(self, work: int = 1) -> None:
        """Add work to the total, and raise `Unsupported` beyond `MAX_WORK`."""
        self.work += work
        if self.work - self._reported > 5_000:  # takes some hundredths of a second
            self._reported = self.work
            self._progress()
            if self.work > MAX_WORK:
                raise Unsupported("tracing takes too long")

    def const(self, value: Any, kind: str = "") -> TraceNode:
        """Return the node of a constant."""
        kind = kind or kind_of(value)
        value = PYTHON_TYPES[kind](value)
        if kind == "i" and abs(value) > 2**62:  # arrays of integers have 64 bits
            raise Unsupported("large whole numbers")
        return self.make("const", (), kind, value)

    def cast(self, node: TraceNode, kind: str) -> TraceNode:
        """Return a number converted to another kind."""
        if node.kind == kind:
            return node
        if node.op == "const":
            if kind == "s":
                return self.const(float(np.float32(node.value)), "s")
            if kind == "i" and not math.isfinite(node.value):
                return self.make("whole", (node,), "i")
            return self.const(PYTHON_TYPES[kind](node.value), kind)
        if kind == "b":
            return self.negate(self.apply("equal", node, 0))
        return self.make({"i": "whole", "s": "single", "f": "real"}[kind], (node,), kind)

    def negate(self, node: TraceNode) -> TraceNode:
        """Return the negation of a truth."""
        return self.apply("logical_not", node)

    def either(self, one: TraceNode | None, other: TraceNode | None) -> TraceNode | None:
        """Return the disjunction of two truths; None means False."""
        if one is None or other is None:
            return one or other
        return self.apply("logical_or", one, other)

    def exceeds(self, node: TraceNode, limit: float) -> TraceNode:
        """Return whether the absolute value of a number reaches a limit."""
        return self.negate(self.apply("less", self.apply("absolute", node), limit))

    def apply(self, op: str, *operands: TraceNode | float) -> TraceNode:
        """Return an operation, folded and simplified; plain numbers become constants."""
        self.count()
        args = tuple([x if isinstance(x, TraceNode) else self.const(x) for x in operands])
        rule = OPERATIONS[op].kind
        if op == "select":
            return self._select(args[0], args[1], args[2])
        kind = promote_kinds([arg.kind for arg in args])
        if rule == "n":
            kind = "i" if kind == "b" else kind
        elif rule != "f" or kind != "s":
            kind = rule
        if all(arg.op == "const" for arg in args):
            folded = self._fold(op, args, kind)
            if folded is not None:
                return folded
        if kind == "b":
            return self._simplify_truth(op, args)
        return self._simplify(op, args, kind) or self.make(op, args, kind)

    def _fold(self, op: str, args: Sequence[TraceNode], kind: str) -> TraceNode | None:
        """Return the result of an operation on constants, or None if NumPy raises."""
        values = [_NUMPY_TYPES[arg.kind](arg.value) for arg in args]
        try:
            with np.errstate(all="ignore"):
                return self.const(evaluate(op, values), kind)
        except (ArithmeticError, ValueError, TypeError):
            return None

    def _simplify(  # noqa: PLR0911  # a rule after the other
        self, op: str, args: tuple[TraceNode, ...], kind: str
    ) -> TraceNode | None:
        """Return a simpler node with the same value to the last bit, or None."""
        if op in ("multiply", "add") and args[0].op == "const" and args[1].op != "const":
            return self.apply(op, args[1], args[0])
        first, last = args[0], args[-1]
        if op in _ROUNDING and first.kind in "bi":
            return self.cast(first, "f")
        if op == "power" and last.op == "const" and last.value == 2 and first.kind == kind:
            return self.apply("multiply", first, first)
        if len(args) == 2 and last.op == "const" and first.kind == kind:
            # Adding 0.0 is not neutral: -0.0 + 0.0 is 0.0.
            neutral = ("multiply", 1), ("divide", 1), ("subtract", 0), ("power", 1)
            if (op, last.value) in neutral and str(last.value) != "-0.0":
                return first
            if op == "add" and last.value == 0 and kind == "i":
                return first
        if op in ("minimum", "maximum") and first is last:
            return first
        return None

    def _simplify_truth(  # noqa: PLR0911  # a rule after the other
        self, op: str, args: tuple[TraceNode, ...]
    ) -> TraceNode:
        if op == "logical_not":
            inner = self.cast(args[0], "b")
            return inner.args[0] if inner.op == op else self.make(op, (inner,), "b")
        if op in ("logical_and", "logical_or"):
            one, other = self.cast(args[0], "b"), self.cast(args[1], "b")
            return self._simplify_junction(op, one, other) or self.make(op, (one, other), "b")
        first, last = args[0], args[-1]
        if first is last and op in ("equal", "less"):
            return self.const(op == "equal")
        if op == "equal" and first.op == "const":
            return self.apply(op, last, first)
        if op == "equal" and first.kind == "b" and last.op == "const":
            if last.value not in (0, 1):
                return self.false
            return first if last.value else self.negate(first)
        if last.op == "const" and first.op == "gather" and first.args[0].op == "action":
            values = [evaluate(op, [_NUMPY_TYPES[first.kind](v), last.value]) for v in first.value]
            return self.gather(values, first.args[0])
        return self.make(op, args, "b")

    def _simplify_junction(self, op: str, one: TraceNode, other: TraceNode) -> TraceNode | None:
        deciding = op == "logical_or"
        for x, y in ((one, other), (other, one)):
            if x.op == "const":
                return x if x.value == deciding else y
            if self.negate(x) is y:
                return self.const(deciding)
            if x is y or (y.op == op and x in y.args):
                return y
            if y.op in ("logical_and", "logical_or") and x in y.args:
                return x
        return None

    def _select(self, condition: TraceNode, x: TraceNode, y: TraceNode) -> TraceNode:
        kind = promote_kinds([x.kind, y.kind])
        if condition.op == "const":
            return x if condition.value else y
        condition = self.cast(condition, "b")
        if condition.op == "logical_not":
            return self._select(condition.args[0], y, x)
        x, y = (self.cast(each, kind) if each.op == "const" else each for each in (x, y))
        if x.op == "select" and x.args[0] is condition:
            x = x.args[1]
        if y.op == "select" and y.args[0] is condition:
            y = y.args[2]
        x, y = self._substitute(condition, x, True), self._substitute(condition, y, False)
        if x is y:
            return x
        return self._simplify_select(condition, x, y, kind) or self.make(
            "select", (condition, x, y), kind
        )

    def _simplify_select(  # noqa: PLR0911  # a rule after the other
        self, condition: TraceNode, x: TraceNode, y: TraceNode, kind: str
    ) -> TraceNode | None:
        if kind == "b" and "const" in (x.op, y.op):
            opposite = self.negate(condition)
            if x.op == "const":
                side = ("logical_or", condition) if x.value else ("logical_and", opposite)
                return self.apply(*side, y)
            side = ("logical_or", opposite) if y.value else ("logical_and", condition)
            return self.apply(*side, x)
        if y.op == "select" and y.args[1] is x and y.kind == kind:
            return self._select(self.apply("logical_or", condition, y.args[0]), x, y.args[2])
        if x.op == "select" and x.args[2] is y and x.kind == kind:
            return self._select(self.apply("logical_and", condition, x.args[0]), x.args[1], y)
        if condition.op == "less" and x.kind == y.kind:
            # The order of the operands decides which of two equal values (0.0 and -0.0) remains.
            if (x, y) == condition.args:
                return self.apply("minimum", y, x)
            if (y, x) == condition.args:
                return self.apply("maximum", y, x)
        return None

    def _substitute(self, condition: TraceNode, node: TraceNode, value: bool) -> TraceNode:
        """Return a node with a condition replaced by its known value."""
        if node is condition:
            return self.const(value)
        if node.op == "logical_not" and node.args[0] is condition:
            return self.const(not value)
        if node.op in ("logical_and", "logical_or"):
            for known, truth in ((condition, value), (self.negate(condition), not value)):
                if known in node.args:
                    parts = [self.const(truth) if arg is known else arg for arg in node.args]
                    return self.apply(node.op, *parts)
        return node

    def gather(self, values: Sequence[Any], place: TraceNode) -> TraceNode:
        """Return an element of a table of numbers, selected by an index node."""
        kinds = {kind_of(value) for value in values}
        kind = promote_kinds(kinds)
        plain = tuple(PYTHON_TYPES[kind](value) for value in values)
        if len(set(map(repr, plain))) == 1:
            return self.const(plain[0], kind)
        if place.op == "const":
            return self.const(plain[place.value], kind)
        if kind == "i" and plain == tuple(range(len(plain))):
            return place
        return self.make("gather", (place,), kind, plain)


_EXACT: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "power": operator.pow,
    "negative": operator.neg,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
}


def evaluate(op: str, values: Sequence[Any]) -> Any:
    """Compute an operation; integers are Python's, so that nothing wraps around."""
    if op in ("whole", "real", "single"):
        return {"whole": int, "real": float, "single": np.float32}[op](values[0])
    if op in _EXACT and all(type(value) is int for value in values):
        return _EXACT[op](*values)
    return getattr(np, op)(*values)


def topological_order(
    roots: Iterable[TraceNode], known: Container[TraceNode] = ()
) -> list[TraceNode]:
    """Return all nodes that the roots depend on, operands first; `known` nodes are left out."""
    seen, out = set[TraceNode](), []
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, done = stack.pop()
        if done:
            out.append(node)
        elif node not in seen and node not in known:
            seen.add(node)
            stack.append((node, True))
            stack += [(arg, False) for arg in reversed(node.args)]
    return out
