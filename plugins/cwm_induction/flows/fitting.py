"""Vector fields behind a step of several stages.

A step is a weighted sum of rates at its stages. With the stages held where
the last guess of the field puts them, the field is a linear regression on terms
averaged over the stages; guess and stages are improved in turn.
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
from cwm_induction.flows.flow import Field, Flow, Rates, Scheme, SchemeStage, advanced, schemes

LEARN_ROWS = 300
"""Rows that a field is fitted to: every round computes all terms at every stage in each."""

CHECK_ROWS = 100
"""Rows held back that a field is judged by."""

RIGHT = 0.97
"""Share of the rows held back in which a field has to be right."""

ROUNDS = 8
"""Most rounds in which guess and stages are improved, as long as that gains a fifth."""

MOST_TERMS = 10
"""Terms for every variable in a first guess of few terms."""

PROMISING = 4
"""Schemes whose field is made sparse: those that leave least unexplained."""

HOPELESS = 1_500
"""Errors of the first guess, in units of the tolerance, beyond which nothing will come of it."""

FIRST, LOST, NEAR = 5, 50, 0.02
"""After so many schemes a large error ends the search, and so does a small one."""

SEARCH = SearchLimits(size=5, eliminate=14)
"""How far the terms of a field are searched for, as for an equation of level 2."""

Weigher = Callable[[Sequence[Array], Array, Array], Array]
"""From averaged terms, changes and a mask of rows to the weights of terms."""

Evaluator = Callable[[dict[str, object], int], Array]
"""From names and a number of rows to the values of some expressions (rows, expressions)."""


@dataclass(frozen=True)
class FlowData:
    """Some variables before and after steps; the other columns stand still during a step.

    `among` marks the rows to look at where not all are.
    """

    variables: Sequence[Variable]
    others: Sequence[NamedColumn]
    samples: Samples
    effort: Share
    among: Array | None = None

    def field(self, evaluate: Evaluator, weights: Array, own: int | None = None) -> Field:
        """Return the field of weighted terms, the first `own` of which are averaged."""

        def rates(state: Array) -> Rates:
            values = self._at(evaluate, state)
            return Rates(values @ weights, values[:, :own], state)

        return rates

    def straight(self, scheme: Scheme, evaluate: Evaluator) -> list[SchemeStage]:
        """Return stages on the straight line between the states before and after."""
        change = self.change[self.rows]

        def rates(state: Array) -> Rates:
            return Rates(change, self._at(evaluate, state), state)

        return advanced(scheme, self.state[self.rows], rates)[1]

    def missed(self, after: Array) -> Array:
        """Return how far states after a step are off in rows held back, in tolerances."""
        rows = self.check
        off = np.abs(after[len(self.learn) :] - self.state[rows] - self.change[rows])
        missed: Array = off / self.tolerance[rows]
        return missed

    def is_right(self, after: Array) -> bool:
        """Whether states after a step are right in nearly all rows held back."""
        return bool((self.missed(after) <= 4).all(1).mean() >= RIGHT)

    def _at(self, evaluate: Evaluator, state: Array) -> Array:
        """Return the terms of the rows in use, at states no further off than data may be."""
        names = zip(self.names, np.clip(state, *self.range).T, strict=True)
        values = evaluate({**self.given, **dict(names)}, len(state))
        self.effort.spend(1.0 * values.size)
        return np.nan_to_num(values)

    @cached_property
    def usable(self) -> Array:
        """Mask of the rows that a field has to explain."""
        mask: Array = self.samples.smooth & np.all([v.free for v in self.variables], axis=0)
        return mask if self.among is None else mask & self.among

    @cached_property
    def learn(self) -> Array:
        """Rows to fit to."""
        rows = np.flatnonzero(self.usable & self.samples.learn)
        return rows[:: max(1, len(rows) // LEARN_ROWS)]

    @cached_property
    def check(self) -> Array:
        """Rows to judge by."""
        rows = np.flatnonzero(self.usable & ~self.samples.learn)
        return rows[:: max(1, len(rows) // CHECK_ROWS)]

    @cached_property
    def rows(self) -> Array:
        """The rows to fit to, then those to judge by."""
        return np.concatenate([self.learn, self.check])

    @cached_property
    def state(self) -> Array:
        """The variables before the step, in every row."""
        return np.stack([variable.now for variable in self.variables], 1)

    @cached_property
    def change(self) -> Array:
        """How much they change."""
        return np.stack([variable.change for variable in self.variables], 1)

    @cached_property
    def tolerance(self) -> Array:
        """A quarter of the errors that still count as right."""
        return np.stack([variable.quarter for variable in self.variables], 1)

    @cached_property
    def range(self) -> tuple[Array, Array]:
        """Bounds that the stages of a poor guess are kept within."""
        seen = np.concatenate([self.state, self.state + self.change])
        span = np.ptp(seen, axis=0)
        return seen.min(0) - span, seen.max(0) + span

    @property
    def names(self) -> list[str]:
        """Names of the variables."""
        return [variable.name for variable in self.variables]

    @cached_property
    def given(self) -> dict[str, object]:
        """The names that stand still during a step, in the rows in use."""
        rows, actions = self.rows, self.samples.actions[self.rows]
        discrete = self.samples.action_space.kind == "discrete"
        action: object = actions[:, 0] if discrete else list(actions.T)
        named = {c.text: c.values[rows] for c in self.others if c.text.isidentifier()}
        return {**named, "action": action, "inputs": action}


class _Guess(NamedTuple):
    """Terms averaged over the stages, for every variable, and what a field of them misses."""

    averages: list[Array]
    off: float


@dataclass(frozen=True)
class FieldFit:
    """Fits a vector field to what was seen."""

    seen: FlowData

    def flow(self) -> Flow | None:
        """Return the first scheme under which a sparse field explains all variables.

        Libraries, and ways to weigh their terms, are tried in the order of what
        they leave unexplained under the first scheme.
        """
        if len(self.seen.learn) < 40 or len(self.seen.check) < 4:
            return None
        columns, others = [v.column for v in self.seen.variables], self.seen.others
        libraries = library(columns, others, 2), polynomial(columns, others)
        ways = []
        for number, terms in enumerate([*libraries, library(columns, others, 3)]):
            few = sorted(terms, key=lambda term: term.cost)[: len(self.seen.learn) // 3]
            for chosen, weigh in ((terms, self._few), (few, self._weighed)):
                off = self._guess(Scheme("runge-kutta", 1), chosen, weigh, 2).off
                ways.append((off, number, chosen, weigh))
        for off, _, terms, weigh in sorted(ways, key=lambda way: way[:2])[:2]:
            found = self._best(terms, weigh) if off <= HOPELESS else None
            if found is not None:
                return found
        return None

    def polished(self, scheme: Scheme, formulas: list[Formula]) -> Flow | None:
        """Improve stages and weights in turn, then judge on the rows held back."""
        rows, learn = self.seen.rows, np.arange(len(self.seen.learn))
        state = self.seen.state[rows]
        for _ in range(3):
            after, stages = advanced(scheme, state, field_of(self.seen, formulas))
            averages, start = averages_of(scheme, stages), 0
            for index, (formula, variable) in enumerate(
                zip(formulas, self.seen.variables, strict=True)
            ):
                own = averages[index][:, start : start + len(formula.terms)].T
                start += len(formula.terms)
                terms = [t._replace(values=v) for t, v in zip(formula.terms, own, strict=True)]
                wanted, tolerance = variable.change[rows], variable.rounding[rows]
                formulas[index] = fitted(terms, wanted, tolerance, learn)
        after = advanced(scheme, state, field_of(self.seen, formulas))[0]
        flow = Flow(tuple(self.seen.names), tuple(formulas), scheme)
        return flow if self.seen.is_right(after) else None

    def _best(self, terms: Sequence[Term], weigh: Weigher) -> Flow | None:
        """Try the schemes that leave least unexplained; return the cheapest field."""
        tried = []
        for number, scheme in enumerate(schemes(len(self.seen.variables))):
            guess = self._guess(scheme, terms, weigh, ROUNDS)
            tried.append((guess.off, number, scheme, guess))
            least = min(off for off, *_ in tried)
            far, near = least > LOST, least < NEAR
            if not self.seen.effort.spend(0) or (number + 1 >= FIRST and (far or near)):
                break
        promising = sorted(tried, key=lambda entry: entry[:2])[:PROMISING]
        flows = [
            self._sparse(scheme, terms, guess) for off, _, scheme, guess in promising if off <= 2
        ]
        found = [flow for flow in flows if flow is not None]
        return min(found, key=lambda flow: flow.cost, default=None)

    def _sparse(self, scheme: Scheme, terms: Sequence[Term], guess: _Guess) -> Flow | None:
        """Choose few of the terms, then improve stages and weights in turn."""
        rows, learn, effort = self.seen.rows, np.arange(len(self.seen.learn)), self.seen.effort
        formulas = []
        for averages, variable in zip(guess.averages, self.seen.variables, strict=True):
            own = [t._replace(values=averages[:, i]) for i, t in enumerate(terms)]
            for tolerance in (4 * variable.rounding, variable.quarter):
                wanted = variable.change[rows], tolerance[rows]
                found = exact(own, *wanted, learn, effort, SEARCH)
                if found is not None:
                    break
            else:
                return None
            formulas.append(found)
        return self.polished(scheme, formulas)

    def _guess(self, scheme: Scheme, terms: Sequence[Term], weigh: Weigher, rounds: int) -> _Guess:
        """Weigh terms and move stages in turn, and measure what is missed in rows held back."""
        evaluate = evaluator([term.text for term in terms])
        rows = self.seen.rows
        state, change = self.seen.state[rows], self.seen.change[rows]
        learn = np.arange(len(rows)) < len(self.seen.learn)
        stages = self.seen.straight(scheme, evaluate)
        best = _Guess([], np.inf)
        for _ in range(rounds):
            averages = averages_of(scheme, stages)
            field = self.seen.field(evaluate, weigh(averages, change, learn))
            after, stages = advanced(scheme, state, field)
            off = float(np.quantile(self.seen.missed(after).max(1), 0.8))
            if not off < 0.8 * best.off:
                break
            best = _Guess(averages, off)
        return best

    def _weighed(self, averages: Sequence[Array], change: Array, learn: Array) -> Array:
        """Solve for the weights of every variable: (terms, variables)."""
        least = 4 * self.seen.samples.grain
        columns = []
        for number, own in enumerate(averages):
            matrix, wanted = own[learn], change[learn]
            if number == 0 or own is not averages[0]:
                self.seen.effort.spend(1.0 * matrix.size * matrix.shape[1])
                scale = np.linalg.norm(matrix, axis=0) + 1e-300
                solution = np.linalg.lstsq(matrix / scale, wanted, rcond=least)[0]
            columns.append(solution[:, number] / scale)
        return np.stack(columns, 1)

    def _few(self, averages: Sequence[Array], change: Array, learn: Array) -> Array:
        """Give weights to few terms for every variable: (terms, variables)."""
        weights = np.zeros((averages[0].shape[1], len(averages)))
        for number, own in enumerate(averages):
            matrix, wanted = own[learn], change[learn, number]
            if number == 0 or own is not averages[0]:
                unit = matrix / (np.linalg.norm(matrix, axis=0) + 1e-300)
            self.seen.effort.spend(20.0 * matrix.size)
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


def field_of(seen: FlowData, formulas: Sequence[Formula]) -> Field:
    """Return the field of some formulas; its terms are theirs, one after another."""
    evaluate = evaluator([term.text for formula in formulas for term in formula.terms])
    sizes = [len(formula.terms) for formula in formulas]
    weights = np.zeros((sum(sizes), len(formulas)))
    for index, formula in enumerate(formulas):
        start = sum(sizes[:index])
        weights[start : start + sizes[index], index] = formula.weights
    return seen.field(evaluate, weights)


@lru_cache(20_000)  # a few hundred bytes each; the same terms return with every scheme
def _compiled(text: str) -> CodeType:
    return compile(text, "<term>", "eval")


def evaluator(texts: Sequence[str]) -> Evaluator:
    """Compile expressions of a program so that they can be computed for all rows at once."""
    codes = [_compiled(text) for text in texts]

    def evaluate(names: dict[str, object], rows: int) -> Array:
        scope = {"np": np, "abs": np.abs, "max": np.maximum, "min": np.minimum, **names}
        values = np.empty((rows, len(codes)))
        with np.errstate(all="ignore"):
            for index, code in enumerate(codes):
                values[:, index] = eval(code, {}, scope)  # noqa: S307
        return values

    return evaluate
