"""What a planner is, and what it is asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Model
from cwm_cli.presets import WithPresets


class Unsuited(Exception):
    """A planner cannot plan with this model; the text says why, without naming the planner."""


class Moment(NamedTuple):
    """Where an episode stands when its decision of a number is due, counted from 0.

    `state` is an observation, or for a simulator what it has saved. `horizon` is
    how many steps the episode can still last. `valid` are the actions that are
    allowed, None where all are.
    """

    episode: int
    decision: int
    state: Any
    horizon: int
    valid: tuple[int, ...] | None = None


@dataclass
class Situation:
    """A moment as a planner sees it: with random numbers, and what it remembers of the episode.

    What the planner leaves in `memory` comes back with the next decision of the same
    episode: a tree that is searched on, a plan that is refined.
    """

    state: Any
    horizon: int
    seeds: tuple[int, ...]
    memory: Any = None
    valid: tuple[int, ...] | None = None

    @cached_property
    def rng(self) -> np.random.Generator:
        """All that is random in a decision, so that equal seeds give equal plans."""
        return np.random.default_rng(self.seeds)


class Planner(WithPresets):
    """Chooses actions by trying them in a model; a dataclass whose fields are its options.

    In the order of its life: `serves` and `rank` say, from the spaces of an
    environment, whether it can choose actions there and whether it does so
    unasked. It is made with its options; what makes no sense is a `ValueError`.
    Then `plan` is called with a model (`cwm_cli.planning.model.Model`) for each
    decision, for as many episodes at once as are played side by side.

    It runs in the process of the program, where only numpy and the standard
    library can be imported; workers that were prepared with the address of a planner
    import it when they start. All that is random comes from `Situation.rng`, and what is
    planned for a situation does not depend on those beside it.

    A planner that takes the action of the highest next reward:

        @dataclass(frozen=True)
        class Greedy(Planner):
            NEEDS: ClassVar[str] = "discrete actions"

            @classmethod
            def serves(cls, action_space):
                return action_space.kind == "discrete"

            def plan(self, model, situations):
                return [[self._best(model, each.state, each.valid)] for each in situations]

            def _best(self, model, state, valid):
                low, high = int(model.action_space.low[0]), int(model.action_space.high[0])
                rewards = {}
                for action in valid or range(low, high + 1):
                    model.stand(state)
                    rewards[action] = model.step(action).reward
                return max(rewards, key=rewards.get)
    """

    NEEDS: ClassVar[str]
    """What kind of environment it takes, in words that follow "needs"."""

    SEGMENT: ClassVar[int] = 25
    """Decisions after which it begins an episode anew, without what it remembers.

    So any of them can be made again without all of those before. Planners whose plans are
    long say more.
    """

    ALONE: ClassVar[bool] = False
    """Whether it is asked for one situation after the other, as it is no faster for several."""

    @classmethod
    def serves(cls, action_space: Space) -> bool:
        """Whether this planner can choose among such actions."""
        raise NotImplementedError

    @classmethod
    def rank(cls, observation_space: Space, action_space: Space) -> float | None:
        """Return its place among the planners that are tried unasked, the lowest first.

        None, as here, where it plans only when it is named.
        """
        return None

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return, for each situation, the next actions: at least one, at most its horizon.

        `Unsuited`, with the reason, where it cannot plan with this model; then the
        next planner is asked.
        """
        raise NotImplementedError
