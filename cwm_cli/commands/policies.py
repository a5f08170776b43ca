"""Policies that act while data are collected: the base class, and random actions.

A `Policy` begins every episode of a `Stage`: the recorded environment, with a copy to plan in.
Plugins offer policies through the hook `cwm_policies`; the policies of `cwm_curated` plan.
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
from cwm_cli.planning import PLANNERS, Moment, find_planner, serving
from cwm_cli.planning.model import countable, key
from cwm_cli.worlds.model import Plan, PlanningSession

if TYPE_CHECKING:
    import gymnasium as gym

Act = Callable[[Any, int], Any]
"""Chooses an action, given the observation and the number of steps before.

After the first step it may choose None, which ends the episode there.
"""

Copies = Literal["measured", "cheap", "dear"]

DEAR = 2e-3
"""Seconds of the processor for a step in a copy from which on nothing is planned unasked.

A decision of a thousand such steps would take two seconds and more.
"""

MEASURED = 20
"""Steps that are timed."""

TRIES = 5
"""Random episodes of which the best stands in for one that cannot be planned."""


@dataclass
class Stage:
    """An environment that is recorded, and what is needed to plan in a copy of it.

    `opening` says how copies are made, or `note` why nothing can be planned, once that was
    found out; `copies` whether they are cheap or dear.
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
        """Play an episode in an environment of its own, so that none leaves anything to the next.

        What is saved of an environment, and so what is planned, may depend on all it went through.
        """
        own = replace(self)
        with closing(own.env):
            yield own
        self.copies, self.note, self.opening = own.copies, own.note, own.opening

    @cached_property
    def simulator(self) -> Simulator | CachingSimulator | None:
        """A copy to plan in, None where no planner serves the actions or no copy is exact or cheap.

        How long copies take is measured once, and first without one: to find out how an
        environment is copied takes many steps.
        """
        if self.note:
            return None
        planners = {name: find_planner(name) for name in PLANNERS}
        if not serving(planners, space_of(self.env.action_space, "actions")):
            self._pass_over("no planner supports its actions")
            return None
        if self.copies == "measured" and _step_seconds(self.task) > DEAR:
            self.copies = "dear"
        if self.copies != "dear":
            try:
                self.opening = self.opening or Opening.of(self.spec, self.env_args)
                copy = self.opening.simulator(self.seed)
            except EnvironmentFailure:
                raise
            except CwmError:
                self._pass_over("its state cannot be saved and restored")
                return None
            if self.copies == "measured":
                self.copies = "dear" if _copy_seconds(self.task, copy) > DEAR else "cheap"
            if self.copies == "cheap":
                return copy
        self._pass_over("its steps or copies are slow (-o policy.copies=cheap plans anyway)")
        return None

    def _pass_over(self, reason: str) -> None:
        """Note why no episode is planned."""
        best = f"the best of {TRIES} random episodes replaces each planned episode"
        self.note = f"{best} of {self.spec.id}: {reason}"


def _step_seconds(task: Task) -> float:
    """Return what a random step takes of the processor, the quickest of some."""
    with closing(task.make()) as env:
        env.action_space.seed(task.seed)
        env.reset(seed=task.seed)
        return _quickest(lambda: env.step(random_action(env.action_space, task.allowed(env))), env)


def _copy_seconds(task: Task, copy: Simulator | CachingSimulator) -> float:
    """Return what a step takes with saving and restoring, the quickest of some."""
    with closing(task.make()) as env:
        env.action_space.seed(task.seed)
        state = copy.state_of(env, env.reset(seed=task.seed)[0])
        action = random_action(env.action_space, task.allowed(env))

        def tried() -> tuple[Any, ...]:
            copy.stand(state)
            return *copy.step(action)[:3], False, copy.here()

        return _quickest(tried, env)


def _quickest(step: Callable[[], tuple[Any, ...]], env: gym.Env[Any, Any]) -> float:
    """Time steps by the processor's clock, which other work does not slow down as much."""
    seconds = []
    for _ in range(MEASURED):
        began = process_time()
        _, _, terminated, truncated, _ = step()
        seconds.append(process_time() - began)
        if terminated or truncated:
            env.reset()
    return min(seconds)


