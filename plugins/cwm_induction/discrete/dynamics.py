"""Dynamics of a state of several factors: nominal moves, blocked moves, and exceptions.

A layout divides the numbers of an observation into factors. The search selects the layout with
the shortest description of the dynamics.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.features import FLAG, FactoredTransitions, Landmarks, Sizes, Trials
from cwm_induction.discrete.moves import (
    CHANGE_BITS,
    Assumption,
    FactorMove,
    Fit,
    assume_opposites,
    fit_moves,
    plain_cost,
)
from cwm_induction.discrete.rule_search import MOST_WEIGHT, RuleVariant, choose_rules, fit_layers
from cwm_induction.discrete.rules import (
    DecisionList,
    DecisionTable,
    LabelledRows,
    RuleColumn,
    error_bits,
)
from cwm_induction.discrete.slides import Slide, fit_slide
from cwm_induction.discrete.transitions import Layout, Transitions, layouts, split

KEPT = 8
"""Number of cached results, by transitions and variant; callers repeat the same calls."""

SCREENED = 16
"""Number of layouts to fit rough exceptions for: those with the cheapest moves."""

FINALISTS = 3
"""Number of layouts to fit full exceptions for."""

PLAIN = 6
"""Number of layouts to try if time is short: the best for moves by action alone."""

ROUGH_COLUMNS = 2
"""Most columns of a rough table of exceptions."""

WORTHWHILE = 0.75
"""Moves replace a lookup table only if they need at most this share of its bits."""

OPPOSITE_BITS = 4.0
"""Bits that a layout saves by each idle action that it interprets as an opposite move."""

UNLIKELY = 3.0
"""Split a digit into two if not splitting implies a coincidence of more bits than this."""

EFFECT_BITS = {"keep": 0.0, "set": 1.0, "add": 2.0, "copy": 3.0, "site": 3.0, "shift": 3.0}
"""Price of each kind of effect, the simplest first, in addition to the price of its value."""

HANDICAP = {"keep": 0.0, "set": 0.3, "add": 0.5, "copy": 1.2, "shift": 0.8}
"""Number of rows that an effect must explain beyond a simpler effect."""

Values = tuple[int, ...]


class Effect(NamedTuple):
    """A change of a factor that replaces its nominal move: keep, set, add, copy, site or shift.

    "add" adds to the value before the step, "shift" to the result of the nominal move.
    """

    kind: str
    value: int = 0

    def apply(self, old: np.ndarray, factor: int, sizes: Sizes, aimed: np.ndarray) -> np.ndarray:
        """Return the next values of the factor, given states `old` and moved values `aimed`."""
        values: np.ndarray = old[:, self.value if self.kind == "copy" else factor]
        if self.kind == "set":
            values = np.full(len(old), self.value)
        if self.kind == "add":
            values = np.clip(values + self.value, 0, sizes.radices[factor] - 1)
        if self.kind == "shift":
            values = np.clip(aimed + self.value, 0, sizes.radices[factor] - 1)
        if self.kind == "site" and sizes.landmarks:
            here = sizes.landmarks.here(old)
            values = np.where(here >= 0, here, values)
        return values


class FactorChange(NamedTuple):
    """The effects on one factor, and the rules that select them: label 1 is the first effect."""

    factor: int
    effects: tuple[Effect, ...]
    columns: tuple[RuleColumn, ...]
    rules: DecisionList

    def apply(self, factored: FactoredTransitions, sizes: Sizes) -> FactoredTransitions:
        """Apply the effects in the rows that the rules select."""
        labels = self.rules.apply(factored.inputs(self.columns, sizes))
        new = factored.new.copy()
        for label, effect in enumerate(self.effects, start=1):
            rows = labels == label
            new[rows, self.factor] = effect.apply(
                factored.old[rows], self.factor, sizes, factored.new[rows, self.factor]
            )
        return factored._replace(new=new)


class Block(NamedTuple):
    """The rules that select transitions without any move."""

    columns: tuple[RuleColumn, ...]
    rules: DecisionList

    def apply(self, factored: FactoredTransitions, sizes: Sizes) -> FactoredTransitions:
        """Undo the moves in the rows that the rules select."""
        stays = self.rules.apply(factored.inputs(self.columns, sizes)).astype(bool)
        return factored._replace(new=np.where(stays[:, None], factored.old, factored.new))


@dataclass(frozen=True)
class FactorDynamics:
    """A layout of the state and the dynamics of its factors."""

    layout: Layout
    sizes: Sizes
    moves: tuple[FactorMove, ...]
    block: Block | None
    changes: tuple[FactorChange, ...]
    assumed: tuple[Assumption, ...]
    bits: float
    slide: Slide | None = None

    def predict(self, before: np.ndarray, action: np.ndarray) -> FactoredTransitions:
        """Predict the next states of observed states."""
        factored = aim(self.moves, split(before, self.layout), action, self.slide)
        if self.block:
            factored = self.block.apply(factored, self.sizes)
        for change in self.changes:
            factored = change.apply(factored, self.sizes)
        return factored


def aim(
    moves: tuple[FactorMove, ...], old: np.ndarray, action: np.ndarray, slide: Slide | None = None
) -> FactoredTransitions:
    """Apply the nominal moves to each factor."""
    columns = [move.apply(old, action, factor) for factor, move in enumerate(moves)]
    aimed, unknown = np.stack(columns, axis=1), np.zeros(len(old), dtype=np.int64)
    if slide:
        aimed = slide.landing(old, action)
    leaves = [move.leaves(old, action, factor) for factor, move in enumerate(moves)]
    return FactoredTransitions(action, old, aimed, aimed, unknown, unknown, np.any(leaves, axis=0))


@lru_cache(KEPT)
def fit_dynamics(seen: Transitions, variant: RuleVariant) -> FactorDynamics:
    """Find the layout whose moves and exceptions have the shortest description.

    If the moves save little compared to a lookup table, return the table.
    """
    every, likely = _plans(seen, variant._replace(rank=0))
    finalists = likely[: FINALISTS + variant.rank]
    candidates = sorted((plan.whole for plan in finalists), key=lambda dynamics: dynamics.bits)
    best = candidates[min(variant.rank, len(candidates) - 1)]
    slides = [dynamics for plan in every if (dynamics := plan.slide)]
    best = min([best, *slides], key=lambda dynamics: dynamics.bits)
    if finer := _finer_layout(best, seen):
        best = _Plan(seen, finer, best.bits, _moves(seen, finer), variant).whole
    if len(seen.encoding.sizes) > 1:
        return best
    layout, bits = next(layouts(seen.encoding.sizes))
    still = np.zeros((seen.encoding.actions, 1), dtype=np.int64)
    fits = [Fit(FactorMove(size, False, None, still), 0.0, 0.0) for size in seen.encoding.sizes]
    plain = variant._replace(shapes=False, blocks=False, moves=False)
    lookup = _Plan(seen, layout, bits, fits, plain).whole
    return lookup if lookup.bits * WORTHWHILE < best.bits else best


def known_dynamics(
    seen: Transitions, variant: RuleVariant, steps: Mapping[int, np.ndarray]
) -> FactorDynamics:
    """Fit dynamics, given the steps of some factors, with one step per action."""
    layout, bits, fits = _nominal(seen)[0]
    for factor, deltas in steps.items():
        move = FactorMove(fits[factor].move.radix, wraps=False, key=None, deltas=deltas[:, None])
        price = np.count_nonzero(deltas) * (CHANGE_BITS + log2(move.radix))
        fits = [Fit(move, price, price) if n == factor else fit for n, fit in enumerate(fits)]
    return _Plan(seen, layout, bits, fits, variant).whole


@lru_cache(KEPT)
def _plans(seen: Transitions, variant: RuleVariant) -> tuple[list["_Plan"], list["_Plan"]]:
    """Return a plan for each layout, and the most likely plans, the best first."""
    every = [_Plan(seen, layout, bits, fits, variant) for layout, bits, fits in _nominal(seen)]
    screened = sorted(every, key=lambda plan: plan.cost)[:SCREENED]
    if len(screened) == 1:
        return every, screened
    return every, sorted(screened, key=lambda plan: plan.rough.bits)


def plain_layouts(seen: Transitions) -> list[Layout]:
    """Return the few layouts that moves by action alone describe in the fewest bits."""
    costs = []
    for layout, bits in seen.layouts:
        old, after = seen.in_factors(layout)
        radices = tuple(radix for digits in layout for radix in digits)
        costs.append((bits + plain_cost(old, seen.action, after, radices), layout))
    return [layout for _, layout in sorted(costs)[:PLAIN]]


@lru_cache(KEPT)
def _nominal(seen: Transitions) -> list[tuple[Layout, float, list[Fit]]]:
    """Return each layout with its bits and its nominal moves, which no variant changes."""
    return [(layout, bits, _moves(seen, layout)) for layout, bits in seen.layouts]


def _moves(seen: Transitions, layout: Layout) -> list[Fit]:
    old, after = seen.in_factors(layout)
    radices = tuple(radix for digits in layout for radix in digits)
    return fit_moves(old, seen.action, after, radices, seen.encoding.action_sizes)


def _finer_layout(dynamics: FactorDynamics, seen: Transitions) -> Layout | None:
    """Split a digit into two such that each observed change leaves one of the two unchanged."""
    old, after = seen.in_factors(dynamics.layout)
    factor = 0
    for component, radices in enumerate(dynamics.layout):
        for place, radix in enumerate(radices):
            pairs = np.unique(np.stack([old[:, factor], after[:, factor]], axis=1), axis=0)
            parts = _best_digits(radix, pairs[pairs[:, 0] != pairs[:, 1]])
            if parts and not dynamics.moves[factor].moves:
                finer = (*radices[:place], *parts, *radices[place + 1 :])
                return (*dynamics.layout[:component], finer, *dynamics.layout[component + 1 :])
            factor += 1
    return None


def _best_digits(radix: int, changes: np.ndarray) -> tuple[int, int] | None:
    """Return the split into two digits that avoids most coincidence, if any is good enough."""
    best, most = None, UNLIKELY
    for low in range(2, radix // 2 + 1):
        if radix % low == 0:
            before, after = (np.stack(np.divmod(part, low), axis=1) for part in changes.T)
            same = before == after
            bits = float((same * np.log2([radix // low, low])).sum())
            if same.any(axis=1).all() and bits > most:
                best, most = (radix // low, low), bits
    return best


@dataclass(frozen=True)
class _Plan:
    """A candidate layout, with its nominal moves."""

    seen: Transitions
    layout: Layout
    bits: float
    moves: list[Fit]
    variant: RuleVariant

    @property
    def sizes(self) -> Sizes:
        radices = tuple(radix for radices in self.layout for radix in radices)
        return Sizes(radices, self.seen.encoding.actions, parts=self.seen.encoding.action_sizes)

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        return self.seen.in_factors(self.layout)

    @property
    def cost(self) -> float:
        """Bits of the layout and of its moves, plus the estimated price of their misses."""
        return self.bits + sum(fit.cost for fit in self.moves)

    @cached_property
    def rough(self) -> FactorDynamics:
        """The moves and exceptions with few conditions."""
        return self._fit(full=False)

    @cached_property
    def whole(self) -> FactorDynamics:
        return self._fit(full=True)

    def _fit(self, *, full: bool) -> FactorDynamics:
        """Fit the moves and their exceptions, with joint blocking if that is shorter."""
        old, after = self.ends
        fits, assumed = assume_opposites(self.moves, old, self.seen.action, after)
        moves = tuple(fit.move for fit in fits)
        sizes, places = self.sizes, tuple(n for n, move in enumerate(moves) if move.steps)
        if full and places:
            trials = Trials(old, self.seen.action, after, self.seen.codes, places, sizes.radices)
            sizes = sizes._replace(landmarks=trials.landmarks())
        factored = aim(moves, old, self.seen.action)
        free = self._exceptions(factored, sizes, full=full)
        choices = [free.changes(factored)]
        if self.variant.blocks and any(move.moves for move in moves):
            choices.append(free.blocked())
        block, changes, spent = min(choices, key=lambda choice: choice.bits)
        bits = self.bits + sum(fit.bits for fit in fits) - OPPOSITE_BITS * len(assumed)
        return FactorDynamics(self.layout, sizes, moves, block, changes, assumed, bits + spent)

    @cached_property
    def slide(self) -> FactorDynamics | None:
        """Moves that continue until they meet an obstacle, and their exceptions."""
        (old, after), action, sizes = self.ends, self.seen.action, self.sizes
        slide = fit_slide(old, action, after, self.seen.done, sizes)
        if slide is None:
            return None
        factored = aim(slide.moves, old, action, slide)
        _, changes, spent = self._exceptions(factored, sizes, full=True).changes(factored)
        bits = self.bits + slide.bits + spent
        return FactorDynamics(self.layout, sizes, slide.moves, None, changes, (), bits, slide)

    def _exceptions(
        self, factored: FactoredTransitions, sizes: Sizes, *, full: bool
    ) -> "_ExceptionFitter":
        """Set up the fit of exceptions to nominal moves."""
        seen = self.seen
        return _ExceptionFitter(
            factored, self.ends[1], seen.count, self._noise, sizes, self.variant, full
        )

    @cached_property
    def _noise(self) -> float:
        """The rate of different outcomes of equal situations."""
        return self.seen.disagreement(after=False)


class _ExceptionFit(NamedTuple):
    """Exceptions and their description length."""

    block: Block | None
    changes: tuple[FactorChange, ...]
    bits: float


class _ExceptionFitter(NamedTuple):
    """A fit of exceptions to the nominal moves; `full` tries more combinations of columns."""

    factored: FactoredTransitions
    after: np.ndarray
    counts: np.ndarray
    noise: float
    sizes: Sizes
    variant: RuleVariant
    full: bool

    def blocked(self) -> _ExceptionFit:
        """Fit rules for transitions without any move first, then exceptions of each factor."""
        factored, sizes = self.factored, self.sizes
        stays = (self.after == factored.old).all(axis=1)
        ambiguous = (factored.aimed == factored.old).all(axis=1)
        columns = sizes.columns(factored, "action", "part", "old", "new", "edge", "outside")
        rules = self._rules(columns, factored, stays.astype(np.int64), ~ambiguous)
        block = Block(columns, rules)
        rest = self.changes(block.apply(factored, sizes))
        return rest._replace(block=block, bits=rest.bits + rules.bits)

    def changes(self, factored: FactoredTransitions) -> _ExceptionFit:
        """Fit exceptions factor by factor; rules may use the factors fitted before."""
        sizes, changes, bits = self.sizes, [], 0.0
        for factor in range(len(sizes.radices)):
            effects, labels = self._effects(factored, factor)
            if effects:
                kinds = ("action", "part", "old", "new", "aimed", "meets", "at")
                columns = sizes.columns(factored, *kinds)
                rules = self._direct(columns, factored, labels, factor)
                rules = rules or self._rules(columns, factored, labels, labels >= 0)
                bits += rules.bits
                if rules.layers:
                    bits += sum(map(self._price, effects))
                    changes.append(FactorChange(factor, effects, columns, rules))
                    factored = changes[-1].apply(factored, sizes)
        return _ExceptionFit(None, tuple(changes), bits)

    def _direct(
        self,
        columns: tuple[RuleColumn, ...],
        factored: FactoredTransitions,
        labels: np.ndarray,
        factor: int,
    ) -> DecisionList | None:
        """Return rules by action for picking up and putting down, if they explain all rows."""
        landmarks = self.sizes.landmarks
        if landmarks is None or landmarks.item != factor:
            return None
        item, held = landmarks.item, landmarks.held
        index = {(column.kind, column.factor): n for n, column in enumerate(columns)}
        action, held_item = index["action", -1], index["old", item]
        chosen: list[tuple[Values, Values]] = [((action, index["at", item]), (1,))]
        if landmarks.target is None:
            chosen.append(((action, held_item, index["site", -1]), (held, 1)))
        for goal in landmarks.goals(self.sizes.radices):
            kind = "perhaps" if landmarks.optimistic else "at"
            chosen.append(((action, held_item, index[kind, goal]), (held, 1)))
        layers = []
        for label, (places, values) in enumerate(chosen, 1):
            rows = labels == 1 if label == 1 else labels > 1
            keys = [(number, *values) for number in np.unique(factored.action[rows]).tolist()]
            table = tuple(columns[place] for place in places)
            layers.append(DecisionTable(table, places, dict.fromkeys(keys, label)))
        rules = DecisionList(tuple(layers), 0.0)
        right = (rules.apply(factored.inputs(columns, self.sizes)) == labels).all()
        return rules if right else None

    def _rules(
        self,
        columns: tuple[RuleColumn, ...],
        factored: FactoredTransitions,
        labels: np.ndarray,
        rows: np.ndarray,
    ) -> DecisionList:
        """Fit rules for the labels of the selected rows."""
        weights = np.minimum(self.counts, MOST_WEIGHT).astype(float)
        kinds = max(2, int(labels.max(initial=0)) + 1)
        price = error_bits(self.noise, kinds)
        inputs = factored.inputs(columns, self.sizes)
        examples = LabelledRows(inputs, labels, weights, price).select(rows)
        if not self.full:
            return fit_layers(examples, ROUGH_COLUMNS, runs=False)
        return choose_rules(examples, self.variant)

    def _price(self, effect: Effect) -> float:
        """Return the bits of an effect; 0 if there are no moves, as keys pay for lookups."""
        if not self.variant.moves:
            return 0.0
        radices = self.sizes.radices
        choices = len(radices) if effect.kind == "copy" else max(radices)
        return EFFECT_BITS[effect.kind] + log2(choices)

    def _effects(
        self, factored: FactoredTransitions, factor: int
    ) -> tuple[tuple[Effect, ...], np.ndarray]:
        """Explain wrong predictions of a factor by few effects, and label each row.

        Label 0 marks correct predictions.
        """
        target = self.after[:, factor]
        labels = np.zeros(len(target), dtype=np.int64)
        unexplained = factored.new[:, factor] != target
        if not unexplained.any():
            return (), labels
        landmarks = self.sizes.landmarks
        if landmarks and landmarks.item == factor:
            return self._taken_and_put(factored, landmarks, unexplained)
        chosen: list[Effect] = []
        candidates = self._candidates(factored, factor, unexplained)
        hits = np.stack(
            [
                effect.apply(factored.old, factor, self.sizes, factored.new[:, factor]) == target
                for effect in candidates
            ]
        )
        handicaps = np.array([HANDICAP[effect.kind] for effect in candidates])
        while unexplained.any():
            support = (hits & unexplained).sum(axis=1)
            best = int((support - handicaps).argmax())
            if support.max() == 1:  # each effect explains one row, no better than its value does
                break
            chosen.append(candidates[best])
            labels[unexplained & hits[best]] = len(chosen)
            unexplained = unexplained & ~hits[best]
        labels[unexplained] = (
            len(chosen) + 1 + np.unique(target[unexplained], return_inverse=True)[1].reshape(-1)
        )
        chosen += [Effect("set", int(value)) for value in np.unique(target[unexplained])]
        return tuple(chosen), labels

    def _taken_and_put(
        self, factored: FactoredTransitions, landmarks: Landmarks, left: np.ndarray
    ) -> tuple[tuple[Effect, ...], np.ndarray]:
        """Return the effects of picking up an item and putting it down, with row labels."""
        old, item = factored.old, landmarks.item
        put, labels = left & (old[:, item] == landmarks.held), left.astype(np.int64)
        effects = [Effect("set", landmarks.held)]
        if landmarks.target is None:
            effects.append(Effect("site"))
            labels[put] = len(effects)
        for goal in landmarks.goals(self.sizes.radices):
            effects.append(Effect("copy", goal))
            labels[put & landmarks.at(old, goal)] = len(effects)
        return tuple(effects), labels

    def _candidates(
        self, factored: FactoredTransitions, factor: int, left: np.ndarray
    ) -> list[Effect]:
        """List the effects that may explain the rows in `left`."""
        target, old = self.after[left, factor], factored.old[left]
        radices = self.sizes.radices
        values = [Effect("set", int(value)) for value in np.unique(target)]
        if not self.variant.moves:
            return values
        further = np.unique(target - factored.new[left, factor]) if self.variant.shifts else ()
        shifts = np.unique(target - old[:, factor])
        others = [n for n, radix in enumerate(radices) if FLAG < radix <= radices[factor] + 1]
        return [
            Effect("keep"),
            *values,
            *(Effect("add", int(shift)) for shift in shifts if shift),
            *(Effect("copy", other) for other in others if other != factor),
            *(Effect("shift", int(shift)) for shift in further),
        ]
