"""The search for the reading of a state that makes its changes short to describe."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from cwm_induction.discrete.dynamics import Dynamics, aim
from cwm_induction.discrete.exceptions import Exceptions, Options
from cwm_induction.discrete.factors import Layout, layouts, split
from cwm_induction.discrete.landmarks import Trials
from cwm_induction.discrete.moves import Fit, Move, assume_opposites, fit_moves
from cwm_induction.discrete.scene import Sizes
from cwm_induction.discrete.slides import fit_slide
from cwm_induction.discrete.transitions import Transitions

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
def fit_dynamics(seen: Transitions, options: Options) -> Dynamics:
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


def _lookup(seen: Transitions, options: Options) -> Dynamics:
    """Describe what was seen without moves."""
    layout, bits = next(layouts(seen.frame.sizes))
    plain = options._replace(shapes=False, blocks=False, moves=False)
    still = np.zeros((seen.frame.actions, 1), dtype=np.int64)
    fits = [Fit(Move(size, False, None, still), 0.0, 0.0) for size in seen.frame.sizes]
    return _Plan(seen, layout, bits, fits, plain).whole


@lru_cache(KEPT)
def _plans(seen: Transitions, options: Options) -> tuple[list["_Plan"], list["_Plan"]]:
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


def finer_layout(dynamics: Dynamics, seen: Transitions) -> Layout | None:
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
    options: Options

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
    def rough(self) -> Dynamics:
        """The moves and exceptions of few conditions."""
        return self._fit(full=False)

    @cached_property
    def whole(self) -> Dynamics:
        """The moves and exceptions."""
        return self._fit(full=True)

    def _fit(self, *, full: bool) -> Dynamics:
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
        return Dynamics(self.layout, sizes, moves, block, changes, assumed, bits + spent)

    @cached_property
    def slide(self) -> Dynamics | None:
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
        return Dynamics(self.layout, self.sizes, slide.moves, None, changes, (), bits, slide)

    def _with_landmarks(self, moves: tuple[Move, ...], old: np.ndarray, after: np.ndarray) -> Sizes:
        """Look for factors whose values stand for places."""
        places = tuple(factor for factor, move in enumerate(moves) if move.steps)
        if not places:
            return self.sizes
        trials = Trials(old, self.seen.action, after, self.seen.codes, places, self.sizes.radices)
        return self.sizes._replace(landmarks=trials.landmarks())
