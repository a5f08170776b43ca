"""Equations with a term that has a constant inside, found by variable projection.

For given inner constants the rest is linear (Golub and Pereyra, 1973): a grid
of constants is scanned with all other terms present, the best are refined, and
what is not needed is left out in the end.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, product
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.atoms import COST, Atom, Products, atoms
from cwm_induction.continuous.least_squares import descended, shortened
from cwm_induction.continuous.regression import (
    SLACK,
    Formula,
    Projection,
    SearchLimits,
    Target,
    exact,
    fitted,
    solve,
)
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, NamedColumn, Term, distinct, hypotenuses, library
from cwm_induction.continuous.variables import Variable
from cwm_induction.effort import Share
from cwm_induction.writing.rounding import literal

MOST_ROWS = 300
"""Rows that constants are fitted to: every one of them costs, and few constants need few."""

FEWEST_ROWS = 20
"""Rows below which an equation with a constant inside would be a guess."""

REFINED = 8
"""How many of the shapes that look best have their constants refined."""

AT_ONCE = 8
"""Constants that are tried together."""

MOST_ATOMS = 3
"""Atoms after which the search ends."""

MOST_FACTORS = 10
"""Quantities that an atom is multiplied by: each widens every decomposition."""

CALL = 2e4
"""What a small decomposition costs however small it is, in multiplications."""

CLIPPED = re.compile(r"np\.clip\(\w+\[\d+\], [^()]*\)")
"""How an input that is cut off at limits is written."""

STEEPNESSES = (0.6, 1.5, 3.0, 6.0)
"""Exponents of a saturation to begin with, from flat to nearly a step."""

HALVES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Quantiles at which a saturation may be half, to begin with."""


class Inner(NamedTuple):
    """Atoms with their constants."""

    atoms: tuple[Atom, ...] = ()
    constants: tuple[float, ...] = ()

    def at(self, constants: Array) -> "Inner":
        """Return the same atoms with other constants."""
        return Inner(self.atoms, tuple(constants.tolist()))


