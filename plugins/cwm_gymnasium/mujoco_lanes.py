"""Many simulations of one MuJoCo model side by side, on all cores."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import mujoco
import numpy as np

INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION.value
"""All that decides how a simulation goes on, what the solver begins with included."""

try:
    from mujoco.batch import Batch
except ImportError:  # MuJoCo before 4
    Batch = None


class Lanes(Protocol):
    """Simulations by number; `fields` are arrays of `MjData` with a first axis for the number."""

    count: int
    states: np.ndarray
    controls: np.ndarray
    fields: dict[str, np.ndarray]

    def step(self, live: np.ndarray | None) -> None:
        """Advance some simulations by a step of the environment, or all of them."""


def lanes(env: Any, count: int, fields: Sequence[str], *, forces: bool, threads: int) -> Lanes:
    """Return lanes of an environment; contact forces are computed by `Threads` only."""
    kind = Threads if forces or Batch is None else Batched
    return kind(env, count, fields, threads=threads)


def state_of(model: Any, data: Any) -> np.ndarray:
    """Return the state of a simulation."""
    state = np.empty(mujoco.mj_stateSize(model, INTEGRATION))
    mujoco.mj_getState(model, data, state, INTEGRATION)
    return state


class Batched:
    """Lanes that MuJoCo itself steps, from version 4 on."""

    def __init__(self, env: Any, count: int, fields: Sequence[str], *, threads: int) -> None:
        self._batch = Batch(env.model, count, nthread=threads)
        self._frames = env.frame_skip
        self.count = count
        self.states: np.ndarray = self._batch.state
        self.controls: np.ndarray = self._batch.bind("ctrl")
        self.fields = {name: self._batch.bind(name) for name in fields}

    def step(self, live: np.ndarray | None) -> None:
        """Advance some simulations by a step of the environment, or all of them."""
        self._batch.step(live, nstep=self._frames)


class Threads:
    """Lanes that are stepped one by one in threads, as the environment steps itself.

    The functions of MuJoCo let other threads run.
    """

    def __init__(self, env: Any, count: int, fields: Sequence[str], *, threads: int) -> None:
        model = env.model
        before = INTEGRATION & (mujoco.mjtState.mjSTATE_CTRL.value - 1)
        start = mujoco.mj_stateSize(model, before)
        self._model, self._frames = model, env.frame_skip
        self._data = [mujoco.MjData(model) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads)
        self.count = count
        self.states = np.zeros((count, mujoco.mj_stateSize(model, INTEGRATION)))
        self.controls = self.states[:, start : start + model.nu]
        shapes = {name: getattr(self._data[0], name).shape for name in fields}
        self.fields = {name: np.zeros((count, *shape)) for name, shape in shapes.items()}

    def step(self, live: np.ndarray | None) -> None:
        """Advance some simulations by a step of the environment, or all of them."""
        numbers = np.arange(self.count) if live is None else live
        shares = np.array_split(numbers, len(self._data))
        list(self._pool.map(self._step, self._data, shares))

    def _step(self, data: Any, numbers: np.ndarray) -> None:
        model, states = self._model, self.states
        outputs = [(field, getattr(data, name)) for name, field in self.fields.items()]
        for number in numbers.tolist():
            mujoco.mj_setState(model, data, states[number], INTEGRATION)
            mujoco.mj_step(model, data, nstep=self._frames)
            mujoco.mj_rnePostConstraint(model, data)
            mujoco.mj_getState(model, data, states[number], INTEGRATION)
            for field, value in outputs:
                field[number] = value
