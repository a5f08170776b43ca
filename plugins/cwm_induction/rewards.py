"""Find laws for the reward, and a rule for the end of an episode.

A reward is a formula, with rules for the rows that need another formula. The search tries formulas
in order, the likeliest first. It stops when a formula and its rules explain almost every row.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, combinations_with_replacement

import numpy as np

from cwm_induction.continuous.least_squares import descended, shortened
from cwm_induction.continuous.regression import (
    Formula,
    Projection,
    SearchLimits,
    Target,
    exact,
    orthonormal,
    sparse,
)
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import (
    ONE,
    NamedColumn,
    Term,
    distinct,
    hypotenuses,
    library,
    product,
    waves,
)
from cwm_induction.continuous.variables import MATCH, Variable
from cwm_induction.effort import Share
from cwm_induction.laws.consensus import Law, Unknown
from cwm_induction.laws.explaining import distinctness, row_sets, rule_features
from cwm_induction.laws.guarded import GuardedLaws, LawSearch, RowSets, guarded
from cwm_induction.mechanics.kinematics import BACKWARD, Kinematics
from cwm_induction.rules import Feature, ThresholdRule, as_features, learn_rule
from cwm_induction.writing.rounding import is_whole_degrees, literal

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

FORMULA_UNITS = 1400.0
"""Work units for sums of terms and for distances from unknown points."""

MOST_COLUMNS = 8
"""Lengths, differences and trades are tried only for at most this many quantities."""

MOST_FORMULA_ROWS = 600
"""Number of rows for fitting a formula; held-out rows check it."""

MIN_HELD_OUT_RIGHT = 0.98
"""A formula is accepted if it predicts more than this share of the held-out rows."""

MOST_ROWS = 300
"""Number of rows for fitting a point: it has few coordinates, so few rows are enough."""

MOST_PLACES = 8
"""Points are searched in this many coordinates, one or two at a time."""

MAX_REFINED = 3
"""Number of starting points that are refined."""

POINT_OPERATIONS = 4e5
"""Fixed number of operations for trying a point, independent of the number of rows."""

STARTS = (33, 9)
"""Starting points per coordinate, for distances in one or two coordinates."""


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

    def gain(self, rows: int) -> float:
        """Return the number of predicted rows minus the cost of the laws."""
        return self.right * rows - self.laws.cost

    @property
    def places(self) -> list[Term]:
        """Return the formula's terms of the next state that are distances or waves."""
        return [t for t in self.formula.terms if _is_place(t)]

    @property
    def texts(self) -> list[str]:
        """Return all expressions of the reward."""
        terms = [term.text for formula in self.laws.formulas for term in formula.terms]
        return [*terms, *(rule.text() for rule, _ in self.laws.rules)]


@dataclass(frozen=True)
class RewardContext:
    """The quantities of a reward: variables before and after the step, and the inputs."""

    samples: Samples
    variables: Sequence[Variable]
    inputs: Sequence[NamedColumn]

    @property
    def tolerance(self) -> Array:
        """A quarter of the largest error of a correct prediction, for every row."""
        tolerance: Array = 0.25 * MATCH * (1 + np.abs(self.samples.rewards))
        return tolerance

    @property
    def now(self) -> list[NamedColumn]:
        """Columns of all variables before the step."""
        return [v.column for v in self.variables]

    @property
    def then(self) -> list[NamedColumn]:
        """Columns of the moving variables after the step."""
        return [v.next_column for v in self.variables if not v.still]

    @property
    def places(self) -> list[Variable]:
        """Moving variables that are not angles."""
        return [v for v in self.variables if not v.is_angle and not v.still]

    def base(self) -> list[Term]:
        """Return the constant and common costs of inputs."""
        terms = [*library([], self.inputs, 1), *_powers(self.inputs)]
        if self.samples.action_space.kind == "box" and len(self.inputs) > 1:
            effort = np.sum([column.values**2 for column in self.inputs], axis=0)
            terms.append(Term("np.sum(np.square(action))", effort, 1.0))
        return distinct(terms)

    @cached_property
    def libraries(self) -> list[list[Term]]:
        """Sets of terms: powers after the step; also before it, with distances; curves; products.

        The last set has powers before and after the step, products with inputs, and lengths.
        """
        now, then = self.now, self.then
        later = [*self.base(), *_powers(then)]
        pairs = [product(a, b) for a, b in combinations_with_replacement(then, 2)]
        curves = [*waves(then), *pairs, *sums_of_angles(self.variables)]
        crossed = [product(given, column, 1.5) for given in self.inputs for column in [*now, *then]]
        sizes = [Term(f"abs({text})", np.abs(values), 1.8) for text, values, _ in crossed]
        near = [*later, *_powers(now)]
        lengths: list[Term] = []
        if len(self.places) <= MOST_COLUMNS:
            places = [v.next_column for v in self.places]
            near += [
                Term(f"abs({a.text} - {b.text})", np.abs(a.values - b.values), 1.5)
                for a, b in combinations(places, 2)
            ]
            lengths = [*hypotenuses(places), *hypotenuses([v.column for v in self.places])]
        sets = later, near, [*later, *curves], [*later, *_powers(now), *crossed, *sizes, *lengths]
        return [distinct(terms) for terms in sets]

    @property
    def exchanges(self) -> list[Term]:
        """Changes of quantities, and their products with prices: quantities and waves of angles.

        Example: a battery is charged at a price that follows the hour of the day.
        """
        prices = [Term(text, values, 1.0) for text, values, angle in self.now if not angle]
        for text, values, _ in filter(lambda column: column.is_angle, self.now):
            prices.append(Term(f"np.sin({text})", np.sin(values), 1.2))
            prices.append(Term(f"np.cos({text})", np.cos(values), 1.2))
        traded = []
        for place in self.places if len(self.places) <= MOST_COLUMNS else ():
            change, text = place.then - place.now, f"({place.next} - {place.name})"
            traded.append(Term(text, change, 1.2))
            traded += [
                Term(f"{text} * {price.text}", change * price.values, 1.0 + price.cost)
                for price in prices
            ]
        return distinct([*self.base(), *prices, *traded])


