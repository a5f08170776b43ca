"""Who acts while data are collected: the contract of policies, and those that are built in.

A `Policy` begins every episode of a `Stage`, the environment that is recorded with a copy to plan
in; `random` draws actions, `planner` and `curated` plan them for reward, for what was not seen, or
to where observations come to their limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import le
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field

from cwm_cli import planning
from cwm_cli.data.dataset import Transition
from cwm_cli.envs.simulators import Opening, Remembering, Simulator
from cwm_cli.envs.simulators.chance import GLOBAL, reseed
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.tasks import Task, random_action, step_limit
from cwm_cli.errors import CwmError
from cwm_cli.planning import PLANNERS, Decider, Moment, find_planner, serving
from cwm_cli.planning.icem import Icem
from cwm_cli.planning.mcts import Mcts
from cwm_cli.planning.model import Counter, Model, Named, Step, countable, key
from cwm_cli.planning.tabular import Tabular

if TYPE_CHECKING:
    import gymnasium as gym

Act = Callable[[Any, int], Any]
"""Chooses an action, given the observation and the number of steps before."""

Aim = Literal["reward", "novelty", "extremes"]

ENDLESS = 30.0
"""Steps that the end of an episode counts for where it is new.

With more, episodes end soon rather than go far; with none they avoid their end.
"""

MISSING = 100.0
"""Steps that it counts for as long as no episode has come to an end."""


SEARCH: Mapping[Aim, int] = {"reward": 1000, "novelty": 1000, "extremes": 1000}
"""Model steps of a decision among discrete actions."""

SAMPLES: Mapping[Aim, int] = {"reward": 500, "novelty": 100, "extremes": 100}
"""Model steps of a decision of real numbers; with more, no more novelty is found."""

FEWEST = 12
"""Model steps that such a decision takes at least."""

MOST = 10_000
"""States that are tried all, where observations tell them."""

ROLLOUTS = 5
"""Rollouts that a decision takes at least."""

WALKS = 3
"""Random walks from the start of an episode, which tell how far each number goes by itself."""

STILL = 1e-9
"""A number that changes by less, relative to its size, does not change: its digits do."""

RESERVE = 2
"""Steps to spare at which an episode turns to an end that no episode has shown."""


@dataclass
class Stage:
    """An environment that is recorded, and what is needed to plan in a copy of it.

    `opening` says how copies are made, or `note` why nothing can be planned, once that was
    found out.
    """

    spec: EnvironmentSpec
    env_args: Mapping[str, Any]
    seed: int
    max_steps: int
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
        self.note, self.opening = own.note, own.opening

    @cached_property
    def simulator(self) -> Simulator | Remembering | None:
        """A copy to plan in, None where no planner serves the actions or there is no exact copy."""
        if self.note:
            return None
        reason = "no planner serves its actions"
        planners = {name: find_planner(name) for name in PLANNERS}
        if serving(planners, space_of(self.env.action_space, "actions")):
            try:
                self.opening = self.opening or Opening.of(self.spec, self.env_args)
                return self.opening.simulator(self.seed)
            except CwmError:
                reason = "it cannot be saved and restored to plan with it"
        self.note = f"episodes of {self.spec.id} are random: {reason}"
        return None


class Policy:
    """Chooses the actions of the episodes that are recorded.

    A dataclass whose fields are its options (`-o policy.KEY=VALUE`), with
    their meaning in the docstring under each. In the order of an episode:

    - `starts` says how many starts are tried for an episode that comes to an
      end, as long as none of its split has.
    - `begin` returns the words that the data keep for how the episode is
      played, and the function that chooses its actions. The same place, seed
      and earlier rows give the same actions.

    Example::

        @dataclass
        class Always(Policy):
            action: int = 0  # with its meaning in a docstring below

            def begin(self, stage, place, seed, earlier):
                return f"always {self.action}", lambda observation, step: self.action
    """

    def starts(self, place: int) -> int:
        """Return how many starts are tried at a place of the split, counted from 0."""
        return 1

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Begin the episode at a place of the split, after the earlier episodes of the split."""
        raise NotImplementedError


@dataclass
class RandomPolicy(Policy):
    """Draws every action, from those that are allowed."""

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Draw from a generator of the episode's own."""
        return "random", random_acts(stage, seed)


