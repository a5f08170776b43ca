"""What is unknown among objects: what was never done to what, before where nobody ever was."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations

import numpy as np

from cwm_learn.actors.novelty import Level, Novelty
from cwm_learn.actors.numbered_states import Situations

AROUND = ("front", "here", "right", "down", "left", "up")
"""The relations, see `data.objects.relations`, that say what the agent is in touch with."""

ALIKE = 8
"""Tries after which an action that always did something, or never, is taken to go on like that."""


class Contacts(Novelty):
    """What was never tried on which objects: those that the agent stands before, and carries.

    `names` are those of the `relations`, and `sides` say to which of them actions go, where that is
    always the same: what is there is what they are done to. Places say nothing:
    on another board all of them are others.
    """

    def __init__(
        self,
        situations: Situations,
        factors: np.ndarray,
        steps: Sequence[tuple[int, int, int, float, bool]],
        usual: float,
        *,
        names: Sequence[str],
        relations: np.ndarray,
        sides: Mapping[int, str],
    ) -> None:
        super().__init__(situations, factors, steps, usual, relations)
        self._named, self._sides = list(enumerate(names)), dict(sides)

    def _in_order(self) -> Iterator[Level]:
        near = [n for n, name in self._named if name in AROUND]
        far = [n for n, name in self._named if name.split(" ")[0] not in (*AROUND, "beyond")]
        yield Level("an untried action", self._untried(0))
        yield Level("an untried action on this kind of object", self._touching(1))
        yield Level("a new property of objects", self._reaching((n,) for n in (*near, *far)))
        yield Level(
            "an untried action on this kind of object with the carried one",
            self._touching(2, {"held"}),
        )
        yield Level("an untried action on this kind of object in this state", self._touching(2))

    def deeper(self) -> Iterator[Level]:
        """Yield what is unknown among more things: a new board may well offer more than that."""
        far = [n for n, name in self._named if name.split(" ")[0] not in (*AROUND, "beyond")]
        yield Level(
            "a new combination of properties of objects", self._reaching(combinations(far, 2))
        )
        yield Level("an untried action among these kinds of objects", self._touching(3))

    def _touching(self, width: int, only: Container[str] | None = None) -> np.ndarray:
        """Return where actions were never taken among such things, so many of them together.

        What always or never changes anything is not tried on more than one thing.
        """
        unknown, steps = np.zeros(self._shape, bool), self._steps
        tried = np.bincount(steps.action, minlength=self._shape[1])
        moved = np.bincount(steps.action, steps.after != steps.before, minlength=self._shape[1])
        alike = (tried >= ALIKE) & ((moved == 0) | (moved == tried)) & (width > 1)
        for action in np.flatnonzero(~alike).tolist():
            side = self._sides.get(action)
            first = {"here", side} if side else {*AROUND}
            more = {"here", "held", side, f"beyond {side}"} if side else {*AROUND, "held"}
            near = [n for n, name in self._named if name in first]
            like = [
                n
                for n, name in self._named
                if (only is None or name in only)
                and (name in more or (name.split(" ")[0] in more and not name.endswith("color")))
            ]
            tuples = [(n, *rest) for n in near for rest in combinations(like, width - 1)]
            unknown[:, action] = self._trying(t for t in tuples if len({*t}) == width)[:, action]
        return unknown

    def landings(self, width: int) -> np.ndarray:
        """Return where actions lead to relations that were never seen together."""
        return self._reaching(combinations(range(len(self._named)), width))

    @cached_property
    def _relations(self) -> np.ndarray:
        """Nothing: what objects are to one another is given."""
        return np.zeros((len(self._factors), 0), np.int64)
