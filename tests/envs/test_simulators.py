"""Environments are saved and restored exactly, and are models for planning."""

import random
from collections import deque
from copy import deepcopy
from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.envs.saving import GLOBAL, content, fingerprint
from cwm_cli.envs.simulators import Attributes, CachingSimulator, Findings, probe, simulator
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.envs.tasks import SUITES
from cwm_cli.errors import CwmError
from cwm_cli.planning.mcts import Mcts, PlanTree
from cwm_cli.planning.model import key
from cwm_cli.planning.planner import Situation
from cwm_cli.registry import environment

NAMES = [*SUITES["cwmb"], "FrozenLake-v1", "MountainCarContinuous-v0"]


class Piece:
    """A part of the game that several objects refer to."""

    __slots__ = ("place", "trail")

    def __init__(self, place):
        self.place = place
        self.trail = deque(maxlen=5)


class Game:
    """A game with parts that refer to each other, and with its own generator."""

    def __init__(self, env, seed):
        self.env = env
        self.random = random.Random(seed)
        self.pieces = [Piece(i) for i in range(3)]
        self.leader = self.pieces[0]
        self.moves = {0: self.forward, 1: self.swap}

    def forward(self):
        self.leader.place += self.random.randrange(3)
        self.leader.trail.append(self.leader.place)
        return self.env.bonus[self.leader.place % len(self.env.bonus)]

    def swap(self):
        self.leader = self.pieces[(self.pieces.index(self.leader) + 1) % 3]
        return 0.5


