"""The true environment as a model of itself: what could be predicted, and planned, at best."""

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
from cwm_cli.envs.simulators import CachingSimulator, Opening, Simulator
from cwm_cli.envs.simulators.chance import fingerprint
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.envs.tasks import reward_number
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import EpisodeHistory, close
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

GLANCE, LOOKS = 4, 64
"""Draws of a situation before it is taken to be certain: where the environment's generator was not
touched, and where it was; an outcome of one in ten is overlooked then with a chance of 0.001."""

MOST_DRAWN = 50_000
"""Steps of all situations beyond that, together: some seconds, and more draws of each where there
are fewer situations."""


@dataclass(frozen=True)
class EnvironmentModel(WorldModel):
    """An environment that is stood where an observation says, or at a state that was saved.

    It holds an environment of its own, apart from those that are played. What it finds out
    about saving and restoring it finds out once. One that `remembers` is restored where an
    episode begins, and goes on from where its own steps lead as long as that is what is seen: what
    observations hide then counts only where an episode begins, and where chance decided.
    """

    kind: ClassVar[str] = "environment"

    spec: EnvironmentSpec
    env_args: Mapping[str, Any] = field(default_factory=dict)
    remembers: bool = False
    _idle: list[gym.Env[Any, Any]] = field(default_factory=list, repr=False, compare=False)

    def describe(self) -> str:
        """Say what it is, in a few words."""
        return "the environment itself"

    @cached_property
    def opening(self) -> Opening:
        """How it is saved and restored; `CwmError` where no way of that is exact."""
        return Opening.of(self.spec, self.env_args)

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Restore the environment to each observation, step it, and say what it answers.

        There is no answer where it cannot be restored, and a failure where nothing restores it.
        What chance decides is drawn from `seed`: once, or so often for each situation as `draws`
        says. Then outcomes are counted, unless nearly every draw is another, and most often where
        chance shows (see `MOST_DRAWN`).
        """
        if self.spec.restore is None:
            message = f"{self.spec.id} cannot be restored to an observation"
            return Predictions({}, Failure(kind="load_error", message=message))
        if draws > 1 and not self.remembers:
            return self._drawn(rows, seed, draws)
        seeds = np.random.SeedSequence(seed).generate_state(len(rows)).tolist()
        with closing(self.spec.make(**self.env_args)) as env:
            answers: list[Transition | None] = []
            for row, drawn in zip(rows, seeds, strict=True):
                last = answers[-1] if answers and self.remembers else None
                answers.append(self._answer(env, row, drawn, last))
        columns = Dataset.of(
            [answer or row for answer, row in zip(answers, rows, strict=True)],
            observation_space=rows.observation_space,
            action_space=rows.action_space,
        ).columns
        return Predictions(columns, answered=np.array([answer is not None for answer in answers]))

    def imagine(
        self, starts: Sequence[EpisodeHistory], rows: Dataset, *, seed: int = 0
    ) -> ImaginedEpisodes:
        """Go on with several episodes in environments that are stood where their histories end.

        What observations hide is as it is after a reset; `CwmError` where one cannot be stood.
        """
        return PlayedEpisodes(self, starts, rows, seed)

    def open(self, planners: Sequence[Planning], task: Task) -> EnvironmentSession:
        """Begin to plan in the environment itself; `CwmError` where it cannot be restored."""
        return EnvironmentSession(self.opening.simulator(task.seed), planners, task.seed)

    def _drawn(self, rows: Dataset, seed: int, draws: int) -> Predictions:
        """Draw what follows each situation again and again, as long as chance shows."""
        situations = rows.situations()
        first = dict(zip(situations[::-1], range(len(rows))[::-1], strict=True))
        with closing(self.spec.make(**self.env_args)) as env:
            self._answer(env, rows.row(0), seed)  # what is found out by playing is found out now
            drawn = [
                _Drawn(self, env, rows.row(place), [seed, *sha256(key).digest()])
                for key, place in first.items()
            ]
            for each in drawn:
                each.draw(min(draws, GLANCE))
                if each.by_chance:
                    each.draw(min(draws, LOOKS))
            varied = [each for each in drawn if len(each.found) > 1]
            countable = all(2 * len(each.found) <= each.times for each in varied)
            most = MOST_DRAWN // max(len(varied), 1) if countable else draws
            for each in varied:
                each.draw(min(draws, most))
        if not any(each.found for each in drawn):
            message = f"{self.spec.id} cannot be restored to any recorded observation"
            return Predictions({}, Failure(kind="load_error", message=message))
        width = max(len(each.found) for each in drawn) if countable else draws
        following = Dataset.of(
            [row for each in drawn for row in each.stretched(width, counted=countable)],
            observation_space=rows.observation_space,
            action_space=rows.action_space,
        ).select("next_observations", "rewards", "terminations", VALID)
        places = {key: place for place, key in enumerate(first)}
        chosen = np.array([places[key] for key in situations])
        columns = {
            name: column.reshape(len(drawn), width, *column.shape[1:])[chosen]
            for name, column in following.items()
        }
        answered = np.array([bool(each.found) for each in drawn])[chosen]
        if not countable:
            return Predictions(columns, shape="draws", answered=answered)
        chances = np.array([each.chances(width) for each in drawn])[chosen]
        return Predictions(columns, None, "outcomes", chances, answered)

    def _answer(
        self,
        env: gym.Env[Any, Any],
        row: Transition,
        seed: int | None,
        last: Transition | None = None,
    ) -> Transition | None:
        """Return what the environment answers to a row, nothing where it cannot be restored to it.

        It is reset before every row, so that no time limit is ever reached, unless the `last`
        answer was of the same episode, and led there.
        """
        goes_on = last is not None and last.episode == row.episode
        if last is None or not (goes_on and close(last.next_observation, row.observation)):
            env.reset(seed=seed)
            if self.spec.restore is None or not self.spec.restore(env.unwrapped, row.observation):
                return None
        following, reward, terminated, *_ = env.step(row.action)
        valid: tuple[int, ...] | None = None
        if row.valid is not None:
            space: Any = env.action_space
            every = range(space.start, space.start + space.n)
            allowed = self.spec.valid_actions and self.spec.valid_actions(env.unwrapped)
            valid = tuple(map(int, every if allowed is None else allowed))
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
    """Episodes that go on in the true environment, each in one of its own.

    Environments that are no longer needed are kept, as some take long to make.
    """

    def __init__(
        self, model: EnvironmentModel, starts: Sequence[EpisodeHistory], rows: Dataset, seed: int
    ) -> None:
        self.count = len(starts)
        self._spec, self._like = model.spec, rows
        idle, make = model._idle, model.spec.make
        self._envs = [idle.pop() if idle else make(**model.env_args) for _ in starts]
        finalize(self, idle.extend, self._envs.copy())
        seeds = np.random.SeedSequence(seed).generate_state(self.count).tolist()
        for env, start, drawn in zip(self._envs, starts, seeds, strict=True):
            env.reset(seed=drawn)
            restore, seen = model.spec.restore, start.observations[-1]
            if restore is None or not restore(env.unwrapped, seen):
                raise CwmError(
                    f"{model.spec.id} cannot be restored to these episodes: use another world model"
                )

    def step(self, actions: Columns) -> ImaginedStep:
        """Take an action in each environment."""
        like, spec = self._like, self._spec
        seen, rewards, terminated, valid = [], [], [], []
        for place, env in enumerate(self._envs):
            after, reward, over, *_ = env.step(like.action_space.unpack("actions", actions, place))
            seen.append(after)
            rewards.append(reward_number(reward))
            terminated.append(bool(over))
            allowed = spec.valid_actions and spec.valid_actions(env.unwrapped)
            valid.append(None if allowed is None else like.action_space.mask(map(int, allowed)))
        named = like.has_valid_actions
        every = np.ones(like.action_space.count, np.bool_) if named else None
        return ImaginedStep(
            like.observation_space.pack("observations", seen),
            np.array(rewards),
            np.array(terminated, np.bool_),
            np.array([every if mask is None else mask for mask in valid]) if named else None,
        )

    def keep(self, places: np.ndarray) -> None:
        """Go on with the episodes at some places only, in that order."""
        self._envs = [self._envs[place] for place in places]
        self.count = len(self._envs)


class _Drawn:
    """What followed one situation of the true environment, and how often."""

    def __init__(
        self, model: EnvironmentModel, env: gym.Env[Any, Any], row: Transition, seeds: list[int]
    ) -> None:
        self._model, self._env, self._row, self._seeds = model, env, row, seeds
        self.found: dict[bytes, tuple[Transition, int]] = {}
        self.times = 0
        self.by_chance = False

    def draw(self, times: int) -> None:
        """Draw until there are so many in all; none where the environment cannot be stood."""
        rng = np.random.default_rng([*self._seeds, self.times])
        seed: int | None = int(rng.integers(2**31))
        while self.times < times:
            answer = self._model._answer(self._env, self._row, seed)
            if answer is None:
                return
            seed = None  # the environment's own generator goes on
            key = pickle.dumps(answer[2:])
            self.found[key] = answer, self.found.get(key, (answer, 0))[1] + 1
            self.times += 1
        self.by_chance = len(self.found) > 1 or self._touches_generator()

    def _touches_generator(self) -> bool:
        """Tell whether the environment draws anything when it is stood there and stepped."""
        env, restore = self._env, self._model.spec.restore
        env.reset()
        before = fingerprint(env.unwrapped.np_random)
        assert restore is not None
        restore(env.unwrapped, self._row.observation)
        env.step(self._row.action)
        return fingerprint(env.unwrapped.np_random) != before

    def chances(self, width: int) -> list[float]:
        """Return the share of each outcome, as many as asked for."""
        if not self.found:
            return [1.0] + [0.0] * (width - 1)
        shares = [count / self.times for _, count in self.found.values()]
        return shares + [0.0] * (width - len(shares))

    def stretched(self, width: int, *, counted: bool) -> list[Transition]:
        """Return so many outcomes: each once, then the first again, or as often as drawn."""
        if counted or not self.found:
            rows = [row for row, _ in self.found.values()] or [self._row]
            return rows + rows[:1] * (width - len(rows))
        rows = [row for row, count in self.found.values() for _ in range(count)]
        return [rows[place % len(rows)] for place in range(width)]


class EnvironmentSession(TrustedSession):
    """Plans in the true environment, from its saved states."""

    def __init__(
        self, simulator: Simulator | CachingSimulator, planners: Sequence[Planning], seed: int
    ) -> None:
        super().__init__(simulator, planners, seed, form="simulator")
        self._simulator = simulator

    def state(self, env: gym.Env[Any, Any], history: EpisodeHistory) -> Any:
        """Save where the environment stands."""
        return self._simulator.state_of(env, history.observations[-1])
