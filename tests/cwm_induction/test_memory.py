"""Programs with memory induced where velocities are hidden: right from the third step on."""

import numpy as np
import pytest

from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import AccuracyMetric, match
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import environment
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_cli.search.reading import extract_program
from cwm_cli.worlds import ProgramModel
from cwm_induction.backend import Induction

BLIND = {"hide": ["velocities"]}


def recorded(name, seed=0, env_args=BLIND):
    """Record train and test episodes of an environment that does not show everything."""
    return record(environment(name), env_args=env_args, seed=seed, policy="random")


def induced(data, sandbox):
    """Return the program that the backend writes first, and whether it asks for no further one."""
    problem = WorldModelProblem(
        "", data.train, sandbox, AccuracyMetric.of(data.train), contract="memory"
    )
    completion = Induction().complete(Request((), 11, Move(GENERATE), problem))
    return extract_program(completion.text), completion.final


def right_from_the_third_step(program, data, sandbox):
    """Return the share of held-out rows, from the third step of an episode on, that are exact."""
    predictions = ProgramModel(program, sandbox).predict(data.test)
    assert predictions.failure is None, predictions.failure
    episodes = data.test.columns["episodes"]
    told = np.append([False, False], episodes[2:] == episodes[:-2])
    wrong = match(predictions.columns, data.test).losses(data.test.columns["terminations"]) > 0
    return 1 - wrong[told].mean()


@pytest.mark.parametrize("name", ["CartPole-v1", "MountainCar-v0", "Pendulum-v1"])
def test_classic_control_without_velocities_is_exact_from_the_third_step_on(name, sandbox):
    data = recorded(name)
    program, final = induced(data, sandbox)
    assert right_from_the_third_step(program, data, sandbox) >= 0.99
    assert final


@pytest.mark.long
def test_velocities_that_change_within_a_step_are_found_by_the_mechanism(sandbox):
    data = recorded("Acrobot-v1")
    program, _ = induced(data, sandbox)
    assert right_from_the_third_step(program, data, sandbox) >= 0.99
    assert "Runge-Kutta" in program


@pytest.mark.slow
def test_one_velocity_is_remembered_where_only_one_is_hidden(sandbox):
    data = recorded("CartPole-v1", env_args={"hide": [3]})
    program, _ = induced(data, sandbox)
    assert right_from_the_third_step(program, data, sandbox) >= 0.99
    assert "np.zeros(1)" in program


def test_what_comes_to_the_end_of_its_way_stops_there(sandbox):
    rng = np.random.default_rng(0)
    rows = []
    for episode in range(10):
        place, speed = rng.uniform(-0.5, 0.5), 0.0
        for _ in range(60):
            push = int(rng.integers(3))
            before = place
            speed = speed + 0.02 * (push - 1) - 0.01 * before
            place = float(np.clip(before + speed, -1, 1))
            if abs(place) == 1:
                speed = 0.0
            split = int(episode >= 7)
            rows.append(Transition([before], push, [place], -1.0, False, False, episode, split))
    observations = Space("box", "float64", (1,), (-1.0,), (1.0,))
    data = Dataset.of(
        rows, observation_space=observations, action_space=Space("discrete", low=(0,), high=(2,))
    )
    program, _ = induced(data, sandbox)
    assert right_from_the_third_step(program, data, sandbox) == 1
    assert "that stops at the limits" in program
