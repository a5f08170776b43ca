"""MiniGrid as objects: observations, rewards, and exact restoring."""

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


def made(name, seed=0, **arguments):
    env = environment(name).make(**arguments)
    observation, _ = env.reset(seed=seed)
    return env, observation


def things(env, observation):
    """Return the objects that are no walls, the agent first."""
    schema = environment(EMPTY).objects(env)
    return [thing for thing in schema.decode(observation["objects"]) if thing.kind != "wall"]


@cache
def shortest(name, seed):
    """Return the actions that lead to a reward, by search in the saved states."""
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
    raise AssertionError("there is no way")


def test_a_start_is_seen_whole_with_its_mission_and_keeps_to_its_space():
    env, observation = made(DOORKEY)
    env.unwrapped.spec = None  # the checker would create another environment with it
    check_env(env.unwrapped, skip_render_check=True)
    assert observation["mission"] == "use the key to open the door and then get to the goal"
    kinds = [thing.kind for thing in things(env, observation)]
    assert kinds[0] == "agent" and sorted(kinds[1:]) == ["door", "goal", "key"]
    [door] = [thing for thing in things(env, observation) if thing.kind == "door"]
    assert (door["color"], door["state"], door["held"]) == ("yellow", "locked", 0)


@pytest.mark.parametrize("name", [EMPTY, DOORKEY, FETCH])
def test_a_mission_that_is_fulfilled_rewards_one_and_ends_the_episode(name):
    env, _ = made(name, seed=4)
    plan = shortest(name, seed=4)
    steps = [env.step(action)[1:4] for action in plan]
    assert steps == [(0.0, False, False)] * (len(plan) - 1) + [(1.0, True, False)]


def test_what_is_carried_keeps_its_row_and_is_where_the_agent_is():
    env, observation = made(DOORKEY, seed=4)
    [key] = [row for row, thing in enumerate(things(env, observation)) if thing.kind == "key"]
    for action in shortest(DOORKEY, seed=4):
        observation = env.step(action)[0]
        agent, thing = (things(env, observation)[row] for row in (0, key))
        assert thing.kind == "key"
        if thing["held"]:
            assert (agent["x"], agent["y"]) == (thing["x"], thing["y"])
            break
    else:
        raise AssertionError("the key was never carried")


@pytest.mark.parametrize("name", CURRICULUM)
def test_the_curriculum_is_restored_exactly_from_what_is_seen(name):
    rows = record(environment(name), episodes=1, test_episodes=1, max_steps=60, policy="random")
    answers = EnvironmentModel(environment(name)).predict(rows)
    assert answers.answered.all()
    for column, values in answers.columns.items():
        if column.startswith(("next_observations", "rewards", "terminations")):
            np.testing.assert_array_equal(values, rows.columns[column])


def test_a_grid_is_saved_and_loaded_exactly_and_its_observations_tell_its_states():
    opening = Opening.of(environment(CURRICULUM[5]), {})
    assert opening.deterministic and opening.observed
    assert not Opening.of(environment("MiniGrid-Dynamic-Obstacles-5x5-v0"), {}).deterministic


def test_a_box_shows_what_is_hidden_in_it_and_gives_it_away_when_it_is_toggled():
    name = "MiniGrid-ObstructedMaze-1Dlh-v0"
    env, observation = made(name, seed=1)
    hidden = [thing for thing in things(env, observation) if thing["state"] == "hidden"]
    assert [thing.kind for thing in hidden] == ["key"]
    x, y = hidden[0]["x"], hidden[0]["y"]
    table = observation["objects"].copy()
    [(dx, way)] = [
        (dx, way) for dx, way in ((-1, 1), (1, 3)) if env.unwrapped.grid.grid.get(x + dx, y) is None
    ][:1]
    table[0, 1:4] = x + dx, y, way
    assert environment(name).restore(env.unwrapped, observation | {"objects": table})
    after = things(env, env.step(TOGGLE)[0])
    assert [
        (thing.kind, thing["state"]) for thing in after if (thing["x"], thing["y"]) == (x, y)
    ] == [("key", "none")]


def test_a_partial_view_is_that_of_the_package_in_whole_numbers():
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


