"""Board games for one: a sowing game and a puzzle of rings."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.aside.base import Simulator


class SowingSolitaire(Simulator):
    """Fifteen seeds in six pits are to be sown into a store.

    ## Action Space

    The pit to sow, 0 to 5.

    ## Observation Space

    | Num | Observation          | Min | Max |
    |-----|----------------------|-----|-----|
    | 0-5 | Seeds in the pits    | 0   | 15  |
    | 6   | Seeds in the store   | 0   | 15  |

    The seeds of the pit go one by one into the places with the next numbers, and after the store
    into pit 0. Where the last seed falls into an empty pit, and the pit opposite (0 and 5, 1 and
    4, 2 and 3) holds seeds, both go to the store. The reward is what the store gains; an empty
    pit costs 0.5. Ten seeds in the store end the game with 5 more.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 15, (7,), np.int64)
        self.action_space = spaces.Discrete(6)
        self.board: list[int] = [0] * 7

    def _start(self) -> None:
        pits = self.np_random.integers(6, size=15)
        self.board = [*np.bincount(pits, minlength=6).tolist(), 0]

    def _advance(self, action: Any) -> tuple[float, bool]:
        place, before = int(action), self.board[6]
        hand, self.board[place] = self.board[place], 0
        if hand == 0:
            return -0.5, False
        for _ in range(hand):
            place = (place + 1) % 7
            self.board[place] += 1
        if place < 6 and self.board[place] == 1 and self.board[5 - place] > 0:
            self.board[6] += 1 + self.board[5 - place]
            self.board[place] = self.board[5 - place] = 0
        won = self.board[6] >= 10
        return self.board[6] - before + 5.0 * won, won

    def _observe(self) -> NDArray[np.int64]:
        return np.array(self.board, np.int64)


class RingPuzzle(Simulator):
    """Six rings are to be taken off a bar.

    The observation has a bit for each ring, 1 while it is on the bar, and the action names a
    ring. Ring 0 can always be put on or taken off, any other only when the ring just before it
    is on and all rings before that one are off. A move that the puzzle does not allow changes
    nothing and costs 0.5, others cost 0.1, and the last ring off ends the episode with 10.
    """

    RINGS = 6

    def __init__(self) -> None:
        self.observation_space = spaces.MultiBinary(self.RINGS)
        self.action_space = spaces.Discrete(self.RINGS)
        self.rings: list[int] = [0] * self.RINGS

    def _start(self) -> None:
        far = self.np_random.random() < 0.3
        moves = int(self.np_random.integers(2, 64 if far else 8))
        gray = moves ^ (moves >> 1)
        self.rings = [gray >> place & 1 for place in range(self.RINGS)]

    def _advance(self, action: Any) -> tuple[float, bool]:
        ring = int(action)
        if ring > 0 and (not self.rings[ring - 1] or any(self.rings[: ring - 1])):
            return -0.5, False
        self.rings[ring] ^= 1
        solved = not any(self.rings)
        return 10.0 * solved - 0.1, solved

    def _observe(self) -> NDArray[np.int8]:
        return np.array(self.rings, np.int8)
