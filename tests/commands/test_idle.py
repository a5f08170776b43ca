"""The baseline that does nothing: zero, or the best constant action."""

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.commands.episodes import play
from cwm_cli.commands.idle import ALL_TRIALS, TRIAL_STEPS, can_idle, idle_action
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Setting, Task, seeds_of
from cwm_cli.registry import environment


class Corridor(gym.Env):
    """Pays the noisy reward of an action: the highest for `best`."""

    observation_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, actions, best=0, length=10**6):
        self.action_space, self.best, self.length = actions, best, length
        self.steps, self.seeds, self.actions = 0, [], []

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.left = self.length
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.left -= 1
        self.actions.append(action)
        reward = -abs(action - self.best) + self.np_random.normal() / 10
        return np.zeros(1, np.float32), reward, self.left == 0, False, {}


def task(env, limit=1000) -> Task:
    return Task(lambda: env, seed=3, limit=limit)


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(-2.0, 2.0, 0.0), (0.5, 1.0, 0.5), (-3.0, -1.0, -1.0)]
)
def test_continuous_action_is_zero_within_its_bounds(low, high, expected) -> None:
    space = gym.spaces.Box(low, high, (2, 3), np.float32)
    action = idle_action(task(Corridor(space)))
    assert space.contains(action)
    assert action.tolist() == np.full((2, 3), expected).tolist()


@pytest.mark.parametrize(("count", "best"), [(2, 1), (7, 4), (50, 33)])
@pytest.mark.parametrize("length", [1, 10**6])
def test_best_constant_action_is_found_with_few_steps(count, best, length) -> None:
    env = Corridor(gym.spaces.Discrete(count, start=5), 5 + best, length)
    assert idle_action(task(env)) == 5 + best
    assert env.steps <= TRIAL_STEPS
    assert len(env.seeds) <= ALL_TRIALS
    assert not {seeds_of(3, number)[0] for number in range(2000)} & set(env.seeds)


def test_a_thousand_actions_need_no_more_steps_than_fifty() -> None:
    env = Corridor(gym.spaces.Discrete(1000), best=700)
    assert abs(idle_action(task(env)) - 700) <= 10
    assert (env.steps <= TRIAL_STEPS, len(env.seeds) <= ALL_TRIALS) == (True, True)


def test_hands_of_blackjack_are_kept_and_a_car_without_force_is_idle() -> None:
    for name, limit, action in (("Blackjack-v1", 100, 0), ("Pendulum-v1", 200, [0.0])):
        found = idle_action(Setting(name, {}, 0, limit).task(environment(name)))
        assert np.asarray(found).tolist() == action


def test_texts_and_actions_that_are_not_valid_everywhere_are_left_out() -> None:
    discrete, box = gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,))
    several = gym.spaces.Tuple([discrete, box]), gym.spaces.MultiDiscrete([2, 3])
    assert all([can_idle(space_of(space), None) for space in (discrete, box, *several)])
    assert not can_idle(space_of(discrete), lambda env: [1])
    assert not can_idle(space_of(gym.spaces.Tuple([discrete, gym.spaces.Text(2)])), None)


def test_best_combination_of_discrete_parts_is_found_with_boxes_at_zero() -> None:
    class Parts(Corridor):
        def step(self, action):
            assert self.action_space.contains(action)
            assert action["force"].tolist() == [0.5]
            return super().step(10 * action["gears"][0] + action["gears"][1])

    gears, force = gym.spaces.MultiDiscrete([3, 4]), gym.spaces.Box(0.5, 1, (1,))
    env = Parts(gym.spaces.Dict({"gears": gears, "force": force}), best=12)
    assert idle_action(task(env))["gears"].tolist() == [1, 2]


def test_a_constant_action_is_played_in_every_step() -> None:
    env = Corridor(gym.spaces.Discrete(9), length=4)
    [progress] = [some for some in play(task(env), [0], action=6) if some.finished]
    assert env.actions == progress.finished[0].actions == [6] * 4
