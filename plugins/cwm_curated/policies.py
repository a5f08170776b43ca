"""Policies that plan in a copy of the environment: `planner` and `curated`.

They plan for reward, for new observations, or for extremes of the numbers in observations.
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
    ExtremesModel,
    NoveltyModel,
    NumberRanges,
    SeenObservations,
    TriedActions,
    has_rare_outcomes,
)

if TYPE_CHECKING:
    import gymnasium as gym

Aim = Literal["reward", "extremes"]

CONTINUOUS_BUDGET: Mapping[Aim, int] = {"reward": 500, "extremes": 100}
"""Model steps per decision for actions of real numbers; more steps reach no farther extremes."""

MAX_STATES = 10_000
"""Maximum number of states that a search for untried actions, or value iteration, visits."""


class EpisodePlan(NamedTuple):
    """The aim of an episode, and the quality of its plans.

    Attributes:
        aim: With `reward`, plans maximise the return. With `extremes`, they drive every number of
            the observation to an extreme; without real numbers, they look for new observations.
        effort: Fraction of the budget of model steps.
        chance: Fraction of random actions.
        starts: Maximum number of episodes to try until one ends, if no earlier episode has ended.
            With `alone`, they are tried if an earlier episode has ended, to find an end that this
            number causes.
        corner: Chooses the extremes.
        alone: Whether to drive only one number.
    """

    aim: Aim
    effort: float = 1.0
    chance: float = 0.0
    starts: int = 1
    corner: int = 0
    alone: bool = False


@dataclass
class PlannedPolicy(Policy):
    """Base class of policies that plan actions in a copy of the environment.

    Without a copy, the best of a few random episodes is used, so that no episode takes more than
    ten times as long as a random episode.
    """

    copies: Copies = "measured"
    """measured: measure on this machine whether copies of the environment are cheap enough for
    planning; cheap, dear: assume that they are, or are not."""

    def plan_for(self, place: int) -> EpisodePlan | None:
        """Return the plan of the episode at a place; None for random actions."""
        raise NotImplementedError

    def prepare(self, stage: Stage) -> None:
        """Check whether the environment can be copied."""
        if stage.copies == "measured":
            stage.copies = self.copies
        _ = stage.simulator

    def looks_back(self, stage: Stage, place: int) -> bool:
        """Return whether the episode aims at new observations, or at a first end."""
        plan = self.plan_for(place)
        if plan is None or plan.aim == "reward":
            return False
        return plan.alone or plan.starts > 1 or not _drives_numbers(stage, plan, stage.simulator)

    def starts(self, stage: Stage, place: int, earlier: Sequence[Transition]) -> int:
        """Return the number of episodes to try at a place."""
        plan = self.plan_for(place)
        if plan is None:
            return 1
        ended = EarlierRows.of(earlier).summary(NumberRanges).ended
        return TRIES if stage.note else plan.starts if ended == plan.alone else 1

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Plan the actions, or draw them if there is no copy to plan in."""
        plan = self.plan_for(place)
        if plan is None:
            return "random", random_acts(stage, seed)
        if stage.simulator is None:
            return f"{plan.aim}, best of {TRIES}", repeating_acts(stage, seed)
        return planned_acts(stage, plan, stage.simulator, seed, earlier)

    def worth(
        self,
        stage: Stage,
        place: int,
        rows: Sequence[Transition],
        earlier: Sequence[Transition],
    ) -> float:
        """Return infinity for an episode that ended, or the value of a random episode for its aim.

        If one number was driven alone, an end has infinite value only if no other number explains
        it.
        """
        plan = self.plan_for(place)
        if plan is None or not stage.note:
            if not rows[-1].terminated:
                return 0.0
            return _end_value(rows, earlier) if plan and plan.alone else inf
        if plan.aim == "reward" or not earlier:
            return sum(row.reward for row in rows)
        seen = EarlierRows.of(earlier).summary(SeenObservations)
        return sum(seen.novelty(row.next_observation) for row in rows)


@dataclass
class PlannerPolicy(PlannedPolicy):
    """A policy that plans every episode for reward."""

    effort: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Model steps per decision, as a fraction of the usual number."""
    chance: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Fraction of the actions that are random."""

    def plan_for(self, place: int) -> EpisodePlan:
        """Return a plan for reward at every place."""
        return EpisodePlan("reward", self.effort, self.chance)


@dataclass
class CuratedPolicy(PlannedPolicy):
    """A policy with random episodes, good episodes, and episodes at the limits.

    Random actions rarely reach goals, and good actions rarely fail. Driving the observed numbers
    as far up and down as possible reaches the limits and ends of an environment. Of ten
    trajectories, the fourth, the seventh and the tenth are never fitted to. Both they and the other
    trajectories contain episodes with one number and with all numbers driven up and down.
    """

    def plan_for(self, place: int) -> EpisodePlan | None:
        """Return the plan of a place; plans repeat in rounds, each with the next two corners."""
        round_number, number = divmod(place, len(CURATED))
        plan = CURATED[number]
        return plan and plan._replace(corner=plan.corner + 2 * round_number)

    def needs_more(self, episodes: Sequence[Sequence[Transition]]) -> bool:
        """Return whether a reward or an end of an episode was too rare to explain it."""
        return has_rare_outcomes(row for rows in episodes for row in rows)


