"""Dynamics of a state of several factors: nominal moves, blocked moves, and exceptions.

A layout divides the numbers of an observation into factors. The search selects the layout with
the shortest description of the dynamics.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.decision_list import Spend
from cwm_induction.discrete.features import (
    FLAG,
    CaseList,
    CaseSearch,
    FactoredTransitions,
    Landmarks,
    Sizes,
    Trials,
)
from cwm_induction.discrete.moves import (
    CHANGE_BITS,
    FactorMove,
    Fit,
    Slide,
    fit_moves,
    fit_slide,
)
from cwm_induction.discrete.transitions import Layout, Transitions, split

MISS_BITS = 10.0
"""Price of a row that no rule explains: a program stores its outcome by observation and action."""

FINALISTS = 4
"""Number of layouts to fit exceptions for: those with the cheapest moves."""

EFFECT_BITS = {"keep": 0.0, "set": 1.0, "add": 2.0, "copy": 3.0, "site": 3.0, "shift": 3.0}
"""Price of each kind of effect, the simplest first, in addition to the price of its value."""

MOST_EFFECTS = 24
"""Largest number of effects on a factor; rows with others are left to the memory of programs."""

ROWS_PER_BIT = 0.3
"""A costlier kind of effect must explain this number of further rows for each of its bits."""


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
    rules: CaseList

    def apply(self, factored: FactoredTransitions, sizes: Sizes) -> FactoredTransitions:
        """Apply the effects in the rows that the rules select."""
        labels, new = self.rules.labels(factored, sizes), factored.new.copy()
        for label, effect in enumerate(self.effects, start=1):
            rows = labels == label
            new[rows, self.factor] = effect.apply(
                factored.old[rows], self.factor, sizes, factored.new[rows, self.factor]
            )
        return factored._replace(new=new)


@dataclass(frozen=True)
class FactorDynamics:
    """A layout of the state and the dynamics of its factors.

    The rules `block` select transitions without any move.
    """

    layout: Layout
    sizes: Sizes
    moves: tuple[FactorMove, ...]
    block: CaseList | None
    changes: tuple[FactorChange, ...]
    bits: float
    slide: Slide | None = None

    def predict(self, before: np.ndarray, action: np.ndarray) -> FactoredTransitions:
        """Predict the next states of observed states."""
        factored = aim(self.moves, split(before, self.layout), action, self.slide)
        if self.block:
            factored = _stopped(factored, self.block, self.sizes)
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


def _stopped(factored: FactoredTransitions, block: CaseList, sizes: Sizes) -> FactoredTransitions:
    stays = block.labels(factored, sizes).astype(bool)
    return factored._replace(new=np.where(stays[:, None], factored.old, factored.new))


def fit_dynamics(seen: Transitions, spend: Spend) -> FactorDynamics:
    """Find the layout whose moves and exceptions have the shortest description."""
    plans = [
        _Plan(seen, layout, bits, _moves(seen, layout), spend) for layout, bits in seen.layouts
    ]
    likely = sorted(plans, key=lambda plan: plan.cost)[:FINALISTS]
    found = [plan.fitted() for plan in likely]
    found += [dynamics for plan in plans if (dynamics := plan.sliding())]
    return min(found, key=lambda dynamics: dynamics.bits)


def known_dynamics(
    seen: Transitions, steps: Mapping[int, np.ndarray], spend: Spend
) -> FactorDynamics:
    """Fit dynamics after random draws, given the steps of some factors by draw."""
    layout, bits = seen.layouts[0]
    fits = _moves(seen, layout)
    for factor, deltas in steps.items():
        move = FactorMove(fits[factor].move.radix, wraps=False, key=None, deltas=deltas[:, None])
        price = np.count_nonzero(deltas) * (CHANGE_BITS + log2(move.radix))
        fits[factor] = Fit(move, price, price)
    return _Plan(seen, layout, bits, fits, spend, shifts=True).fitted()


def _moves(seen: Transitions, layout: Layout) -> list[Fit]:
    old, after = seen.in_factors(layout)
    radices = tuple(radix for digits in layout for radix in digits)
    return fit_moves(old, seen.action, after, radices, seen.encoding.actions)


@dataclass(frozen=True)
class _Plan:
    """A candidate layout, with its nominal moves.

    With `shifts`, exceptions may add to the results of moves.
    """

    seen: Transitions
    layout: Layout
    bits: float
    moves: list[Fit]
    spend: Spend
    shifts: bool = False

    @property
    def cost(self) -> float:
        """Bits of the layout and of its moves, plus the estimated price of their misses."""
        return self.bits + sum(fit.cost for fit in self.moves)

    @property
    def sizes(self) -> Sizes:
        radices = tuple(radix for radices in self.layout for radix in radices)
        return Sizes(radices, self.seen.encoding.actions, parts=self.seen.encoding.action_sizes)

    def fitted(self) -> FactorDynamics:
        """Fit the moves and their exceptions, with joint blocking if that is shorter."""
        seen, sizes = self.seen, self.sizes
        old, after = seen.in_factors(self.layout)
        moves = tuple(fit.move for fit in self.moves)
        places = tuple(n for n, move in enumerate(moves) if move.steps)
        if places:
            trials = Trials(old, seen.action, after, places, sizes.radices)
            sizes = sizes._replace(landmarks=trials.landmarks())
        factored = aim(moves, old, seen.action)
        search = self._exceptions(after, sizes)
        choices = [search.changes(factored)]
        if any(move.moves for move in moves):
            choices.append(search.blocked(factored))
        block, changes, spent = min(choices, key=lambda choice: choice.bits)
        bits = self.bits + sum(fit.bits for fit in self.moves) + spent
        return FactorDynamics(self.layout, sizes, moves, block, changes, bits)

    def sliding(self) -> FactorDynamics | None:
        """Fit moves that continue until they meet an obstacle, and their exceptions."""
        (old, after), action, sizes = (
            self.seen.in_factors(self.layout),
            self.seen.action,
            self.sizes,
        )
        slide = fit_slide(old, action, after, self.seen.done, sizes)
        if slide is None:
            return None
        factored = aim(slide.moves, old, action, slide)
        _, changes, spent = self._exceptions(after, sizes).changes(factored)
        bits = self.bits + slide.bits + spent
        return FactorDynamics(self.layout, sizes, slide.moves, None, changes, bits, slide)

    def _exceptions(self, after: np.ndarray, sizes: Sizes) -> "_ExceptionSearch":
        return _ExceptionSearch(CaseSearch(sizes, self.spend, MISS_BITS), after, self.shifts)


class _ExceptionFit(NamedTuple):
    """Exceptions and their description length."""

    block: CaseList | None
    changes: tuple[FactorChange, ...]
    bits: float


class _ExceptionSearch(NamedTuple):
    """A search for exceptions to nominal moves; `after` are the observed next states."""

    search: CaseSearch
    after: np.ndarray
    shifts: bool

    @property
    def sizes(self) -> Sizes:
        return self.search.sizes

    def blocked(self, factored: FactoredTransitions) -> _ExceptionFit:
        """Fit rules for transitions without any move first, then exceptions of each factor."""
        sizes = self.sizes
        stays = (self.after == factored.old).all(axis=1)
        ambiguous = (factored.aimed == factored.old).all(axis=1)
        columns = sizes.columns(factored, "action", "part", "old", "new", "edge", "outside")
        correct = np.stack([~stays, stays], axis=1)
        rules = self.search.learn(factored, columns, correct, rows=~ambiguous)
        rest = self.changes(_stopped(factored, rules, sizes))
        return rest._replace(block=rules, bits=rest.bits + rules.bits)

    def changes(self, factored: FactoredTransitions) -> _ExceptionFit:
        """Fit exceptions factor by factor; rules may use the factors fitted before."""
        changes, bits = [], 0.0
        for factor in range(len(self.sizes.radices)):
            wrong = factored.new[:, factor] != self.after[:, factor]
            if not wrong.any():
                continue
            effects = self._effects(factored, factor, wrong)
            correct = np.stack(
                [~wrong, *(self._hits(factored, factor, e) for e in effects)], axis=1
            )
            kinds = ("action", "part", "old", "new", "aimed", "at")
            columns = self.sizes.columns(factored, *kinds)
            prices = (0.0, *map(self._price, effects))
            rules = self.search.learn(factored, columns, correct, prices)
            bits += rules.bits
            used = {rule.effect for rule in rules.found.rules}
            if used:
                bits += sum(prices[label] for label in used)
                changes.append(FactorChange(factor, effects, rules))
                factored = changes[-1].apply(factored, self.sizes)
        return _ExceptionFit(None, tuple(changes), bits)

    def _hits(self, factored: FactoredTransitions, factor: int, effect: Effect) -> np.ndarray:
        """Return the rows that an effect explains."""
        values = effect.apply(factored.old, factor, self.sizes, factored.new[:, factor])
        hits: np.ndarray = values == self.after[:, factor]
        return hits

    def _price(self, effect: Effect) -> float:
        radices = self.sizes.radices
        choices = len(radices) if effect.kind == "copy" else max(radices)
        return EFFECT_BITS[effect.kind] + log2(choices)

    def _effects(
        self, factored: FactoredTransitions, factor: int, wrong: np.ndarray
    ) -> tuple[Effect, ...]:
        """Choose few effects that explain the wrong predictions of a factor."""
        landmarks = self.sizes.landmarks
        if landmarks and landmarks.item == factor:
            return self._taken_and_put(landmarks)
        candidates = self._candidates(factored, factor, wrong)
        hits = np.stack([self._hits(factored, factor, effect) for effect in candidates])
        handicaps = np.array([ROWS_PER_BIT * EFFECT_BITS[effect.kind] for effect in candidates])
        chosen: list[Effect] = []
        while wrong.any() and len(chosen) < MOST_EFFECTS:
            best = int(((hits & wrong).sum(axis=1) - handicaps).argmax())
            chosen.append(candidates[best])
            wrong = wrong & ~hits[best]
        return tuple(chosen)

    def _taken_and_put(self, landmarks: Landmarks) -> tuple[Effect, ...]:
        """Return the effects of picking up an item and putting it down."""
        sites = [Effect("site")] if landmarks.target is None else []
        goals = (Effect("copy", goal) for goal in landmarks.goals(self.sizes.radices))
        return (Effect("set", landmarks.held), *sites, *goals)

    def _candidates(
        self, factored: FactoredTransitions, factor: int, wrong: np.ndarray
    ) -> list[Effect]:
        """List the effects that may explain the rows in `wrong`."""
        target, old = self.after[wrong, factor], factored.old[wrong]
        radices = self.sizes.radices
        further = np.unique(target - factored.new[wrong, factor]) if self.shifts else ()
        changes = np.unique(target - old[:, factor])
        others = [n for n, radix in enumerate(radices) if FLAG < radix <= radices[factor] + 1]
        return [
            Effect("keep"),
            *(Effect("set", int(value)) for value in np.unique(target)),
            *(Effect("add", int(change)) for change in changes if change),
            *(Effect("copy", other) for other in others if other != factor),
            *(Effect("shift", int(shift)) for shift in further),
        ]
