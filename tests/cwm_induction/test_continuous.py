"""Programs induced for classic control: right on episodes that nothing was fitted to."""

import numpy as np
import pytest

import cwm_cli
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_cli.search.reading import extract_program
from cwm_cli.worlds import ProgramModel
from cwm_gymnasium import cwm_environments
from cwm_induction.backend import Induction
from cwm_induction.continuous.variables import Cycle, cycle_of
from cwm_induction.rules import Feature, learn_rule

CLASSIC = ("CartPole-v1", "MountainCar-v0", "Pendulum-v1")
CHANGED = {
    "CartPole-v1": {
        "gravity": 20.0,
        "masscart": 2.3,
        "masspole": 0.37,
        "total_mass": 2.67,
        "length": 0.8,
        "polemass_length": 0.37 * 0.8,
    },
    "MountainCar-v0": {"force": 0.0017, "gravity": 0.0031},
    "Pendulum-v1": {"g": 5.3, "m": 1.7, "l": 0.8, "dt": 0.04},
    "Acrobot-v1": {"LINK_LENGTH_1": 1.2, "LINK_MASS_2": 0.6, "LINK_COM_POS_2": 0.4},
}


def recording(name, seed=0, constants=None):
    """Record ten train and ten test episodes, possibly under other constants of nature."""
    spec = cwm_environments()[name]()
    if constants is None:
        return record(spec, seed=seed, policy="random")

    def make(**env_args):
        env = spec.make(**env_args)
        for constant, value in constants.items():
            setattr(env.unwrapped, constant, value)
        return env

    return record(
        EnvironmentSpec(spec.id, make, spec.describe, spec.versions), seed=seed, policy="random"
    )


def induced(data, sandbox, description=""):
    """Return the program that the backend writes first."""
    problem = WorldModelProblem(description, data.train, sandbox, AccuracyMetric.of(data.train))
    request = Request((), 11, Move(GENERATE), problem)
    return extract_program(Induction().complete(request).text)


def held_out_accuracy(data, sandbox):
    """Score the first program on episodes that it was not fitted to."""
    program = induced(data, sandbox)
    return evaluate(
        ProgramModel(program, sandbox), data.test, AccuracyMetric.of(data.train)
    ).score.accuracy


