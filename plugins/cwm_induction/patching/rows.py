"""What a program predicts beside what was recorded: every number by name, and where it is wrong."""

import ast
import keyword
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.evaluation import close
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn, Term, distinct, library
from cwm_induction.flattening import number_leaves

REWARD, TERMINATED = "reward", "terminated"

RESERVED = {"action", "actions", "observation", "numbers", "self", "np", REWARD, TERMINATED}

MOST_COLUMNS = 12
"""Components that corrections may read: of more, only those near the ones that are wrong."""

MOST_LEVELS = 12
"""Values of a whole number that a guard may name one by one."""


@dataclass(frozen=True)
class Rows:
    """Rows of a dataset, by names that a correction can use.

    `before` and `actions` are what was given; `plain` is what the program says to it, `now` the
    same after the corrections found so far, `truth` what was recorded: for every component its
    name with `_next`, and the reward and the termination. `counts` are the rows in which a
    component matters: what is seen after the end has no consequence.
    """

    before: dict[str, Array]
    actions: dict[str, Array]
    plain: dict[str, Array]
    now: dict[str, Array]
    truth: dict[str, Array]
    goes_on: Array
    whole: frozenset[str]
    bounds: dict[str, tuple[float, float]]
    grain: float
    solved: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, data: Dataset, predictions: Columns, names: Sequence[str]) -> Self:
        """Name the columns of a dataset and of predictions of all its rows."""
        space = data.observation_space
        before = dict(zip(names, _numbers(space, "observations", data.columns), strict=True))
        later = [f"{name}_next" for name in names]
        told = zip(later, _numbers(space, "next_observations", predictions), strict=True)
        true = zip(later, _numbers(space, "next_observations", data.columns), strict=True)
        leaves = number_leaves(space, "observations")
        floats = [leaf.space.is_float for leaf in leaves for _ in range(leaf.space.size)]
        grains = [
            float(np.finfo(data.columns[leaf.name].dtype).eps) / 2
            for leaf in leaves
            if leaf.space.is_float
        ]
        limits = [
            limit for leaf in leaves for limit in zip(leaf.space.low, leaf.space.high, strict=True)
        ]
        plain = dict(told) | {
            REWARD: predictions["rewards"].astype(float),
            TERMINATED: predictions["terminations"].astype(float),
        }
        return cls(
            before=before,
            actions=named_actions(data),
            plain=plain,
            now=plain,
            truth=dict(true)
            | {
                REWARD: data.columns["rewards"].astype(float),
                TERMINATED: data.columns["terminations"].astype(float),
            },
            goes_on=~data.columns["terminations"],
            whole=frozenset(name for name, real in zip(later, floats, strict=True) if not real),
            bounds=dict(zip(later, limits, strict=True)),
            grain=max(grains, default=float(np.finfo(float).eps)),
        )

    def __len__(self) -> int:
        return len(self.goes_on)

    @cached_property
    def components(self) -> list[str]:
        """The names of what is seen next."""
        return [name for name in self.now if name not in (REWARD, TERMINATED)]

    def counts(self, name: str) -> Array:
        """Return the mask of the rows in which a quantity is scored."""
        return self.goes_on if name in self.components else np.ones(len(self), bool)

    def right(self, name: str, values: Array | None = None) -> Array:
        """Return the mask of the rows in which a quantity, or other values for it, are right."""
        values = self.now[name] if values is None else values
        exact = name in self.whole or name == TERMINATED
        truth = self.truth[name]
        same = values == truth if exact else close(values, truth)
        return same | ~self.counts(name)

    def wrong(self, name: str) -> Array:
        """Return the mask of the rows in which a quantity is wrong and counts."""
        return ~self.right(name)

    @property
    def losses(self) -> int:
        """Return how many numbers are wrong in all."""
        return sum(int(self.wrong(name).sum()) for name in self.now)

    def tolerance(self, name: str) -> Array:
        """Return by how much a right formula may miss: what storing rounded the numbers by."""
        sizes = np.abs(self.truth[name]) + np.abs(self.now[name])
        if name.removesuffix("_next") in self.before:
            sizes = sizes + np.abs(self.before[name.removesuffix("_next")])
        tolerance: Array = 8 * self.grain * sizes + 1e-9
        return tolerance

    def corrected(self, name: str, values: Array) -> Self:
        """Return the rows after another correction."""
        return replace(self, now=self.now | {name: values}, solved=self.solved | {name})

    def columns(self, target: str) -> list[NamedColumn]:
        """Return the quantities that a correction of a target may read, itself apart."""
        near = self._near(target)
        then = [name for name in near if name != target]
        if target in (REWARD, TERMINATED) or len(then) < len(self.components):
            pass
        return [
            *(
                NamedColumn(name.removesuffix("_next"), self.before[name.removesuffix("_next")])
                for name in near
            ),
            *(NamedColumn(name, self.now[name]) for name in then),
        ]

    def inputs(self) -> list[NamedColumn]:
        """Return the action's numbers."""
        return [NamedColumn(name, values) for name, values in self.actions.items()][:MOST_COLUMNS]

    def shifts(self) -> Iterator[Term]:
        """Yield by how much functions of corrected components were shifted by that."""
        for name in self.solved - {REWARD, TERMINATED}:
            now, plain, old = self.now[name], self.plain[name], predicted(name)
            yield Term(f"({name} - {old})", now - plain, 1.0)
            yield Term(f"({name}**2 - {old}**2)", now**2 - plain**2, 1.2)
            yield Term(f"(abs({name}) - abs({old}))", np.abs(now) - np.abs(plain), 1.3)
            yield Term(f"(np.cos({name}) - np.cos({old}))", np.cos(now) - np.cos(plain), 1.5)
            yield Term(f"(np.sin({name}) - np.sin({old}))", np.sin(now) - np.sin(plain), 1.5)

    def terms(self, target: str, level: int) -> list[Term]:
        """Return what a correction of a target may add."""
        columns, inputs = self.columns(target), self.inputs()
        found = [*self.shifts(), *library(columns, inputs, level)]
        own, now = target.removesuffix("_next"), self.now[target]
        found.insert(0, Term(target, now, 1.0))
        if own in self.before:
            found.insert(0, Term(f"({target} - {own})", now - self.before[own], 1.0))
        return distinct(found)

    def _near(self, target: str) -> list[str]:
        """Return the components that a correction of a target may read."""
        every = self.components
        if len(every) <= MOST_COLUMNS:
            return every
        wrong = [name for name in every if name == target or self.wrong(name).any()]
        places = sorted(
            range(len(every)),
            key=lambda place: min(abs(place - every.index(name)) for name in wrong or every[:1]),
        )
        return [every[place] for place in sorted(places[:MOST_COLUMNS])]


