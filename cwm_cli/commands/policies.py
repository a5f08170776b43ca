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
from math import inf
from operator import le
from time import process_time
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
)

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
from cwm_cli.worlds.model import Plan, PlanningSession

if TYPE_CHECKING:
    import gymnasium as gym

Act = Callable[[Any, int], Any]
"""Chooses an action, given the observation and the number of steps before.

After the first step it may choose None, which ends the episode there.
"""

Aim = Literal["reward", "extremes"]

ENDLESS = 30.0
"""Steps that the end of an episode counts for where it is new.

With more, episodes end soon rather than go far; with none they avoid their end.
"""

MISSING = 100.0
"""Steps that it counts for as long as no episode has come to an end."""


SEARCH = 1000
"""Model steps of a decision among discrete actions."""

SAMPLES: Mapping[Aim, int] = {"reward": 500, "extremes": 100}
"""Model steps of a decision of real numbers; with more, nothing goes farther."""

FEWEST = 12
"""Model steps that such a decision takes at least."""

MOST = 10_000
"""States that are tried all, where observations tell them."""

ROLLOUTS = 5
"""Rollouts that a decision takes at least."""

WALKS = 3
"""Random walks from the start of an episode, which tell how far each number goes by itself."""

STRAYING = 0.02
"""What a step costs an episode that drives one number, for each random walk's way by which the
others are off on average. A way of its own is worth one: with more nothing dares to go."""

STRAYED_END = 20.0
"""Steps that they are charged for where the episode ends: those that it might have gone on."""

WELL = 0.1
"""An end that is beyond earlier ones by less of their range may have the same cause."""

STILL = 1e-9
"""A number that changes by less, relative to its size, does not change: its digits do."""

RESERVE = 2
"""Steps to spare at which an episode turns to an end that no episode has shown."""


Copies = Literal["measured", "cheap", "dear"]

DEAR = 2e-3
"""Seconds of the processor for a step in a copy from which on nothing is planned unasked.

A decision of a thousand such steps would take two seconds and more.
"""

MEASURED = 20
"""Steps that are timed."""

TRIES = 5
"""Random episodes of which the best stands in for one that cannot be planned."""

LENGTHS = 6
"""Mean lengths of repeated actions are 1, 2, 4, ..., so many of them: none serves every task."""


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
    def simulator(self) -> Simulator | Remembering | None:
        """A copy to plan in, None where no planner serves the actions or no copy is exact or cheap.

        How long copies take is measured once, and first without one: to find out how an
        environment is copied takes many steps.
        """
        if self.note:
            return None
        planners = {name: find_planner(name) for name in PLANNERS}
        if not serving(planners, space_of(self.env.action_space, "actions")):
            self._pass_over("no planner serves its actions")
            return None
        if self.copies == "measured" and _step_seconds(self.task) > DEAR:
            self.copies = "dear"
        if self.copies != "dear":
            try:
                self.opening = self.opening or Opening.of(self.spec, self.env_args)
                copy = self.opening.simulator(self.seed)
            except CwmError:
                self._pass_over("it cannot be saved and restored to plan with it")
                return None
            if self.copies == "measured":
                self.copies = "dear" if _copy_seconds(self.task, copy) > DEAR else "cheap"
            if self.copies == "cheap":
                return copy
        self._pass_over("its steps or copies take long (-o policy.copies=cheap plans all the same)")
        return None

    def _pass_over(self, reason: str) -> None:
        """Say why nothing is planned."""
        best = f"are the best of {TRIES} random ones where they would be planned"
        self.note = f"episodes of {self.spec.id} {best}: {reason}"


def _step_seconds(task: Task) -> float:
    """Return what a random step takes of the processor, the quickest of some."""
    with closing(task.make()) as env:
        env.action_space.seed(task.seed)
        env.reset(seed=task.seed)
        return _quickest(lambda: env.step(random_action(env.action_space, task.allowed(env))), env)


def _copy_seconds(task: Task, copy: Simulator | Remembering) -> float:
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


class Way(NamedTuple):
    """What the actions of an episode are planned for, and how well.

    `reward` is as much of it as possible, `extremes` is to drive every number of
    the observation to one of its ends, the `corner` says which, or one number `alone`;
    where there are no real numbers it is to see what no earlier episode has seen. `effort`
    is the share of the budget that is spent. A share `chance` of the actions is random.
    As long as no earlier episode came to an end, up to so many `starts` are tried
    for one that does; for a number alone, once one did, for an end of which it is the cause.
    """

    aim: Aim
    effort: float = 1.0
    chance: float = 0.0
    starts: int = 1
    corner: int = 0
    alone: bool = False


