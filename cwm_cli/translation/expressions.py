"""Numbers that are not known yet, as a graph of operations in which equal ones are one.

A node has a kind: `b` (truth), `i` (whole, of 64 bits), `s` (single precision)
or `f` (double precision). No node stands for NaN: where an operation could make
one, the step is left to the program (see `numbers`).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

MOST_NODES = 12_000
"""Operations of a program; with more, what is written would not be compiled in a second."""

MOST_WORK = 300_000
"""Operations looked at while a program is traced: a second or two, whatever the program."""


_REPORT = 5_000
"""Work after which progress is reported: a few hundredths of a second."""


class Refused(BaseException):
    """A program cannot be translated; the text says why. Programs cannot catch it."""


class Inexact(Refused):
    """Numbers of Python and numpy were merged, and it matters which they are."""


class TraceNode:
    """An operation on other nodes; `value` belongs to constants, symbols and tables."""

    __slots__ = ("args", "kind", "number", "op", "users", "value")

    def __init__(self, op: str, args: tuple["TraceNode", ...], kind: str, value: Any, number: int):
        self.op, self.args, self.kind, self.value, self.number = op, args, kind, value, number
        self.users: list[TraceNode] = []

    def __repr__(self) -> str:
        return f"{self.op}{self.number}"


class Operation(NamedTuple):
    """The kind of the result (`n`: that of the operands), in plain Python and in numpy."""

    kind: str
    plain: str
    lanes: str


FUNCTIONS = (
    *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
    *("arcsinh", "arccosh", "arctanh", "exp", "expm1", "log", "log2", "log10", "log1p"),
    *("sqrt", "cbrt"),
)
"""Functions of one real number, by numpy's names."""

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
_TYPES: dict[str, Callable[[Any], Any]] = {
    "b": np.bool_,
    "i": int,
    "s": np.float32,
    "f": np.float64,
}
_PLAIN: dict[str, Callable[[Any], Any]] = {"b": bool, "i": int, "s": float, "f": float}
_EXACT = 2**62
"""Whole numbers are folded up to this size: lanes have 64 bits."""


def kind_of(value: Any) -> str:
    """Return the kind of a number of Python or numpy."""
    if isinstance(value, bool | np.bool_):
        return "b"
    if isinstance(value, int | np.int64):
        return "i"
    if isinstance(value, np.float32):
        return "s"
    if isinstance(value, float):
        return "f"
    raise Refused(f"it computes with a {type(value).__name__}")


def joined(kinds: Iterable[str]) -> str:
    """Return the kind of a result of operands of some kinds, as numpy promotes them."""
    found = set(kinds)
    if found >= {"i", "s"}:
        return "f"
    return next(kind for kind in "fsib" if kind in found)


def is_nan(node: TraceNode) -> bool:
    """Whether a node is the constant that is no number."""
    return node.op == "const" and _nan(node.value)


def _nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and math.isnan(value)


