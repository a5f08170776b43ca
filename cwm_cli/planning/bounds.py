"""Plans of continuous actions within bounds."""

from collections.abc import Hashable, Iterator, Sequence
from math import isfinite
from typing import TypeVar

import numpy as np

from cwm_cli.data.spaces import Space

LARGEST = 8_000_000
"""Numbers that the plans tried at once may hold, so that they fit in the memory of a sandbox."""

Key = TypeVar("Key", bound=Hashable)


class Bounds:
    """The lowest and the highest plan of some length, flat: one action after the other."""

    def __init__(self, space: Space, length: int) -> None:
        self.shape = (length, *space.shape)
        self.low = np.tile(np.array(space.low), length)
        self.high = np.tile(np.array(space.high), length)
        self.middle: np.ndarray = (self.low + self.high) / 2
        same = len(set(space.low)) == len(set(space.high)) == 1
        self._clip = (space.low[0], space.high[0]) if same else (self.low, self.high)

    @staticmethod
    def serve(space: Space) -> bool:
        """Whether actions are real numbers with bounds on both sides."""
        return space.is_float and space.size > 0 and all(map(isfinite, space.low + space.high))

    def clip(self, plans: np.ndarray) -> None:
        """Move flat plans between the bounds, in place; single numbers as bounds are faster."""
        np.clip(plans, *self._clip, out=plans)

    def shaped(self, plans: np.ndarray) -> np.ndarray:
        """Return flat plans, on the last axis, as actions of their space's shape."""
        return plans.reshape(*plans.shape[:-1], *self.shape)


def grouped(keys: Sequence[Key], numbers: int) -> Iterator[tuple[Key, list[int]]]:
    """Yield each key with the places where it is, as many at once as fit into memory.

    `numbers` is how many numbers are held for each place.
    """
    most = max(1, LARGEST // numbers)
    for key in dict.fromkeys(keys):
        places = [place for place, other in enumerate(keys) if other == key]
        for start in range(0, len(places), most):
            yield key, places[start : start + most]
