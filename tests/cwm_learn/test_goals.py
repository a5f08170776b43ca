"""Goals as conditions on observations."""

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.worlds import ProgramModel
from cwm_learn.goals import GoalCondition

GUIDE = """
| Num | Observation | Min |
|-----|-------------|-----|
| 0 | Cart Position | -4.8 |
| 1 | Cart Velocity | -Inf |
| 2 | Pole Angle | -0.4 |
| 3 | Pole Angular Velocity | -Inf |
"""


def test_program_of_a_goal_returns_a_reward_if_the_condition_holds() -> None:
    spec = environment("CartPole-v1")
    env = spec.make()
    space = space_of(env.observation_space)
    moves = (
        "import numpy as np\n"
        "class Environment:\n"
        "    def set_state(self, observation):\n"
        "        self.state = np.array(observation)\n"
        "    def step(self, action):\n"
        "        self.state = self.state + np.array([0.4, 0, 0, 0])\n"
        "        return self.state, 1.0, False\n"
    )
    goal = GoalCondition.parse("position >= 0.5 and abs(cart_velocity) < 1", space, GUIDE)
    program = goal.add_to(moves)
    starts = [np.array([x, v, 0.0, 0.0]) for x, v in ((0.0, 0.0), (0.2, 0.0), (0.2, 2.0))]
    rows = Dataset.of(
        [Transition(start, 0, start, 0.0, False) for start in starts],
        observation_space=space,
        action_space=space_of(env.action_space, "actions"),
    )
    with Sandbox(Limits(), 1) as sandbox:
        found = ProgramModel(program, sandbox).predict(rows)
    assert found.columns["rewards"].tolist() == [0, 1, 0]
    assert found.columns["terminations"].tolist() == [False, True, False]


@pytest.mark.parametrize(
    "goal",
    [
        "open the red door",
        "speed > 1",
        "position.real > 1",
        "open('x')",
        "1 > 0",
        "position >",
        "().__class__",
    ],
)
def test_invalid_goal_raises_a_one_line_error(goal: str) -> None:
    space = space_of(environment("CartPole-v1").make().observation_space)
    with pytest.raises(CwmError, match="position") as error:
        GoalCondition.parse(goal, space, GUIDE)
    assert len(str(error.value).splitlines()) == 1
