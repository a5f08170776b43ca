"""Sets of terms that rewards often consist of."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.ending import sums_of_angles
from cwm_induction.continuous.least_squares import descended, shortened
from cwm_induction.continuous.regression import Formula, Projection, Target
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import (
    NamedColumn,
    Term,
    distinct,
    hypotenuses,
    library,
    product,
    waves,
)
from cwm_induction.continuous.variables import MATCH, Variable
from cwm_induction.effort import Share
from cwm_induction.writing.rounding import literal, rounded

MOST_COLUMNS = 8
"""Lengths and the full library are tried only for at most this many quantities."""


@dataclass(frozen=True)
class RewardContext:
    """The quantities of a reward: variables before and after the step, and the inputs."""

    samples: Samples
    variables: Sequence[Variable]
    inputs: Sequence[NamedColumn]

    @property
    def tolerance(self) -> Array:
        """A quarter of the largest error of a correct prediction, for every row."""
        tolerance: Array = 0.25 * MATCH * (1 + np.abs(self.samples.rewards))
        return tolerance

    @property
    def now(self) -> list[NamedColumn]:
        """Columns of all variables before the step."""
        return [v.column for v in self.variables]

    @property
    def then(self) -> list[NamedColumn]:
        """Columns of the moving variables after the step."""
        return [v.next_column for v in self.variables if not v.still]

    @property
    def places(self) -> list[Variable]:
        """Moving variables that are not angles."""
        return [v for v in self.variables if not v.is_angle and not v.still]

    def base(self) -> list[Term]:
        """Return the constant and common costs of inputs."""
        terms = [*library([], self.inputs, 1), *_powers(self.inputs)]
        if self.samples.action_space.kind == "box" and len(self.inputs) > 1:
            effort = np.sum([column.values**2 for column in self.inputs], axis=0)
            terms.append(Term("np.sum(np.square(action))", effort, 1.0))
        return distinct(terms)

    def libraries(self) -> Iterator[list[Term]]:
        """Yield sets of terms, the likeliest first: costs are often squares and distances."""
        base, now, then = self.base(), self.now, self.then
        yield distinct([*base, *_powers(now)])
        yield distinct([*base, *_powers(then)])
        yield self.mixed()
        for columns in (now, then):
            pairs = [product(a, b) for a, b in combinations_with_replacement(columns, 2)]
            yield distinct([*base, *_powers(columns), *waves(columns), *pairs])
        turned = sums_of_angles(self.variables)
        if turned:
            yield distinct([*base, *_powers(then), *turned])
        for columns in (now, then):
            if len(columns) <= MOST_COLUMNS:
                yield distinct([*base, *_powers(columns), *library(columns, self.inputs, 3)])

    def changes(self) -> list[Term]:
        """Return changes of positions, and values after the step.

        Variables that are angles or have a cycle have no change term.
        """
        differences = [
            Term(f"({v.next} - {v.name})", v.then - v.now, 0.8)
            for v in self.places
            if v.cycle is None
        ]
        return distinct([*differences, *library(self.then, [], 1)])

    def law_libraries(self) -> list[list[Term]]:
        """Return sets of terms for laws that hold in parts of the rows, the smallest first."""
        later = distinct([*self.base(), *_powers(self.then)])
        places = [v.next_column for v in self.places] if len(self.places) <= MOST_COLUMNS else []
        gaps = [
            Term(f"abs({a.text} - {b.text})", np.abs(a.values - b.values), 1.5)
            for a, b in combinations(places, 2)
        ]
        return [later, distinct([*later, *gaps, *_powers(self.now)]), self.mixed()]

    def mixed(self) -> list[Term]:
        """Return powers of values before and after the step, products with inputs, and lengths."""
        now, then = self.now, self.then
        crossed = [product(given, column, 1.5) for given in self.inputs for column in [*now, *then]]
        sizes = [Term(f"abs({text})", np.abs(values), 1.8) for text, values, _ in crossed]
        terms = [*self.base(), *_powers(now), *_powers(then), *crossed, *sizes]
        if len(self.places) <= MOST_COLUMNS:
            for columns in ([v.next_column for v in self.places], [v.column for v in self.places]):
                terms += hypotenuses(columns)
        return distinct(terms)


def _powers(columns: Sequence[NamedColumn]) -> list[Term]:
    """Return the columns, their squares and their absolute values."""
    plain = [Term(text, values, 1.0) for text, values, _ in columns]
    squares = [Term(f"{text}**2", values**2, 1.0) for text, values, _ in columns]
    sizes = [Term(f"abs({text})", np.abs(values), 1.2) for text, values, _ in columns]
    return [*plain, *squares, *sizes]


MOST_ROWS = 300
"""Number of rows for fitting a point: it has few coordinates, so few rows are enough."""

MOST_PLACES = 8
"""Points are searched in this many coordinates, at most two at a time.

