"""Save and restore MuJoCo environments, and play many plans in them in parallel.

`Simulations` run on all cores. `BatchPlayer` plays plans in them and computes the rewards of all
plans together. The rewinder `Mujoco` saves the full state, including the integrator's state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import mujoco
import numpy as np

from cwm_cli.envs.simulators import Attributes, Findings
from cwm_cli.private_parts import MissingPartError, warn_once
from cwm_gymnasium.mujoco_rewards import Rewards, rewards_of

if TYPE_CHECKING:
    import gymnasium as gym


INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION.value
"""The full state of a simulation, including the starting point of the solver."""

try:
    from mujoco.batch import Batch
except ImportError:  # MuJoCo before 4
    Batch = None


class Simulations(Protocol):
    """Simulations that run in parallel.

    Attributes:
        count: Number of simulations.
        states: Full states, (count, size of a state).
        controls: Controls, (count, actuators).
        fields: Arrays of `MjData` by name, (count, ...).
    """

    count: int
    states: np.ndarray
    controls: np.ndarray
    fields: dict[str, np.ndarray]

    def step(self, live: np.ndarray | None) -> None:
        """Advance the simulations in `live`, or all simulations, by one environment step."""


def state_of(model: Any, data: Any) -> np.ndarray:
    """Return the full state of a simulation as a vector."""
    state = np.empty(mujoco.mj_stateSize(model, INTEGRATION))
    mujoco.mj_getState(model, data, state, INTEGRATION)
    return state


class BatchSimulations:
    """Simulations stepped by `mujoco.batch`, which needs MuJoCo 4."""

    def __init__(self, env: Any, count: int, fields: Sequence[str], *, threads: int) -> None:
        self._batch = Batch(env.model, count, nthread=threads)
        self._frames = env.frame_skip
        self.count = count
        self.states: np.ndarray = self._batch.state
        self.controls: np.ndarray = self._batch.bind("ctrl")
        self.fields = {name: self._batch.bind(name) for name in fields}

    def step(self, live: np.ndarray | None) -> None:
        """Advance the simulations in `live`, or all simulations, by one environment step."""
        self._batch.step(live, nstep=self._frames)


class ThreadedSimulations:
    """Simulations stepped one by one in threads, by the same calls as in the environment.

    MuJoCo releases the GIL, so threads run in parallel.
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
        """Advance the simulations in `live`, or all simulations, by one environment step."""
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


MAX_SIMULATIONS = 4096
"""Simulations in one batch; more plans are played in several batches."""

PLANS, STEPS = 4, 30
"""Plans from each start state of this comparison, and their length."""


class PlayedPlans(NamedTuple):
    """The results of plans.

    Attributes:
        returns: Sums of rewards, (starts, plans).
        steps: Numbers of steps until the end, (starts, plans).
    """

    returns: np.ndarray
    steps: np.ndarray


class SimulationRewinder(Protocol):
    """Saves and restores an environment."""

    def save(self) -> Any:
        """Return a state with an attribute `data` of type `MjData`."""

    def load(self, state: Any) -> None:
        """Restore a state."""


