"""Events that decide between two laws of several outputs, such as a belt that moves or stops.

Without the event, every output would draw for itself whether it changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cwm_induction.chance.candidates import expressions
from cwm_induction.chance.kernels import OutcomeTarget
from cwm_induction.chance.quantities import OutcomeRows
from cwm_induction.effort import Effort

Array = np.ndarray

MOST_TARGETS = 24
"""Maximum number of outputs, because pairs of laws are compared in every output."""

MOST_MODES = 8
"""Maximum number of sets of laws to compare in pairs."""

MOST_EXPRESSIONS = 80
"""Expressions per output, the simplest ones, that may be its law."""

FITS = 0.9
"""Minimum share of the rows of a group that a law explains; the rest may be sensor noise."""

EXPLAINED = 0.9
"""Minimum share of rows whose outputs one of two sets of laws almost completely explains."""

FEWEST_OF_EACH = 0.02
"""Minimum share of the rows with each result of the event."""


@dataclass(frozen=True)
class LawSet:
    """The laws of outputs that hold in a group of rows: whether each one matches, by output."""

    matches: Mapping[str, Array]
    texts: tuple[str, ...]

    @property
    def unchanged(self) -> int:
        """Number of outputs that keep their value."""
        return sum(text.split("_next = ")[0] == text.split(" = ")[1] for text in self.texts)


@dataclass(frozen=True)
class SharedEvent:
    """The result of an event in every row: 1 if the first laws hold, 0 if the second ones do.

    The result is -1 where both hold. `decided` has the result there if another output shows it.
    """

    result: Array
    decided: Array

    def filled(self, chances: Array) -> Array:
        """Draw the unknown results, given the frequency of the event in similar rows."""
        found = np.where(self.result < 0, self.decided, self.result)
        unknown = found < 0
        for chance in np.unique(chances[unknown]):
            group = chances == chance
            open_, left = group & (self.result < 0), group & unknown
            # Rows that another output decides count for their group as well.
            rest = (chance * open_.sum() - found[open_ & ~unknown].sum()) / left.sum()
            draws = np.random.default_rng(0).random(int(left.sum()))
            found[left] = draws < np.clip(rest if 0 < chance < 1 else chance, 0.0, 1.0)
        return found


def find_event(
    targets: Sequence[OutcomeTarget], rows: OutcomeRows, learn: Array, effort: Effort
) -> SharedEvent | None:
    """Return the event that decides between two laws of at least two outputs, or None."""
    if not 2 <= len(targets) <= MOST_TARGETS:
        return None
    modes = _modes(targets, rows, learn, effort)
    best, score = None, 0.0
    for first in modes:
        for second in modes:
            found = _compared(first, second, learn)
            if found is not None and found[1] > score:
                best, score = (first, second, found[0]), found[1]
    if best is None:
        return None
    first, second, result = best
    decided = np.full(len(rows), -1.0)
    for mode, other, value in ((second, first, 1.0), (first, second, 0.0)):
        for name in mode.matches.keys() - other.matches.keys():
            decided[(decided < 0) & ~mode.matches[name]] = value
    return SharedEvent(result, decided)


def _modes(
    targets: Sequence[OutcomeTarget], rows: OutcomeRows, learn: Array, effort: Effort
) -> list[LawSet]:
    """Return the sets of laws of groups; sets with the most rows come first."""
    known = {
        target.name: [e for e in expressions(target, rows, learn, effort) if "(" not in e.text]
        for target in targets
    }
    tables = {
        name: np.stack([part.values == values for part in found[:MOST_EXPRESSIONS]], axis=1)
        for (name, found), values in zip(
            known.items(), (target.values for target in targets), strict=True
        )
        if found  # all expressions of an output with a limit may contain calls of min or max
    }
    sizes: dict[tuple[str, ...], int] = {}
    modes: dict[tuple[str, ...], LawSet] = {}
    for group in rows.groups():
        mask = group & learn
        if mask.sum() < 20 or not effort.spend(mask.sum() * len(targets) * MOST_EXPRESSIONS):
            continue
        laws: dict[str, Array] = {}
        texts = []
        for name, table in tables.items():
            shares = table[mask].mean(axis=0)
            place = int(shares.argmax())
            if shares[place] >= FITS:
                laws[name] = table[:, place]
                texts.append(f"{name} = {known[name][place].text}")
        if len(laws) > 1:
            key = tuple(texts)
            sizes[key] = max(sizes.get(key, 0), int(mask.sum()))
            modes[key] = LawSet(laws, key)
    chosen: list[LawSet] = []
    for key in sorted(modes, key=lambda key: (-len(key) * sizes[key], key)):
        shared = [len({*key} & {*mode.texts}) / min(len(key), len(mode.texts)) for mode in chosen]
        if len(chosen) < MOST_MODES and max(shared, default=0.0) <= 0.5:
            chosen.append(modes[key])
    return chosen


def _compared(first: LawSet, second: LawSet, learn: Array) -> tuple[Array, float] | None:
    """Return the result of the event in every row (-1: unknown) and the explained outputs.

    The result is 1 if the first laws explain more outputs than the second ones.
    """
    shared = [name for name in first.matches if name in second.matches]
    differing = [
        name for name in shared if (first.matches[name] != second.matches[name])[learn].any()
    ]
    if len(differing) < 2:
        return None
    one = np.sum([first.matches[name] for name in differing], axis=0)
    other = np.sum([second.matches[name] for name in differing], axis=0)
    most = np.maximum(one, other)[learn]
    if (most >= len(differing) - 1).mean() < EXPLAINED or (most == len(differing)).mean() < 0.8:
        return None
    result = np.where(one > other, 1.0, np.where(other > one, 0.0, -1.0))
    if min((result[learn] == 1).mean(), (result[learn] == 0).mean()) < FEWEST_OF_EACH:
        return None
    return result, float(most.sum()) + 0.5 * (first.unchanged < second.unchanged)