def test_ids_beyond_the_curriculum_are_served_and_belong_to_one_plugin():
    env, observation = made("MiniGrid-MultiRoom-N2-S4-v0")
    assert env.observation_space.contains(observation)
    assert "MiniGrid-Empty-5x5-v0" in gym.registry
    assert [name for name in names("environment") if "MiniGrid-Empty-5x5" in name] == [EMPTY]
    with pytest.raises(CwmError, match="unknown environment 'MiniGrid-Nothing-v0'"):
        made("MiniGrid-Nothing-v0")
    with pytest.raises(CwmError, match=r"cannot be made with size='big' \("):
        made(EMPTY, size="big")


def test_who_has_not_installed_the_package_is_told_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(CwmError, match=r"^MiniGrid-Unlock-v0 needs minigrid: pip install"):
        environment(UNLOCK).make()


def test_a_picture_and_a_text_are_drawn():
    picture = made(EMPTY, render_mode="rgb_array")[0].render()
    assert picture.ndim == 3 and picture.dtype == np.uint8
    assert "get to the green goal" in made(EMPTY, render_mode="ansi")[0].render()


@pytest.mark.parametrize("name", [EMPTY, "Sokoban-v0", "Sokoban-Teleport-v0", "Household-v0"])
def test_every_action_of_a_world_of_objects_has_a_name(name):
    spec = environment(name)
    env = spec.make()
    assert len({*spec.action_names(env)}) == env.action_space.n


def test_an_episode_is_cut_off_and_says_nothing_of_it_in_what_is_seen():
    env, _ = made(EMPTY, max_steps=3)
    assert [env.step(LEFT)[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]
    assert "after 3 steps" in environment(EMPTY).describe(env)


@pytest.mark.slow
@pytest.mark.parametrize("name", [EMPTY, "Sokoban-Teleport-v0", "Household-Pick-v0"])
def test_worlds_of_objects_are_planned_in_and_nothing_else_is_printed(name, tmp_path):
    words = ["plan", "--env", name, "--real-env", "--episodes", "1", "--json"]
    command = [sys.executable, "-m", "cwm_cli", *words]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    result = json.loads(told.stdout)
    assert result["oracle"]["mean"] > result["random"]["mean"]


def steps_in_words(name, actions, seed=0):
    """Take actions, and return the view, the rows and the descriptions."""
    env, observation = made(name, seed)
    view, rows, told = environment(name).text(env), [], []
    for action in actions:
        after, reward, terminated, *_ = env.step(action)
        rows.append(Transition(observation, action, after, reward, terminated))
        told.append(view.change(rows[-1]))
        observation = after
        if terminated:
            break
    return view, rows, told


def test_the_words_of_a_grid_tell_what_leads_to_its_mission():
    view, rows, told = steps_in_words(DOORKEY, shortest(DOORKEY, seed=4), 4)
    assert told[-1].kind == "won"
    assert [each.kind for each in told].count("picked up") == 1
    door = next(n for n, each in enumerate(told) if each.kind == "opened")
    facts = view.facts(rows[door].observation, rows[door].action)
    assert (facts["front"], facts["state of front"], facts["carried"]) == (
        "door",
        "locked",
        "key",
    )
    assert facts["color of front"] == facts["color of carried"] == told[door].fields["color"]
    assert "(locked)" in view.state(rows[door].observation)
    for row, change in zip(rows, told, strict=True):
        meant = view.consequence(row.observation, row.action, change)
        np.testing.assert_array_equal(meant.observation["objects"], row.next_observation["objects"])
        assert meant[1:] == (row.reward, row.terminated)


def test_the_words_of_a_grid_say_where_more_happens_than_they_tell():
    ways = np.random.default_rng(0).integers(3, size=60)
    seen = set()
    for name in (*CURRICULUM, "MiniGrid-Dynamic-Obstacles-6x6-v0"):
        view, rows, told = steps_in_words(name, ways)
        unsaid = [
            n
            for n, each in enumerate(told)
            if "something else" in (each.kind, each.fields.get("by"))
        ]
        assert bool(unsaid) == ("Dynamic" in name), name
        assert all(view.consequence(*rows[n][:2], told[n]) is None for n in unsaid)
        seen |= {each.kind for each in told}
    assert seen >= {"moved", "turned", "stayed", "something else"}


def test_a_partial_view_of_a_grid_has_no_words():
    env, _ = made(DOORKEY, view="partial")
    with pytest.raises(CwmError, match="no description in words"):
        environment(DOORKEY).text(env)
