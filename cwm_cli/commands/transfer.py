"""Comparison of agents that are trained in a program and in its true environment.

An agent that learned in the program plays in the true environment. If it returns as much as an
agent that learned there, with the same number of steps, its policy transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from cwm_cli.commands.plan import DECISION
from cwm_cli.commands.subjects import Subject, protected
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.tasks import step_limit
from cwm_cli.errors import CwmError, install_command
from cwm_cli.evaluation.intervals import MeanInterval, difference_interval, mean_interval
from cwm_cli.runs.observer import Observer
from cwm_cli.sandbox import Limits
from cwm_cli.worlds.messages import SteppingJob
from cwm_cli.worlds.program import ProgramModel
from cwm_cli.worlds.simulated import ProgramSimulator

Algorithm = Literal["ppo"]
"""A learning algorithm of Stable-Baselines3."""

SETTINGS: Mapping[str, Any] = {"n_steps": 128, "batch_size": 128, "learning_rate": 1e-3}
"""Settings of PPO that differ from the defaults: larger steps and fewer updates, so that small
tasks are learned in seconds. CartPole is solved in 16,384 steps (seeds 201 to 203)."""

Verdict = Literal["full", "partial", "none", "unknown"]
"""How much of a policy transfers; "unknown" if no agent is better than random actions."""


@dataclass(frozen=True)
class TransferOptions:
    """Options of `cwm evaluate --transfer`."""

    steps: int = 16_384
    """Training steps of each agent."""
    seeds: int = 3
    """Number of agents in each environment."""
    episodes: int = 20
    """Number of scored episodes of each trained agent."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1")


@dataclass(frozen=True)
class Transfer:
    """Returns of agents in the true environment, by the environment of their training.

    Attributes:
        algorithm: The algorithm of the training.
        options: The options.
        model: Returns of each agent that was trained in the program.
        truth: Returns of each agent that was trained in the true environment.
        random: Returns of random actions.
        failures: Number of episodes of the training that ended because the program failed.
    """

    algorithm: Algorithm
    options: TransferOptions
    model: Sequence[Sequence[float]]
    truth: Sequence[Sequence[float]]
    random: Sequence[float]
    failures: int = field(default=0)

    @property
    def intervals(self) -> dict[str, MeanInterval]:
        """The mean return of each kind of agent, with its 95 % interval."""
        return {
            "model": mean_interval(self.model),
            "environment": mean_interval(self.truth),
            "random": mean_interval([self.random]),
        }

    @property
    def difference(self) -> MeanInterval:
        """Mean return of agents from the program, minus the mean return of the other agents."""
        return difference_interval(self.model, self.truth)

    @property
    def verdict(self) -> Verdict:
        """How much transfers, by the 95 % intervals of the differences."""
        gained = difference_interval(self.model, [self.random]).low > 0
        if gained:
            return "partial" if self.difference.high < 0 else "full"
        learned = difference_interval(self.truth, [self.random]).low > 0
        return "none" if learned else "unknown"

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        return {
            "algorithm": self.algorithm,
            **asdict(self.options),
            "verdict": self.verdict,
            "returns": {name: each._asdict() for name, each in self.intervals.items()},
            "difference": self.difference._asdict(),
            "model_returns": [list(each) for each in self.model],
            "environment_returns": [list(each) for each in self.truth],
            "random_returns": list(self.random),
            "failures": self.failures,
        }


def check_transfer(subject: Subject) -> None:
    """Refuse a comparison that is impossible.

    Raises:
        CwmError: Stable-Baselines3 is missing, or there is no program or no environment to act in.
    """
    if find_spec("stable_baselines3") is None:
        command = install_command("cwm-cli[rl]")
        raise CwmError(f"--transfer needs Stable-Baselines3: {command}")
    if subject.text is None:
        raise CwmError(f"--transfer needs a program; {subject.name} has none: leave it out")
    if not subject.spec.has_simulator(subject.env_args):
        raise CwmError(f"{subject.env} has no simulator to act in: leave out --transfer")
    if subject.spec.valid_actions is not None:
        raise CwmError(
            f"the valid actions of {subject.env} depend on its state, which PPO ignores: leave out "
            "--transfer"
        )


