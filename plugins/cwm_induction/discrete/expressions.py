"""Python text of programs: conditions, constants, statements and observations."""

import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from cwm_induction.decision_list import RelationCondition
from cwm_induction.discrete.features import CaseList, RuleColumn
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


class WrittenCase(NamedTuple):
    """The expression of the rows of a label; earlier cases take precedence."""

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
class CaseWriter:
    """A writer of conditions; `spell` returns the expression of a column."""

    spell: Callable[[RuleColumn], str]
    rewards: tuple[str, ...]

    def cases(self, rules: CaseList) -> list[WrittenCase]:
        """Return the cases of rules; neighbours with one label become one case."""
        cases: list[WrittenCase] = []
        for rule in rules.found.rules:
            case = WrittenCase(self._conjunction(rules.columns, rule.conditions), rule.effect)
            if cases and cases[-1].label == case.label:
                case = WrittenCase(_either(cases.pop().expression, case.expression), case.label)
            cases.append(case)
        return cases

    def condition(self, rules: CaseList, *, opposite: bool = False) -> str:
        """Join the cases of a boolean rule into one expression, or write its opposite."""
        expression = ""
        for case, label in reversed(self.cases(rules)):
            if label:
                expression = _either(case, expression) if expression else case
            elif expression:
                expression = f"not ({case}) and ({expression})"
        if opposite:
            return f"not ({expression})" if expression else "True"
        return expression or "False"

    def _conjunction(
        self, columns: tuple[RuleColumn, ...], conditions: tuple[RelationCondition, ...]
    ) -> str:
        """Write conditions; two bounds of a column become one comparison."""
        texts: list[str] = []
        for name in dict.fromkeys(condition.feature for condition in conditions):
            column = columns[int(name)]
            found = {c.operator: c.value for c in conditions if c.feature == name}
            excluded = [c.value for c in conditions if (c.feature, c.operator) == (name, "!=")]
            if ">=" in found and "<=" in found:
                low, high = (self._value(column, found.pop(side)) for side in (">=", "<="))
                texts.append(f"{low} <= {self.spell(column)} <= {high}")
            found.pop("!=", None)
            texts += [self._comparison(column, *pair) for pair in found.items()]
            texts += [self._comparison(column, "!=", value) for value in excluded]
        return " and ".join(texts)

    def _comparison(self, column: RuleColumn, operator: str, value: int) -> str:
        name = self.spell(column)
        if operator:
            return f"{name} {operator} {self._value(column, value)}"
        return name if value else f"not {name}"

    def _value(self, column: RuleColumn, value: int) -> str:
        if column.kind == "reward":
            return self.rewards[value]
        return str(value - column.size // 2 if column.is_signed else value)


def _either(one: str, other: str) -> str:
    """Join two expressions by `or`."""
    grouped = f"({other})" if " and " in other and not other.startswith("(") else other
    return f"{one} or {grouped}"


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
    cases: list[WrittenCase], target: str, values: dict[int, str], default: str | None
) -> list[str]:
    """Write an assignment by the first true case, or of the default if there is one."""
    lines: list[str] = [] if default is None else [f"{target} = {default}"]
    while cases and not cases[-1].label:
        cases = cases[:-1]
    for number, case in enumerate(cases):
        assign = f"{target} = {values[case.label]}" if case.label else "pass"
        lines += [*bracketed("elif " if number else "if ", case.expression, ":"), f"    {assign}"]
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
