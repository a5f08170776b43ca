"""Examples of rules in words, for the recorded rows of a cart."""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import numpy as np

from cwm_cli.data.dataset import Transition
from cwm_cli.envs.text_view import Change, Consequence, TextView
from cwm_cli.search.contracts import Backend, ScoreRequest
from cwm_cli.testing.conftest import Material
from cwm_theorize.curiosity import CuriousPolicy
from cwm_theorize.problem import TheoryProblem
from cwm_theorize.statistician import PredictionQuestion, Statistician
from cwm_theorize.world_model import Theory

SIDES = ("left", "right")
"""Directions of a push, in words."""


class CartWords(TextView):
    """A text view of a cart: the direction of a push, and the direction of the acceleration."""

    kinds = ("faster",)
    vocabulary: Mapping[str, tuple[str, ...]] = {"push": SIDES}  # read only
    conclusions: Mapping[str, Mapping[str, tuple[str, ...]]] = {"faster": {"side": SIDES}}
    goals = ("a push to the right",)

    def guide(self) -> str:
        """Describe the cart."""
        return "A cart is pushed to the left or to the right."

    def state(self, observation: Any) -> str:
        """Return the speed in words."""
        return f"The cart moves at {observation[1]:.2f}."

    def legal(self, observation: Any) -> Sequence[int]:
        """Return both pushes."""
        return (0, 1)

    def action(self, observation: Any, action: int) -> str:
        """Return the push in words."""
        return f"You push it to the {SIDES[action]}."

    def facts(self, observation: Any, action: int) -> Mapping[str, str]:
        """Return the direction of the push."""
        return {"push": SIDES[action]}

    def change(self, row: Transition) -> Change:
        """Return the direction of the acceleration."""
        return self.candidates(row)[int(row.next_observation[1] > row.observation[1])]

    def candidates(self, observation: Any) -> Sequence[Change]:
        """Return both directions of acceleration."""
        return [Change(f"It goes faster to the {s}.", "faster", {"side": s}) for s in SIDES]

    def consequence(self, observation: Any, action: int, change: Change) -> Consequence:
        """Return the observation with its speed changed by one push."""
        after = np.array(observation)
        after[1] += 0.2 * (2 * SIDES.index(change.fields["side"]) - 1)
        return Consequence(after, 1.0, False)

    def features(self, observation: Any) -> np.ndarray:
        """Return the observation."""
        return np.asarray(observation)

    def solution(self, observation: Any, goal: str) -> Sequence[int]:
        """Return a push to the right."""
        return (1,)


class Pusher(Backend):
    """A statistician that expects acceleration in the direction of the push, under any rules."""

    can_score = normalises = True
    reads_messages = False

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Score sentences by whether they name the direction of the push."""
        return [[log(0.9 if self._side(each) in each.text else 0.1)] for each in requests]

    def _side(self, request: ScoreRequest) -> str:
        assert isinstance(request.question, PredictionQuestion)
        return request.question.transition.facts["push"]


def statistician() -> Statistician:
    """Return a statistician for the words of the cart."""
    return Statistician(CartWords(), Pusher())


def theory(material: Material) -> Theory:
    """Return a world model without rules."""
    return Theory("", statistician())


def theory_problem(material: Material) -> TheoryProblem:
    """Return a problem with the recorded train rows as evidence."""
    problem = TheoryProblem(statistician())
    problem.observe(list(material.dataset.train))
    return problem


def curious_policy(material: Material) -> CuriousPolicy:
    """Return a policy with short phases."""
    return CuriousPolicy(environments=2, steps=12, epochs=2)
