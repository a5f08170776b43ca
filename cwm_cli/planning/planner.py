"""The base class of planners, and the `Decider` that plans the actions of episodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.encoding import ActionEncoding, EncodedModel, encode_actions, find_encoding
from cwm_cli.planning.model import Model
from cwm_cli.presets import WithPresets

FEW_ACTIONS = 50
"""With at most this many actions, tree search plans before iCEM if their ranks are equal. With 125
to 961 combinations (nine thrusters of a craft), it returned a third less than iCEM."""


class Unsuited(Exception):
    """A planner cannot plan with this model; the text is the reason, without the planner's name."""


class Moment(NamedTuple):
    """A pending decision of an episode.

    Args:
        episode: Number of the episode.
        decision: Number of the decision in the episode, from 0.
        state: An observation, or the saved state of a simulator.
        horizon: Maximum number of steps until the end of the episode.
        valid: The valid actions; None means all.
    """

    episode: int
    decision: int
    state: Any
    horizon: int
    valid: tuple[int, ...] | None = None


@dataclass
class Situation:
    """A pending decision as a planner receives it, with random numbers and memory.

    The planner may store data in `memory`, such as a search tree or a plan. The next decision of
    the same episode receives the same memory.
    """

    state: Any
    horizon: int
    seeds: tuple[int, ...]
    memory: Any = None
    valid: tuple[int, ...] | None = None

    @cached_property
    def rng(self) -> np.random.Generator:
        """The only source of random numbers of a decision, so that equal seeds give equal plans."""
        return np.random.default_rng(self.seeds)


class Planner(WithPresets):
    """Base class of planners, which choose actions by simulating them in a model.

    A planner is a dataclass. Its fields are its options; invalid values raise a `ValueError`. A
    subclass must define `NEEDS`, `serves` and `plan`. It runs in the process of the program, where
    only numpy and the standard library can be imported. Workers that were prepared with the
    address of a planner import it when they start.

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
    """The required kind of environment, as the words after "needs" in a message."""

    SEGMENT: ClassVar[int] = 25
    """Number of decisions after which the memory of an episode is dropped.

    So a decision can be repeated without all decisions before it. Planners with long plans use
    more.
    """

    ALONE: ClassVar[bool] = False
    """Whether it plans one situation at a time, because several together are no faster."""

    RESERVE: ClassVar[bool] = False
    """Whether it plans after other automatic planners of its rank.

    It competes with them in a trial only if their imagined episodes terminate early.
    """

    TWO_PLAYERS: ClassVar[bool] = False
    """Whether it plans games of two players; other planners plan environments of one agent."""

    PREFERS_NUMBERS: ClassVar[bool] = False
    """Whether encoded actions are real numbers, also if there are few combinations of actions."""

    @classmethod
    def serves(cls, action_space: Space) -> bool:
        """Return whether it can plan such actions.

        Actions of other spaces are encoded, so that most planners need to support only Discrete
        spaces, Boxes of real numbers or both (see `cwm_cli.planning.encoding`).
        """
        raise NotImplementedError

    @classmethod
    def rank(cls, observation_space: Space, action_space: Space) -> float | None:
        """Return its rank among the automatic planners; the lowest rank plans first.

        None, the default, means that it plans only if the user names it. The actions may be
        encoded.
        """
        return None

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the next actions of each situation: at least one, at most its horizon.

        The plan of a situation must not depend on the other situations.

        Raises:
            Unsuited: If it cannot plan with this model. Then the next planner plans.
        """
        raise NotImplementedError


def planned_space(planner: type[Planner], action_space: Space) -> Space | None:
    """Return the action space that a planner uses for such actions, None if it has none."""
    if planner.serves(action_space):
        return action_space
    encoding = _encoding(planner, action_space)
    return None if encoding is None else encoding.space


def _encoding(planner: type[Planner], action_space: Space) -> ActionEncoding | None:
    """Return the encoding of actions that a planner serves, None if there is none."""
    prefers = planner.PREFERS_NUMBERS
    return find_encoding(action_space, planner.serves, prefers_numbers=prefers)


def rank_of(planner: type[Planner], observation_space: Space, action_space: Space) -> float | None:
    """Return the rank of a planner, None if it cannot plan such actions or has no rank."""
    space = planned_space(planner, action_space)
    return None if space is None else planner.rank(observation_space, space)