Three at a time are tried only if there are at most five coordinates.
"""

MAX_REFINED = 3
"""Number of starting points that are refined."""

POINT_OPERATIONS = 4e5
"""Fixed number of operations for trying a point, independent of the number of rows."""


class DistanceShape(NamedTuple):
    """A function of a squared distance, with starting values of its rate and of the point.

    `grid` has the number of starting points per coordinate, for one coordinate, two, and so on.
    """

    text: str
    function: Callable[[Array, float], Array]
    rates: tuple[float, ...]
    grid: tuple[int, ...]


SHAPES = (
    DistanceShape("", lambda square, rate: np.sqrt(square), (), (33, 9, 5)),
    DistanceShape(
        "np.exp(-{} * {})", lambda square, rate: np.exp(-abs(rate) * square), (2.0, 20.0), (15, 5)
    ),
)
"""Plain distances, and bumps whose rates are relative to the spread of the coordinates."""


@dataclass(frozen=True)
class Distances:
    """A search for a point whose distances before and after the step complete other terms.

    The array `point` has the coordinates, followed by a rate if the shape has rates.
    """

    context: RewardContext
    terms: Sequence[Term]
    effort: Share
    shape: DistanceShape

    def libraries(self) -> Iterator[list[Term]]:
        """Yield the terms and the distances from a fitting point, for each group of coordinates."""
        if self._projection.rows.size < 20:
            return
        for places in self._groups():
            point = self._best(places)
            if point is not None:
                fits = partial(self._fits, places)
                short = shortened(point, fits, range(len(point)))
                yield [*self.terms, *self._distance_terms(places, short)]

    def _groups(self) -> Iterator[tuple[Variable, ...]]:
        places = [v for v in self.context.places if len(np.unique(v.then)) > 20][:MOST_PLACES]
        for size in range(1, 1 + len(self.shape.grid[: 3 if len(places) <= 5 else 2])):
            yield from combinations(places, size)

    def _best(self, places: Sequence[Variable]) -> Array | None:
        """Return a point whose distances and the other terms explain all rows, or None."""
        axes = [_axis(variable, self.shape.grid[len(places) - 1]) for variable in places]
        if self.shape.rates:
            spread = float(sum(np.ptp(variable.then) ** 2 for variable in places))
            axes.append([rate / spread for rate in self.shape.rates])
        starts = [np.array(point) for point in itertools.product(*axes)]
        if not self.effort.spend(
            len(starts) * (4.0 * self._projection.basis.size + POINT_OPERATIONS)
        ):
            return None
        sizes = [float(np.linalg.norm(self._residual(places, start))) for start in starts]
        for index in np.argsort(sizes, kind="stable")[:MAX_REFINED].tolist():
            steps = 25.0 * (len(axes) + 1)
            if not self.effort.spend(
                steps * (4.0 * self._projection.basis.size + POINT_OPERATIONS)
            ):
                return None
            point = descended(
                lambda point: self._residual(places, point), starts[index], self.effort
            )
            if self._fits(places, point):
                return point
        return None

    def _fits(self, places: Sequence[Variable], point: Array) -> bool:
        return bool(np.abs(self._residual(places, point)).max() <= 1)

    def _residual(self, places: Sequence[Variable], point: Array) -> Array:
        """Return the residual after adding the distances, in units of the tolerance."""
        rows, scale = self._projection.rows, self._projection.scale
        group = np.stack([values[rows] for values in self._values(places, point)], 1)
        return self._projection.left(group * scale[:, None])

    def _distance_terms(self, places: Sequence[Variable], point: Array) -> list[Term]:
        """Return terms for the distances from a point after and before the step."""
        names = [v.next for v in places], [v.name for v in places]
        texts = [self._text(part, point) for part in names]
        cost = 1.5 + 0.5 * len(point)
        values = self._values(places, point)
        return [Term(text, part, cost) for text, part in zip(texts, values, strict=True)]

    def _text(self, names: Sequence[str], point: Array) -> str:
        if not self.shape.text:
            return _text(names, point)
        shifted = [
            shifted_text(name, value) for name, value in zip(names, point.tolist(), strict=False)
        ]
        squares = " + ".join(f"({text})**2" for text in shifted)
        inner = f"({squares})" if len(shifted) > 1 else squares
        return self.shape.text.format(literal(abs(float(point[-1]))), inner)

    def _values(self, places: Sequence[Variable], point: Array) -> list[Array]:
        center = point[: len(places), None]
        then = np.stack([v.then for v in places]) - center
        now = np.stack([v.now for v in places]) - center
        with np.errstate(all="ignore"):
            shaped = [self.shape.function((part**2).sum(0), point[-1]) for part in (then, now)]
        return [np.nan_to_num(part, posinf=0.0) for part in shaped]

    @cached_property
    def _projection(self) -> Projection:
        samples, tolerance = self.context.samples, 2 * self.context.tolerance
        target = Target(samples.rewards, tolerance, samples.smooth & samples.learn)
        return Projection.of(self.terms, target, MOST_ROWS)


def distances_in(formula: Formula) -> list[Term]:
    """Return distances in the next state that a formula contains as sums of squares.

    The squares of two or three coordinates must have equal weights.
    """
    parts = {t.text: (w, t.values) for t, w in zip(formula.terms, formula.weights, strict=True)}
    names = [text.removesuffix("**2") for text in parts if text.endswith("_next**2")]
    distances = []
    for group in (pair for size in (2, 3) for pair in combinations(names[:6], size)):
        squares = [parts[f"{name}**2"] for name in group]
        weight = squares[0][0]
        if any(abs(other - weight) > 1e-6 * abs(weight) for other, _ in squares):
            continue
        lines = [parts.get(name, (0.0, np.zeros(1))) for name in group]
        point = np.array([rounded(-slope / (2 * weight), 6) for slope, _ in lines])
        inner = np.sum([square for _, square in squares], axis=0) + float(point @ point)
        inner = inner - sum(2 * c * line for c, (_, line) in zip(point, lines, strict=True))
        distances.append(Term(_text(group, point), np.sqrt(np.maximum(inner, 0)), 1.0))
    return distances


def _text(names: Sequence[str], point: Array) -> str:
    shifted = [shifted_text(name, value) for name, value in zip(names, point.tolist(), strict=True)]
    if len(shifted) == 1:
        return f"abs({shifted[0]})"
    if len(shifted) == 2:
        return f"np.hypot({', '.join(shifted)})"
    return f"np.sqrt({' + '.join(f'({text})**2' for text in shifted)})"


def shifted_text(text: str, value: float) -> str:
    """Return the source text of a quantity minus a number."""
    return f"{text} {'+' if value < 0 else '-'} {literal(abs(value))}" if value else text


def _axis(variable: Variable, count: int) -> list[float]:
    low, high = float(variable.then.min()), float(variable.then.max())
    margin = 0.25 * (high - low)
    return [float(value) for value in np.linspace(low - margin, high + margin, count)]
