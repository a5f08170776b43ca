"""Quantities that depend on the coordinates of a mechanism: positions of parts, and costs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from itertools import product as product_of
from typing import Self

import numpy as np

from cwm_induction.continuous.least_squares import RIGHT
from cwm_induction.continuous.regression import Formula, SearchLimits, exact, solve
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, NamedColumn, Term, distinct, product
from cwm_induction.continuous.variables import Variable
from cwm_induction.effort import Share
from cwm_induction.mechanics.mechanism import Moved
from cwm_induction.mechanics.motion import Mechanics, Motion
from cwm_induction.mechanics.text import phase_text

BACKWARD = SearchLimits(1, 1, 1, eliminate=30)
"""Backward elimination: waves of small angles are too similar for forward selection."""

PLACES = ("q", "stage")
"""Simulators compute positions from the next coordinates or from the last integrator stage."""


@dataclass(frozen=True)
class Kinematics:
    """A mechanism with its predictions `moved`; `right` masks the correctly predicted rows."""

    mechanics: Mechanics
    moved: Moved
    right: Array

    @classmethod
    def of(cls, mechanics: Mechanics) -> Self:
        """Predict every row."""
        motion = Motion.of(mechanics.joints, mechanics.inputs, mechanics.stepping.time)
        with np.errstate(all="ignore"):
            moved = mechanics.form.step(
                mechanics.point[None], motion.q, motion.v, motion.u, mechanics.stepping
            )
        off = np.abs(mechanics.residuals(motion))
        free = [joint.position.free for joint in mechanics.joints]
        free += [joint.velocity.free for joint in mechanics.joints]
        right: Array = np.where(np.stack(free, 1), off, 0).max(1) <= RIGHT
        return cls(mechanics, Moved(*(part[0] for part in moved)), right)

    def component(
        self, samples: Samples, variable: Variable, still: Sequence[NamedColumn], effort: Share
    ) -> Formula | None:
        """Explain a variable as the position of a point of the mechanism.

        The position is relative to a fixed point. Return the formula of the change of the
        variable, or None without an accurate formula.
        """
        usable = samples.smooth & variable.free & self.right
        rows = np.flatnonzero(usable & samples.learn)[:300]
        check = usable & ~samples.learn
        # A few fixed points determine their weights only without a constant term.
        constants: list[list[Term]] = [[], [Term(ONE, np.ones(len(samples)), 1.0)]]
        for constant, place in product_of(constants, PLACES) if len(rows) >= 20 else ():
            terms = [*constant, *(Term(text, values, 1.0) for text, values, _ in still)]
            terms += [Term(c.text, c.values, 1.0) for c in self._slides(place)]
            terms += self._waves(place, self.mechanics.form.combinations[1:], ("cos", "sin"))
            formula = exact(
                distinct(terms), variable.then, variable.quarter, rows, effort, BACKWARD
            )
            if formula is None:
                continue
            change = formula.less(Term(variable.name, variable.now, 1.0))
            if variable.matches(change.values(len(samples)))[check].mean() > 0.95:
                return change
        return None

    def costs(
        self, inputs: Sequence[NamedColumn], rewards: Array, rows: Array
    ) -> Iterator[list[Term]]:
        """Yield sets of terms that can represent squares of positions and velocities."""
        for waves in (("cos",), ("cos", "sin")):
            sets = [distinct(self._costs(place, inputs, waves)) for place in PLACES]
            yield from sorted(sets, key=lambda terms: _largest_residual(terms, rewards, rows))

    def _costs(
        self, place: str, inputs: Sequence[NamedColumn], waves: tuple[str, ...]
    ) -> Iterator[Term]:
        """Yield products of positions, velocities and inputs; without sines only even products."""
        odd = len(waves) > 1
        speeds = [
            NamedColumn(f"v[{i}]", self.moved.v[:, i]) for i in range(len(self.mechanics.joints))
        ]
        slides = self._slides(place)
        yield Term(ONE, np.ones(len(self.right)), 1.0)
        for columns in (speeds, slides, inputs):
            for a, b in combinations_with_replacement(columns, 2):
                yield product(a, b, 1.0)
            if odd:
                yield from (Term(text, values, 1.0) for text, values, _ in columns)
        yield from self._waves(place, self._double_waves, waves)
        for wave in self._waves(
            place, self.mechanics.form.combinations[1:], ("sin", "cos")[: 1 + odd]
        ):
            for text, values, _ in slides:
                yield Term(f"{text} * {wave.text}", values * wave.values, 1.0)

    def _slides(self, place: str) -> list[NamedColumn]:
        """Return the coordinates that are not angles."""
        values = getattr(self.moved, place)
        slides = [i for i in range(values.shape[1]) if i not in self.mechanics.form.angles]
        return [NamedColumn(f"{place}[{i}]", values[:, i]) for i in slides]

    def _waves(self, place: str, waves: Array, functions: Sequence[str]) -> Iterator[Term]:
        """Yield sines or cosines of combinations of the coordinates."""
        values = getattr(self.moved, place)
        names = [f"{place}[{i}]" for i in range(values.shape[1])]
        for factors in waves:
            for name in functions:
                wave = getattr(np, name)(values @ factors)
                yield Term(f"np.{name}({phase_text(factors, names)})", wave, 1.0)

    @cached_property
    def _double_waves(self) -> Array:
        """Combinations of angles in products of two waves, one row each."""
        single = self.mechanics.form.combinations
        double = [a + sign * b for a in single for b in single for sign in (1, -1)]
        leading = [next((x for x in row if x), 0) > 0 for row in double]
        return np.unique(np.array(double)[leading], axis=0)


def _largest_residual(terms: Sequence[Term], rewards: Array, rows: Array) -> float:
    """Return the largest residual of the rewards after a regression on all terms."""
    matrix = np.stack([term.values[rows] for term in terms], 1)
    return float(np.abs(matrix @ solve(matrix, rewards[rows]) - rewards[rows]).max(initial=0))
