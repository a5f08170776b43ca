"""Monte Carlo tree search, for discrete actions."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import exp, inf
from typing import Any, ClassVar, Literal

from cwm_cli.data.spaces import Space
from cwm_cli.planning import lockstep
from cwm_cli.planning.draws import Draws
from cwm_cli.planning.graph import Graph
from cwm_cli.planning.model import Joining, Model, Unbatched
from cwm_cli.planning.planner import Situation
from cwm_cli.planning.plans import PlanTree
from cwm_cli.planning.states import countable
from cwm_cli.planning.tree import Effort, Tree, Tried

EFFORTS: Mapping[str, Effort] = {
    "default": Effort(1000, 1000, rollout=200, exploration=1.0, discount=0.99, temperature=0.0),
    "paper": Effort(25, None, rollout=100, exploration=1.0, discount=0.99, temperature=0.01),
}
"""`paper` are the published values."""


@dataclass(frozen=True)
class Mcts:
    """Plans one action, by simulating what may follow each.

    `preset` gives the values of the options that are not set. A decision ends
    when `simulations` are done or `budget` steps of the model are taken.
    """

    NEEDS: ClassVar[str] = "discrete actions"

    preset: Literal["default", "paper"] = "default"
    simulations: int | None = None
    budget: int | None = None
    rollout: int | None = None
    exploration: float | None = None
    discount: float | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        effort = self.effort
        if min(effort.simulations, effort.rollout, effort.budget or 1) < 1 or effort.budget == 0:
            raise ValueError("simulations, budget and rollout must be at least 1")
        if not (0 <= effort.exploration < inf and 0 <= effort.temperature < inf):
            raise ValueError("exploration and temperature must not be negative")
        if not 0 <= effort.discount <= 1:
            raise ValueError("discount must be from 0 to 1")

    @property
    def effort(self) -> Effort:
        """The values of the preset, but for those that were set."""
        chosen = {name: getattr(self, name) for name in Effort._fields}
        given = {name: value for name, value in chosen.items() if value is not None}
        return EFFORTS[self.preset]._replace(**given)

    @staticmethod
    def serves(action_space: Space) -> bool:
        """Whether this planner can choose among such actions."""
        return action_space.kind == "discrete"

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the next action of each situation."""
        if self.preset == "paper":
            return _published(model, situations, self.effort)
        return [[_decide(model, situation, self.effort)] for situation in situations]


def _published(model: Model, situations: Sequence[Situation], effort: Effort) -> list[list[Any]]:
    """Grow a tree for every situation, side by side where that is possible and worth it."""
    draws = [
        Draws(each.seed, model.action_space, steps=effort.rollout, simulations=effort.simulations)
        for each in situations
    ]
    trees = _forest(model, situations, effort, draws)
    pairs = zip(trees, draws, strict=True)
    return [[choose(tried, effort.temperature, numbers.last)] for tried, numbers in pairs]


def _forest(
    model: Model, situations: Sequence[Situation], effort: Effort, draws: Sequence[Draws]
) -> list[Tried]:
    """Return what the trees of all situations have tried."""
    search = getattr(model, "search", None)
    if search and all(each.valid is None for each in situations):
        with suppress(Unbatched):
            return [
                search(situation.state, situation.horizon, effort, numbers)
                for situation, numbers in zip(situations, draws, strict=True)
            ]
    if lockstep.serves(model, situations, effort) and isinstance(model.batch, Joining):
        with suppress(Unbatched):
            return lockstep.Forest(model, situations, effort, draws).search(model.batch)
    pairs = zip(situations, draws, strict=True)
    return [Tree(model, situation, effort, numbers).search() for situation, numbers in pairs]


def _decide(model: Model, situation: Situation, effort: Effort) -> int:
    """Search on from what is remembered of the episode, in the way that suits the model.

    Where states come again they are gathered in a graph; otherwise plans are improved.
    """
    if not isinstance(situation.memory, PlanTree | Graph):
        repeats = not model.deterministic or countable(situation.state)
        situation.memory = (Graph if repeats else PlanTree)(model, effort)
    tried = situation.memory.search(situation)
    return choose(tried, effort.temperature, situation.rng.random())


def choose(tried: Tried, temperature: float, number: float) -> int:
    """Draw an action by its value, among those that were tried; `number` is below 1.

    At temperature 0 it is one of those of the highest value.
    """
    best = max(value for value, count in zip(tried.values, tried.visits, strict=True) if count)
    weights = [
        (exp((value - best) / temperature) if temperature else value == best) if count else 0.0
        for value, count in zip(tried.values, tried.visits, strict=True)
    ]
    left = number * sum(weights)
    for action, weight in zip(tried.actions, weights, strict=True):
        left -= weight
        if left < 0:
            return action
    return tried.actions[weights.index(max(weights))]