class Way(NamedTuple):
    """What the actions of an episode are planned for, and how well.

    `reward` is as much of it as possible, `novelty` is to see what no earlier
    episode of the split has seen, `extremes` to drive every number of the
    observation to one of its ends, the `corner` says which. `effort` is the share
    of the budget that is spent. A share `chance` of the actions is random. As long
    as no episode of the split has come to an end, up to so many `starts` are tried
    for one that does.
    """

    aim: Aim
    effort: float = 1.0
    chance: float = 0.0
    starts: int = 1
    corner: int = 0


class PlannedPolicy(Policy):
    """Plans actions in a copy of the environment; where there is none they are random."""

    def way(self, place: int) -> Way | None:
        """Return what the episode at a place is planned for, None if its actions are random."""
        raise NotImplementedError

    def starts(self, place: int) -> int:
        """Return how many starts the way of the place wants."""
        way = self.way(place)
        return way.starts if way else 1

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Plan, or draw where nothing can be planned."""
        way = self.way(place)
        copy = stage.simulator if way else None
        if way is None or copy is None:
            return "random", random_acts(stage, seed)
        return planned_acts(stage, way, copy, seed, earlier)


@dataclass
class PlannerPolicy(PlannedPolicy):
    """Plans every episode for reward."""

    effort: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Share of the usual model steps that a decision takes."""
    chance: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the actions that are random instead."""

    def way(self, place: int) -> Way:
        """Plan for reward, wherever the episode stands."""
        return Way("reward", self.effort, self.chance)


@dataclass
class CuratedPolicy(PlannedPolicy):
    """Goes from random to good and to the limits: budgets rise, and what is rare is looked for.

    Random actions alone hardly meet goals, and good ones hardly failures. Who drives what is
    observed as far up and down as it goes meets the limits and ends of an environment, and who
    looks for what was not seen yet its goals. Of ten trajectories the fourth, the seventh and the
    tenth are never fitted to: both they and the others are driven up and down.
    """

    def way(self, place: int) -> Way | None:
        """Return the way of a place, over and over; each round has two more corners."""
        turn, number = divmod(place, len(CURATED))
        way = CURATED[number]
        return way and way._replace(corner=way.corner + 2 * turn)


CURATED: Sequence[Way | None] = (
    None,
    Way("reward", effort=0.02, chance=0.2),
    None,
    Way("reward", effort=0.1, chance=0.1),
    Way("extremes", corner=0),
    Way("reward"),
    Way("extremes", corner=1),
    Way("novelty", starts=8),
    Way("extremes", corner=1),
    Way("extremes", corner=0),
)
"""What the episodes of `curated` are planned for, by place."""


def random_acts(stage: Stage, seed: int) -> Act:
    """Draw every action from those that are allowed."""
    space = deepcopy(stage.env.action_space)
    space.seed(seed)
    return lambda *_: random_action(space, stage.task.allowed(stage.env))


def planned_acts(
    stage: Stage,
    way: Way,
    copy: Simulator | Remembering,
    seed: int,
    earlier: Sequence[Transition],
) -> tuple[str, Act]:
    """Return how an episode is planned, in words, and what plans its actions.

    Plans for reward are made for the whole episode, as it would be played, and those for
    novelty and extremes for what is recorded of it. What `earlier` transitions showed is not
    new. Where observations tell the states there are, every action is tried everywhere instead.
    """
    if way.aim != "reward" and isinstance(copy, Remembering):
        return "coverage", covering_acts(stage, copy, seed, earlier)
    model, begin = (
        _aimed(stage, way, copy, earlier),
        None if copy.deterministic else _chances(copy, seed),
    )
    decider = Decider(_planners(copy, way), model, seed=seed, begin=begin)
    limit = step_limit(stage.env, None if way.aim == "reward" else stage.max_steps)
    draw, rng = random_acts(stage, seed), np.random.default_rng(seed)

    def act(observation: Any, before: int) -> Any:
        state, valid = copy.state_of(stage.env, observation), stage.task.allowed(stage.env)
        if isinstance(model, Driven):
            if before == 0:
                space = deepcopy(stage.env.action_space)
                space.seed(seed)
                model.measure(state, observation, valid, space, stage.max_steps)
            state = model.reached(state, observation)
        if rng.random() < way.chance:
            return draw(observation, before)
        moment = Moment(0, before, state, max(1, limit - before), valid)
        return _typed(decider.plan([moment])[0][0], stage.env.action_space)

    return _name(way, _budget(copy, way)), act


def covering_acts(stage: Stage, copy: Remembering, seed: int, earlier: Sequence[Transition]) -> Act:
    """Go to the nearest action that was not tried where it is, and to an end at last."""
    tried = {(key(row.observation), row.action) for row in earlier}
    rng, draw = np.random.default_rng(seed), random_acts(stage, seed)

    def act(observation: Any, before: int) -> Any:
        state, valid = copy.state_of(stage.env, observation), stage.task.allowed(stage.env)
        action = _untried(copy, state, valid, tried, stage.max_steps - before, rng)
        action = draw(observation, before) if action is None else action
        tried.add((key(observation), action))
        return action

    return act


def _untried(
    copy: Remembering,
    state: Named,
    valid: Sequence[int] | None,
    tried: Collection[tuple[Any, int]],
    left: int,
    rng: np.random.Generator,
) -> int | None:
    """Return the first action on the way to the nearest that was not tried where it is.

    Those that end the episode come last, while there are just steps enough for them.
    """
    low, high = int(copy.action_space.low[0]), int(copy.action_space.high[0])
    every = range(low, high + 1)
    nearest: int | None = None
    end: tuple[int, int] | None = None
    waiting, met = deque([(state, valid or every, 1, None)]), {state}
    while waiting and len(met) < MOST and (nearest is None or end is None):
        state, valid, depth, first = waiting.popleft()
        if depth > left:
            break
        for action in rng.permutation(valid).tolist():
            copy.stand(state)
            step = copy.step(action)
            way, new = action if first is None else first, (state.name, action) not in tried
            if step.terminated:
                end = end or ((way, depth) if new else None)
                continue
            if new and nearest is None:
                nearest = way
            if (here := copy.here()) not in met:
                met.add(here)
                waiting.append((here, step.valid or every, depth + 1, way))
    if end and (nearest is None or end[1] + RESERVE > left):
        return end[0]
    return nearest


def _aimed(
    stage: Stage, way: Way, copy: Simulator | Remembering, earlier: Sequence[Transition]
) -> Model:
    """Return what plans are made in: a copy whose rewards are what the way aims at."""
    if way.aim == "reward":
        return copy
    numbers = space_of(stage.env.observation_space).leaves("")
    if way.aim == "extremes" and any(leaf.space.is_float for leaf in numbers):
        return Driven(copy, way.corner)
    seen = Seen([each for row in earlier for each in (row.observation, row.next_observation)])
    return Curious(copy, seen, ended=any(row.terminated for row in earlier))


def _typed(action: Any, space: gym.Space[Any]) -> Any:
    """Return an action with the precision of its space, in which it will be recorded."""
    return action.astype(space.dtype) if isinstance(action, np.ndarray) else action


def _name(way: Way, budget: int) -> str:
    """Return what is recorded as the policy of an episode."""
    mixed = f", {way.chance:.0%} random" if way.chance else ""
    return f"{way.aim}, {budget} steps{mixed}"


def _budget(copy: Simulator | Remembering, way: Way) -> int:
    """Return how many model steps a decision takes."""
    if copy.action_space.kind == "discrete":
        return round(way.effort * SEARCH[way.aim])
    return max(FEWEST, round(way.effort * SAMPLES[way.aim]))


def _planners(copy: Simulator | Remembering, way: Way) -> Sequence[planning.Planner]:
    """Return the planners to try, the one to try first first.

    Where observations tell the few states there are, values of all states are known soon.
    """
    budget = _budget(copy, way)
    if copy.action_space.kind != "discrete":
        return [Icem(budget=budget)]
    search = Mcts(budget=budget, rollout=max(1, budget // ROLLOUTS))
    known = isinstance(copy, Remembering) and way == Way("reward")
    return [Tabular(states=MOST), search] if known else [search]


def _chances(copy: Simulator | Remembering, seed: int) -> Callable[[Moment], None]:
    """Have chances of its own for each decision, whatever was planned before."""

    def begin(moment: Moment) -> None:
        rng = np.random.default_rng([seed, moment.decision, 1])
        for generator in copy.rewinder.generators():
            if generator not in GLOBAL:
                reseed(generator, rng)

    return begin


class Seen:
    """What observations there were: the span of the real numbers, and all of the others."""

    def __init__(self, observations: Iterable[Any]) -> None:
        told = [_told(observation) for observation in observations]
        numbers = np.array([told.numbers for told in told])
        self._low, self._high = numbers.min(axis=0), numbers.max(axis=0)
        self._least, self._most = self._low.tolist(), self._high.tolist()
        width = self._high - self._low
        self._width = np.where(width > 0, width, 1.0)
        self._others = {told.other for told in told}

    def novelty(self, observation: Any) -> float:
        """Return how far an observation is from all that was seen."""
        numbers, other = _told(observation)
        new = other not in self._others
        if all(map(le, self._least, numbers)) and all(map(le, numbers, self._most)):
            return float(new)
        beyond = np.maximum(numbers - self._high, self._low - numbers)
        far = np.log1p(np.maximum(beyond, 0) / self._width)
        return float(far.sum()) + new


class Curious(Model):
    """A simulator that rewards observations for being unlike those that were seen."""

    def __init__(self, simulator: Simulator | Remembering, seen: Seen, *, ended: bool) -> None:
        self._simulator = simulator
        self._seen = seen
        self._end = ENDLESS if ended else MISSING
        self.action_space = simulator.action_space
        self.deterministic = simulator.deterministic
        self.counter: Counter = simulator.counter

    def stand(self, state: Any) -> None:
        """Stand at a state."""
        self._simulator.stand(state)

    def here(self) -> Any:
        """Return the state in which the simulator is."""
        return self._simulator.here()

    def step(self, action: Any) -> Step:
        """Take an action; the end counts as if the episode went on there."""
        observation, _, terminated, valid = self._simulator.step(action)
        novelty = self._seen.novelty(observation)
        return Step(observation, novelty * (self._end if terminated else 1.0), terminated, valid)


class Driven(Model):
    """A simulator that rewards each number of the observation for going farther than it has.

    Each goes up or down, as the corner says, and counts in units of how far it goes by itself,
    in random walks. The first corner has all up, the second all down, the next two every other
    one, then pairs, and so on: any two numbers meet in each way. A state is that of the simulator
    with how far each number has gone.
    """

    def __init__(self, simulator: Simulator | Remembering, corner: int) -> None:
        self._simulator = simulator
        self._corner = corner
        self._scale = self._far = self._shown = np.empty(0)
        self.action_space = simulator.action_space
        self.deterministic = simulator.deterministic
        self.counter: Counter = simulator.counter

    def measure(
        self, state: Any, observation: Any, valid: Any, actions: gym.Space[Any], steps: int
    ) -> None:
        """Find out where an episode starts, and how far each number goes from there by itself."""
        found = [np.array(_told(observation).numbers)]
        for _ in range(WALKS):
            self._simulator.stand(state)
            allowed = valid
            for _ in range(steps):
                step = self._simulator.step(random_action(actions, allowed))
                found.append(np.array(_told(step.observation).numbers))
                allowed = step.valid
                if step.terminated:
                    break
        span, size = np.ptp(found, axis=0), np.abs(found).max(axis=0)
        numbers = np.arange(len(span)) & self._corner // 2
        signs = [(-1) ** (int(number).bit_count() + self._corner) for number in numbers]
        self._scale = np.array(signs) / np.where(span > STILL * (1 + size), span, 1 + size)
        self._shown = self._scale * found[0]

    def reached(self, state: Any, observation: Any) -> Any:
        """Return the state of an episode that has reached an observation."""
        self._shown = np.maximum(self._shown, self._scale * _told(observation).numbers)
        return state, self._shown

    def stand(self, state: Any) -> None:
        """Stand at a state."""
        inner, self._far = state
        self._simulator.stand(inner)

    def here(self) -> Any:
        """Return the state in which the simulator is, with how far each number has gone."""
        return self._simulator.here(), self._far

    def step(self, action: Any) -> Step:
        """Take an action; what is new of the way of each number is its reward."""
        observation, _, terminated, valid = self._simulator.step(action)
        before = self._far
        self._far = np.maximum(before, self._scale * _told(observation).numbers)
        return Step(observation, float((self._far - before).sum()), terminated, valid)


class _Told(NamedTuple):
    """The real numbers of an observation, and all the rest of it."""

    numbers: list[float]
    other: Any


def _told(observation: Any) -> _Told:
    """Part an observation."""
    if isinstance(observation, np.ndarray) and observation.dtype.kind == "f":
        return _Told(observation.ravel().tolist(), ())
    leaves = list(_leaves(observation))
    numbers = [np.ravel(leaf) for leaf in leaves if not countable(leaf)]
    others = tuple(key(leaf) for leaf in leaves if countable(leaf))
    return _Told(np.concatenate([np.empty(0), *numbers]).tolist(), others)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what an observation is made of."""
    if isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value
