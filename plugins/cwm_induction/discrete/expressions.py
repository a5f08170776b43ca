"""Python text of programs: conditions, constants, statements and observations."""

import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from cwm_induction.discrete.rules import Box, ColumnBound, DecisionList, DecisionTable, RuleColumn
from cwm_induction.discrete.transitions import IntegerEncoding, Layout
from cwm_induction.writing.finishing import split_outside

LINE = 96
"""Width of a line in the body of a class; the indent of four makes 100 characters."""

WIDTH = 92
"""Width of a line of a docstring or in the body of a method, in characters."""

MOST_NAMES = 5
"""Largest number of components of an observation that one line assigns."""

MOST_ASSIGNED = 80
"""Width of a line that assigns several names, in characters."""


class Condition(NamedTuple):
    """A label and the expression of its rows; later conditions take precedence."""

    expression: str
    label: int


@dataclass
class Constants:
    """The class constants of a program, in the order of their first use."""

    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def add(self, name: str, value: str, comment: str) -> str:
        """Return the expression of a constant; equal values with equal comments share one."""
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
class ConditionWriter:
    """A writer of conditions; `spell` returns the expression of a column."""

    constants: Constants
    spell: Callable[[RuleColumn], str]
    rewards: tuple[str, ...]

    def spelled(self, column: RuleColumn, value: int) -> str:
        """Write a value of a column."""
        if column.kind == "reward":
            return self.rewards[value]
        if column.is_signed:
            return str(value - column.size // 2)
        return str(bool(value)) if column.is_truth else str(value)

    def conditions(self, rules: DecisionList, name: str) -> list[Condition]:
        """Return the conditions of all layers."""
        found: list[Condition] = []
        for layer in rules.layers:
            if isinstance(layer, Box):
                parts = [part for bound in layer.bounds for part in self._bound_tests(bound)]
                found.append(Condition(" and ".join(parts) or "True", layer.label))
            else:
                for label in sorted(set(layer.labels.values())):
                    found.append(Condition(self._membership(layer, label, name), label))
        return found

    def either(self, rules: DecisionList, name: str) -> str:
        """Join the conditions of a boolean rule into one expression."""
        expression = ""
        for condition, label in self.conditions(rules, name):
            if not expression:
                expression = condition if label else ""
            elif label:
                inner = f"({condition})" if " and " in condition else condition
                expression = f"{expression} or {inner}"
            else:
                expression = f"({expression}) and not ({condition})"
        return expression or "False"

    def ends(self, rules: DecisionList, *, always: bool) -> str:
        """Write the condition of the end of an episode; `always` is the usual case."""
        ends = self.either(rules, "TERMINAL")
        if not always:
            return ends
        return "True" if ends == "False" else f"not ({ends})"

    def lookup(self, table: DecisionTable, values: dict[int, str], name: str, default: str) -> str:
        """Return an expression that looks up a value by key."""
        entries = [
            f"{self._key(key, table.columns)}: {values[label]}"
            for key, label in sorted(table.labels.items())
        ]
        subject = as_one([self.spell(column) for column in table.columns])
        constant = self.constants.add(name, "{" + ", ".join(entries) + "}", f"by {subject}")
        return f"{constant}.get({subject}, {default})"

    def _membership(self, table: DecisionTable, label: int, name: str) -> str:
        """Write the test that the columns match a key with a label."""
        keys = sorted(key for key, value in table.labels.items() if value == label)
        subject = as_one([self.spell(column) for column in table.columns])
        if len(keys) == 1:
            return " and ".join(map(self._equality, table.columns, keys[0]))
        values = "{" + ", ".join(self._key(key, table.columns) for key in keys) + "}"
        return f"{subject} in {self.constants.add(name, values, f'set of {subject}')}"

    def _key(self, key: tuple[int, ...], columns: tuple[RuleColumn, ...]) -> str:
        """Write a key of a lookup."""
        return as_one(list(map(self.spelled, columns, key)))

    def _equality(self, column: RuleColumn, value: int) -> str:
        """Write the test that a column has a value."""
        name = self.spell(column)
        if not column.is_truth:
            return f"{name} == {self.spelled(column, value)}"
        opposite = name.replace("==", "!=") if column.kind == "meets" else f"not {name}"
        return name if value else opposite

    def _bound_tests(self, bound: ColumnBound) -> Iterator[str]:
        """Write the test that a column is within a bound, as one comparison if possible."""
        name, last = self.spell(bound.column), bound.column.size - 1
        low, high = (self.spelled(bound.column, value) for value in (bound.low, bound.high))
        if bound.low == bound.high:
            yield self._equality(bound.column, bound.low)
        elif bound.low > 0 and bound.high < last:
            yield f"{low} <= {name} <= {high}"
        elif bound.low > 0:
            yield f"{name} >= {low}"
        elif bound.high < last:
            yield f"{name} <= {high}"
        for value in bound.excluded:
            if bound.low <= value <= bound.high:
                yield f"{name} != {self.spelled(bound.column, value)}"


def bracketed(start: str, expression: str, end: str = "") -> list[str]:
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
    for entry in split_outside(value[1:-1], (", ",)):
        if len(entry) > WIDTH:
            lines += [*([line] if line.strip() else []), *_fold_entry(entry)]
            line = "   "
            continue
        if len(line) + len(entry) + 2 > LINE:
            lines.append(line)
            line = "   "
        line += f" {entry},"
    return [*lines, *([line] if line.strip() else []), value[-1]]


def _fold_entry(entry: str) -> list[str]:
    """Break one long entry of a display over lines."""
    kept = re.sub(r"(?<=\d), (?=\d)", ",~", entry)
    parts = textwrap.wrap(kept, LINE - 8, break_long_words=False, break_on_hyphens=False)
    indents = ["    ", *["        "] * len(parts)]
    return [
        indent + part.replace("~", " ") + ("," if part is parts[-1] else "")
        for indent, part in zip(indents, parts, strict=False)
    ]


def part_of_action(sizes: tuple[int, ...], part: int) -> str:
    """Write the digit `part` of an action, which is a number of mixed radix."""
    stride = prod(sizes[part + 1 :])
    whole = f"action // {stride}" if stride > 1 else "action"
    return f"{whole} % {sizes[part]}" if part else whole


def picked(cells: list[str], pointer: str) -> str:
    """Write the factor among `cells` that the factor `pointer` selects."""
    return f"({listed(cells)})[{pointer}]"


def listed(names: list[str], prefix: str = "") -> str:
    """Write names with a prefix, separated by commas."""
    return ", ".join(prefix + name for name in names)


def as_one(parts: list[str]) -> str:
    """Write several expressions as one value."""
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def assignments(left: str, right: str, names: list[str]) -> Iterator[str]:
    """Assign the names with prefix `right` to the names with prefix `left`, several per line."""
    chunk: list[str] = []
    for name in names:
        if (
            chunk
            and len(f"{listed([*chunk, name], left)} = {listed([*chunk, name], right)}")
            > MOST_ASSIGNED
        ):
            yield f"{listed(chunk, left)} = {listed(chunk, right)}"
            chunk = []
        chunk.append(name)
    if chunk:
        yield f"{listed(chunk, left)} = {listed(chunk, right)}"


def chain(
    conditions: list[Condition], target: str, values: dict[int, str], default: str | None
) -> list[str]:
    """Write an assignment by the last true condition, or of the default if there is one."""
    lines: list[str] = [] if default is None else [f"{target} = {default}"]
    word = "if"
    for number, condition in reversed(list(enumerate(conditions))):
        if condition.label or number:
            value = values.get(condition.label)
            assign = "pass" if value is None else f"{target} = {value}"
            lines += [*bracketed(f"{word} ", condition.expression, ":"), f"    {assign}"]
            word = "elif"
    return lines


def mentions(text: str, name: str) -> bool:
    """Return whether a text uses a variable."""
    return re.search(rf"(?<![\w.]){name}\b", text) is not None


def method(signature: str, body: list[str]) -> list[str]:
    """Write a method and a blank line."""
    return [f"def {signature}:", *[f"    {line}" for line in body], ""]


def state_lines(
    encoding: IntegerEncoding, layout: Layout, names: list[str]
) -> tuple[list[str], list[str]]:
    """Write the bodies of `__init__` and of `set_state`."""
    initial = [f"self.{name} = 0" for name in names]
    if encoding.space.kind == "discrete":
        return initial, _digits(_subtract("observation", encoding.lows[0]), layout[0], names)
    values = "np.ravel(observation)" if len(encoding.space.shape) > 1 else "observation"
    numbers = f"(int(value) for value in {values})"
    plain = all(len(radices) == 1 for radices in layout) and not any(encoding.lows)
    if plain and len(names) <= MOST_NAMES:
        return initial, [f"{targets(names, 'self.')} = {numbers}"]
    if plain:
        chunks = [(n, names[n : n + MOST_NAMES]) for n in range(0, len(names), MOST_NAMES)]
        slices = [f"{targets(c, 'self.')} = values[{n}:{n + len(c)}]" for n, c in chunks]
        return initial, [f"values = [int(value) for value in {values}]", *slices]
    parts = [f"part_{number}" for number in range(len(layout))]
    lines, start = [f"{targets(parts)} = {numbers}"], 0
    for part, low, radices in zip(parts, encoding.lows, layout, strict=True):
        lines += _digits(_subtract(part, low), radices, names[start : start + len(radices)])
        start += len(radices)
    return initial, lines


def observation_expression(encoding: IntegerEncoding, layout: Layout, names: list[str]) -> str:
    """Write the observation of the current state."""
    parts, start = [], 0
    for low, radices in zip(encoding.lows, layout, strict=True):
        digits = [f"self.{name}" for name in names[start : start + len(radices)]]
        parts.append(_subtract(_horner(radices, digits), -low))
        start += len(radices)
    if encoding.space.kind == "discrete":
        return parts[0]
    if encoding.space.kind == "tuple":
        return f"({targets(parts)})"
    shape = f".reshape({encoding.space.shape})" if len(encoding.space.shape) != 1 else ""
    return f"np.array([{', '.join(parts)}]){shape}"


def action_lines(encoding: IntegerEncoding) -> list[str]:
    """Write the conversion of an action to a number from 0, if necessary."""
    if encoding.action_space.kind == "discrete":
        low = encoding.action_lows[0]
        return [f"action = {_subtract('action', low)}  # numbered from 0"] if low else []
    parts = [
        _subtract(f"int(value_{number})", low) for number, low in enumerate(encoding.action_lows)
    ]
    names = targets([f"value_{number}" for number in range(len(parts))])
    values = "action.ravel()" if len(encoding.action_space.shape) > 1 else "action"
    return [f"{names} = {values}", f"action = {_horner(encoding.action_sizes, parts)}"]


def _digits(value: str, radices: tuple[int, ...], names: list[str]) -> list[str]:
    """Write the division of a number into digits."""
    if len(radices) == 1:
        return [f"self.{names[0]} = {value}"]
    lines = []
    for index in range(len(radices) - 1, 1, -1):
        lines.append(f"rest, self.{names[index]} = divmod({value}, {radices[index]})")
        value = "rest"
    return [*lines, f"self.{names[0]}, self.{names[1]} = divmod({value}, {radices[1]})"]


def _horner(radices: tuple[int, ...], parts: list[str]) -> str:
    """Write a number of mixed radix."""
    total = parts[0]
    for radix, part in zip(radices[1:], parts[1:], strict=True):
        inner = f"({total})" if " + " in total or " - " in total else total
        total = f"{inner} * {radix} + {part}"
    return total


def _subtract(value: str, low: int) -> str:
    """Subtract the lowest value, if that is not 0."""
    return f"{value} {'-' if low > 0 else '+'} {abs(low)}" if low else value


def targets(names: list[str], prefix: str = "") -> str:
    """Write the targets of unpacking a sequence; a single name needs a comma."""
    return listed(names, prefix) + ("," if len(names) == 1 else "")
