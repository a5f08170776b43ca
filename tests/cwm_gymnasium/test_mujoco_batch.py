"""Batches of plans in MuJoCo environments have the same returns as stepping."""

import numpy as np
import pytest
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

from cwm_cli.envs.tasks import SUITES
from cwm_cli.registry import environment
from cwm_gymnasium import mujoco_batch, mujoco_rewards

NEWEST = [name for name in SUITES["cwmb"] if name.endswith("-v5")]
OLDER = [name.replace("v5", "v4") for name in NEWEST if name != "Pusher-v5"]


def rewinder(env):
    """Return the rewinder of an environment of Gymnasium."""
    make_rewinder = environment("CartPole-v1").rewinder
    assert make_rewinder
    return make_rewinder(env)


def states_of(env, rewind, *lengths):
    """Return saved states after these numbers of random steps."""
    env.action_space.seed(0)
    states = []
    for length in lengths:
        env.reset(seed=length)
        for _ in range(length):
            env.step(env.action_space.sample())
        states.append(rewind.save())
    return states


def random_plans(env, *shape, dtype=float):
    env.action_space.seed(1)
    count = int(np.prod(shape))
    return np.array([env.action_space.sample() for _ in range(count)], dtype).reshape(*shape, -1)


def play_stepwise(env, rewind, state, plan):
    """Play a plan step by step."""
    rewind.load(state)
    returned = 0.0
    for step, action in enumerate(plan):
        _, reward, terminated, _, _ = env.step(action)
        returned += reward
        if terminated:
            return returned, step + 1
    return returned, len(plan)


def compare(env, *, steps, dtype=float):
    """Compare a batch with stepping; return the total number of steps."""
    rewind = rewinder(env)
    states = states_of(env, rewind, 0, 3)
    plans = random_plans(env, 2, 3, steps, dtype=dtype)
    returns, taken = rewind.returns(states, plans)
    expected = [
        play_stepwise(env, rewind, s, p) for s, own in zip(states, plans, strict=True) for p in own
    ]
    assert rewind.unbatched == ""
    assert returns.ravel() == pytest.approx([returned for returned, _ in expected], rel=1e-6)
    assert taken == sum(length for _, length in expected)
    return taken


@pytest.mark.parametrize("name", NEWEST)
def test_batch_equals_stepping(name):
    taken = compare(environment(name).make().unwrapped, steps=60)
    if name.startswith(("Inverted", "Hopper", "Walker", "Humanoid-")):
        assert taken < 6 * 60


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NEWEST, *OLDER])
def test_batch_equals_stepping_for_long_plans(name):
    compare(environment(name).make().unwrapped, steps=300, dtype=np.float32)


@pytest.mark.parametrize(
    ("name", "env_args"),
    [
        ("Hopper-v5", {"forward_reward_weight": 3.0, "terminate_when_unhealthy": False}),
        ("Hopper-v5", {"healthy_z_range": (1.2, 1.3), "frame_skip": 2}),
        ("Reacher-v5", {"reward_dist_weight": 2.0, "reward_control_weight": 0.5}),
        ("Ant-v5", {"contact_cost_weight": 0.5, "healthy_z_range": (0.6, 0.8)}),
        ("Ant-v4", {"use_contact_forces": True}),
        ("Walker2d-v4", {"terminate_when_unhealthy": False}),
        ("HumanoidStandup-v5", {"impact_cost_weight": 1e-3}),
    ],
)
def test_weights_and_ranges_are_read_from_the_instance(name, env_args):
    compare(environment(name).make(**env_args).unwrapped, steps=20)


def test_threaded_simulations_equal_stepping(monkeypatch):
    monkeypatch.setattr(mujoco_batch, "Batch", None)
    for name in ("HalfCheetah-v5", "InvertedPendulum-v5"):
        compare(environment(name).make().unwrapped, steps=20)


def test_more_plans_than_simulations_are_played_in_several_batches(monkeypatch):
    monkeypatch.setattr("cwm_gymnasium.mujoco_batch.MAX_SIMULATIONS", 4)
    compare(environment("InvertedPendulum-v5").make().unwrapped, steps=20)


def test_smaller_batch_after_a_larger_one_is_correct():
    env = environment("InvertedDoublePendulum-v5").make().unwrapped
    rewind = rewinder(env)
    states = states_of(env, rewind, 0, 2)
    plans = random_plans(env, 2, 5, 20)
    both, _ = rewind.returns(states, plans)
    alone, _ = rewind.returns(states[1:], plans[1:, :2])
    assert alone[0] == pytest.approx(both[1, :2], rel=1e-9)


def test_wrong_batch_is_rejected_with_a_reason(monkeypatch):
    correct = mujoco_rewards.MovingRewards.compute

    def compute(self, view, before, after, actions):
        gained, ended = correct(self, view, before, after, actions)
        return gained + 1e-3, ended

    monkeypatch.setattr(mujoco_rewards.MovingRewards, "compute", compute)
    env = environment("HalfCheetah-v5").make().unwrapped
    rewind = rewinder(env)
    (state,) = states_of(env, rewind, 0)
    assert rewind.returns([state], random_plans(env, 1, 2, 5)) is None
    assert "returns" in rewind.unbatched


def test_subclass_with_unknown_rewards_has_no_batch():
    class Sideways(HalfCheetahEnv):
        """A subclass, whose rewards are therefore unknown."""

    env = Sideways()
    rewind = rewinder(env)
    (state,) = states_of(env, rewind, 0)
    assert rewind.returns([state], random_plans(env, 1, 2, 5)) is None
    assert "no batched form" in rewind.unbatched


def test_batch_does_not_change_the_environment():
    env, twin = (environment("Hopper-v5").make().unwrapped for _ in range(2))
    for one in (env, twin):
        one.reset(seed=4)
    rewind = rewinder(env)
    rewind.returns([rewind.save()], random_plans(env, 1, 2, 5))
    action = np.full(3, 0.3)
    assert np.array_equal(env.step(action)[0], twin.step(action)[0])
    assert np.array_equal(env.reset()[0], twin.reset()[0])


def test_environment_without_mujoco_has_no_rewinder():
    assert rewinder(environment("CartPole-v1").make()) is None
