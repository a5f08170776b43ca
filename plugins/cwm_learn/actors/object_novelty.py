"""Rank untried actions on objects before unvisited states."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from cwm_learn.actors.novelty import Novelty, NoveltyLevel
from cwm_learn.actors.numbered_states import NumberedStates, NumberedStep

CONTACTS = ("front", "here", "right", "down", "left", "up")
"""Relations to objects in contact with the agent, see `cwm_cli.data.objects.relations`."""


class ObjectNovelty(Novelty):
    """The untried actions on the kinds of objects that the agent carries or is in contact with.

    Positions do not count, because they differ on another board.

    Args:
        table, steps, usual_reward: As in `Novelty`.
        relations: Relations between the objects (states, relations), numbered from 0.
        names: The names of the relations.
        sides: The usual direction of movement of each action, if it has one. The action then
            affects the object on that side.
    """

    def __init__(
        self,
        table: NumberedStates,
        relations: np.ndarray,
        steps: Sequence[NumberedStep],
        usual_reward: float,
        *,
        names: Sequence[str],
        sides: Mapping[int, str],
    ) -> None:
        super().__init__(table, relations, steps, usual_reward)
        self._names, self._sides = list(enumerate(names)), sides
        remote = (*CONTACTS, "beyond")
        self._properties = [n for n, name in self._names if name.split(" ")[0] not in remote]

    def _rank(self) -> Iterator[NoveltyLevel]:
        contacts = [n for n, name in self._names if name in CONTACTS]
        yield NoveltyLevel("an untried action", self._untried_actions(self._tuples(0)))
        yield NoveltyLevel("an untried action on this kind of object", self._untried_uses(1))
        yield NoveltyLevel(
            "a new property of objects",
            self._new_combinations((n,) for n in (*contacts, *self._properties)),
        )
        yield NoveltyLevel(
            "an untried action on this kind of object with the carried one",
            self._untried_uses(2, {"held"}),
        )
        yield NoveltyLevel(
            "an untried action on this kind of object in this state", self._untried_uses(2)
        )

    def deeper_levels(self) -> Iterator[NoveltyLevel]:
        """Yield levels of larger combinations, which are less informative than a new board."""
        yield NoveltyLevel(
            "a new combination of properties of objects",
            self._new_combinations(combinations(self._properties, 2)),
        )
        yield NoveltyLevel("an untried action among these kinds of objects", self._untried_uses(3))

    def new_landings(self, width: int) -> np.ndarray:
        """Return a mask of actions that lead to a new combination of `width` relations."""
        return self._new_combinations(combinations(range(len(self._names)), width))

    def _untried_uses(self, width: int, only: Container[str] | None = None) -> np.ndarray:
        """Return a mask of actions never taken with such a combination of `width` objects.

        Actions that always changed the state are tried on single objects only. Actions that never
        changed it are also tried with the carried object, which may be a key or a tool.
        """
        unknown = np.zeros(self._shape, bool)
        tries, effects = self._tries, self._effects
        uniform = effects == tries if only else (effects == 0) | (effects == tries)
        # after this many tries, an action that always or never changed the state will continue so
        min_tries = 8
        uniform &= (tries >= min_tries) & (width > 1)
        for action in np.flatnonzero(~uniform).tolist():
            side = self._sides.get(action)
            first = {"here", side} if side else {*CONTACTS}
            more = {"here", "held", side, f"beyond {side}"} if side else {*CONTACTS, "held"}
            objects = [n for n, name in self._names if name in first]
            others = [
                n
                for n, name in self._names
                if (only is None or name in only)
                and (name in more or (name.split(" ")[0] in more and not name.endswith("color")))
            ]
            tuples = [(n, *rest) for n in objects for rest in combinations(others, width - 1)]
            untried = self._untried_actions(t for t in tuples if len({*t}) == width)
            unknown[:, action] = untried[:, action]
        return unknown

    def _infer_relations(self) -> np.ndarray:
        """Return no relations, because the constructor receives the relations of objects."""
        return np.zeros((self._shape[0], 0), np.int64)
