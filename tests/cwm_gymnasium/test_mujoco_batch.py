"""Returns of many plans in MuJoCo environments are what stepping gives."""

import numpy as np
import pytest
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

from cwm_cli.envs.tasks import SUITES
from cwm_cli.registry import environment
from cwm_gymnasium import mujoco_batch, mujoco_rewards

NEWEST = [name for name in SUITES["cwmb"] if name.endswith("-v5")]
OLDER = [name.replace("v5", "v4") for name in NEWEST if name != "Pusher-v5"]
ENDING = ("Pendulum", "Double", "Hopper", "Walker", "Humanoid-", "Ant")


def rewinder(env):
    """Return what the environments of Gymnasium are rewound by."""
    found = environment("CartPole-v1").rewinder
    assert found
    return found(env)


def states_of(env, rewind, *lengths):
    """Save the environment after random steps."""
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


def stepped(env, rewind, state, plan):
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
    """Compare a batch with stepping; return how many steps all plans took."""
    rewind = rewinder(env)
    states = states_of(env, rewind, 0, 3)
    plans = random_plans(env, 2, 3, steps, dtype=dtype)
    returns, taken = rewind.returns(states, plans)
    expected = [
        stepped(env, rewind, s, p) for s, own in zip(states, plans, strict=True) for p in own
    ]
    assert rewind.unbatched == ""
    assert returns.ravel() == pytest.approx([returned for returned, _ in expected], rel=1e-6)
    assert taken == sum(length for _, length in expected)
    return taken


@pytest.mark.parametrize("name", NEWEST)
def test_a_batch_returns_what_stepping_does(name):
    taken = compare(environment(name).make().unwrapped, steps=60)
    if name.startswith(("Inverted", "Hopper", "Walker", "Humanoid-")):
        assert taken < 6 * 60


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NEWEST, *OLDER])
def test_a_batch_returns_what_stepping_does_over_long_plans(name):
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
def test_weights_and_ranges_are_those_of_the_instance(name, env_args):
    compare(environment(name).make(**env_args).unwrapped, steps=20)


def test_lanes_in_threads_are_the_same(monkeypatch):
    monkeypatch.setattr(mujoco_batch, "Batch", None)
    for name in ("HalfCheetah-v5", "InvertedPendulum-v5"):
        compare(environment(name).make().unwrapped, steps=20)


def test_more_plans_than_simulations_are_played_in_parts(monkeypatch):
    monkeypatch.setattr("cwm_gymnasium.mujoco_batch.MOST", 4)
    compare(environment("InvertedPendulum-v5").make().unwrapped, steps=20)


def test_a_smaller_batch_after_a_larger_one_is_right():
    env = environment("InvertedDoublePendulum-v5").make().unwrapped
    rewind = rewinder(env)
    states = states_of(env, rewind, 0, 2)
    plans = random_plans(env, 2, 5, 20)
    both, _ = rewind.returns(states, plans)
    alone, _ = rewind.returns(states[1:], plans[1:, :2])
    assert alone[0] == pytest.approx(both[1, :2], rel=1e-9)


def test_a_batch_that_differs_is_dropped_and_the_reason_kept(monkeypatch):
    wrong = mujoco_rewards.MovingRewards.judge

    def judge(self, view, before, after, actions):
        gained, ended = wrong(self, view, before, after, actions)
        return gained + 1e-3, ended

    monkeypatch.setattr(mujoco_rewards.MovingRewards, "judge", judge)
    env = environment("HalfCheetah-v5").make().unwrapped
    rewind = rewinder(env)
    (state,) = states_of(env, rewind, 0)
    assert rewind.returns([state], random_plans(env, 1, 2, 5)) is None
    assert "returns" in rewind.unbatched


def test_an_environment_of_other_rewards_is_stepped():
    class Sideways(HalfCheetahEnv):
        """Rewarded for something else."""

    env = Sideways()
    rewind = rewinder(env)
    (state,) = states_of(env, rewind, 0)
    assert rewind.returns([state], random_plans(env, 1, 2, 5)) is None
    assert "no batched form" in rewind.unbatched


def test_making_a_batch_leaves_the_environment_where_it_was():
    env, twin = (environment("Hopper-v5").make().unwrapped for _ in range(2))
    for one in (env, twin):
        one.reset(seed=4)
    rewind = rewinder(env)
    rewind.returns([rewind.save()], random_plans(env, 1, 2, 5))
    action = np.full(3, 0.3)
    assert np.array_equal(env.step(action)[0], twin.step(action)[0])
    assert np.array_equal(env.reset()[0], twin.reset()[0])


def test_only_environments_with_mujoco_are_taken():
    assert rewinder(environment("CartPole-v1").make()) is None
