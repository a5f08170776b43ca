"""Limits of single components that explain why episodes ended.

With few ends, several components often separate the same ends from all other rows. A program uses
only one rule. If this rule is wrong and survival is rewarded, the agent stays inside the wrong
limit and never collects the row that would refute it. The other rules are therefore kept as rivals,
until rows in decisive boxes, where only one rule predicts an end, refute all wrong rules.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np


class EndRule(NamedTuple):
    """A rule: the episode ends if `sign` times a component exceeds a limit.

    Attributes:
        component: Index of the component.
        sign: 1 for an upper limit, -1 for a lower limit.
        last: Largest value of `sign` times the component in rows without an end.
        first: Smallest value of `sign` times the component in ends that the rule explains.
        explained: Mask of the rows whose end the rule explains.
    """

    component: int
    sign: int
    last: float
    first: float
    explained: np.ndarray

    @property
    def bounds(self) -> tuple[float, float]:
        """The lower and the upper bound of the limit."""
        low, high = sorted((self.sign * self.last, self.sign * self.first))
        return low, high


def find_end_rules(
    after: np.ndarray, ends: np.ndarray, spread: np.ndarray
) -> list[tuple[EndRule, list[EndRule]]]:
    """Return rules that together explain as many ends as possible, each with its rivals.

    Args:
        after: The observations after each row (rows, components).
        ends: Mask of the rows that end their episode.
        spread: The spread of each component.

    Returns:
        Rules, the rule that explains most ends first, each with the other rules that explain all
        ends that no earlier rule explains.
    """
    if not ends.any() or ends.all():
        return []
    rules = []
    for component, sign in product(range(after.shape[1]), (1, -1)):
        values = sign * after[:, component]
        last = float(values[~ends].max())
        explained = ends & (values > last)
        if explained.any():
            first = float(values[explained].min())
            rules.append(EndRule(component, sign, last, first, explained))
    rules.sort(
        key=lambda rule: (rule.explained.sum(), (rule.first - rule.last) / spread[rule.component]),
        reverse=True,
    )
    found, explained = [], np.zeros(len(ends), np.bool_)
    for rule in rules:
        new = rule.explained & ~explained
        if new.any():
            explained |= rule.explained
            same = [each for each in rules if each is not rule and each.explained[new].all()]
            found.append((rule, same))
    return found


def decisive_boxes(
    rules: list[EndRule], after: np.ndarray, ends: np.ndarray, spread: np.ndarray
) -> np.ndarray:
    """Return a box (2, components) for each rule where no other rule predicts an end.

    A box is beyond the limit of its rule. Its other components are in the range of the rows
    without an end. The arguments have the same meaning as in `find_end_rules`.
    """
    inside = after[~ends]
    boxes = []
    # distance of a decisive box from the limits, in spreads of the data: larger than the distance
    # at which a plan counts as arrived
    margin = 0.05
    for rule in rules:
        box = np.stack([inside.min(0) + margin * spread, inside.max(0) - margin * spread])
        limit = rule.first + margin * spread[rule.component]
        box[:, rule.component] = sorted((rule.sign * limit, rule.sign * np.inf))
        boxes.append(box)
    return np.array(boxes)
