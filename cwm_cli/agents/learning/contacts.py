"""What is unknown among objects: what was never done to what, before where nobody ever was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations

import numpy as np

from cwm_cli.agents.learning.novelty import Level, Novelty
from cwm_cli.agents.learning.situations import Situations

AROUND = ("front", "here", "right", "down", "left", "up")
"""The relations, see `data.objects.relations`, that say what the agent is in touch with."""


class Contacts(Novelty):
    """What was never tried on which objects: those that the agent stands before, and carries.

    `names` are those of the `relations`. Places are looked at last: on another board all of them
    are others.
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
    ) -> None:
        super().__init__(situations, factors, steps, usual, relations)
        self._names = list(names)

    def _in_order(self) -> Iterator[Level]:
        near = [n for n, name in enumerate(self._names) if name in AROUND]
        held = [n for n, name in enumerate(self._names) if name == "held"]
        like = [n for n, name in enumerate(self._names) if name.split(" ")[0] in (*AROUND, "held")]
        like = [n for n in like if not self._names[n].endswith("color")]
        far = [n for n, name in enumerate(self._names) if name.split(" ")[0] not in AROUND]
        yield Level("an action that was never tried", self._untried(0))
        yield Level("never done to such a thing", self._trying((n,) for n in near))
        yield Level("objects were never like that", self._reaching((n,) for n in (*near, *far)))
        pairs = [(n, m) for n in near for m in (*held, *like) if n != m]
        yield Level("never done to such a thing in such a state", self._trying(pairs))
        yield Level("objects were never like that together", self._reaching(combinations(far, 2)))
        yield Level("never done among such things", self._trying(combinations(like, 3)))
        yield Level("never tried there", self.fresh)

    def landings(self, width: int) -> np.ndarray:
        """Return where actions lead to relations that were never seen together."""
        return self._reaching(combinations(range(len(self._names)), width))

    @cached_property
    def _relations(self) -> np.ndarray:
        """Nothing: what objects are to one another is given."""
        return np.zeros((len(self._factors), 0), np.int64)
