"""MiniGrid as tables of objects: observations, rewards, saved states and text views."""

import json
import subprocess
import sys
from contextlib import closing
from functools import cache

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Transition
from cwm_cli.envs.simulators import Opening
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment, names
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_minigrid import CURRICULUM

EMPTY, DOORKEY, UNLOCK, FETCH = CURRICULUM[:4]
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)


def make_env(name, seed=0, **arguments):
    env = environment(name).make(**arguments)
    observation, _ = env.reset(seed=seed)
    return env, observation


def things(env, observation):
    """Return all objects except walls, the agent first."""
    schema = environment(EMPTY).objects(env)
    return [thing for thing in schema.decode(observation["objects"]) if thing.kind != "wall"]


@cache
def shortest_plan(name, seed):
    """Return the shortest plan to a reward, by breadth-first search over saved states."""
    spec = environment(name)
    simulator = Opening.of(spec, {}).simulator(0)
    with closing(spec.make()) as env:
        observation, _ = env.reset(seed=seed)
        start = simulator.state_of(env, observation)
    paths, waiting = {start: []}, [start]
    for here in waiting:
        for action in range(6):
            simulator.stand(here)
            step = simulator.step(action)
            if step.reward > 0:
                return [*paths[here], action]
            there = simulator.here()
            if not step.terminated and there not in paths:
                paths[there] = [*paths[here], action]
                waiting.append(there)
    raise AssertionError("no plan leads to a reward")


def test_first_observation_has_the_mission_and_all_objects():
    env, observation = make_env(DOORKEY)
    env.unwrapped.spec = None  # the checker would create another environment with it
    check_env(env.unwrapped, skip_render_check=True)
    assert observation["mission"] == "use the key to open the door and then get to the goal"
    kinds = [thing.kind for thing in things(env, observation)]
    assert kinds[0] == "agent" and sorted(kinds[1:]) == ["door", "goal", "key"]
    [door] = [thing for thing in things(env, observation) if thing.kind == "door"]
    assert (door["color"], door["state"], door["held"]) == ("yellow", "locked", 0)


@pytest.mark.parametrize("name", [EMPTY, DOORKEY, FETCH])
def test_completed_mission_rewards_one_and_terminates(name):
    env, _ = make_env(name, seed=4)
    plan = shortest_plan(name, seed=4)
    steps = [env.step(action)[1:4] for action in plan]
    assert steps == [(0.0, False, False)] * (len(plan) - 1) + [(1.0, True, False)]


def test_carried_object_keeps_its_row_and_moves_with_the_agent():
    env, observation = make_env(DOORKEY, seed=4)
    [key] = [row for row, thing in enumerate(things(env, observation)) if thing.kind == "key"]
    for action in shortest_plan(DOORKEY, seed=4):
        observation = env.step(action)[0]
        agent, thing = (things(env, observation)[row] for row in (0, key))
        assert thing.kind == "key"
        if thing["held"]:
            assert (agent["x"], agent["y"]) == (thing["x"], thing["y"])
            break
    else:
        raise AssertionError("the key was never carried")


@pytest.mark.parametrize("name", CURRICULUM)
def test_curriculum_is_restored_exactly_from_observations(name):
    rows = record(environment(name), episodes=1, test_episodes=1, max_steps=60, policy="random")
    answers = EnvironmentModel(environment(name)).predict(rows)
    assert answers.answered.all()
    for column, values in answers.columns.items():
        if column.startswith(("next_observations", "rewards", "terminations")):
            np.testing.assert_array_equal(values, rows.columns[column])


def test_opening_detects_deterministic_and_fully_observed_grids():
    opening = Opening.of(environment(CURRICULUM[5]), {})
    assert opening.deterministic and opening.observed
    assert not Opening.of(environment("MiniGrid-Dynamic-Obstacles-5x5-v0"), {}).deterministic


def test_toggled_box_releases_its_hidden_content():
    name = "MiniGrid-ObstructedMaze-1Dlh-v0"
    env, observation = make_env(name, seed=1)
    hidden = [thing for thing in things(env, observation) if thing["state"] == "hidden"]
    assert [thing.kind for thing in hidden] == ["key"]
    x, y = hidden[0]["x"], hidden[0]["y"]
    table = observation["objects"].copy()
    is_free = {dx: env.unwrapped.grid.grid.get(x + dx, y) is None for dx in (-1, 1)}
    dx, direction = (-1, 1) if is_free[-1] else (1, 3)
    assert is_free[dx]
    table[0, 1:4] = x + dx, y, direction
    assert environment(name).restore(env.unwrapped, observation | {"objects": table})
    after = things(env, env.step(TOGGLE)[0])
    assert [
        (thing.kind, thing["state"]) for thing in after if (thing["x"], thing["y"]) == (x, y)
    ] == [("key", "none")]


