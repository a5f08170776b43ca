"""Policies that plan in a copy of the environment: `planner` and `curated`.

They plan for reward, for observations that no row has, or to the limits of observations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from cwm_cli import planning
from cwm_cli.commands.policies import (
    TRIES,
    Act,
    Copies,
    EarlierRows,
    Policy,
    Stage,
    random_acts,
    told,
)
from cwm_cli.data.dataset import Transition
from cwm_cli.envs.saving import GLOBAL, reseed
from cwm_cli.envs.simulators import CachingSimulator, Simulator
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import step_limit
from cwm_cli.planning import Decider, Moment
from cwm_cli.planning.cem import Icem
from cwm_cli.planning.mcts import Mcts
from cwm_cli.planning.model import Model, Named, key
from cwm_cli.planning.tabular import Tabular
from cwm_curated.aims import (
    Curious,
    Driven,
    NumberRanges,
    Seen,
    TriedActions,
    has_rare_outcomes,
)

if TYPE_CHECKING:
    import gymnasium as gym

Aim = Literal["reward", "extremes"]

SEARCH = 1000
"""Model steps of a decision among discrete actions."""

SAMPLES: Mapping[Aim, int] = {"reward": 500, "extremes": 100}
"""Model steps of a decision of real numbers; more do not drive numbers farther."""

FEWEST = 12
"""Least number of model steps of a decision of real numbers."""

MOST = 10_000
"""Largest number of states that a search for untried actions, or value iteration, visits."""

MAX_END_SEARCH = 1_000
"""Maximum number of states that a search visits for an end after it found an untried action.

With 10,000, a decision took 0.3 to 3 s in spaces of more states, and most of a recording's time.
"""

ROLLOUTS = 5
"""Least number of rollouts of a decision."""

WELL = 0.1
"""An end beyond earlier ends by less than this fraction of their range may share their cause."""

RESERVE = 2
"""Spare steps with which an episode heads for an end that no earlier episode reached."""

LENGTHS = 6
"""Number of mean lengths of repeated actions (1, 2, 4, ...): no length suits every task."""


class Way(NamedTuple):
    """The aim of the plans of an episode, and their quality.

    With the aim `reward`, plans maximise the return. With `extremes`, they drive every number of
    the observation, or one number `alone`, to an extreme that the `corner` chooses; if there are no
    real numbers, they look for new observations. Plans take the share `effort` of the budget, and
    the share `chance` of the actions is random.

    As long as no earlier episode ended, up to `starts` episodes are tried to find one that ends.
    With a number `alone` they are tried once an episode ended, to find an end that this number
    causes.
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

    If there is no copy, the best of a few random episodes is used, so that no episode takes more
    than ten times as long as a random one.
    """

    copies: Copies = "measured"
    """measured: measure on this machine whether copies of the environment are cheap enough for
    planning; cheap, dear: assume that they are, or are not."""

    def way(self, place: int) -> Way | None:
        """Return what the episode at a place is planned for, None if its actions are random."""
        raise NotImplementedError

    def prepare(self, stage: Stage) -> None:
        """Check whether there is a copy to plan in."""
        if stage.copies == "measured":
            stage.copies = self.copies
        _ = stage.simulator

    def looks_back(self, stage: Stage, place: int) -> bool:
        """Whether the episode aims at new observations, or at an end if no episode has ended."""
        way = self.way(place)
        if way is None or way.aim == "reward":
            return False
        return way.alone or way.starts > 1 or not _drives(stage, way, stage.simulator)

    def starts(self, stage: Stage, place: int, earlier: Sequence[Transition]) -> int:
        """Return the number of episodes to try at a place."""
        way = self.way(place)
        if way is None:
            return 1
        ended = EarlierRows.of(earlier).summary(NumberRanges).ended
        return TRIES if stage.note else way.starts if ended == way.alone else 1

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Plan the actions, or draw them if there is no copy to plan in."""
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
        """Return infinity for an episode that ended, or the value of a random episode for its aim.

        If one number was driven alone, only an end that no other number explains is worth infinity.
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
    """Model steps per decision, as a fraction of the usual number."""
    chance: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Fraction of the actions that are random."""

    def way(self, place: int) -> Way:
        """Plan for reward at every place."""
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
        """Return the way of a place. Ways repeat in rounds, each with two more corners or ends."""
        turn, number = divmod(place, len(CURATED))
        way = CURATED[number]
        return way and way._replace(corner=way.corner + 2 * turn)

    def needs_more(self, episodes: Sequence[Sequence[Transition]]) -> bool:
        """Return whether a reward or an end of an episode was too rare to explain it."""
        return has_rare_outcomes(row for rows in episodes for row in rows)


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
    copy: Simulator | CachingSimulator,
    seed: int,
    earlier: Sequence[Transition],
) -> tuple[str, Act]:
    """Return how an episode is planned, in words, and what plans its actions.

    Plans for reward cover the whole episode, other plans only its recorded part. Observations of
    `earlier` transitions are not new. If observations identify the states, every action is tried in
    every state instead.
    """
    if way.aim != "reward" and isinstance(copy, CachingSimulator):
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


