"""Tests of the warehouse."""

import pytest

from warehouse.environment import DOWN, LEFT, MAP, RIGHT, UP, USE, specify


@pytest.fixture
def env():
    made = specify().make(render_mode="ansi")
    made.reset(seed=0)
    return made


def stood(env, x, y, *, key=0, door=0, parcel=0):
    observation = {"robot": env.observation_space["robot"].sample(), "key": key, "door": door}
    observation["robot"][:] = x, y
    assert specify().restore(env.unwrapped, observation | {"parcel": parcel})
    return env


def after(env, *actions):
    for action in actions:
        seen, reward, terminated, *_ = env.step(action)
    return [*seen["robot"].tolist(), seen["key"], seen["door"], seen["parcel"]], reward, terminated


def test_the_key_opens_the_door_and_the_belt_carries_the_robot_through(env):
    assert after(stood(env, 0, 0), USE)[0] == [0, 0, 1, 0, 0]
    assert after(env, DOWN, DOWN)[0] == [0, 2, 1, 0, 0]
    assert after(env, RIGHT)[0] == [2, 2, 1, 0, 0]  # one place by itself, one by the belt
    assert after(env, RIGHT)[0] == [2, 2, 1, 0, 0]  # the door is closed
    assert after(env, USE)[0] == [3, 2, 1, 1, 0]


def test_without_the_key_the_door_stays_closed(env):
    assert after(stood(env, 2, 2), USE, RIGHT)[0] == [2, 2, 0, 0, 0]


def test_a_parcel_is_taken_from_its_shelf_alone_and_delivered_at_the_dock(env):
    assert after(stood(env, 5, 0, key=1, door=1, parcel=2), USE)[0][-1] == 2
    assert after(stood(env, 6, 4, key=1, door=1, parcel=2), USE)[0][-1] == 3
    assert after(stood(env, 6, 2, door=1, parcel=0), USE)[1:] == (-0.1, False)
    assert after(stood(env, 6, 2, door=1, parcel=3), USE)[1:] == (9.9, True)


def test_walls_stop_the_robot_and_are_no_place_to_stand(env):
    assert after(stood(env, 0, 1), LEFT, RIGHT)[0][:2] == [0, 1]
    wall = {"robot": env.observation_space["robot"].sample(), "key": 0, "door": 0, "parcel": 0}
    wall["robot"][:] = 1, 1
    assert not specify().restore(env.unwrapped, wall)
    assert after(stood(env, 6, 4), UP)[0][:2] == [5, 3]  # a belt


def test_the_description_has_the_map_and_no_number_of_a_shifted_warehouse(env):
    told = specify().describe(env)
    assert all(row in told for row in MAP)
    assert "-0.1" in told
    shifted = specify().make()
    import numpy as np

    specify().shift(shifted, np.random.default_rng(1))
    assert "-0.1" not in specify().describe(shifted)


def test_it_draws_itself(env):
    stood(env, 4, 1, door=1, parcel=3)
    assert env.render().splitlines()[1:3] == [".#.#&..", ".>>...o"]
