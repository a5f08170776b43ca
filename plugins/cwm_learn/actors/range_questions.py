"""Questions about the range of real-valued observations that the rows of a learner visited.

Rows leave open which component ends an episode, where its limit is, and what happens at bounds that
no observation came close to.
"""

from __future__ import annotations

from functools import cached_property
from itertools import product
from math import isfinite

import numpy as np

from cwm_learn.actors.base import Knowledge, OpenQuestion, TargetedQuestion
from cwm_learn.end_rules import EndRule, decisive_boxes, find_end_rules

MAX_BOUND = 1e3
"""Bounds and ranges beyond this are ignored."""


class VisitedRange:
    """All observations, and the lowest value, highest value and spread of each component."""

    def __init__(self, observations: np.ndarray) -> None:
        self.observations = observations
        self.low, self.high = observations.min(0), observations.max(0)
        self.spread = np.maximum(self.high - self.low, 1e-6)


class RangeQuestions:
    """The questions that the present rows of a learner leave open in their range."""

    def __init__(self, known: Knowledge, visited: VisitedRange) -> None:
        self._known, self._visited = known, visited

    def own(self) -> list[TargetedQuestion]:
        """Return questions and their boxes, the most important first."""
        found = [*self._limits(), *self._bounds()]
        return sorted(found, key=lambda each: -each.question.weight)

    def _limits(self) -> list[TargetedQuestion]:
        """Return the questions where exactly a component ends the episode.

        A limit is between the most extreme value without an end and the next value with an end.
        """
        found = []
        total = sum(row.terminated for row in self._known.rows)
        for rule, _ in self._end_rules:
            count, (low, high) = int(rule.explained.sum()), rule.bounds
            name = self._known.component_name(rule.component)
            text = f"the limit of {name} is between {low:.4g} and {high:.4g}"
            if count == 1:
                text += "; only one such end was seen"
            gap = (high - low) / self._visited.spread[rule.component]
            question = OpenQuestion(
                text,
                f"{name} from {low:.4g} to {high:.4g}",
                None,
                "an end there lowers the upper bound of the limit, no end raises the lower bound",
                float(gap * count / total + (count == 1)),
            )
            box = _box(len(self._visited.low), rule.component, low, high)
            found.append(TargetedQuestion(question, box))
        return found

    def rivals(self) -> list[tuple[OpenQuestion, np.ndarray]]:
        """Return the questions which of several components ends the episode, and decisive boxes."""
        found = []
        # weight of the question which component ends the episode; it decides about all later play
        rival_weight = 2.0
        for rule, rivals in self._end_rules:
            rules = [rule, *rivals]
            if len({each.component for each in rules}) == 1:
                continue
            causes = ", ".join(
                f"{'high' if each.sign > 0 else 'low'} {self._known.component_name(each.component)}"
                for each in sorted(rules, key=lambda each: each.component)
            )
            question = OpenQuestion(
                f"the same ends have several possible causes: {causes}",
                "beyond the limit of exactly one component",
                None,
                "an end there refutes every other cause, no end refutes this cause",
                rival_weight,
            )
            boxes = decisive_boxes(rules, *self._ends, self._visited.spread)
            found.append((question, boxes))
        return found

    @cached_property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The observations after all rows, and the mask of the rows that end their episode."""
        ends = np.array([row.terminated for row in self._known.rows], np.bool_)
        return self._visited.observations[1::2], ends

    @cached_property
    def _end_rules(self) -> list[tuple[EndRule, list[EndRule]]]:
        """The rules that explain the ends, each with its rivals."""
        return find_end_rules(*self._ends, self._visited.spread)

    def _bounds(self) -> list[TargetedQuestion]:
        """Return a question for each bound that no observation came close to."""
        space, visited, found = self._known.observation_space, self._visited, []
        # the data cover a bound if the component reached this share of the bound
        covered_share = 0.9
        for place, sign in product(range(len(visited.low)), (1, -1)):
            bound = (space.high if sign > 0 else space.low)[place]
            extreme = (visited.high if sign > 0 else visited.low)[place]
            if not isfinite(bound) or abs(bound) > MAX_BOUND or sign * bound <= 0:
                continue
            share, name = max(0.0, float(extreme / bound)), self._known.component_name(place)
            if share >= covered_share:
                continue
            covered = covered_share * bound
            low, high = (covered, np.inf) if sign > 0 else (-np.inf, covered)
            question = OpenQuestion(
                f"{name} came no nearer to its bound {bound:.4g} than {extreme:.4g}",
                f"{name} {'above' if sign > 0 else 'below'} {covered:.4g}",
                None,
                "whether an end or another reward occurs there",
                0.1 * (1 - share),
            )
            found.append(TargetedQuestion(question, _box(len(visited.low), place, low, high)))
        return found


def _box(size: int, place: int, low: float, high: float) -> np.ndarray:
    """Return a box (2, components) with bounds in one component only."""
    box = np.repeat([[-np.inf], [np.inf]], size, 1)
    box[:, place] = low, high
    return box
