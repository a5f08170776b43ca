"""A model of how a state of several factors changes."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.features import FactoredTransitions, Landmarks, Sizes, Trials
from cwm_induction.discrete.moves import Assumption, FactorMove, Fit, assume_opposites, fit_moves
from cwm_induction.discrete.rule_search import MOST_WEIGHT, Variant, choose_rules, fit_layers
from cwm_induction.discrete.rules import (
    DecisionList,
    DecisionTable,
    Examples,
    RuleColumn,
    error_bits,
)
from cwm_induction.discrete.slides import Slide, fit_slide
from cwm_induction.discrete.transitions import Layout, Transitions, layouts, split


class Effect(NamedTuple):
    """What happens to a factor instead of its nominal move: keep, set, add, copy or site."""

    kind: str
    value: int = 0

    def apply(self, old: np.ndarray, factor: int, sizes: Sizes) -> np.ndarray:
        """Return the factor's next values in states `old`."""
        values: np.ndarray = old[:, self.value if self.kind == "copy" else factor]
        if self.kind == "set":
            values = np.full(len(old), self.value)
        if self.kind == "add":
            values = np.clip(values + self.value, 0, sizes.radices[factor] - 1)
        if self.kind == "site" and sizes.landmarks:
            here = sizes.landmarks.here(old)
            values = np.where(here >= 0, here, values)
        return values


class Change(NamedTuple):
    """The effects on one factor and the rules that say when: label 1 is the first effect."""

    factor: int
    effects: tuple[Effect, ...]
    columns: tuple[RuleColumn, ...]
    rules: DecisionList


class Block(NamedTuple):
    """The rules that say when nothing moves."""

    columns: tuple[RuleColumn, ...]
    rules: DecisionList


@dataclass(frozen=True)
class FactorDynamics:
    """A layout of the state and how its factors change."""

    layout: Layout
    sizes: Sizes
    moves: tuple[FactorMove, ...]
    block: Block | None
    changes: tuple[Change, ...]
    assumed: tuple[Assumption, ...]
    bits: float
    slide: Slide | None = None

    def predict(self, before: np.ndarray, action: np.ndarray) -> FactoredTransitions:
        """Foresee what follows observed states."""
        scene = aim(self.moves, split(before, self.layout), action, self.slide)
        if self.block:
            scene = apply_block(scene, self.block, self.sizes)
        for change in self.changes:
            scene = apply_change(scene, change, self.sizes)
        return scene


def aim(
    moves: tuple[FactorMove, ...], old: np.ndarray, action: np.ndarray, slide: Slide | None = None
) -> FactoredTransitions:
    """Move every factor nominally."""
    columns = [move.apply(old, action, factor) for factor, move in enumerate(moves)]
    aimed, unknown = np.stack(columns, axis=1), np.zeros(len(old), dtype=np.int64)
    if slide:
        aimed = slide.landing(old, action)
    leaves = [move.leaves(old, action, factor) for factor, move in enumerate(moves)]
    return FactoredTransitions(action, old, aimed, aimed, unknown, unknown, np.any(leaves, axis=0))


def apply_block(scene: FactoredTransitions, block: Block, sizes: Sizes) -> FactoredTransitions:
    """Undo the moves where the rules say so."""
    stays = block.rules.apply(scene.pool(block.columns, sizes)).astype(bool)
    return scene._replace(new=np.where(stays[:, None], scene.old, scene.new))


def apply_change(scene: FactoredTransitions, change: Change, sizes: Sizes) -> FactoredTransitions:
    """Apply the effects on one factor where the rules say so."""
    labels = change.rules.apply(scene.pool(change.columns, sizes))
    new = scene.new.copy()
    for label, effect in enumerate(change.effects, start=1):
        rows = labels == label
        new[rows, change.factor] = effect.apply(scene.old[rows], change.factor, sizes)
    return scene._replace(new=new)


ROUGH_COLUMNS = 2
Values = tuple[int, ...]


class FoundExceptions(NamedTuple):
    """Exceptions and their description length."""

    block: Block | None
    changes: tuple[Change, ...]
    bits: float


