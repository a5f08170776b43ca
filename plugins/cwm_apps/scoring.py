"""Scores of programs for coding problems: strict accuracy, test-case average and pass@k."""

from collections.abc import Iterable, Iterator, Sequence
from math import comb, fsum, sqrt
from statistics import NormalDist, fmean
from typing import NamedTuple, Self

from pydantic import BaseModel, ConfigDict, model_validator

ORDER = ("introductory", "interview", "competition")
"""The difficulties of APPS. Other difficulties are listed after these."""

Z = NormalDist().inv_cdf(0.975)


class ProblemOutcome(BaseModel):
    """The tests that the final program of a problem passes, and the effort of its search.

    `passed` and `tests` count hidden tests. A problem with a single test has no hidden test and is
    judged by its public test.
    """

    model_config = ConfigDict(frozen=True)

    id: int
    difficulty: str
    passed: int
    tests: int
    public_passed: int
    public_tests: int
    completions: int = 0
    tokens: int = 0
    cost: float | None = 0.0
    seconds: float = 0.0

    @model_validator(mode="after")
    def _passes_some_of_its_tests(self) -> Self:
        hidden = 0 <= self.passed <= self.tests
        public = 0 <= self.public_passed <= self.public_tests
        if not (hidden and public and self.tests + self.public_tests):
            raise ValueError("more tests passed than exist")
        return self

    @property
    def strict(self) -> bool:
        """Whether all tests are passed, public and hidden."""
        return self.passed == self.tests and self.public_passed == self.public_tests

    @property
    def has_hidden(self) -> bool:
        """Whether there are tests that the search did not use."""
        return self.tests > 0

    @property
    def share(self) -> float:
        """The share of hidden tests passed, or of public tests if there is no hidden test."""
        if self.has_hidden:
            return self.passed / self.tests
        return self.public_passed / self.public_tests


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


class CodingSummary(BaseModel):
    """The summary of outcomes in any order, with 95 % confidence intervals.

    The cost is None if one cost is unknown. `no_hidden` counts the problems without a hidden test.
    `by_difficulty` is empty in the summary of a single difficulty.
    """

    model_config = ConfigDict(frozen=True)

    problems: int
    solved: int
    strict_accuracy: float | None
    strict_accuracy_95: Interval | None
    test_case_average: float | None
    test_case_average_95: Interval | None
    completions: int
    tokens: int
    cost: float | None
    seconds: float
    no_hidden: int
    by_difficulty: dict[str, "CodingSummary"] = {}


class PassAt(NamedTuple):
    """The mean probability that one of `k` programs is right, over problems with k programs."""

    k: int
    value: float
    interval: Interval
    problems: int


def summary(outcomes: Iterable[ProblemOutcome]) -> CodingSummary:
    """Summarize outcomes, all together and by difficulty.

    To merge the parts of a run, pass their union.
    """
    every = list(outcomes)
    found = {one.difficulty for one in every}
    parts = {
        difficulty: _figures([one for one in every if one.difficulty == difficulty])
        for difficulty in [*filter(found.__contains__, ORDER), *sorted(found - {*ORDER})]
    }
    return _figures(every).model_copy(update={"by_difficulty": parts})


def interval(values: Sequence[float]) -> Interval:
    """Return the score interval (Wilson, 1927) of a mean of values from 0 to 1.

    The variance is taken as m (1 - m), an upper bound for values between 0 and 1 (Bhatia and Davis,
    2000). So the interval holds for any such values, may be wider than necessary, and does not
    vanish if all values are equal.
    """
    count = len(values)
    share = fmean(values)
    scale = 1 + Z**2 / count
    centre = (share + Z**2 / (2 * count)) / scale
    reach = Z * sqrt(share * (1 - share) / count + (Z / (2 * count)) ** 2) / scale
    return Interval(
        low=max(0.0, centre - reach) if share > 0 else 0.0,
        high=min(1.0, centre + reach) if share < 1 else 1.0,
    )


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the probability that one of k programs drawn from n is right, if c of n are right.

    This is the unbiased estimator of Chen et al. (2021), computed with integers.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"there is no pass@{k} of {c} right programs among {n}")
    return (comb(n, k) - comb(n - c, k)) / comb(n, k)


def pass_at(verdicts: Iterable[Sequence[bool]], ks: Iterable[int]) -> Iterator[PassAt]:
    """Yield pass@k, given which programs of each problem are right.

    A problem with fewer than k programs does not count. A k without any such problem is left out.
    """
    counts = [(len(right), sum(right)) for right in verdicts]
    for k in ks:
        chances = [pass_at_k(n, c, k) for n, c in counts if n >= k]
        if chances:
            yield PassAt(k, fmean(chances), interval(chances), len(chances))


def _figures(outcomes: Sequence[ProblemOutcome]) -> CodingSummary:
    """Summarize outcomes without their parts."""
    costs = [one.cost for one in outcomes if one.cost is not None]
    strict = [float(one.strict) for one in outcomes]
    shares = [one.share for one in outcomes]
    return CodingSummary(
        problems=len(outcomes),
        solved=sum(one.strict for one in outcomes),
        strict_accuracy=fmean(strict) if strict else None,
        strict_accuracy_95=interval(strict) if strict else None,
        test_case_average=fmean(shares) if shares else None,
        test_case_average_95=interval(shares) if shares else None,
        completions=sum(one.completions for one in outcomes),
        tokens=sum(one.tokens for one in outcomes),
        cost=fsum(costs) if len(costs) == len(outcomes) else None,
        seconds=fsum(one.seconds for one in outcomes),
        no_hidden=sum(not one.has_hidden for one in outcomes),
    )
