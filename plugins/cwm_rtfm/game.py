"""Read to Fight Monsters as an environment of Gymnasium."""

from math import isfinite
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from cwm_rtfm.board import INNER, SIZE, Cell, board_of, drawn, is_wall, placed
from cwm_rtfm.rules import EMPTY, FOES, PUBLISHED, WEAPONS, Rules, draw, library

MOVES: dict[int, Cell] = {0: (0, 0), 1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}
"""Stay, up, down, left and right."""

REVISION = "1"
"""Raised whenever the game goes another way."""

MOST_STEPS = 1000
"""The step in which an episode is lost if it is not over before."""

LETTERS = "abcdefghijklmnopqrstuvwxyz ."


class Rtfm(gym.Env[Any, Any]):
    """Read to Fight Monsters, with monsters that stand still (Zhong et al., ICLR 2020).

    The state is what is observed, and the number of steps, which is not: the
    thousandth step loses, and `terminated` says so, because that is a rule of
    the game with a reward of its own. Nothing is ever truncated.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012  # Gymnasium's way

    def __init__(
        self,
        *,
        shuffled: bool = False,
        time_penalty: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"there is no render mode {render_mode!r}, only 'ansi'")
        if not isfinite(time_penalty):
            raise ValueError(f"the time penalty {time_penalty} is no finite number")
        self.shuffled = shuffled
        self.time_penalty = float(time_penalty)
        self.render_mode = render_mode
        self.observation_space = _observations(shuffled=shuffled)
        self.action_space = spaces.Discrete(len(MOVES))
        self.player: Cell | None = None
        self.things: dict[Cell, str] = {}
        self.inventory = EMPTY
        self.manual = self.goal = ""
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: everything stands somewhere else, nothing is held."""
        super().reset(seed=seed)
        rules, cast = draw(self.np_random) if self.shuffled else PUBLISHED
        self.manual, self.goal = rules.manual, rules.goal
        places = self.np_random.choice(len(INNER), len(cast), replace=False)
        self.player, *others = (INNER[place] for place in places)
        self.things = dict(zip(others, cast[1:], strict=True))
        self.inventory = EMPTY
        self.steps = 0
        return self.observation(), self._info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move, take what lies there, or fight whoever stands there."""
        if not self.action_space.contains(action):
            raise ValueError(f"there is no action {action!r}: choose one from 0 to 4")
        if not self.manual:
            raise gym.error.ResetNeeded("reset the environment before its first step")
        self.steps += 1
        if self.player is not None:
            row, column = MOVES[int(action)]
            self._enter((self.player[0] + row, self.player[1] + column))
        reward, terminated = self._outcome()
        return self.observation(), reward, terminated, False, self._info()

    def valid_actions(self) -> tuple[int, ...]:
        """Return the actions that walk into no wall; all of them once the player is dead."""
        if self.player is None:
            return tuple(MOVES)
        row, column = self.player
        moves = MOVES.items()
        return tuple(action for action, (y, x) in moves if not is_wall((row + y, column + x)))

    def observation(self) -> tuple[Any, ...]:
        """Return what is seen: the manual and the goal only where they differ between episodes."""
        told = (self.manual, self.goal) if self.shuffled else ()
        return (board_of(self.player, self.things), self.inventory, *told)

    def restore(self, observation: tuple[Any, ...]) -> bool:
        """Stand at an observation, with all steps to go; False where it is none of the game."""
        if not self.observation_space.contains(observation):
            return False
        board, inventory, *told = observation
        found = placed(board)
        manual, goal = told or (PUBLISHED.rules.manual, PUBLISHED.rules.goal)
        known = (manual, goal) in library() and inventory in WEAPONS | {EMPTY}
        if found is None or not known:
            return False
        self.player, self.things = found
        self.inventory, self.manual, self.goal, self.steps = inventory, manual, goal, 0
        return True

    def render(self) -> str | None:
        """Return the board, the inventory, the manual and the goal as text."""
        if self.render_mode is None:
            return None
        texts = {"inventory": self.inventory, "manual": self.manual, "goal": self.goal}
        return drawn(board_of(self.player, self.things), texts)

    def _enter(self, cell: Cell) -> None:
        """Arrive in a cell; a wall lets nobody in."""
        if is_wall(cell):
            return
        thing = self.things.get(cell, EMPTY)
        if thing in FOES and not self._rules.beats(self.inventory, thing):
            self.player = None
            return
        if thing in WEAPONS:
            self.inventory = thing  # what was held before is gone
        self.things.pop(cell, None)
        self.player = cell

    def _outcome(self) -> tuple[float, bool]:
        """Return the reward, and whether the episode is over."""
        foes = [thing for thing in self.things.values() if thing in FOES]
        dead = self.player is None
        if not (dead or len(foes) < 2 or self.steps >= MOST_STEPS):
            return self.time_penalty, False
        won = not dead and not any(map(self._rules.is_target, foes))
        return (1.0 if won else -1.0), True

    @property
    def _rules(self) -> Rules:
        """The rules of the episode, as the manual and the goal have them."""
        return library()[self.manual, self.goal]

    def _info(self) -> dict[str, Any]:
        return {"valid_actions": self.valid_actions()}


def _observations(*, shuffled: bool) -> spaces.Tuple[Any]:
    """Return the space of board and inventory, and of manual and goal where these are drawn."""
    longest = max(map(len, WEAPONS | FOES))
    board = spaces.Tuple(
        spaces.Tuple(spaces.Tuple([_texts(longest), _texts(longest)]) for _ in range(SIZE))
        for _ in range(SIZE)
    )
    told = [max(map(len, texts)) for texts in zip(*library(), strict=True)] if shuffled else []
    return spaces.Tuple([board, *map(_texts, [longest, *told])])


def _texts(longest: int) -> spaces.Text:
    return spaces.Text(longest, charset=LETTERS)
