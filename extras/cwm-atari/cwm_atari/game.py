"""A game of the emulator, and what is done to its frames, actions, rewards and ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from PIL import Image

GUIDE = """# {name}

The Atari game of this name, as its emulator plays it.

## Observation
A picture: an array of bytes of shape {game.observation_space.shape}, red, green and blue of every \
pixel. Of the last two frames each pixel is the brighter one.

## Actions
{actions}: each is repeated for {game.skip} frames.

## Reward and end
The points that a step brings. An episode ends with the game, or with a life where lives count as \
episodes; it is cut off after {game.max_frames} frames."""


class AtariGame(gym.Env[Any, Any]):
    """Plays a game by frames of 64 x 64 pixels, with all that published agents have it made easy.

    The order of what is done is that of the README; a number of frames is one of the emulator's.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(  # noqa: PLR0913
        self,
        name: str,
        game: str,
        *,
        size: int = 64,
        clip: bool = False,
        max_frames: int = 20_000,
        noops: int = 30,
        skip: int = 4,
        lives: bool = True,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array") or min(size, max_frames, noops, skip) < 1:
            raise ValueError("size, max_frames, noops and skip are 1 or more, pictures rgb_array")
        gym.register_envs(ale_py)
        try:
            self.game: Any = gym.make(
                f"ALE/{game}-v5",
                frameskip=1,
                repeat_action_probability=0.0,
                disable_env_checker=True,
                max_episode_steps=-1,
            )
        except gym.error.Error as error:
            raise ValueError(f"the emulator has no such game ({error})") from error
        self.name, self.render_mode, self.size, self.clip = name, render_mode, size, clip
        self.max_frames, self.noops, self.skip, self.lives = max_frames, noops, skip, lives
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = spaces.Discrete(int(self.game.action_space.n))
        self.spec = gym.envs.registration.EnvSpec(
            name, entry_point=AtariGame, max_episode_steps=None, disable_env_checker=True
        )
        self.frames, self.left, self.over = 0, 0, True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin with some steps of doing nothing; a game of which a life is left goes on."""
        super().reset(seed=seed)
        frame = None
        if self.over or seed is not None or not self.lives:
            frame = self._small(self.game.reset(seed=seed)[0])
            self.frames, self.over = 0, False
        for _ in range(int(self.np_random.integers(1, self.noops + 1))):
            frame, _, ended = self._frame(0)
            if ended:
                frame = self._small(self.game.reset()[0])
                self.frames, self.over = 0, False
        self.left = self._lives()
        return frame, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeat an action; return the brighter of the last two frames, and the sum of rewards."""
        seen: list[np.ndarray] = []
        total, ended = 0.0, False
        while len(seen) < self.skip and not ended and self.frames < self.max_frames:
            frame, reward, ended = self._frame(int(action))
            seen.append(frame)
            total += reward
        left, self.left = self.left, self._lives()
        lost = self.lives and self.left < left
        cut = not ended and self.frames >= self.max_frames
        self.over = self.over or cut
        return np.max(seen[-2:], axis=0), total, ended or lost, cut, {}

    def render(self) -> Any:
        """Return the frame as the emulator has it."""
        return None if self.render_mode is None else self.game.unwrapped.ale.getScreenRGB()

    def close(self) -> None:
        """Let go of the emulator."""
        self.game.close()

    def _frame(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Take a step of the emulator."""
        frame, reward, ended, _, _ = self.game.step(action)
        self.frames += 1
        self.over = bool(ended)
        return self._small(frame), float(np.sign(reward) if self.clip else reward), bool(ended)

    def _small(self, frame: np.ndarray) -> np.ndarray:
        picture = Image.fromarray(frame).resize((self.size, self.size), Image.Resampling.BILINEAR)
        return np.asarray(picture, np.uint8)

    def _lives(self) -> int:
        return int(self.game.unwrapped.ale.lives())


class Emulator:
    """Saves and restores the emulator, and what is counted beside it."""

    how = "emulator"

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self._env: Any = env.unwrapped

    def save(self, *, chance: bool = True) -> Any:
        """Return all that decides how a game goes on."""
        env = self._env
        drawn = env.np_random.bit_generator.state if chance else None
        state = env.game.unwrapped.ale.cloneState(include_rng=chance)
        return state, env.frames, env.left, env.over, drawn

    def load(self, state: Any, *, chance: bool = True) -> None:
        """Go on from a saved state."""
        env = self._env
        emulated, env.frames, env.left, env.over, drawn = state
        env.game.unwrapped.ale.restoreState(emulated)
        if chance and drawn is not None:
            env.np_random.bit_generator.state = drawn

    def generators(self) -> Sequence[Any]:
        """Return the generator that numbers of steps of doing nothing are drawn from."""
        return [self._env.np_random]

    def returns(self, states: Sequence[Any], plans: np.ndarray) -> None:
        """Know no faster way than to step."""
