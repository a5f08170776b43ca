"""The references of the benchmark of chance and memory are correct, and its page is current."""

import re

import gymnasium as gym
import numpy as np
import pytest

from benchmarks.chance.__main__ import table
from benchmarks.chance.items import ITEMS, Measure, familiar_rows
from benchmarks.chance.optimum import planned, share, true_dynamics
from cwm_cli.sandbox.job import abilities_of
from folders import ROOT

PAGE = (ROOT / "docs" / "tutorials" / "chance-and-memory.md").read_text(encoding="utf-8")


def test_the_optimum_is_that_of_value_iteration_in_the_true_probabilities():
    env = gym.make("FrozenLake-v1")
    truth, start = true_dynamics(env), np.eye(16)[0]
    assert planned(truth, truth, start, 10_000) == pytest.approx(14 / 17)  # without a limit
    assert planned(truth, truth, start, 100) == pytest.approx(0.744, abs=1e-3)
    blind = truth._replace(reward=np.zeros_like(truth.reward))
    assert planned(blind, truth, start, 100) < 0.1


def test_a_loss_is_a_share_of_the_optimum_on_either_side_of_nothing():
    assert [share(90, 100), share(-110, -100), share(100, 100)] == pytest.approx([0.9, 0.9, 1])


def test_a_view_is_familiar_once_it_came_up_in_the_same_episode():
    views, episodes = np.array([[1], [2], [1], [1]]), np.array([0, 0, 0, 1])
    assert familiar_rows(views, episodes).tolist() == [False, False, True, False]


def test_the_table_says_how_often_a_figure_was_reached_and_what_was_not_measured():
    item, other = ITEMS[:2]
    results = {
        (item.name, seed): [Measure("skill", value, 0.98)] for seed, value in ((1, 0.99), (2, 0.5))
    }
    _, line, missing = table([item, other], results, [1, 2])
    assert line.split() == [item.name, "skill", "0.745", "0.5", "0.98", "1", "of", "2"]
    assert missing.split() == [other.name, "not", "measured"]


def test_programs_of_the_page_keep_the_contract_that_they_show():
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