def reward_of(
    samples: Samples,
    variables: Sequence[Variable],
    inputs: Sequence[NamedColumn],
    effort: Share,
    kinematics: Kinematics | None = None,
) -> Reward:
    """Explain the rewards by laws, and by positions of a mechanism if its motion is known."""
    context = RewardContext(samples, variables, inputs)
    best = _with_rules(context, [_most_common_value(samples)], effort)
    if len(np.unique(np.round(samples.rewards, 9))) <= MOST_VALUES and best.right > EXACT:
        return best
    powers, near, _, mixed = context.libraries  # curves fit parts of the rows that share no law
    laws = _from_laws(context, effort, [powers, near, mixed])
    best = max(best, laws, key=lambda reward: reward.gain(len(samples)))
    if best.right > EXACT and best.laws.cost <= SHORT:
        return best
    for formula in filter(None, _formulas(context, effort, kinematics)):
        candidate = _with_rules(context, [formula], effort)
        best = max(best, candidate, key=lambda reward: reward.gain(len(samples)))
        if candidate.right > EXACT:
            return best
    traded = _from_laws(context, effort, [context.exchanges])
    if traded.right > EXACT:
        return max(best, traded, key=lambda reward: reward.gain(len(samples)))
    if best.right > USEFUL:
        return best
    plain = Reward(GuardedLaws((_most_common_value(samples),)), 0.0)
    return min(plain, _approximate(context), key=lambda reward: _error(context, reward))


def ending(
    samples: Samples, variables: Sequence[Variable], terms: Sequence[Term] = ()
) -> ThresholdRule:
    """Learn the rule for the end from all rows: every row narrows the gaps around thresholds.

    The rule may also compare the `terms` of the reward.
    """
    candidates = [*_end_features(variables), *(Feature(t.text, t.values, 0.7) for t in terms)]
    return learn_rule(candidates, samples.terminated)


def _end_features(variables: Sequence[Variable]) -> list[Feature]:
    """Return the quantities that the rule for the end may compare, computed from the next state."""
    candidates: list[Feature] = []
    for variable in variables:
        degrees = is_whole_degrees(variable.high)
        label = f"{variable.name.upper()}_LIMIT"
        extra = 1.2 if variable.is_angle else 0.0  # prefer cosines and sines of angles
        if np.ptp(variable.then) > 1e-9:
            candidates.append(Feature(variable.next, variable.then, 1.0 + extra, degrees, label))
        if variable.then.min() < 0 < variable.then.max():
            symmetric = 0.8 if variable.low == -variable.high else 0.9
            size = np.abs(variable.then)
            candidates.append(
                Feature(f"abs({variable.next})", size, symmetric + extra, degrees, label)
            )
    turned = sums_of_angles(variables)
    moving = [v.next_column for v in variables if not v.is_angle and not v.still]
    lengths = list(hypotenuses(moving)) if len(moving) <= 8 else []
    candidates += _tip_height(variables)
    return candidates + [Feature(t.text, t.values, t.cost + 1) for t in [*turned, *lengths]]


