"""The planner `feedback`: balance, the forms of a model, and the models that it refuses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cwm_cli.data.spaces import Space
from cwm_cli.planning import Unsuited
from cwm_cli.planning.feedback import Feedback
from cwm_cli.planning.model import Here, Model, Step
from cwm_cli.planning.planner import Situation

FORCE = Space("box", "float32", (1,), (-1.0,), (1.0,))
QUICK = Feedback(policies=32, elites=8, rollout=40, iterations=10)


class Pole(Model):
    """A pole that falls from the unstable upright position; a force accelerates it.

    Its states are observations, or `Here` with a saved state as in true environments.
    """

    deterministic = True
    action_space = FORCE
    saves = False

    def __init__(self) -> None:
        self.counter = [0]
        grid = np.meshgrid(np.linspace(-0.2, 0.2, 5), np.linspace(-1, 1, 5))
        self.examples = np.stack([part.ravel() for part in grid], axis=1).astype(np.float32)

    def stand(self, state: Any) -> None:
        self.state = np.array(state.state if isinstance(state, Here) else state, float)

    def here(self) -> Any:
        return Here(self.state, self.state.copy()) if self.saves else self.state

    def step(self, action: Any) -> Step:
        self.counter[0] += 1
        angle, speed = self.state
        speed += 0.05 * (20 * np.sin(angle) - 10 * float(np.ravel(action)[0]))
        self.state = np.array([angle + 0.05 * speed, speed])
        return Step(self.state, 1.0, bool(abs(self.state[0]) > 0.3))


def balanced_steps(planner: Feedback, model: Pole, limit: int = 80) -> int:
    """Return how long the planned actions keep the pole up."""
    model.stand(np.array([0.05, 0.0]))
    memory = None
    for count in range(limit):
        situation = Situation(model.here(), limit - count, (0, 0, count), memory)
        [[action]] = planner.plan(model, [situation])
        memory = situation.memory
        model.stand(situation.state)
        if model.step(action).terminated:
            return count
    return limit


def test_feedback_keeps_an_unstable_pole_in_balance() -> None:
    assert balanced_steps(Feedback(policies=1, elites=1, iterations=1), Pole()) < 20
    assert balanced_steps(QUICK, Pole()) == 80


def test_saved_states_and_observations_give_equal_plans() -> None:
    model, saving = Pole(), Pole()
    saving.saves = True
    assert balanced_steps(QUICK, saving, limit=12) == balanced_steps(QUICK, model, limit=12) == 12
    assert saving.counter == model.counter


def test_policies_are_searched_again_after_an_interval() -> None:
    model, steps = Pole(), []
    memory = None
    for count in range(12):
        before = model.counter[0]
        situation = Situation(np.array([0.05, 0.0]), 80, (0, 0, count), memory)
        QUICK.plan(model, [situation])
        memory = situation.memory
        steps.append(model.counter[0] - before)
    assert [bool(each) for each in steps] == [True, *[False] * 9, True, False]
    assert steps[10] < steps[0]


def test_without_recorded_observations_random_rollouts_give_the_scale() -> None:
    model = Pole()
    model.examples = None
    assert balanced_steps(QUICK, model) == 80


def give_memory(model: Model) -> None:
    model.remembers = True


def draw(model: Model) -> None:
    model.deterministic = False


@pytest.mark.parametrize(
    ("change", "reason"), [(give_memory, "has a memory"), (draw, "draws random numbers")]
)
def test_unsuitable_model_is_refused_with_the_reason(
    change: Callable[[Model], None], reason: str
) -> None:
    model = Pole()
    change(model)
    with pytest.raises(Unsuited, match=reason):
        QUICK.plan(model, [Situation(np.zeros(2), 10, (0,))])