@dataclass(frozen=True)
class Scan:
    """Looks for atoms that, times some factors, complete a sum of the other terms.

    With `weights` atoms and factors are given at several stages, one after another, and enter
    as weighted means over these. `kept` says which of their products may be used.
    """

    terms: Sequence[Term]
    factors: Sequence[NamedColumn]
    target: Target
    effort: Share
    weights: Array | None = None
    kept: tuple[bool, ...] | None = None

    def formula(self, arguments: Sequence[NamedColumn]) -> Formula | None:
        """Return a formula that has few inner constants, if there is an exact one."""
        if len(self._plain.rows) < FEWEST_ROWS:
            return None
        room = int(self.target.rows.sum()) // 3  # more terms than that would fit anything
        scan = replace(self, terms=sorted(self.terms, key=lambda term: term.cost)[:room])
        candidates, inner = atoms(arguments), Inner()
        largest, size = scan.worst(inner)
        if largest <= 1:
            return scan.written(inner)
        for _ in range(MOST_ATOMS):
            found = scan.ranked(inner, candidates)
            if not found:
                return None
            inner, before = found[0], size
            largest, size = scan.worst(inner)
            if largest <= 1:
                return scan.written(inner)
            if size > 0.8 * before:
                return None
        return None

    def ranked(
        self, inner: Inner, candidates: Sequence[tuple[Atom, Array]], patient: bool = False
    ) -> list[Inner]:
        """Return the most promising extensions, best first; stop at an exact one if impatient."""
        plain = self._plain
        if inner.atoms:
            plain = plain.wider(self._group(inner))
        ranked: list[tuple[float, int, float]] = []
        for index, (atom, grid) in enumerate(candidates):
            single = 2.0 * plain.basis.size * (len(self.factors) + 2) + CALL
            if not self.effort.spend(single * len(grid)):
                return []
            groups = [self._products.of(atom, constant) for constant in grid.tolist()]
            parts = [groups[start : start + AT_ONCE] for start in range(0, len(groups), AT_ONCE)]
            sizes = np.concatenate([plain.sizes(np.stack(part)) for part in parts])
            best = int(np.argmin(sizes))
            ranked.append((float(sizes[best]), index, float(grid[best])))
        found: list[tuple[float, int, Inner]] = []
        for _, index, constant in sorted(ranked)[:REFINED]:
            wider = Inner((*inner.atoms, candidates[index][0]), (*inner.constants, constant))
            refined = self.refined(wider)
            largest, size = self.worst(refined)
            found.append((size, index, refined))
            if largest <= 1 and not patient:
                break
        return [refined for *_, refined in sorted(found, key=lambda entry: entry[:2])]

    def refined(self, inner: Inner) -> Inner:
        """Improve the constants by Levenberg and Marquardt's method."""
        if not inner.constants:
            return inner
        start = np.array(inner.constants)

        def rest(constants: Array) -> Array:
            return self._plain.left(self._group(inner.at(constants)))

        return inner.at(descended(rest, start, self.effort))

    def worst(self, inner: Inner) -> tuple[float, float]:
        """Return the largest residual and the size of all, in units of the tolerance."""
        rest = self._plain.left(self._group(inner))
        return float(np.abs(rest).max()), float(np.linalg.norm(rest))

    def expanded(self, inner: Inner) -> list[Term]:
        """Return the atoms times every factor as terms."""
        found = []
        for atom, constant in zip(inner.atoms, inner.constants, strict=True):
            for text, values in zip(atom.texts(constant), atom.values(constant), strict=True):
                found.append(Term(text, self._mean(values), COST))
                quotient = f"({text})" if " / (" in text else text
                for factor in self.factors:
                    mean = self._mean(values * factor.values)
                    found.append(Term(f"{quotient} * {factor.text}", mean, COST + 1))
        return found if self.kept is None else list(compress(found, self.kept))

    def written(self, inner: Inner) -> Formula | None:
        """Leave out what is not needed, refine the constants for what is left, and round them."""
        rows = self._plain.rows
        terms = distinct([*self.terms, *self.expanded(inner)])
        values, tolerance = self.target.values, self.target.tolerance
        found = exact(terms, values, tolerance, rows, self.effort, SearchLimits(6, eliminate=16))
        if found is None:
            return None
        chosen = {term.text for term in found.terms}
        few = replace(
            self,
            terms=[term for term in self.terms if term.text in chosen],
            kept=tuple(term.text in chosen for term in self.expanded(inner)),
        )
        used = few.refined(inner)
        limit = max(SLACK * few.worst(used)[0], 1e-2)  # less is far below the tolerance

        def fits(constants: Array) -> bool:
            return few.worst(inner.at(constants))[0] <= limit

        short = shortened(np.array(used.constants), fits, range(len(used.constants)))
        return fitted([*few.terms, *few.expanded(inner.at(short))], values, tolerance, rows)

    @cached_property
    def _plain(self) -> Projection:
        plain = Projection.of(self.terms, self.target, MOST_ROWS)
        self.effort.spend(4.0 * len(plain.rows) * len(self.terms) ** 2)
        return plain

    def _mean(self, values: Array) -> Array:
        """Return the mean over the stages."""
        if self.weights is None:
            return values
        mean: Array = self.weights @ values.reshape(len(self.weights), -1)
        return mean

    @cached_property
    def _products(self) -> Products:
        return Products(self.factors, self._plain.rows, self._plain.scale, self.weights)

    def _group(self, inner: Inner) -> Array:
        """Return the products of some atoms and factors that may be used, in the rows in use."""
        group = self._products.of_all(inner.atoms, inner.constants)
        if self.kept is not None:
            group = np.compress(self.kept, group, axis=1)
        if group.size:
            width = group.shape[1] + self._plain.basis.shape[1]
            self.effort.spend(4.0 * group.size * width + CALL)
        return group


class Known(NamedTuple):
    """What an equation may read: values now, next values that are known already, and inputs."""

    columns: Sequence[NamedColumn]
    chain: Sequence[NamedColumn]
    inputs: Sequence[NamedColumn]


def equation(
    variable: Variable, samples: Samples, known: Known, effort: Share, *, steered: bool
) -> Formula | None:
    """Return a formula with few inner constants that also holds on the rows held back.

    Constants stand inside any term, or where it is `steered` inside a function of an input,
    times next values.
    """
    usable = samples.smooth & variable.free
    target = Target(variable.change, variable.quarter, usable & samples.learn)
    if target.rows.sum() < FEWEST_ROWS:
        return None
    columns, chain, inputs = known
    terms = library([*columns, *chain], inputs, 1 if steered else 2)
    if steered:
        products, arguments = factors(chain or columns, []), inputs
    else:
        terms = [t for t in terms if t.cost <= 2]
        products, arguments = factors([*columns, *chain], inputs), [*columns, *inputs]
    formula = Scan(terms, products, target, effort).formula(varied(arguments))
    if formula is None:
        return None
    held = variable.agrees(formula.values(len(samples)), usable & ~samples.learn)
    return formula if held else None