def tracked(step, observation_space, action_space, episodes=10, length=60, start=None):
    """Record a system: `step(state, action)` returns the next state, reward and end."""
    rng = np.random.default_rng(3)
    rows = []
    for episode in range(episodes):
        state = start(rng) if start else rng.uniform(-1, 1, observation_space.shape)
        for _ in range(length):
            action = action_space.sample()
            following, reward, terminated = step(state, action)
            split = int(episode >= episodes // 2)
            rows.append(
                Transition(state, action, following, reward, terminated, False, episode, split)
            )
            state = following
            if terminated:
                break
    return Dataset.of(
        rows, observation_space=space_of(observation_space), action_space=space_of(action_space)
    )


def imperfect(recordings, sandbox, least=1.0):
    """Return the names of recordings whose held-out rows come out less than so well."""
    shares = {name: held_out_accuracy(data, sandbox) for name, data in recordings.items()}
    return {name: share for name, share in shares.items() if share < least}


@pytest.mark.slow
@pytest.mark.parametrize("env", ["MountainCar-v0", "MountainCarContinuous-v0"])
def test_stop_at_a_wall_is_found_from_one_or_two_rows(env, tmp_path):
    found = cwm_cli.synthesize(env, budget=1, run=tmp_path / "run")
    assert found.scores.train.exact == found.scores.test.exact == 1
    program = found.text
    assert "if car_position + car_velocity_case_0 <= -1.2:" in program
    assert "0.0025 * np.cos(3 * car_position)" in program


@pytest.mark.slow
def test_classic_control_comes_out_exact_on_held_out_episodes(sandbox):
    assert not imperfect({name: recording(name) for name in CLASSIC}, sandbox)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_classic_control_comes_out_exact_for_other_recordings(seed, sandbox):
    assert not imperfect({name: recording(name, seed) for name in CLASSIC}, sandbox)


@pytest.mark.slow
def test_changed_constants_of_nature_are_found(sandbox):
    changed = {name: recording(name, constants=new) for name, new in CHANGED.items()}
    assert not imperfect(changed, sandbox)


@pytest.mark.slow
def test_further_classic_control_comes_out_exact(sandbox):
    names = ("Acrobot-v1", "MountainCarContinuous-v0")
    assert not imperfect({name: recording(name) for name in names}, sandbox)


def test_the_description_decides_nothing(sandbox):
    data = recording("Pendulum-v1")
    named = induced(data, sandbox, "## Pendulum-v1\ngravity is 10, the torque is clipped")
    assert named == induced(data, sandbox)


def test_a_program_says_what_the_data_cannot_decide(sandbox):
    program = induced(recording("MountainCar-v0"), sandbox)
    assert "No terminal transition was seen" in program
    assert "no transition reached them" in program


@pytest.mark.slow
def test_a_ball_that_bounces_gets_an_equation_for_each_regime(sandbox):
    import gymnasium as gym

    def fall(state, action):
        height, speed = state
        speed = speed - 0.1 * 9.8 + 0.3 * float(action[0])
        height = height + 0.1 * speed
        if height < 0:
            height, speed = -height, -0.8 * speed
        return np.array([height, speed]), 0.0, False

    observations = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    actions = gym.spaces.Box(-1, 1, (1,), np.float64, seed=5)
    data = tracked(fall, observations, actions)
    assert held_out_accuracy(data, sandbox) == 1.0


def test_observations_of_another_shape_keep_it(sandbox):
    import gymnasium as gym

    def drift(state, action):
        return state + 0.5 * action, float(-(state[0, 0] ** 2)), False

    observations = gym.spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
    actions = gym.spaces.Box(-1, 1, (2, 2), np.float64, seed=5)
    assert held_out_accuracy(tracked(drift, observations, actions), sandbox) == 1.0


def saturating(state, action):
    """Growth that food limits, while some of both is washed out."""
    cells, food = state
    grown = 0.04 * cells * food / (1.3 + food)
    out = 0.03 + 0.03 * float(action[0])
    return np.array([cells + grown - out * cells, food + out * (5 - food) - grown]), 0.0, False


def oscillating(state, action):
    """Van der Pol's oscillator in five Euler steps."""
    for _ in range(5):
        x, v = state
        force = 1.5 * (1 - x**2) * v - x + float(action[0])
        state = state + 0.02 * np.array([v, force])
    return state, 0.0, False


def hunting(state, action):
    """Predators and prey by Runge and Kutta's rule."""

    def rates(z):
        eaten = 0.4 * z[0] * z[1]
        return 0.1 * np.array(
            [1.1 * z[0] - eaten + abs(float(action[0])), 0.3 * eaten - 0.4 * z[1]]
        )

    k1 = rates(state)
    k2 = rates(state + k1 / 2)
    k3 = rates(state + k2 / 2)
    k4 = rates(state + k3)
    return state + (k1 + 2 * k2 + 2 * k3 + k4) / 6, 0.0, False


def heating(state, action):
    """A heater that switches on below one temperature and off above another."""
    heat, on = state
    on = 1.0 if heat < -0.3 else 0.0 if heat > 0.4 else float(on > 0.5)
    return np.array([0.9 * heat + 0.12 * on + 0.1 * float(action[0]) - 0.07, on]), 0.0, False


def turning(state, action):
    """A heading in [-pi, pi) that a torque with a limit turns."""
    heading, spin = state
    spin = 0.97 * spin + 0.2 * np.clip(float(action[0]), -0.6, 0.6)
    return np.array([(heading + 0.8 * spin + np.pi) % (2 * np.pi) - np.pi, spin]), 0.0, False


def sliding(state, action):
    """A block that dry friction stops."""
    place, speed = state
    pushed = speed + 0.15 * float(action[0])
    slowed = np.sign(pushed) * max(abs(pushed) - 0.04, 0.0)
    return np.array([place + 0.1 * slowed, slowed]), 0.0, abs(place) > 0.9 or slowed > 0.5


def gauged(state, action):
    """A level and a gauge that saturates with it."""
    level = state[0] + 0.1 * (1.5 + float(action[0]) - 0.5 * state[0])
    return np.array([level, 9 - 8 * level**2 / (level**2 + 1.7**2)]), 0.0, False


def steered(state, action):
    """A heading that a steered axle turns."""
    speed = 0.9 * state[1] + 0.1
    return np.array([state[0] + 0.4 * speed * np.tan(0.7 * float(action[0])), speed]), 0.0, False


def positive(rng):
    return rng.uniform(0.5, 3, 2)


def with_a_flag(rng):
    return np.array([rng.uniform(-1, 1), rng.integers(2)])


def recorded(systems):
    """Record systems by the names of their steps."""
    import gymnasium as gym

    observations = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    seen = {"episodes": 20, "length": 100}
    return {
        step.__name__: tracked(
            step, observations, gym.spaces.Box(-1, 1, (1,), np.float32, seed=5), start=start, **seen
        )
        for step, start in systems.items()
    }


def test_systems_of_other_kinds_come_out_nearly_exact(sandbox):
    systems = {saturating: positive, heating: with_a_flag}
    assert not imperfect(recorded(systems), sandbox, 0.97)


@pytest.mark.long
def test_further_systems_come_out_nearly_exact(sandbox):
    systems = {oscillating: None, sliding: None, gauged: positive}
    systems |= {hunting: positive, turning: None, steered: positive}
    assert not imperfect(recorded(systems), sandbox, 0.97)


def test_rules_are_as_few_bounds_as_decide():
    x, y = np.random.default_rng(0).uniform(-1, 1, (2, 4000))
    features = [Feature("x", x), Feature("y", y)]
    rules = {
        "x > 0.5 and y <= -0.2": (x > 0.5) & (y <= -0.2),
        "y > 0.8 or x > 0.9": (x > 0.9) | (y > 0.8),
    }
    assert [learn_rule(features, rows).text() for rows in rules.values()] == [*rules]


def test_a_cycle_is_told_from_a_jump():
    now = np.arange(0, 60.0) * 0.7 % 1.0
    assert cycle_of(now[:-1], now[1:], -np.inf, np.inf) is None
    hours = np.arange(0, 100.0) % 24
    assert cycle_of(hours[:-1], hours[1:], 0.0, 23.0) == Cycle(0.0, 24.0)
    assert cycle_of(np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0]), 0.0, 1.0) is None
    assert cycle_of(now[:3], now[:3], -np.pi, np.pi) == Cycle(-np.pi, 2 * np.pi)