def _tip_height(variables: Sequence[Variable]) -> list[Feature]:
    """Return the height of the tip of a chain of equal links with relative angles."""
    angles = [variable for variable in variables if variable.is_angle]
    if len(angles) < 2:
        return []
    names = [" + ".join(v.next for v in angles[:size]) for size in range(1, len(angles) + 1)]
    turned = np.cumsum([variable.then for variable in angles], axis=0)
    return [Feature(" + ".join(f"np.cos({name})" for name in names), np.cos(turned).sum(0), 1.0)]


def _from_laws(
    context: RewardContext, effort: Share, libraries: Sequence[Sequence[Term]]
) -> Reward:
    """Search for laws that hold in parts of the rows."""
    samples, columns = context.samples, [*context.now, *context.then]
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
    terms = {
        t.text: Feature(re.sub(r"^\(([^()]*)\)$", r"\1", t.text), t.values, 1.4)
        for f in formulas
        for t in f.terms
    }
    later = rule_features([v.next_column for v in moving], context.inputs)
    features = [
        Feature("terminated", context.samples.terminated.astype(float), 0.5),
        *later,
        *as_features([v.column for v in moving], 1.2),
        *changes,
        *terms.values(),
        *_differences(formulas),
        *_end_features(context.variables),
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


def _formulas(
    context: RewardContext, effort: Share, kinematics: Kinematics | None
) -> Iterator[Formula | None]:
    """Yield formulas of all rows but ends: sums, positions of a mechanism, and distances."""
    samples = context.samples
    part = Share(effort.whole, min(effort.units, FORMULA_UNITS))
    for terms in context.libraries:
        yield formula_in(context, terms, part, SearchLimits())
    if kinematics is not None:
        known = kinematics.right
        rows = np.flatnonzero(samples.smooth & samples.learn & known)
        for terms in kinematics.costs(context.inputs, samples.rewards, rows):
            yield formula_in(context, terms, effort, BACKWARD, known)
    for terms in _with_distances(context, part):
        yield formula_in(context, terms, part, SearchLimits())


def _most_common_value(samples: Samples) -> Formula:
    (value, _), *_ = Counter(np.round(samples.rewards, 9).tolist()).most_common(1)
    return _constant(value, len(samples))


def _constant(value: float, rows: int) -> Formula:
    return Formula((Term(ONE, np.ones(rows), 1.0),), (float(literal(value)),))


def _approximate(context: RewardContext) -> Reward:
    """Return a linear approximation with few terms, for rewards without an exact formula."""
    samples, terms = context.samples, library([*context.now, *context.then], context.inputs, 1)
    learn, check = samples.smooth & samples.learn, samples.smooth & ~samples.learn
    formula = sparse(terms, samples.rewards, learn, check)
    if not formula.terms:
        formula = _constant(float(np.median(samples.rewards)), len(samples))
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


def sums_of_angles(variables: Sequence[Variable]) -> list[Term]:
    """Return cosines and sines of angles, and of sums of angles, after the step."""
    angles = [variable for variable in variables if variable.is_angle]
    terms = []
    for size in range(1, len(angles) + 1):
        for group in combinations(angles, size):
            text = " + ".join(variable.next for variable in group)
            total = np.sum([variable.then for variable in group], axis=0)
            terms.append(Term(f"np.cos({text})", np.cos(total), 1.0 + 0.3 * size))
            terms.append(Term(f"np.sin({text})", np.sin(total), 1.0 + 0.3 * size))
    return terms


def _powers(columns: Sequence[NamedColumn]) -> list[Term]:
    """Return the columns, their squares and their absolute values."""
    plain = [Term(text, values, 1.0) for text, values, _ in columns]
    squares = [Term(f"{text}**2", values**2, 1.0) for text, values, _ in columns]
    sizes = [Term(f"abs({text})", np.abs(values), 1.2) for text, values, _ in columns]
    return [*plain, *squares, *sizes]


def formula_in(
    context: RewardContext,
    terms: Sequence[Term],
    effort: Share,
    search: SearchLimits,
    known: Array | bool = True,
) -> Formula | None:
    """Return a formula for the known rewards of non-terminal rows, checked on held-out rows.

    Return None if no formula holds.
    """
    samples, rewards = context.samples, context.samples.rewards
    usable = samples.smooth & known
    few = int((usable & samples.learn).sum()) < 3 * len(terms) and known is not True
    rows = np.flatnonzero(usable if few else usable & samples.learn)[:MOST_FORMULA_ROWS]
    enough = len(terms) <= 0.5 * len(rows)  # with fewer rows, all terms together fit any target
    if enough and not _can_explain(context, terms, rows, effort):
        return None
    size, check = np.abs(rewards), usable & ~samples.learn
    rounding = 8 * samples.grain * (size + size.mean()) + 1e-12
    for tolerance in (rounding, context.tolerance):
        formula = exact(terms, rewards, tolerance, rows, effort, search)
        if formula is None:
            continue
        off = np.abs(formula.values(len(samples)) - rewards)
        held = (off <= 4 * context.tolerance)[check]
        if not held.size or held.mean() > MIN_HELD_OUT_RIGHT:
            return formula
    return None


def _can_explain(context: RewardContext, terms: Sequence[Term], rows: Array, effort: Share) -> bool:
    """Return whether all terms together explain the rewards of some rows (indices)."""
    if not effort.spend(4.0 * len(rows) * len(terms) ** 2):
        return False
    basis = orthonormal(np.stack([term.values[rows] for term in terms], 1), least=1e-9)
    rewards = context.samples.rewards[rows]
    rest = rewards - basis @ (basis.T @ rewards)
    return bool((np.abs(rest) <= 2 * context.tolerance[rows]).all())


def _with_distances(context: RewardContext, effort: Share) -> Iterator[list[Term]]:
    """Yield terms with the distances from a fitted point, in one or two coordinates.

    The distances before and after the step complete powers of values after the step.
    """
    samples, terms = context.samples, context.libraries[0]
    target = Target(samples.rewards, 2 * context.tolerance, samples.smooth & samples.learn)
    plain = Projection.of(terms, target, MOST_ROWS)
    if plain.rows.size < 20:
        return
    varied = [v for v in context.places if len(np.unique(v.then)) > 20][:MOST_PLACES]
    for places in [*((place,) for place in varied), *combinations(varied, 2)]:
        point = _fitted_point(plain, places, effort)
        if point is not None:
            cost = 1.5 + 0.5 * len(point)
            names = [v.next for v in places], [v.name for v in places]
            values = _distances(places, point)
            pairs = zip(names, values, strict=True)
            yield [*terms, *(Term(_text(own, point), part, cost) for own, part in pairs)]


def _fitted_point(plain: Projection, places: Sequence[Variable], effort: Share) -> Array | None:
    """Return a point whose distances and the other terms explain all rows, or None."""
    price = 4.0 * plain.basis.size + POINT_OPERATIONS
    axes = [_axis(variable, STARTS[len(places) - 1]) for variable in places]
    starts = [np.array(point) for point in itertools.product(*axes)]
    if not effort.spend(len(starts) * price):
        return None

    def residual(point: Array) -> Array:
        group = np.stack([values[plain.rows] for values in _distances(places, point)], 1)
        return plain.left(group * plain.scale[:, None])

    def fits(point: Array) -> bool:
        return bool(np.abs(residual(point)).max() <= 1)

    sizes = [float(np.linalg.norm(residual(start))) for start in starts]
    for index in np.argsort(sizes, kind="stable")[:MAX_REFINED].tolist():
        if not effort.spend(25.0 * (len(axes) + 1) * price):
            return None
        point = descended(residual, starts[index], effort)
        if fits(point):
            return shortened(point, fits, range(len(point)))
    return None


def _distances(places: Sequence[Variable], point: Array) -> list[Array]:
    """Return the distances from a point in every row, after and before the step."""
    values = [np.stack([v.then for v in places]), np.stack([v.now for v in places])]
    return [np.sqrt(((part - point[:, None]) ** 2).sum(0)) for part in values]


def _text(names: Sequence[str], point: Array) -> str:
    """Return the source text of the distance from a point in one or two coordinates."""
    shifted = [
        f"{name} {'+' if value < 0 else '-'} {literal(abs(value))}" if value else name
        for name, value in zip(names, point.tolist(), strict=True)
    ]
    return f"abs({shifted[0]})" if len(shifted) == 1 else f"np.hypot({', '.join(shifted)})"


def _axis(variable: Variable, count: int) -> list[float]:
    low, high = float(variable.then.min()), float(variable.then.max())
    margin = 0.25 * (high - low)
    return [float(value) for value in np.linspace(low - margin, high + margin, count)]