def serving(
    planners: Mapping[str, type[Planner]], action_space: Space, *, two_players: bool = False
) -> list[str]:
    """Return the names of the planners that can plan such actions, perhaps encoded ones."""
    suited = {name: each for name, each in planners.items() if two_players == each.TWO_PLAYERS}
    return [name for name, planner in suited.items() if planned_space(planner, action_space)]


def automatic(
    planners: Mapping[str, type[Planner]],
    observation_space: Space,
    action_space: Space,
    *,
    two_players: bool = False,
) -> list[str]:
    """Return the names of the planners to use if the user names none, in order."""
    ranked = []
    for name in serving(planners, action_space, two_players=two_players):
        planner = planners[name]
        space = planned_space(planner, action_space)
        rank = None if space is None else planner.rank(observation_space, space)
        if space is not None and rank is not None:
            has_many = space.kind != "discrete" or space.count > FEW_ACTIONS
            ranked.append((rank, planner.RESERVE, has_many, name))
    return [name for *_, name in sorted(ranked)]


class Decider:
    """Plans with the first suitable planner, and keeps its memory of each episode.

    A planner that does not serve the actions of the model receives encoded actions.

    `passed_over` has the reasons why the planners before it are unsuited. `steps` has the number
    of model steps of each of the last decisions. The memory of an episode is dropped after
    `SEGMENT` decisions of the planner, and after a decision that the planner did not make.

    The random numbers of a decision depend only on the seed, the episode and the number of the
    decision. They also seed the generator of a stochastic model before each decision, unless
    `begin` does so. Such a model makes its decisions one by one.
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
        self._views = [_view(model, type(planner)) for planner in planners]
        self._seed = seed
        self._begin = begin
        self._memories: dict[int, tuple[int, Any]] = {}
        self._max_memories = 16  # at least twice the number of parallel episodes, see `_forget`

    def plan(self, moments: Sequence[Moment]) -> list[list[Any]]:
        """Return the next actions at moments of different episodes.

        Raises:
            Unsuited: If no planner can plan with the model.
        """
        plans: list[list[Any]] = []
        self.steps = []
        planner = self._planners[len(self.passed_over)]
        together = self._begin is None and self._model.deterministic and not planner.ALONE
        groups = [moments] if together else [[moment] for moment in moments]
        for group in groups:
            if self._begin:
                self._begin(group[0])
            elif not self._model.deterministic:
                self._model.draw_from((self._seed, group[0].episode, group[0].decision))
            decided, steps = self._decide(group)
            plans += decided
            share, rest = divmod(steps, len(group))
            self.steps += [share + (place < rest) for place in range(len(group))]
        self._forget(len(moments))
        return plans

    def _decide(self, moments: Sequence[Moment]) -> tuple[list[list[Any]], int]:
        """Return plans and their model steps, without the steps of planners that are unsuited."""
        before = self._model.counter[0]
        situations = [self._situation(moment) for moment in moments]
        view = self._views[len(self.passed_over)]
        try:
            plans = self._planners[len(self.passed_over)].plan(view, situations)
        except Unsuited as reason:
            if len(self.passed_over) == len(self._planners) - 1:
                raise
            self.passed_over.append(str(reason))
            self._memories.clear()
            return self._decide(moments)
        for moment, situation in zip(moments, situations, strict=True):
            self._memories.pop(moment.episode, None)  # so that its new memory is the youngest
            self._memories[moment.episode] = moment.decision, situation.memory
        if isinstance(view, EncodedModel):
            plans = [[view.encoding.decode(action) for action in plan] for plan in plans]
        return plans, self._model.counter[0] - before

    def _situation(self, moment: Moment) -> Situation:
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

    def _forget(self, parallel: int) -> None:
        """Drop the memories of the episodes with the oldest last decisions."""
        self._max_memories = max(self._max_memories, 2 * parallel)
        for episode in list(self._memories)[: -self._max_memories]:
            del self._memories[episode]


def _view(model: Model, planner: type[Planner]) -> Model:
    """Return the model, with encoded actions if the planner does not serve its actions."""
    if planner.serves(model.action_space):
        return model
    encoding = _encoding(planner, model.action_space)
    return model if encoding is None else encode_actions(model, encoding)
