"""Commands on recorded data without a simulator: the dataset names its environment."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import cwm_cli
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_cli.export import export_of, publish
from cwm_formats.recorded import RecordedColumn, RecordedTable
from recorded_tank import PROGRAM, REMEMBERING, next_level, recorded_tank
from shell import Shell
from worlds import CARTPOLE

REWARD = "-abs(level_m - 1) - 0.1 * (valve == 'open')"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A file with recorded transitions of a tank."""
    file = tmp_path / "tank.npz"
    recorded_tank().save(file)
    return file


@pytest.mark.slow
def test_a_dataset_names_the_environment_of_a_program(dataset: Path) -> None:
    for env in (None, "data/tank"):
        found = cwm_cli.evaluate(PROGRAM, env=env, dataset=dataset)
        assert found.scores.train and found.scores.train.exact == 1
        assert found.scores.test and found.scores.test.exact == 1


@pytest.mark.slow
def test_synthesize_needs_only_a_dataset(dataset: Path, tmp_path: Path) -> None:
    start = tmp_path / "start.py"
    start.write_text(PROGRAM)
    result = cwm_cli.synthesize(dataset=dataset, start=start, run=tmp_path / "run")
    assert result.solved
    assert not result.has_simulator
    assert cwm_cli.evaluate(tmp_path / "run").scores.test.exact == 1


def test_a_module_is_not_imported_because_a_dataset_names_it(tmp_path: Path) -> None:
    rows = recorded_tank()
    rows.metadata["env"] = "evil_module:Tank-v0"
    with pytest.raises(CwmError, match="imports a Python module: add --env evil_module:Tank-v0"):
        cwm_cli.synthesize(dataset=rows)


@pytest.mark.slow
@pytest.mark.parametrize("program", [PROGRAM, REMEMBERING], ids=["plain", "memory"])
def test_plans_are_played_in_the_program(program: str, dataset: Path, tmp_path: Path) -> None:
    result = cwm_cli.plan(
        program=program,
        dataset=dataset,
        reward_expression=REWARD,
        episodes=3,
        max_steps=15,
        options=["mcts.budget=50"] if program == REMEMBERING else [],
        folder=tmp_path,
    )
    assert result.in_program
    assert result.mismatches is None
    assert result.lengths == [15, 15, 15]
    assert result.mean > result.random.mean
    # the level that the valve can hold costs at most 0.2 a step, plus 0.1 while it is open
    assert result.mean > -15 * 0.3


