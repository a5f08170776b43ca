"""Vector fields of a state, fitted through integration steps with several stages.

A step is a weighted sum of rates at its stages. If the stages are fixed, the field is a linear
regression on terms that are averaged over the stages. The fit alternates between this regression
and the stages, which follow from the current field.
"""

from collections.abc import Callable, Iterator, Sequence
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
from cwm_induction.mechanics.mechanism import STAGES, Scheme
from cwm_induction.writing.statements import ProgramDraft, Statement, mentioned

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

FIRST, LOST, NEAR = 4, 50, 0.02
"""After `FIRST` schemes, the search stops if the smallest error is above `LOST` or below `NEAR`."""

SEARCH = SearchLimits(size=5, eliminate=14)
"""Limits of the search for the terms of a field, as for an equation of level 2."""

_RUNGE_KUTTA = """k1 = {rates}
k2 = self.rates(state + k1 / {twice}{given})
k3 = self.rates(state + k2 / {twice}{given})
k4 = self.rates(state + k3{over}{given})
state = state + (k1 + 2 * k2 + 2 * k3 + k4) / {six}"""
_RULES = {
    "runge-kutta": _RUNGE_KUTTA,
    "midpoint": "state = state + self.rates(state + {rates} / {twice}{given}){over}",
    "euler": "state = state + {rates}{over}",
}
Field = Callable[[Array], tuple[Array, Array]]
"""Function from states (rows, variables) to rates per step, and to terms (rows, terms)."""

Evaluator = Callable[[dict[str, object], int], Array]
"""Function of variables and a number of rows; returns values (rows, expressions)."""


def schemes() -> Iterator[Scheme]:
    """Yield schemes, the most likely first."""
    yield from (Scheme("runge-kutta", 1), Scheme("midpoint", 1))
    for parts in (2, 4, 5, 10, 3, 8, 20):
        yield Scheme("euler", parts)
        if parts <= 5:
            yield Scheme("runge-kutta", parts)


class SchemeStage(NamedTuple):
    """A stage of a step: the states, their terms (rows, terms), and the weight of the stage."""

    state: Array
    terms: Array
    weight: float


def advance(scheme: Scheme, state: Array, field: Field) -> tuple[Array, list[SchemeStage]]:
    """Return the states after a step, and the stages of the step."""
    size, stages = 1 / scheme.parts, list[SchemeStage]()
    for _ in range(scheme.parts):
        rates, change = np.zeros(state.shape), np.zeros(state.shape)
        for distance, weight in STAGES[scheme.rule]:
            at = state + distance * size * rates
            rates, terms = field(at)
            change += weight * rates
            stages.append(SchemeStage(at, terms, weight * size))
        state = state + size * change
    return state, stages


def averages_of(stages: Sequence[SchemeStage]) -> Array:
    """Return the terms (rows, terms), averaged over the stages."""
    total: Array = np.sum([stage.weight * stage.terms for stage in stages if stage.weight], axis=0)
    return total


@dataclass(frozen=True)
class Flow:
    """Rates per step as formulas of the state, and the integration scheme."""

    names: tuple[str, ...]
    formulas: tuple[Formula, ...]
    scheme: Scheme

    @property
    def reads(self) -> set[str]:
        """Names of other variables in the field."""
        return {name for f in self.formulas for name in f.names} - set(self.names)

    @property
    def cost(self) -> float:
        """Sum of the costs of the formulas."""
        return sum(formula.cost for formula in self.formulas)

    def add_to(self, program: ProgramDraft) -> None:
        """Add the method of the field, and the statement that advances `state` by a step."""
        texts = [formula.text() for formula in self.formulas]
        outside = sorted(mentioned(" ".join(texts)) - set(self.names) - {"np", "abs", "max", "min"})
        given = "".join(f", {name}" for name in outside)
        lines = [
            f"def rates(self, state{given}):",
            '    """Return the rates of change per step."""',
            f"    {', '.join(self.names)}{',' * (len(self.names) == 1)} = state",
            "    return np.array([",
            *(f"        {text}," for text in texts),
            "    ])",
        ]
        program.methods.append("\n".join(lines))
        program.statements.append(self._advance(given))

    def next_of(self, name: str) -> str:
        """Return the expression of a variable's next value."""
        return f"state[{self.names.index(name)}]"

    def _advance(self, given: str) -> Statement:
        rule, parts = self.scheme
        body = _RULES[rule].format(
            rates=f"self.rates(state{given})",
            given=given,
            over=f" / {parts}" if parts > 1 else "",
            twice=2 * parts,
            six=6 * parts,
        )
        start = f"state = np.array([{', '.join(self.names)}])"
        return Statement(
            f"{start}\n{self.scheme.repeated(body)}", f"Integrate {self.scheme.words}."
        )