@dataclass
class PlannedPolicy(Policy):
    """Plans actions in a copy of the environment.

    Where there is none the best of a few random episodes is taken, so that none takes more than
    ten times as long as a random one.
    """

    copies: Copies = "measured"
    """Whether a copy is cheap enough to plan in: as it was measured on this machine, or as told."""

    def way(self, place: int) -> Way | None:
        """Return what the episode at a place is planned for, None if its actions are random."""
        raise NotImplementedError

    def prepare(self, stage: Stage) -> None:
        """Find out whether there is a copy to plan in."""
        if stage.copies == "measured":
            stage.copies = self.copies
        _ = stage.simulator

    def looks_back(self, stage: Stage, place: int) -> bool:
        """Whether the episode is to show what no other has, or an end if none has."""
        way = self.way(place)
        if way is None or way.aim == "reward":
            return False
        return way.alone or way.starts > 1 or not _drives(stage, way, stage.simulator)

    def starts(self, stage: Stage, place: int, earlier: Sequence[Transition]) -> int:
        """Return how many starts the way of the place wants."""
        way = self.way(place)
        if way is None:
            return 1
        ended = EarlierRows.of(earlier).summary(NumberRanges).ended
        return TRIES if stage.note else way.starts if ended == way.alone else 1

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Plan, or draw where nothing can be planned."""
        way = self.way(place)
        if way is None:
            return "random", random_acts(stage, seed)
        if stage.simulator is None:
            return f"{way.aim}, best of {TRIES}", repeating_acts(stage, seed)
        return planned_acts(stage, way, stage.simulator, seed, earlier)

    def worth(
        self,
        stage: Stage,
        place: int,
        rows: Sequence[Transition],
        earlier: Sequence[Transition],
    ) -> float:
        """Return infinity for an episode that ended, or what a random one came to by its aim.

        Where one number was driven alone, that is an end which nothing else explains.
        """
        way = self.way(place)
        if way is None or not stage.note:
            if not rows[-1].terminated:
                return 0.0
            return _own_cause(rows, earlier) if way and way.alone else inf
        if way.aim == "reward" or not earlier:
            return sum(row.reward for row in rows)
        seen = EarlierRows.of(earlier).summary(Seen)
        return sum(seen.novelty(row.next_observation) for row in rows)


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
    """Goes from random to good, and to the limits.

    Random actions alone hardly meet goals, and good ones hardly failures. Who drives what is
    observed as far up and down as it goes meets the limits and ends of an environment. Of ten
    trajectories the fourth, the seventh and the tenth are never fitted to: both they and the
    others are driven up and down, in one number alone and in all of them.
    """

    def way(self, place: int) -> Way | None:
        """Return the way of a place, over and over; each round has two more corners or ends."""
        turn, number = divmod(place, len(CURATED))
        way = CURATED[number]
        return way and way._replace(corner=way.corner + 2 * turn)


CURATED: Sequence[Way | None] = (
    None,
    Way("reward", effort=0.02, chance=0.2),
    Way("extremes", corner=0, alone=True, starts=3),
    Way("reward", effort=0.1, chance=0.1),
    Way("extremes", corner=1, alone=True, starts=3),
    Way("reward"),
    Way("extremes", corner=0, alone=True, starts=3),
    Way("extremes", corner=0, starts=6),
    Way("extremes", corner=1, starts=6),
    Way("extremes", corner=1, alone=True, starts=3),
)
"""What the episodes of `curated` are planned for, by place."""


def _own_cause(rows: Sequence[Transition], earlier: Sequence[Transition]) -> float:
    """Return infinity if an episode ended where one number alone is beyond all that went on.

    That number has to be well beyond earlier ends, too, which else explain this one. Other ends
    are worth the more the fewer numbers may be their cause.
    """
    ranges, new_ranges = EarlierRows.of(earlier).summary(NumberRanges), NumberRanges()
    new_ranges.add(rows)
    going = ranges.going.union(new_ranges.going)
    last = np.array(told(rows[-1].next_observation).numbers)
    causes, new = going.beyond(last), ranges.after.beyond(last, WELL)
    return inf if causes == 1 and new else min(new, 1) + 1 / (1 + causes)


def random_acts(stage: Stage, seed: int) -> Act:
    """Draw every action from those that are allowed."""
    space = deepcopy(stage.env.action_space)
    space.seed(seed)
    return lambda *_: random_action(space, stage.task.allowed(stage.env))


def repeating_acts(stage: Stage, seed: int) -> Act:
    """Draw actions that are repeated, for longer or shorter in different episodes."""
    draw, rng = random_acts(stage, seed), np.random.default_rng(seed)
    mean, last = 2 ** rng.integers(LENGTHS), list[Any]()

    def act(observation: Any, before: int) -> Any:
        allowed = stage.task.allowed(stage.env)
        barred = allowed is not None and last and last[-1] not in allowed
        if not last or barred or rng.random() * mean < 1:
            last[:] = [draw(observation, before)]
        return last[-1]

    return act


def planned_acts(
    stage: Stage,
    way: Way,
    copy: Simulator | Remembering,
    seed: int,
    earlier: Sequence[Transition],
) -> tuple[str, Act]:
    """Return how an episode is planned, in words, and what plans its actions.

    Plans for reward are made for the whole episode, as it would be played, and others for what
    is recorded of it. What `earlier` transitions showed is not
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

    mixed = f", {way.chance:.0%} random" if way.chance else ""
    aim = "novelty" if isinstance(model, Curious) else way.aim
    return f"{aim}, {_budget(copy, way)} steps{mixed}", act