class Policy:
    """Chooses the actions of the episodes that are recorded.

    A dataclass whose fields are its options (`-o policy.KEY=VALUE`), with
    their meaning in the docstring under each. In the order of an episode:

    - `prepare` finds out, once for all episodes, what has to be known of the
      environment.
    - `looks_back` says whether an episode depends on `earlier` rows. Others
      may be recorded in any order, by several processes, and are shown none.
    - `starts` says how many starts are tried.
    - `begin` returns the words that the data keep for how the episode is
      played, and the function that chooses its actions. The same place, seed
      and earlier rows give the same actions.
    - `worth` compares what came of the starts: the first that is worth most is
      kept, one that is worth infinitely much at once.

    Earlier rows are those of the split that serve the same, to be fitted to or not.

    Example::

        @dataclass
        class Always(Policy):
            action: int = 0  # with its meaning in a docstring below

            def begin(self, stage, place, seed, earlier):
                return f"always {self.action}", lambda observation, step: self.action
    """

    needs_text: ClassVar[bool] = False
    """Whether it serves environments with a text view only."""

    def prepare(self, stage: Stage) -> None:
        """Find out what all episodes have in common, and leave it in the stage."""

    def looks_back(self, stage: Stage, place: int) -> bool:
        """Whether the episode at a place of the split, counted from 0, depends on earlier rows."""
        return True

    def starts(self, stage: Stage, place: int, earlier: Sequence[Transition]) -> int:
        """Return how many starts are tried at a place."""
        return 1

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Begin the episode at a place of the split, after the earlier episodes of the split."""
        raise NotImplementedError

    def worth(
        self,
        stage: Stage,
        place: int,
        rows: Sequence[Transition],
        earlier: Sequence[Transition],
    ) -> float:
        """Return how much the rows of an episode are worth, among those of other starts."""
        return 0.0


@dataclass
class RandomPolicy(Policy):
    """Draws every action, from those that are allowed."""

    def looks_back(self, stage: Stage, place: int) -> bool:
        """Draw whatever came before."""
        return False

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Draw from a generator of the episode's own."""
        return "random", random_acts(stage, seed)


def random_acts(stage: Stage, seed: int) -> Act:
    """Draw every action from those that are allowed."""
    space = deepcopy(stage.env.action_space)
    space.seed(seed)
    return lambda *_: random_action(space, stage.task.allowed(stage.env))


class RowSummary(Protocol):
    """A summary of rows, which is updated with new rows instead of computed again."""

    def add(self, rows: Sequence[Transition]) -> None:
        """Add rows that come after those added before."""


S = TypeVar("S", bound=RowSummary)


class EarlierRows(list[Transition]):
    """Rows of earlier episodes with summaries.

    A summary reads each row only once, so that the time of a recording grows linearly with its
    episodes although each episode depends on all earlier ones.
    """

    def __init__(self, rows: Iterable[Transition] = ()) -> None:
        super().__init__(rows)
        self._summaries: dict[type[RowSummary], tuple[Any, int]] = {}

    @classmethod
    def of(cls, rows: Sequence[Transition]) -> Self:
        """Return `rows` if it is of this class, else a copy that is."""
        return rows if isinstance(rows, cls) else cls(rows)

    def summary(self, kind: type[S]) -> S:
        """Return the summary of a kind of all rows."""
        found, known = self._summaries.get(kind) or (kind(), 0)
        found.add(self[known:])
        self._summaries[kind] = found, len(self)
        summary: S = found
        return summary


class Told(NamedTuple):
    """The real numbers of an observation, and all the rest of it."""

    numbers: list[float]
    other: Any


def told(observation: Any) -> Told:
    """Part an observation into its real numbers and all the rest."""
    if isinstance(observation, np.ndarray) and observation.dtype.kind == "f":
        return Told(observation.ravel().tolist(), ())
    leaves = list(_leaves(observation))
    numbers = [np.ravel(leaf) for leaf in leaves if not countable(leaf)]
    others = tuple(key(leaf) for leaf in leaves if countable(leaf))
    return Told(np.concatenate([np.empty(0), *numbers]).tolist(), others)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what an observation is made of."""
    if isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


class RandomSession(PlanningSession):
    """Draws each action by the seed, the episode and the number of the decision."""

    def __init__(self, task: Task, seed: int) -> None:
        with closing(task.make()) as env:
            self._space = env.action_space
        self._seed = seed

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return an action for each moment, one of those that are allowed."""
        plans = []
        for each in moments:
            seeds = np.random.SeedSequence([self._seed, each.episode, each.decision])
            self._space.seed(int(seeds.generate_state(1)[0]))
            plans.append(Plan([random_action(self._space, each.valid)], None))
        return plans