class _Guess(NamedTuple):
    """Terms averaged over the stages (rows, terms), and the error of their field."""

    averages: Array
    error: float


@dataclass(frozen=True)
class FieldFit:
    """A fit of a vector field that is a weighted sum of terms.

    The columns `others` are constant during a step.
    """

    variables: Sequence[Variable]
    others: Sequence[NamedColumn]
    samples: Samples
    effort: Share

    def flow(self) -> Flow | None:
        """Return a sparse field that explains all variables, with its scheme, or None.

        The error with the Runge-Kutta scheme ranks libraries of terms. The best two are tried.
        """
        if not self.has_enough_rows:
            return None
        columns, others = [variable.column for variable in self.variables], self.others
        libraries = [
            library(columns, others, 2),
            polynomial(columns, others),
            library(columns, others, 3),
        ]
        first = Scheme("runge-kutta", 1)
        libraries.sort(key=lambda terms: self._guess(first, terms, 2).error)
        flows = (self._best_scheme(terms) for terms in libraries[:2])
        return next((flow for flow in flows if flow is not None), None)

    def _best_scheme(self, terms: Sequence[Term]) -> Flow | None:
        """Return the cheapest sparse field over the schemes with the smallest errors."""
        guesses = []
        for number, scheme in enumerate(schemes()):
            guess = self._guess(scheme, terms)
            guesses.append((guess.error, number, scheme, guess))
            least = min(error for error, *_ in guesses)
            far, near = least > LOST, least < NEAR
            if not self.effort.spend(0) or (number + 1 >= FIRST and (far or near)):
                break
        promising = sorted(guesses, key=lambda entry: entry[:2])[:PROMISING]
        flows = [
            self._sparse(scheme, terms, guess)
            for error, _, scheme, guess in promising
            if error <= 2
        ]
        exact_flows = [flow for flow in flows if flow is not None]
        return min(exact_flows, key=lambda flow: flow.cost, default=None)

    def _guess(self, scheme: Scheme, terms: Sequence[Term], rounds: int = ROUNDS) -> _Guess:
        """Alternate between weights and stages, and measure the error in held-out rows.

        The first stages are on a straight line.
        """
        evaluate = evaluator([term.text for term in terms])
        stages, best = self.straight_stages(scheme, evaluate), _Guess(np.zeros(0), np.inf)
        for _ in range(rounds):
            averages = averages_of(stages)
            field = self.field(evaluate, self._weights(averages))
            after, stages = advance(scheme, self.state[self.rows], field)
            error = self.error(after)
            if not error < 0.8 * best.error:
                break
            best = _Guess(averages, error)
        return best

    def _weights(self, averages: Array) -> Array:
        """Fit the weights (terms, variables) of few selected terms for each variable."""
        matrix, wanted = averages[: len(self.learn)], self.change[self.learn]
        unit = matrix / (np.linalg.norm(matrix, axis=0) + 1e-300)
        weights = np.zeros((matrix.shape[1], wanted.shape[1]))
        for index, own in enumerate(wanted.T):
            self.effort.spend(20.0 * matrix.size)
            chosen = selected(unit, own, MOST_TERMS, 0.05)
            weights[chosen, index] = solve(matrix[:, chosen], own)
        return weights

    def _sparse(self, scheme: Scheme, terms: Sequence[Term], guess: _Guess) -> Flow | None:
        """Select few of the terms, then polish the field."""
        rows, learn = self.rows, np.arange(len(self.learn))
        own = [t._replace(values=guess.averages[:, i]) for i, t in enumerate(terms)]
        formulas = []
        for variable in self.variables:
            for tolerance in (4 * variable.rounding, variable.quarter):
                wanted = variable.change[rows], tolerance[rows]
                formula = exact(own, *wanted, learn, self.effort, SEARCH)
                if formula is not None:
                    break
            else:
                return None
            formulas.append(formula)
        return self.polished(scheme, formulas)

    def polished(self, scheme: Scheme, formulas: list[Formula]) -> Flow | None:
        """Alternate between stages and weights; return None if held-out rows are wrong."""
        rows, learn = self.rows, np.arange(len(self.learn))
        for _ in range(3):
            stages = advance(scheme, self.state[rows], self._field_of(formulas))[1]
            columns = iter(averages_of(stages).T)
            for index, (formula, variable) in enumerate(zip(formulas, self.variables, strict=True)):
                terms = [term._replace(values=next(columns)) for term in formula.terms]
                wanted, tolerance = variable.change[rows], variable.rounding[rows]
                formulas[index] = fitted(terms, wanted, tolerance, learn)
        after = advance(scheme, self.state[rows], self._field_of(formulas))[0]
        if (self._errors(after) <= 4).all(1).mean() < RIGHT:
            return None
        return Flow(tuple(self._names), tuple(formulas), scheme)

    def _field_of(self, formulas: Sequence[Formula]) -> Field:
        """Return the field of formulas; its terms are the concatenated terms of the formulas."""
        sizes = [len(formula.terms) for formula in formulas]
        weights = np.zeros((sum(sizes), len(formulas)))
        for index, formula in enumerate(formulas):
            start = sum(sizes[:index])
            weights[start : start + sizes[index], index] = formula.weights
        return self.field(
            evaluator([term.text for formula in formulas for term in formula.terms]), weights
        )

    def field(self, evaluate: Evaluator, weights: Array) -> Field:
        """Return the field of weighted terms."""

        def rates(state: Array) -> tuple[Array, Array]:
            values = self._values(evaluate, state)
            return values @ weights, values

        return rates

    def straight_stages(self, scheme: Scheme, evaluate: Evaluator) -> list[SchemeStage]:
        """Return stages on the straight line between the states before and after."""
        change = self.change[self.rows]
        field: Field = lambda state: (change, self._values(evaluate, state))  # noqa: E731
        return advance(scheme, self.state[self.rows], field)[1]

    def error(self, after: Array) -> float:
        """Return the error that 80 % of the held-out rows do not exceed."""
        return float(np.quantile(self._errors(after).max(1), 0.8))

    @property
    def has_enough_rows(self) -> bool:
        """Whether there are enough rows to fit and to check a field."""
        return len(self.learn) >= 40 and len(self._check) >= 4

    def _values(self, evaluate: Evaluator, state: Array) -> Array:
        """Return the terms of all rows at given states, which are clipped to `range`."""
        names = zip(self._names, np.clip(state, *self.range).T, strict=True)
        values = evaluate({**self._given, **dict(names)}, len(state))
        self.effort.spend(1.0 * values.size)
        return np.nan_to_num(values)

    def _errors(self, after: Array) -> Array:
        """Return the errors of predicted states in held-out rows, in units of the tolerance."""
        rows = self._check
        errors = np.abs(after[len(self.learn) :] - self.state[rows] - self.change[rows])
        quarters = np.stack([variable.quarter[rows] for variable in self.variables], 1)
        scaled: Array = errors / quarters
        return scaled

    @cached_property
    def _usable(self) -> Array:
        """Mask of the rows that a field must explain."""
        mask: Array = self.samples.smooth & np.all([v.free for v in self.variables], axis=0)
        return mask

    @cached_property
    def learn(self) -> Array:
        """Indices of the training rows."""
        rows = np.flatnonzero(self._usable & self.samples.learn)
        return rows[:: max(1, len(rows) // LEARN_ROWS)]

    @cached_property
    def _check(self) -> Array:
        """Indices of the held-out rows."""
        rows = np.flatnonzero(self._usable & ~self.samples.learn)
        return rows[:: max(1, len(rows) // CHECK_ROWS)]

    @cached_property
    def rows(self) -> Array:
        """Indices of the training rows, then of the held-out rows."""
        return np.concatenate([self.learn, self._check])

    @cached_property
    def state(self) -> Array:
        """The variables before the step, in every row."""
        return np.stack([variable.now for variable in self.variables], 1)

    @cached_property
    def change(self) -> Array:
        """The changes of the variables, in every row."""
        return np.stack([variable.change for variable in self.variables], 1)

    @cached_property
    def range(self) -> tuple[Array, Array]:
        """Bounds for the stages of inaccurate fields."""
        states = np.concatenate([self.state, self.state + self.change])
        span = np.ptp(states, axis=0)
        return states.min(0) - span, states.max(0) + span

    @property
    def _names(self) -> list[str]:
        return [variable.name for variable in self.variables]

    @cached_property
    def _given(self) -> dict[str, object]:
        """The variables of terms that are constant during a step, in all rows of the fit."""
        rows, actions = self.rows, self.samples.actions[self.rows]
        discrete = self.samples.action_space.kind == "discrete"
        action: object = actions[:, 0] if discrete else list(actions.T)
        named = {c.text: c.values[rows] for c in self.others if c.text.isidentifier()}
        return {**named, "action": action, "inputs": action}


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
