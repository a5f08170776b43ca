"""Operations as instructions of the compiler that numba brings along."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cwm_cli.planning.model import Unbatched
from cwm_cli.planning.traced.emission import SPELLINGS
from cwm_cli.planning.traced.node import Node

COMPARISONS: Mapping[str, str] = MappingProxyType(
    {
        "equal": "==",
        "not_equal": "!=",
        "less": "<",
        "less_equal": "<=",
        "greater": ">",
        "greater_equal": ">=",
    }
)

SAME = (
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "exp",
    "expm1",
    "log",
    "log1p",
    "hypot",
    "fmod",
)

CALLS: Mapping[str, str] = MappingProxyType(
    {name: name for name in SAME} | dict(SPELLINGS) | {"power": "pow"}
)
"""Functions of the C library."""

INTRINSICS: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("sqrt", "floor", "ceil", "trunc", "rint", "copysign")}
    | {"absolute": "fabs"}
)
"""Functions of the processor, for real numbers."""

SIMPLE: Mapping[str, str] = MappingProxyType(
    {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div"}
)

LOGICAL: Mapping[str, str] = MappingProxyType({"logical_and": "and_", "logical_or": "or_"})


class Instructions:
    """Writes instructions for one operation at a time; real numbers are doubles."""

    def __init__(self, ir: Any, module: Any, builder: Any) -> None:
        self._ir, self._module, self._builder = ir, module, builder
        self._types = {"f": ir.DoubleType(), "i": ir.IntType(64), "b": ir.IntType(1)}

    def constant(self, value: Any, kind: str) -> Any:
        """Return a known value."""
        return self._types[kind](value)

    def converted(self, value: Any, kind: str, wanted: str) -> Any:
        """Return a value as one of another kind; a number is true if it is not zero."""
        if kind == wanted:
            return value
        if wanted == "f":
            convert = self._builder.uitofp if kind == "b" else self._builder.sitofp
            return convert(value, self._types["f"])
        if wanted == "b":
            return self._compare("!=", kind, value, self.constant(0, kind))
        if kind == "b":
            return self._builder.zext(value, self._types["i"])
        return self._call("llvm.fptosi.sat.i64.f64", [value], "i")

    def apply(self, node: Node, values: Sequence[Any]) -> Any:
        """Return the result of a node's operation on the values of its operands."""
        name, kinds = node.operation, [operand.kind for operand in node.operands]
        if name == "select":
            return self._select(node.kind, values, kinds)
        kind = _common(node, kinds)
        operands = [
            self.converted(value, own, kind) for value, own in zip(values, kinds, strict=True)
        ]
        if name in ("float", "int"):
            return self.converted(operands[0], kind, name[0])
        if name in CALLS:
            return self.converted(self._call(CALLS[name], operands, "f"), "f", node.kind)
        if name in COMPARISONS:
            return self._compare(COMPARISONS[name], kind, *operands)
        if name in INTRINSICS and kind == "f":
            return self._call(f"llvm.{INTRINSICS[name]}.f64", operands, "f")
        return self._arithmetic(name, kind, operands)

    def chosen(self, values: Sequence[Any], kind: str, place: Any, place_kind: str) -> Any:
        """Return the value at a place, counted from the end where it is negative."""
        count = self.constant(len(values), "i")
        first, last = self.constant(0, "i"), self.constant(len(values) - 1, "i")
        place = self.converted(place, place_kind, "i")
        negative = self._compare("<", "i", place, first)
        place = self._builder.select(negative, self._builder.add(place, count), place)
        place = self._least("<", "i", self._least(">", "i", place, first), last)
        array = self._ir.Constant(
            self._ir.ArrayType(self._types[kind], len(values)),
            [self.constant(value, kind) for value in values],
        )
        table = self._ir.GlobalVariable(
            self._module, array.type, self._module.get_unique_name("table")
        )
        table.initializer, table.global_constant = array, True
        return self._builder.load(self._builder.gep(table, [first, place]))

    def _select(self, kind: str, values: Sequence[Any], kinds: Sequence[str]) -> Any:
        """Choose the one or the other."""
        condition = self.converted(values[0], kinds[0], "b")
        branches = [self.converted(*pair, kind) for pair in zip(values[1:], kinds[1:], strict=True)]
        return self._builder.select(condition, *branches)

    def _arithmetic(self, name: str, kind: str, operands: Sequence[Any]) -> Any:
        """Compute what takes a few instructions."""
        if name in SIMPLE:
            method = f"f{SIMPLE[name]}" if kind == "f" else SIMPLE[name]
            return getattr(self._builder, method)(*operands)
        if name in LOGICAL:
            return getattr(self._builder, LOGICAL[name])(*operands)
        methods: Mapping[str, Callable[..., Any]] = {
            "logical_not": lambda _, value: self._builder.not_(value),
            "negative": lambda kind, value: self._negative(kind, value),
            "absolute": lambda kind, value: self._least(
                ">", kind, value, self._negative(kind, value)
            ),
            "sign": self._sign,
            "minimum": lambda kind, *pair: self._least("<", kind, *pair),
            "maximum": lambda kind, *pair: self._least(">", kind, *pair),
            "isnan": lambda _, value: self._builder.fcmp_unordered("uno", value, value),
            "isfinite": self._is_finite,
            "remainder": self._remainder,
            "floor_divide": self._floor_divide,
        }
        if name not in methods:
            raise Unbatched(f"{name} is not compiled")
        return methods[name](kind, *operands)

    def _compare(self, sign: str, kind: str, one: Any, other: Any) -> Any:
        """Compare values of one kind; nothing is equal to what is not a number."""
        if kind == "f":
            ordered = self._builder.fcmp_unordered if sign == "!=" else self._builder.fcmp_ordered
            return ordered(sign, one, other)
        compare = self._builder.icmp_unsigned if kind == "b" else self._builder.icmp_signed
        return compare(sign, one, other)

    def _least(self, sign: str, kind: str, one: Any, other: Any) -> Any:
        """Return the one that is less, or greater; the first where it is not a number."""
        return self._builder.select(self._compare(sign, kind, other, one), other, one)

    def _negative(self, kind: str, value: Any) -> Any:
        """Change the sign."""
        return self._builder.fneg(value) if kind == "f" else self._builder.neg(value)

    def _sign(self, kind: str, value: Any) -> Any:
        """Return 1, 0 or -1."""
        zero, one = self.constant(0, kind), self.constant(1, kind)
        positive = self._builder.select(self._compare(">", kind, value, zero), one, zero)
        negative = self._compare("<", kind, value, zero)
        return self._builder.select(negative, self.constant(-1, kind), positive)

    def _is_finite(self, kind: str, value: Any) -> Any:
        """Whether a number is finite."""
        size = self._call("llvm.fabs.f64", [value], "f")
        return self._compare("<", "f", size, self.constant(float("inf"), "f"))

    def _remainder(self, kind: str, one: Any, other: Any) -> Any:
        """Return the remainder, of the sign of the divisor."""
        rest = self._call("fmod", [one, other], "f") if kind == "f" else self._rest(one, other)
        zero = self.constant(0, kind)
        opposite = self._builder.xor(
            self._compare("<", kind, rest, zero), self._compare("<", kind, other, zero)
        )
        wrong = self._builder.and_(self._compare("!=", kind, rest, zero), opposite)
        add = self._builder.fadd if kind == "f" else self._builder.add
        return self._builder.select(wrong, add(rest, other), rest)

    def _floor_divide(self, kind: str, one: Any, other: Any) -> Any:
        """Divide and round down."""
        rest = self._remainder(kind, one, other)
        if kind == "f":
            whole = self._builder.fdiv(self._builder.fsub(one, rest), other)
            return self._call("llvm.rint.f64", [whole], "f")
        return self._builder.sdiv(self._builder.sub(one, rest), self._nonzero(other))

    def _rest(self, one: Any, other: Any) -> Any:
        """Return the remainder of integers, of the sign of the dividend."""
        return self._builder.srem(one, self._nonzero(other))

    def _nonzero(self, value: Any) -> Any:
        """Return a divisor that does not stop the process."""
        if not isinstance(value, self._ir.Constant) or value.constant in (0, -1):
            raise Unbatched("it divides integers by what may be zero")
        return value

    def _call(self, name: str, values: Sequence[Any], kind: str) -> Any:
        """Call a function of doubles."""
        function = self._module.globals.get(name)
        if function is None:
            types = [self._types["f"]] * len(values)
            function = self._ir.Function(
                self._module, self._ir.FunctionType(self._types[kind], types), name
            )
        return self._builder.call(function, values)


def _common(node: Node, kinds: Sequence[str]) -> str:
    """Return the kind in which an operation is computed."""
    if node.operation in COMPARISONS:
        return max(kinds, key="bif".index)
    if node.operation.startswith("logical"):
        return "b"
    if node.operation in ("float", "int"):
        return kinds[0]
    if node.operation in CALLS or node.operation in ("divide", "isnan", "isfinite"):
        return "f"
    return node.kind
