"""What an action that was not tried yet is expected to be worth."""

from dataclasses import dataclass
from typing import NamedTuple

SMALLEST = 1e-9
"""Weights that add up to less cannot be divided by."""


class Mean(NamedTuple):
    """A running mean of a number of values."""

    number: int = 0
    mean: float = 0.0

    def plus(self, value: float) -> "Mean":
        """Return the mean with another value taken in."""
        number = self.number + 1
        return Mean(number, self.mean + (value - self.mean) / number)

    def changed(self, old: float, new: float) -> "Mean":
        """Return the mean with one of its values changed."""
        return Mean(self.number, self.mean + (new - old) / self.number)


NOTHING = Mean()


@dataclass(slots=True)
class Estimate:
    """The expected value of one action: what it was worth everywhere, mixed with here.

    The weights of the mix are learned by gradient descent on the squared error
    of each estimate. They may leave [0, 1]; whoever uses an estimate clips it.
    """

    everywhere: Mean
    weight_everywhere: float = 0.5
    weight_here: float = 0.5

    def mix(self, here: Mean) -> float:
        """Return the estimate at a node whose children by this action have the mean `here`."""
        total = self.weight_everywhere + self.weight_here
        if not here.number or abs(total) < SMALLEST:
            return self.everywhere.mean
        return (
            self.weight_everywhere * self.everywhere.mean + self.weight_here * here.mean
        ) / total

    def learn(self, here: Mean, value: float) -> None:
        """Learn that the action was worth `value` at that node, before it counts in the means.

        Without children the estimate does not depend on the weights.
        """
        total = self.weight_everywhere + self.weight_here
        if here.number and abs(total) >= SMALLEST:
            estimate = self.mix(here)
            step = 2 * (estimate - value) / total / (1 + self.everywhere.number)
            self.weight_everywhere -= step * (self.everywhere.mean - estimate)
            self.weight_here -= step * (here.mean - estimate)
        self.everywhere = self.everywhere.plus(value)
