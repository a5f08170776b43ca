"""Catch and moving dots: all rules are a few lines of arithmetic, all that is seen is pixels.

What is true in them is known exactly, so that a picture that a model predicts can be told from the
right one pixel by pixel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

BLACK, WHITE, RED = (0, 0, 0), (255, 255, 255), (230, 40, 40)
"""The colors of the ground, of the ball and the other dots, and of what is moved."""

ZOOM = 8
"""How many times larger than it is observed a picture is drawn for people."""

SMALLEST, LARGEST = 16, 128
"""Pixels of a picture's side: below it would be taken for a board, above nothing is gained."""


class PictureGame(gym.Env[Any, Any]):
    """A game whose observation is its picture, bytes of (height, width, 3).

    A game draws itself with `picture`, and a state is a few attributes that are replaced, never
    changed in place.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012

    def __init__(self, height: int, width: int, actions: int, render_mode: str | None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"unknown render mode {render_mode!r}: choose 'rgb_array'")
        if not SMALLEST <= min(height, width) <= max(height, width) <= LARGEST:
            limits = f"{SMALLEST} to {LARGEST} pixels high and wide"
            raise ValueError(f"a picture of {height} x {width} pixels does not fit: {limits}")
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 255, (height, width, 3), np.uint8)
        self.action_space = spaces.Discrete(actions)

    def picture(self) -> np.ndarray:
        """Draw where the game stands."""
        raise NotImplementedError

    def render(self) -> Any:
        """Draw it larger, for people."""
        if self.render_mode is None:
            return None
        return self.picture().repeat(ZOOM, 0).repeat(ZOOM, 1)

    def _blank(self) -> np.ndarray:
        return np.full(self.observation_space.shape or (), BLACK, np.uint8)

    def _checked(self, action: Any) -> int:
        if not self.action_space.contains(action):
            raise ValueError(f"there is no action {action!r}: choose one of {self.action_space}")
        return int(action)


class CatchState(NamedTuple):
    """The column and row of the ball, and the column of the paddle in the last row."""

    ball: int
    row: int
    paddle: int


class Catch(PictureGame):
    """A ball falls by a cell a step, and a paddle in the last row has to be where it lands.

    The board has `rows` and `columns` of cells, each a square of `tile` pixels.
    """

    def __init__(
        self, *, rows: int = 8, columns: int = 8, tile: int = 4, render_mode: str | None = None
    ) -> None:
        if not 2 <= columns <= rows:
            raise ValueError(f"of {rows} x {columns} cells some balls cannot be caught")
        super().__init__(rows * tile, columns * tile, 3, render_mode)
        self.rows, self.columns, self.tile = rows, columns, tile
        self.state: CatchState | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin with a ball in the first row, it and the paddle anywhere."""
        super().reset(seed=seed)
        ball, paddle = self.np_random.integers(self.columns, size=2).tolist()
        self.state = CatchState(ball, 0, paddle)
        return self.picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the paddle, then let the ball fall; in the last row it is caught or missed."""
        move = self._checked(action) - 1
        if self.state is None:
            raise gym.error.ResetNeeded("reset the environment before its first step")
        ball, row, paddle = self.state
        paddle = min(max(paddle + move, 0), self.columns - 1)
        self.state = CatchState(ball, min(row + 1, self.rows - 1), paddle)
        over = self.state.row == self.rows - 1
        reward = (1.0 if ball == paddle else -1.0) if over else 0.0
        return self.picture(), reward, over, False, {}

    def picture(self) -> np.ndarray:
        """Draw the paddle, and the ball over it."""
        drawn, tile = self._blank(), self.tile
        if self.state is not None:
            ball, row, paddle = self.state
            drawn[-tile:, paddle * tile : (paddle + 1) * tile] = RED
            drawn[row * tile : (row + 1) * tile, ball * tile : (ball + 1) * tile] = WHITE
        return drawn

    def restore(self, observation: Any) -> bool:
        """Stand where a picture shows; False where it is none of the game."""
        if not self.observation_space.contains(observation):
            return False
        cells = observation[:: self.tile, :: self.tile]
        balls = np.argwhere((cells == WHITE).all(2)).tolist()
        paddles = np.flatnonzero((cells[-1] == RED).all(1)).tolist()
        if len(balls) != 1:
            return False
        row, ball = balls[0]
        self.state = CatchState(ball, row, paddles[0] if paddles else ball)
        return np.array_equal(self.picture(), observation)


Pair = tuple[int, int]


class DotState(NamedTuple):
    """Places (dots, 2) of upper left corners and velocities (dots, 2), x before y, in pixels."""

    places: tuple[Pair, ...]
    velocities: tuple[Pair, ...]


FASTEST = 2
"""Pixels a step of a dot in each direction at most, so that it is seen to move and not to jump."""

NUDGES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""What an action adds to the velocity of the red dot."""


class MovingDots(PictureGame):
    """Dots fly straight on and bounce off the sides; the red one can be nudged to touch another.

    There are so many `dots` of `dot` x `dot` pixels in a picture of `size` x `size`. How fast they
    are is not seen: one picture does not tell the next.
    """

    def __init__(
        self, *, size: int = 32, dots: int = 2, dot: int = 4, render_mode: str | None = None
    ) -> None:
        super().__init__(size, size, len(NUDGES), render_mode)
        if dots < 1 or not 1 <= dot <= size - FASTEST:
            raise ValueError(f"there are no {dots} dots of {dot} pixels in {size}")
        self.dots, self.dot, self.far = dots, dot, size - dot
        self.state: DotState | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin with dots anywhere, each with some velocity."""
        super().reset(seed=seed)
        places = self.np_random.integers(self.far + 1, size=(self.dots, 2)).tolist()
        speeds = self.np_random.integers(-FASTEST, FASTEST + 1, size=(self.dots, 2)).tolist()
        self.state = DotState(*(tuple((x, y) for x, y in part) for part in (places, speeds)))
        return self.picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Nudge the red dot, let all of them fly; what it then touches pays 1."""
        nudge = NUDGES[self._checked(action)]
        if self.state is None:
            raise gym.error.ResetNeeded("reset the environment before its first step")
        (own, *places), ((right, down), *velocities) = self.state
        nudged = _kept(right + nudge[0]), _kept(down + nudge[1])
        flown = [
            [self._flown(*axis) for axis in zip(place, velocity, strict=True)]
            for place, velocity in zip((own, *places), (nudged, *velocities), strict=True)
        ]
        self.state = DotState(
            tuple((x, y) for (x, _), (y, _) in flown), tuple((u, v) for (_, u), (_, v) in flown)
        )
        (x, y), *others = self.state.places
        touched = any(abs(a - x) < self.dot and abs(b - y) < self.dot for a, b in others)
        return self.picture(), float(touched), False, False, {}

    def _flown(self, at: int, speed: int) -> Pair:
        """Return where a dot is in one direction a step later, and how fast."""
        there = at + speed
        if there < 0:
            return -there, -speed
        return (2 * self.far - there, -speed) if there > self.far else (there, speed)

    def picture(self) -> np.ndarray:
        """Draw the other dots, and the red one over them."""
        drawn = self._blank()
        if self.state is not None:
            first, *others = self.state.places
            for (x, y), color in (*((each, WHITE) for each in others), (first, RED)):
                drawn[y : y + self.dot, x : x + self.dot] = color
        return drawn


def _kept(speed: int) -> int:
    return min(max(speed, -FASTEST), FASTEST)
