"""Rings of cells that turn: every cell moves by the same number of places."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.decision_list import Bias, RelationFeature, RelationList, learn
from cwm_induction.relations.stages import (
    BoardTerm,
    CellEffect,
    Names,
    Spend,
    branch_lines,
    define,
)

SHIFTS = (0, 1, -1, 2, -2, 3, -3)
"""Numbers of places that a ring may turn in one step."""


class RingTurn(NamedTuple):
    """Rules for the number of places that a line of cells turns."""

    terms: tuple[BoardTerm, ...]
    rules: RelationList

    def shifts(self, names: Names) -> Array:
        """Return the number of places for each board."""
        found = dict(names)
        define(self.terms, found)
        count = len(names["board"].values)
        shifts: Array = np.array(SHIFTS)[self.rules.effects(found, count)]
        return shifts

    def apply(self, names: Names) -> Array:
        """Return the boards after the turn."""
        return turned(names["board"].values, self.shifts(names))

    @property
    def lines(self) -> list[str]:
        """Write the turn as lines of `step`."""
        effects = [CellEffect(str(shift)) for shift in SHIFTS]
        branches = branch_lines(self.rules, effects, lambda text: f"shift = {text}")
        return [*branches, "board = np.roll(board, shift, axis=1)"]


def turned(boards: Array, shifts: Array) -> Array:
    """Return boards whose rows are rolled by a number of places each."""
    width = boards.shape[2]
    index = (np.arange(width)[None] - shifts[:, None]) % width
    return np.take_along_axis(boards, np.broadcast_to(index[:, None], boards.shape), axis=2)


def mismatches(before: Array, after: Array) -> Array:
    """Return how many cells differ after each of `SHIFTS`, of shape (boards, shifts)."""
    return np.stack(
        [(np.roll(before, shift, axis=2) != after).sum(axis=(1, 2)) for shift in SHIFTS], axis=1
    )


def ring_length(before: Array, after: Array) -> int:
    """Return how many cells of a line turn as a ring, 0 if none do.

    Args:
        before: Lines of shape (rows, cells).
        after: The same lines after a step.
    """
    best, least = 0, 0.25
    changed = (before != after).sum(axis=1) > 1
    if changed.sum() < 20:
        return 0
    for length in range(before.shape[1], max(5, before.shape[1] - 5), -1):
        old, new = (part[changed, None, :length] for part in (before, after))
        off = mismatches(old, new)
        wrong = (off.min(axis=1) / length).mean()
        turning = (off.min(axis=1) < off[:, 0]).mean()
        if turning > 0.5 and wrong < least - 0.01:
            best, least = length, wrong
    return best


def fit_turn(
    terms: Sequence[BoardTerm], names: Names, correct: Array, spend: Spend, bias: Bias
) -> RingTurn:
    """Learn when a ring turns by how many places; `correct` has a column per shift."""
    found = dict(names)
    features = [
        RelationFeature(term.name, term.kind, found[term.name], term.price)
        for term in define(terms, found)
    ]
    bits = [abs(shift) * 0.5 for shift in SHIFTS]
    return RingTurn(tuple(terms), learn(features, correct, spend, bias._replace(effect_bits=bits)))
