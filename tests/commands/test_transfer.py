"""Agents that are trained in a program and in its environment (`cwm evaluate --transfer`)."""

import json

import gymnasium
import numpy as np
import pytest

import cwm_cli
from cwm_cli import CwmError
from cwm_cli.commands import transfer
from cwm_cli.commands.subjects import find_subject
from cwm_cli.commands.transfer import Transfer, TransferOptions, _ProgramEnv, check_transfer
from cwm_cli.evaluation.intervals import difference_interval, mean_interval
from cwm_cli.registry import Owner
from cwm_cli.views.evaluation import transfer_parts
from worlds import CARTPOLE


def comparison(model, truth, random=(20.0, 22.0, 18.0)):
    return Transfer("ppo", TransferOptions(), model, truth, random)


def test_intervals_contain_the_mean_and_the_spread_between_groups():
    same = mean_interval([[3.0, 3.0], [3.0, 3.0]])
    assert same == (3.0, 3.0, 3.0)
    spread = mean_interval([[0.0, 0.0], [10.0, 10.0], [20.0, 20.0]])
    assert spread.mean == 10.0 and spread.low < 4.0 and spread.high > 16.0
    rng = np.random.default_rng(200)
    wide = difference_interval([rng.normal(5, 1, 100)], [rng.normal(3, 1, 100)])
    assert wide.high - wide.low == pytest.approx(2 * 1.96 * (2 / 100) ** 0.5, rel=0.3)
    # 95 % of the intervals of normal samples contain the true mean
    found = [mean_interval([rng.normal(0, 1, 30)], seed=n) for n in range(100)]
    assert 88 <= sum(each.low <= 0 <= each.high for each in found) <= 100


@pytest.mark.parametrize(
    ("model", "truth", "verdict", "words"),
    [
        (500.0, 490.0, "full", "The policy transfers: "),
        (200.0, 490.0, "partial", "transfers in part"),
        (20.0, 490.0, "none", "does not transfer"),
        (20.0, 20.0, "unknown", "train longer with -o transfer.steps=N"),
    ],
)
def test_the_verdict_compares_with_both_the_environment_and_random_actions(
    model, truth, verdict, words
):
    noise = np.linspace(-9.0, 9.0, 10)
    found = comparison([model + noise, model - noise], [truth + noise, truth - noise])
    assert found.verdict == verdict
    *_, sentence = transfer_parts(found)
    assert words in sentence.plain and "Difference: " in sentence.plain
    shown = json.loads(json.dumps(found.as_json()))
    assert shown["verdict"] == verdict and shown["returns"]["model"]["mean"] == model


class Doubling(gymnasium.Env):
    """Counts beyond its space, and fails after three steps."""

    observation_space = gymnasium.spaces.Box(0.0, 3.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.value = 1.0
        return np.array([self.value]), {}

    def step(self, action):
        self.value *= 2
        if self.value > 8:
            raise CwmError("the program failed: at line 3")
        return np.array([self.value]), 1, False, False, {}


def test_predictions_are_clipped_and_failures_truncate_the_episode():
    failures = []
    env = _ProgramEnv(Doubling(), 10, failures)
    assert env.reset(seed=0)[0] == np.float32(1.0)
    seen = [env.step(0) for _ in range(4)]
    assert [float(each[0][0]) for each in seen] == [2.0, 3.0, 3.0, 3.0]
    assert [each[3] for each in seen] == [False, False, False, True]
    assert failures == ["the program failed: at line 3"]
    short = _ProgramEnv(Doubling(), 2, failures)
    short.reset(seed=0)
    assert [short.step(0)[3] for _ in range(2)] == [False, True]


def test_impossible_comparisons_are_refused(monkeypatch):
    monkeypatch.setattr(transfer, "find_spec", lambda name: object())
    masked = find_subject(program=CARTPOLE, env="RTFM-v0")
    with pytest.raises(CwmError, match="valid actions of RTFM-v0 depend on its state"):
        check_transfer(masked)
    itself = find_subject(env="CartPole-v1", real_env=True)
    with pytest.raises(CwmError, match="--transfer needs a program"):
        check_transfer(itself)
    monkeypatch.setattr(transfer, "find_spec", lambda name: None)
    with pytest.raises(CwmError, match=r"needs Stable-Baselines3: pip install .*rl"):
        cwm_cli.evaluate(CARTPOLE, env="CartPole-v1", transfer="ppo")
    with pytest.raises(CwmError, match="steps must be a whole number of at least 1"):
        Owner("transfer", TransferOptions).make({"steps": 0})


@pytest.mark.slow
def test_agents_learn_in_the_program_and_in_the_environment(poles):
    pytest.importorskip("stable_baselines3")
    options = ["transfer.steps=2048", "transfer.seeds=1", "transfer.episodes=4"]
    found = cwm_cli.evaluate(
        CARTPOLE, env="CartPole-v1", dataset=poles[0], transfer="ppo", options=options
    ).transfer
    assert [len(found.model), len(found.truth), len(found.random)] == [1, 1, 4]
    assert found.failures == 0
    assert all(9 <= each <= 500 for each in [*found.model[0], *found.truth[0], *found.random])