def test_partial_view_equals_the_view_of_the_package():
    name = "MiniGrid-DoorKey-5x5-v0"
    spec = environment(name)
    env, theirs = spec.make(view="partial"), gym.make(name)
    for seed in range(3):
        seen, expected = env.reset(seed=seed)[0], theirs.reset(seed=seed)[0]
        for action in np.random.default_rng(seed).integers(7, size=60).tolist():
            assert seen["image"].tolist() == expected["image"].tolist()
            assert (seen["direction"], seen["mission"]) == (
                expected["direction"],
                expected["mission"],
            )
            assert env.observation_space.contains(seen)
            assert not spec.restore(env.unwrapped, seen)
            seen, _, over, *_ = env.step(action)
            expected = theirs.step(action)[0]
            if over:
                break
    assert "`image` is an array of whole numbers of shape (7, 7, 3)" in spec.describe(env)
    assert spec.objects(env) is None
    opening = Opening.of(spec, {"view": "partial"})
    assert opening.deterministic and not opening.observed
    with pytest.raises(CwmError, match=r"did you mean partial\?"):
        spec.make(view="partly")


def test_other_minigrid_ids_work_without_being_listed():
    env, observation = make_env("MiniGrid-MultiRoom-N2-S4-v0")
    assert env.observation_space.contains(observation)
    assert "MiniGrid-Empty-5x5-v0" in gym.registry
    assert [name for name in names("environment") if "MiniGrid-Empty-5x5" in name] == [EMPTY]
    with pytest.raises(CwmError, match="unknown environment 'MiniGrid-Nothing-v0'"):
        make_env("MiniGrid-Nothing-v0")
    with pytest.raises(CwmError, match=r"cannot be made with size='big' \("):
        make_env(EMPTY, size="big")


def test_missing_package_is_reported_with_an_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(CwmError, match=r"^MiniGrid-Unlock-v0 needs minigrid: pip install"):
        environment(UNLOCK).make()


def test_grid_renders_as_image_and_as_text():
    picture = make_env(EMPTY, render_mode="rgb_array")[0].render()
    assert picture.ndim == 3 and picture.dtype == np.uint8
    assert "get to the green goal" in make_env(EMPTY, render_mode="ansi")[0].render()


@pytest.mark.parametrize("name", [EMPTY, "Sokoban-v0", "Sokoban-Teleport-v0", "Household-v0"])
def test_every_action_of_an_object_environment_has_a_name(name):
    spec = environment(name)
    env = spec.make()
    assert len({*spec.action_names(env)}) == env.action_space.n


def test_step_limit_truncates_an_episode():
    env, _ = make_env(EMPTY, max_steps=3)
    assert [env.step(LEFT)[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]
    assert "after 3 steps" in environment(EMPTY).describe(env)


@pytest.mark.slow
@pytest.mark.parametrize("name", [EMPTY, "Sokoban-Teleport-v0", "Household-Pick-v0"])
def test_plan_in_object_environments_prints_only_json(name, tmp_path):
    arguments = ["plan", "--env", name, "--real-env", "--episodes", "1", "--json"]
    command = [sys.executable, "-m", "cwm_cli", *arguments]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    result = json.loads(process.stdout)
    assert result["oracle"]["mean"] > result["random"]["mean"]


def steps_in_words(name, actions, seed=0):
    """Take actions, and return the text view, the transitions and their descriptions."""
    env, observation = make_env(name, seed)
    view, rows, changes = environment(name).text(env), [], []
    for action in actions:
        after, reward, terminated, *_ = env.step(action)
        rows.append(Transition(observation, action, after, reward, terminated))
        changes.append(view.change(rows[-1]))
        observation = after
        if terminated:
            break
    return view, rows, changes


def test_text_view_describes_the_steps_to_the_mission():
    view, rows, changes = steps_in_words(DOORKEY, shortest_plan(DOORKEY, seed=4), 4)
    assert changes[-1].kind == "won"
    assert [each.kind for each in changes].count("picked up") == 1
    door = next(n for n, each in enumerate(changes) if each.kind == "opened")
    facts = view.facts(rows[door].observation, rows[door].action)
    assert (facts["front"], facts["state of front"], facts["carried"]) == (
        "door",
        "locked",
        "key",
    )
    assert facts["color of front"] == facts["color of carried"] == changes[door].fields["color"]
    assert "(locked)" in view.state(rows[door].observation)
    for row, change in zip(rows, changes, strict=True):
        meant = view.consequence(row.observation, row.action, change)
        np.testing.assert_array_equal(meant.observation["objects"], row.next_observation["objects"])
        assert meant[1:] == (row.reward, row.terminated)


def test_text_view_reports_effects_that_it_cannot_describe():
    actions = np.random.default_rng(0).integers(3, size=60)
    kinds = set()
    for name in (*CURRICULUM, "MiniGrid-Dynamic-Obstacles-6x6-v0"):
        view, rows, changes = steps_in_words(name, actions)
        unknown = [
            n
            for n, each in enumerate(changes)
            if "something else" in (each.kind, each.fields.get("by"))
        ]
        assert bool(unknown) == ("Dynamic" in name), name
        assert all(view.consequence(*rows[n][:2], changes[n]) is None for n in unknown)
        kinds |= {each.kind for each in changes}
    assert kinds >= {"moved", "turned", "stayed", "something else"}


def test_partial_view_has_no_text_view():
    env, _ = make_env(DOORKEY, view="partial")
    with pytest.raises(CwmError, match="no description in words"):
        environment(DOORKEY).text(env)
