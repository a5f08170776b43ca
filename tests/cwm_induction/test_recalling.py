"""Programs for a partial view of a board remember earlier views."""

import numpy as np
import pytest

from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import environment
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_cli.search.reading import extract_program
from cwm_cli.worlds import ProgramModel
from cwm_induction.backend import Induction
from cwm_induction.recalling.boards import remember_boards
from cwm_induction.recalling.windows import Sight, find_sight

WAYS = ((1, 0), (-1, 0), (0, 1), (0, -1))


def induced(data, sandbox):
    """Return the program that the backend writes first."""
    problem = WorldModelProblem(
        "", data.train, sandbox, AccuracyMetric.of(data.train), contract="memory"
    )
    completion = Induction().complete(Request((), 11, Move(GENERATE), problem))
    return extract_program(completion.text)


def right(program, data, sandbox, name):
    """Return the mask of held-out rows whose view is predicted correctly in all cells."""
    predictions = ProgramModel(program, sandbox).predict(data.test)
    assert predictions.failure is None, predictions.failure
    seen = data.test.columns[name]
    same = predictions.likeliest()[name] == seen
    return same.reshape(len(seen), -1).all(axis=1)


def maze(seed, episodes=20, steps=60, size=7):
    """Record a robot that sees the nine cells around it, and the new cells of each view."""
    rng = np.random.default_rng(seed)
    rows, known = [], []
    for episode in range(episodes):
        walls = np.ones((size + 2, size + 2), int)
        walls[1:-1, 1:-1] = rng.random((size, size)) < 0.3
        x, y = np.argwhere(walls == 0)[rng.integers((walls == 0).sum())].tolist()
        seen = np.zeros(walls.shape, bool)
        for _ in range(steps):
            before = walls[x - 1 : x + 2, y - 1 : y + 2].copy()
            seen[x - 1 : x + 2, y - 1 : y + 2] = True
            action = int(rng.integers(4))
            to = x + WAYS[action][0], y + WAYS[action][1]
            blocked = walls[to] == 1
            x, y = (x, y) if blocked else to
            after = walls[x - 1 : x + 2, y - 1 : y + 2].copy()
            split = int(episode >= episodes // 2)
            reward = -1.0 if blocked else 0.0
            rows.append(Transition(before, action, after, reward, False, False, episode, split))
            known.append(seen[x - 1 : x + 2, y - 1 : y + 2].all())
    space = Space("box", "int64", (3, 3), (0.0,) * 9, (1.0,) * 9)
    actions = Space("discrete", low=(0,), high=(3,))
    data = Dataset.of(rows, observation_space=space, action_space=actions)
    return data, np.array(known)[data.columns["split"] == 1]


def test_a_robot_in_a_maze_recalls_what_it_saw(sandbox):
    data, known = maze(0)
    program = induced(data, sandbox)
    exact = right(program, data, sandbox, "next_observations")
    assert known.sum() > 100
    assert exact[known].mean() >= 0.98
    assert "MOVES = [(0, -1, 0), (0, 0, -1), (0, 0, 0), (0, 0, 1), (0, 1, 0)]" in program


def test_what_came_about_as_predicted_changes_no_prediction(sandbox):
    data, _ = maze(1)
    space = {}
    exec(remember_boards(data.train), space)
    rng = np.random.default_rng(0)
    for row in range(0, 600, 60):
        told, planned = space["Environment"](), space["Environment"]()
        for program in (told, planned):
            program.reset(data.row(row).observation)
        for action in rng.integers(4, size=20).tolist():
            observation, reward, _ = planned.step(action)
            assert np.array_equal(observation, told.step(action)[0])
            told.correct(observation, reward)


@pytest.mark.slow
def test_a_view_that_turns_and_that_walls_shade_is_recalled(sandbox):
    pytest.importorskip("minigrid")
    data = record(
        environment("MiniGrid-DoorKey-5x5-v0"),
        env_args={"view": "partial"},
        seed=0,
        policy="random",
        train_episodes=10,
        test_episodes=5,
    )
    program = induced(data, sandbox)
    assert right(program, data, sandbox, "next_observations.image").mean() >= 0.9
    assert "MOVES = [(0, 0, 0), (0, 0, 1), (1, 9, 3), (3, -3, 9)]" in program


def test_what_walls_shade_is_found_in_views_alone():
    ways = ((-1, -1), (-1, 0), (0, -1), (1, -1), (1, 0))
    seeds = np.zeros((5, 5), bool)
    seeds[2, 4] = True
    views = 1 + (np.random.default_rng(0).random((300, 5, 5)) < 0.4)
    views[:, 2, 4] = 1
    lit = Sight(seeds, ways, frozenset({2})).lit(views)
    found = find_sight(np.where(lit, views, 0), 0)
    assert found is not None
    assert (found.ways, found.opaque) == (ways, frozenset({2}))
