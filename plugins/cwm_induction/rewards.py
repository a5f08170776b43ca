"""What a step is worth."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from cwm_induction.effort import Share
from cwm_induction.ending import sums_of_angles
from cwm_induction.kinematics import BACKWARD, Kinematics
from cwm_induction.latents import MATCH, Variable
from cwm_induction.regression import Formula, Search, approximate, exact
from cwm_induction.rounding import literal, rounded
from cwm_induction.rules import Feature, Tree, as_features, holds, learned
from cwm_induction.samples import Array, Samples
from cwm_induction.terms import ONE, Column, Term, distinct, hypotenuses, library, product, waves

MOST_VALUES = 6
"""Rewards of at most this many values are chosen by rules."""


@dataclass(frozen=True)
class Reward:
    """A formula, exceptions to it by rule in order, and what an end adds.

    `right` is the share of rows in which this is right.
    """

    formula: Formula
    exceptions: tuple[tuple[Tree, float], ...] = ()
    bonus: float = 0.0
    right: float = 1.0

    @property
    def is_constant(self) -> bool:
        """Whether every reward seen was the same."""
        return all(term.text == ONE for term in self.formula.terms) and not (
            self.exceptions or self.bonus
        )


def reward(
    samples: Samples,
    variables: Sequence[Variable],
    inputs: Sequence[Column],
    effort: Share,
    *,
    level: int = 3,
    kinematics: Kinematics | None = None,
) -> Reward:
    """Explain the rewards; `level` 4 searches further for formulas."""
    values = Counter(np.round(samples.rewards, 9).tolist())
    if len(values) <= MOST_VALUES:
        return _by_rules(samples, variables, inputs, values)
    search = Search(10, 24, 16) if level > 3 else Search()
    for terms in _libraries(samples, variables, inputs):
        formula = _formula(samples, terms, effort, search)
        if formula is not None:
            return _with_bonus(samples, formula)
    if kinematics is not None:
        rows = np.flatnonzero(samples.smooth & samples.learn & kinematics.right)
        for terms in kinematics.costs(inputs, samples.rewards, rows):
            formula = _formula(samples, terms, effort, BACKWARD, kinematics.right)
            if formula is not None:
                return _with_bonus(samples, formula)
    return _roughly(samples, variables, inputs)


def _by_rules(
    samples: Samples,
    variables: Sequence[Variable],
    inputs: Sequence[Column],
    values: Counter[float],
) -> Reward:
    """Return the most common reward, and a rule for every other one."""
    (common, _), *others = values.most_common()
    features = [
        Feature("terminated", samples.terminated.astype(float), 0.5),
        *as_features([v.next_column for v in variables if not v.still], 1.0),
        *as_features([v.column for v in variables if not v.still], 1.2),
        *as_features(inputs),
    ]
    exceptions = []
    for value, _ in others:
        tree = learned(features, np.round(samples.rewards, 9) == value, depth=3)
        if not isinstance(tree, bool):
            exceptions.append((tree, value))
    return _judged(samples, Reward(_constant(samples, common), tuple(exceptions)))


def _formula(
    samples: Samples,
    terms: Sequence[Term],
    effort: Share,
    search: Search,
    known: Array | bool = True,
) -> Formula | None:
    """Return a formula for the known rewards along the way that also holds in rows held back."""
    rewards = samples.rewards
    usable = samples.smooth & known
    few = int((usable & samples.learn).sum()) < 3 * len(terms) and known is not True
    rows = np.flatnonzero(usable if few else usable & samples.learn)[:600]
    check = usable & ~samples.learn
    size = np.abs(rewards)
    rounding = 8 * samples.grain * (size + size.mean()) + 1e-12
    for tolerance in (rounding, 0.25 * MATCH * (1 + size)):
        formula = exact(terms, rewards, tolerance, rows, effort, search)
        if formula is None:
            continue
        right = _right(samples, formula.values(len(samples)))[check]
        if not right.size or right.mean() > 0.98:
            return formula
    return None


def _with_bonus(samples: Samples, formula: Formula) -> Reward:
    """Add what is paid at the end on top of the formula."""
    extra = (samples.rewards - formula.values(len(samples)))[samples.terminated]
    bonus = rounded(float(np.median(extra)), 6) if len(extra) else 0.0
    bonus = bonus if abs(bonus) > 10 * MATCH else 0.0
    return _judged(samples, Reward(formula, bonus=bonus))


def _roughly(samples: Samples, variables: Sequence[Variable], inputs: Sequence[Column]) -> Reward:
    """Return a linear formula for what has no exact one, or the most common reward."""
    columns = [v.column for v in variables] + [v.next_column for v in variables if not v.still]
    terms = library(columns, inputs, 1)
    check = samples.smooth & ~samples.learn
    formula = approximate(terms, samples.rewards, samples.smooth & samples.learn, check)
    if not formula.terms:
        formula = _constant(samples, float(np.median(samples.rewards)))
    return _judged(samples, Reward(formula))


def predicted(samples: Samples, found: Reward) -> Array:
    """Return the reward of every row according to an explanation."""
    values = found.formula.values(len(samples)) + found.bonus * samples.terminated
    for tree, value in reversed(found.exceptions):
        values = np.where(holds(tree, len(samples)), value, values)
    return values


def _judged(samples: Samples, found: Reward) -> Reward:
    right = _right(samples, predicted(samples, found)).mean()
    return Reward(found.formula, found.exceptions, found.bonus, float(right))


def _right(samples: Samples, values: Array) -> Array:
    right: Array = np.abs(values - samples.rewards) <= MATCH * (1 + np.abs(samples.rewards))
    return right


def _constant(samples: Samples, value: float) -> Formula:
    return Formula((Term(ONE, np.ones(len(samples)), 1.0),), (float(literal(value)),))


def _libraries(
    samples: Samples, variables: Sequence[Variable], inputs: Sequence[Column]
) -> Iterator[list[Term]]:
    """Yield sets of terms, the likeliest first: costs are mostly squares, speeds and distances."""
    now = [v.column for v in variables]
    then = [v.next_column for v in variables if not v.still]
    real = [v.next_column for v in variables if not v.is_angle and not v.still]
    base = [*library([], inputs, 1), *_squares(inputs)]
    if samples.action_space.kind == "box" and len(inputs) > 1:
        effort = np.sum([column.values**2 for column in inputs], axis=0)
        base.append(Term("np.sum(np.square(action))", effort, 1.0))
    yield distinct([*base, *_powers(now)])
    yield distinct([*base, *_powers(then)])
    crossed = [
        Term(product(given, column), given.values * column.values, 1.5)
        for given in inputs
        for column in [*now, *then]
    ]
    lengths = list(hypotenuses(real)) if len(real) <= 8 else []
    yield distinct([*base, *_powers(now), *_powers(then), *crossed, *lengths])
    for columns in (now, then):
        pairs = [
            Term(product(a, b), a.values * b.values, 2.0)
            for a, b in combinations_with_replacement(columns, 2)
        ]
        yield distinct([*base, *_powers(columns), *waves(columns), *pairs])
    turned = sums_of_angles(variables)
    if turned:
        yield distinct([*base, *_powers(then), *turned])


def _squares(columns: Sequence[Column]) -> list[Term]:
    return [Term(f"{text}**2", values**2, 1.0) for text, values, _ in columns]


def _powers(columns: Sequence[Column]) -> list[Term]:
    """Return the columns, their squares and their sizes."""
    plain = [Term(text, values, 1.0) for text, values, _ in columns]
    sizes = [Term(f"abs({text})", np.abs(values), 1.2) for text, values, _ in columns]
    return [*plain, *_squares(columns), *sizes]
