"""Rules as Python conditions, with the constants that they need."""

import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from cwm_induction.discrete.tables import Bound, Box, Column, Rules, Table

LINE = 96
WIDTH = 92
Key = tuple[int, ...]


class Condition(NamedTuple):
    """A label and the expression that says when it holds; later ones win."""

    expression: str
    label: int


@dataclass
class Constants:
    """The class constants of a program, in the order in which they are first needed."""

    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def add(self, name: str, value: str, comment: str) -> str:
        """Return the expression for a constant; equal values looked up alike share one."""
        known = f"{value} {comment}"
        if known not in self.names:
            number, free = 2, name
            while free in self.taken:
                free, number = f"{name}_{number}", number + 1
            self.taken.add(free)
            self.names[known] = free
            self.lines += [*([f"# {comment}"] if comment else []), *wrapped(f"{free} = ", value)]
        return f"self.{self.names[known]}"


@dataclass(frozen=True)
class Speaker:
    """Writes conditions: `spell` gives the expression of a column, `rewards` the rewards."""

    constants: Constants
    spell: Callable[[Column], str]
    rewards: tuple[str, ...]

    def spelled(self, column: Column, value: int) -> str:
        """Write a value of a column."""
        if column.kind == "reward":
            return self.rewards[value]
        if column.is_signed:
            return str(value - column.size // 2)
        return str(bool(value)) if column.is_truth else str(value)

    def conditions(self, rules: Rules, name: str) -> list[Condition]:
        """Return the conditions of all layers."""
        found: list[Condition] = []
        for layer in rules.layers:
            if isinstance(layer, Box):
                found.append(Condition(self._box(layer), layer.label))
            else:
                for label in sorted(set(layer.labels.values())):
                    found.append(Condition(self._membership(layer, label, name), label))
        return found

    def lookup(self, table: Table, values: dict[int, str], name: str, default: str) -> str:
        """Return an expression that looks a value up by key."""
        entries = [
            f"{self._literal(key, table.columns)}: {values[label]}"
            for key, label in sorted(table.labels.items())
        ]
        subject = self._subject(table.columns)
        constant = self.constants.add(name, "{" + ", ".join(entries) + "}", f"by {subject}")
        return f"{constant}.get({subject}, {default})"

    def _membership(self, table: Table, label: int, name: str) -> str:
        """Say that the columns hold one of the keys with a label."""
        keys = sorted(key for key, value in table.labels.items() if value == label)
        subject = self._subject(table.columns)
        if len(keys) == 1:
            return self._equality(table.columns, keys[0])
        values = "{" + ", ".join(self._literal(key, table.columns) for key in keys) + "}"
        return f"{subject} in {self.constants.add(name, values, f'values of {subject}')}"

    def _equality(self, columns: tuple[Column, ...], key: Key) -> str:
        """Say that the columns hold one key."""
        return " and ".join(
            self._value(column, value) for column, value in zip(columns, key, strict=True)
        )

    def _value(self, column: Column, value: int) -> str:
        """Say that one column holds one value."""
        if column.is_truth:
            name = self.spell(column)
            opposite = name.replace("==", "!=") if column.kind == "meets" else f"not {name}"
            return name if value else opposite
        return f"{self.spell(column)} == {self.spelled(column, value)}"

    def _subject(self, columns: tuple[Column, ...]) -> str:
        """Name the columns as one value."""
        names = [self.spell(column) for column in columns]
        return names[0] if len(names) == 1 else f"({', '.join(names)})"

    def _literal(self, key: Key, columns: tuple[Column, ...]) -> str:
        """Write a key as it is looked up."""
        parts = [self.spelled(column, value) for column, value in zip(columns, key, strict=True)]
        return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"

    def _box(self, box: Box) -> str:
        """Say that all bounds hold."""
        parts = [part for bound in box.bounds for part in self._bound(bound)]
        return " and ".join(parts) if parts else "True"

    def _bound(self, bound: Bound) -> Iterable[str]:
        """Say that a column lies within a bound, in one comparison where that is possible."""
        name, last = self.spell(bound.column), bound.column.size - 1
        low, high = (self.spelled(bound.column, value) for value in (bound.low, bound.high))
        if bound.low == bound.high:
            yield self._value(bound.column, bound.low)
        elif bound.low > 0 and bound.high < last:
            yield f"{low} <= {name} <= {high}"
        elif bound.low > 0:
            yield f"{name} >= {low}"
        elif bound.high < last:
            yield f"{name} <= {high}"
        for value in bound.excluded:
            if bound.low <= value <= bound.high:
                yield f"{name} != {self.spelled(bound.column, value)}"


def either(conditions: list[Condition]) -> str:
    """Join the conditions of a yes-or-no rule into one expression."""
    expression = ""
    for condition in conditions:
        inner = (
            f"({condition.expression})" if " and " in condition.expression else condition.expression
        )
        if condition.label:
            expression = f"{expression} or {inner}" if expression else condition.expression
        elif expression:
            expression = f"({expression}) and not ({condition.expression})"
    return expression or "False"


def broken(start: str, expression: str, end: str = "") -> list[str]:
    """Write an expression in brackets over several lines if it is too long for one."""
    if len(start) + len(expression) + len(end) <= WIDTH:
        return [start + expression + end]
    inner = textwrap.wrap(expression, WIDTH - 8, break_long_words=False)
    return [f"{start}(", *[f"    {line}" for line in inner], f"){end}"]


def wrapped(start: str, value: str) -> list[str]:
    """Break a long set or dict display over lines."""
    if len(start) + len(value) <= LINE:
        return [start + value]
    lines, line = [f"{start}{value[0]}"], "   "
    for entry in _entries(value[1:-1]):
        if len(entry) > WIDTH:
            lines += [*([line] if line.strip() else []), *_folded(entry)]
            line = "   "
            continue
        if len(line) + len(entry) + 2 > LINE:
            lines.append(line)
            line = "   "
        line += f" {entry},"
    return [*lines, *([line] if line.strip() else []), value[-1]]


def _folded(entry: str) -> list[str]:
    """Break one long entry of a display over lines."""
    kept = re.sub(r"(?<=\d), (?=\d)", ",~", entry)
    parts = textwrap.wrap(kept, LINE - 8, break_long_words=False, break_on_hyphens=False)
    indents = ["    ", *["        "] * len(parts)]
    return [
        indent + part.replace("~", " ") + ("," if part is parts[-1] else "")
        for indent, part in zip(indents, parts, strict=False)
    ]


def _entries(text: str) -> Iterable[str]:
    """Split a display at its outermost commas."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        if character == "," and depth == 0:
            yield text[start:position].strip()
            start = position + 1
    yield text[start:].strip()