DELAYED = """
import numpy as np


class Environment:
    def reset(self, observation):
        self.seen, self.last = [int(value) for value in observation], 0

    def step(self, action):
        place, other = self.seen
        self.seen = [(place + self.last) % 7, (other + action{draw}) % 5]
        self.last = int(action)
        return np.array(self.seen), float(self.seen[0] == 3) + 0.1 * self.seen[1], False

    def correct(self, observation, reward):
        self.seen = [int(value) for value in observation]
"""


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["", " + int(self.rng.integers(2))"], ids=["certain", "chance"])
def test_plans_with_memory_of_whole_numbers_are_confirmed(draw: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    seen, acted = rng.integers((7, 5), size=(40, 2)), rng.integers(3, size=40)
    box = Space("box", "int64", (2,), (0, 0), (6, 4))
    dial = Space("discrete", low=(0,), high=(2,))
    names = (RecordedColumn("place"), RecordedColumn("other")), (RecordedColumn("dial"),)
    columns = {
        "observations": seen,
        "actions": acted,
        "next_observations": seen,
        "rewards": np.arange(40.0),
        "terminations": np.zeros(40, np.bool_),
        "truncations": np.zeros(40, np.bool_),
        "episodes": np.arange(40) // 4,
    }
    metadata = {"env": "data/dial", "env_args": RecordedTable(box, dial, *names).as_arguments()}
    result = cwm_cli.plan(
        program=DELAYED.replace("{draw}", draw),
        dataset=Dataset(columns, box, dial, metadata).validate(),
        episodes=3,
        max_steps=10,
        options=["mcts.budget=60"],
        folder=tmp_path,
    )
    assert result.side.cost.confirmed
    assert result.mean > result.random.mean


@pytest.mark.slow
def test_recorded_rewards_that_the_program_predicts_need_no_expression(tmp_path: Path) -> None:
    program = PROGRAM.replace("0.0, False", "-abs(self.level - 1), False")
    result = cwm_cli.plan(
        program=program,
        dataset=recorded_tank(rewards=True),
        episodes=2,
        options=["mcts.budget=50"],
        folder=tmp_path,
    )
    assert result.lengths == [20, 20]  # as long as the recorded episodes
    assert result.mean > result.random.mean


@pytest.mark.slow
def test_an_expression_replaces_the_reward_of_an_environment(tmp_path: Path) -> None:
    result = cwm_cli.plan(
        env="CartPole-v1",
        program=CARTPOLE,
        reward_expression="observation[0]",
        episodes=2,
        max_steps=20,
        options=["mcts.budget=50"],
        folder=tmp_path,
    )
    assert not result.in_program
    assert result.mismatches and not result.mismatches.wrong
    assert result.mean > result.random.mean
    assert max(result.returns) < 20  # the own reward is 1 in each step


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "all recorded rewards are 0: define a reward"),
        ({"reward_expression": "-level"}, "unknown name level: choose from action, level_m"),
        ({"reward_expression": "valve == 'ajar'"}, "unknown label 'ajar': choose from closed"),
        ({"reward_expression": "'open'"}, "compare labels with their column"),
        ({"reward_expression": "level_m +"}, "is not valid Python"),
        ({"reward_expression": "level_m.__class__"}, "may only calculate"),
        ({"reward_expression": "1 / (level_m - level_m)"}, "fails"),
        ({"reward_expression": "level_m", "oracle": True}, "leave out --oracle"),
        ({"reward_expression": "level_m", "render": "film.gif"}, "leave out --render"),
    ],
)
def test_requests_that_recorded_data_cannot_serve(
    options: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CwmError, match=message.replace("(", r"\(")):
        cwm_cli.plan(program=PROGRAM, dataset=recorded_tank(), folder=tmp_path, **options)


@pytest.mark.slow
def test_an_exported_package_has_the_reward_of_an_expression(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = tmp_path / "start.py"
    start.write_text(PROGRAM)
    run = cwm_cli.synthesize(dataset=dataset, start=start, run=tmp_path / "run").run
    made = export_of(run, REWARD)
    assert "The reward is `-abs(level_m - 1)" in made.files["README.md"].decode()
    publish(made, tmp_path / "package")
    monkeypatch.syspath_prepend(tmp_path / "package")
    env = gym.make("data_tank_world_model:WorldModel/data-tank")
    before, _ = env.reset(seed=0)
    after, reward, *_ = env.step(1)
    assert after[0] == pytest.approx(next_level(before[0], 1))
    assert reward == pytest.approx(-abs(after[0] - 1) - 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("program", [PROGRAM, REMEMBERING], ids=["plain", "memory"])
def test_imagined_episodes_begin_at_recorded_observations(
    program: str, dataset: Path, tmp_path: Path
) -> None:
    start = tmp_path / "start.py"
    start.write_text(program)
    run = cwm_cli.synthesize(dataset=dataset, start=start, run=tmp_path / "run").run
    found = cwm_cli.imagine(run, policy="random", episodes=2, max_steps=5)
    recorded = recorded_tank().columns["observations"]
    assert len(found) == 10
    for row in found:
        assert row.next_observation[0] == pytest.approx(next_level(row.observation[0], row.action))
    assert all(found.row(n).observation[0] in recorded for n in (0, 5))


def test_commands_of_a_new_user(cwm: Shell) -> None:
    recorded_tank().save(cwm.folder / "tank.npz")
    (cwm.folder / "tank.py").write_text(PROGRAM)
    shown = cwm.inside("evaluate", "tank.py", "--dataset", "tank.npz")
    assert "160 training and 40 held-out" in shown.stdout.replace("\n", " ")
    asked = ["--dataset", "tank.npz", "--reward-expression", REWARD, "--episodes", "2"]
    asked += ["-o", "mcts.budget=50"]
    played = cwm.inside("plan", "--program", "tank.py", *asked)
    assert "returns are predictions" in " ".join(played.stdout.split())
    refused = cwm.inside("learn", "--env", "data/tank")
    assert refused.returncode == 1
    assert "data/tank is known by its transitions only" in refused.stderr
