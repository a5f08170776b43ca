"""Policies for `cwm collect`: the base class `Policy` and the random policy.

A policy acts on a `Stage`: the recorded environment, with a simulator to plan in. Plugins add
policies through the hook `cwm_policies`; the policies of `cwm_curated` use planners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import process_time
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from cwm_cli.data.dataset import Transition
from cwm_cli.envs.simulators import CachingSimulator, Opening, Simulator
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.tasks import Task, random_action
from cwm_cli.errors import CwmError, EnvironmentFailure
from cwm_cli.planning import PLANNERS, Moment, find_planner
from cwm_cli.planning.model import countable, key
from cwm_cli.worlds.model import Plan, PlanningSession

if TYPE_CHECKING:
    import gymnasium as gym

Act = Callable[[Any, int], Any]
"""Function that returns an action, given an observation and the number of previous steps.

After the first step it may return None to end the episode.
"""

Copies = Literal["measured", "cheap", "dear"]
"""Cost of simulator steps: not measured yet, cheap enough to plan with, or too expensive."""

DEAR = 2e-3
"""CPU seconds per simulator step above which episodes are not planned by default.

A decision of 1,000 such steps would take more than two seconds.
"""

TRIES = 5
"""Number of random episodes whose best one replaces an episode that cannot be planned."""


@dataclass
class Stage:
    """A recorded environment, with a simulator for planning.

    Attributes:
        spec: Specification of the environment.
        env_args: Arguments of the environment.
        seed: Seed of the recording.
        max_steps: Maximum length of an episode.
        copies: Cost of simulator steps, "measured" until it is measured.
        note: Reason why no episode can be planned; empty if unknown or if planning is possible.
        opening: Method of creating simulators; None until the first one is created.
    """

    spec: EnvironmentSpec
    env_args: Mapping[str, Any]
    seed: int
    max_steps: int
    copies: Copies = "measured"
    note: str = ""
    opening: Opening | None = None
    task: Task = field(init=False)
    env: gym.Env[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        make, valid = self.spec.make, self.spec.valid_actions
        self.task = Task(lambda: make(**self.env_args), self.seed, self.max_steps, valid)
        self.env = self.task.make()

    @contextmanager
    def anew(self) -> Iterator[Self]:
        """Yield a stage with a new environment for one episode.

        A saved state, and therefore a plan, may depend on the whole history of an environment.
        A new environment makes each episode independent of the previous ones.
        """
        own = replace(self)
        with closing(own.env):
            yield own
        # keep measurements, so that the next episode does not repeat them
        self.copies, self.note, self.opening = own.copies, own.note, own.opening

    @cached_property
    def simulator(self) -> Simulator | CachingSimulator | None:
        """A simulator to plan in.

        None if no planner supports the actions, if states cannot be restored exactly, or if
        steps are too expensive.
        """
        if self.note:
            return None
        planners = {name: find_planner(name) for name in PLANNERS}
        actions = space_of(self.env.action_space, "actions")
        if not any(planner.serves(actions) for planner in planners.values()):
            self._skip_planning("no planner supports its actions")
            return None
        # time plain steps first: `Opening.of` takes many steps, too many in a slow environment
        if self.copies == "measured" and _step_seconds(self.task) > DEAR:
            self.copies = "dear"
        if self.copies != "dear":
            try:
                self.opening = self.opening or Opening.of(self.spec, self.env_args)
                copy = self.opening.simulator(self.seed)
            except EnvironmentFailure:
                raise
            except CwmError:
                self._skip_planning("its state cannot be saved and restored")
                return None
            if self.copies == "measured":
                self.copies = "dear" if _copy_seconds(self.task, copy) > DEAR else "cheap"
            if self.copies == "cheap":
                return copy
        self._skip_planning("its steps or copies are slow (-o policy.copies=cheap plans anyway)")
        return None

    def _skip_planning(self, reason: str) -> None:
        best = f"the best of {TRIES} random episodes replaces each planned episode"
        self.note = f"{best} of {self.spec.id}: {reason}"


def _step_seconds(task: Task) -> float:
    """Return the CPU seconds of a random step."""
    with closing(task.make()) as env:
        env.action_space.seed(task.seed)
        env.reset(seed=task.seed)
        return _fastest_step(
            lambda: env.step(random_action(env.action_space, task.allowed(env))), env
        )


def _copy_seconds(task: Task, copy: Simulator | CachingSimulator) -> float:
    """Return the CPU seconds of a step with saving and restoring the state."""
    with closing(task.make()) as env:
        env.action_space.seed(task.seed)
        state = copy.state_of(env, env.reset(seed=task.seed)[0])
        action = random_action(env.action_space, task.allowed(env))

        def step_copy() -> tuple[Any, ...]:
            copy.stand(state)
            return *copy.step(action)[:3], False, copy.here()

        return _fastest_step(step_copy, env)


def _fastest_step(step: Callable[[], tuple[Any, ...]], env: gym.Env[Any, Any]) -> float:
    """Return the lowest CPU time of 20 steps; other load changes it less than the wall time."""
    seconds = []
    for _ in range(20):
        began = process_time()
        _, _, terminated, truncated, _ = step()
        seconds.append(process_time() - began)
        if terminated or truncated:
            env.reset()
    return min(seconds)


class Policy:
    """Base class of policies, which choose the actions of recorded episodes.

    A policy is a dataclass. Its fields are its options (`-o policy.KEY=VALUE`); the docstring
    under each field describes the option. A recording calls `prepare` once. For each episode it
    calls `looks_back` and `starts`, then `begin` and `worth` for each start, and keeps the start
    with the highest worth.

    Only `begin` is required. The same place, seed and earlier rows must give the same actions.

    Earlier rows are the rows of previous episodes of the same part: the split, and whether the
    episode may be fitted to.

    Example::

        @dataclass
        class Always(Policy):
            action: int = 0  # with its meaning in a docstring below

            def begin(self, stage, place, seed, earlier):
                return f"always {self.action}", lambda observation, step: self.action
    """

    needs_text: ClassVar[bool] = False
    """Whether the policy supports only environments with a text view."""

    def prepare(self, stage: Stage) -> None:
        """Compute facts that all episodes need, and store them in the stage."""

    def looks_back(self, stage: Stage, place: int) -> bool:
        """Return whether an episode depends on earlier rows.

        Other episodes may be recorded in any order, by several processes; `begin` and `worth`
        then receive no earlier rows.

        Args:
            stage: The recorded environment.
            place: Index of the episode in its split, from 0.
        """
        return True

    def starts(self, stage: Stage, place: int, earlier: Sequence[Transition]) -> int:
        """Return the number of starts to try for the episode with index `place` of the split."""
        return 1

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Begin an episode.

        Args:
            stage: The recorded environment.
            place: Index of the episode in its split, from 0.
            seed: Seed of the actions.
            earlier: Earlier rows; none if `looks_back` returned False.

        Returns:
            A description of the episode for the metadata, e.g. "random", and the function that
            chooses the actions.
        """
        raise NotImplementedError

    def worth(
        self,
        stage: Stage,
        place: int,
        rows: Sequence[Transition],
        earlier: Sequence[Transition],
    ) -> float:
        """Return the worth of an episode, to compare the starts.

        The first start with the highest worth is kept. No other start is tried after one with
        infinite worth.

        Args:
            stage: The recorded environment.
            place: Index of the episode in its split, from 0.
            rows: Rows of the episode.
            earlier: Earlier rows; none if `looks_back` returned False.
        """
        return 0.0

    def needs_more(self, episodes: Sequence[Sequence[Transition]]) -> bool:
        """Return whether a split needs another episode, although it has enough rows.

        It is not called if the user gives the number of episodes.

        Args:
            episodes: Rows of each episode of the split that may be fitted to, in order.
        """
        return False


