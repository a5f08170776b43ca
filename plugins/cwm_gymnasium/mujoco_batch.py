"""Save and restore MuJoCo environments, and play many plans in them at once.

`Simulations` run side by side on all cores; `Plays` plays plans in them and computes the rewards
of all together; the rewinder saves all that the integrator uses.
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
"""All that decides how a simulation goes on, what the solver begins with included."""

try:
    from mujoco.batch import Batch
except ImportError:  # MuJoCo before 4
    Batch = None


class Simulations(Protocol):
    """Simulations by number; `fields` are arrays of `MjData` with a first axis for the number."""

    count: int
    states: np.ndarray
    controls: np.ndarray
    fields: dict[str, np.ndarray]

    def step(self, live: np.ndarray | None) -> None:
        """Advance some simulations by a step of the environment, or all of them."""


def lanes(
    env: Any, count: int, fields: Sequence[str], *, forces: bool, threads: int
) -> Simulations:
    """Return lanes of an environment; contact forces are computed by `Threads` only."""
    kind = Threads if forces or Batch is None else Batched
    return kind(env, count, fields, threads=threads)


def state_of(model: Any, data: Any) -> np.ndarray:
    """Return the state of a simulation."""
    state = np.empty(mujoco.mj_stateSize(model, INTEGRATION))
    mujoco.mj_getState(model, data, state, INTEGRATION)
    return state


class Batched:
    """Simulations that MuJoCo itself steps, from version 4 on."""

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
    """Simulations that are stepped one by one in threads, as the environment steps itself.

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


MOST = 4096
"""Simulations side by side."""

TOLERANCE = 1e-6

WANDERED = (0, 2, 10)
"""Steps before the states from which a batch is compared with the environment."""

PLANS, STEPS = 4, 30


class PlayedPlans(NamedTuple):
    """The sums of rewards of plans, and after how many steps each was over."""

    returns: np.ndarray
    steps: np.ndarray


class SimulationRewinder(Protocol):
    """Saves and restores an environment."""

    def save(self) -> Any:
        """Return a state, whose `data` is an `MjData`."""

    def load(self, state: Any) -> None:
        """Go on from a state."""


class Plays:
    """Plays plans in as many simulations, and computes the rewards of all of them together."""

    def __init__(self, env: Any, rewards: Rewards, threads: int) -> None:
        self._env = env
        self._rewards = rewards
        self._threads = threads
        self._lanes: Simulations | None = None

    @classmethod
    def of(cls, env: Any) -> Self | None:
        """Return what plays in an environment, if the rules of its rewards are known."""
        rewards = rewards_of(env)
        return cls(env, rewards, _cores()) if rewards else None

    def __call__(self, starts: Sequence[Any], plans: np.ndarray) -> PlayedPlans:
        """Play plans (starts, plans, steps, components) from each start, an `MjData`."""
        owners = np.repeat(np.arange(len(starts)), plans.shape[1])
        flat = plans.reshape(len(owners), *plans.shape[2:])
        shares = range(0, len(owners), MOST)
        parts = [self._play(starts, owners[i : i + MOST], flat[i : i + MOST]) for i in shares]
        returns, steps = (
            np.concatenate(part).reshape(plans.shape[:2]) for part in zip(*parts, strict=True)
        )
        return PlayedPlans(returns, steps)

    def _play(self, starts: Sequence[Any], owners: np.ndarray, plans: np.ndarray) -> PlayedPlans:
        """Play one plan from each of the owners' starts, side by side."""
        count, horizon = plans.shape[:2]
        rewards, many = self._rewards, self._enough(count)
        many.states[:count] = np.array([state_of(self._env.model, s) for s in starts])[owners]
        view = {f: np.array([getattr(s, f) for s in starts])[owners] for f in rewards.fields}
        measured = rewards.measure(view)
        returns, steps = np.zeros(count), np.full(count, horizon)
        live = np.arange(count, dtype=np.int32)
        for step in range(horizon):
            actions = plans[live, step]
            before, (view, measured) = measured, self._step(many, live, actions)
            gained, ended = rewards.judge(view, before, measured, actions)
            returns[live] += gained
            if ended is not None and ended.any():
                steps[live[ended]] = step + 1
                live, measured = live[~ended], measured[~ended]
                if not len(live):
                    break
        return PlayedPlans(returns, steps)

    def _step(
        self, many: Simulations, live: np.ndarray, actions: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Take actions in the simulations that live; return what the rewards read."""
        everyone = len(live) == many.count
        many.controls[live] = actions
        many.step(None if everyone else live)
        fields = many.fields
        view = {f: fields[f] if everyone else fields[f][live] for f in self._rewards.fields}
        measured = self._rewards.measure(view)
        return view, measured.copy()

    def _enough(self, count: int) -> Simulations:
        """Return at least as many lanes."""
        if self._lanes is None or self._lanes.count < count:
            rewards = self._rewards
            self._lanes = lanes(
                self._env, count, rewards.fields, forces=rewards.forces, threads=self._threads
            )
        return self._lanes


def difference(rewinder: SimulationRewinder, env: Any, plays: Plays | None) -> str:
    """Say how a batch differs from stepping the environment, nothing where it does not."""
    if plays is None:
        return "its rewards have no batched form"
    space = deepcopy(env.action_space)
    space.seed(0)
    home = rewinder.save()
    starts = [_wander(rewinder, env, space, length) for length in WANDERED]
    shape = (len(starts), PLANS, STEPS)
    plans = np.array([space.sample() for _ in range(prod(shape))], float).reshape(*shape, -1)
    played = plays([start.data for start in starts], plans)
    expected = [
        _stepped(rewinder, env, s, plan)
        for s, own in zip(starts, plans, strict=True)
        for plan in own
    ]
    rewinder.load(home)
    returns, steps = zip(*expected, strict=True)
    if played.steps.ravel().tolist() != list(steps):
        return "a batch terminates at different steps than the environment"
    if not np.allclose(played.returns.ravel(), returns, rtol=TOLERANCE, atol=0):
        return "a batch has different returns than the environment"
    return ""


def _wander(rewinder: SimulationRewinder, env: Any, space: Any, length: int) -> Any:
    """Return the state after a few random steps."""
    env.reset()
    for _ in range(length):
        env.step(space.sample())
    return rewinder.save()


def _stepped(
    rewinder: SimulationRewinder, env: Any, state: Any, plan: np.ndarray
) -> tuple[float, int]:
    """Return the sum of rewards of a plan, and after how many steps it was over."""
    rewinder.load(state)
    returned = 0.0
    for step, action in enumerate(plan):
        _, reward, terminated, _, _ = env.step(action)
        returned += reward
        if terminated:
            return returned, step + 1
    return returned, len(plan)


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


ENGINE = frozenset({"model", "data", "mujoco_renderer"})
"""Attributes that an environment keeps for good; what `data` holds is saved on its own."""


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
        if self._plays is None and not self.unbatched:
            try:
                self._plays = Plays.of(self._env)
            except MissingPartError as error:
                warn_once(f"{error}: plans are simulated one at a time, which is slower")
            self.unbatched = difference(self, self._env, self._plays)
        if self.unbatched or self._plays is None:
            return None
        played = self._plays([state.data for state in states], plans)
        return played.returns, int(played.steps.sum())
