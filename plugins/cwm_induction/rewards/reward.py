"""Find laws for the reward.

A reward is a formula, with rules for the rows that need another formula. The search tries formulas
in order, the likeliest first. It stops when a formula and its rules explain almost every row.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from cwm_induction.continuous.ending import features as end_features
from cwm_induction.continuous.inner_constants import Scan, varied
from cwm_induction.continuous.regression import Formula, SearchLimits, Target
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import ONE, NamedColumn, Term, library
from cwm_induction.continuous.variables import MATCH, Variable
from cwm_induction.effort import Share
from cwm_induction.laws.consensus import Law, Unknown
from cwm_induction.laws.explaining import distinctness, row_sets
from cwm_induction.laws.features import rule_features
from cwm_induction.laws.guarded import GuardedLaws, LawSearch, RowSets, guarded
from cwm_induction.mechanics.kinematics import BACKWARD, Kinematics
from cwm_induction.rewards.formulas import approximation, formula_in, linked
from cwm_induction.rewards.terms import MOST_COLUMNS, SHAPES, Distances, RewardContext, distances_in
from cwm_induction.rules import Feature, as_features
from cwm_induction.writing.rounding import literal

MOST_VALUES = 6
"""Rules alone may explain rewards with at most this many distinct values."""

EXACT = 0.98
"""An explanation of the reward is accepted if it predicts more than this share of rows."""

SHORT = 16.0
"""Maximum cost of an accepted explanation that ends the search: about eight terms and tests."""

USEFUL = 0.3
"""An explanation that predicts more than this share of rows is preferred to an approximation."""

END_WEIGHT = 3.0
"""Weight of a terminal row, because its reward is often rare and large."""

UNITS = 700.0
"""Work units for one family of formulas."""

SCAN_OPERATIONS = 1.3e8
"""Operations for trying every shape of one quantity."""


@dataclass(frozen=True)
class Reward:
    """Laws of the reward, and the share of rows that the laws predict."""

    laws: GuardedLaws
    right: float = 1.0

    def values(self, rows: int) -> Array:
        """Return the reward of every row."""
        return self.laws.values(rows)

    @property
    def formula(self) -> Formula:
        """Return the formula that holds if no rule does."""
        return self.laws.formulas[0]

    @property
    def is_constant(self) -> bool:
        """Return whether the laws are one constant without rules."""
        return all(term.text == ONE for term in self.formula.terms) and not self.laws.rules

    def gain(self, rows: int) -> float:
        """Return the number of predicted rows minus the cost of the laws."""
        return self.right * rows - self.laws.cost

    @property
    def places(self) -> list[Term]:
        """Return the formula's terms of the next state that are distances or waves.

        Distances also include those written as sums of squares.
        """
        terms = [t for t in self.formula.terms if _is_place(t)]
        return [*terms, *distances_in(self.formula)]

    @property
    def texts(self) -> list[str]:
        """Return all expressions of the reward."""
        terms = [term.text for formula in self.laws.formulas for term in formula.terms]
        return [*terms, *(rule.text() for rule, _ in self.laws.rules)]


def reward_of(
    samples: Samples,
    variables: Sequence[Variable],
    inputs: Sequence[NamedColumn],
    effort: Share,
    *,
    level: int = 3,
    kinematics: Kinematics | None = None,
) -> Reward:
    """Explain the rewards by laws; `level` 4 widens the search for formulas."""
    context = RewardContext(samples, variables, inputs)
    best = _with_rules(context, [_most_common_value(samples)], effort)
    if len(np.unique(np.round(samples.rewards, 9))) <= MOST_VALUES and best.right > EXACT:
        return best
    best = max(best, _from_laws(context, effort), key=lambda reward: reward.gain(len(samples)))
    if best.right > EXACT and best.laws.cost <= SHORT:
        return best
    search = SearchLimits(10, 24, 16) if level > 3 else SearchLimits()
    formulas = _Formulas(context, effort, search, kinematics, quick=best.right > EXACT)
    for formula in formulas:
        candidate = _with_rules(context, [formula], effort)
        best = max(best, candidate, key=lambda reward: reward.gain(len(samples)))
        if candidate.right > EXACT:
            return best
    if best.right > USEFUL:
        return best
    plain = Reward(GuardedLaws((_most_common_value(samples),)), 0.0)
    return min(plain, _approximate(context), key=lambda reward: _error(context, reward))


MaybeFormula = Formula | None


def _from_laws(context: RewardContext, effort: Share) -> Reward:
    """Search for laws that hold in parts of the rows."""
    samples, columns = context.samples, [*context.now, *context.then]
    libraries = context.law_libraries()
    sets, part = row_sets(samples, columns, context.inputs), effort.whole.share(0.2)
    search = LawSearch(
        _unknown(context),
        libraries,
        libraries[-1],
        sets._replace(groups=[samples.terminated, *sets.groups]),
        np.random.default_rng(len(samples)),
        part,
    )
    laws = search.laws()
    if not laws:
        return Reward(GuardedLaws((_most_common_value(samples),)), 0.0)
    return _decided(context, laws, part)


def _with_rules(context: RewardContext, formulas: Sequence[Formula], effort: Share) -> Reward:
    """Explain the remaining rows by laws that differ from a formula by one term."""
    unknown, base = _unknown(context), context.base()
    sets = RowSets(np.zeros((len(context.samples), 0)))
    search = LawSearch(unknown, [], base, sets, np.random.default_rng(0), effort)
    return _decided(context, search.laws(formulas) or [unknown.law(formulas[0])], effort)


def _decided(context: RewardContext, laws: Sequence[Law], effort: Share) -> Reward:
    """Order laws in a decision list, and score it."""
    features = _features(context, [law.formula for law in laws])
    rows = np.ones(len(context.samples), bool)
    return _scored(context, guarded(laws, features, rows, effort))


def _unknown(context: RewardContext) -> Unknown:
    samples = context.samples
    every = np.ones(len(samples), bool)
    weights = np.where(samples.terminated, END_WEIGHT, distinctness(samples))
    return Unknown(samples.rewards, context.tolerance, every, every, weights)


def _features(context: RewardContext, formulas: Sequence[Formula]) -> list[Feature]:
    """Return the quantities that rules of the reward may compare with thresholds."""
    moving = [v for v in context.variables if not v.still]
    changes = [
        Feature(f"{v.next} - {v.name}", v.then - v.now, 1.8) for v in moving if not v.is_angle
    ]
    terms = {t.text: Feature(t.text, t.values, 1.4) for f in formulas for t in f.terms}
    later = rule_features([v.next_column for v in moving], context.inputs)
    features = [
        Feature("terminated", context.samples.terminated.astype(float), 0.5),
        *later,
        *as_features([v.column for v in moving], 1.2),
        *changes,
        *terms.values(),
        *_differences(formulas),
        *end_features(context.samples, context.variables),
    ]
    unique = {feature.text: feature for feature in reversed(features) if feature.text != ONE}
    return [feature for feature in unique.values() if np.ptp(feature.values) > 0]


def _differences(formulas: Sequence[Formula]) -> Iterator[Feature]:
    """Yield short differences of two formulas; their sign shows which formula is larger."""
    for first, second in combinations(formulas, 2):
        weights = (*first.weights, *(-weight for weight in second.weights))
        both = Formula((*first.terms, *second.terms), weights)
        text = both.text()
        if both.terms and text.count(" ") <= 16:
            yield Feature(text, both.values(len(both.terms[0].values)), 2.0)


@dataclass(frozen=True)
class _Formulas:
    """Formulas that hold in all rows but the last of an episode, the likeliest first.

    If `quick`, the two families with the most work are left out.
    """

    context: RewardContext
    effort: Share
    search: SearchLimits
    kinematics: Kinematics | None
    quick: bool

    def __iter__(self) -> Iterator[Formula]:
        """Yield candidate formulas for the reward."""
        families = [self._changes, self._sums, self._places, self._distances]
        for family in (
            families if self.quick else [*families, self._functions, self._with_inner_constants]
        ):
            yield from (formula for formula in family() if formula is not None)

    def _changes(self) -> Iterator[MaybeFormula]:
        """Yield a sum with the change of a variable; the end of an episode may shorten it."""
        terms = self.context.changes()
        formula = formula_in(self.context, terms, self._part(1), SearchLimits(4))
        if formula is not None and any(" - " in term.text for term in formula.terms):
            yield formula

    def _sums(self) -> Iterator[MaybeFormula]:
        part = self._part(2)
        for terms in self._libraries:
            yield formula_in(self.context, terms, part, self.search)

    def _places(self) -> Iterator[MaybeFormula]:
        """Yield formulas of the positions of a mechanism's parts."""
        if self.kinematics is None:
            return
        samples, known = self.context.samples, self.kinematics.right
        rows = np.flatnonzero(samples.smooth & samples.learn & known)
        for terms in self.kinematics.costs(self.context.inputs, samples.rewards, rows):
            yield formula_in(self.context, terms, self.effort, BACKWARD, known)

    def _distances(self) -> Iterator[MaybeFormula]:
        part = self._part(2)
        for shape in SHAPES:
            for terms in Distances(self.context, self._libraries[1], part, shape).libraries():
                yield formula_in(self.context, terms, part, self.search)

    def _functions(self) -> Iterator[MaybeFormula]:
        libraries = [self._libraries[1], self._libraries[4]]
        return linked(self.context, libraries, self._part(1), self.search)

    def _with_inner_constants(self) -> Iterator[MaybeFormula]:
        """Yield formulas with constants inside their terms."""
        samples, inputs, part = self.context.samples, self.context.inputs, self._part(2)
        rows = samples.smooth & samples.learn
        target = Target(samples.rewards, self.context.tolerance, rows)
        for columns in (self.context.then, self.context.now):
            terms = [t for t in library(columns, inputs, 2) if t.cost <= 2]
            arguments = varied([*columns, *inputs])[:MOST_COLUMNS]
            if not part.spend(SCAN_OPERATIONS * len(arguments)):
                return
            yield Scan(terms, (), target, part).formula(arguments)

    @cached_property
    def _libraries(self) -> list[list[Term]]:
        return list(self.context.libraries())

    def _part(self, families: int) -> Share:
        """Return the work budget of several families."""
        return Share(self.effort.whole, min(self.effort.units, families * UNITS))


