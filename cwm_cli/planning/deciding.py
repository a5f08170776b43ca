"""Which planner plans, and the decisions of several episodes that it makes with one model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Model
from cwm_cli.planning.planner import Moment, Planner, Situation, Unsuited


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
"""Episodes that are remembered: twice as many as are played at a time."""


class Decider:
    """Plans with the first planner that the model suits, and keeps what it remembers.

    `passed_over` says of each planner before that one why it was none, `steps` how many
    steps of the model each of the last decisions took. What is remembered of an episode is
    forgotten after as many decisions as the planner's `SEGMENT`, and after one that was
    not made here. The random numbers of a decision depend on the seed, the episode and the
    number of the decision only. What a model draws by itself follows from the same before
    each decision, or from what `begin` does in its place, and decisions are made one by one.
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
        """Return the moments that are planned for at once, where that makes them faster."""
        planner = self._planners[len(self.passed_over)]
        if self._begin is None and self._model.deterministic and not planner.ALONE:
            return [moments]
        return [[moment] for moment in moments]

    def _decide(self, moments: Sequence[Moment]) -> list[list[Any]]:
        """Plan with the first planner that can, and keep what it remembers."""
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
        """Forget episodes that were not asked about for long."""
        self._most = max(self._most, 2 * asked)
        for episode in list(self._memories)[: -self._most]:
            del self._memories[episode]
