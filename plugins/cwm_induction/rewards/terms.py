"""The terms that rewards are usually made of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from cwm_induction.continuous.ending import sums_of_angles
from cwm_induction.continuous.latents import Variable
from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.terms import (
    Column,
    Term,
    distinct,
    hypotenuses,
    library,
    product,
    waves,
)

MOST_COLUMNS = 8
"""Of more quantities than this no lengths and no full library are tried."""


@dataclass(frozen=True)
class Worth:
    """What a reward may depend on: values now and after the step, and the inputs."""

    samples: Samples
    variables: Sequence[Variable]
    inputs: Sequence[Column]

    @property
    def now(self) -> list[Column]:
        """Values before the step."""
        return [v.column for v in self.variables]

    @property
    def then(self) -> list[Column]:
        """Values after the step of what moves."""
        return [v.next_column for v in self.variables if not v.still]

    @property
    def places(self) -> list[Variable]:
        """What moves along a line."""
        return [v for v in self.variables if not v.is_angle and not v.still]

    def base(self) -> list[Term]:
        """Return the constant and the usual costs of inputs."""
        found = [*library([], self.inputs, 1), *_powers(self.inputs)]
        if self.samples.action_space.kind == "box" and len(self.inputs) > 1:
            effort = np.sum([column.values**2 for column in self.inputs], axis=0)
            found.append(Term("np.sum(np.square(action))", effort, 1.0))
        return distinct(found)

    def libraries(self) -> Iterator[list[Term]]:
        """Yield sets of terms, the likeliest first: costs are mostly squares and distances."""
        base, now, then = self.base(), self.now, self.then
        yield distinct([*base, *_powers(now)])
        yield distinct([*base, *_powers(then)])
        yield self.mixed()
        for columns in (now, then):
            pairs = [
                Term(product(a, b), a.values * b.values, 2.0)
                for a, b in combinations_with_replacement(columns, 2)
            ]
            yield distinct([*base, *_powers(columns), *waves(columns), *pairs])
        turned = sums_of_angles(self.variables)
        if turned:
            yield distinct([*base, *_powers(then), *turned])
        for columns in (now, then):
            if len(columns) <= MOST_COLUMNS:
                yield distinct([*base, *_powers(columns), *library(columns, self.inputs, 3)])

    def changes(self) -> list[Term]:
        """Return changes along lines and values after the step."""
        found = [
            Term(f"({v.next} - {v.name})", v.then - v.now, 0.8)
            for v in self.places
            if v.cycle is None
        ]
        return distinct([*found, *library(self.then, [], 1)])

    def mixed(self) -> list[Term]:
        """Return powers of both values, their products with the inputs, and lengths."""
        now, then = self.now, self.then
        crossed = [
            Term(product(given, column), given.values * column.values, 1.5)
            for given in self.inputs
            for column in [*now, *then]
        ]
        sizes = [Term(f"abs({text})", np.abs(values), 1.8) for text, values, _ in crossed]
        found = [*self.base(), *_powers(now), *_powers(then), *crossed, *sizes]
        if len(self.places) <= MOST_COLUMNS:
            for columns in ([v.next_column for v in self.places], [v.column for v in self.places]):
                found += hypotenuses(columns)
        return distinct(found)


def _powers(columns: Sequence[Column]) -> list[Term]:
    """Return the columns, their squares and their sizes."""
    plain = [Term(text, values, 1.0) for text, values, _ in columns]
    squares = [Term(f"{text}**2", values**2, 1.0) for text, values, _ in columns]
    sizes = [Term(f"abs({text})", np.abs(values), 1.2) for text, values, _ in columns]
    return [*plain, *squares, *sizes]
