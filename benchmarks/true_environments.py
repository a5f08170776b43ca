"""Planning in true environments, with our planners and with the published ones."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.published import Copied, Entropy, cem, mcts
from benchmarks.world_models import Act
from cwm_cli.envs.simulators import simulator
from cwm_cli.planning import Decider, Moment, find_planner
from cwm_cli.registry import environment


def trees(env_id: str) -> Act:
    """Return the published tree search."""
    env: Any = gym.make(env_id).unwrapped

    def act(number: int) -> int:
        env.reset(seed=number)
        return mcts(Copied(env), range(int(env.action_space.n)), Random(number)).steps

    return act


def plans(env_id: str, entropy: Entropy) -> Act:
    """Return the published cross-entropy method; it restores states exactly."""
    spec = environment(env_id)
    env: Any = spec.make().unwrapped
    assert spec.rewinder is not None
    model = _SavedEnvironment(env, spec.rewinder(env))
    bounds = env.action_space.low.astype(float), env.action_space.high.astype(float)

    def act(number: int) -> int:
        env.reset(seed=number)
        return cem(model, bounds, np.random.default_rng(number), entropy).steps

    return act


def bare_steps(env_id: str, lanes: int) -> Act:
    """Return a function that takes 100 steps of MuJoCo in `lanes` lanes, from C on all cores."""
    import mujoco
    from mujoco.batch import Batch

    env: Any = gym.make(env_id).unwrapped
    kind = mujoco.mjtState.mjSTATE_INTEGRATION.value
    batch = Batch(env.model, lanes, nthread=len(os.sched_getaffinity(0)))
    controls = batch.bind("ctrl")
    state = np.zeros(mujoco.mj_stateSize(env.model, kind))

    def act(number: int) -> int:
        env.reset(seed=number)
        mujoco.mj_getState(env.model, env.data, state, kind)
        batch.state[:] = state
        controls[:] = np.random.default_rng(number).uniform(-1, 1, controls.shape)
        for _ in range(100):
            batch.step(nstep=env.frame_skip)
        return 100 * lanes

    return act


def planner_session(
    env_id: str, planner: str, **options: Any
) -> Callable[[], AbstractContextManager[Act]]:
    """Return a function that opens a planner with the preset `paper` in a true environment."""

    @contextmanager
    def ours() -> Iterator[Act]:
        model, env = simulator(environment(env_id), {}, 0), gym.make(env_id)
        decider = Decider([find_planner(planner)(preset="paper", **options)], model, seed=0)

        def act(number: int) -> int:
            before, (observation, _) = model.counter[0], env.reset(seed=number)
            decider.plan([Moment(number, 0, model.state_of(env, observation), 200)])
            return model.counter[0] - before

        yield act

    return ours


class _SavedEnvironment:
    """A true environment whose state can be saved and restored exactly."""

    def __init__(self, env: Any, rewinder: Any) -> None:
        self.step = env.step
        self.save, self.load = rewinder.save, rewinder.load