CURATED: Sequence[EpisodePlan | None] = (
    None,
    EpisodePlan("reward", effort=0.02, chance=0.2),
    EpisodePlan("extremes", corner=0, alone=True, starts=3),
    EpisodePlan("reward", effort=0.1, chance=0.1),
    EpisodePlan("extremes", corner=1, alone=True, starts=3),
    EpisodePlan("reward"),
    EpisodePlan("extremes", corner=0, alone=True, starts=3),
    EpisodePlan("extremes", corner=0, starts=6),
    EpisodePlan("extremes", corner=1, starts=6),
    EpisodePlan("extremes", corner=1, alone=True, starts=3),
)
"""Plans of the episodes of `curated`, by place; None for random actions."""


def _end_value(rows: Sequence[Transition], earlier: Sequence[Transition]) -> float:
    """Return the value of an end: infinity if exactly one number can be its cause.

    This number is outside the range after all non-terminal steps. A number must also be well
    outside the range of earlier ends, which otherwise explain this end. Other ends have a higher
    value if fewer numbers can be their cause.
    """
    ranges, new_ranges = EarlierRows.of(earlier).summary(NumberRanges), NumberRanges()
    new_ranges.add(rows)
    going = ranges.going.union(new_ranges.going)
    last = np.array(told(rows[-1].next_observation).numbers)
    # an end beyond earlier ends by less than this fraction of their range may have the same cause
    new_end_fraction = 0.1
    causes, new = going.beyond(last), ranges.after.beyond(last, new_end_fraction)
    return inf if causes == 1 and new else min(new, 1) + 1 / (1 + causes)


def repeating_acts(stage: Stage, seed: int) -> Act:
    """Return random actions that are repeated; the mean length depends on the episode's seed."""
    draw, rng = random_acts(stage, seed), np.random.default_rng(seed)
    # number of mean lengths of repeated actions (1, 2, 4, ...): no length suits every task
    mean_lengths = 6
    mean, last = 2 ** rng.integers(mean_lengths), list[Any]()

    def act(observation: Any, before: int) -> Any:
        allowed = stage.task.allowed(stage.env)
        invalid = allowed is not None and last and last[-1] not in allowed
        if not last or invalid or rng.random() * mean < 1:
            last[:] = [draw(observation, before)]
        return last[-1]

    return act


def planned_acts(
    stage: Stage,
    plan: EpisodePlan,
    copy: Simulator | CachingSimulator,
    seed: int,
    earlier: Sequence[Transition],
) -> tuple[str, Act]:
    """Return a short description of the plans of an episode, and a function that plans actions.

    Plans for reward cover the whole episode, other plans only its recorded part. If observations
    identify the states, plans for extremes try every action in every state instead.

    Args:
        stage: The recorded environment.
        plan: The plan of the episode.
        copy: The copy of the environment.
        seed: The seed of the episode.
        earlier: Rows of earlier episodes, whose observations are not new.
    """
    if plan.aim != "reward" and isinstance(copy, CachingSimulator):
        return "coverage", covering_acts(stage, copy, seed, earlier)
    model, begin = (
        _planning_model(stage, plan, copy, earlier),
        None if copy.deterministic else _seed_decisions(copy, seed),
    )
    decider = Decider(_planners(copy, plan), model, seed=seed, begin=begin)
    limit = step_limit(stage.env, None if plan.aim == "reward" else stage.max_steps)
    draw, rng = random_acts(stage, seed), np.random.default_rng(seed)

    def act(observation: Any, before: int) -> Any:
        state, valid = copy.state_of(stage.env, observation), stage.task.allowed(stage.env)
        if isinstance(model, ExtremesModel):
            if before == 0:
                space = deepcopy(stage.env.action_space)
                space.seed(seed)
                model.measure(state, observation, valid, space, stage.max_steps)
            state = model.reached(state, observation)
        if rng.random() < plan.chance:
            return draw(observation, before)
        moment = Moment(0, before, state, max(1, limit - before), valid)
        action = decider.plan([moment])[0][0]
        if isinstance(action, np.ndarray):  # in the precision that will be recorded
            return action.astype(stage.env.action_space.dtype)
        return action

    mixed = f", {plan.chance:.0%} random" if plan.chance else ""
    aim = "novelty" if isinstance(model, NoveltyModel) else plan.aim
    return f"{aim}, {_budget(copy, plan)} steps{mixed}", act


def covering_acts(
    stage: Stage, copy: CachingSimulator, seed: int, earlier: Sequence[Transition]
) -> Act:
    """Return a function that goes to the nearest untried action, and finally to an end."""
    tried = deepcopy(EarlierRows.of(earlier).summary(TriedActions))
    rng, draw = np.random.default_rng(seed), random_acts(stage, seed)

    def act(observation: Any, before: int) -> Any:
        state, valid = copy.state_of(stage.env, observation), stage.task.allowed(stage.env)
        action = _find_untried(copy, state, valid, tried, stage.max_steps - before, rng)
        action = draw(observation, before) if action is None else action
        tried.pairs.add((key(observation), action))
        return action

    return act


