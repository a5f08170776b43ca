"""Stand MuJoCo simulations at an observation."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from cwm_gymnasium.layouts import Layout, flat, reader

SPREAD = 0.1
"""How far positions, velocities and controls are moved to see where an observation shows them."""

SAMPLES = 3
"""States that are compared, per number of a state."""

ROUNDS = 150
"""After so many rounds the step before has been found, or is not going to be."""

PATIENCE = 30
"""After every so many rounds the steps of the search are halved: contacts make them overshoot."""

EXACT = 1e-9
"""How near a state the step from the one before has to lead."""


class Simulation:
    """Sets what an observation tells of positions, velocities and controls.

    Some environments compare with what MuJoCo computes within a step and
    leaves behind, such as where a body was at the last stage of the integrator.
    It follows from the step before, so where an observation tells the controls
    of that step it is found and taken again. The solver begins with what it
    found here, nearly what it had found in the step before.
    """

    def __init__(self, env: Any) -> None:
        self._model, self._data = env.model, env.data
        self._layout = self._learned(env, np.random.default_rng(0))
        positions, controls = np.split(self._layout.told, [self._model.nq, -self._model.nu])[::2]
        self._tells = bool(positions.any())
        self._controlled = bool(controls.all() and controls.size)

    def __call__(self, env: Any, observation: Any) -> bool:
        """Stand there; False where the observation does not tell the state."""
        layout, seen = self._layout, flat(observation)
        if not self._tells or seen.shape != layout.shown.shape:
            return False
        state = layout.state(seen)
        self._set(state)
        own = _seen(env)
        if not np.allclose(own[layout.read], seen[layout.read], rtol=1e-5, atol=1e-5):
            return False
        rest = ~layout.read
        if rest.any() and np.allclose(own[rest], seen[rest], rtol=EXACT, atol=EXACT):
            return True  # nothing was left behind by a step: this is how an episode starts
        self._data.qacc_warmstart[:] = self._data.qacc
        if self._controlled:
            self._retrace(state)
        return True

    def _learned(self, env: Any, rng: np.random.Generator) -> Layout:
        """Compare random states with what the environment shows of them."""
        mujoco.mj_resetData(self._model, self._data)
        base = self._state()
        states, seen = [], []
        for _ in range(SAMPLES * (len(base) + 1)):
            self._set(base + rng.uniform(-SPREAD, SPREAD, len(base)))
            states.append(self._state())
            seen.append(_seen(env))
        return Layout.linear(base, np.array(states), np.array(seen))

    def _state(self) -> np.ndarray:
        """Return positions, velocities and controls."""
        return np.concatenate([self._data.qpos, self._data.qvel, self._data.ctrl])

    def _set(self, state: np.ndarray) -> None:
        """Set positions, velocities and controls, and what follows from them; forget the rest."""
        model, data = self._model, self._data
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = np.split(state, [model.nq, model.nq + model.nv])
        mujoco.mj_forward(model, data)

    def _retrace(self, state: np.ndarray) -> None:
        """Take the last step again, from where it leads here; without one all stays as set."""
        model, data = self._model, self._data
        qpos, qvel, _ = np.split(state, [model.nq, model.nq + model.nv])
        start, speed, apart = qpos.copy(), qvel.copy(), np.zeros(model.nv)
        warm = data.qacc_warmstart.copy()
        mujoco.mj_integratePos(model, start, -speed, model.opt.timestep)
        for number in range(ROUNDS):
            data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = start, speed, warm
            mujoco.mj_step(model, data)
            mujoco.mj_differentiatePos(model, apart, 1.0, data.qpos, qpos)
            faster = qvel - data.qvel
            if max(np.abs(apart).max(), model.opt.timestep * np.abs(faster).max()) < EXACT:
                data.qpos[:], data.qvel[:] = qpos, qvel
                return
            share = 0.5 ** (number // PATIENCE)
            mujoco.mj_integratePos(model, start, apart, share)
            speed = speed + share * faster
        self._set(state)
        data.qacc_warmstart[:] = warm


def _seen(env: Any) -> np.ndarray:
    """Return what an environment shows where it stands; nothing where it cannot look at itself."""
    read = reader(env)
    return flat(read()) if read else np.empty(0)
