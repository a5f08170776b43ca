"""The search for the reading of a state that makes its changes short to describe."""

from dataclasses import dataclass

import numpy as np

from cwm_induction.discrete_dynamics import Dynamics, aim
from cwm_induction.discrete_exceptions import Exceptions, Options
from cwm_induction.discrete_factors import Layout, layouts, split
from cwm_induction.discrete_moves import Fit, Move, assume_opposites, fit_moves
from cwm_induction.discrete_scene import Sizes
from cwm_induction.discrete_transitions import Transitions

SCREENED = 16
FINALISTS = 3
WORTHWHILE = 0.75


def fit_dynamics(seen: Transitions, options: Options) -> Dynamics:
    """Find the layout whose moves and exceptions have the shortest description.

    Moves that save little over looking numbers up explain nothing.
    """
    noise = seen.disagreement(after=False)
    plans = [
        _Plan(seen, noise, layout, bits, options) for layout, bits in layouts(seen.frame.sizes)
    ]
    plans = sorted(plans, key=_Plan.screen)[:SCREENED]
    plans = sorted(plans, key=lambda plan: plan.fit(full=False).bits)[: FINALISTS + options.rank]
    found = sorted((plan.fit(full=True) for plan in plans), key=lambda dynamics: dynamics.bits)
    best = found[min(options.rank, len(found) - 1)]
    if len(seen.frame.sizes) > 1:
        return best
    lookup = _lookup(seen, noise, options)
    return lookup if lookup.bits * WORTHWHILE < best.bits else best


def _lookup(seen: Transitions, noise: float, options: Options) -> Dynamics:
    """Describe what was seen without moves."""
    layout, bits = next(layouts(seen.frame.sizes))
    plain = options._replace(shapes=False, blocks=False, moves=False)
    return _Plan(seen, noise, layout, bits, plain).fit(full=True)


@dataclass(frozen=True)
class _Plan:
    """One layout to try."""

    seen: Transitions
    noise: float
    layout: Layout
    bits: float
    options: Options

    @property
    def sizes(self) -> Sizes:
        """Radices and actions."""
        radices = tuple(radix for radices in self.layout for radix in radices)
        return Sizes(radices, self.seen.frame.actions)

    def screen(self) -> float:
        """Price the layout by its moves and a guess at what they miss."""
        return self.bits + sum(fit.cost for fit in self._moves())

    def fit(self, *, full: bool) -> Dynamics:
        """Fit the moves and their exceptions, with joint blocking where that is shorter."""
        old, after = (split(part, self.layout) for part in (self.seen.before, self.seen.after))
        fits, assumed = assume_opposites(self._moves(), old, self.seen.action, after)
        moves = tuple(fit.move for fit in fits)
        bits = self.bits + sum(fit.bits for fit in fits)
        scene = aim(moves, old, self.seen.action)
        free = Exceptions(scene, after, self.seen.count, self.noise, self.sizes, self.options, full)
        choices = [free.changes(scene)]
        if self.options.blocks and any(move.moves for move in moves):
            choices.append(free.blocked())
        block, changes, spent = min(choices, key=lambda choice: choice.bits)
        return Dynamics(self.layout, self.sizes, moves, block, changes, assumed, bits + spent)

    def _moves(self) -> list[Fit]:
        """Fit the nominal moves, or none."""
        if not self.options.moves:
            still = np.zeros((self.seen.frame.actions, 1), dtype=np.int64)
            return [Fit(Move(radix, False, None, still), 0.0, 0.0) for radix in self.sizes.radices]
        old, after = (split(part, self.layout) for part in (self.seen.before, self.seen.after))
        return fit_moves(old, self.seen.action, after, *self.sizes)
