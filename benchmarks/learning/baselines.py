"""Deep and tabular reinforcement learning on the same axis: steps until play returns enough.

DQN, PPO and SAC are those of stable-baselines3 (extra `rl`) with the tuned settings of its zoo
where that has some, and Q-learning in a table where situations can be counted. Ten fresh
episodes are played greedily every so many steps; the first time that their mean reaches the
return counts. Each is stopped after 300,000 steps or so many seconds, and has not reached it then.
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
LONGEST = 300_000
TABLE = "tabular Q"
EXPLORATION, RATE, DISCOUNT = 0.1, 0.5, 0.99
"""Of Q-learning: the share of random actions, the step size, the discount."""


class Setting(NamedTuple):
    """How an algorithm is run in an environment: its arguments, and every how many steps it plays.

    `linear` arguments fall to 0 in the course of `steps`; `normalised` observations and rewards
    have mean 0 and spread 1 so far.
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
"""The zoo has nothing for grids: DQN with a larger step size."""

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
"""Chooses an action for each of several observations."""


class Reached(Exception):
    """Play returns enough."""


class Outcome(NamedTuple):
    """The steps after which play first returned enough, those that were taken, and the best."""

    hit: int | None
    steps: int
    best: float
    seconds: float


class Judge:
    """Plays fresh episodes every so many steps; `Reached` when they return enough."""

    def __init__(self, goal: Goal, returned: float, seed: int, seconds: float, every: int) -> None:
        self._envs = [made(goal) for _ in range(EPISODES)]
        self._returned, self._seconds, self._every = returned, seconds, every
        self._began, self._playing, self._last = time.monotonic(), 0.0, 0
        self._seed = 10_000_000 + 1_000_000 * seed
        self.steps, self.best, self.hit = 0, -np.inf, None

    def at(self, steps: int, act: Act) -> None:
        """Play if it is time."""
        self.steps = steps
        if steps - self._last < self._every:
            return
        self._last, began = steps, time.monotonic()
        mean = self._play(act)
        self._playing += time.monotonic() - began
        self.best = max(self.best, mean)
        if mean >= self._returned:
            self.hit = steps
            raise Reached
        if steps >= LONGEST or self.seconds > self._seconds:
            raise Reached

    @property
    def seconds(self) -> float:
        """How long was learned."""
        return time.monotonic() - self._began - self._playing

    @property
    def outcome(self) -> Outcome:
        """What came of it."""
        return Outcome(self.hit, self.steps, float(self.best), round(self.seconds, 1))

    def _play(self, act: Act) -> float:
        """Return the mean return of episodes that are stepped together."""
        seen = [
            env.reset(seed=self._seed + 10 * self.steps + place)[0]
            for place, env in enumerate(self._envs)
        ]
        live, returns = list(range(EPISODES)), np.zeros(EPISODES)
        while live:
            actions, going = act(np.array([seen[n] for n in live])), []
            for action, n in zip(actions, live, strict=True):
                seen[n], reward, terminated, truncated, _ = self._envs[n].step(action)
                returns[n] += float(reward)
                going += [] if terminated or truncated else [n]
            live = going
        return float(returns.mean())


def made(goal: Goal) -> gym.Env[Any, Any]:
    """Make an environment as these algorithms take it: numbers only, and an end to episodes."""
    if goal.env.startswith("MiniGrid"):
        from minigrid.wrappers import FlatObsWrapper  # the zoo's view of it, mission included

        return FlatObsWrapper(gym.make(goal.env, **goal.args))  # type: ignore[no-any-return]
    env = environment(goal.env).make(**goal.args)
    limited = env.spec is not None and env.spec.max_episode_steps
    return env if limited else gym.wrappers.TimeLimit(env, 200)


def algorithms(goal: Goal) -> list[str]:
    """Return those that there are settings for."""
    deep = [algorithm for env, algorithm in SETTINGS if env == goal.env]
    with_table = goal.env in ("FrozenLake-v1", "CliffWalking-v1", "Taxi-v4")
    return [*deep, *([TABLE] if with_table else [])]


def reached(goal: Goal, returned: float, algorithm: str, seed: int, seconds: float) -> Outcome:
    """Learn until play returns enough, or the limits are reached."""
    if algorithm == TABLE:
        return _tabular(goal, Judge(goal, returned, seed, seconds, 100), seed)
    setting = SETTINGS[goal.env, algorithm]
    return _deep(goal, Judge(goal, returned, seed, seconds, setting.every), algorithm, seed)


def _tabular(goal: Goal, judge: Judge, seed: int) -> Outcome:
    """Learn the values of a table."""
    env, rng = made(goal), np.random.default_rng(seed)
    spaces: Any = (env.observation_space, env.action_space)
    values = np.zeros([int(space.n) for space in spaces])
    here, _ = env.reset(seed=seed)
    with suppress(Reached):
        for step in range(1, LONGEST + 1):
            best = np.flatnonzero(values[here] == values[here].max())
            action = int(rng.choice(best))
            if rng.random() < EXPLORATION:
                action = int(rng.integers(values.shape[1]))
            after, reward, terminated, truncated, _ = env.step(action)
            target = float(reward) + (0 if terminated else DISCOUNT * values[after].max())
            values[here, action] += RATE * (target - values[here, action])
            here = env.reset()[0] if terminated or truncated else after
            judge.at(step, lambda seen: values[seen].argmax(axis=1))
    return judge.outcome


def _deep(goal: Goal, judge: Judge, algorithm: str, seed: int) -> Outcome:
    """Learn with stable-baselines3."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

    torch.set_num_threads(1)
    setting = SETTINGS[goal.env, algorithm]
    arguments = dict(setting.arguments)
    for name in setting.linear:
        arguments[name] = (lambda first: lambda left: first * left)(arguments[name])
    envs: VecEnv = DummyVecEnv([lambda: made(goal)] * setting.copies)
    if setting.normalised:
        envs = VecNormalize(envs, gamma=arguments.get("gamma", 0.99))
    learner = getattr(stable_baselines3, algorithm)(
        "MlpPolicy", envs, seed=seed, device="cpu", **arguments
    )

    def act(seen: np.ndarray) -> Any:
        told = envs.normalize_obs(seen) if isinstance(envs, VecNormalize) else seen
        return learner.predict(told, deterministic=True)[0]

    class Judging(BaseCallback):  # type: ignore[misc]
        """Has play judged: between updates, as a policy is another one in the midst of them."""

        def _on_step(self) -> bool:
            if algorithm != "PPO":
                judge.at(self.num_timesteps, act)
            return True

        def _on_rollout_start(self) -> None:
            if algorithm == "PPO":
                judge.at(self.num_timesteps, act)

    with suppress(Reached):
        learner.learn(total_timesteps=setting.steps, callback=Judging())
    return judge.outcome
