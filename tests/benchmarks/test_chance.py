"""The references of the benchmark of chance and memory are correct, and its page is current."""

import re

import gymnasium as gym
import numpy as np
import pytest

from benchmarks.chance.__main__ import table
from benchmarks.chance.items import ITEMS, Measure, familiar_rows
from benchmarks.chance.optimum import plan_return, share, true_dynamics
from cwm_cli.sandbox.job import abilities_of
from folders import ROOT

PAGE = (ROOT / "docs" / "tutorials" / "chance-and-memory.md").read_text(encoding="utf-8")


def test_optimal_return_equals_known_values_of_value_iteration():
    env = gym.make("FrozenLake-v1")
    truth, start = true_dynamics(env), np.eye(16)[0]
    assert plan_return(truth, truth, start, 10_000) == pytest.approx(14 / 17)  # without a limit
    assert plan_return(truth, truth, start, 100) == pytest.approx(0.744, abs=1e-3)
    without_reward = truth._replace(reward=np.zeros_like(truth.reward))
    assert plan_return(without_reward, truth, start, 100) < 0.1


def test_share_is_relative_to_positive_and_negative_optima():
    assert [share(90, 100), share(-110, -100), share(100, 100)] == pytest.approx([0.9, 0.9, 1])


def test_view_is_familiar_if_it_occurred_earlier_in_the_episode():
    views, episodes = np.array([[1], [2], [1], [1]]), np.array([0, 0, 0, 1])
    assert familiar_rows(views, episodes).tolist() == [False, False, True, False]


def test_table_counts_reached_goals_and_names_unmeasured_items():
    item, other = ITEMS[:2]
    results = {
        (item.name, seed): [Measure("skill", value, 0.98)] for seed, value in ((1, 0.99), (2, 0.5))
    }
    _, line, missing = table([item, other], results, [1, 2])
    assert line.split() == [item.name, "skill", "0.745", "0.5", "0.98", "1", "of", "2"]
    assert missing.split() == [other.name, "not", "measured"]


def test_programs_of_the_page_have_the_contracts_that_it_shows():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[:4]
    contracts = [abilities_of(block).contract for block in blocks]
    assert contracts == ["plain", "chance", "chance", "memory"]
    for block in blocks:
        names = {}
        exec(compile(block, "chance-and-memory.md", "exec"), names)
        world = names["Environment"]()
        world.rng = np.random.default_rng(0)
        observation = [0.5] if "level" in block or "speed" in block else 3
        getattr(world, "reset", getattr(world, "set_state", None))(observation)
        if hasattr(world, "outcomes"):
            assert sum(chance for chance, *_ in world.outcomes(1)) == 1
        else:
            seen, reward, _ = world.step([1] if "level" in block else 1)
            assert not hasattr(world, "correct") or world.correct(seen, reward) is None