def covering_acts(
    stage: Stage, copy: CachingSimulator, seed: int, earlier: Sequence[Transition]
) -> Act:
    """Go to the nearest untried pair of state and action, and to an end with the last steps."""
    tried = deepcopy(EarlierRows.of(earlier).summary(TriedActions))
    rng, draw = np.random.default_rng(seed), random_acts(stage, seed)

    def act(observation: Any, before: int) -> Any:
        state, valid = copy.state_of(stage.env, observation), stage.task.allowed(stage.env)
        action = _untried(copy, state, valid, tried, stage.max_steps - before, rng)
        action = draw(observation, before) if action is None else action
        tried.pairs.add((key(observation), action))
        return action

    return act


def _untried(
    copy: CachingSimulator,
    state: Named,
    valid: Sequence[int] | None,
    tried: TriedActions,
    left: int,
    rng: np.random.Generator,
) -> int | None:
    """Return the first action towards the nearest untried pair of state and action.

    Pairs that end the episode come last, when just enough steps are left for them. Of these, one
    with the reward that ended the fewest episodes is chosen, and an untried one if possible.
    """
    low, high = int(copy.action_space.low[0]), int(copy.action_space.high[0])
    every = range(low, high + 1)
    nearest: int | None = None
    end: int | None = None
    rank, depth_of_end = (inf, True), 0  # lower is better: episodes with this end, whether tried
    waiting, met = deque([(state, valid or every, 1, None)]), {state}
    while waiting and len(met) < (MOST if nearest is None else MAX_END_SEARCH):
        if nearest is not None and rank == (0, False):
            break  # no other action or end is better
        state, valid, depth, first = waiting.popleft()
        if depth > left:
            break
        for action in rng.permutation(valid).tolist():
            copy.stand(state)
            step = copy.step(action)
            way, known = action if first is None else first, (state.name, action) in tried.pairs
            if step.terminated:
                if (tried.ends[step.reward], known) < rank:
                    end, rank, depth_of_end = way, (tried.ends[step.reward], known), depth
                continue
            if not known and nearest is None:
                nearest = way
            if (here := copy.here()) not in met:
                met.add(here)
                waiting.append((here, step.valid or every, depth + 1, way))
    if end is not None and (nearest is None or depth_of_end + RESERVE > left):
        return end
    return nearest


def _drives(stage: Stage, way: Way, copy: Simulator | CachingSimulator | None) -> bool:
    """Whether an episode drives numbers to their ends, from its start alone."""
    if way.aim != "extremes" or copy is None or isinstance(copy, CachingSimulator):
        return False
    leaves = space_of(stage.env.observation_space).leaves("")
    return any(leaf.space.is_float for leaf in leaves)


def _aimed(
    stage: Stage, way: Way, copy: Simulator | CachingSimulator, earlier: Sequence[Transition]
) -> Model:
    """Return the model to plan in: a copy with the aim of the way as its reward."""
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
    """Return an action with the precision of its space, as it will be recorded."""
    return action.astype(space.dtype) if isinstance(action, np.ndarray) else action


def _budget(copy: Simulator | CachingSimulator, way: Way) -> int:
    """Return how many model steps a decision takes."""
    if copy.action_space.kind == "discrete":
        return round(way.effort * SEARCH)
    return max(FEWEST, round(way.effort * SAMPLES[way.aim]))


def _planners(copy: Simulator | CachingSimulator, way: Way) -> Sequence[planning.Planner]:
    """Return the planners to try, the one to try first first.

    Where observations tell the few states there are, values of all states are known soon.
    """
    budget = _budget(copy, way)
    if copy.action_space.kind != "discrete":
        return [Icem(budget=budget)]
    search = Mcts(budget=budget, rollout=max(1, budget // ROLLOUTS))
    known = isinstance(copy, CachingSimulator) and way == Way("reward")
    return [Tabular(states=MOST), search] if known else [search]


def _chances(copy: Simulator | CachingSimulator, seed: int) -> Callable[[Moment], None]:
    """Seed the copy for each decision, so that chance does not depend on earlier plans."""

    def begin(moment: Moment) -> None:
        rng = np.random.default_rng([seed, moment.decision, 1])
        for generator in copy.rewinder.generators():
            if generator not in GLOBAL:
                reseed(generator, rng)

    return begin
