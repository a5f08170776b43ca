"""The games Catch and moving dots: rules of a few lines, and images as observations.

The exact rules are known, so that predicted images can be compared with the true ones pixel by
pixel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

BLACK, WHITE, RED = (0, 0, 0), (255, 255, 255), (230, 40, 40)
"""Colors of the background, of the ball and the other dots, and of the controlled object."""

ZOOM = 8
"""Scale factor of rendered images."""

MIN_SIDE, MAX_SIDE = 16, 128
"""Pixels of an image's side. Smaller images would be treated as boards; larger ones show no
more."""


class PictureGame(gym.Env[Any, Any]):
    """A game whose observation is an image: bytes (height, width, 3).

    Subclasses draw it in `picture`. Their state is a few attributes that are replaced, never
    modified in place.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012

    def __init__(self, height: int, width: int, actions: int, render_mode: str | None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"unknown render mode {render_mode!r}: choose 'rgb_array'")
        if not MIN_SIDE <= min(height, width) <= max(height, width) <= MAX_SIDE:
            limits = f"{MIN_SIDE} to {MAX_SIDE} pixels high and wide"
            raise ValueError(f"a picture of {height} x {width} pixels does not fit: {limits}")
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 255, (height, width, 3), np.uint8)
        self.action_space = spaces.Discrete(actions)

    def picture(self) -> np.ndarray:
        """Return the image of the current state."""
        raise NotImplementedError

    def render(self) -> Any:
        """Return the image, enlarged by `ZOOM`."""
        if self.render_mode is None:
            return None
        return self.picture().repeat(ZOOM, 0).repeat(ZOOM, 1)

    def _blank(self) -> np.ndarray:
        return np.full(self.observation_space.shape or (), BLACK, np.uint8)

    def _check_action(self, action: Any) -> int:
        if not self.action_space.contains(action):
            raise ValueError(f"there is no action {action!r}: choose one of {self.action_space}")
        return int(action)


class CatchState(NamedTuple):
    """The column and row of the ball, and the column of the paddle in the last row."""

    ball: int
    row: int
    paddle: int


class Catch(PictureGame):
    """A ball falls by one cell per step; the paddle in the last row must be below it at the end.

    The board has `rows` x `columns` cells, which are squares of `tile` pixels.
    """

    def __init__(
        self, *, rows: int = 8, columns: int = 8, tile: int = 4, render_mode: str | None = None
    ) -> None:
        if not 2 <= columns <= rows:
            raise ValueError(
                "some balls cannot be caught: choose at least 2 columns, and as many rows"
            )
        super().__init__(rows * tile, columns * tile, 3, render_mode)
        self.rows, self.columns, self.tile = rows, columns, tile
        self.state: CatchState | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start with the ball in the first row; the columns of ball and paddle are random."""
        super().reset(seed=seed)
        ball, paddle = self.np_random.integers(self.columns, size=2).tolist()
        self.state = CatchState(ball, 0, paddle)
        return self.picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the paddle, then the ball; in the last row it is caught or missed."""
        move = self._check_action(action) - 1
        if self.state is None:
            raise gym.error.ResetNeeded("reset the environment before its first step")
        ball, row, paddle = self.state
        paddle = min(max(paddle + move, 0), self.columns - 1)
        self.state = CatchState(ball, min(row + 1, self.rows - 1), paddle)
        over = self.state.row == self.rows - 1
        reward = (1.0 if ball == paddle else -1.0) if over else 0.0
        return self.picture(), reward, over, False, {}

    def picture(self) -> np.ndarray:
        """Return the image of the paddle, with the ball over it."""
        drawn, tile = self._blank(), self.tile
        if self.state is not None:
            ball, row, paddle = self.state
            drawn[-tile:, paddle * tile : (paddle + 1) * tile] = RED
            drawn[row * tile : (row + 1) * tile, ball * tile : (ball + 1) * tile] = WHITE
        return drawn

    def restore(self, observation: Any) -> bool:
        """Set the state from an image; return False if it is no image of this game."""
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
    """Upper left corners (dots, 2) and velocities (dots, 2), x before y, in pixels."""

    places: tuple[Pair, ...]
    velocities: tuple[Pair, ...]


MAX_SPEED = 2
"""Maximum pixels per step of a dot in each direction, so that consecutive images overlap."""

NUDGES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""The change of the red dot's velocity for each action."""


class MovingDots(PictureGame):
    """Dots move straight and bounce off the sides; actions accelerate the red dot.

    There are `dots` dots of `dot` x `dot` pixels in an image of `size` x `size`. An image does not
    show velocities, so it does not determine the next image.
    """

    def __init__(
        self, *, size: int = 32, dots: int = 2, dot: int = 4, render_mode: str | None = None
    ) -> None:
        super().__init__(size, size, len(NUDGES), render_mode)
        if dots < 1 or not 1 <= dot <= size - MAX_SPEED:
            limits = f"choose at least one dot of 1 to {size - MAX_SPEED} pixels"
            raise ValueError(f"{dots} dots of {dot} pixels: {limits}")
        self.dots, self.dot, self.far = dots, dot, size - dot
        self.state: DotState | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start with random places and velocities."""
        super().reset(seed=seed)
        places = self.np_random.integers(self.far + 1, size=(self.dots, 2)).tolist()
        speeds = self.np_random.integers(-MAX_SPEED, MAX_SPEED + 1, size=(self.dots, 2)).tolist()
        self.state = DotState(*(tuple((x, y) for x, y in part) for part in (places, speeds)))
        return self.picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Accelerate the red dot and move all dots; the reward is 1 if it overlaps another."""
        nudge = NUDGES[self._check_action(action)]
        if self.state is None:
            raise gym.error.ResetNeeded("reset the environment before its first step")
        (own, *places), ((right, down), *velocities) = self.state
        nudged = _clip(right + nudge[0]), _clip(down + nudge[1])
        moved = [
            [self._move(*axis) for axis in zip(place, velocity, strict=True)]
            for place, velocity in zip((own, *places), (nudged, *velocities), strict=True)
        ]
        self.state = DotState(
            tuple((x, y) for (x, _), (y, _) in moved), tuple((u, v) for (_, u), (_, v) in moved)
        )
        (x, y), *others = self.state.places
        touched = any(abs(a - x) < self.dot and abs(b - y) < self.dot for a, b in others)
        return self.picture(), float(touched), False, False, {}

    def _move(self, at: int, speed: int) -> Pair:
        """Return the coordinate and the speed in one direction after a step."""
        there = at + speed
        if there < 0:
            return -there, -speed
        return (2 * self.far - there, -speed) if there > self.far else (there, speed)

    def picture(self) -> np.ndarray:
        """Return the image of the dots, with the red one on top."""
        drawn = self._blank()
        if self.state is not None:
            first, *others = self.state.places
            for (x, y), color in (*((each, WHITE) for each in others), (first, RED)):
                drawn[y : y + self.dot, x : x + self.dot] = color
        return drawn


def _clip(speed: int) -> int:
    return min(max(speed, -MAX_SPEED), MAX_SPEED)
