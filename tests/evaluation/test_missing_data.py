"""A search is solved only if the data verify rare events; results credit the right method."""

import json

import numpy as np
import pytest

import cwm_cli
from cwm_cli.commands.recording import record
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.evaluation.missing_data import find_untested, find_unverified
from cwm_cli.evaluation.verdicts import verdict
from cwm_cli.registry import environment
from openai_server import OpenAIServer
from recordings import dataset, truth

LAKE = {"is_slippery": False}
STEPS = [(0, 1, 0, False), (1, 2, 0, False), (2, 3, 0, False)]


@pytest.fixture(scope="module")
def lake():
    """Transitions of FrozenLake without slipping, with many goals."""
    return record(environment("FrozenLake-v1"), env_args=LAKE, episodes=40, test_episodes=20)


def with_goals(rows, most):
    """Keep all episodes without a goal, and the first `most` fitted train episodes with one."""
    episodes, columns = rows.columns["episodes"], rows.columns
    goals = np.unique(episodes[columns["rewards"] > 0])
    train = rows.train
    fitted = np.unique(train.columns["episodes"][train.fitted])
    kept = np.intersect1d(goals, fitted)[:most]
    return rows[~np.isin(episodes, np.setdiff1d(goals, kept))]


def test_rare_events_need_verification_by_held_out_rows():
    goal = dataset([*STEPS, (3, 4, 5, True)])
    plain = dataset(STEPS)
    assert find_unverified(goal, plain) == [
        "an end of the episode was seen once",
        "the reward 5 was seen once",
    ]
    assert find_unverified(goal, goal) == []
    assert find_unverified(plain, plain) == []
    formula = dataset([*STEPS, (3, 4, -1.30599, False), (4, 5, -0.462916, False)])
    assert find_unverified(formula, plain) == [], "values of a formula are no events"
    often = dataset([*STEPS, (3, 4, 5, True)] * 10)
    assert find_unverified(often, plain) == []


def test_data_without_termination_leave_ends_and_constant_rewards_untested():
    plain = [(0, 1, 1, False), (1, 2, 1, False), (2, 3, 1, False, True)]
    assert find_untested(dataset(plain)) == [
        "no episode in the data terminated",
        "every reward was 1",
    ]
    varied = [(3, 4, 0.5, False), *plain]
    assert find_untested(dataset(varied)) == ["no episode in the data terminated"]
    assert find_untested(dataset([*plain, (3, 4, 1, True)])) == []
    assert find_untested(dataset(plain)[:0]) == []


def test_exact_program_is_not_solved_if_no_episode_terminated():
    rows = dataset([(0, 1, 1, False), (1, 2, 2, False)])
    score = AccuracyMetric.of(rows).score(truth(rows), rows)
    assert verdict(score, score, solved=True).startswith("Solved: exact on all 2 training")
    assert verdict(score, score, solved=True, unverified=["no episode in the data terminated"]) == (
        "Exact on the data: all 2 training and 2 held-out transitions; "
        "no episode in the data terminated"
    )


@pytest.mark.slow
@pytest.mark.parametrize("env", ["MountainCarContinuous-v0", "Pendulum-v1"])
def test_verdict_reports_that_no_episode_terminated(env, tmp_path):
    found = cwm_cli.synthesize(env, budget=2, run=tmp_path / "run")
    assert found.solved
    assert found.untested == ("no episode in the data terminated",)
    words = cwm_cli.report(found.run).verdict
    assert words.startswith("Exact on the data: all 1,000 training and 1,000 held-out transitions;")


@pytest.mark.slow
def test_goal_without_a_held_out_row_is_not_solved(lake, tmp_path, cwm):
    rows = with_goals(lake, most=1)
    assert (rows.columns["rewards"] > 0).sum() == 1
    rows.save(cwm.folder / "one.npz")
    about = ("--env", "FrozenLake-v1", "--env-arg", "is_slippery=False", "--dataset", "one.npz")
    done = cwm.inside("synthesize", *about, "--run", "run", "--json")
    result = json.loads(done.stdout)
    assert result["train"]["exact"] == 1
    assert (result["solved"], result["finished"]) == (False, True)
    assert result["unverified"] == ["the reward 1 was seen once"]
    words = " ".join(done.stderr.split())
    assert "but the reward 1 was seen once and in no held-out transition" in words
    assert "Not verified" in words and "Solved" not in words


@pytest.mark.slow
def test_benchmark_does_not_credit_a_model_with_induction(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    with OpenAIServer(lambda body: "```python\nclass Environment: ...\n```") as server:
        found = cwm_cli.benchmark(
            envs=["CliffWalking-v1"],
            models=["openai/gpt-4o-mini"],
            budget=1,
            api_base=server.url,
            run=tmp_path / "bench",
        )
        assert len(server.requests) == 1
    model, induction = found.rows
    assert (model.model, model.completions, model.solved) == ("openai/gpt-4o-mini", 1, False)
    assert (induction.model, induction.backend) == ("induction", "induction")
    assert (induction.solved, induction.cost) == (True, 0.0)
    assert not any("was not asked" in line for line in found.report.notes)


@pytest.mark.slow
def test_run_without_model_queries_reports_it(cwm):
    cwm.environment["OPENAI_API_KEY"] = "a-key"
    with OpenAIServer(["never asked"]) as server:
        done = cwm.inside(
            *("synthesize", "--env", "CliffWalking-v1", "--model", "openai/gpt-4o-mini"),
            *("--api-base", server.url, "--run", "run"),
        )
        assert server.requests == []
    assert done.returncode == 0, done.stderr
    [cost] = [line for line in done.stdout.splitlines() if line.startswith("Cost:")]
    assert "no completion: the start program is exact" in cost
