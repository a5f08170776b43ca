"""The vector environment of `gymnasium.make_vec`: one array operation steps all world models.

A module for NumPy computes the steps. `SyncVectorEnv` returns the same episodes, except for
rounding errors in the last digits. Needs Gymnasium 1.1.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.utils.seeding import np_random

from .environment import WORLD, WorldModelEnv
from .values import plain, typed_batch
from .vector import WorldModelVector

take_steps = import_module(f"{__package__}.{WORLD['batched']}").step


class BatchedWorldModelEnv(WorldModelVector):
    """Steps all environments in the same array operations."""

    def __init__(
        self, num_envs: int = 1, max_episode_steps: int | None = None, **arguments: Any
    ) -> None:
        self._program = WorldModelEnv(**arguments)
        super().__init__(self._program, num_envs, max_episode_steps)
        self._renderers: list[WorldModelEnv] = []
        if self.render_mode is not None:
            self._renderers = [WorldModelEnv(**arguments) for _ in range(num_envs)]
        space = self.single_observation_space
        self._is_number = isinstance(space, Discrete)
        self._plain, self._typed = plain(space), typed_batch(space)
        self._starts = self._states([start["observation"] for start in WORLD["starts"]])
        self._state = np.repeat(self._starts[:1], num_envs, 0)
        self._generators: list[np.random.Generator | None] = [None] * num_envs

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in all environments, or in the ones selected by `reset_mask`."""
        seeds, rest = self._read_reset(seed, options)
        places = [*seeds]
        for place, one in seeds.items():
            if one is not None:
                self._generators[place] = np_random(one)[0]
        self._begin(places)
        if "observation" in rest:
            self._state[places] = self._states([rest["observation"]])
        return self._seen(), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take an action in each environment; one whose episode has ended is reset instead.

        A reset has reward 0 and does not end the episode.
        """
        taken = np.asarray(actions).reshape(self.num_envs, -1)
        taken = taken[:, 0] if isinstance(self.single_action_space, Discrete) else taken
        before, taken = self._state, taken.astype(np.float64 if taken.dtype.kind == "f" else int)
        over = self._over
        draws = (self._draw(~over),) if WORLD["abilities"]["tells"] else ()
        with np.errstate(all="ignore"):
            self._state, rewards, terminated = take_steps(before, taken, *draws)
        if over.any():
            rewards, terminated = np.where(over, 0.0, rewards), terminated & ~over
            self._begin(np.flatnonzero(over).tolist())
        for place in np.flatnonzero(np.isnan(rewards)).tolist():
            result = self._program.predict(before[place], actions[place])
            self._state[place], rewards[place], terminated[place] = result
        if not np.isfinite(self._state).all():
            raise ValueError("the program predicted an observation that is not finite")
        truncated = self._count_step(terminated)
        return self._seen(), rewards, terminated, truncated, {}

    def render(self) -> tuple[Any, ...] | None:
        """Render each environment."""
        if self.render_mode is None:
            return None
        return tuple(
            env.draw(state) for env, state in zip(self._renderers, self._state, strict=True)
        )

    def close_extras(self, **arguments: Any) -> None:
        """Close all renderers."""
        for env in self._renderers:
            env.close()

    def _states(self, observations: Sequence[Any]) -> np.ndarray:
        """Return observations as states: (environments, components), or numbers."""
        plain_values = [np.ravel(self._plain(each)) for each in observations]
        return np.array([each[0] if self._is_number else each for each in plain_values])

    def _begin(self, places: Sequence[int]) -> None:
        """Set the states of some environments to recorded initial observations."""
        count = len(self._starts)
        self._state[places] = self._starts[[self._rng(i).integers(count) for i in places]]

    def _draw(self, mask: np.ndarray) -> np.ndarray:
        """Return a random number from 0 to 1 for each environment of a mask."""
        draws = np.zeros(self.num_envs)
        draws[mask] = [self._rng(place).random() for place in np.flatnonzero(mask).tolist()]
        return draws

    def _rng(self, place: int) -> np.random.Generator:
        generator = self._generators[place]
        if generator is None:
            generator = self._generators[place] = np_random()[0]
        return generator

    def _seen(self) -> Any:
        """Return the states as an element of the batched space."""
        if self.render_mode == "human":
            self.render()
        return self._typed(self._state)
