"""Sets of terms that rewards often consist of."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, combinations_with_replacement

import numpy as np

from cwm_induction.continuous.least_squares import descended, shortened
from cwm_induction.continuous.regression import (
    Formula,
    Projection,
    SearchLimits,
    Target,
    exact,
    orthonormal,
)
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
from cwm_induction.writing.rounding import literal

MOST_COLUMNS = 8
"""Lengths and differences are tried only for at most this many quantities."""

MOST_FORMULA_ROWS = 600
"""Number of rows for fitting a formula; held-out rows check it."""

MIN_HELD_OUT_RIGHT = 0.98
"""A formula is accepted if it predicts more than this share of the held-out rows."""


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

    def law_libraries(self) -> list[list[Term]]:
        """Return sets of terms, the smallest first: powers, curves, products and lengths.

        The last set has powers of values before and after the step, products with inputs,
        distances, and lengths.
        """
        now, then = self.now, self.then
        later = [*self.base(), *_powers(then)]
        pairs = [product(a, b) for a, b in combinations_with_replacement(then, 2)]
        curves = [*waves(then), *pairs, *sums_of_angles(self.variables)]
        crossed = [product(given, column, 1.5) for given in self.inputs for column in [*now, *then]]
        sizes = [Term(f"abs({text})", np.abs(values), 1.8) for text, values, _ in crossed]
        mixed = [*later, *_powers(now), *crossed, *sizes]
        if len(self.places) <= MOST_COLUMNS:
            places = [v.next_column for v in self.places]
            mixed += [
                Term(f"abs({a.text} - {b.text})", np.abs(a.values - b.values), 1.5)
                for a, b in combinations(places, 2)
            ]
            mixed += [*hypotenuses(places), *hypotenuses([v.column for v in self.places])]
        return [distinct(later), distinct([*later, *curves]), distinct(mixed)]


def sums_of_angles(variables: Sequence[Variable]) -> list[Term]:
    """Return cosines and sines of angles, and of sums of angles, after the step."""
    angles = [variable for variable in variables if variable.is_angle]
    terms = []
    for size in range(1, len(angles) + 1):
        for group in combinations(angles, size):
            text = " + ".join(variable.next for variable in group)
            total = np.sum([variable.then for variable in group], axis=0)
            terms.append(Term(f"np.cos({text})", np.cos(total), 1.0 + 0.3 * size))
            terms.append(Term(f"np.sin({text})", np.sin(total), 1.0 + 0.3 * size))
    return terms


def _powers(columns: Sequence[NamedColumn]) -> list[Term]:
    """Return the columns, their squares and their absolute values."""
    plain = [Term(text, values, 1.0) for text, values, _ in columns]
    squares = [Term(f"{text}**2", values**2, 1.0) for text, values, _ in columns]
    sizes = [Term(f"abs({text})", np.abs(values), 1.2) for text, values, _ in columns]
    return [*plain, *squares, *sizes]


def formula_in(
    context: RewardContext,
    terms: Sequence[Term],
    effort: Share,
    search: SearchLimits,
    known: Array | bool = True,
) -> Formula | None:
    """Return a formula for the known rewards of non-terminal rows, checked on held-out rows.

    Return None if no formula holds.
    """
    samples, rewards = context.samples, context.samples.rewards
    usable = samples.smooth & known
    few = int((usable & samples.learn).sum()) < 3 * len(terms) and known is not True
    rows = np.flatnonzero(usable if few else usable & samples.learn)[:MOST_FORMULA_ROWS]
    enough = len(terms) <= 0.5 * len(rows)  # with fewer rows, all terms together fit any target
    if enough and not _can_explain(context, terms, rows, effort):
        return None
    size, check = np.abs(rewards), usable & ~samples.learn
    rounding = 8 * samples.grain * (size + size.mean()) + 1e-12
    for tolerance in (rounding, context.tolerance):
        formula = exact(terms, rewards, tolerance, rows, effort, search)
        if formula is None:
            continue
        off = np.abs(formula.values(len(samples)) - rewards)
        held = (off <= 4 * context.tolerance)[check]
        if not held.size or held.mean() > MIN_HELD_OUT_RIGHT:
            return formula
    return None


def _can_explain(context: RewardContext, terms: Sequence[Term], rows: Array, effort: Share) -> bool:
    """Return whether all terms together explain the rewards of some rows (indices)."""
    if not effort.spend(4.0 * len(rows) * len(terms) ** 2):
        return False
    basis = orthonormal(np.stack([term.values[rows] for term in terms], 1), least=1e-9)
    rewards = context.samples.rewards[rows]
    rest = rewards - basis @ (basis.T @ rewards)
    return bool((np.abs(rest) <= 2 * context.tolerance[rows]).all())


MOST_ROWS = 300
"""Number of rows for fitting a point: it has few coordinates, so few rows are enough."""

MOST_PLACES = 8
"""Points are searched in this many coordinates, one or two at a time."""

MAX_REFINED = 3
"""Number of starting points that are refined."""

POINT_OPERATIONS = 4e5
"""Fixed number of operations for trying a point, independent of the number of rows."""

STARTS = (33, 9)
"""Starting points per coordinate, for distances in one or two coordinates."""


@dataclass(frozen=True)
class Distances:
    """A search for a point whose distances before and after the step complete other terms."""

    context: RewardContext
    effort: Share

    def libraries(self) -> Iterator[list[Term]]:
        """Yield the terms and the distances from a fitting point, for each group of coordinates."""
        if self._projection.rows.size < 20:
            return
        for places in self._groups():
            point = self._best(places)
            if point is not None:
                fits = partial(self._fits, places)
                short = shortened(point, fits, range(len(point)))
                yield [*self._terms, *self._distance_terms(places, short)]

    def _groups(self) -> Iterator[tuple[Variable, ...]]:
        places = [v for v in self.context.places if len(np.unique(v.then)) > 20][:MOST_PLACES]
        yield from ((place,) for place in places)
        yield from combinations(places, 2)

    def _best(self, places: Sequence[Variable]) -> Array | None:
        """Return a point whose distances and the other terms explain all rows, or None."""
        axes = [_axis(variable, STARTS[len(places) - 1]) for variable in places]
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
        texts = [_text(part, point) for part in names]
        cost = 1.5 + 0.5 * len(point)
        values = self._values(places, point)
        return [Term(text, part, cost) for text, part in zip(texts, values, strict=True)]

    def _values(self, places: Sequence[Variable], point: Array) -> list[Array]:
        center = point[:, None]
        then = np.stack([v.then for v in places]) - center
        now = np.stack([v.now for v in places]) - center
        return [np.sqrt((part**2).sum(0)) for part in (then, now)]

    @cached_property
    def _terms(self) -> list[Term]:
        """The other terms: powers of values after the step."""
        return distinct([*self.context.base(), *_powers(self.context.then)])

    @cached_property
    def _projection(self) -> Projection:
        samples, tolerance = self.context.samples, 2 * self.context.tolerance
        target = Target(samples.rewards, tolerance, samples.smooth & samples.learn)
        return Projection.of(self._terms, target, MOST_ROWS)


def _text(names: Sequence[str], point: Array) -> str:
    """Return the source text of the distance from a point in one or two coordinates."""
    shifted = [
        f"{name} {'+' if value < 0 else '-'} {literal(abs(value))}" if value else name
        for name, value in zip(names, point.tolist(), strict=True)
    ]
    return f"abs({shifted[0]})" if len(shifted) == 1 else f"np.hypot({', '.join(shifted)})"


def _axis(variable: Variable, count: int) -> list[float]:
    low, high = float(variable.then.min()), float(variable.then.max())
    margin = 0.25 * (high - low)
    return [float(value) for value in np.linspace(low - margin, high + margin, count)]
