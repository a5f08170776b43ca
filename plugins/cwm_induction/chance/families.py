"""Families of random counts: probabilities, tails, and how the program writes them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

Array = np.ndarray

LEAST = np.log(1e-6)
"""Log-probability of an outcome that a model excludes, as in the smoothed skill."""


@dataclass(frozen=True)
class Family:
    """A family of distributions on 0, 1, 2, ...

    `mass` and `tail` return P(K = k) and P(K >= k); the second argument is the number of trials,
    the third one the parameter. `grid` are parameters to start from; a family without
    a parameter has one entry. `source` is the function in the program.
    """

    name: str
    mass: Callable[[Array, Array, Array], Array]
    tail: Callable[[Array, Array, Array], Array]
    grid: Array
    source: str
    counts_trials: bool = False

    @property
    def has_parameter(self) -> bool:
        """Whether a parameter is fitted."""
        return len(self.grid) > 1


def _poisson(k: Array, _: Array, mean: Array) -> Array:
    good = np.maximum(k, 0)
    found: Array = np.exp(special.xlogy(good, mean) - mean - special.gammaln(good + 1))
    return np.where(k < 0, 0.0, found)


def _poisson_tail(k: Array, _: Array, mean: Array) -> Array:
    return np.where(k <= 0, 1.0, special.gammainc(np.maximum(k, 1), mean))


def _geometric(k: Array, _: Array, chance: Array) -> Array:
    return np.where(k < 0, 0.0, chance * (1 - chance) ** np.maximum(k, 0))


def _geometric_tail(k: Array, _: Array, chance: Array) -> Array:
    found: Array = (1 - chance) ** np.maximum(k, 0)
    return found


def _binomial(k: Array, trials: Array, chance: Array) -> Array:
    inside = (k >= 0) & (k <= trials)
    good, n = np.where(inside, k, 0), np.maximum(trials, 0)
    ways = special.gammaln(n + 1) - special.gammaln(good + 1) - special.gammaln(n - good + 1)
    logs = ways + special.xlogy(good, chance) + special.xlog1py(n - good, -chance)
    return np.where(inside, np.exp(logs), 0.0)


def _binomial_tail(k: Array, trials: Array, chance: Array) -> Array:
    good = np.clip(k, 1, np.maximum(trials, 1))
    found = special.betainc(good, np.maximum(trials - good + 1, 1e-9), chance)
    return np.where(k <= 0, 1.0, np.where(k > trials, 0.0, found))


POISSON = Family(
    "poisson",
    _poisson,
    _poisson_tail,
    np.geomspace(0.03, 60, 48),
    '''def poisson(mean):
    """Return the probability of each count of a Poisson distribution."""
    mean = min(max(mean, 1e-9), 99.0)
    most = int(mean + 5 * mean**0.5 + 4)
    return [(exp(k * log(mean) - mean - lgamma(k + 1)), k) for k in range(most + 1)]''',
)
GEOMETRIC = Family(
    "geometric",
    _geometric,
    _geometric_tail,
    np.concatenate([np.geomspace(0.03, 0.3, 14), np.linspace(0.33, 0.97, 18)]),
    '''def geometric(chance):
    """Return the probability of each number of failures before a success."""
    chance = min(max(chance, 0.01), 1.0)
    return [(chance * (1 - chance) ** k, k) for k in range(int(10 / chance) + 1)]''',
)
BINOMIAL = Family(
    "binomial",
    _binomial,
    _binomial_tail,
    np.concatenate([np.geomspace(0.003, 0.08, 12), np.linspace(0.1, 0.9, 26), [0.94, 0.97, 0.99]]),
    '''def binomial(trials, chance):
    """Return the probability of each number of successes."""
    trials, chance = int(trials), min(max(chance, 0.0), 1.0)
    return [
        (comb(trials, k) * chance**k * (1 - chance) ** (trials - k), k) for k in range(trials + 1)
    ]''',
    counts_trials=True,
)
DICE_SOURCE = '''def dice(count, sides):
    """Return the probability of each sum of some dice."""
    sums = {0: 1.0}
    for _ in range(count):
        before, sums = sums, {}
        for total, chance in before.items():
            for side in range(1, sides + 1):
                sums[total + side] = sums.get(total + side, 0.0) + chance / sides
    return [(chance, total) for total, chance in sums.items()]'''


def dice(count: int, sides: int) -> Family:
    """Return the family of the sum of some dice, which has no parameter."""
    masses = np.ones(1)
    for _ in range(count):
        masses = np.convolve(masses, np.full(sides, 1 / sides))
    masses = np.concatenate([np.zeros(count), masses])
    tails = np.concatenate([np.cumsum(masses[::-1])[::-1], [0.0]])

    def mass(k: Array, _: Array, __: Array) -> Array:
        inside = (k >= 0) & (k < len(masses))
        return np.where(inside, masses[np.where(inside, k, 0).astype(int)], 0.0)

    def tail(k: Array, _: Array, __: Array) -> Array:
        found: Array = tails[np.clip(k, 0, len(masses)).astype(int)]
        return found

    return Family(f"dice({count}, {sides})", mass, tail, np.zeros(1), DICE_SOURCE)
