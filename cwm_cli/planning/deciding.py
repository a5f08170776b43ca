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


class Decider:
    """Plans with the first planner that the model suits, and keeps what it remembers.

    `passed_over` says of each planner before that one why it was none.
    The random numbers of a decision depend on the seed, the episode and the
    number of the decision only. For a model that draws its own, `begin` is called
    before each decision, and decisions are made one by one.
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
        self._model = model
        self._seed = seed
        self._begin = begin
        self._memories: dict[int, Any] = {}
        self._most = 1

    def plan(self, moments: Sequence[Moment]) -> list[list[Any]]:
        """Return the next actions at each of some moments of different episodes.

        `Unsuited` where the last planner cannot plan with the model, either.
        """
        if self._begin is None:
            plans = self._decide(moments)
        else:
            plans = []
            for moment in moments:
                self._begin(moment)
                plans += self._decide([moment])
        self._forget(len(moments))
        return plans

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
            self._memories[moment.episode] = situation.memory
        return plans

    def _situation(self, moment: Moment) -> Situation:
        """Add the random numbers of the decision and the memory of the episode."""
        seeds = self._seed, moment.episode, moment.decision
        memory = self._memories.get(moment.episode) if moment.decision else None
        return Situation(moment.state, moment.horizon, seeds, memory, moment.valid)

    def _forget(self, asked: int) -> None:
        """Forget episodes that are over: all episodes in flight began together, or replace one."""
        self._most = max(self._most, asked)
        for episode in list(self._memories)[: -self._most]:
            del self._memories[episode]
