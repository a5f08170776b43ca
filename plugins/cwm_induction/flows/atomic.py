"""Vector fields with constants inside a term, advanced by several stages.

The atoms are looked for in rows that change little, where stages on the
straight line are nearly right; then stages, constants and weights are improved
in turn, under one scheme after another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.atoms import Atom, atoms
from cwm_induction.continuous.inner_constants import Inner, Scan, factors
from cwm_induction.continuous.regimes import Target
from cwm_induction.continuous.regression import solve
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn, Term, evaluator, library
from cwm_induction.flows.fitting import Fitting, FlowData, averages_of
from cwm_induction.flows.schemes import Flow, Rates, Scheme, SchemeStage, advanced, schemes

CALM = 0.6
"""Share of the rows, those that change least, in which atoms are looked for."""
ROUNDS = 3
MORE_ROUNDS = 10
PROMISING = 3
CANDIDATES = 8
STARTS = 2
HOPELESS = 200
NEAR = 0.02
"""Errors, in units of the tolerance, that need no further term."""
START = Scheme("runge-kutta", 1)


class _Guess(NamedTuple):
    """Atoms with constants for every variable, the stages that they lead to, and what is missed."""

    inners: list[Inner]
    stages: list[SchemeStage]
    off: float


@dataclass(frozen=True)
class AtomicFitting:
    """Fits a vector field with few inner constants to what was seen."""

    seen: FlowData

    def flow(self) -> Flow | None:
        """Return the flow of the scheme that leaves least unexplained, if it is exact."""
        if len(self.seen.learn) < 40 or len(self.seen.check) < 4:
            return None
        for inners in self._starts():
            flow = self._under_schemes(inners)
            if flow is not None:
                return flow
        return None

    def _under_schemes(self, inners: list[Inner]) -> Flow | None:
        """Try the schemes, and improve further under those that leave least unexplained."""
        tried = []
        for number, scheme in enumerate(schemes(len(self.seen.variables))):
            if not scheme.order and scheme.parts <= 10:
                guess = self._improved(scheme, inners, self._straight(scheme), ROUNDS)
                tried.append((guess.off, number, scheme, guess))
            if not self.seen.effort.spend(0):
                return None
        for _, _, scheme, guess in sorted(tried, key=lambda entry: entry[:2])[:PROMISING]:
            best = self._improved(scheme, guess.inners, guess.stages, MORE_ROUNDS)
            flow = self._written(scheme, best) if best.off <= 2 else None
            if flow is not None:
                return flow
        return None

    def _starts(self) -> list[list[Inner]]:
        """Return the atoms that do best when all variables share one, each with its constants."""
        stages = self._straight(START)
        shared: dict[str, Inner] = {}
        for index in range(len(self.seen.variables)):
            scan = self._scan(index, stages, calm=True)
            if scan.worst(Inner())[0] > NEAR:
                columns = [c for c in self._columns(stages) if len(np.unique(c.values)) > 2]
                for inner in scan.ranked(Inner(), atoms(columns), patient=True)[:CANDIDATES]:
                    shared.setdefault(inner.atoms[0].texts(0.5)[0], inner)
        tried = []
        for number, inner in enumerate(shared.values()):
            guess = self._improved(START, [inner] * len(self.seen.variables), stages, 2 * ROUNDS)
            if guess.off <= HOPELESS:
                tried.append((guess.off, number, guess.inners))
        return [inners for *_, inners in sorted(tried, key=lambda entry: entry[:2])[:STARTS]]

    def _improved(
        self, scheme: Scheme, inners: Sequence[Inner], stages: list[SchemeStage], rounds: int
    ) -> _Guess:
        """Improve constants, weights and stages in turn."""
        best = _Guess(list(inners), stages, np.inf)
        rows, learn = self.seen.rows, len(self.seen.learn)
        for _ in range(rounds):
            inners = [
                self._scan(index, stages, calm=True).refined(self._moved(inner, stages))
                for index, inner in enumerate(inners)
            ]
            weights, texts = self._weighed(inners, stages)
            evaluate = evaluator(texts)

            def field(points: Array, weights: Array = weights) -> Rates:
                values = self.seen.at(evaluate, points)  # noqa: B023
                return Rates(values @ weights, values[:, : len(self._terms)], points)

            after, stages = advanced(scheme, self.seen.state[rows], field)
            missed = np.abs(after - (self.seen.state + self.seen.change)[rows])
            off = float(np.quantile((missed / self.seen.tolerance[rows])[learn:].max(1), 0.8))
            if off < best.off:
                best = _Guess(list(inners), stages, off)
            if off > 3 * best.off:
                break
        return best

    def _weighed(
        self, inners: Sequence[Inner], stages: Sequence[SchemeStage]
    ) -> tuple[Array, list[str]]:
        """Return the weights of all terms (terms, variables), and their texts."""
        learn = self._calm
        texts = [term.text for term in self._terms]
        columns = []
        for index, inner in enumerate(inners):
            scan = self._scan(index, stages)
            own = [*scan.terms, *scan.expanded(inner)]
            matrix = np.nan_to_num(np.stack([term.values[learn] for term in own], 1))
            found = solve(matrix, self.seen.change[self.seen.rows][learn, index])
            columns.append(dict(zip((term.text for term in own), found.tolist(), strict=True)))
            texts += [term.text for term in own if term.text not in texts]
        return np.array([[own.get(text, 0.0) for own in columns] for text in texts]), texts

    def _written(self, scheme: Scheme, guess: _Guess) -> Flow | None:
        """Leave out what is not needed, shorten the numbers, and judge."""
        formulas = []
        for index, inner in enumerate(guess.inners):
            scan = self._scan(index, guess.stages)
            formula = scan.written(self._moved(inner, guess.stages))
            if formula is None:
                return None
            formulas.append(formula)
        return Fitting(self.seen).polished(scheme, formulas)

    def _scan(self, index: int, stages: Sequence[SchemeStage], calm: bool = False) -> Scan:
        """Return a search for the atoms of a variable, given the stages."""
        averages = averages_of(START, stages)[0]
        terms = [t._replace(values=averages[:, i]) for i, t in enumerate(self._terms)]
        variable, rows = self.seen.variables[index], self.seen.rows
        usable = np.arange(len(rows)) < len(self.seen.learn)
        if calm:
            usable = self._calm
        target = Target(variable.change[rows], variable.quarter[rows], usable)
        columns = self._columns(stages)
        count = len(self.seen.variables)
        products = factors(columns[:count], columns[count:])
        weights = np.array([stage.weights[0] for stage in stages])
        return Scan(terms, products, target, self.seen.effort, weights)

    def _moved(self, inner: Inner, stages: Sequence[SchemeStage]) -> Inner:
        """Return the same atoms at other stages."""
        columns = {column.text: column for column in self._columns(stages)}
        moved = tuple(Atom(atom.shape, columns[atom.column.text]) for atom in inner.atoms)
        return inner._replace(atoms=moved)

    def _columns(self, stages: Sequence[SchemeStage]) -> list[NamedColumn]:
        """Return the variables and inputs at all stages, one after another."""
        states = np.stack([stage.rates.state for stage in stages])
        states = np.clip(states, *self.seen.range)
        moving = [
            NamedColumn(variable.name, states[:, :, i].ravel(), variable.is_angle)
            for i, variable in enumerate(self.seen.variables)
        ]
        rows = self.seen.rows
        still = [
            NamedColumn(c.text, np.tile(c.values[rows], len(stages))) for c in self.seen.others
        ]
        return [*moving, *still]

    def _straight(self, scheme: Scheme) -> list[SchemeStage]:
        """Return stages on the straight line between the states before and after."""
        rows = self.seen.rows
        change = self.seen.change[rows]
        evaluate = evaluator([term.text for term in self._terms])
        field = lambda s: Rates(change, self.seen.at(evaluate, s), s)  # noqa: E731
        return advanced(scheme, self.seen.state[rows], field)[1]

    @cached_property
    def _terms(self) -> list[Term]:
        """The terms that stand beside atoms."""
        columns = [variable.column for variable in self.seen.variables]
        terms = [t for t in library(columns, self.seen.others, 2) if t.cost <= 2]
        room = len(self.seen.learn) // 4
        return sorted(terms, key=lambda term: term.cost)[:room]

    @cached_property
    def _calm(self) -> Array:
        """Mask of the rows to fit to that change little, relative to how much is usual."""
        change = np.abs(self.seen.change[self.seen.rows])
        largest = (change / (change.mean(0) + 1e-300)).max(1)
        count = len(self.seen.learn)
        mask: Array = largest <= np.quantile(largest[:count], CALM)
        mask[count:] = False
        return mask


FLOWS: tuple[Callable[[FlowData], Flow | None], ...] = (
    lambda seen: Fitting(seen).flow(),
    lambda seen: AtomicFitting(seen).flow(),
)
"""Ways to look for a vector field, the cheaper one first."""