class Exceptions(NamedTuple):
    """What the nominal moves of a layout do not explain; `full` looks at more combinations."""

    scene: FactoredTransitions
    after: np.ndarray
    counts: np.ndarray
    noise: float
    sizes: Sizes
    options: Variant
    full: bool

    def blocked(self) -> FoundExceptions:
        """Explain what can be by states in which nothing moves, the rest factor by factor."""
        scene, sizes = self.scene, self.sizes
        stays = (self.after == scene.old).all(axis=1)
        ambiguous = (scene.aimed == scene.old).all(axis=1)
        columns = sizes.columns(scene, "action", "part", "old", "new", "edge", "outside")
        rules = self._rules(columns, scene, stays.astype(np.int64), ~ambiguous)
        block = Block(columns, rules)
        rest = self.changes(apply_block(scene, block, sizes))
        return rest._replace(block=block, bits=rest.bits + rules.bits)

    def changes(self, scene: FactoredTransitions) -> FoundExceptions:
        """Explain what is left factor by factor, each seeing those before it."""
        sizes, changes, bits = self.sizes, [], 0.0
        for factor in range(len(sizes.radices)):
            effects, labels = self._effects(scene, factor)
            if effects:
                kinds = ("action", "part", "old", "new", "aimed", "meets", "at")
                columns = sizes.columns(scene, *kinds)
                rules = self._direct(columns, scene, labels, factor) or self._rules(
                    columns, scene, labels, labels >= 0
                )
                bits += rules.bits
                if rules.layers:
                    bits += sum(map(self._price, effects))
                    changes.append(Change(factor, effects, columns, rules))
                    scene = apply_change(scene, changes[-1], sizes)
        return FoundExceptions(None, tuple(changes), bits)

    def _direct(
        self,
        columns: tuple[RuleColumn, ...],
        scene: FactoredTransitions,
        labels: np.ndarray,
        factor: int,
    ) -> DecisionList | None:
        """Say by action when something is taken up or put down, if that explains all rows."""
        landmarks = self.sizes.landmarks
        if landmarks is None or landmarks.item != factor:
            return None
        item, held = landmarks.item, landmarks.held
        index = {(column.kind, column.factor): n for n, column in enumerate(columns)}
        action, lies = index["action", -1], index["old", item]
        chosen: list[tuple[Values, Values]] = [((action, index["at", item]), (1,))]
        if landmarks.target is None:
            chosen.append(((action, lies, index["site", -1]), (held, 1)))
        for goal in landmarks.goals(self.sizes.radices):
            kind = "perhaps" if landmarks.optimistic else "at"
            chosen.append(((action, lies, index[kind, goal]), (held, 1)))
        layers = []
        for label, (places, values) in enumerate(chosen, 1):
            rows = labels == 1 if label == 1 else labels > 1
            keys = [(number, *values) for number in np.unique(scene.action[rows]).tolist()]
            table = tuple(columns[place] for place in places)
            layers.append(DecisionTable(table, places, dict.fromkeys(keys, label)))
        rules = DecisionList(tuple(layers), 0.0)
        right = (rules.apply(scene.pool(columns, self.sizes)) == labels).all()
        return rules if right else None

    def _rules(
        self,
        columns: tuple[RuleColumn, ...],
        scene: FactoredTransitions,
        labels: np.ndarray,
        rows: np.ndarray,
    ) -> DecisionList:
        """Say in which of some rows which label holds."""
        weights = np.minimum(self.counts, MOST_WEIGHT).astype(float)
        kinds = max(2, int(labels.max(initial=0)) + 1)
        price = error_bits(self.noise, kinds)
        pool = scene.pool(columns, self.sizes)
        examples = Examples(pool, labels, weights, price).select(rows)
        if not self.full:
            return fit_layers(examples, ROUGH_COLUMNS, runs=False)
        return choose_rules(examples, self.options)

    def _price(self, effect: Effect) -> float:
        """Price the description of an effect; what is looked up is described by its keys."""
        if not self.options.moves:
            return 0.0
        radices = self.sizes.radices
        choices = len(radices) if effect.kind == "copy" else max(radices)
        return _EFFECT_BITS[effect.kind] + log2(choices)

    def _effects(
        self, scene: FactoredTransitions, factor: int
    ) -> tuple[tuple[Effect, ...], np.ndarray]:
        """Cover the values that are not as foreseen with few effects; label every row."""
        target = self.after[:, factor]
        labels = np.zeros(len(target), dtype=np.int64)
        left = scene.new[:, factor] != target
        if not left.any():
            return (), labels
        landmarks = self.sizes.landmarks
        if landmarks and landmarks.item == factor:
            return self._taken_and_put(scene, landmarks, left)
        chosen: list[Effect] = []
        candidates = self._candidates(scene, factor, left)
        hits = np.stack(
            [effect.apply(scene.old, factor, self.sizes) == target for effect in candidates]
        )
        handicaps = np.array([_HANDICAP[effect.kind] for effect in candidates])
        while left.any():
            support = (hits & left).sum(axis=1)
            best = int((support - handicaps).argmax())
            if support.max() == 1:  # each explains one row: none is better than its value
                break
            chosen.append(candidates[best])
            labels[left & hits[best]] = len(chosen)
            left = left & ~hits[best]
        labels[left] = len(chosen) + 1 + np.unique(target[left], return_inverse=True)[1].reshape(-1)
        chosen += [Effect("set", int(value)) for value in np.unique(target[left])]
        return tuple(chosen), labels

    def _taken_and_put(
        self, scene: FactoredTransitions, landmarks: Landmarks, left: np.ndarray
    ) -> tuple[tuple[Effect, ...], np.ndarray]:
        """Say that what lies somewhere is taken up, and put down where another factor says."""
        old, item = scene.old, landmarks.item
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
        self, scene: FactoredTransitions, factor: int, left: np.ndarray
    ) -> list[Effect]:
        """List the effects that could explain the rows that are left."""
        target, old = self.after[left, factor], scene.old[left]
        radices = self.sizes.radices
        values = [Effect("set", int(value)) for value in np.unique(target)]
        if not self.options.moves:
            return values
        shifts = [
            Effect("add", int(shift)) for shift in np.unique(target - old[:, factor]) if shift
        ]
        copies = [
            Effect("copy", other)
            for other in range(len(radices))
            if other != factor and 2 < radices[other] <= radices[factor] + 1
        ]
        return [Effect("keep"), *values, *shifts, *copies]


