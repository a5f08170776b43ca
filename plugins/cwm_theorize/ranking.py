"""Where what followed stands among all that might have: ranks, top-k accuracy, likelihood.

Whoever predicts gives a weight to every candidate of a transition, a logarithm. Rules under a
language model do, and so does a program that names one of them. Rare kinds of change matter, so
that every measure is told for each kind, and as the mean of the kinds (Levy et al., 2025).
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
from cwm_theorize.statistician import normalised

if TYPE_CHECKING:
    from cwm_theorize.statistician import TextTransition

TOP = (1, 3, 5, 10)
"""The ranks that top-k accuracy is told of, as published."""

TIED = 1e-9
"""Weights that differ by less are tied: rounding alone tells them apart."""


class RankMeans(BaseModel):
    """How likely what followed was, and where it stood, on average.

    `nll` is the mean of -log p, a natural logarithm, with p normalised over the candidates.
    `top` is the share among the k likeliest, by k, and `rank` the mean place, from 1, where chance
    orders what is tied. `top_published` orders ties in favour of what followed: who gives the same
    weight to everything has 1 there.
    """

    model_config = ConfigDict(frozen=True)

    nll: float
    rank: float
    top: dict[int, float]
    top_published: dict[int, float]


class RankScore(RankMeans):
    """The same of some transitions, and the sum of their weights as they were given."""

    transitions: int
    log_likelihood: float


class RankSummary(ExtraScores):
    """Ranks of all transitions, of each kind of change, and the mean of the kinds."""

    model_config = ConfigDict(frozen=True)
    key: ClassVar[str] = "ranks"

    all: RankScore
    kinds: dict[str, RankScore]
    mean: RankMeans

    @classmethod
    def grid(cls, parts: Mapping[str, Self]) -> Grid:
        """Compare ranks and -log p of several sides: over transitions, over kinds, as published.

        The published ranks order ties in favour of the recorded change.
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
        return Grid("What followed among all that might have", heads, lines, words=2)

    def line(self, part: str) -> str:
        """Return the log-likelihood of a part."""
        return f"log-likelihood, {part}: {self.all.log_likelihood:.2f}"

    def kinds_grid(self) -> Grid:
        """Return a table with a line for each kind of change."""
        lines = [
            [kind, f"{each.transitions:,}", f"{each.log_likelihood:.2f}", *_shares(each.top)]
            for kind, each in {**self.kinds, "all": self.all}.items()
        ]
        heads = ["followed", "times", "log-likelihood", *(f"top {k}" for k in self.all.top)]
        return Grid("By kind of change", heads, lines)


def _shares(top: Mapping[int, float]) -> list[str]:
    return [f"{share:.3f}" for share in top.values()]


class RankedChange(NamedTuple):
    """Where what followed a transition stands.

    `weight` is what it was given, `share` that normalised over the candidates; `above` counts the
    candidates with more weight, `ties` the others with as much.
    """

    weight: float
    share: float
    above: int
    ties: int

    def in_top(self, k: int) -> float:
        """Return the chance to be among the k likeliest, where chance orders what is tied."""
        return min(max(k - self.above, 0) / (self.ties + 1), 1.0)


@dataclass(frozen=True)
class Ranking:
    """Where what followed each of some transitions stands, and of what kind it is.

    It `distinguishes` if any two candidates of a transition differ in weight.
    """

    kinds: Sequence[str]
    places: Sequence[RankedChange]
    distinguishes: bool

    @classmethod
    def of(cls, transitions: Sequence[TextTransition], weights: Sequence[np.ndarray]) -> Self:
        """Rank by the weights of the candidates of each transition, in their order."""
        shares = normalised(weights)
        places = [
            _placed(each, own, share)
            for each, own, share in zip(transitions, weights, shares, strict=True)
        ]
        differs = any(np.ptp(own) > TIED for own in weights)
        return cls([each.change.kind for each in transitions], places, differs)

    @classmethod
    def uniform(cls, transitions: Sequence[TextTransition]) -> Self:
        """Rank by guessing."""
        sizes = [len(each.candidates) for each in transitions]
        return cls.of(transitions, [np.full(size, -np.log(size)) for size in sizes])

    def summary(self, top: Sequence[int] = TOP) -> RankSummary:
        """Average over all transitions, those of each kind, and the kinds."""
        named: dict[str, list[RankedChange]] = {}
        for kind, place in zip(self.kinds, self.places, strict=True):
            named.setdefault(kind, []).append(place)
        kinds = {kind: _averaged(places, top) for kind, places in named.items()}
        every = list(kinds.values())
        mean = RankMeans(
            nll=_mean([each.nll for each in every]),
            rank=_mean([each.rank for each in every]),
            top={k: _mean([each.top[k] for each in every]) for k in top},
            top_published={k: _mean([each.top_published[k] for each in every]) for k in top},
        )
        return RankSummary(all=_averaged(self.places, top), kinds=kinds, mean=mean)


def _placed(transition: TextTransition, weights: np.ndarray, shares: np.ndarray) -> RankedChange:
    """Find what followed among the candidates."""
    sentences = [each.text for each in transition.candidates]
    if transition.change.text not in sentences:
        raise CwmError(
            f"the recorded change {transition.change.text!r} is not among the {len(sentences)} "
            "candidates: choose a dataset that was recorded with legal actions"
        )
    place = sentences.index(transition.change.text)
    own = weights[place]
    tied = np.isclose(weights, own, rtol=0, atol=TIED)  # what is impossible is tied, too
    above = int(np.sum((weights > own) & ~tied))
    return RankedChange(float(own), float(shares[place]), above, int(np.sum(tied)) - 1)


def _averaged(places: Sequence[RankedChange], top: Sequence[int]) -> RankScore:
    """Average over transitions, of which there is at least one."""
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
