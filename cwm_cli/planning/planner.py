"""Planners: the base class, and the decider that asks them for the actions of episodes."""

from collections.abc import Callable, Mapping, Sequence
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


def serving(planners: Mapping[str, type[Planner]], action_space: Space) -> list[str]:
    """Name the planners that can choose among some actions."""
    return [name for name, planner in planners.items() if planner.serves(action_space)]


def automatic(
    planners: Mapping[str, type[Planner]], observation_space: Space, action_space: Space
) -> list[str]:
    """Name the planners that plan where none is named, the one to try first first."""
    ranks = {
        name: planners[name].rank(observation_space, action_space)
        for name in serving(planners, action_space)
    }
    ranked = [(rank, name) for name, rank in ranks.items() if rank is not None]
    return [name for _, name in sorted(ranked)]


MEMORIES = 16
"""Number of episodes with a memory: at least twice the number of parallel episodes."""


class Decider:
    """Plans with the first planner that suits the model, and keeps the memory of each episode.

    `passed_over` has the reason why each planner before that one was not used, `steps` the number
    of model steps of each of the last decisions. The memory of an episode is dropped after
    `SEGMENT` decisions of the planner, and after a decision that the planner did not make.

    The random numbers of a decision depend only on the seed, the episode and the number of the
    decision. If the model draws random numbers itself, its generator is set from these before
    each decision, or by `begin`, and decisions are made one by one.
    """

    def __init__(
        self,
        planners: Sequence[Planner],
        model: Model,
        *,
        seed: int,
        begin: Callable[[Moment], None] | None = None,
    ) -> None:
        self._planners = planners
        self.passed_over: list[str] = []
        self.steps: list[int] = []
        self._model = model
        self._seed = seed
        self._begin = begin
        self._memories: dict[int, tuple[int, Any]] = {}
        self._most = MEMORIES

    def plan(self, moments: Sequence[Moment]) -> list[list[Any]]:
        """Return the next actions at each of some moments of different episodes.

        `Unsuited` where the last planner cannot plan with the model, either.
        """
        plans: list[list[Any]] = []
        self.steps, counter = [], self._model.counter
        for some in self._together(moments):
            if self._begin:
                self._begin(some[0])
            elif not self._model.deterministic:
                self._model.draw_from((self._seed, some[0].episode, some[0].decision))
            before = counter[0]
            plans += self._decide(some)
            share, rest = divmod(counter[0] - before, len(some))
            self.steps += [share + (place < rest) for place in range(len(some))]
        self._forget(len(moments))
        return plans

    def _together(self, moments: Sequence[Moment]) -> list[Sequence[Moment]]:
        """Return groups of moments to plan together, if that is faster."""
        planner = self._planners[len(self.passed_over)]
        if self._begin is None and self._model.deterministic and not planner.ALONE:
            return [moments]
        return [[moment] for moment in moments]

    def _decide(self, moments: Sequence[Moment]) -> list[list[Any]]:
        """Plan with the first planner that can, and keep its memories."""
        situations = [self._situation(moment) for moment in moments]
        try:
            plans = self._planners[len(self.passed_over)].plan(self._model, situations)
        except Unsuited as reason:
            if len(self.passed_over) == len(self._planners) - 1:
                raise
            self.passed_over.append(str(reason))
            self._memories.clear()
            return self._decide(moments)
        for moment, situation in zip(moments, situations, strict=True):
            self._memories.pop(moment.episode, None)
            self._memories[moment.episode] = moment.decision, situation.memory
        return plans

    def _situation(self, moment: Moment) -> Situation:
        """Add the random numbers of the decision and the memory of the episode."""
        seeds = self._seed, moment.episode, moment.decision
        last, memory = self._memories.get(moment.episode, (-1, None))
        segment = self._planners[len(self.passed_over)].SEGMENT
        if last != moment.decision - 1 or moment.decision % segment == 0:
            memory = None
        state = moment.state
        if self._model.remembers:
            self._model.stand(state)
            state = self._model.here()
        return Situation(state, moment.horizon, seeds, memory, moment.valid)

    def _forget(self, asked: int) -> None:
        """Drop the memories of the episodes whose last decision is longest ago."""
        self._most = max(self._most, 2 * asked)
        for episode in list(self._memories)[: -self._most]:
            del self._memories[episode]