class BatchPlayer:
    """Plays each plan in its own simulation, and computes the rewards of all plans together."""

    def __init__(self, env: Any, rewards: Rewards, threads: int) -> None:
        self._env = env
        self._rewards = rewards
        self._threads = threads
        self._simulations: Simulations | None = None

    @classmethod
    def of(cls, env: Any) -> Self | None:
        """Return a player for an environment, or None if its reward formula is unknown."""
        rewards = rewards_of(env)
        return cls(env, rewards, _cores()) if rewards else None

    def __call__(self, starts: Sequence[Any], plans: np.ndarray) -> PlayedPlans:
        """Play plans from each start.

        Args:
            starts: States of type `MjData`.
            plans: Actions, (starts, plans, steps, components).
        """
        owners = np.repeat(np.arange(len(starts)), plans.shape[1])
        flat = plans.reshape(len(owners), *plans.shape[2:])
        shares = range(0, len(owners), MAX_SIMULATIONS)
        parts = [
            self._play(starts, owners[i : i + MAX_SIMULATIONS], flat[i : i + MAX_SIMULATIONS])
            for i in shares
        ]
        returns, steps = (
            np.concatenate(part).reshape(plans.shape[:2]) for part in zip(*parts, strict=True)
        )
        return PlayedPlans(returns, steps)

    def _play(self, starts: Sequence[Any], owners: np.ndarray, plans: np.ndarray) -> PlayedPlans:
        """Play plans (plans, steps, components) in one batch; `owners` are numbers of starts."""
        count, horizon = plans.shape[:2]
        rewards, simulations = self._rewards, self._at_least(count)
        simulations.states[:count] = np.array([state_of(self._env.model, s) for s in starts])[
            owners
        ]
        view = {f: np.array([getattr(s, f) for s in starts])[owners] for f in rewards.fields}
        measured = rewards.measure(view)
        returns, steps = np.zeros(count), np.full(count, horizon)
        live = np.arange(count, dtype=np.int32)
        for step in range(horizon):
            actions = plans[live, step]
            before, (view, measured) = measured, self._step(simulations, live, actions)
            gained, ended = rewards.compute(view, before, measured, actions)
            returns[live] += gained
            if ended is not None and ended.any():
                steps[live[ended]] = step + 1
                live, measured = live[~ended], measured[~ended]
                if not len(live):
                    break
        return PlayedPlans(returns, steps)

    def _step(
        self, simulations: Simulations, live: np.ndarray, actions: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Take actions in the live simulations; return the fields and the measure of rewards."""
        all_live = len(live) == simulations.count
        simulations.controls[live] = actions
        simulations.step(None if all_live else live)
        fields = simulations.fields
        view = {f: fields[f] if all_live else fields[f][live] for f in self._rewards.fields}
        measured = self._rewards.measure(view)
        return view, measured.copy()

    def _at_least(self, count: int) -> Simulations:
        """Return `count` or more simulations."""
        if self._simulations is None or self._simulations.count < count:
            rewards = self._rewards
            # only `ThreadedSimulations` compute contact forces
            is_threaded = rewards.forces or Batch is None
            kind = ThreadedSimulations if is_threaded else BatchSimulations
            self._simulations = kind(self._env, count, rewards.fields, threads=self._threads)
        return self._simulations


def batch_difference(rewinder: SimulationRewinder, env: Any, player: BatchPlayer | None) -> str:
    """Return how a batch differs from stepping the environment; empty if both are equal."""
    if player is None:
        return "its rewards have no batched form"
    space = deepcopy(env.action_space)
    space.seed(0)
    saved = rewinder.save()
    steps_to_start = (0, 2, 10)  # random steps before each start state of this comparison
    starts = [_random_state(rewinder, env, space, length) for length in steps_to_start]
    shape = (len(starts), PLANS, STEPS)
    plans = np.array([space.sample() for _ in range(prod(shape))], float).reshape(*shape, -1)
    played = player([start.data for start in starts], plans)
    expected = [
        _play_stepwise(rewinder, env, s, plan)
        for s, own in zip(starts, plans, strict=True)
        for plan in own
    ]
    rewinder.load(saved)
    returns, steps = zip(*expected, strict=True)
    if played.steps.ravel().tolist() != list(steps):
        return "a batch terminates at different steps than the environment"
    # relative tolerance of returns when a batch is compared with the environment
    return_tolerance = 1e-6
    if not np.allclose(played.returns.ravel(), returns, rtol=return_tolerance, atol=0):
        return "a batch has different returns than the environment"
    return ""


def _random_state(rewinder: SimulationRewinder, env: Any, space: Any, length: int) -> Any:
    """Return the state after `length` random steps."""
    env.reset()
    for _ in range(length):
        env.step(space.sample())
    return rewinder.save()


def _play_stepwise(
    rewinder: SimulationRewinder, env: Any, state: Any, plan: np.ndarray
) -> tuple[float, int]:
    """Return the sum of rewards of a plan, and the number of steps until the end."""
    rewinder.load(state)
    returned = 0.0
    for step, action in enumerate(plan):
        _, reward, terminated, _, _ = env.step(action)
        returned += reward
        if terminated:
            return returned, step + 1
    return returned, len(plan)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Snapshot:
    """A saved state; its `MjData` returns to the pool when the state is deleted."""

    __slots__ = ("_pool", "attributes", "data")

    def __init__(self, data: Any, attributes: Any, pool: list[Any]) -> None:
        self.data = data
        self.attributes = attributes
        self._pool = pool

    def __del__(self) -> None:
        self._pool.append(self.data)


class Mujoco:
    """A rewinder that copies the whole `MjData`: some rewards read values of the previous step.

    Creating an `MjData` takes 100 times as long as copying one, so they are kept in a pool.

    Attributes:
        unbatched: Why plans are not played in a batch; empty if they are, or before the first plan.
    """

    how = "mjData"

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        import mujoco

        self._copy, self._make = mujoco.mj_copyData, mujoco.MjData
        self._env: Any = env.unwrapped
        # attributes that an environment never replaces; the content of `data` is saved separately
        engine = frozenset({"model", "data", "mujoco_renderer"})
        self._attributes = Attributes(env, Findings(constant=engine))
        self._pool: list[Any] = []
        self._player: BatchPlayer | None = None
        self.unbatched = ""

    def save(self, *, chance: bool = True) -> Snapshot:
        """Return the full state, as a copy that later steps do not change."""
        env = self._env
        data = self._pool.pop() if self._pool else self._make(env.model)
        self._copy(data, env.model, env.data)
        return Snapshot(data, self._attributes.save(chance=chance), self._pool)

    def load(self, state: Snapshot, *, chance: bool = True) -> None:
        """Restore a saved state; without `chance`, do not change the random generators."""
        self._copy(self._env.data, self._env.model, state.data)
        self._attributes.load(state.attributes, chance=chance)

    def generators(self) -> Sequence[Any]:
        """Return the random generators of the environment, each once."""
        return self._attributes.generators()

    def returns(
        self, states: Sequence[Snapshot], plans: np.ndarray
    ) -> tuple[np.ndarray, int] | None:
        """Play plans in a batch, if that gives the same results as stepping the environment.

        Returns:
            The returns (states, plans) and the total number of steps, or None with the reason in
            `unbatched`.
        """
        if self._player is None and not self.unbatched:
            try:
                self._player = BatchPlayer.of(self._env)
            except MissingPartError as error:
                warn_once(f"{error}: plans are simulated one at a time, which is slower")
            self.unbatched = batch_difference(self, self._env, self._player)
        if self.unbatched or self._player is None:
            return None
        played = self._player([state.data for state in states], plans)
        return played.returns, int(played.steps.sum())
