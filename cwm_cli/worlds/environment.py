"""The true environment as its own world model: an upper bound for predictions and plans."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import finalize

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset, Transition
from cwm_cli.data.spaces import Columns
from cwm_cli.envs.saving import fingerprint
from cwm_cli.envs.simulators import CachingSimulator, Opening, Simulator
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.envs.tasks import reward_number
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import EpisodeHistory, Step, close
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds.model import (
    ImaginedEpisodes,
    ImaginedStep,
    Planning,
    Predictions,
    TrustedSession,
    WorldModel,
)

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.tasks import Task

FEW_DRAWS, MANY_DRAWS = 4, 64
"""Equal draws after which the result of a situation counts as deterministic.

The second number applies if the step used the random generator of the environment. Then an outcome
with probability 0.1 is missed with probability 0.001.
"""

MAX_DRAWS = 50_000
"""Maximum number of draws of all random situations together, which take some seconds."""


@dataclass(frozen=True)
class EnvironmentModel(WorldModel):
    """The true environment, restored to observations or to saved states.

    The model has its own instances, so it does not affect the environments of episodes.

    Args:
        spec: The environment.
        env_args: Its arguments.
        remembers: Whether to restore the environment only at the start of an episode, and to
            continue from its own steps as long as they lead to the recorded observations. Then
            state that observations do not show is wrong only at the start and after random steps.
    """

    kind: ClassVar[str] = "environment"

    spec: EnvironmentSpec
    env_args: Mapping[str, Any] = field(default_factory=dict)
    remembers: bool = False
    _idle: list[gym.Env[Any, Any]] = field(default_factory=list, repr=False, compare=False)

    def describe(self) -> str:
        """Return a short name for messages."""
        return "the environment itself"

    @cached_property
    def opening(self) -> Opening:
        """The way to save and restore the environment; CwmError if no way is exact."""
        return Opening.of(self.spec, self.env_args)

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Restore the environment to each observation, and step it.

        A row is not answered if the environment cannot be restored to it. The predictions have a
        failure if the environment cannot be restored at all.

        Args:
            rows: The rows.
            seed: Seed of random results.
            draws: The number of draws for each situation. With several, the result is the
                frequencies of outcomes, unless almost all draws differ. Random situations are drawn
                more often than others (see `MAX_DRAWS`).
        """
        if self.spec.restore is None:
            message = f"{self.spec.id} cannot be restored to an observation"
            return Predictions({}, Failure(kind="load_error", message=message))
        if draws > 1 and not self.remembers:
            return self._sample(rows, seed, draws)
        # One seed per row, so that the result of a row does not depend on the rows before it.
        seeds = np.random.SeedSequence(seed).generate_state(len(rows)).tolist()
        with closing(self.spec.make(**self.env_args)) as env:
            answers: list[Transition | None] = []
            for row, row_seed in zip(rows, seeds, strict=True):
                last = answers[-1] if answers and self.remembers else None
                answers.append(self._step(env, row, row_seed, last))
        columns = Dataset.of(
            [answer or row for answer, row in zip(answers, rows, strict=True)],
            observation_space=rows.observation_space,
            action_space=rows.action_space,
        ).columns
        return Predictions(columns, answered=np.array([answer is not None for answer in answers]))

    def imagine(
        self, starts: Sequence[EpisodeHistory], rows: Dataset, *, seed: int = 0
    ) -> ImaginedEpisodes:
        """Continue episodes in environments that are restored to their last observations.

        State that observations do not show is as after a reset.

        Raises:
            CwmError: If an environment cannot be restored.
        """
        return PlayedEpisodes(self, starts, rows, seed)

    def open(self, planners: Sequence[Planning], task: Task) -> EnvironmentSession:
        """Start planning in the environment; raise CwmError if it cannot be restored."""
        return EnvironmentSession(self.opening.simulator(task.seed), planners, task.seed)

    def _sample(self, rows: Dataset, seed: int, draws: int) -> Predictions:
        """Draw the results of each situation repeatedly, most often if they are random."""
        situations = rows.situations()
        # reversed, so that the first row of each situation is kept
        first = dict(zip(situations[::-1], range(len(rows))[::-1], strict=True))
        with closing(self.spec.make(**self.env_args)) as env:
            self._step(env, rows.row(0), seed)  # `restore` may learn about the environment here
            samples = [
                _Sample(self, env, rows.row(place), [seed, *sha256(key).digest()])
                for key, place in first.items()
            ]
            for sample in samples:
                sample.draw(min(draws, FEW_DRAWS))
                if sample.is_random:
                    sample.draw(min(draws, MANY_DRAWS))
            varied = [sample for sample in samples if len(sample.outcomes) > 1]
            # If outcomes rarely repeat, as real numbers do, frequencies mean nothing.
            countable = all(2 * len(sample.outcomes) <= sample.times for sample in varied)
            most = MAX_DRAWS // max(len(varied), 1) if countable else draws
            for sample in varied:
                sample.draw(min(draws, most))
        if not any(sample.outcomes for sample in samples):
            message = f"{self.spec.id} cannot be restored to any recorded observation"
            return Predictions({}, Failure(kind="load_error", message=message))
        width = max(len(sample.outcomes) for sample in samples) if countable else draws
        results = Dataset.of(
            [row for sample in samples for row in sample.padded(width, counted=countable)],
            observation_space=rows.observation_space,
            action_space=rows.action_space,
        ).select("next_observations", "rewards", "terminations", VALID)
        places = {key: place for place, key in enumerate(first)}
        chosen = np.array([places[key] for key in situations])
        columns = {
            name: column.reshape(len(samples), width, *column.shape[1:])[chosen]
            for name, column in results.items()
        }
        answered = np.array([bool(sample.outcomes) for sample in samples])[chosen]
        if not countable:
            return Predictions(columns, shape="draws", answered=answered)
        probabilities = np.array([sample.probabilities(width) for sample in samples])[chosen]
        return Predictions(columns, None, "outcomes", probabilities, answered)

    def _step(
        self,
        env: gym.Env[Any, Any],
        row: Transition,
        seed: int | None,
        last: Transition | None = None,
    ) -> Transition | None:
        """Return the environment's step from a row, or None if it cannot be restored to the row.

        It is reset before each row, so that it never reaches a time limit, unless the `last` step
        belongs to the same episode and led to this row.
        """
        continues = last is not None and last.episode == row.episode
        if last is None or not (continues and close(last.next_observation, row.observation)):
            env.reset(seed=seed)
            if self.spec.restore is None or not self.spec.restore(env.unwrapped, row.observation):
                return None
        following, reward, terminated, *_ = env.step(row.action)
        valid: tuple[int, ...] | None = None
        if row.valid is not None:
            space: Any = env.action_space
            all_actions = range(space.start, space.start + space.n)
            allowed = self.spec.valid_actions and self.spec.valid_actions(env.unwrapped)
            valid = tuple(map(int, all_actions if allowed is None else allowed))
        return Transition(
            row.observation,
            row.action,
            deepcopy(following),
            reward=float(np.asarray(reward).item()),
            terminated=bool(terminated),
            episode=row.episode,
            valid=valid,
        )


