"""Who chooses the actions of an episode: chance, or a planner in a simulator."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cwm_cli.agents.collection.aims import Curious, Seen
from cwm_cli.agents.collection.policies import Aim, Way
from cwm_cli.data.dataset import Transition
from cwm_cli.envs.simulators import Opening, Remembering, Simulator
from cwm_cli.envs.simulators.chance import GLOBAL, reseed
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.tasks import Task, random_action, step_limit
from cwm_cli.errors import CwmError
from cwm_cli.planning import PLANNERS, Decider, Moment, Planner, find_planner, serving
from cwm_cli.planning.icem import Icem
from cwm_cli.planning.mcts import Mcts
from cwm_cli.planning.model import Model
from cwm_cli.planning.tabular import Tabular

if TYPE_CHECKING:
    import gymnasium as gym

Act = Callable[[Any, int], Any]
"""Chooses an action, given the observation and the number of steps before."""

SEARCH: Mapping[Aim, int] = {"reward": 1000, "novelty": 1000}
"""Model steps of a decision among discrete actions."""

SAMPLES: Mapping[Aim, int] = {"reward": 500, "novelty": 100}
"""Model steps of a decision of real numbers; with more, no more novelty is found."""

FEWEST = 12
"""Model steps that such a decision takes at least."""

MOST = 10_000
"""States that are tried all, where observations tell them."""

ROLLOUTS = 5
"""Rollouts that a decision takes at least."""


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
    env: "gym.Env[Any, Any]" = field(init=False)

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
    novelty for what is recorded of it. What `earlier` transitions showed is not new.
    """
    model: Model = copy if way.aim == "reward" else _curious(copy, earlier)
    begin = None if copy.deterministic else _chances(copy, seed)
    decider = Decider(_planners(copy, way), model, seed=seed, begin=begin)
    limit = step_limit(stage.env, None if way.aim == "reward" else stage.max_steps)
    draw, rng = random_acts(stage, seed), np.random.default_rng(seed)

    def act(observation: Any, before: int) -> Any:
        if rng.random() < way.chance:
            return draw(observation, before)
        state, valid = copy.state_of(stage.env, observation), stage.task.allowed(stage.env)
        moment = Moment(0, before, state, max(1, limit - before), valid)
        return _typed(decider.plan([moment])[0][0], stage.env.action_space)

    return _name(way, _budget(copy, way)), act


def _curious(copy: Simulator | Remembering, earlier: Sequence[Transition]) -> Curious:
    """Return a copy that rewards what is unlike all that earlier transitions showed."""
    seen = Seen([each for row in earlier for each in (row.observation, row.next_observation)])
    return Curious(copy, seen, ended=any(row.terminated for row in earlier))


def _typed(action: Any, space: "gym.Space[Any]") -> Any:
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


def _planners(copy: Simulator | Remembering, way: Way) -> Sequence[Planner]:
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
