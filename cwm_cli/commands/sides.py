"""The sides of a comparison by planning: episodes, mean returns, and the relative return R.

A side is a model, the oracle, or one of two baselines: random actions, and doing nothing. R
compares a model with the oracle and with the better baseline.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import isnan, nan
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from cwm_cli.commands.episodes import Episode, PlanningCost
from cwm_cli.evaluation.mismatches import Mismatches
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds.model import PlannedWith

SideName = Literal["model", "oracle", "idle", "random"]
"""The sides: plans in a model, plans in the true environment, doing nothing, random actions."""

BaselineName = Literal["idle", "random"]

SIDES: Mapping[SideName, str] = {
    "model": "world model",
    "oracle": "oracle",
    "idle": "do nothing",
    "random": "random",
}
"""The labels of the sides, in the order of the output."""

BASELINES: Mapping[BaselineName, str] = {"random": "random actions", "idle": "doing nothing"}
"""The baselines in sentences; of equal baselines R uses the first."""


class Mean(NamedTuple):
    """A mean (NaN without values) and its standard error (None for fewer than two values)."""

    mean: float
    stderr: float | None

    def as_json(self) -> dict[str, float | None]:
        """Return the mean and the standard error as JSON data."""
        return {"mean": None if isnan(self.mean) else self.mean, "stderr": self.stderr}


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of values and its standard error; the mean of no values is NaN."""
    if not values:
        return Mean(nan, None)
    mean = float(np.mean(values))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Mean(mean, None if spread is None else spread / len(values) ** 0.5)


@dataclass(frozen=True)
class Side:
    """The episodes of one side, in order, and its planner report."""

    episodes: Sequence[Episode]
    report: PlannedWith | None = None

    @property
    def returns(self) -> list[float]:
        """The return of every episode."""
        return [episode.returned for episode in self.episodes]

    @property
    def lengths(self) -> list[int]:
        """The length of every episode."""
        return [episode.length for episode in self.episodes]

    @property
    def unverified(self) -> list[int]:
        """The numbers of the episodes whose decisions could not be confirmed in time."""
        return [episode.number for episode in self.episodes if not episode.verified]

    @property
    def verified(self) -> list[Episode]:
        """The episodes that count in means: their confirmation did not run out of time."""
        return [episode for episode in self.episodes if episode.verified]

    @property
    def mean(self) -> Mean:
        """The mean return of the verified episodes."""
        return mean_of([episode.returned for episode in self.verified])

    def without(self, numbers: Collection[int]) -> "Side":
        """Return the side without the episodes of the given numbers."""
        return Side([each for each in self.episodes if each.number not in numbers], self.report)

    @cached_property
    def cost(self) -> PlanningCost:
        """The total planning cost of all episodes."""
        costs: Iterable[PlanningCost] = (episode.cost for episode in self.episodes)
        return reduce(PlanningCost.plus, costs, PlanningCost())

    @property
    def mismatches(self) -> Mismatches | None:
        """The wrong predictions of all episodes, None if nothing was compared."""
        found = [each.mismatches for each in self.episodes if each.mismatches]
        return reduce(Mismatches.plus, found) if found else None

    @property
    def speeds(self) -> dict[str, float | None]:
        """Decisions and model steps per second of planning by one worker."""
        cost = self.cost
        return {
            "decisions_per_second": cost.decisions / cost.seconds if cost.seconds else None,
            "model_steps_per_second": cost.model_steps / cost.seconds if cost.seconds else None,
        }

    @property
    def failure(self) -> Failure | None:
        """The first failure of the program in the first episode that has one."""
        return next((episode.failure for episode in self.episodes if episode.failure), None)


class MatchRecord(NamedTuple):
    """Wins, draws and losses of a side, and illegal moves.

    Args:
        wins: Number of games with a positive result.
        draws: Number of games with the result 0.
        losses: Number of games with a negative result.
        illegal: Games that the planner lost by an illegal move; they count as losses.
        opponent_illegal: Games that the opponent lost by an illegal move; they count as wins.
    """

    wins: int
    draws: int
    losses: int
    illegal: int
    opponent_illegal: int

    @classmethod
    def of(cls, episodes: Iterable[Episode]) -> Self:
        """Count the results of episodes."""
        every = list(episodes)
        results = [each.returned for each in every]
        return cls(
            sum(result > 0 for result in results),
            sum(result == 0 for result in results),
            sum(result < 0 for result in results),
            sum(each.illegal for each in every),
            sum(each.opponent_illegal for each in every),
        )

    @property
    def games(self) -> int:
        """The number of games."""
        return self.wins + self.draws + self.losses

    def interval(self, count: int) -> tuple[float, float]:
        """Return the 95 % confidence interval of a share: `count` of all games (Wilson, 1927)."""
        from scipy.stats import binomtest

        if not self.games:
            return 0.0, 1.0
        found = binomtest(count, self.games).proportion_ci(method="wilson")
        return float(found.low), float(found.high)

    def as_json(self) -> dict[str, Any]:
        """Return the counts and the share of wins with its confidence interval."""
        low, high = self.interval(self.wins)
        share = self.wins / self.games if self.games else None
        return self._asdict() | {"win_rate": {"mean": share, "low": low, "high": high}}


def better_baseline(sides: Mapping[SideName, Side]) -> BaselineName:
    """Return the baseline of R: the one with the higher mean return, random actions if equal."""
    played = [name for name in BASELINES if name in sides and sides[name].episodes]
    return max(played, key=lambda name: sides[name].mean.mean, default="random")


def relative_return(model: Side, oracle: Side, baseline: Side) -> float | None:
    """Return R = (model - baseline) / (oracle - baseline), computed from mean returns.

    Episodes of the model that are not verified are left out on all sides.

    Args:
        model: The episodes of the model.
        oracle: As many episodes of the oracle, with the same initial states.
        baseline: As many episodes of a baseline, with the same initial states.

    Returns:
        R, or None without verified episodes, or if the oracle is not clearly better than the
        baseline. It is if its mean gain exceeds the standard error of the gain, where the gain is
        the difference of two episodes with the same initial state.
    """
    if unverified := model.unverified:
        model, oracle, baseline = (each.without(unverified) for each in (model, oracle, baseline))
    if not model.episodes:
        return None
    # differences of equal initial states vary less than the two returns
    pairs = zip(oracle.returns, baseline.returns, strict=True)
    gain = mean_of([planned - simple for planned, simple in pairs])
    if gain.mean <= (gain.stderr or 0.0):
        return None
    return (model.mean.mean - baseline.mean.mean) / gain.mean


FEWEST_EPISODES, MOST_EPISODES = 10, 2000
"""Bounds of the number of episodes if it depends on their length."""

STEPS_OF_A_SIDE = 3_000
"""Steps that a side plays if the number of episodes depends on their length.

Ten of the longest episodes (1,000 steps) have as many.
"""


def episodes_by_length(sides: Iterable[Side]) -> int | None:
    """Return how many episodes have about 3,000 steps: at least 10, at most 2,000.

    The number depends only on the lengths of the first ten episodes: on their mean for the side
    with the longest ones.

    Returns:
        The number, None if a side has not finished its first ten episodes.
    """
    longest = 1.0
    for side in sides:
        first = [each.length for each in side.episodes if each.number < FEWEST_EPISODES]
        if len(first) < FEWEST_EPISODES:
            return None
        longest = max(longest, sum(first) / len(first))
    return max(FEWEST_EPISODES, min(MOST_EPISODES, int(STEPS_OF_A_SIDE / longest)))
