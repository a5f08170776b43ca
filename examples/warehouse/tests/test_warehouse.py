"""Tests of the warehouse."""

import pytest

from warehouse.environment import DOWN, LEFT, MAP, RIGHT, UP, USE, specify


@pytest.fixture
def env():
    new = specify().make(render_mode="ansi")
    new.reset(seed=0)
    return new


def place_robot(env, x, y, *, key=0, door=0, parcel=0):
    observation = {"robot": env.observation_space["robot"].sample(), "key": key, "door": door}
    observation["robot"][:] = x, y
    assert specify().restore(env.unwrapped, observation | {"parcel": parcel})
    return env


def after(env, *actions):
    """Return the state, reward and termination after some actions."""
    for action in actions:
        state, reward, terminated, *_ = env.step(action)
    robot = state["robot"].tolist()
    return [*robot, state["key"], state["door"], state["parcel"]], reward, terminated


def test_key_opens_the_door_and_the_belt_moves_the_robot_through(env):
    assert after(place_robot(env, 0, 0), USE)[0] == [0, 0, 1, 0, 0]
    assert after(env, DOWN, DOWN)[0] == [0, 2, 1, 0, 0]
    assert after(env, RIGHT)[0] == [2, 2, 1, 0, 0]  # one cell by the action, one by the belt
    assert after(env, RIGHT)[0] == [2, 2, 1, 0, 0]  # the door is closed
    assert after(env, USE)[0] == [3, 2, 1, 1, 0]


def test_door_stays_closed_without_the_key(env):
    assert after(place_robot(env, 2, 2), USE, RIGHT)[0] == [2, 2, 0, 0, 0]


def test_parcel_is_taken_only_from_its_shelf_and_delivered_at_the_dock(env):
    assert after(place_robot(env, 5, 0, key=1, door=1, parcel=2), USE)[0][-1] == 2
    assert after(place_robot(env, 6, 4, key=1, door=1, parcel=2), USE)[0][-1] == 3
    assert after(place_robot(env, 6, 2, door=1, parcel=0), USE)[1:] == (-0.1, False)
    assert after(place_robot(env, 6, 2, door=1, parcel=3), USE)[1:] == (9.9, True)


def test_walls_stop_the_robot_and_cannot_be_restored(env):
    assert after(place_robot(env, 0, 1), LEFT, RIGHT)[0][:2] == [0, 1]
    wall = {"robot": env.observation_space["robot"].sample(), "key": 0, "door": 0, "parcel": 0}
    wall["robot"][:] = 1, 1
    assert not specify().restore(env.unwrapped, wall)
    assert after(place_robot(env, 6, 4), UP)[0][:2] == [5, 3]  # a belt


def test_description_has_the_map_and_no_rewards_of_a_shifted_warehouse(env):
    description = specify().describe(env)
    assert all(row in description for row in MAP)
    assert "-0.1" in description
    shifted = specify().make()
    import numpy as np

    specify().shift(shifted, np.random.default_rng(1))
    assert "-0.1" not in specify().describe(shifted)


def test_warehouse_renders_as_text(env):
    place_robot(env, 4, 1, door=1, parcel=3)
    assert env.render().splitlines()[1:3] == [".#.#&..", ".>>...o"]