def covering_acts(stage: Stage, copy: Remembering, seed: int, earlier: Sequence[Transition]) -> Act:
    """Go to the nearest action that was not tried where it is, and to an end at last."""
    tried = set(EarlierRows.of(earlier).summary(TriedActions).pairs)
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


def _drives(stage: Stage, way: Way, copy: Simulator | Remembering | None) -> bool:
    """Whether an episode drives numbers to their ends, from its start alone."""
    if way.aim != "extremes" or copy is None or isinstance(copy, Remembering):
        return False
    leaves = space_of(stage.env.observation_space).leaves("")
    return any(leaf.space.is_float for leaf in leaves)


def _aimed(
    stage: Stage, way: Way, copy: Simulator | Remembering, earlier: Sequence[Transition]
) -> Model:
    """Return what plans are made in: a copy whose rewards are what the way aims at."""
    if way.aim == "reward":
        return copy
    if _drives(stage, way, copy):
        bounds = _bounds(stage.env.observation_space) if way.alone else None
        return Driven(copy, way.corner, bounds)
    rows = EarlierRows.of(earlier)
    return Curious(copy, rows.summary(Seen), ended=rows.summary(NumberRanges).ended)


def _bounds(space: gym.Space[Any]) -> np.ndarray:
    """Return how far apart the bounds of each real number of an observation are, nan for none."""
    leaves = [leaf.space for leaf in space_of(space).leaves("") if leaf.space.is_float]
    widths = [np.subtract(each.high, each.low, dtype=np.float64).ravel() for each in leaves]
    found = np.concatenate(widths)
    return np.where(found < np.finfo(np.float32).max, found, np.nan)


def _typed(action: Any, space: gym.Space[Any]) -> Any:
    """Return an action with the precision of its space, in which it will be recorded."""
    return action.astype(space.dtype) if isinstance(action, np.ndarray) else action


def _budget(copy: Simulator | Remembering, way: Way) -> int:
    """Return how many model steps a decision takes."""
    if copy.action_space.kind == "discrete":
        return round(way.effort * SEARCH)
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


@dataclass(frozen=True)
class NumberSpan:
    """The lowest and the highest of each number of some observations; None without any."""

    bounds: np.ndarray | None = None

    @classmethod
    def of(cls, observations: Iterable[Any]) -> Self:
        """Return the span of the numbers of observations."""
        numbers = np.array([told(observation).numbers for observation in observations])
        return cls(np.array([numbers.min(axis=0), numbers.max(axis=0)]) if len(numbers) else None)

    def union(self, other: Self) -> Self:
        """Return the span of both."""
        if self.bounds is None or other.bounds is None:
            return other if self.bounds is None else self
        (low, high), (least, most) = self.bounds, other.bounds
        return type(self)(np.array([np.minimum(low, least), np.maximum(high, most)]))

    def beyond(self, numbers: np.ndarray, share: float = 0.0) -> int:
        """Count the numbers that are outside, by a share of the width."""
        if self.bounds is None:
            return len(numbers)
        low, high = self.bounds
        room = share * (high - low)
        return int(((numbers > high + room) | (numbers < low - room)).sum())


