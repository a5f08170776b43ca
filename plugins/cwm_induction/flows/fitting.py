"""Fits of vector fields through steps with several stages.

A step is a weighted sum of rates at its stages. If the stages are fixed, the field is a linear
regression on terms that are averaged over the stages. The fit alternates between this regression
and the stages, which follow from the current field.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import CodeType
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regression import (
    Formula,
    SearchLimits,
    exact,
    fitted,
    selected,
    solve,
)
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn, Term, library, polynomial
from cwm_induction.continuous.variables import Variable
from cwm_induction.effort import Share
from cwm_induction.flows.flow import Field, Flow, Rates, Scheme, SchemeStage, advance, schemes

LEARN_ROWS = 300
"""Approximate number of rows of a fit: each iteration evaluates all terms at all stages."""

CHECK_ROWS = 100
"""Approximate number of held-out rows that measure the error of a field."""

RIGHT = 0.97
"""Fraction of the held-out rows that a field must predict."""

ROUNDS = 8
"""Maximum number of iterations; each must reduce the error by more than a fifth."""

MOST_TERMS = 10
"""Maximum number of terms per variable in a sparse first guess."""

PROMISING = 4
"""Number of schemes that get a sparse field; they have the smallest errors."""

HOPELESS = 1_500
"""Maximum error of a first guess for further iterations, in units of the tolerance."""

FIRST, LOST, NEAR = 5, 50, 0.02
"""After `FIRST` schemes, the search stops if the smallest error is above `LOST` or below `NEAR`."""

SEARCH = SearchLimits(size=5, eliminate=14)
"""Limits of the search for the terms of a field, as for an equation of level 2."""

Weigher = Callable[[Sequence[Array], Array, Array], Array]
"""Function of averaged terms, changes and a mask of rows; returns (terms, variables)."""

Evaluator = Callable[[dict[str, object], int], Array]
"""Function of variables and a number of rows; returns values (rows, expressions)."""


@dataclass(frozen=True)
class FlowData:
    """Variables before and after steps; the columns `others` are constant during a step.

    `among` is an optional mask of the rows to explain.
    """

    variables: Sequence[Variable]
    others: Sequence[NamedColumn]
    samples: Samples
    effort: Share
    among: Array | None = None

    def field(self, evaluate: Evaluator, weights: Array, own: int | None = None) -> Field:
        """Return the field of weighted terms; its rates contain only the first `own` terms."""

        def rates(state: Array) -> Rates:
            values = self._at(evaluate, state)
            return Rates(values @ weights, values[:, :own], state)

        return rates

    def straight_stages(self, scheme: Scheme, evaluate: Evaluator) -> list[SchemeStage]:
        """Return stages on the straight line between the states before and after."""
        change = self.change[self.rows]

        def rates(state: Array) -> Rates:
            return Rates(change, self._at(evaluate, state), state)

        return advance(scheme, self.state[self.rows], rates)[1]

    def errors(self, after: Array) -> Array:
        """Return the errors of predicted states in held-out rows, in units of the tolerance."""
        rows = self.check
        errors = np.abs(after[len(self.learn) :] - self.state[rows] - self.change[rows])
        scaled: Array = errors / self.tolerance[rows]
        return scaled

    def is_right(self, after: Array) -> bool:
        """Return whether predicted states are right in enough held-out rows (see `RIGHT`)."""
        return bool((self.errors(after) <= 4).all(1).mean() >= RIGHT)

    def _at(self, evaluate: Evaluator, state: Array) -> Array:
        """Return the terms of all rows at given states, which are clipped to `range`."""
        names = zip(self.names, np.clip(state, *self.range).T, strict=True)
        values = evaluate({**self.given, **dict(names)}, len(state))
        self.effort.spend(1.0 * values.size)
        return np.nan_to_num(values)

    @cached_property
    def usable(self) -> Array:
        """Mask of the rows that a field must explain."""
        mask: Array = self.samples.smooth & np.all([v.free for v in self.variables], axis=0)
        return mask if self.among is None else mask & self.among

    @cached_property
    def learn(self) -> Array:
        """Indices of the training rows."""
        rows = np.flatnonzero(self.usable & self.samples.learn)
        return rows[:: max(1, len(rows) // LEARN_ROWS)]

    @cached_property
    def check(self) -> Array:
        """Indices of the held-out rows."""
        rows = np.flatnonzero(self.usable & ~self.samples.learn)
        return rows[:: max(1, len(rows) // CHECK_ROWS)]

    @cached_property
    def rows(self) -> Array:
        """Indices of the training rows, then of the held-out rows."""
        return np.concatenate([self.learn, self.check])

    @cached_property
    def state(self) -> Array:
        """The variables before the step, in every row."""
        return np.stack([variable.now for variable in self.variables], 1)

    @cached_property
    def change(self) -> Array:
        """The changes of the variables, in every row."""
        return np.stack([variable.change for variable in self.variables], 1)

    @cached_property
    def tolerance(self) -> Array:
        """A quarter of the largest accepted errors, in every row."""
        return np.stack([variable.quarter for variable in self.variables], 1)

    @cached_property
    def range(self) -> tuple[Array, Array]:
        """Bounds for the stages of inaccurate fields."""
        states = np.concatenate([self.state, self.state + self.change])
        span = np.ptp(states, axis=0)
        return states.min(0) - span, states.max(0) + span

    @property
    def names(self) -> list[str]:
        """Names of the variables."""
        return [variable.name for variable in self.variables]

    @cached_property
    def given(self) -> dict[str, object]:
        """The variables of terms that are constant during a step, in all rows of the fit."""
        rows, actions = self.rows, self.samples.actions[self.rows]
        discrete = self.samples.action_space.kind == "discrete"
        action: object = actions[:, 0] if discrete else list(actions.T)
        named = {c.text: c.values[rows] for c in self.others if c.text.isidentifier()}
        return {**named, "action": action, "inputs": action}


class _Guess(NamedTuple):
    """Terms averaged over the stages, for every variable, and the error of their field."""

    averages: list[Array]
    error: float


@dataclass(frozen=True)
class FieldFit:
    """A fit of a vector field that is a weighted sum of terms."""

    data: FlowData

    def flow(self) -> Flow | None:
        """Return a sparse field that explains all variables, with its scheme, or None.

        The error with the Runge-Kutta scheme ranks the libraries of terms and the regressions of
        their weights. The best two are then fitted with all schemes.
        """
        if len(self.data.learn) < 40 or len(self.data.check) < 4:
            return None
        columns, others = [v.column for v in self.data.variables], self.data.others
        libraries = library(columns, others, 2), polynomial(columns, others)
        candidates = []
        for number, terms in enumerate([*libraries, library(columns, others, 3)]):
            few = sorted(terms, key=lambda term: term.cost)[: len(self.data.learn) // 3]
            for chosen, weigh in ((terms, self._few_weights), (few, self._all_weights)):
                error = self._guess(Scheme("runge-kutta", 1), chosen, weigh, 2).error
                candidates.append((error, number, chosen, weigh))
        for error, _, terms, weigh in sorted(candidates, key=lambda entry: entry[:2])[:2]:
            flow = self._best_scheme(terms, weigh) if error <= HOPELESS else None
            if flow is not None:
                return flow
        return None

    def polish(self, scheme: Scheme, formulas: list[Formula]) -> Flow | None:
        """Alternate between stages and weights; return None if held-out rows are wrong."""
        rows, learn = self.data.rows, np.arange(len(self.data.learn))
        state = self.data.state[rows]
        for _ in range(3):
            after, stages = advance(scheme, state, field_of(self.data, formulas))
            averages, start = averages_of(scheme, stages), 0
            for index, (formula, variable) in enumerate(
                zip(formulas, self.data.variables, strict=True)
            ):
                own = averages[index][:, start : start + len(formula.terms)].T
                start += len(formula.terms)
                terms = [t._replace(values=v) for t, v in zip(formula.terms, own, strict=True)]
                wanted, tolerance = variable.change[rows], variable.rounding[rows]
                formulas[index] = fitted(terms, wanted, tolerance, learn)
        after = advance(scheme, state, field_of(self.data, formulas))[0]
        flow = Flow(tuple(self.data.names), tuple(formulas), scheme)
        return flow if self.data.is_right(after) else None

    def _best_scheme(self, terms: Sequence[Term], weigh: Weigher) -> Flow | None:
        """Return the cheapest sparse field over the schemes with the smallest errors."""
        guesses = []
        for number, scheme in enumerate(schemes(len(self.data.variables))):
            guess = self._guess(scheme, terms, weigh, ROUNDS)
            guesses.append((guess.error, number, scheme, guess))
            least = min(error for error, *_ in guesses)
            far, near = least > LOST, least < NEAR
            if not self.data.effort.spend(0) or (number + 1 >= FIRST and (far or near)):
                break
        promising = sorted(guesses, key=lambda entry: entry[:2])[:PROMISING]
        flows = [
            self._sparse(scheme, terms, guess)
            for error, _, scheme, guess in promising
            if error <= 2
        ]
        exact_flows = [flow for flow in flows if flow is not None]
        return min(exact_flows, key=lambda flow: flow.cost, default=None)

    def _sparse(self, scheme: Scheme, terms: Sequence[Term], guess: _Guess) -> Flow | None:
        """Select few of the terms, then polish the field."""
        rows, learn, effort = self.data.rows, np.arange(len(self.data.learn)), self.data.effort
        formulas = []
        for averages, variable in zip(guess.averages, self.data.variables, strict=True):
            own = [t._replace(values=averages[:, i]) for i, t in enumerate(terms)]
            for tolerance in (4 * variable.rounding, variable.quarter):
                wanted = variable.change[rows], tolerance[rows]
                formula = exact(own, *wanted, learn, effort, SEARCH)
                if formula is not None:
                    break
            else:
                return None
            formulas.append(formula)
        return self.polish(scheme, formulas)

    def _guess(self, scheme: Scheme, terms: Sequence[Term], weigh: Weigher, rounds: int) -> _Guess:
        """Alternate between weights and stages, and measure the error in held-out rows."""
        evaluate = evaluator([term.text for term in terms])
        rows = self.data.rows
        state, change = self.data.state[rows], self.data.change[rows]
        learn = np.arange(len(rows)) < len(self.data.learn)
        stages = self.data.straight_stages(scheme, evaluate)
        best = _Guess([], np.inf)
        for _ in range(rounds):
            averages = averages_of(scheme, stages)
            field = self.data.field(evaluate, weigh(averages, change, learn))
            after, stages = advance(scheme, state, field)
            error = float(np.quantile(self.data.errors(after).max(1), 0.8))
            if not error < 0.8 * best.error:
                break
            best = _Guess(averages, error)
        return best

    def _all_weights(self, averages: Sequence[Array], change: Array, learn: Array) -> Array:
        """Fit the weights of all terms for every variable: (terms, variables)."""
        least = 4 * self.data.samples.grain
        columns = []
        for number, own in enumerate(averages):
            matrix, wanted = own[learn], change[learn]
            if number == 0 or own is not averages[0]:
                self.data.effort.spend(1.0 * matrix.size * matrix.shape[1])
                scale = np.linalg.norm(matrix, axis=0) + 1e-300
                solution = np.linalg.lstsq(matrix / scale, wanted, rcond=least)[0]
            columns.append(solution[:, number] / scale)
        return np.stack(columns, 1)

    def _few_weights(self, averages: Sequence[Array], change: Array, learn: Array) -> Array:
        """Fit the weights of few selected terms for every variable: (terms, variables)."""
        weights = np.zeros((averages[0].shape[1], len(averages)))
        for number, own in enumerate(averages):
            matrix, wanted = own[learn], change[learn, number]
            if number == 0 or own is not averages[0]:
                unit = matrix / (np.linalg.norm(matrix, axis=0) + 1e-300)
            self.data.effort.spend(20.0 * matrix.size)
            chosen = selected(unit, wanted, MOST_TERMS, 0.05)
            weights[chosen, number] = solve(matrix[:, chosen], wanted)
        return weights


def averages_of(scheme: Scheme, stages: Sequence[SchemeStage]) -> list[Array]:
    """Return, for every variable, the terms averaged over the stages."""
    variables = len(stages[0].weights)

    def average(index: int) -> Array:
        total: Array = np.sum(
            [s.weights[index] * s.rates.terms for s in stages if s.weights[index]], axis=0
        )
        return total

    if scheme.order:
        return [average(index) for index in range(variables)]
    return [average(0)] * variables


def field_of(data: FlowData, formulas: Sequence[Formula]) -> Field:
    """Return the field of formulas; its terms are the concatenated terms of the formulas."""
    evaluate = evaluator([term.text for formula in formulas for term in formula.terms])
    sizes = [len(formula.terms) for formula in formulas]
    weights = np.zeros((sum(sizes), len(formulas)))
    for index, formula in enumerate(formulas):
        start = sum(sizes[:index])
        weights[start : start + sizes[index], index] = formula.weights
    return data.field(evaluate, weights)


@lru_cache(20_000)  # a few hundred bytes each; all schemes contain the same terms
def _compiled(text: str) -> CodeType:
    return compile(text, "<term>", "eval")


def evaluator(texts: Sequence[str]) -> Evaluator:
    """Compile expressions of a program for vectorised evaluation over rows."""
    codes = [_compiled(text) for text in texts]

    def evaluate(names: dict[str, object], rows: int) -> Array:
        scope = {"np": np, "abs": np.abs, "max": np.maximum, "min": np.minimum, **names}
        values = np.empty((rows, len(codes)))
        with np.errstate(all="ignore"):
            for index, code in enumerate(codes):
                values[:, index] = eval(code, {}, scope)  # noqa: S307
        return values

    return evaluate