class Board(gym.Env):
    """An environment with typical user code."""

    observation_space = gym.spaces.Box(-1000, 1000, (6,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.bonus = [0.25 * i for i in range(500)]
        self.counts = {"moves": [0, 0], "found": set()}
        self.late = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.game = Game(self, int(self.np_random.integers(1000)))
        self.front = self.game.leader
        self.late = None
        return self._observation(), {}

    def step(self, action):
        reward = self.game.moves[action]() + self.np_random.normal() * 0.1
        self.counts["moves"][action] += 1
        if self.game.leader.place > 4:
            self.late = [*(self.late or []), [self.game.leader.place]]
            self.late[0][0] += 1
        if self.game.leader.place % 7 == 6:
            self.counts["found"].add(self.game.leader.place)
        return self._observation(), reward, self.game.leader.place > 20, False, {}

    def _observation(self):
        trail = sum(self.game.leader.trail) % 100
        late = self.late[0][0] if self.late else 0
        places = [piece.place for piece in self.game.pieces]
        return np.array([*places, self.front.place, trail, late], np.float32)


class Forgetful(gym.Env):
    """An environment whose state cannot be copied."""

    observation_space = gym.spaces.Discrete(1000)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.numbers = (n for n in range(10**9))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return next(self.numbers) % 1000, 0.0, False, False, {}


def spec_of(make):
    return EnvironmentSpec(make.__name__, make, lambda env: "an environment", lambda: {})


def known(name):
    return spec_of(Board) if name == "Board" else environment(name)


@pytest.fixture(scope="module")
def simulators():
    """Simulators by name, shared by all tests."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = simulator(known(name), {}, seed=7)
        return made[name]

    return get


def stepped(model):
    """Return the environment of a simulator, and the function that makes rewinders."""
    inner = model._simulator if isinstance(model, CachingSimulator) else model
    return inner._env, inner._bind


def actions_for(env, count, seed=0):
    space = deepcopy(env.action_space)
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def walk(env, actions):
    """Return all results of steps, with a reset after each episode."""
    seen = []
    for action in actions:
        observation, reward, terminated, *_ = env.step(action)
        seen.append((key(observation), float(reward), bool(terminated)))
        if terminated:
            seen.append(key(env.reset()[0]))
    return seen


@pytest.mark.parametrize("name", [*NAMES, "Board"])
def test_another_instance_continues_exactly_from_a_saved_state(simulators, name):
    model = simulators(name)
    real = known(name).make().unwrapped
    env, bind = stepped(model)
    rewinder = bind(real)
    real.reset(seed=5)
    for stretch in range(5):
        walk(real, actions_for(real, 7, seed=stretch))
        state = rewinder.save()
        actions = actions_for(real, 40, seed=100 + stretch)
        truth = walk(real, actions)
        for _ in range(2):
            model.rewinder.load(state)
            assert walk(env, actions) == truth


@pytest.mark.parametrize("name", ["CartPole-v1", "Taxi-v4", "Reacher-v5", "Board"])
def test_instance_restores_its_own_state(simulators, name):
    rewinder, env = simulators(name).rewinder, stepped(simulators(name))[0]
    env.reset(seed=1)
    state = rewinder.save()
    actions = actions_for(env, 60)
    first = walk(env, actions)
    walk(env, actions)
    rewinder.load(state)
    assert walk(env, actions) == first


@pytest.mark.parametrize("name", ["CartPole-v1", "Blackjack-v1", "Hopper-v5", "Board"])
def test_generators_are_unchanged_without_chance(simulators, name):
    rewinder, env = simulators(name).rewinder, stepped(simulators(name))[0]
    env.reset(seed=1)
    state = rewinder.save()
    walk(env, actions_for(env, 30))
    env.np_random.random()
    drawn = list(map(fingerprint, rewinder.generators()))
    rewinder.load(state, chance=False)
    assert list(map(fingerprint, rewinder.generators())) == drawn
    rewinder.load(state)
    assert list(map(fingerprint, rewinder.generators())) != drawn


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "Board"])
def test_states_with_equal_content_are_equal(simulators, name):
    model, real = simulators(name), known(name).make()
    observation, _ = real.reset(seed=3)
    copy = stepped(model)[0]
    copy.reset(seed=2)
    walk(copy, actions_for(real, 600))
    model.stand(model.state_of(real, observation))
    model.step(1)
    predicted = key(model.here())
    assert predicted != key(model.state_of(real, observation))
    observation, *_ = real.step(1)
    state = key(model.state_of(real, observation))
    assert predicted == state and hash(predicted) == hash(state)


@pytest.mark.parametrize(("push", "kept"), [(0.0, True), (1e-3, False)])
def test_tree_is_kept_if_the_prediction_was_right(simulators, push, kept):
    model, real = simulators("CartPole-v1"), environment("CartPole-v1").make()
    memory = PlanTree(model, Mcts(simulations=30))
    observation, _ = real.reset(seed=0)
    for number in range(9):
        state = model.state_of(real, observation)
        before = memory.root
        memory.search(Situation(state, 100 - number, (0, 0, number)))
        assert before is None or (memory.root in before.children) == kept
        observation, *_ = real.step(memory.root.values.index(memory.root.value))
        real.unwrapped.state += push


def test_planning_does_not_foresee_random_events():
    slippery = environment("FrozenLake-v1")
    real = slippery.make()
    real.reset(seed=3)
    foreseen = []
    for seed in range(2):
        model = simulator(slippery, {}, seed)
        state, places = model.state_of(real, None), []
        for _ in range(40):
            model.stand(state)
            places.append(model.step(2).observation)
        assert len(set(places)) > 1
        foreseen.append(places)
    assert foreseen[0] != foreseen[1]
    assert simulator(slippery, {}, 0).deterministic is False


def test_state_of_does_not_change_the_real_environment(simulators):
    for name in ("Blackjack-v1", "InvertedPendulum-v5", "Board"):
        model = simulators(name)
        walks = []
        for watched in (False, True):
            real = known(name).make().unwrapped
            real.reset(seed=2)
            seen = []
            for action in actions_for(real, 40):
                if watched:
                    model.stand(model.state_of(real, None))
                    model.play(actions_for(real, 3))
                seen += walk(real, [action])
            walks.append(seen)
        assert walks[0] == walks[1]


@pytest.mark.parametrize(
    ("name", "env_args", "deterministic"),
    [
        ("CartPole-v1", {}, True),
        ("Taxi-v4", {}, True),
        ("Taxi-v4", {"is_rainy": True}, False),
        ("Blackjack-v1", {}, False),
        ("FrozenLake-v1", {"is_slippery": False}, True),
        ("Reacher-v5", {}, True),
    ],
)
def test_randomness_is_detected_if_it_affects_outcomes(name, env_args, deterministic):
    assert simulator(environment(name), env_args, 0).deterministic is deterministic


class Delayed(gym.Env):
    """An environment that shows the coin of each step two steps later."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.coins = (0, 0, 0)
        return 0, {}

    def step(self, action):
        self.coins = (*self.coins[1:], int(self.np_random.integers(2)))
        return self.coins[0], 0.0, False, False, {}


def test_randomness_is_detected_if_it_shows_two_steps_later():
    assert simulator(spec_of(Delayed), {}, 0).deterministic is False


def test_steps_are_counted_and_return_plain_values(simulators):
    model = simulators("Pendulum-v1")
    real = environment("Pendulum-v1").make()
    real.reset(seed=0)
    state = model.state_of(real, None)
    model.stand(state)
    model.counter[0] = 0
    step = model.step(np.array([1.0]))
    assert type(step.reward) is float and type(step.terminated) is bool and step.valid is None
    total = model.play([np.array([0.5])] * 4)
    assert model.counter[0] == 5
    model.stand(state)
    plan = np.array([[1.0], *[[0.5]] * 4])
    assert model.returns([state], plan[None, None])[0, 0] == pytest.approx(step.reward + total)
    assert model.counter[0] == 10


def test_plan_ends_with_the_episode_and_is_discounted(simulators):
    model = simulators("CartPole-v1")
    real = environment("CartPole-v1").make()
    real.reset(seed=0)
    state = model.state_of(real, None)
    model.counter[0] = 0
    length = model.returns([state, state], np.ones((2, 1, 100), int))
    assert length[0, 0] == length[1, 0] == model.counter[0] / 2 < 100
    model.stand(state)
    assert model.play([1] * 3, 0.5) == 1.75


def test_steps_return_the_valid_actions():
    spec = replace(
        environment("Taxi-v4"), valid_actions=lambda env: env.action_mask(env.s).nonzero()[0]
    )
    model, real = simulator(spec, {}, 0), spec.make()
    model.stand(model.state_of(real, real.reset(seed=0)[0]))
    assert set(model.step(0).valid) < set(range(6))


def test_cached_steps_equal_the_steps_of_the_environment():
    spec = environment("Taxi-v4")
    model, real = simulator(spec, {}, 0), spec.make().unwrapped
    assert isinstance(model, CachingSimulator)
    observation, _ = real.reset(seed=1)
    start, actions = model.state_of(real, observation), actions_for(real, 300)
    truth = [real.step(action)[:3] for action in actions]
    for _ in range(2):
        model.counter[0] = 0
        model.stand(start)
        assert [model.step(action)[:3] for action in actions] == truth
        model.stand(start)
        assert model.play(actions) == sum(reward for _, reward, _ in truth)
        assert model.counter[0] == 600


def test_only_what_changes_is_copied(simulators):
    assert simulators("Board").rewinder.how == simulators("Taxi-v4").rewinder.how == "attributes"
    values = simulators("Taxi-v4").rewinder.save().values
    assert "s" in values and "P" not in values


def test_content_is_equal_only_for_equal_values():
    def made(number):
        piece = Piece([float("nan"), np.array([np.inf, number])])
        piece.trail.extend([piece, {"a": {number}}, (piece.place, deque)])
        return [piece, piece.trail]

    assert content(made(1), {}) == content(made(1), {}) == content(deepcopy(made(1)), {})
    assert len({content(value, {}) for value in (made(1), made(1), made(2), made(1)[:1])}) == 3
    strange, other = (iter(lambda: 0, 1) for _ in range(2))
    assert content([strange], {}) == content([strange], {}) != content([other], {})
    assert content([[], []], {}) != content([[]] * 2, {})


def test_new_and_replaced_attributes_are_saved():
    env = Board()
    env.reset(seed=0)
    rewinder = Attributes(env, Findings(constant=frozenset({"bonus"})))
    before = rewinder.save()
    env.bonus = [*env.bonus, 1.0]
    env.late, env.extra = [[1]], {"a": [1]}
    changed = rewinder.save()
    env.bonus[0], env.late[0][0], env.extra["a"] = 9.0, 2, None
    rewinder.load(changed)
    assert (env.bonus[0], env.late, env.extra) == (0.0, [[1]], {"a": [1]})
    rewinder.load(before)
    assert env.late is None and not hasattr(env, "extra")


def test_environment_that_cannot_be_copied_is_refused():
    with pytest.raises(CwmError, match="Forgetful cannot be saved and restored"):
        simulator(spec_of(Forgetful), {}, 0)


def test_environment_with_reward_wrappers_is_refused():
    def doubled():
        return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 2 * reward)

    with pytest.raises(CwmError, match="cannot be saved and restored"):
        simulator(spec_of(doubled), {}, 0)


class Lucky(gym.Env):
    """An environment that uses the generators of Python, numpy and its space."""

    observation_space = gym.spaces.Box(-10, 10, (3,))

    def __init__(self):
        self.action_space = gym.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        drawn = [random.random(), np.random.rand(), self.action_space.sample()]
        return np.array(drawn, np.float32), float(action), False, False, {}


def test_generators_outside_the_attributes_are_saved():
    model = simulator(spec_of(Lucky), {}, 0)
    state = model.rewinder.save()
    first = walk(stepped(model)[0], [0] * 20)
    model.rewinder.load(state)
    assert walk(stepped(model)[0], [0] * 20) == first
    assert model.deterministic is False


def test_bound_functions_stay_with_their_instance():
    class Closed(gym.Env):
        observation_space = gym.spaces.Discrete(1000)
        action_space = gym.spaces.Discrete(2)

        def __init__(self):
            self.place = 0
            self.rule = lambda action: self.place + action

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.place = 0
            return 0, {}

        def step(self, action):
            self.place = self.rule(action)
            return self.place, 1.0, self.place > 20, False, {}

    model, real = simulator(spec_of(Closed), {}, 0), Closed()
    real.reset()
    model.stand(model.state_of(real, None))
    model.play([1] * 5)
    assert (real.place, stepped(model)[0].place) == (0, 5)


def test_equal_seeds_give_equal_results():
    slippery = partial(simulator, environment("FrozenLake-v1"), {})
    real = environment("FrozenLake-v1").make()
    real.reset(seed=3)
    answers = []
    for seed in (4, 4):
        model = slippery(seed)
        model.stand(model.state_of(real, None))
        answers.append([model.step(i % 4).observation for i in range(30)])
    assert answers[0] == answers[1]


class Ledger(gym.Env):
    """An environment with two long lists; every step changes `pages` in place."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.rules, self.pages = [0] * 500, [0] * 500

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        self.pages[0] += 1
        return self.pages[0] % 2, 0.0, False, False, {}


def test_attribute_that_changes_in_place_is_not_constant():
    assert probe(Ledger()).constant == {"rules"}


def test_cached_plan_is_discounted_like_a_simulated_one():
    cached = simulator(environment("CliffWalking-v1"), {}, seed=0)
    assert isinstance(cached, CachingSimulator)
    env = environment("CliffWalking-v1").make()
    cached.stand(cached.state_of(env, env.reset(seed=0)[0]))
    env.close()
    assert cached.play([0, 0, 0], discount=0.5) == pytest.approx(-1.75)


def test_seeding_a_simulator_leaves_the_global_generators_unchanged():
    model = simulator(spec_of(Lucky), {}, seed=0)
    assert any(generator in GLOBAL for generator in model.rewinder.generators())
    before = [fingerprint(generator) for generator in GLOBAL]
    model.draw_from([1, 2])
    assert [fingerprint(generator) for generator in GLOBAL] == before
