"""Compare what episodes with plans, with plans in the true environment, and at random came to."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Literal, NamedTuple

import numpy as np

from cwm_cli.agents.episodes import Cost, Episode
from cwm_cli.sandbox import Report
from cwm_cli.sandbox.failures import Failure

SideName = Literal["model", "oracle", "random"]
"""Who plays: plans in a world model, plans in the true environment, random actions."""


class Mean(NamedTuple):
    """A mean and its standard error, None when there is one value only."""

    mean: float
    stderr: float | None


@dataclass(frozen=True)
class Side:
    """The episodes of one side, in order, and what its plans were made with."""

    episodes: Sequence[Episode]
    report: Report | None = None

    @property
    def returns(self) -> list[float]:
        """The return of every episode."""
        return [episode.returned for episode in self.episodes]

    @property
    def lengths(self) -> list[int]:
        """The length of every episode."""
        return [episode.length for episode in self.episodes]

    @property
    def mean(self) -> Mean:
        """The mean return."""
        return mean_of(self.returns)

    @cached_property
    def cost(self) -> Cost:
        """What planning took, over all episodes."""
        return reduce(Cost.plus, (episode.cost for episode in self.episodes), Cost())

    @property
    def failure(self) -> Failure | None:
        """The first failure of the program in the first episode that has one."""
        return next((episode.failure for episode in self.episodes if episode.failure), None)


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of values and how sure it is."""
    mean = float(np.mean(values))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Mean(mean, None if spread is None else spread / len(values) ** 0.5)


def relative_return(model: Side, oracle: Side, random: Side) -> float | None:
    """Return R = (model - random) / (oracle - random) of the mean returns, where it has a meaning.

    The oracle has to be better than chance by more than the standard error of
    the difference, which is taken over pairs of episodes with the same start.
    """
    pairs = zip(oracle.returns, random.returns, strict=True)
    gain = mean_of([planned - drawn for planned, drawn in pairs])
    if gain.mean <= (gain.stderr or 0.0):
        return None
    return (model.mean.mean - random.mean.mean) / gain.mean
