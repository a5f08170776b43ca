"""Games of the Atari emulator, with changed frames, actions, rewards and ends of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from PIL import Image

GUIDE = """# {name}

The Atari game of this name.

## Observation
A picture: an array of bytes of shape {game.observation_space.shape}, red, green and blue of every \
pixel. Each pixel is the brighter one of the last two frames.

## Actions
{actions}: each is repeated for {game.skip} frames.

## Reward and end
The reward is the points of a step. An episode ends with the game, or with the loss of a life if \
lives count as episodes. It is cut off after {game.max_frames} frames."""


class AtariGame(gym.Env[Any, Any]):
    """An Atari game with the usual simplifications for published agents.

    The README lists the changes in their order. Numbers of frames are frames of the emulator.

    Args:
        name: The id of the environment.
        game: The name of the game, such as "Pong".
        size: Height and width of observations in pixels.
        clip: Replace rewards by their signs.
        max_frames: Frame limit of an episode.
        noops: Maximum number of no-op steps at the start of an episode.
        skip: Number of frames per action.
        lives: End an episode when a life is lost.
        render_mode: None or "rgb_array".

    Raises:
        ValueError: A number is less than 1, or the game or the render mode is unknown.
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
            raise ValueError(
                "size, max_frames, noops and skip must be at least 1, and render_mode 'rgb_array'"
            )
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
        """Start an episode with some no-op steps; a game with remaining lives continues."""
        super().reset(seed=seed)
        frame = None
        if self.over or seed is not None or not self.lives:
            frame = self._resize(self.game.reset(seed=seed)[0])
            self.frames, self.over = 0, False
        for _ in range(int(self.np_random.integers(1, self.noops + 1))):
            frame, _, ended = self._frame(0)
            if ended:
                frame = self._resize(self.game.reset()[0])
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
        """Return the frame of the emulator in its full size."""
        return None if self.render_mode is None else self.game.unwrapped.ale.getScreenRGB()

    def close(self) -> None:
        """Close the emulator."""
        self.game.close()

    def _frame(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Advance the emulator by one frame; return the image, the reward and the end."""
        frame, reward, ended, _, _ = self.game.step(action)
        self.frames += 1
        self.over = bool(ended)
        return self._resize(frame), float(np.sign(reward) if self.clip else reward), bool(ended)

    def _resize(self, frame: np.ndarray) -> np.ndarray:
        picture = Image.fromarray(frame).resize((self.size, self.size), Image.Resampling.BILINEAR)
        return np.asarray(picture, np.uint8)

    def _lives(self) -> int:
        return int(self.game.unwrapped.ale.lives())


class Emulator:
    """Saves and restores the emulator and the counters of the game."""

    how = "emulator"

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self._env: Any = env.unwrapped

    def save(self, *, chance: bool = True) -> Any:
        """Return the state, with the state of the random generators if `chance` is true."""
        env = self._env
        generator = env.np_random.bit_generator.state if chance else None
        state = env.game.unwrapped.ale.cloneState(include_rng=chance)
        return state, env.frames, env.left, env.over, generator

    def load(self, state: Any, *, chance: bool = True) -> None:
        """Restore a saved state, with the random generators if `chance` is true."""
        env = self._env
        emulator_state, env.frames, env.left, env.over, generator = state
        env.game.unwrapped.ale.restoreState(emulator_state)
        if chance and generator is not None:
            env.np_random.bit_generator.state = generator

    def generators(self) -> Sequence[Any]:
        """Return the random generator of the number of no-op steps."""
        return [self._env.np_random]

    def returns(self, states: Sequence[Any], plans: np.ndarray) -> None:
        """Return None: there is no faster method than single steps."""
