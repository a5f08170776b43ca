"""Examples of rules in words, about a cart that is pushed."""

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
"""Where a cart can be pushed to, in words."""


class CartWords(TextView):
    """Says of a cart where it is pushed to, and whether it is faster in that direction then."""

    kinds = ("faster",)
    vocabulary: Mapping[str, tuple[str, ...]] = {"push": SIDES}  # read only
    conclusions: Mapping[str, Mapping[str, tuple[str, ...]]] = {"faster": {"side": SIDES}}
    goals = ("a push to the right",)

    def guide(self) -> str:
        """Describe the cart."""
        return "A cart is pushed to the left or to the right."

    def state(self, observation: Any) -> str:
        """Say how fast it is."""
        return f"The cart moves at {observation[1]:.2f}."

    def legal(self, observation: Any) -> Sequence[int]:
        """Return both pushes."""
        return (0, 1)

    def action(self, observation: Any, action: int) -> str:
        """Say where it is pushed to."""
        return f"You push it to the {SIDES[action]}."

    def facts(self, observation: Any, action: int) -> Mapping[str, str]:
        """Say where it is pushed to."""
        return {"push": SIDES[action]}

    def change(self, row: Transition) -> Change:
        """Say in which direction it is faster."""
        return self.candidates(row)[int(row.next_observation[1] > row.observation[1])]

    def candidates(self, observation: Any) -> Sequence[Change]:
        """Return that it is faster to the left, and to the right."""
        return [Change(f"It goes faster to the {s}.", "faster", {"side": s}) for s in SIDES]

    def consequence(self, observation: Any, action: int, change: Change) -> Consequence:
        """Change the speed by what a push does, and nothing else."""
        after = np.array(observation)
        after[1] += 0.2 * (2 * SIDES.index(change.fields["side"]) - 1)
        return Consequence(after, 1.0, False)

    def features(self, observation: Any) -> np.ndarray:
        """Return what is observed."""
        return np.asarray(observation)

    def solution(self, observation: Any, goal: str) -> Sequence[int]:
        """Push to the right."""
        return (1,)


class Pusher(Backend):
    """Holds it to be likely that a cart goes where it is pushed, whatever the rules."""

    can_score = normalises = True
    reads_messages = False

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Weigh sentences by whether they name the side of the push."""
        return [[log(0.9 if self._side(each) in each.text else 0.1)] for each in requests]

    def _side(self, request: ScoreRequest) -> str:
        assert isinstance(request.question, PredictionQuestion)
        return request.question.transition.facts["push"]


def statistician() -> Statistician:
    """Return a statistician that reads the words of the cart."""
    return Statistician(CartWords(), Pusher())


def theory(material: Material) -> Theory:
    """Return no rules, in words for the cart."""
    return Theory("", statistician())


def theory_problem(material: Material) -> TheoryProblem:
    """Return a problem that has observed the recorded train rows."""
    problem = TheoryProblem(statistician())
    problem.observe(list(material.dataset.train))
    return problem


def curious_policy(material: Material) -> CuriousPolicy:
    """Return a policy that plays and learns little."""
    return CuriousPolicy(environments=2, steps=12, epochs=2)
