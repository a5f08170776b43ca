"""What the tests are made of: a small recording, a sandbox, an empty folder."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cwm_cli.agents.recording import record
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.envs.text_view import Change, Consequence, TextView
from cwm_cli.registry import environment
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.search.contracts import Backend, ScoreRequest
from cwm_cli.worlds.statistician import PredictionQuestion, Statistician

ENVIRONMENT = "CartPole-v1"
"""What transitions are recorded of: it is quick, and every installation has it."""


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


@dataclass(frozen=True)
class Material:
    """What `example` may use: an environment, transitions, a sandbox, a folder, a statistician."""

    spec: EnvironmentSpec
    dataset: Dataset
    sandbox: Sandbox
    folder: Path
    statistician: Statistician


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks, which are unknown where other packages are tested."""
    config.addinivalue_line("markers", "slow: takes more than a few seconds")


@pytest.fixture(scope="session")
def recorded() -> tuple[EnvironmentSpec, Dataset]:
    """Record a few short random episodes."""
    spec = environment(ENVIRONMENT)
    options = {"policy": "core:random", "episodes": 4, "test_episodes": 2, "max_steps": 30}
    return spec, record(spec, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Share one sandbox; what this machine cannot keep programs from is accepted."""
    from cwm_cli.sandbox.protection import GAPS

    with Sandbox(Limits(), 2, accepted=list(GAPS)) as made:
        yield made


@pytest.fixture
def material(
    recorded: tuple[EnvironmentSpec, Dataset], sandbox: Sandbox, tmp_path: Path
) -> Material:
    """Put together what `example` may use."""
    return Material(*recorded, sandbox, tmp_path, Statistician(CartWords(), Pusher()))