class PlayedEpisodes(ImaginedEpisodes):
    """Episodes that continue in the true environment, each in its own instance.

    Instances are reused later, as some take long to make.
    """

    def __init__(
        self, model: EnvironmentModel, starts: Sequence[EpisodeHistory], rows: Dataset, seed: int
    ) -> None:
        self.count = len(starts)
        self._spec, self._like = model.spec, rows
        idle, make = model._idle, model.spec.make
        self._envs = [idle.pop() if idle else make(**model.env_args) for _ in starts]
        # a copy, because `keep` drops instances from the list
        finalize(self, idle.extend, self._envs.copy())
        seeds = np.random.SeedSequence(seed).generate_state(self.count).tolist()
        for env, start, env_seed in zip(self._envs, starts, seeds, strict=True):
            env.reset(seed=env_seed)
            restore, seen = model.spec.restore, start.observations[-1]
            if restore is None or not restore(env.unwrapped, seen):
                raise CwmError(
                    f"{model.spec.id} cannot be restored to these episodes: use another world model"
                )

    def step(self, actions: Columns) -> ImaginedStep:
        """Take one action in each environment."""
        like, spec, steps = self._like, self._spec, []
        for place, env in enumerate(self._envs):
            after, reward, over, *_ = env.step(like.action_space.unpack("actions", actions, place))
            allowed = spec.valid_actions and spec.valid_actions(env.unwrapped)
            valid = None if allowed is None else tuple(map(int, allowed))
            steps.append(Step(after, reward_number(reward), bool(over), valid))
        spaces = like.observation_space, like.action_space
        return ImaginedStep.of(steps, *spaces, with_valid=like.has_valid_actions)

    def keep(self, places: np.ndarray) -> None:
        """Keep only the episodes at these indices, in this order."""
        self._envs = [self._envs[place] for place in places]
        self.count = len(self._envs)


