"""Nim as an AEC environment of PettingZoo, which other authors could have written.

Two heaps of tokens; a move takes one to three tokens of one heap, and who takes the last token
wins. Who takes exactly two tokens moves once more, so that players need not alternate.
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv


class Nim(AECEnv):
    metadata = {"name": "nim", "render_modes": []}  # noqa: RUF012

    def __init__(self, heaps: tuple[int, int] = (3, 4), secret: bool = False, dice: bool = False):
        super().__init__()
        self.start, self.secret, self.dice = list(heaps), secret, dice
        self.possible_agents = ["first", "second"]
        self.render_mode = None
        seen = spaces.Dict(
            {
                "observation": spaces.Box(0, 9, (2,), np.int8),
                "action_mask": spaces.Box(0, 1, (6,), np.int8),
            }
        )
        self.seen, self.moves = seen, spaces.Discrete(6)

    def observation_space(self, agent: str) -> Any:
        return self.seen

    def action_space(self, agent: str) -> Any:
        return self.moves

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.heaps = self.start[:]
        self.hidden = int(self.rng.integers(2, 9)) if self.secret else 0
        self.agent_selection = "first"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)

    def observe(self, agent: str) -> dict[str, Any]:
        board = np.array(self.heaps, np.int8)
        if self.hidden and agent == "second":
            board[0] = self.hidden
        mask = np.array([self.heaps[move // 3] > move % 3 for move in range(6)], np.int8)
        return {"observation": board, "action_mask": mask}

    def step(self, action: int) -> None:
        mover = self.agent_selection
        other = self.agents[1 - self.agents.index(mover)]
        heap, count = action // 3, action % 3 + 1
        assert self.heaps[heap] >= count
        self.heaps[heap] -= count
        if self.dice and self.rng.random() < 0.5:
            self.heaps[heap] = max(0, self.heaps[heap] - 1)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if not any(self.heaps):
            self.rewards = {mover: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        elif count != 2:
            self.agent_selection = other


def env(**kwargs: Any) -> Nim:
    return Nim(**kwargs)


PROGRAM = """
import numpy as np


class Environment:
    def set_state(self, observation):
        self.heaps = [int(heap) for heap in observation["board"]]
        self.player = observation["player"]

    def legal_actions(self):
        return [move for move in range(6) if self.heaps[move // 3] > move % 3]

    def step(self, action):
        heap, count = action // 3, action % 3 + 1
        self.heaps[heap] -= count
        ended = not any(self.heaps)
        if count != 2 and not ended:
            self.player = 1 - self.player
        board = np.array(self.heaps, np.int8)
        return {"board": board, "player": self.player}, float(ended), ended
"""
"""The rules of Nim as a program."""


def wins(heaps: tuple[int, int]) -> bool:
    """Return whether the player to move can win Nim, by trying every move."""
    for move in range(6):
        heap, count = move // 3, move % 3 + 1
        if heaps[heap] < count:
            continue
        left = list(heaps)
        left[heap] -= count
        after = (left[0], left[1])
        if not any(after) or wins(after) == (count == 2):
            return True
    return False