def derived(
    variable: Variable, samples: Samples, chain: Sequence[NamedColumn], effort: Share
) -> Formula | None:
    """Return a change after which the value follows from the next values of others.

    It is that value, which also holds in rows held back, less the one before.
    """
    usable = samples.smooth & variable.free
    rows = np.flatnonzero(usable & samples.learn)
    if len(rows) < FEWEST_ROWS or not chain:
        return None
    target = Target(variable.then, variable.quarter, usable & samples.learn)
    value = _value(target, rows, chain, effort)
    if value is None:
        return None
    formula = value.less(Term(variable.name, variable.now, 1.0))
    held = variable.agrees(formula.values(len(samples)), usable & ~samples.learn)
    return formula if held else None


def factors(columns: Sequence[NamedColumn], inputs: Sequence[NamedColumn]) -> list[NamedColumn]:
    """Return what a term with a constant inside may be multiplied by."""
    found = []
    for text, values, is_angle in columns:
        if is_angle:
            found.append(NamedColumn(f"np.cos({text})", np.cos(values)))
            found.append(NamedColumn(f"np.sin({text})", np.sin(values)))
        elif np.ptp(values) > 1e-9:
            found.append(NamedColumn(text, values))
    return [*found, *inputs][:MOST_FACTORS]


def clipped(formulas: Iterable[Formula]) -> list[NamedColumn]:
    """Return what equations read of actions that are cut off at limits."""
    terms = [term for formula in formulas for term in formula.terms]
    return [NamedColumn(t.text, t.values) for t in terms if CLIPPED.fullmatch(t.text)]


def _value(
    target: Target, rows: Array, chain: Sequence[NamedColumn], effort: Share
) -> Formula | None:
    """Return the first formula for a value that is exact where it is fitted."""
    plain = distinct([*library(chain, [], 3), *hypotenuses(chain)])
    found = exact(plain, target.values, target.tolerance, rows, effort, SearchLimits(4, 12, 10))
    if found is not None:
        return found
    for column in chain:
        saturation = _saturation(target, rows, column, effort)
        if saturation is not None:
            return saturation
    scan = Scan([t for t in plain if t.cost <= 2], list(chain)[:4], target, effort)
    return scan.formula(chain)


def _saturation(target: Target, rows: Array, column: NamedColumn, effort: Share) -> Formula | None:
    """Return a multiple of Hill's function, `x**n / (k**n + x**n)`, plus a constant."""
    rows = rows[:: max(1, len(rows) // MOST_ROWS)]
    x, size = column.values, target.tolerance[rows]
    if x.min() < 0 or not effort.spend(2e5 * len(STEEPNESSES) * len(HALVES)):
        return None

    def terms(constants: Array) -> list[Term]:
        half, steepness = constants.tolist()
        with np.errstate(all="ignore"):
            values = 1 / (1 + (abs(half) / np.maximum(x, 1e-300)) ** steepness)
        power = f"{column.text}**{literal(steepness)}"
        text = f"{power} / ({power} + {literal(abs(half))}**{literal(steepness)})"
        return [Term(ONE, np.ones(len(x)), 1.0), Term(text, values, 4.0)]

    def rest(constants: Array) -> Array:
        matrix = np.stack([term.values[rows] for term in terms(constants)], 1) / size[:, None]
        wanted = target.values[rows] / size
        left: Array = wanted - np.nan_to_num(matrix) @ solve(np.nan_to_num(matrix), wanted)
        return left

    starts = product(np.quantile(x[rows], HALVES).tolist(), STEEPNESSES)
    first = min((np.array(start) for start in starts), key=lambda s: float(rest(s) @ rest(s)))
    best = descended(rest, first, effort)
    limit = max(SLACK * float(np.abs(rest(best)).max()), 1e-2)
    if limit > SLACK:
        return None
    best = shortened(best, lambda trial: bool(np.abs(rest(trial)).max() <= limit), (0, 1))
    return fitted(terms(best), target.values, target.tolerance, rows)


def varied(columns: Sequence[NamedColumn]) -> list[NamedColumn]:
    """Return the columns with more than two values: of two, any function is linear."""
    return [column for column in columns if len(np.unique(column.values)) > 2]
