"""Matches of `cwm plan --opponent`: a game of two players as the environment of one player.

`Match` wraps a game. Its step makes the planner's move and then the moves of the opponent, until
the planner is to move again or the game is over. So a match is played like any environment, and
its return is the result of the game: positive for a win, 0 for a draw, negative for a loss.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import gymnasium as gym

from cwm_cli.data.dataset import Transition
from cwm_cli.envs.tasks import Task, random_action, reward_number
from cwm_cli.planning import Moment
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.worlds.model import PlanningSession

if TYPE_CHECKING:
    from cwm_cli.envs.spec import TwoPlayers

OpponentName = Literal["random", "self", "oracle"]
OPPONENTS: Sequence[OpponentName] = get_args(OpponentName)
"""Random legal moves, the same planner in the same model, or the same planner in the true game."""

ILLEGAL = -1.0
"""The result of an illegal move for the player who makes it."""

MOVES = "match_moves"
"""The key in the `info` of a step for its `MatchMoves`."""


@dataclass
class MatchMoves:
    """The moves of one step of a match.

    Attributes:
        rows: The legal moves of both players.
        illegal: Number of illegal moves of the planner, 0 or 1.
        opponent_illegal: Number of illegal moves of the opponent, 0 or 1.
        verified: Whether the moves of the opponent were confirmed; set when the game is over.
    """

    rows: list[Transition] = field(default_factory=list)
    illegal: int = 0
    opponent_illegal: int = 0
    verified: bool = True


@dataclass(frozen=True)
class MatchTask(Task):
    """A game against an opponent; who moves first alternates with the number of the episode.

    Attributes:
        game: The players of the game.
        opponent: Plans the moves of the opponent. None makes random legal moves.
    """

    game: TwoPlayers | None = None
    opponent: PlanningSession | None = field(default=None, compare=False)

    @classmethod
    def of(cls, task: Task, game: TwoPlayers, opponent: PlanningSession | None) -> MatchTask:
        """Return the match of a game."""
        return cls(task.make, task.seed, task.limit, task.valid, task.turn, game, opponent)

    def make_episode(self, number: int) -> gym.Env[Any, Any]:
        """Return the match of an episode; the planner moves first in even episodes."""
        return Match(self.make(), self, number)


class Match(gym.Wrapper[Any, Any, Any, Any]):
    """A game as the environment of one of its players."""

    def __init__(self, env: gym.Env[Any, Any], task: MatchTask, number: int) -> None:
        super().__init__(env)
        self._task, self._number = task, number
        self._space = deepcopy(env.action_space)
        self._history = EpisodeHistory(())
        self._moves, self._gain = MatchMoves(), 0.0
        self._mine = self._decisions = 0
        self._over, self._seconds = False, 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a game; in odd episodes the opponent moves first."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._space.seed(seed)
        self._history = EpisodeHistory((deepcopy(observation),))
        self._moves, self._gain, self._decisions, self._over = MatchMoves(), 0.0, 0, False
        self._mine = self._to_move ^ (self._number % 2)
        self._answer()
        return self._history.observations[-1], info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make a move, and the moves of the opponent after it."""
        if not self._over:  # the opponent may have ended the game in `reset`
            self._moves.illegal += not self._move(action)
            self._answer()
        moves, self._moves = self._moves, MatchMoves()
        gain, self._gain = self._gain, 0.0
        if self._over and self._task.opponent:
            [found] = self._task.opponent.confirm({self._number: self._seconds}).values()
            moves.verified = found.verified
        return self._history.observations[-1], gain, self._over, False, {MOVES: moves}

    @property
    def _to_move(self) -> int:
        assert self._task.game is not None
        return self._task.game.to_move(self.env.unwrapped)

    def _answer(self) -> None:
        """Make the moves of the opponent until the planner is to move or the game is over."""
        while not self._over and self._to_move != self._mine:
            self._moves.opponent_illegal += not self._move(self._choose())

    def _choose(self) -> Any:
        """Return the next move of the opponent; a random legal one if it does not plan."""
        session, history = self._task.opponent, self._history
        if session is not None:
            began = time.perf_counter()
            left = max(1, self._task.limit - len(history.actions))
            state = session.state(self.env, history)
            [plan] = session.plan([Moment(self._number, self._decisions, state, left)])
            self._seconds += time.perf_counter() - began
            self._decisions += 1
            if plan.actions:
                return plan.actions[0]
        return random_action(self._space, self._task.allowed(self.env))

    def _move(self, action: Any) -> bool:
        """Make a legal move; an illegal one loses the game. Return whether the move is legal."""
        sign = 1.0 if self._to_move == self._mine else -1.0
        if action not in (self._task.listed(self.env) or ()):
            self._gain, self._over = self._gain + sign * ILLEGAL, True
            return False
        before = self._history.observations[-1]
        seen, reward, terminated, truncated, _ = self.env.step(deepcopy(action))
        gain = reward_number(reward)
        self._history = self._history.after(action, deepcopy(seen), gain)
        after = self._history.observations[-1]
        row = Transition(before, action, after, gain, bool(terminated), episode=self._number)
        self._moves.rows.append(row._replace(valid=self._task.listed(self.env)))
        self._gain += sign * gain
        is_long = len(self._history.actions) >= self._task.limit
        self._over = bool(terminated or truncated) or is_long
        return True
