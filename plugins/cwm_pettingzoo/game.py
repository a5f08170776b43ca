"""An AEC environment of PettingZoo as a Gymnasium environment with one move per step."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from cwm_cli.errors import CwmError

BOARD, TURN = "board", "player"
"""The entries of an observation: what the first player observes, and the player to move."""


class TwoPlayerGame(gym.Env[Any, Any]):
    """A game of two players with perfect information, one move per step.

    The observation is a dict: `board` is the observation of the first player in every step, and
    `player` the number of the player to move. The player who moves gets the reward.

    Args:
        aec: The environment of PettingZoo; its wrappers are not used.
        name: The id of the environment for messages.

    Attributes:
        over: Whether the game is over.
        player: The player to move; after the end, the player who moved last.
    """

    def __init__(self, aec: Any, name: str) -> None:
        self.aec, self._name = aec.unwrapped, name
        self._check_players()
        first = self.agents[0]
        self.action_space: spaces.Discrete = self.aec.action_space(first)
        board = self.aec.observation_space(first)
        self.observation_space = spaces.Dict(
            {BOARD: board["observation"], TURN: spaces.Discrete(2)}
        )
        self.render_mode = getattr(self.aec, "render_mode", None)
        kept = ("render_modes", "render_fps")
        self.metadata = {key: aec.metadata[key] for key in kept if key in aec.metadata}
        self.over, self.player = True, 0

    @property
    def agents(self) -> list[str]:
        """The names of both players."""
        agents: list[str] = self.aec.possible_agents
        return agents

    def legal_actions(self) -> list[int]:
        """Return the legal actions of the player to move, none after the end."""
        if self.over:
            return []
        mask = self.view(self.player)[1]
        return [int(self.action_space.start) + int(place) for place in np.flatnonzero(mask)]

    def view(self, player: int) -> tuple[Any, Any]:
        """Return the observation of a player, and the mask of legal actions."""
        agent = self.agents[player]
        seen = self.aec.observe(agent)
        mask = (
            seen["action_mask"] if "action_mask" in seen else self.aec.infos[agent]["action_mask"]
        )
        return seen["observation"], mask

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        super().reset(seed=seed)
        self.aec.reset(seed=seed, options=options)
        self.over = False
        self.player = self.agents.index(self.aec.agent_selection)
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make a move; an illegal one loses."""
        if self.over:
            return self.observation(), 0.0, True, False, {}
        mover = self.agents[self.player]
        if int(action) not in self.legal_actions():
            self.over = True
            # the reward of an illegal move, which loses the game, as in PettingZoo's classic games
            illegal = -1.0
            return self.observation(), illegal, True, False, {}
        self.aec.step(action)
        reward = float(self.aec.rewards.get(mover, 0.0))
        total = sum(map(float, self.aec.rewards.values()))
        if abs(total) > 1e-9:
            raise CwmError(
                f"the rewards of a move in {self._name} sum to {total:g} instead of 0: choose a "
                "zero-sum game"
            )
        terminated, truncated = (
            not self.aec.agents or any(flags.values())
            for flags in (self.aec.terminations, self.aec.truncations)
        )
        self.over = terminated or truncated
        if not self.over:
            self.player = self.agents.index(self.aec.agent_selection)
        return self.observation(), reward, terminated, truncated and not terminated, {}

    def observation(self) -> dict[str, Any]:
        """Return the state of the game from the view of the first player."""
        board = self.aec.observe(self.agents[0])["observation"]
        return {BOARD: np.array(board), TURN: self.player}

    def render(self) -> Any:
        """Draw the board."""
        return self.aec.render()

    def close(self) -> None:
        """Close the environment of PettingZoo."""
        self.aec.close()

    def _check_players(self) -> None:
        """Raise CwmError unless two players choose among masked discrete actions."""
        aec, hint = self.aec, "choose a board game for two"
        agents = list(getattr(aec, "possible_agents", ()))
        if len(agents) != 2:
            raise CwmError(f"{self._name} has {len(agents)} players instead of 2: {hint}")
        actions = [aec.action_space(agent) for agent in agents]
        if not all(isinstance(space, spaces.Discrete) for space in actions):
            raise CwmError(f"{self._name} has no discrete actions: {hint}")
        views = [aec.observation_space(agent) for agent in agents]
        masked = all(
            isinstance(view, spaces.Dict) and "observation" in view.spaces for view in views
        )
        aec.reset(seed=0)
        agent = aec.agent_selection
        if not masked or "action_mask" not in {*aec.observe(agent), *aec.infos[agent]}:
            raise CwmError(f"{self._name} does not list legal actions in an action mask: {hint}")
        if actions[0] != actions[1] or views[0] != views[1]:
            raise CwmError(f"the players of {self._name} have different spaces: {hint}")


class GameRewinder:
    """Saves and restores a game by the attributes of its AEC environment.

    Attributes with these names never change, so they are not copied.
    """

    how = "game"
    CONSTANT = frozenset(
        {"possible_agents", "action_spaces", "observation_spaces", "metadata", "render_mode"}
    )

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        game = env.unwrapped
        assert isinstance(game, TwoPlayerGame)
        self._game = game

    def save(self, *, chance: bool = True) -> Any:
        """Return the state of the game."""
        game = self._game
        attributes = {
            name: value for name, value in vars(game.aec).items() if name not in self.CONSTANT
        }
        return deepcopy(attributes), game.over, game.player

    def load(self, state: Any, *, chance: bool = True) -> None:
        """Restore a state."""
        attributes, self._game.over, self._game.player = state
        vars(self._game.aec).update(deepcopy(attributes))

    def generators(self) -> Sequence[Any]:
        """Return no generators, because games with chance are refused."""
        return ()

    def returns(self, states: Sequence[Any], plans: np.ndarray) -> None:
        """Return None: stepping is the fastest method."""
