"""The vector environment of `gymnasium.make_vec`: several world models in one process.

`SyncVectorEnv` returns exactly the same episodes, but has wrappers around each single
environment. It needs Gymnasium 1.1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from .environment import WorldModelEnv


class WorldModelVector(VectorEnv[Any, Any, Any]):
    """The spaces, seeds and lengths of `num_envs` episodes; `first` is one of the environments.

    With an integer seed, environment i gets seed + i. Each gives the same episodes as a single
    environment with its seed. The step after the end of an episode resets it.
    """

    def __init__(self, first: WorldModelEnv, num_envs: int, limit: int | None) -> None:
        self.num_envs, self._limit = num_envs, limit
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, num_envs)
        self.action_space = batch_space(first.action_space, num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._over = np.zeros(num_envs, np.bool_)

    def _read_reset(
        self, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[dict[int, int | None], dict[str, Any]]:
        """Begin to count the episodes to reset; return their seeds by place, and other options."""
        seeds = [seed + place for place in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None and len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        rest = dict(options or {})
        mask = rest.pop("reset_mask", np.ones(self.num_envs, np.bool_))
        self._lengths[mask], self._over[mask] = 0, False
        places = np.flatnonzero(mask).tolist()
        return {place: None if seeds is None else seeds[place] for place in places}, rest

    def _count_step(self, terminated: np.ndarray) -> np.ndarray:
        """Count a step of each environment, and return which ones the time limit truncates."""
        self._lengths = np.where(self._over, 0, self._lengths + 1)
        truncated = np.zeros(self.num_envs, np.bool_)
        if self._limit is not None:
            truncated = self._lengths >= self._limit
        self._over = terminated | truncated
        return truncated


class WorldModelVectorEnv(WorldModelVector):
    """Steps the environments one after the other."""

    def __init__(
        self, num_envs: int = 1, max_episode_steps: int | None = None, **arguments: Any
    ) -> None:
        self.envs = [WorldModelEnv(**arguments) for _ in range(num_envs)]
        super().__init__(self.envs[0], num_envs, max_episode_steps)
        self._is_array = isinstance(self.observation_space, Box | MultiDiscrete)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in all environments, or in the ones selected by `reset_mask`."""
        seeds, rest = self._read_reset(seed, options)
        infos: dict[str, Any] = {}
        for place, one in seeds.items():
            _, info = self.envs[place].reset(seed=one, options=rest or None)
            infos = self._gathered(infos, info, place)
        return self._together([env.seen() for env in self.envs]), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take an action in each environment; one whose episode has ended is reset instead.

        A reset has reward 0 and does not end the episode.
        """
        rewards = np.zeros(self.num_envs)
        terminated = np.zeros(self.num_envs, np.bool_)
        observations: list[Any] = []
        infos: dict[str, Any] = {}
        each = actions if isinstance(actions, np.ndarray) else iterate(self.action_space, actions)
        for place, action in enumerate(each):
            env = self.envs[place]
            if self._over[place]:
                seen, info = env.reset()
            else:
                seen, rewards[place], terminated[place], _, info = env.step(action)
            observations.append(seen)
            if info:
                infos = self._gathered(infos, info, place)
        truncated = self._count_step(terminated)
        return self._together(observations), rewards, terminated, truncated, infos

    def render(self) -> tuple[Any, ...] | None:
        """Render each environment."""
        return None if self.render_mode is None else tuple(env.render() for env in self.envs)

    def close_extras(self, **arguments: Any) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()

    def _gathered(self, infos: dict[str, Any], info: dict[str, Any], place: int) -> dict[str, Any]:
        """Add the info of one environment; the mask `_name` marks environments that have `name`."""
        for name, value in info.items():
            if name not in infos:
                is_array = isinstance(value, np.ndarray)
                shape, dtype = (value.shape, value.dtype) if is_array else ((), np.dtype(object))
                infos[name] = np.zeros((self.num_envs, *shape), dtype)
                infos[f"_{name}"] = np.zeros(self.num_envs, np.bool_)
            infos[name][place], infos[f"_{name}"][place] = value, True
        return infos

    def _together(self, observations: list[Any]) -> Any:
        """Return the observations as one element of the batched space."""
        if self._is_array:
            return np.array(observations, self.single_observation_space.dtype)
        space = self.single_observation_space
        batch: Any = create_empty_array(space, self.num_envs)
        return concatenate(space, observations, batch)
