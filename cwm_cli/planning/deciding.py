"""Decisions of several episodes, made with one model."""

from collections.abc import Callable, Sequence
from typing import Any

from cwm_cli.planning.model import Model
from cwm_cli.planning.planner import Moment, Planner, Situation, Unsuited


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
        """Return the next actions at each of some moments of different episodes."""
        if self._begin is None:
            plans = self._decide(moments)
        else:
            plans = [plan for moment in moments for plan in self._alone(moment, self._begin)]
        self._forget(len(moments))
        return plans

    def _alone(self, moment: Moment, begin: Callable[[Moment], None]) -> list[list[Any]]:
        """Plan at one moment, with a model that draws random numbers of its own."""
        begin(moment)
        return self._decide([moment])

    def _decide(self, moments: Sequence[Moment]) -> list[list[Any]]:
        """Plan, and keep what the planner remembers."""
        situations = [self._situation(moment) for moment in moments]
        plans = self._plan(situations)
        for moment, situation in zip(moments, situations, strict=True):
            self._memories.pop(moment.episode, None)
            self._memories[moment.episode] = situation.memory
        return plans

    def _forget(self, asked: int) -> None:
        """Forget episodes that are over: all episodes in flight began together, or replace one."""
        self._most = max(self._most, asked)
        for episode in list(self._memories)[: -self._most]:
            del self._memories[episode]

    def _plan(self, situations: list[Situation]) -> list[list[Any]]:
        """Plan with the first planner that can; `Unsuited` when it is the last and cannot."""
        try:
            return self._planners[len(self.passed_over)].plan(self._model, situations)
        except Unsuited as reason:
            if len(self.passed_over) == len(self._planners) - 1:
                raise
            self.passed_over.append(str(reason))
            return self._plan(situations)

    def _situation(self, moment: Moment) -> Situation:
        """Add the random numbers of the decision and the memory of the episode."""
        seeds = self._seed, moment.episode, moment.decision
        memory = self._memories.get(moment.episode) if moment.decision else None
        return Situation(moment.state, moment.horizon, seeds, memory, moment.valid)
