"""Learning strategies act within their budget."""

from typing import Any

from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task
from cwm_cli.testing.conftest import Material
from cwm_cli.testing.test_conformance import every, make
from cwm_learn.strategy import LearningSession, LearningTask


@every("learning strategy")
def test_a_learning_strategy_acts_within_its_budget_and_tells_of_each_step(
    name: str, material: Material
) -> None:
    strategy = make("learning strategy", name, material)
    made: list[Any] = []

    def begin() -> Any:
        made.append(material.spec.make())
        return made[-1]

    task = LearningTask(material.spec.id, Task(begin, 0, 30))
    session = LearningSession([task], material.sandbox, steps=12, completions=3, seconds=20)
    strategy.learn(session)
    assert session.over == "steps"
    assert len(session.rows) == 12
    assert made
    spaces = space_of(made[0].observation_space), space_of(made[0].action_space, "actions")
    rows = Dataset.of(session.rows, observation_space=spaces[0], action_space=spaces[1])
    assert len(rows) == 12
