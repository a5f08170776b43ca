"""Random numbers for tree search that cost next to nothing; other forms of a model draw others."""

import numpy as np

from cwm_cli.packing import Space
from cwm_cli.planning.compiled.tools import tools
from cwm_cli.planning.draws import BLOCK, DEPTHS


class Stream:
    """Draws what `Draws` draws, from SplitMix64 (Steele et al., 2014) with a seed of 64 bits."""

    def __init__(self, seed: int, actions: Space, *, steps: int, simulations: int) -> None:
        self._state = np.array([seed], np.uint64)
        self._low, self._high = int(actions.low[0]), int(actions.high[0])
        self._shape = min(BLOCK, simulations), steps
        self._blocks: list[tuple[np.ndarray, np.ndarray]] = []

    def block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the actions of some rollouts and 16-bit numbers for ties, a row for each."""
        while number >= len(self._blocks):
            actions = np.empty(self._shape, np.int64)
            ties = np.empty((self._shape[0], DEPTHS), np.uint16)
            tools().kernels.draw(self._state, self._low, self._high, actions, ties)
            self._blocks.append((actions, ties))
        return self._blocks[number]
