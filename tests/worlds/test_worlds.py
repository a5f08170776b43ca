"""World models: predictions of each shape, the true environment, contracts."""

import json

import numpy as np
import pytest

import cwm_cli
from cwm_cli.commands.recording import record
from cwm_cli.evaluation import AccuracyMetric, PaperMetric, evaluate
from cwm_cli.registry import environment, find, names
from cwm_cli.worlds import Contract, EnvironmentModel, Predictions, ProgramModel
from recordings import COUNTER, MOVES, dataset, predictions, truth

DATA = dataset([(n, n + 1, n % 2, n == 3) for n in range(4)])


def stacked(*answers):
    """Stack several predictions of each row."""
    return {name: np.stack([answer[name] for answer in answers], 1) for name in answers[0]}


RIGHT, WRONG = truth(DATA), predictions(DATA, rewards=[5, 5, 5, 5])


def test_inconsistent_predictions_are_refused() -> None:
    two = stacked(RIGHT, WRONG)
    halves = np.full((4, 2), 0.5)
    cases = {
        "have different lengths": lambda: Predictions(RIGHT | {"rewards": np.zeros(3)}),
        "at least 2 axes": lambda: Predictions(RIGHT, shape="draws"),
        "probabilities are required for outcomes": lambda: Predictions(two, shape="outcomes"),
        "only for them": lambda: Predictions(two, shape="draws", probabilities=halves),
        "needs one probability": lambda: Predictions(
            two, shape="outcomes", probabilities=halves[:, :1]
        ),
        "sum to 1": lambda: Predictions(two, shape="outcomes", probabilities=halves + 0.1),
        "must not be negative": lambda: Predictions(
            two, shape="outcomes", probabilities=np.array([[2.0, -1.0]] * 4)
        ),
        "no prediction of rewards": lambda: Predictions(
            {name: column for name, column in RIGHT.items() if name != "rewards"}
        ).checked(DATA),
        "do not fit": lambda: Predictions(RIGHT).checked(DATA[np.arange(3)]),
    }
    kept = {}
    for words, make in cases.items():
        try:
            kept[words] = make()
        except ValueError as error:
            assert words in str(error)
    assert kept == {}
    for made in (
        Predictions(RIGHT),
        Predictions(two, shape="draws"),
        Predictions(two, shape="outcomes", probabilities=halves),
    ):
        assert made.checked(DATA) is made


@pytest.mark.parametrize("metric", [AccuracyMetric, PaperMetric])
def test_random_predictions_are_scored_by_their_probability(metric) -> None:
    made = metric.of(DATA)
    right, wrong = made.score(RIGHT, DATA), made.score(WRONG, DATA)
    two = stacked(RIGHT, WRONG)
    drawn = made.score(Predictions(two, shape="draws"), DATA)
    assert drawn.value == pytest.approx((right.value + wrong.value) / 2)
    chances = np.array([[0.75, 0.25]] * 4)
    likely = made.score(Predictions(two, shape="outcomes", probabilities=chances), DATA)
    assert likely.reward == pytest.approx(0.75)
    thirds = Predictions(stacked(RIGHT, RIGHT, RIGHT), shape="draws")
    assert made.score(thirds, DATA) == right
    assert made.losses(thirds, DATA).tolist() == [0.0] * 4
    some = Predictions(RIGHT, answered=np.array([True, True, False, True]))
    assert made.score(some, DATA).exact == 0.75


def test_a_restorable_environment_predicts_itself_exactly() -> None:
    spec = environment("FrozenLake-v1")
    rows = record(spec, env_args={"is_slippery": False}, policy="random", test_episodes=0)
    truth_itself = EnvironmentModel(spec, {"is_slippery": False})
    found = truth_itself.predict(rows).checked(rows)
    assert found.answered.all()
    assert evaluate(truth_itself, rows, AccuracyMetric.of(rows)).score.exact == 1.0
    with pytest.raises(cwm_cli.CwmError, match="cannot be saved"):
        truth_itself.save("nowhere")


def test_kinds_metrics_and_contracts_are_found_by_name(sandbox, tmp_path) -> None:
    assert {"program", "environment"} <= set(names("world model"))
    assert find("metric", "paper") is PaperMetric
    assert find("contract", "plain") is Contract
    model = ProgramModel("class Environment: ...", sandbox)
    model.save(tmp_path / "model.py")
    again = find("world model", "program").load(tmp_path / "model.py", sandbox=sandbox)
    assert (again.text, again.digest) == (model.text, model.digest)


def test_a_contract_describes_every_method_of_a_program() -> None:
    plain = Contract().words(COUNTER, MOVES)
    full = Contract().words(COUNTER, MOVES, tools=["mujoco"], names_actions=True)
    for method in Contract.methods:
        assert f"def {method}(self" in plain
    assert "an int from 0 to 99" in plain
    assert "valid_actions" not in plain and "mujoco" not in plain
    assert "terminated, valid_actions)" in full and "numpy, mujoco" in full


STRANGER = """
from dataclasses import dataclass
from typing import ClassVar

from cwm_cli import hookimpl
from cwm_cli.planning import Planner

@hookimpl
def cwm_planners():
    return {"last": "strange_planner:Last"}

@dataclass(frozen=True)
class Last(Planner):
    "Takes the last action, after one step of it in the model."

    NEEDS: ClassVar[str] = "discrete actions"
    looks: int = 1

    @classmethod
    def serves(cls, action_space):
        return action_space.kind == "discrete"

    def plan(self, model, situations):
        for situation in situations:
            model.stand(situation.state)
            model.step(int(model.action_space.high[0]))
        return [[int(model.action_space.high[0])] for _ in situations]
"""


@pytest.mark.slow
def test_a_planner_of_a_plugin_plans_in_the_sandbox_and_in_the_environment(cwm) -> None:
    from recordings import cartpole

    cwm.install("strange_planner", STRANGER)
    (cwm.folder / "cartpole.py").write_text(cartpole())
    short = ("--episodes", "1", "--planner", "last", "-o", "looks=2", "--oracle", "--json")
    done = cwm("plan", "--env", "CartPole-v1", "--program", "cartpole.py", *short)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["planner"], result["failures"]) == ("last", 0)
    assert result["model_steps"] == result["decisions"] == result["lengths"][0]
    assert result["oracle_returns"] == result["returns"]
