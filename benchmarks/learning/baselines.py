"""Baselines: the steps that deep and tabular reinforcement learning need to reach a return.

DQN, PPO and SAC are the implementations of stable-baselines3 (extra `rl`) with the tuned settings
of its zoo, if it has some. Environments with few states have tabular Q-learning (Watkins 1989) too.
Ten fresh episodes are played greedily at a fixed interval of steps. The result is the first step
at which their mean reaches the return. A baseline that takes 300,000 steps, or the time limit,
has not reached it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from benchmarks.learning.goals import Goal
from cwm_cli.registry import environment

EPISODES = 10
MAX_STEPS = 300_000
TABLE = "tabular Q"
EXPLORATION, LEARNING_RATE, DISCOUNT = 0.1, 0.5, 0.99
"""Settings of Q-learning: fraction of random actions, step size, discount."""


class Setting(NamedTuple):
    """Settings of an algorithm in an environment.

    Attributes:
        arguments: Arguments of the algorithm.
        steps: Number of training steps.
        every: Number of steps between evaluations.
        copies: Number of parallel environments.
        normalised: Whether observations and rewards are scaled to mean 0 and deviation 1.
        linear: Arguments that decrease linearly to 0 over `steps`.
    """

    arguments: dict[str, Any]
    steps: int = 300_000
    every: int = 500
    copies: int = 1
    normalised: bool = False
    linear: Sequence[str] = ()


WIDE = {"policy_kwargs": {"net_arch": [256, 256]}}
GRID = Setting(
    {
        "learning_rate": 1e-3,
        "buffer_size": 50_000,
        "learning_starts": 500,
        "batch_size": 64,
        "target_update_interval": 500,
        "exploration_final_eps": 0.1,
    }
)
"""Settings for grids, which the zoo does not have: DQN with a larger step size."""

ROOM = Setting(
    {
        "n_steps": 128,
        "batch_size": 64,
        "n_epochs": 10,
        "learning_rate": 2.5e-4,
        "clip_range": 0.2,
    },
    every=1000,
    copies=8,
)

SETTINGS: dict[tuple[str, str], Setting] = {
    ("CartPole-v1", "PPO"): Setting(
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
        },
        steps=100_000,
        every=1000,
        copies=8,
        linear=("learning_rate", "clip_range"),
    ),
    ("CartPole-v1", "DQN"): Setting(
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            **WIDE,
        },
        steps=50_000,
    ),
    ("MountainCar-v0", "DQN"): Setting(
        {
            "learning_rate": 4e-3,
            "batch_size": 128,
            "buffer_size": 10_000,
            "learning_starts": 1000,
            "gamma": 0.98,
            "target_update_interval": 600,
            "train_freq": 16,
            "gradient_steps": 8,
            "exploration_fraction": 0.2,
            "exploration_final_eps": 0.07,
            **WIDE,
        },
        steps=120_000,
        every=1000,
    ),
    ("MountainCar-v0", "PPO"): Setting(
        {"n_steps": 16, "gae_lambda": 0.98, "n_epochs": 4},
        steps=1_000_000,
        every=1000,
        copies=16,
        normalised=True,
    ),
    ("Acrobot-v1", "DQN"): Setting(
        {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "target_update_interval": 250,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
            **WIDE,
        },
        steps=100_000,
    ),
    ("Acrobot-v1", "PPO"): Setting(
        {"n_steps": 256, "gae_lambda": 0.94, "n_epochs": 4},
        steps=1_000_000,
        every=1000,
        copies=16,
        normalised=True,
    ),
    ("Pendulum-v1", "SAC"): Setting({"learning_rate": 1e-3}, steps=20_000),
    ("Pendulum-v1", "PPO"): Setting(
        {
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "learning_rate": 1e-3,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
        steps=100_000,
        every=1000,
        copies=4,
    ),
    ("FrozenLake-v1", "DQN"): GRID,
    ("CliffWalking-v1", "DQN"): GRID,
    ("Taxi-v4", "DQN"): GRID,
    ("InvertedPendulum-v5", "SAC"): Setting({"learning_starts": 10_000}),
    ("InvertedPendulum-v5", "PPO"): Setting(
        {
            "n_steps": 32,
            "batch_size": 64,
            "gamma": 0.999,
            "learning_rate": 2.22425e-4,
            "ent_coef": 1.37976e-7,
            "clip_range": 0.4,
            "n_epochs": 5,
            "gae_lambda": 0.9,
            "max_grad_norm": 0.3,
            "vf_coef": 0.19816,
        },
        every=1000,
        normalised=True,
    ),
    ("InvertedDoublePendulum-v5", "SAC"): Setting({"learning_starts": 10_000}),
    ("Reacher-v5", "SAC"): Setting({"learning_starts": 10_000}),
    ("MiniGrid-Empty-5x5-v0", "PPO"): ROOM,
    ("MiniGrid-DoorKey-5x5-v0", "PPO"): ROOM,
    ("MiniGrid-Unlock-v0", "PPO"): ROOM,
    ("MiniGrid-Fetch-6x6-N2-v0", "PPO"): ROOM,
    ("MiniGrid-UnlockPickup-v0", "PPO"): ROOM,
}

Act = Callable[[np.ndarray], Any]
"""A policy: it returns an action for each observation."""


class Stopped(Exception):
    """Training is over: the return or a limit is reached."""


class Outcome(NamedTuple):
    """Steps at which the return was reached, steps taken, best mean return, and seconds."""

    hit: int | None
    steps: int
    best: float
    seconds: float


class Evaluator:
    """Plays fresh episodes at an interval of steps; raises `Stopped` if training is over."""

    def __init__(self, goal: Goal, returned: float, seed: int, seconds: float, every: int) -> None:
        self._envs = [make_env(goal) for _ in range(EPISODES)]
        self._returned, self._seconds, self._every = returned, seconds, every
        self._began, self._evaluation_seconds, self._last = time.monotonic(), 0.0, 0
        self._seed = 10_000_000 + 1_000_000 * seed
        self.steps, self.best, self.hit = 0, -np.inf, None

    def update(self, steps: int, act: Act) -> None:
        """Evaluate the policy if the interval is over."""
        self.steps = steps
        if steps - self._last < self._every:
            return
        self._last, began = steps, time.monotonic()
        mean = self._play(act)
        self._evaluation_seconds += time.monotonic() - began
        self.best = max(self.best, mean)
        if mean >= self._returned:
            self.hit = steps
            raise Stopped
        if steps >= MAX_STEPS or self.seconds > self._seconds:
            raise Stopped

    @property
    def seconds(self) -> float:
        """Seconds of training, without evaluations."""
        return time.monotonic() - self._began - self._evaluation_seconds

    @property
    def outcome(self) -> Outcome:
        """The result of the training."""
        return Outcome(self.hit, self.steps, float(self.best), round(self.seconds, 1))

    def _play(self, act: Act) -> float:
        """Return the mean return of episodes that run in parallel."""
        observations = [
            env.reset(seed=self._seed + 10 * self.steps + place)[0]
            for place, env in enumerate(self._envs)
        ]
        live, returns = list(range(EPISODES)), np.zeros(EPISODES)
        while live:
            actions, going = act(np.array([observations[n] for n in live])), []
            for action, n in zip(actions, live, strict=True):
                observations[n], reward, terminated, truncated, _ = self._envs[n].step(action)
                returns[n] += float(reward)
                going += [] if terminated or truncated else [n]
            live = going
        return float(returns.mean())


def make_env(goal: Goal) -> gym.Env[Any, Any]:
    """Make an environment with numeric observations and a step limit."""
    if goal.env.startswith("MiniGrid"):
        from minigrid.wrappers import FlatObsWrapper  # as in the zoo, with the mission

        return FlatObsWrapper(gym.make(goal.env, **goal.args))  # type: ignore[no-any-return]
    env = environment(goal.env).make(**goal.args)
    limited = env.spec is not None and env.spec.max_episode_steps
    return env if limited else gym.wrappers.TimeLimit(env, 200)


def algorithms(goal: Goal) -> list[str]:
    """Return the algorithms that have settings for the environment."""
    deep = [algorithm for env, algorithm in SETTINGS if env == goal.env]
    with_table = goal.env in ("FrozenLake-v1", "CliffWalking-v1", "Taxi-v4")
    return [*deep, *([TABLE] if with_table else [])]


def measure_baseline(
    goal: Goal, returned: float, algorithm: str, seed: int, seconds: float
) -> Outcome:
    """Train an algorithm until its play reaches the return, or a limit is reached."""
    if algorithm == TABLE:
        return _tabular(goal, Evaluator(goal, returned, seed, seconds, 100), seed)
    setting = SETTINGS[goal.env, algorithm]
    return _deep(goal, Evaluator(goal, returned, seed, seconds, setting.every), algorithm, seed)


def _tabular(goal: Goal, evaluator: Evaluator, seed: int) -> Outcome:
    """Train tabular Q-learning."""
    env, rng = make_env(goal), np.random.default_rng(seed)
    spaces: Any = (env.observation_space, env.action_space)
    values = np.zeros([int(space.n) for space in spaces])
    here, _ = env.reset(seed=seed)
    with suppress(Stopped):
        for step in range(1, MAX_STEPS + 1):
            best = np.flatnonzero(values[here] == values[here].max())
            action = int(rng.choice(best))
            if rng.random() < EXPLORATION:
                action = int(rng.integers(values.shape[1]))
            after, reward, terminated, truncated, _ = env.step(action)
            target = float(reward) + (0 if terminated else DISCOUNT * values[after].max())
            values[here, action] += LEARNING_RATE * (target - values[here, action])
            here = env.reset()[0] if terminated or truncated else after
            evaluator.update(step, lambda seen: values[seen].argmax(axis=1))
    return evaluator.outcome


def _deep(goal: Goal, evaluator: Evaluator, algorithm: str, seed: int) -> Outcome:
    """Train an algorithm of stable-baselines3."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

    torch.set_num_threads(1)
    setting = SETTINGS[goal.env, algorithm]
    arguments = dict(setting.arguments)
    for name in setting.linear:
        arguments[name] = (lambda initial: lambda left: initial * left)(arguments[name])
    envs: VecEnv = DummyVecEnv([lambda: make_env(goal)] * setting.copies)
    if setting.normalised:
        envs = VecNormalize(envs, gamma=arguments.get("gamma", 0.99))
    learner = getattr(stable_baselines3, algorithm)(
        "MlpPolicy", envs, seed=seed, device="cpu", **arguments
    )

    def act(seen: np.ndarray) -> Any:
        scaled = envs.normalize_obs(seen) if isinstance(envs, VecNormalize) else seen
        return learner.predict(scaled, deterministic=True)[0]

    class EvaluationCallback(BaseCallback):  # type: ignore[misc]
        """Evaluates the policy between updates; PPO updates it after each rollout."""

        def _on_step(self) -> bool:
            if algorithm != "PPO":
                evaluator.update(self.num_timesteps, act)
            return True

        def _on_rollout_start(self) -> None:
            if algorithm == "PPO":
                evaluator.update(self.num_timesteps, act)

    with suppress(Stopped):
        learner.learn(total_timesteps=setting.steps, callback=EvaluationCallback())
    return evaluator.outcome