_EFFECT_BITS = {"keep": 0.0, "set": 1.0, "add": 2.0, "copy": 3.0, "site": 3.0}

_HANDICAP = {"keep": 0.0, "set": 0.3, "add": 0.5, "copy": 1.2}
"""How many more rows an effect must explain than a plainer one."""


KEPT = 8
"""For how many sets of transitions, or options, answers are kept: questions come again."""
SCREENED = 16
FINALISTS = 3
WORTHWHILE = 0.75
OPPOSITE_BITS = 4.0
"""What a layout gains by each idle action that makes sense in it as an opposite."""
UNLIKELY = 3.0
"""Bits of coincidence from which on a digit is read as two."""


@lru_cache(KEPT)
def fit_dynamics(seen: Transitions, options: Variant) -> FactorDynamics:
    """Find the layout whose moves and exceptions have the shortest description.

    Moves that save little over looking numbers up explain nothing.
    """
    every, likely = _plans(seen, options._replace(rank=0))
    finalists = likely[: FINALISTS + options.rank]
    found = sorted((plan.whole for plan in finalists), key=lambda dynamics: dynamics.bits)
    best = found[min(options.rank, len(found) - 1)]
    slides = [dynamics for plan in every if (dynamics := plan.slide)]
    best = min([best, *slides], key=lambda dynamics: dynamics.bits)
    finer = finer_layout(best, seen)
    if finer:
        best = _Plan(seen, finer, best.bits, _moves(seen, finer), options).whole
    if len(seen.frame.sizes) > 1:
        return best
    lookup = _lookup(seen, options)
    return lookup if lookup.bits * WORTHWHILE < best.bits else best


def _lookup(seen: Transitions, options: Variant) -> FactorDynamics:
    """Describe what was seen without moves."""
    layout, bits = next(layouts(seen.frame.sizes))
    plain = options._replace(shapes=False, blocks=False, moves=False)
    still = np.zeros((seen.frame.actions, 1), dtype=np.int64)
    fits = [Fit(FactorMove(size, False, None, still), 0.0, 0.0) for size in seen.frame.sizes]
    return _Plan(seen, layout, bits, fits, plain).whole


@lru_cache(KEPT)
def _plans(seen: Transitions, options: Variant) -> tuple[list["_Plan"], list["_Plan"]]:
    """Return a plan for every layout, and the likeliest of them, the likeliest first."""
    every = [_Plan(seen, layout, bits, fits, options) for layout, bits, fits in _nominal(seen)]
    screened = sorted(every, key=_Plan.screen)[:SCREENED]
    return every, sorted(screened, key=lambda plan: plan.rough.bits)


@lru_cache(KEPT)
def _nominal(seen: Transitions) -> list[tuple[Layout, float, list[Fit]]]:
    """Return every layout with its bits and its nominal moves, whatever the options are."""
    return [(layout, bits, _moves(seen, layout)) for layout, bits in layouts(seen.frame.sizes)]


def _moves(seen: Transitions, layout: Layout) -> list[Fit]:
    """Fit the nominal moves."""
    old, after = (split(part, layout) for part in (seen.before, seen.after))
    radices = tuple(radix for digits in layout for radix in digits)
    return fit_moves(old, seen.action, after, radices, seen.frame.action_sizes)


