"""What a step is worth.

A reward is one formula and the cases in which it does not hold alone. Formulas are tried in an
order, the likeliest first, until one explains nearly every row with its cases.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cwm_induction.continuous.inner_constants import Scan, varied
from cwm_induction.continuous.regression import Formula, SearchLimits, Target
from cwm_induction.continuous.rules import condition, holds
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, NamedColumn, Term, library
from cwm_induction.continuous.variables import Variable
from cwm_induction.effort import Share
from cwm_induction.mechanics.kinematics import BACKWARD, Kinematics
from cwm_induction.rewards.cases import RewardCase, cases, constant, in_turn, others, right
from cwm_induction.rewards.formulas import approximation, formula_in, linked, most_of, turns
from cwm_induction.rewards.terms import MOST_COLUMNS, SHAPES, Distances, RewardContext, distances_in

MOST_VALUES = 6
"""Rewards of at most this many values are chosen by rules."""

EXACT = 0.98
"""Share of rows in which an explanation of the reward has to be right to be believed."""

USEFUL = 0.3
"""Share of rows in which an explanation has to be right to be worth more than an approximation."""

UNITS = 700.0
"""Work that one family of formulas may cost."""

BENT = 1.3e8
"""Operations that it costs to try every shape of one quantity."""


@dataclass(frozen=True)
class Reward:
    """A formula, and in order the cases in which it does not hold alone.

    `right` is the share of rows in which this is right.
    """

    formula: Formula
    cases: tuple[RewardCase, ...] = ()
    right: float = 1.0

    def values(self, rows: int) -> Array:
        """Return the reward of every row; of several cases the first that holds counts."""
        first = self.formula.values(rows)
        values = first
        for tree, other, added in reversed(self.cases):
            special = other.values(rows) + (first if added else 0)
            values = np.where(holds(tree, rows), special, values)
        return values

    @property
    def is_constant(self) -> bool:
        """Whether every reward seen was the same."""
        return all(term.text == ONE for term in self.formula.terms) and not self.cases

    def kinds(self, terminated: Array) -> list[Array]:
        """Return the ends that pay alike."""
        found, remaining = [], terminated
        for case in self.cases:
            rows = holds(case.tree, len(terminated)) & remaining
            found.append(rows)
            remaining = remaining & ~rows
        return [rows for rows in [*found, remaining] if rows.any()]

    @property
    def places(self) -> list[Term]:
        """Functions of what follows a step that the formula reads, and distances in it."""
        terms = [t for t in self.formula.terms if _is_place(t)]
        return [*terms, *distances_in(self.formula)]

    @property
    def texts(self) -> list[str]:
        """Everything that is written of it."""
        formulas = [self.formula, *(case.formula for case in self.cases)]
        found = [term.text for formula in formulas for term in formula.terms]
        return [*found, *(condition(case.tree) for case in self.cases)]


def reward_of(
    samples: Samples,
    variables: Sequence[Variable],
    inputs: Sequence[NamedColumn],
    effort: Share,
    *,
    level: int = 3,
    kinematics: Kinematics | None = None,
) -> Reward:
    """Explain the rewards; `level` 4 searches further for formulas."""
    context = RewardContext(samples, variables, inputs)
    best = _with_cases(context, [_commonest(samples)])
    if len(np.unique(np.round(samples.rewards, 9))) <= MOST_VALUES and best.right > EXACT:
        return best
    search = SearchLimits(10, 24, 16) if level > 3 else SearchLimits()
    for formulas in _Formulas(context, effort, search, kinematics, best.right > USEFUL):
        found = _with_cases(context, formulas)
        best = max(best, found, key=lambda reward: reward.right)
        if best.right > EXACT:
            return best
    if best.right > USEFUL:
        return best
    plain = Reward(_commonest(samples))
    return min(_judged(context, plain), _roughly(context), key=lambda found: _error(context, found))


Found = Formula | list[Formula] | None
"""A formula, several that take turns, or nothing."""


@dataclass(frozen=True)
class _Formulas:
    """Formulas that hold along the way, then formulas that hold for the most part.

    The first of each list is for most rows, the others hold in the rest. Where many rows pay
    the same, formulas that take turns come first (`parted`).
    """

    context: RewardContext
    effort: Share
    search: SearchLimits
    kinematics: Kinematics | None
    parted: bool

    def __iter__(self) -> Iterator[list[Formula]]:
        """Yield what may explain the reward, the likeliest first."""
        along = [self._sums, self._places, self._distances, self._functions, self._majorities]
        order = [self._turns, *along] if self.parted else [*along, self._turns]
        for family in [self._changes, *order, self._bent]:
            for found in family():
                if found:
                    yield [found] if isinstance(found, Formula) else found

    def _changes(self) -> Iterator[Found]:
        """Yield a sum that has a change in it, which the end of an episode may cut short."""
        terms = self.context.changes()
        formula = formula_in(self.context, terms, self._part(1), SearchLimits(4))
        if formula is not None and any(" - " in term.text for term in formula.terms):
            yield formula

    def _sums(self) -> Iterator[Found]:
        part = self._part(2)
        for terms in self._libraries:
            yield formula_in(self.context, terms, part, self.search)

    def _places(self) -> Iterator[Found]:
        """Yield formulas in the places of the parts of a mechanism."""
        if self.kinematics is None:
            return
        samples, known = self.context.samples, self.kinematics.right
        rows = np.flatnonzero(samples.smooth & samples.learn & known)
        for terms in self.kinematics.costs(self.context.inputs, samples.rewards, rows):
            yield formula_in(self.context, terms, self.effort, BACKWARD, known)

    def _distances(self) -> Iterator[Found]:
        part = self._part(2)
        for shape in SHAPES:
            for terms in Distances(self.context, self._libraries[1], part, shape).libraries():
                yield formula_in(self.context, terms, part, self.search)

    def _functions(self) -> Iterator[Found]:
        libraries = [self._libraries[1], self._libraries[4]]
        return linked(self.context, libraries, self._part(1), self.search)

    def _majorities(self) -> Iterator[Found]:
        part = self._part(1)
        for terms in self._libraries:
            yield most_of(self.context, terms, part, self.search)

    def _turns(self) -> Iterator[Found]:
        for terms in self._libraries[1:3]:
            yield turns(self.context, terms, self._part(1))

    def _bent(self) -> Iterator[Found]:
        """Yield formulas with constants inside their terms."""
        samples, inputs, part = self.context.samples, self.context.inputs, self._part(2)
        rows = samples.smooth & samples.learn
        target = Target(samples.rewards, self.context.tolerance, rows)
        for columns in (self.context.then, self.context.now):
            terms = [t for t in library(columns, inputs, 2) if t.cost <= 2]
            arguments = varied([*columns, *inputs])[:MOST_COLUMNS]
            if not part.spend(BENT * len(arguments)):
                return
            yield Scan(terms, (), target, part).formula(arguments)

    @cached_property
    def _libraries(self) -> list[list[Term]]:
        return list(self.context.libraries())

    def _part(self, families: int) -> Share:
        """Return what some families may spend."""
        return Share(self.effort.whole, min(self.effort.units, families * UNITS))


def _commonest(samples: Samples) -> Formula:
    (value, _), *_ = Counter(np.round(samples.rewards, 9).tolist()).most_common(1)
    return constant(value, len(samples))


def _with_cases(context: RewardContext, formulas: Sequence[Formula]) -> Reward:
    """Add what holds where the first formula does not: numbers, or else the other formulas."""
    first, samples = formulas[0], context.samples
    found = _judged(context, Reward(first, cases(context, first, others(first, samples))))
    if len(formulas) == 1 or found.right > EXACT:
        return found
    more = others(first, samples, in_turn(context, formulas))
    both = _judged(context, Reward(first, cases(context, first, more)))
    return max(found, both, key=lambda reward: reward.right)


def _roughly(context: RewardContext) -> Reward:
    """Return a linear formula of few terms for what has no exact one."""
    columns = [*(v.column for v in context.variables), *context.then]
    formula = approximation(context.samples, library(columns, context.inputs, 1))
    if not formula.terms:
        formula = constant(float(np.median(context.samples.rewards)), len(context.samples))
    return _judged(context, Reward(formula))


def _judged(context: RewardContext, found: Reward) -> Reward:
    rewards = context.samples.rewards
    return replace(found, right=float(right(found.values(len(rewards)), rewards).mean()))


def _error(context: RewardContext, found: Reward) -> float:
    return float(np.abs(found.values(len(context.samples)) - context.samples.rewards).mean())


def _is_place(term: Term) -> bool:
    """Whether a term is a distance or a wave of what follows a step."""
    inner = term.text[term.text.find("(") + 1 : -1]
    shaped = re.fullmatch(r"(abs|np\.(hypot|sqrt|cos|sin))\(.*\)", term.text)
    own = {name for name in term.names if name not in ("np", "abs")}
    return bool(shaped) and not inner.isidentifier() and all(n.endswith("_next") for n in own)
