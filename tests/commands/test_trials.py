"""The choice between planners by imagined episodes."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from candidates import LIMITS
from cwm_cli.commands.trials import choose_by_trial
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds.model import Planning
from cwm_cli.worlds.program import ProgramModel
from notes import Notes

WALK = """
import numpy as np

class Environment:
    def set_state(self, observation):
        self.place = float(observation[0])

    def step(self, action):
        {step}
        return np.array([self.place], np.float32), {reward}, {end}
"""
TO_THE_RIGHT = WALK.format(
    step="self.place += 0.1 * (int(action) - 1)", reward="-1.0", end="self.place >= 1"
)
ENDLESS = WALK.format(
    step="self.place += 0.1 * (int(action) - 1)", reward="float(action)", end="False"
)
FAILING = WALK.format(step="raise RuntimeError('lost')", reward="0.0", end="False")
RANDOM = WALK.format(
    step="self.place += float(np.random.default_rng().normal())", reward="-1.0", end="False"
)

FAR, NEAR = ("mcts", {"simulations": 60, "rollout": 30}), ("mcts", {"simulations": 1, "rollout": 1})
"""A planner that sees the end of the episode from the start, and one that does not."""


class Walk(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), -1.0, False, False, {}


class PushedWalk(Walk):
    action_space = gym.spaces.Box(-1, 1, (1,))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(LIMITS) as sandbox:
        yield sandbox


def recorded(reward: float = -1.0, actions: Space | None = None, *, ends: bool = False) -> Dataset:
    """Return two episodes of two steps each, from different places."""
    action = 2 if actions is None else np.ones(1, np.float32)
    rows = []
    for episode, start in enumerate((0.0, 0.5)):
        places = [np.array([start + 0.1 * step], np.float32) for step in range(3)]
        rows += [
            Transition(before, action, after, reward, ends and step == 1, episode=episode)
            for step, (before, after) in enumerate(pairwise(places))
        ]
    return Dataset.of(
        rows,
        observation_space=space_of(Walk.observation_space),
        action_space=actions or space_of(Walk.action_space),
    )


def choose(sandbox, text, planners, rows=None, limit=30, walk=Walk):
    """Return the name and options of the chosen planner, and the notes."""
    rows, notes = rows or recorded(), Notes()
    model = ProgramModel(text, sandbox).planned_within(rows)
    choice = choose_by_trial(
        model, [Planning(*each) for each in planners], Task(walk, 0, limit), rows, notes
    )
    return choice and (choice.name, dict(choice.options)), notes.words


def returns_in(note: str) -> list[float]:
    """Return the numbers of a note on a trial of planners, without the number of episodes."""
    _, _, returns = note.partition("episodes: ")
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", returns)]


@pytest.mark.slow
def test_the_planner_with_the_higher_predicted_return_is_chosen(sandbox) -> None:
    chosen, [*_, note] = choose(sandbox, TO_THE_RIGHT, [NEAR, FAR])
    assert chosen == FAR
    better, worse = returns_in(note)
    # At least 10 and 5 steps from the two starts, and at most 30.
    assert -30 <= worse < better <= -7.5
    assert "at most" not in note


def test_a_planner_stops_when_it_can_no_longer_win(sandbox) -> None:
    chosen, [*_, note] = choose(sandbox, TO_THE_RIGHT, [FAR, NEAR])
    assert chosen == FAR
    better, worse = returns_in(note)
    # Each step costs 1, so the trial ended as soon as the returns were equal.
    assert better - 1 <= worse <= better
    assert f"(mcts at most {worse:g})" in note


def test_no_planner_can_win_against_the_highest_possible_return(sandbox) -> None:
    always = ("mcts", {"simulations": 20, "rollout": 5})
    chosen, [*_, note] = choose(sandbox, ENDLESS, [always, NEAR], rows=recorded(2.0))
    assert chosen == always
    better, worse = returns_in(note)
    assert better == 60
    assert worse > 50  # it ended with the first smaller reward
    assert f"(mcts at most {worse:g})" in note


@pytest.mark.slow
def test_planners_that_cannot_plan_are_left_out(sandbox) -> None:
    # The grid needs a deterministic program: one planner alone needs no trial.
    assert choose(sandbox, RANDOM, [("grid", {}), NEAR]) == (None, [])
    long = ("mcts", {"simulations": 10**6, "rollout": 30})  # a trial would take an hour
    assert choose(sandbox, RANDOM, [("grid", {}), long]) == (None, [])
    assert choose(sandbox, FAILING, [FAR, NEAR]) == (None, [])
    chosen, [*_, note] = choose(sandbox, TO_THE_RIGHT, [("tabular", {}), NEAR, FAR])
    assert chosen == FAR
    assert "tabular" not in note


FALLING = """
import numpy as np

class Environment:
    def set_state(self, observation):
        self.place = float(observation[0])

    def step(self, action):
        self.place = 1.2 * self.place + 0.2 * float(action[0])
        return np.array([self.place], np.float32), 1.0, {end}
"""


@pytest.mark.parametrize(
    ("end", "ends"),
    [("abs(self.place) > 0.9", True), ("abs(self.place) > 0.9", False), ("False", True)],
)
def test_planners_in_reserve_compete_if_episodes_end(sandbox, end, ends) -> None:
    rows = recorded(1.0, space_of(PushedWalk.action_space), ends=ends)
    few = {"policies": 32, "elites": 4, "iterations": 5}
    planners = [("icem", {"budget": 20, "horizon": 2}), ("feedback", few)]
    chosen, notes = choose(sandbox, FALLING.format(end=end), planners, rows, walk=PushedWalk)
    if not ends or end == "False":  # with one planner there is no choice
        assert (chosen, notes) == (None, [])
    else:
        assert chosen == ("feedback", few)
        assert "icem" in notes[0]


CAR = """
import numpy as np

class Environment:
    def set_state(self, observation):
        self.place, self.speed = (float(number) for number in observation)

    def step(self, action):
        self.speed += 0.001 * (int(action) - 1) - 0.0025 * np.cos(3 * self.place)
        self.speed = min(max(self.speed, -0.07), 0.07)
        self.place = min(max(self.place + self.speed, -1.2), 0.6)
        if self.place == -1.2 and self.speed < 0:
            self.speed = 0.0
        end = self.place >= 0.5 and self.speed >= 0
        return np.array([self.place, self.speed], np.float32), -1.0, end
"""


@pytest.mark.slow
def test_a_plan_names_its_trial(cwm) -> None:
    (cwm.folder / "car.py").write_text(CAR)
    rows = Path(__file__).parents[2] / "data" / "cwm_data" / "MountainCar-v0.npz"
    about = ("--env", "MountainCar-v0", "--program", "car.py", "--dataset", str(rows))
    done = cwm.inside("plan", *about, "--episodes", "1", "--max-steps", "120")
    assert "imagined episodes: grid -" in done.stderr + done.stdout
    assert "Planner: grid" in done.stdout
    assert re.search(r"Mean return -(8|9|10)\d", done.stdout)
