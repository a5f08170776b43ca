"""The words of a program: names of factors, what rules look at, and lines that are not too long."""

import re
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from cwm_induction.discrete.conditions import Condition, Constants, Speaker, broken
from cwm_induction.discrete.drift import Chances
from cwm_induction.discrete.dynamics import Dynamics
from cwm_induction.discrete.formulas import Formula
from cwm_induction.discrete.names import factor_names
from cwm_induction.discrete.outcomes import Outcomes
from cwm_induction.discrete.scene import RUN_KINDS
from cwm_induction.discrete.tables import Column
from cwm_induction.discrete.transitions import Frame


class Model(NamedTuple):
    """Everything that was found about an environment."""

    frame: Frame
    dynamics: Dynamics
    outcomes: Outcomes
    rewards: tuple[float, ...]
    chances: Chances | None = None
    formula: Formula | None = None


class Wording:
    """The names and constants of one program; `known` are the factors that have a next value."""

    def __init__(self, model: Model) -> None:
        self.model, self.dynamics = model, model.dynamics
        self.names = factor_names(model.dynamics)
        self.constants = Constants()
        changed = {change.factor for change in self.dynamics.changes}
        moves = self.dynamics.moves
        self.changing = [i for i, move in enumerate(moves) if move.moves or i in changed]
        self.moving = [i for i, move in enumerate(moves) if move.moves]
        self.known = set(self.moving)
        self.rewards = tuple(repr(reward) for reward in model.rewards)
        self.speaker = Speaker(self.constants, self.spell, self.rewards)

    def spell(self, column: Column) -> str:
        """Name what a rule looks at."""
        paid = "bonus" if self.model.formula else "reward"
        plain = {"same": "unchanged", "done": "terminated", "reward": paid}
        if column.kind in ("at", "perhaps", "site"):
            return self._lies(column)
        if column.kind == "part":
            return part_of_action(self.dynamics.sizes.parts, column.other)
        if column.kind in ("pick", "meets", "change", "gap", *RUN_KINDS):
            return self._compared(column)
        if column.factor < 0:
            return plain.get(column.kind, column.kind)
        name = self.names[column.factor]
        new = f"new_{name}" if column.factor in self.known else name
        special = {"aimed": f"aimed_{name}", "edge": f"{name} + new_{name}", "new": new}
        return special.get(column.kind, name)

    def _compared(self, column: Column) -> str:
        """Name what a rule says about several factors, or about the change of one."""
        if column.kind == "pick":
            return picked([self.names[cell] for cell in column.cell], self.names[column.factor])
        if column.kind in RUN_KINDS:
            return _about_run(column, [self.spell(Column("new", f, 0)) for f in column.cell])
        name = self.spell(Column("new", column.factor, 0))
        if column.kind == "change":
            return f"{name} - {self.names[column.factor]}"
        other = self.spell(Column("new", column.other, 0))
        return f"{name} {'==' if column.kind == 'meets' else '-'} {other}"

    def after(self, factor: int) -> str:
        """Name the value of a factor after the step."""
        changes = factor in self.changing
        return f"new_{self.names[factor]}" if changes else self.names[factor]

    def unchanged(self) -> list[str]:
        """Write whether the state stays as it was."""
        names = [self.names[i] for i in self.changing]
        if len(names) == 1:
            return [f"unchanged = new_{names[0]} == {names[0]}"]
        return broken("unchanged = ", f"({listed(names, 'new_')}) == ({listed(names)})")

    def cell(self) -> str:
        """Write the present cell."""
        landmarks = self.dynamics.sizes.landmarks
        names = [self.names[place] for place in landmarks.places] if landmarks else []
        return names[0] if len(names) == 1 else f"({listed(names)})"

    def value_at(self) -> str:
        """Write the constant that says what stands for which cell."""
        landmarks = self.dynamics.sizes.landmarks
        if landmarks is None:
            return "{}"
        entries = [
            f"{cell[0] if len(cell) == 1 else cell}: {value}"
            for cell, value in landmarks.values.items()
        ]
        name = self.names[landmarks.item]
        comment = f"{name} that lies at {self.cell()}, or is to be brought there"
        return self.constants.add(f"{name.upper()}_AT", "{" + ", ".join(entries) + "}", comment)

    def _lies(self, column: Column) -> str:
        """Write what is said about the present cell and what a factor stands for."""
        landmarks, cell = self.dynamics.sizes.landmarks, self.cell()
        if landmarks is None or column.kind == "site":
            return f"{cell} in {self.value_at()}"
        name = self.names[column.factor]
        if column.kind == "at":
            return f"{self.value_at()}.get({cell}) == {name}"
        cells = {**landmarks.possible, **{value: (at,) for value, at in landmarks.sites.items()}}
        entries = [f"{value}: {{{str(cells[value])[1:-1].rstrip(',')}}}" for value in sorted(cells)]
        comment = f"cells that {name} may stand for: the one that was seen, or all not ruled out"
        display = "{" + ", ".join(entries) + "}"
        constant = self.constants.add(f"{name.upper()}_CELLS", display, comment)
        return f"{cell} in {constant}.get({name}, ())"


def _about_run(column: Column, names: list[str]) -> str:
    """Write what is said about several factors together."""
    values = f"[{listed(names)}]"
    if column.kind == "rising":
        return f"sorted({values}) == {values}"
    if column.kind == "alike":
        return f"len({{{listed(names)}}}) == 1"
    return f"sum({values})" if column.kind == "sum" else f"{values}.count({column.other})"


def part_of_action(sizes: tuple[int, ...], part: int) -> str:
    """Write a part of an action, which is a number of mixed radix."""
    stride = prod(sizes[part + 1 :])
    whole = f"action // {stride}" if stride > 1 else "action"
    return f"{whole} % {sizes[part]}" if part else whole


def picked(cells: list[str], pointer: str) -> str:
    """Write the one of some factors that another points at."""
    return f"({listed(cells)})[{pointer}]"


def listed(names: list[str], prefix: str = "") -> str:
    """Write names with a prefix, separated by commas."""
    return ", ".join(prefix + name for name in names)


def assignments(left: str, right: str, names: list[str]) -> Iterator[str]:
    """Assign names with one prefix to the same with another, some on each line."""
    chunk: list[str] = []
    for name in names:
        if chunk and len(f"{listed([*chunk, name], left)} = {listed([*chunk, name], right)}") > 80:
            yield f"{listed(chunk, left)} = {listed(chunk, right)}"
            chunk = []
        chunk.append(name)
    if chunk:
        yield f"{listed(chunk, left)} = {listed(chunk, right)}"


def chain(
    conditions: list[Condition], target: str, values: dict[int, str], default: str | None
) -> list[str]:
    """Assign by the last condition that holds; without a default nothing is assigned otherwise."""
    lines: list[str] = [] if default is None else [f"{target} = {default}"]
    word = "if"
    for number, condition in reversed(list(enumerate(conditions))):
        if condition.label or number:
            value = values.get(condition.label)
            assign = "pass" if value is None else f"{target} = {value}"
            lines += [*broken(f"{word} ", condition.expression, ":"), f"    {assign}"]
            word = "elif"
    return lines


def mentions(text: str, name: str) -> bool:
    """Say whether a variable is used."""
    return re.search(rf"(?<![\w.]){name}\b", text) is not None