@dataclass
class RandomPolicy(Policy):
    """A policy that draws each action from the valid actions."""

    def looks_back(self, stage: Stage, place: int) -> bool:
        """Return False, so that episodes may be recorded in any order."""
        return False

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Begin an episode with its own random generator."""
        return "random", random_acts(stage, seed)


def random_acts(stage: Stage, seed: int) -> Act:
    """Return a function that draws each action from the valid actions."""
    space = deepcopy(stage.env.action_space)
    space.seed(seed)
    return lambda *_: random_action(space, stage.task.allowed(stage.env))


class RowSummary(Protocol):
    """A summary of rows that is updated incrementally."""

    def add(self, rows: Sequence[Transition]) -> None:
        """Add the rows that follow the rows added so far."""


S = TypeVar("S", bound=RowSummary)


class EarlierRows(list[Transition]):
    """Rows of earlier episodes with summaries.

    A summary reads each row once. Therefore the time of a recording grows linearly with the
    number of episodes, although each episode depends on all earlier ones.
    """

    def __init__(self, rows: Iterable[Transition] = ()) -> None:
        super().__init__(rows)
        self._summaries: dict[type[RowSummary], tuple[Any, int]] = {}

    @classmethod
    def of(cls, rows: Sequence[Transition]) -> Self:
        """Return `rows` if it is of this class, else a copy that is."""
        return rows if isinstance(rows, cls) else cls(rows)

    def summary(self, kind: type[S]) -> S:
        """Return the summary of class `kind` of all rows."""
        found, known = self._summaries.get(kind) or (kind(), 0)
        found.add(self[known:])  # only the rows since the last call
        self._summaries[kind] = found, len(self)
        summary: S = found
        return summary


class Told(NamedTuple):
    """An observation, split into its real numbers and a hashable key of its other parts."""

    numbers: list[float]
    other: Any


def told(observation: Any) -> Told:
    """Split an observation into its real numbers and its other parts."""
    if isinstance(observation, np.ndarray) and observation.dtype.kind == "f":
        return Told(observation.ravel().tolist(), ())
    if isinstance(observation, int | np.integer | np.ndarray) and countable(observation):
        return Told([], (key(observation),))
    leaves = list(_leaves(observation))
    numbers = [np.ravel(leaf) for leaf in leaves if not countable(leaf)]
    others = tuple(key(leaf) for leaf in leaves if countable(leaf))
    return Told(np.concatenate([np.empty(0), *numbers]).tolist(), others)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


class RandomSession(PlanningSession):
    """A session without planning: random actions that depend on seed, episode and decision."""

    def __init__(self, task: Task, seed: int) -> None:
        with closing(task.make()) as env:
            self._space = env.action_space
        self._seed = seed

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return a random valid action for each moment."""
        plans = []
        for each in moments:
            seeds = np.random.SeedSequence([self._seed, each.episode, each.decision])
            self._space.seed(int(seeds.generate_state(1)[0]))
            plans.append(Plan([random_action(self._space, each.valid)], None))
        return plans