def predicted(name: str) -> str:
    """Return what a correction calls the program's own value of a component."""
    return f"{name.removesuffix('_next')}_predicted"


def named_actions(data: Dataset) -> dict[str, Array]:
    """Return the numbers of the actions by name."""
    numbers = _numbers(data.action_space, "actions", data.columns)
    if data.action_space.kind == "discrete":
        return {"action": numbers[0]}
    return {f"action_{place}": column for place, column in enumerate(numbers)}


def names_in(program: str, count: int) -> list[str]:
    """Return a name for every component: those that the program unpacks into, or plain ones."""
    plain = [f"x{place}" for place in range(count)] if count > 1 else ["state"]
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.FunctionDef) and node.name == "set_state":
            names = _unpacked(node, count)
            if len(set(names) - RESERVED) == count and all(map(_usable, names)):
                return names
    return plain


def _unpacked(function: ast.FunctionDef, count: int) -> list[str]:
    """Return what a function unpacks its argument into, all at once or by place."""
    by_place: dict[int, str] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        [target, *_] = node.targets
        if isinstance(target, ast.Tuple) and len(target.elts) == count > 1:
            return [_short(element) for element in target.elts]
        for inner in ast.walk(node.value):
            is_place = isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Constant)
            if is_place and isinstance(inner.slice.value, int):  # type: ignore[attr-defined]
                by_place.setdefault(inner.slice.value, _short(target))  # type: ignore[attr-defined]
    return [by_place.get(place, "") for place in range(count)]


def _short(target: ast.expr) -> str:
    """Return the last part of a dotted name."""
    name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
    return str(name).lower().strip("_")


def _usable(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.endswith("_next")


def _numbers(space: Space, name: str, columns: Columns) -> list[Array]:
    """Return the numbers of a nested value, a column each."""
    return [
        column
        for leaf in number_leaves(space, name)
        for column in columns[leaf.name].reshape(len(columns[leaf.name]), -1).astype(float).T
    ]


def derived(columns: Sequence[NamedColumn]) -> Iterator[Term]:
    """Yield sums, differences and products of two quantities, and sizes of one."""
    for text, values, _ in columns:
        if values.min(initial=0) < 0 < values.max(initial=0):
            yield Term(f"abs({text})", np.abs(values), 1.3)
    for first, second in combinations(columns, 2):
        yield Term(f"{first.text} - {second.text}", first.values - second.values, 1.8)
        yield Term(f"{first.text} + {second.text}", first.values + second.values, 1.8)
        yield Term(f"{first.text} * {second.text}", first.values * second.values, 1.9)