class Graph:
    """Makes nodes; folds what is constant and simplifies what changes no result."""

    def __init__(self, progress: Callable[[], None] = lambda: None) -> None:
        self._known: dict[Any, TraceNode] = {}
        self.work, self._reported, self._progress = 0, 0, progress
        self.false = self.const(False)

    def make(self, op: str, args: tuple[TraceNode, ...], kind: str, value: Any = None) -> TraceNode:
        """Return the node of an operation as it is.

        Beside what is not known nothing may be no number (NaN): ranges and comparisons are made
        for numbers. It is less than nothing and equal to nothing; all else is refused.
        """
        self.count()
        if any(map(is_nan, args)) or (op == "gather" and value and any(map(_nan, value))):
            if op in ("less", "equal"):
                return self.false
            raise Refused("an unknown value next to a value that is not a number")
        key = (op, tuple([arg.number for arg in args]), kind, repr(value))
        node = self._known.get(key)
        if node is None:
            node = self._known[key] = TraceNode(op, args, kind, value, len(self._known))
            for arg in args:
                arg.users.append(node)
            if len(self._known) > MOST_NODES:
                raise Refused("too many operations")
        return node

    def count(self, work: int = 1) -> None:
        """Count work; there is a limit."""
        self.work += work
        if self.work - self._reported > _REPORT:
            self._reported = self.work
            self._progress()
            if self.work > MOST_WORK:
                raise Refused("tracing takes too long")

    def const(self, value: Any, kind: str = "") -> TraceNode:
        """Return a known number."""
        kind = kind or kind_of(value)
        value = _PLAIN[kind](value)
        if kind == "i" and abs(value) > _EXACT:
            raise Refused("large whole numbers")
        return self.make("const", (), kind, value)

    def cast(self, node: TraceNode, kind: str) -> TraceNode:
        """Return a number as another kind."""
        if node.kind == kind:
            return node
        if node.op == "const":
            if kind == "s":
                return self.const(float(np.float32(node.value)), "s")
            if kind == "i" and not math.isfinite(node.value):
                return self.make("whole", (node,), "i")
            return self.const(_PLAIN[kind](node.value), kind)
        if kind == "b":
            return self.negated(self.apply("equal", node, self.const(0)))
        return self.make({"i": "whole", "s": "single", "f": "real"}[kind], (node,), kind)

    def negated(self, node: TraceNode) -> TraceNode:
        """Return what is true where a node is not."""
        return self.apply("logical_not", node)

    def either(self, one: TraceNode | None, other: TraceNode | None) -> TraceNode | None:
        """Return what is true where one or the other is; None stands for nowhere."""
        if one is None or other is None:
            return one or other
        return self.apply("logical_or", one, other)

    def apply(self, op: str, *args: TraceNode) -> TraceNode:
        """Return an operation, folded and simplified."""
        self.count()
        rule = OPERATIONS[op].kind
        if op == "select":
            return self._select(args[0], args[1], args[2])
        kind = joined([arg.kind for arg in args])
        if rule == "n":
            kind = "i" if kind == "b" else kind
        elif rule != "f" or kind != "s":
            kind = rule
        if all(arg.op == "const" for arg in args):
            folded = self._folded(op, args, kind)
            if folded is not None:
                return folded
        if kind == "b":
            return self._truth(op, args)
        return self._simplified(op, args, kind) or self.make(op, args, kind)

    def _folded(self, op: str, args: Sequence[TraceNode], kind: str) -> TraceNode | None:
        """Return the value of an operation on constants, if numpy has one."""
        values = [_TYPES[arg.kind](arg.value) for arg in args]
        try:
            with np.errstate(all="ignore"):
                return self.const(evaluate(op, values), kind)
        except (ArithmeticError, ValueError, TypeError):
            return None

    def _simplified(  # noqa: PLR0911  # a rule after the other
        self, op: str, args: tuple[TraceNode, ...], kind: str
    ) -> TraceNode | None:
        """Return something simpler with the same value to the last bit."""
        if op in ("multiply", "add") and args[0].op == "const" and args[1].op != "const":
            return self.apply(op, args[1], args[0])
        first, last = args[0], args[-1]
        if op in _ROUNDING and first.kind in "bi":
            return self.cast(first, "f")
        if op == "power" and last.op == "const" and last.value == 2 and first.kind == kind:
            return self.apply("multiply", first, first)
        if len(args) == 2 and last.op == "const" and first.kind == kind:
            neutral = ("multiply", 1), ("divide", 1), ("subtract", 0), ("power", 1)
            if (op, last.value) in neutral and str(last.value) != "-0.0":
                return first
            if op == "add" and last.value == 0 and kind == "i":
                return first
        if op in ("minimum", "maximum") and first is last:
            return first
        return None

    def _truth(  # noqa: PLR0911  # a rule after the other
        self, op: str, args: tuple[TraceNode, ...]
    ) -> TraceNode:
        """Return a truth."""
        if op == "logical_not":
            inner = self.cast(args[0], "b")
            return inner.args[0] if inner.op == op else self.make(op, (inner,), "b")
        if op in ("logical_and", "logical_or"):
            one, other = self.cast(args[0], "b"), self.cast(args[1], "b")
            return self._junction(op, one, other) or self.make(op, (one, other), "b")
        first, last = args[0], args[-1]
        if first is last and op in ("equal", "less"):
            return self.const(op == "equal")
        if op == "equal" and first.op == "const":
            return self.apply(op, last, first)
        if op == "equal" and first.kind == "b" and last.op == "const":
            if last.value not in (0, 1):
                return self.false
            return first if last.value else self.negated(first)
        if last.op == "const" and first.op == "gather" and first.args[0].op == "action":
            values = [evaluate(op, [_TYPES[first.kind](v), last.value]) for v in first.value]
            return self.gather(values, first.args[0])
        return self.make(op, args, "b")

    def _junction(self, op: str, one: TraceNode, other: TraceNode) -> TraceNode | None:
        """Simplify and, or."""
        deciding = op == "logical_or"
        for x, y in ((one, other), (other, one)):
            if x.op == "const":
                return x if x.value == deciding else y
            if self.negated(x) is y:
                return self.const(deciding)
            if x is y or (y.op == op and x in y.args):
                return y
            if y.op in ("logical_and", "logical_or") and x in y.args:
                return x
        return None

    def _select(self, condition: TraceNode, x: TraceNode, y: TraceNode) -> TraceNode:
        """Return one number where a condition holds and another where it does not."""
        kind = joined([x.kind, y.kind])
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
        x, y = self._under(condition, x, True), self._under(condition, y, False)
        if x is y:
            return x
        return self._choice(condition, x, y, kind) or self.make("select", (condition, x, y), kind)

    def _choice(  # noqa: PLR0911  # a rule after the other
        self, condition: TraceNode, x: TraceNode, y: TraceNode, kind: str
    ) -> TraceNode | None:
        """Simplify a choice."""
        if kind == "b" and "const" in (x.op, y.op):
            opposite = self.negated(condition)
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
            if (x, y) == condition.args:
                return self.apply("minimum", y, x)
            if (y, x) == condition.args:
                return self.apply("maximum", y, x)
        return None

    def _under(self, condition: TraceNode, node: TraceNode, value: bool) -> TraceNode:
        """Return what a node is where a condition is known."""
        if node is condition:
            return self.const(value)
        if node.op == "logical_not" and node.args[0] is condition:
            return self.const(not value)
        if node.op in ("logical_and", "logical_or"):
            for known, truth in ((condition, value), (self.negated(condition), not value)):
                if known in node.args:
                    parts = [self.const(truth) if arg is known else arg for arg in node.args]
                    return self.apply(node.op, *parts)
        return node

    def gather(self, values: Sequence[Any], place: TraceNode) -> TraceNode:
        """Return the number at a place of a table."""
        kinds = {kind_of(value) for value in values}
        kind = joined(kinds)
        plain = tuple(_PLAIN[kind](value) for value in values)
        if len(set(map(repr, plain))) == 1:
            return self.const(plain[0], kind)
        if place.op == "const":
            return self.const(plain[place.value], kind)
        if kind == "i" and plain == tuple(range(len(plain))):
            return place
        return self.make("gather", (place,), kind, plain)


def evaluate(op: str, values: Sequence[Any]) -> Any:
    """Compute an operation; whole numbers as Python does, so that nothing wraps around."""
    if op in ("whole", "real", "single"):
        return {"whole": int, "real": float, "single": np.float32}[op](values[0])
    if all(type(value) is int for value in values):
        a, b = values[0], values[-1]
        exact: dict[str, Callable[[], Any]] = {
            "add": lambda: a + b,
            "subtract": lambda: a - b,
            "multiply": lambda: a * b,
            "power": lambda: a**b,
            "negative": lambda: -a,
            "floor_divide": lambda: a // b,
            "remainder": lambda: a % b,
        }
        if op in exact:
            return exact[op]()
    return getattr(np, op)(*values)


def ordered(roots: Iterable[TraceNode], known: Iterable[TraceNode] = ()) -> list[TraceNode]:
    """Return all nodes that some need, operands first."""
    seen, out = set(known), []
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, done = stack.pop()
        if done:
            out.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(arg, False) for arg in reversed(node.args)]
    return out
