"""Vector fields with constants inside terms (atoms), such as `exp(k / x)`.

The search finds an atom with stages on a straight line. For each integration scheme, it then
alternates between stages, constants and weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.inner_constants import Atom, Inner, Scan, atoms, factors
from cwm_induction.continuous.regression import Target, solve
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn, Term, library
from cwm_induction.flows.fields import (
    FieldFit,
    Flow,
    SchemeStage,
    advance,
    averages_of,
    evaluator,
    schemes,
)
from cwm_induction.mechanics.mechanism import Scheme

ROUNDS = 3
"""Iterations of each scheme; each atom gets twice this number."""

MORE_ROUNDS = 10
"""Iterations of the schemes with the smallest errors."""

PROMISING = 3
"""Number of schemes with further iterations."""

CANDIDATES = 8
"""Number of atoms per variable that are tested as a common atom of all variables."""

HOPELESS = 200
"""Maximum error of a set of atoms for further iterations, in units of the tolerance."""

NEAR = 0.02
"""Errors up to this value, in units of the tolerance, need no atom."""

START = Scheme("runge-kutta", 1)
"""Scheme of the search for atoms: it approximates every scheme with several stages."""


class _Guess(NamedTuple):
    """The atoms of every variable with their constants, the stages and the error of the field."""

    inners: list[Inner]
    stages: list[SchemeStage]
    error: float


@dataclass(frozen=True)
class AtomicFieldFit:
    """A fit of a vector field with few inner constants."""

    fit: FieldFit

    def flow(self) -> Flow | None:
        """Return the first exact flow, or None; schemes with small errors come first."""
        inners, fits = self._start() if self.fit.has_enough_rows else [], []
        for scheme in schemes() if inners else ():
            if scheme.parts <= 10:
                stages = self._straight_stages(scheme)
                fits.append((scheme, self._improve(scheme, inners, stages, ROUNDS)))
            if not self.fit.effort.spend(0):
                return None
        for scheme, guess in sorted(fits, key=lambda fit: fit[1].error)[:PROMISING]:
            best = self._improve(scheme, guess.inners, guess.stages, MORE_ROUNDS)
            flow = self._to_flow(scheme, best) if best.error <= 2 else None
            if flow is not None:
                return flow
        return None

    def _start(self) -> list[Inner]:
        """Return the common atom of all variables with the smallest error, for each variable."""
        stages = self._straight_stages(START)
        columns = [c for c in self._columns(stages) if len(np.unique(c.values)) > 2]
        shared: dict[str, Inner] = {}
        for index in range(len(self.fit.variables)):
            scan = self._scan(index, stages)
            if scan.worst(Inner())[0] > NEAR:
                for inner in scan.ranked(Inner(), atoms(columns), patient=True)[:CANDIDATES]:
                    shared.setdefault(inner.atoms[0].texts(0.5)[0], inner)
        guesses = [
            self._improve(START, [inner] * len(self.fit.variables), stages, 2 * ROUNDS)
            for inner in shared.values()
        ]
        best = min(guesses, key=lambda guess: guess.error, default=None)
        return best.inners if best is not None and best.error <= HOPELESS else []

    def _improve(
        self, scheme: Scheme, inners: Sequence[Inner], stages: list[SchemeStage], rounds: int
    ) -> _Guess:
        """Alternate between constants, weights and stages; return the best iteration."""
        best = _Guess(list(inners), stages, np.inf)
        for _ in range(rounds):
            inners = [
                self._scan(index, stages).refined(self._at_stages(inner, stages))
                for index, inner in enumerate(inners)
            ]
            weights, texts = self._fit_weights(inners, stages)
            field = self.fit.field(evaluator(texts), weights)
            after, stages = advance(scheme, self.fit.state[self.fit.rows], field)
            error = self.fit.error(after)
            if error < best.error:
                best = _Guess(list(inners), stages, error)
            if error > 3 * best.error:
                break
        return best

    def _fit_weights(
        self, inners: Sequence[Inner], stages: Sequence[SchemeStage]
    ) -> tuple[Array, list[str]]:
        """Return the weights of all terms (terms, variables), and the expressions of the terms."""
        texts, count = [term.text for term in self._terms], len(self.fit.learn)
        columns = []
        for index, inner in enumerate(inners):
            scan = self._scan(index, stages)
            own = [*scan.terms, *scan.expanded(inner)]
            matrix = np.nan_to_num(np.stack([term.values[:count] for term in own], 1))
            solution = solve(matrix, self.fit.change[self.fit.learn, index])
            columns.append(dict(zip((term.text for term in own), solution.tolist(), strict=True)))
            texts += [term.text for term in own if term.text not in texts]
        return np.array([[own.get(text, 0.0) for own in columns] for text in texts]), texts

    def _to_flow(self, scheme: Scheme, guess: _Guess) -> Flow | None:
        """Remove needless terms and round the numbers; return None if the flow is not exact."""
        formulas = []
        for index, inner in enumerate(guess.inners):
            scan = self._scan(index, guess.stages)
            formula = scan.written(self._at_stages(inner, guess.stages))
            if formula is None:
                return None
            formulas.append(formula)
        return self.fit.polished(scheme, formulas)

    def _scan(self, index: int, stages: Sequence[SchemeStage]) -> Scan:
        """Return a search for the atoms of a variable at given stages."""
        averages = averages_of(stages)
        terms = [t._replace(values=averages[:, i]) for i, t in enumerate(self._terms)]
        variable, rows = self.fit.variables[index], self.fit.rows
        usable = np.arange(len(rows)) < len(self.fit.learn)
        target = Target(variable.change[rows], variable.quarter[rows], usable)
        columns, count = self._columns(stages), len(self.fit.variables)
        products = factors(columns[:count], columns[count:])
        weights = np.array([stage.weight for stage in stages])
        return Scan(terms, products, target, self.fit.effort, weights)

    def _at_stages(self, inner: Inner, stages: Sequence[SchemeStage]) -> Inner:
        """Return the same atoms, evaluated at other stages."""
        columns = {column.text: column for column in self._columns(stages)}
        moved = tuple(Atom(atom.shape, columns[atom.column.text]) for atom in inner.atoms)
        return inner._replace(atoms=moved)

    def _columns(self, stages: Sequence[SchemeStage]) -> list[NamedColumn]:
        """Return the variables and inputs at all stages, concatenated over the stages."""
        states = np.clip(np.stack([stage.state for stage in stages]), *self.fit.range)
        moving = [
            NamedColumn(variable.name, states[:, :, i].ravel(), variable.is_angle)
            for i, variable in enumerate(self.fit.variables)
        ]
        still = [
            NamedColumn(c.text, np.tile(c.values[self.fit.rows], len(stages)))
            for c in self.fit.others
        ]
        return [*moving, *still]

    def _straight_stages(self, scheme: Scheme) -> list[SchemeStage]:
        return self.fit.straight_stages(scheme, evaluator([term.text for term in self._terms]))

    @cached_property
    def _terms(self) -> list[Term]:
        """The library of terms without atoms."""
        columns = [variable.column for variable in self.fit.variables]
        terms = [t for t in library(columns, self.fit.others, 2) if t.cost <= 2]
        return sorted(terms, key=lambda term: term.cost)[: len(self.fit.learn) // 4]
