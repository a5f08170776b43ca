"""Expressions as Python functions that compute with plain numbers."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cwm_cli.planning.traced.node import Node
from cwm_cli.planning.traced.rewriting import ordered

TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "add": "{0} + {1}",
        "subtract": "{0} - {1}",
        "multiply": "{0} * {1}",
        "divide": "{0} / {1}",
        "floor_divide": "{0} // {1}",
        "remainder": "{0} % {1}",
        "negative": "-{0}",
        "absolute": "abs({0})",
        "sign": "({0} > 0) - ({0} < 0)",
        "minimum": "{1} if {0} > {1} else {0}",
        "maximum": "{1} if {0} < {1} else {0}",
        "equal": "{0} == {1}",
        "not_equal": "{0} != {1}",
        "less": "{0} < {1}",
        "less_equal": "{0} <= {1}",
        "greater": "{0} > {1}",
        "greater_equal": "{0} >= {1}",
        "logical_and": "{0} and {1}",
        "logical_or": "{0} or {1}",
        "logical_not": "not {0}",
        "select": "{1} if {0} else {2}",
        "isnan": "{0} != {0}",
        "rint": "float(round({0}))",
        "floor": "float(floor({0}))",
        "ceil": "float(ceil({0}))",
        "trunc": "float(int({0}))",
        "power": "pow({0}, {1})",
    }
)
"""How operations are written; those that are not here are calls."""

SPELLINGS: Mapping[str, str] = MappingProxyType(
    {f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")}
)
"""Functions that `math` calls otherwise than numpy."""

GLOBALS: dict[str, Any] = {
    name: value for name, value in vars(math).items() if not name.startswith("_")
}

_DEEPEST = 20
"""Parentheses within each other; Python's parser has a limit."""


class Writer:
    """Writes expressions as statements: a local variable for each that is used twice."""

    def __init__(self, outputs: Iterable[Node], names: Mapping[Node, str]) -> None:
        self.lines: list[str] = []
        self.tables: dict[str, tuple[Any, ...]] = {}
        self._texts: dict[Node, tuple[str, int]] = {node: (names[node], 0) for node in names}
        self._uses = _uses(list(outputs), self._texts)

    def text(self, output: Node) -> str:
        """Return an expression for a node, after statements for what it needs."""
        for node in ordered([output], self._texts):
            text, depth = self._expression(node)
            if self._uses[node] > 1 or depth > _DEEPEST:
                name = f"t{node.number}"
                self.lines.append(f"{name} = {text}")
                text, depth = name, 0
            self._texts[node] = text, depth
        return self._texts[output][0]

    def _expression(self, node: Node) -> tuple[str, int]:
        """Return an expression for a node whose operands have one."""
        if node.is_constant:
            return _literal(node.value), 0
        texts, depths = zip(*[self._texts[operand] for operand in node.operands], strict=True)
        depth = 1 + max(depths)
        if node.operation in ("table", "index"):
            return f"{self._table(node)}[{texts[0]}]", depth
        if template := TEMPLATES.get(node.operation):
            return f"({template.format(*texts)})", depth
        name = SPELLINGS.get(node.operation, node.operation)
        return f"{name}({', '.join(texts)})", depth

    def _table(self, node: Node) -> str:
        """Return the name of a constant tuple."""
        name = f"T{node.number}"
        self.tables[name] = node.values
        return name


def compiled(header: str, lines: Sequence[str], tables: Mapping[str, Any]) -> Callable[..., Any]:
    """Compile a function; what it calls it finds among its defaults, which is fastest."""
    body = "\n".join(f"    {line}" for line in lines)
    names = GLOBALS | dict(tables)
    used = [name for name in names if f"{name}(" in body or f"{name}[" in body]
    defaults = "".join(f", {name}={name}" for name in used)
    code = f"def {header[:-1]}{defaults}):\n{body}\n"
    space: dict[str, Any] = dict(names)
    exec(compile(code, "<traced>", "exec"), space)  # noqa: S102  # we wrote it
    made: Callable[..., Any] = space[header.partition("(")[0]]
    return made


def _uses(outputs: Sequence[Node], known: Mapping[Node, Any]) -> Counter[Node]:
    """Count how often the text of each node is written."""
    uses = Counter(outputs)
    for node in ordered(outputs, known):
        template = TEMPLATES.get(node.operation, "{0}{1}{2}")
        for number, operand in enumerate(node.operands):
            uses[operand] += template.count(f"{{{number}}}")
    return uses


def _literal(value: Any) -> str:
    """Write a number so that it reads as the same."""
    text = repr(value)
    return f"({text})" if text.startswith("-") else text
