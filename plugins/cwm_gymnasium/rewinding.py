"""Save and restore environments that simulate with MuJoCo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cwm_cli.envs.simulators import Attributes, Findings

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_gymnasium.mujoco_batch import Plays

ENGINE = frozenset({"model", "data", "mujoco_renderer"})
"""Attributes that an environment keeps for good; what `data` holds is saved on its own."""


def rewinder(env: gym.Env[Any, Any]) -> Mujoco | None:
    """Return what saves and restores an environment, if it simulates with MuJoCo."""
    kinds = [type(getattr(env.unwrapped, name, None)).__name__ for name in ("model", "data")]
    return Mujoco(env) if kinds == ["MjModel", "MjData"] else None


class Snapshot:
    """A saved state; its `MjData` is used again once nobody needs the state."""

    __slots__ = ("_pool", "attributes", "data")

    def __init__(self, data: Any, attributes: Any, pool: list[Any]) -> None:
        self.data = data
        self.attributes = attributes
        self._pool = pool

    def __del__(self) -> None:
        self._pool.append(self.data)


class Mujoco:
    """Copies the whole `MjData`: some rewards read what the step before has left there.

    Making one takes a hundred times as long as copying one, so they are pooled.
    """

    how = "mjData"

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        import mujoco

        self._copy, self._make = mujoco.mj_copyData, mujoco.MjData
        self._env: Any = env.unwrapped
        self._attributes = Attributes(env, Findings(constant=ENGINE))
        self._pool: list[Any] = []
        self._plays: Plays | None = None
        self.unbatched = ""

    def save(self, *, chance: bool = True) -> Snapshot:
        """Return all that decides how the environment goes on; later steps never change it."""
        env = self._env
        data = self._pool.pop() if self._pool else self._make(env.model)
        self._copy(data, env.model, env.data)
        return Snapshot(data, self._attributes.save(chance=chance), self._pool)

    def load(self, state: Snapshot, *, chance: bool = True) -> None:
        """Go on from a saved state; without `chance` the random generators stay as they are."""
        self._copy(self._env.data, self._env.model, state.data)
        self._attributes.load(state.attributes, chance=chance)

    def generators(self) -> Sequence[Any]:
        """Return the random generators that the environment draws from, each once."""
        return self._attributes.generators()

    def returns(
        self, states: Sequence[Snapshot], plans: np.ndarray
    ) -> tuple[np.ndarray, int] | None:
        """Return the sums of rewards of plans, all at once, where that gives what stepping does.

        Where it does not, `unbatched` says why.
        """
        from cwm_gymnasium.mujoco_batch import Plays, difference

        if self._plays is None and not self.unbatched:
            self._plays = Plays.of(self._env)
            self.unbatched = difference(self, self._env, self._plays)
        if self.unbatched or self._plays is None:
            return None
        played = self._plays([state.data for state in states], plans)
        return played.returns, int(played.steps.sum())
