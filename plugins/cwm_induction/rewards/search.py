"""The order in which formulas for the reward are looked for."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cwm_induction.continuous.inner_constants import Scan
from cwm_induction.continuous.latents import MATCH
from cwm_induction.continuous.mixture import Target
from cwm_induction.continuous.regression import Formula, Search
from cwm_induction.continuous.terms import Term, library
from cwm_induction.effort import Share
from cwm_induction.mechanics.kinematics import BACKWARD, Kinematics
from cwm_induction.rewards.distances import SHAPES, Distances
from cwm_induction.rewards.fit import formula_in, most_of
from cwm_induction.rewards.links import linked
from cwm_induction.rewards.pieces import pieces
from cwm_induction.rewards.terms import MOST_COLUMNS, Worth

UNITS = 700.0
"""Work that one family of formulas may cost."""

BENT = 1.3e8
"""Operations that it costs to try every shape of one quantity."""

Found = list[Formula]
"""A formula for most rows, and others that hold in the rest."""


@dataclass(frozen=True)
class Candidates:
    """Formulas that hold along the way, then formulas that hold for the most part.

    Where many rows pay the same, formulas that take turns come first (`parted`).
    """

    worth: Worth
    effort: Share
    search: Search
    kinematics: Kinematics | None
    parted: bool

    def __iter__(self) -> Iterator[Found]:
        """Yield what may explain the reward, the likeliest first."""
        yield from self._changes()
        if self.parted:
            yield from self._pieces()
        yield from self._sums()
        yield from self._places()
        yield from self._distances()
        yield from self._functions()
        yield from self._majorities()
        if not self.parted:
            yield from self._pieces()
        yield from self._bent()

    def _changes(self) -> Iterator[Found]:
        """Yield a sum that has a change in it, which the end of an episode may cut short."""
        terms = self.worth.changes()
        formula = formula_in(self.worth.samples, terms, self._part(1), Search(4))
        if formula is not None and any(" - " in term.text for term in formula.terms):
            yield [formula]

    def _sums(self) -> Iterator[Found]:
        part = self._part(2)
        for terms in self._libraries:
            formula = formula_in(self.worth.samples, terms, part, self.search)
            if formula is not None:
                yield [formula]

    def _places(self) -> Iterator[Found]:
        """Yield formulas in the places of the parts of a mechanism."""
        if self.kinematics is None:
            return
        samples, known = self.worth.samples, self.kinematics.right
        rows = np.flatnonzero(samples.smooth & samples.learn & known)
        for terms in self.kinematics.costs(self.worth.inputs, samples.rewards, rows):
            formula = formula_in(samples, terms, self.effort, BACKWARD, known)
            if formula is not None:
                yield [formula]

    def _distances(self) -> Iterator[Found]:
        part = self._part(2)
        for shape in SHAPES:
            seen = Distances(self.worth, self._libraries[1], part, shape)
            for terms in seen.libraries():
                formula = formula_in(self.worth.samples, terms, part, self.search)
                if formula is not None:
                    yield [formula]

    def _functions(self) -> Iterator[Found]:
        libraries = [self._libraries[1], self._libraries[4]]
        for formula in linked(self.worth.samples, libraries, self._part(1), self.search):
            yield [formula]

    def _majorities(self) -> Iterator[Found]:
        part = self._part(1)
        for terms in self._libraries:
            formula = most_of(self.worth.samples, terms, part, self.search)
            if formula is not None:
                yield [formula]

    def _pieces(self) -> Iterator[Found]:
        for terms in self._libraries[1:3]:
            found = pieces(self.worth, terms, self._part(1))
            if found:
                yield found

    def _bent(self) -> Iterator[Found]:
        """Yield formulas with constants inside their terms."""
        samples, inputs = self.worth.samples, self.worth.inputs
        tolerance = 0.25 * MATCH * (1 + np.abs(samples.rewards))
        target = Target(samples.rewards, tolerance, samples.smooth & samples.learn)
        part = self._part(2)
        for columns in (self.worth.then, self.worth.now):
            terms = [t for t in library(columns, inputs, 2) if t.cost <= 2]
            arguments = [c for c in [*columns, *inputs] if len(np.unique(c.values)) > 2]
            arguments = arguments[:MOST_COLUMNS]
            if not part.spend(BENT * len(arguments)):
                return
            formula = Scan(terms, (), target, part).formula(arguments)
            if formula is not None:
                yield [formula]

    @cached_property
    def _libraries(self) -> list[list[Term]]:
        return list(self.worth.libraries())

    def _part(self, families: int) -> Share:
        """Return what some families may spend."""
        return Share(self.effort.whole, min(self.effort.units, families * UNITS))