def _most_common_value(samples: Samples) -> Formula:
    (value, _), *_ = Counter(np.round(samples.rewards, 9).tolist()).most_common(1)
    return _constant(value, len(samples))


def _constant(value: float, rows: int) -> Formula:
    return Formula((Term(ONE, np.ones(rows), 1.0),), (float(literal(value)),))


def _approximate(context: RewardContext) -> Reward:
    """Return a linear approximation with few terms, for rewards without an exact formula."""
    columns = [*(v.column for v in context.variables), *context.then]
    formula = approximation(context.samples, library(columns, context.inputs, 1))
    if not formula.terms:
        formula = _constant(float(np.median(context.samples.rewards)), len(context.samples))
    return _scored(context, GuardedLaws((formula,)))


def _scored(context: RewardContext, laws: GuardedLaws) -> Reward:
    rewards = context.samples.rewards
    error = np.abs(laws.values(len(rewards)) - rewards)
    return Reward(laws, float((error <= MATCH * (1 + np.abs(rewards))).mean()))


def _error(context: RewardContext, reward: Reward) -> float:
    return float(np.abs(reward.values(len(context.samples)) - context.samples.rewards).mean())


def _is_place(term: Term) -> bool:
    """Return whether a term is a distance or a wave of the next state."""
    inner = term.text[term.text.find("(") + 1 : -1]
    shaped = re.fullmatch(r"(abs|np\.(hypot|sqrt|cos|sin))\(.*\)", term.text)
    own = {name for name in term.names if name not in ("np", "abs")}
    return bool(shaped) and not inner.isidentifier() and all(n.endswith("_next") for n in own)
