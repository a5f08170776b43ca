"""Commands for any world model work with trained runs: evaluate, plan and bench-speed."""

import pytest

import cwm_cli
from cwm_cli.commands.recording import record
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

FEW = {"mcts.simulations": 4}
"""The smallest number of simulations per decision that makes a plan."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    rows = record(environment("CartPole-v1"), policy="random", episodes=4, test_episodes=2)
    folder = tmp_path_factory.mktemp("trained") / "run"
    options = {"training.tests": 0, "model.ratio": 1}
    cwm_cli.train(
        "CartPole-v1", dataset=rows, profile="tiny", steps=60, run=folder, options=options
    )
    return folder


def test_evaluate_scores_a_trained_model(trained):
    found = cwm_cli.evaluate(trained, rollout_count=2, options={"checkpoint.checkpoint": "last"})
    assert found.scores.train.transitions > found.scores.test.transitions > 0
    assert 0 < found.scores.test.terminated <= 1
    assert found.rollouts[0].error > 0
    skilled = cwm_cli.evaluate(trained, split="test", metric="skill")
    assert skilled.scores.test.skill is not None


def test_plan_uses_a_trained_model_and_stores_no_rows(trained):
    found = cwm_cli.plan(trained, episodes=1, max_steps=3, planner="mcts", options=FEW)
    assert found.side.returns == [3.0]
    assert found.side.report.planner == "mcts"
    assert found.learn_from is None


def test_bench_speed_times_a_trained_model(trained):
    found = cwm_cli.bench_speed(trained, rows=5)
    timed = found.as_json()["world_model"]
    assert timed["batched_median_seconds"] > 0 and timed["median_seconds"] > 0
    assert timed["rows_timed"] == 64
    assert timed["score"]["transitions"] == 5


def test_unknown_options_of_trained_runs_are_refused(trained):
    with pytest.raises(CwmError, match="statistician"):
        cwm_cli.evaluate(trained, options={"statistician.noise": 0.2})
    with pytest.raises(CwmError, match="checkpoint"):
        cwm_cli.evaluate(trained, options={"checkpoint.checkpoint": "first"})