def _find_untried(
    copy: CachingSimulator,
    state: Named,
    valid: Sequence[int] | None,
    tried: TriedActions,
    left: int,
    rng: np.random.Generator,
) -> int | None:
    """Return the first action towards the nearest untried pair of state and action.

    Pairs that end the episode come last, when just enough steps are left. Among them, a pair is
    chosen whose reward ended the fewest episodes, and an untried pair if possible.
    """
    low, high = int(copy.action_space.low[0]), int(copy.action_space.high[0])
    every = range(low, high + 1)
    nearest: int | None = None
    end: int | None = None
    rank, depth_of_end = (inf, True), 0  # lower is better: episodes with this end, whether tried
    queue, visited = deque([(state, valid or every, 1, None)]), {state}
    # Maximum number of states that a search visits for an end after it found an untried action.
    # With 10,000, a decision took 0.3 to 3 s in spaces of more states, and most of a recording's
    # time.
    max_end_search = 1_000
    while queue and len(visited) < (MAX_STATES if nearest is None else max_end_search):
        if nearest is not None and rank == (0, False):
            break  # no other action or end is better
        state, valid, depth, first = queue.popleft()
        if depth > left:
            break
        for action in rng.permutation(valid).tolist():
            copy.stand(state)
            step = copy.step(action)
            start = action if first is None else first
            known = (state.name, action) in tried.pairs
            if step.terminated:
                if (tried.ends[step.reward], known) < rank:
                    end, rank, depth_of_end = start, (tried.ends[step.reward], known), depth
                continue
            if not known and nearest is None:
                nearest = start
            if (here := copy.here()) not in visited:
                visited.add(here)
                queue.append((here, step.valid or every, depth + 1, start))
    # an episode goes to an end when fewer steps are left than its distance plus this number
    spare_steps = 2
    if end is not None and (nearest is None or depth_of_end + spare_steps > left):
        return end
    return nearest


def _drives_numbers(
    stage: Stage, plan: EpisodePlan, copy: Simulator | CachingSimulator | None
) -> bool:
    """Return whether an episode drives real numbers to their extremes."""
    if plan.aim != "extremes" or copy is None or isinstance(copy, CachingSimulator):
        return False
    leaves = space_of(stage.env.observation_space).leaves("")
    return any(leaf.space.is_float for leaf in leaves)


def _planning_model(
    stage: Stage,
    plan: EpisodePlan,
    copy: Simulator | CachingSimulator,
    earlier: Sequence[Transition],
) -> Model:
    """Return the model to plan in: a copy of the environment with a reward for the aim."""
    if plan.aim == "reward":
        return copy
    if _drives_numbers(stage, plan, copy):
        bounds = _bounds(stage.env.observation_space) if plan.alone else None
        return ExtremesModel(copy, plan.corner, bounds)
    rows = EarlierRows.of(earlier)
    return NoveltyModel(
        copy, rows.summary(SeenObservations), ended=rows.summary(NumberRanges).ended
    )


def _bounds(space: gym.Space[Any]) -> np.ndarray:
    """Return the width of the bounds of each real number of an observation; NaN without bounds."""
    leaves = [leaf.space for leaf in space_of(space).leaves("") if leaf.space.is_float]
    widths = [np.subtract(each.high, each.low, dtype=np.float64).ravel() for each in leaves]
    width = np.concatenate(widths)
    return np.where(width < np.finfo(np.float32).max, width, np.nan)


def _budget(copy: Simulator | CachingSimulator, plan: EpisodePlan) -> int:
    """Return the number of model steps per decision."""
    if copy.action_space.kind == "discrete":
        discrete_budget = 1000  # model steps per decision for discrete actions
        return round(plan.effort * discrete_budget)
    # minimum number of model steps per decision for actions of real numbers
    min_continuous_budget = 12
    return max(min_continuous_budget, round(plan.effort * CONTINUOUS_BUDGET[plan.aim]))


def _planners(copy: Simulator | CachingSimulator, plan: EpisodePlan) -> Sequence[planning.Planner]:
    """Return the planners in the order to try them.

    Value iteration comes first if observations identify the states, which may be few.
    """
    budget = _budget(copy, plan)
    if copy.action_space.kind != "discrete":
        return [Icem(budget=budget)]
    min_rollouts = 5  # minimum number of rollouts per decision
    search = Mcts(budget=budget, rollout=max(1, budget // min_rollouts))
    known = isinstance(copy, CachingSimulator) and plan == EpisodePlan("reward")
    return [Tabular(states=MAX_STATES), search] if known else [search]


def _seed_decisions(copy: Simulator | CachingSimulator, seed: int) -> Callable[[Moment], None]:
    """Seed the copy for each decision, so that random outcomes do not depend on earlier plans."""

    def begin(moment: Moment) -> None:
        rng = np.random.default_rng([seed, moment.decision, 1])
        for generator in copy.rewinder.generators():
            if generator not in GLOBAL:
                reseed(generator, rng)

    return begin