class NumberRanges:
    """Spans after all steps and after non-terminal steps, and whether an episode ended."""

    def __init__(self) -> None:
        self.ended = False
        self.after, self.going = NumberSpan(), NumberSpan()

    def add(self, rows: Sequence[Transition]) -> None:
        """Widen the spans."""
        going = [row.next_observation for row in rows if not row.terminated]
        self.ended = self.ended or len(going) < len(rows)
        self.after = self.after.union(NumberSpan.of(row.next_observation for row in rows))
        self.going = self.going.union(NumberSpan.of(going))


class TriedActions:
    """Pairs of observation and action in the rows."""

    def __init__(self) -> None:
        self.pairs: set[tuple[Any, int]] = set()

    def add(self, rows: Sequence[Transition]) -> None:
        """Add the pairs of rows."""
        self.pairs.update((key(row.observation), row.action) for row in rows)


class Seen:
    """Seen observations: the span of real numbers, and all values of other leaves."""

    def __init__(self) -> None:
        self._span, self._others = NumberSpan(), set[Any]()
        self._low = self._high = self._width = np.empty(0)
        self._least, self._most = list[float](), list[float]()

    def add(self, rows: Sequence[Transition]) -> None:
        """Add the observations of rows."""
        observations = [each for row in rows for each in (row.observation, row.next_observation)]
        self._others.update(told(observation).other for observation in observations)
        self._span = self._span.union(NumberSpan.of(observations))
        if self._span.bounds is not None:
            self._low, self._high = self._span.bounds
            self._least, self._most = self._low.tolist(), self._high.tolist()
            width = self._high - self._low
            self._width = np.where(width > 0, width, 1.0)

    def novelty(self, observation: Any) -> float:
        """Return how far an observation is from all that was seen."""
        numbers, other = told(observation)
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

    With the widths of `bounds` one number goes alone, at a small charge for what the others stray
    from where they began: the limit of a track is told from a fall only where nothing falls
    there. First goes the one that random walks leave farthest from its bounds, up in the first
    corner, down in the second, then the next one; those without bounds go last.
    """

    def __init__(
        self, simulator: Simulator | Remembering, corner: int, bounds: np.ndarray | None = None
    ) -> None:
        self._simulator = simulator
        self._corner = corner
        self._bounds = bounds
        self._scale = self._far = self._shown = self._charge = self._start = np.empty(0)
        self.action_space = simulator.action_space
        self.deterministic = simulator.deterministic
        self.counter: Counter = simulator.counter

    def measure(
        self, state: Any, observation: Any, valid: Any, actions: gym.Space[Any], steps: int
    ) -> None:
        """Find out where an episode starts, and how far each number goes from there by itself."""
        found = [np.array(told(observation).numbers)]
        for _ in range(WALKS):
            self._simulator.stand(state)
            allowed = valid
            for _ in range(steps):
                step = self._simulator.step(random_action(actions, allowed))
                found.append(np.array(told(step.observation).numbers))
                allowed = step.valid
                if step.terminated:
                    break
        span, size = np.ptp(found, axis=0), np.abs(found).max(axis=0)
        numbers = np.arange(len(span)) & self._corner // 2
        signs = [(-1) ** (int(number).bit_count() + self._corner) for number in numbers]
        self._start = found[0]
        self._scale = np.array(signs) / np.where(span > STILL * (1 + size), span, 1 + size)
        self._charge = np.zeros(len(span))
        if self._bounds is not None:
            unit, order = np.abs(self._scale), np.argsort(span / self._bounds, kind="stable")
            alone = order[self._corner // 2 % len(span)]
            self._charge = STRAYING * unit / len(span)
            self._charge[alone] = 0.0
            self._scale = np.zeros(len(span))
            self._scale[alone] = -unit[alone] if self._corner % 2 else unit[alone]
        self._shown = self._scale * self._start

    def reached(self, state: Any, observation: Any) -> Any:
        """Return the state of an episode that has reached an observation."""
        self._shown = np.maximum(self._shown, self._scale * told(observation).numbers)
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
        before, numbers = self._far, np.array(told(observation).numbers)
        self._far = np.maximum(before, self._scale * numbers)
        reward = float((self._far - before).sum())
        if self._bounds is not None:
            strayed = float(self._charge @ np.abs(numbers - self._start))
            reward -= strayed * (STRAYED_END if terminated else 1.0)
        return Step(observation, reward, terminated, valid)


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