def finer_layout(dynamics: FactorDynamics, seen: Transitions) -> Layout | None:
    """Split a digit into two of which every change that was seen leaves one alone."""
    old, after = (split(part, dynamics.layout) for part in (seen.before, seen.after))
    factor = 0
    for component, radices in enumerate(dynamics.layout):
        for place, radix in enumerate(radices):
            pairs = np.unique(np.stack([old[:, factor], after[:, factor]], axis=1), axis=0)
            parts = best_split(radix, pairs[pairs[:, 0] != pairs[:, 1]])
            if parts and not dynamics.moves[factor].moves:
                finer = (*radices[:place], *parts, *radices[place + 1 :])
                return (*dynamics.layout[:component], finer, *dynamics.layout[component + 1 :])
            factor += 1
    return None


def best_split(radix: int, changes: np.ndarray) -> tuple[int, int] | None:
    """Return the two digits that make changes of a number least accidental, if any do."""
    best, most = None, UNLIKELY
    for low in range(2, radix // 2 + 1):
        if radix % low == 0:
            same = np.stack([changes[:, 0] // low, changes[:, 0] % low], axis=1) == np.stack(
                [changes[:, 1] // low, changes[:, 1] % low], axis=1
            )
            bits = float((same * np.log2([radix // low, low])).sum())
            if same.any(axis=1).all() and bits > most:
                best, most = (radix // low, low), bits
    return best


@dataclass(frozen=True)
class _Plan:
    """One layout to try, with its nominal moves."""

    seen: Transitions
    layout: Layout
    bits: float
    moves: list[Fit]
    options: Variant

    @property
    def sizes(self) -> Sizes:
        """Radices and actions."""
        radices = tuple(radix for radices in self.layout for radix in radices)
        return Sizes(radices, self.seen.frame.actions, parts=self.seen.frame.action_sizes)

    @cached_property
    def _noise(self) -> float:
        return self.seen.disagreement(after=False)

    def screen(self) -> float:
        """Price the layout by its moves and a guess at what they miss."""
        return self.bits + sum(fit.cost for fit in self.moves)

    @cached_property
    def rough(self) -> FactorDynamics:
        """The moves and exceptions of few conditions."""
        return self._fit(full=False)

    @cached_property
    def whole(self) -> FactorDynamics:
        """The moves and exceptions."""
        return self._fit(full=True)

    def _fit(self, *, full: bool) -> FactorDynamics:
        """Fit the moves and their exceptions, with joint blocking where that is shorter."""
        old, after = (split(part, self.layout) for part in (self.seen.before, self.seen.after))
        fits, assumed = assume_opposites(self.moves, old, self.seen.action, after)
        moves = tuple(fit.move for fit in fits)
        bits = self.bits + sum(fit.bits for fit in fits) - OPPOSITE_BITS * len(assumed)
        scene = aim(moves, old, self.seen.action)
        sizes = self._with_landmarks(moves, old, after) if full else self.sizes
        free = Exceptions(scene, after, self.seen.count, self._noise, sizes, self.options, full)
        choices = [free.changes(scene)]
        if self.options.blocks and any(move.moves for move in moves):
            choices.append(free.blocked())
        block, changes, spent = min(choices, key=lambda choice: choice.bits)
        return FactorDynamics(self.layout, sizes, moves, block, changes, assumed, bits + spent)

    @cached_property
    def slide(self) -> FactorDynamics | None:
        """Moves that go on until something is in the way, and their exceptions."""
        old, after = (split(part, self.layout) for part in (self.seen.before, self.seen.after))
        action, done = self.seen.action, self.seen.done
        slide = fit_slide(old, action, after, done, self.sizes)
        if slide is None:
            return None
        scene = aim(slide.moves, old, action, slide)
        free = Exceptions(
            scene, after, self.seen.count, self._noise, self.sizes, self.options, full=True
        )
        _, changes, spent = free.changes(scene)
        bits = self.bits + slide.bits + spent
        return FactorDynamics(self.layout, self.sizes, slide.moves, None, changes, (), bits, slide)

    def _with_landmarks(
        self, moves: tuple[FactorMove, ...], old: np.ndarray, after: np.ndarray
    ) -> Sizes:
        """Look for factors whose values stand for places."""
        places = tuple(factor for factor, move in enumerate(moves) if move.steps)
        if not places:
            return self.sizes
        trials = Trials(old, self.seen.action, after, self.seen.codes, places, self.sizes.radices)
        return self.sizes._replace(landmarks=trials.landmarks())