def compare_training(
    subject: Subject,
    rows: Dataset,
    *,
    algorithm: Algorithm = "ppo",
    options: TransferOptions | None = None,
    limits: Mapping[str, Any] | None = None,
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    seed: int = 0,
    observer: Observer,
) -> Transfer:
    """Train agents in a program and in its environment, and score all in the environment.

    Args:
        subject: The program and its environment.
        rows: Recorded rows, whose initial observations begin the episodes in the program.
        algorithm: The algorithm of the training.
        options: Steps, seeds and episodes.
        limits: Limits of the sandbox.
        tools: Modules that the program may import, in addition to its own.
        allow_gap: Missing protections of the sandbox that are accepted.
        seed: Seed of the first agent; the next ones are counted from it.
        observer: Receives a note after each training.

    Raises:
        CwmError: The algorithm does not support the spaces, or the program fails at every start.
    """
    options = options or TransferOptions()
    bounds = Limits.chosen({**subject.limits, **DECISION, **(limits or {})})
    make_truth = partial(_make_truth, subject)
    with closing(make_truth()) as env:
        limit = step_limit(env)
    returns: dict[str, list[list[float]]] = {"program": [], "environment": []}
    with ExitStack() as stack:
        guard = protected(
            bounds,
            tools=[*subject.tools, *tools],
            accepted=allow_gap,
            handlers=[SteppingJob.handler],
            observer=observer,
        )
        model = ProgramModel(subject.text or "", stack.enter_context(guard), subject.name)
        simulator = stack.enter_context(ProgramSimulator(model, rows))
        # Load the program: the time until the first question counts as sleep of its process.
        simulator.begin(simulator.starts[0])
        failures: list[str] = []
        makers: dict[str, Callable[[], gym.Env[Any, Any]]] = {
            "program": lambda: _ProgramEnv(simulator.make(), limit, failures),
            "environment": make_truth,
        }
        for number in range(options.seeds):
            for name, make in makers.items():
                act = _train(make, options.steps, seed + number, subject.env)
                found = _play(make_truth, act, options.episodes, seed)
                returns[name].append(found)
                words = f"agent {number + 1} of {options.seeds}, trained in the {name}"
                observer.note(f"{words}: return {np.mean(found):.5g}", kind="Transfer")
    rng_act = _random_actions(make_truth, seed)
    random = _play(make_truth, rng_act, options.episodes, seed)
    return Transfer(
        algorithm, options, returns["program"], returns["environment"], random, len(failures)
    )


Act = Callable[[list[Any]], Iterable[Any]]
"""Returns an action for each observation of several environments."""


def _make_truth(subject: Subject) -> gym.Env[Any, Any]:
    """Make the true environment, with a limit of steps."""
    env = subject.spec.make(**subject.env_args)
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return env
    return gym.wrappers.TimeLimit(env, step_limit(env))


class _ProgramEnv(gym.Env[Any, Any]):
    """The program as an environment, with observations inside their space.

    An episode is truncated at the limit of steps, or if the program fails.

    Args:
        env: The program, from recorded initial observations.
        limit: Maximum number of steps of an episode.
        failures: Receives the message of each failure.
    """

    def __init__(self, env: gym.Env[Any, Any], limit: int, failures: list[str]) -> None:
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self._env, self._limit, self._failures, self._steps = env, limit, failures, 0
        self._last: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        observation, _ = self._env.reset(seed=seed)
        self._steps, self._last = 0, _fitted(observation, self.observation_space)
        return self._last, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        try:
            observation, reward, terminated, _, _ = self._env.step(action)
        except CwmError as error:
            self._failures.append(str(error))
            return self._last, 0.0, False, True, {}
        self._last = _fitted(observation, self.observation_space)
        return self._last, float(reward), bool(terminated), self._steps >= self._limit, {}


def _fitted(observation: Any, space: gym.Space[Any]) -> Any:
    """Return a predicted observation, clipped to the bounds of its space."""
    if isinstance(space, gym.spaces.Dict):
        return {name: _fitted(observation[name], each) for name, each in space.spaces.items()}
    if isinstance(space, gym.spaces.Discrete):
        return min(max(int(observation), int(space.start)), int(space.start + space.n - 1))
    if isinstance(space, gym.spaces.Box):
        return np.clip(np.nan_to_num(observation), space.low, space.high).astype(space.dtype)
    return observation


def _train(make: Callable[[], gym.Env[Any, Any]], steps: int, seed: int, env: str) -> Act:
    """Train PPO, and return its deterministic policy."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    try:
        copies = DummyVecEnv([make] * 8)
        policy = (
            "MultiInputPolicy"
            if isinstance(copies.observation_space, gym.spaces.Dict)
            else "MlpPolicy"
        )
        agent = PPO(policy, copies, seed=seed, device="cpu", **SETTINGS)
    except (AssertionError, NotImplementedError, ValueError) as error:
        words = str(error).splitlines()[0] if str(error) else "its spaces are not supported"
        raise CwmError(f"PPO cannot learn in {env} ({words}): leave out --transfer") from error
    with closing(copies):
        agent.learn(steps)

    def act(observations: list[Any]) -> Iterable[Any]:
        if isinstance(observations[0], dict):
            batch: Any = {
                name: np.stack([each[name] for each in observations]) for name in observations[0]
            }
        else:
            batch = np.stack(observations)
        return np.asarray(agent.predict(batch, deterministic=True)[0])

    return act


def _random_actions(make: Callable[[], gym.Env[Any, Any]], seed: int) -> Act:
    """Return a policy of random actions."""
    with closing(make()) as env:
        space = env.action_space
    space.seed(seed)
    return lambda observations: [space.sample() for _ in observations]


def _play(make: Callable[[], gym.Env[Any, Any]], act: Act, episodes: int, seed: int) -> list[float]:
    """Play several episodes at the same time, and return their returns."""
    returns = [0.0] * episodes
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(make())) for _ in range(episodes)]
        # Seeds that no training uses: it resets with small ones, once for each environment.
        seen = {
            number: env.reset(seed=1_000_000 + 1_000 * seed + number)[0]
            for number, env in enumerate(envs)
        }
        while seen:
            actions = act(list(seen.values()))
            for number, action in zip(list(seen), actions, strict=True):
                if isinstance(envs[number].action_space, gym.spaces.Discrete):
                    action = int(action)
                observation, reward, terminated, truncated, _ = envs[number].step(action)
                returns[number] += float(reward)
                seen[number] = observation
                if terminated or truncated:
                    del seen[number]
    return returns
