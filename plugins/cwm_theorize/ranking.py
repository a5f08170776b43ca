"""Ranks of recorded changes among their candidates: top-k accuracy and likelihood.

A predictor gives each candidate of a transition a log-weight. Rules with a statistician do, and so
does a program that predicts one candidate. Rare kinds of change matter, so every measure is also
reported for each kind, and as the mean over the kinds (Levy et al., 2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict

from cwm_cli.errors import CwmError
from cwm_cli.runs.report import Grid
from cwm_cli.text import UNKNOWN
from cwm_cli.worlds.model import ExtraScores
from cwm_theorize.statistician import normalise

if TYPE_CHECKING:
    from cwm_theorize.statistician import TextTransition

TOP = (1, 3, 5, 10)
"""Values of k for top-k accuracy, as published."""

TIED = 1e-9
"""Log-weights that differ by at most this are tied; such differences result from rounding."""


class RankMeans(BaseModel):
    """Mean likelihood and mean rank of the recorded changes.

    Attributes:
        nll: Mean of -log p, in nats, with p normalised over the candidates.
        rank: Mean rank from 1, with ties in random order.
        top: Fraction of changes among the k likeliest, by k, with ties in random order.
        top_published: The same with ties ordered in favour of the recorded change, as published. A
            predictor that gives all candidates equal weight gets 1.0.
    """

    model_config = ConfigDict(frozen=True)

    nll: float
    rank: float
    top: dict[int, float]
    top_published: dict[int, float]


class RankScore(RankMeans):
    """Means over a set of transitions, their number, and the sum of their log-weights."""

    transitions: int
    log_likelihood: float


class RankSummary(ExtraScores):
    """Ranks of all transitions, of each kind of change, and the mean over the kinds."""

    model_config = ConfigDict(frozen=True)
    key: ClassVar[str] = "ranks"

    all: RankScore
    kinds: dict[str, RankScore]
    mean: RankMeans

    @classmethod
    def grid(cls, parts: Mapping[str, Self]) -> Grid:
        """Return a table of ranks and -log p for several predictors.

        Each predictor has three lines: the mean over transitions, the mean over kinds, and top-k
        accuracy with the published order of ties.
        """
        lines = []
        for side, ranks in parts.items():
            every, mean = ranks.all, ranks.mean
            lines += [
                [side, "transitions", *_shares(every.top), f"{every.rank:.2f}", f"{every.nll:.3f}"],
                [side, "kinds", *_shares(mean.top), f"{mean.rank:.2f}", f"{mean.nll:.3f}"],
                [side, "as published", *_shares(every.top_published), UNKNOWN, UNKNOWN],
            ]
        top = next(iter(parts.values())).all.top
        heads = ["", "over", *(f"top {k}" for k in top), "rank", "-log p"]
        return Grid("Rank of the recorded change", heads, lines, words=2)

    def line(self, part: str) -> str:
        """Return a line with the log-likelihood of a part of the data."""
        return f"log-likelihood, {part}: {self.all.log_likelihood:.2f}"

    def kinds_grid(self) -> Grid:
        """Return a table with one line per kind of change."""
        lines = [
            [kind, f"{each.transitions:,}", f"{each.log_likelihood:.2f}", *_shares(each.top)]
            for kind, each in {**self.kinds, "all": self.all}.items()
        ]
        heads = ["change", "times", "log-likelihood", *(f"top {k}" for k in self.all.top)]
        return Grid("By kind of change", heads, lines)


def _shares(top: Mapping[int, float]) -> list[str]:
    return [f"{share:.3f}" for share in top.values()]


class RankedChange(NamedTuple):
    """The rank of one recorded change.

    Attributes:
        weight: Its log-weight.
        share: Its log-probability among the candidates.
        above: Number of candidates with more weight.
        ties: Number of other candidates with equal weight.
    """

    weight: float
    share: float
    above: int
    ties: int

    def in_top(self, k: int) -> float:
        """Return the probability of being among the k likeliest, with ties in random order."""
        return min(max(k - self.above, 0) / (self.ties + 1), 1.0)


@dataclass(frozen=True)
class Ranking:
    """The kind and the rank of each recorded change.

    `distinguishes` is true if any two candidates of a transition differ in weight.
    """

    kinds: Sequence[str]
    places: Sequence[RankedChange]
    distinguishes: bool

    @classmethod
    def of(cls, transitions: Sequence[TextTransition], weights: Sequence[np.ndarray]) -> Self:
        """Rank recorded changes by log-weights (candidates,) of each transition.

        Raises:
            CwmError: A recorded change is not among its candidates.
        """
        shares = normalise(weights)
        places = [
            _ranked_change(each, own, share)
            for each, own, share in zip(transitions, weights, shares, strict=True)
        ]
        differs = any(np.ptp(own) > TIED for own in weights)
        return cls([each.change.kind for each in transitions], places, differs)

    @classmethod
    def uniform(cls, transitions: Sequence[TextTransition]) -> Self:
        """Rank recorded changes under equal weights: the baseline of guessing."""
        sizes = [len(each.candidates) for each in transitions]
        return cls.of(transitions, [np.full(size, -np.log(size)) for size in sizes])

    def summary(self, top: Sequence[int] = TOP) -> RankSummary:
        """Average over all transitions, over each kind, and over the kinds."""
        named: dict[str, list[RankedChange]] = {}
        for kind, place in zip(self.kinds, self.places, strict=True):
            named.setdefault(kind, []).append(place)
        kinds = {kind: _average(places, top) for kind, places in named.items()}
        every = list(kinds.values())
        mean = RankMeans(
            nll=_mean([each.nll for each in every]),
            rank=_mean([each.rank for each in every]),
            top={k: _mean([each.top[k] for each in every]) for k in top},
            top_published={k: _mean([each.top_published[k] for each in every]) for k in top},
        )
        return RankSummary(all=_average(self.places, top), kinds=kinds, mean=mean)


def _ranked_change(
    transition: TextTransition, weights: np.ndarray, shares: np.ndarray
) -> RankedChange:
    sentences = [each.text for each in transition.candidates]
    if transition.change.text not in sentences:
        raise CwmError(
            f"the recorded change {transition.change.text!r} is not among the {len(sentences)} "
            "candidates: choose a dataset that was recorded with legal actions"
        )
    place = sentences.index(transition.change.text)
    own = weights[place]
    tied = np.isclose(weights, own, rtol=0, atol=TIED)  # includes ties at -inf
    above = int(np.sum((weights > own) & ~tied))
    return RankedChange(float(own), float(shares[place]), above, int(np.sum(tied)) - 1)


def _average(places: Sequence[RankedChange], top: Sequence[int]) -> RankScore:
    """Average over transitions; at least one is required."""
    return RankScore(
        transitions=len(places),
        log_likelihood=float(np.sum([each.weight for each in places])),
        nll=-_mean([each.share for each in places]),
        rank=_mean([1 + each.above + each.ties / 2 for each in places]),
        top={k: _mean([each.in_top(k) for each in places]) for k in top},
        top_published={k: _mean([each.above < k for each in places]) for k in top},
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