class _Sample:
    """The outcomes of one situation of the true environment, and how often each was drawn."""

    def __init__(
        self, model: EnvironmentModel, env: gym.Env[Any, Any], row: Transition, seeds: list[int]
    ) -> None:
        self._model, self._env, self._row, self._seeds = model, env, row, seeds
        self.outcomes: dict[bytes, tuple[Transition, int]] = {}
        self.times = 0
        self.is_random = False

    def draw(self, times: int) -> None:
        """Draw until there are `times` draws in all; stop if the environment cannot be restored."""
        rng = np.random.default_rng([*self._seeds, self.times])
        seed: int | None = int(rng.integers(2**31))
        while self.times < times:
            answer = self._model._step(self._env, self._row, seed)
            if answer is None:
                return
            seed = None  # later draws continue the environment's random generator
            key = pickle.dumps(answer[2:])
            self.outcomes[key] = answer, self.outcomes.get(key, (answer, 0))[1] + 1
            self.times += 1
        self.is_random = len(self.outcomes) > 1
        if not self.is_random:  # equal draws are random if the step uses the random generator
            env = self._env
            env.reset()
            before = fingerprint(env.unwrapped.np_random)
            assert self._model.spec.restore is not None
            self._model.spec.restore(env.unwrapped, self._row.observation)
            env.step(self._row.action)
            self.is_random = fingerprint(env.unwrapped.np_random) != before

    def probabilities(self, width: int) -> list[float]:
        """Return the frequency of each outcome, padded with 0 to `width` numbers."""
        if not self.outcomes:
            return [1.0] + [0.0] * (width - 1)
        shares = [count / self.times for _, count in self.outcomes.values()]
        return shares + [0.0] * (width - len(shares))

    def padded(self, width: int, *, counted: bool) -> list[Transition]:
        """Return `width` outcomes: each once (`counted`) or as often as drawn, and repetitions."""
        if counted or not self.outcomes:
            rows = [row for row, _ in self.outcomes.values()] or [self._row]
            return rows + rows[:1] * (width - len(rows))
        rows = [row for row, count in self.outcomes.values() for _ in range(count)]
        return [rows[place % len(rows)] for place in range(width)]


class EnvironmentSession(TrustedSession):
    """Plans in the true environment, from its saved states."""

    def __init__(
        self, simulator: Simulator | CachingSimulator, planners: Sequence[Planning], seed: int
    ) -> None:
        super().__init__(simulator, planners, seed, form="simulator")
        self._simulator = simulator

    def state(self, env: gym.Env[Any, Any], history: EpisodeHistory) -> Any:
        """Return the saved state of the environment."""
        return self._simulator.state_of(env, history.observations[-1])
