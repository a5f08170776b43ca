"""`cwm plan` as a user meets it: episodes in the true environment, actions from a world model."""

import json
import math
import signal
import time

import gymnasium as gym
import numpy as np
import psutil
import pytest

from cwm_cli.environments import space_of
from cwm_cli.episodes import LONGEST, Pilot, contests, mean_of, play, step_limit, uniform
from cwm_cli.sandbox import Sandbox

CARTPOLE = """
import math

class Environment:
    def set_state(self, observation):
        self.state = observation.tolist()

    def step(self, action):
        x, v, angle, spin = self.state
        cos, sin = math.cos(angle), math.sin(angle)
        push = ((10.0 if action == 1 else -10.0) + 0.05 * spin * spin * sin) / 1.1
        twist = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        pull = push - 0.05 * twist * cos / 1.1
        self.state = x, v, angle, spin = (
            x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * twist
        )
        return [x, v, angle, spin], 1.0, abs(x) > 2.4 or abs(angle) > math.radians(12)
"""

PENDULUM = """
import math

class Environment:
    def set_state(self, observation):
        cos, sin, self.spin = observation.tolist()
        self.angle = math.atan2(sin, cos)

    def step(self, action):
        torque = min(max(float(action[0]), -2.0), 2.0)
        angle = (self.angle + math.pi) % (2 * math.pi) - math.pi
        cost = angle**2 + 0.1 * self.spin**2 + 0.001 * torque**2
        spin = self.spin + (15 * math.sin(self.angle) + 3 * torque) * 0.05
        self.spin = min(max(spin, -8.0), 8.0)
        self.angle += self.spin * 0.05
        return [math.cos(self.angle), math.sin(self.angle), self.spin], -cost, False
"""

BROKEN = CARTPOLE.replace(
    "        x, v", "        assert self.state[0] > 0, 'left of the middle'\n        x, v"
)
ENVIRONMENTS = """
from cwm_cli import hookimpl

@hookimpl
def cwm_environments():
    return {"Switches-v0": switches, "Counter-v0": counter}

def switches():
    from gymnasium import spaces
    return spec("Switches-v0", spaces.MultiBinary(2))

def counter():
    from gymnasium import spaces
    return spec("Counter-v0", spaces.Discrete(2))

def spec(name, actions):
    import gymnasium as gym
    import numpy as np
    from cwm_cli.environments import EnvironmentSpec

    class Counter(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
        action_space = actions

        def reset(self, seed=None, options=None):
            self.count = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.count += 1
            return np.array([self.count], np.float32), np.array([float(action)]), False, False, {}

    return EnvironmentSpec(name, Counter, lambda env: "a counter", lambda: {})
"""
COUNTER = """
class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        self.state = self.state + 1
        return self.state, float(action), False
"""


@pytest.fixture
def plan(cwm):
    """Run `cwm plan` with program files at hand."""
    for name, text in (("cartpole", CARTPOLE), ("pendulum", PENDULUM), ("broken", BROKEN)):
        (cwm.folder / f"{name}.py").write_text(text)
    (cwm.folder / "counter.py").write_text(COUNTER)
    cwm.install("counting_plugin", ENVIRONMENTS)
    return lambda *arguments: cwm("plan", *arguments)


def returned(text: str, env: gym.Env, planner: str, episodes: int, **options: object) -> list:
    """Play episodes with a program."""
    spaces = (space_of(env.observation_space), space_of(env.action_space, "actions"))
    with (
        Sandbox() as sandbox,
        sandbox.session(text, spaces, planner=planner, options=options) as session,
    ):
        pilot = Pilot(session, uniform(env, 0))
        played = list(contests(env, pilot, episodes, seed=1, limit=step_limit(env)))
        assert pilot.failures == 0
        return played


def test_the_exact_programs_of_these_tests_are_exact() -> None:
    for name, text in (("CartPole-v1", CARTPOLE), ("Pendulum-v1", PENDULUM)):
        names: dict = {}
        exec(text, names)
        world, env = names["Environment"](), gym.make(name)
        observation, _ = env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(10):
            action = env.action_space.sample()
            world.set_state(np.asarray(observation, dtype=float))
            predicted, reward, terminated = world.step(action)
            observation, true_reward, ended, _, _ = env.step(action)
            assert np.allclose(predicted, observation, atol=1e-5)
            assert (pytest.approx(true_reward, abs=1e-4), ended) == (reward, terminated)


def test_the_tree_search_balances_the_pole() -> None:
    played = returned(CARTPOLE, gym.make("CartPole-v1", max_episode_steps=150), "mcts", 2)
    assert [contest.planned.returned for contest in played] == [150.0, 150.0]
    assert all(contest.random.returned < 100 for contest in played)


def test_cem_swings_the_pendulum_up() -> None:
    played = returned(PENDULUM, gym.make("Pendulum-v1"), "cem", 2, samples=64, elites=6, replan=3)
    assert mean_of([contest.planned.returned for contest in played]).mean > -400
    assert mean_of([contest.random.returned for contest in played]).mean < -800


def test_an_episode_ends_at_the_time_limit_and_no_plan_goes_beyond_it() -> None:
    env, horizons = gym.make("Pendulum-v1"), []

    def policy(observation, horizon):
        horizons.append(horizon)
        return [np.zeros(1, np.float32)] * min(horizon, 90)

    assert step_limit(env) == 200
    assert play(env, policy, seed=0, limit=step_limit(env)).length == 200
    assert horizons == [200, 110, 20]


def test_the_lower_limit_holds_and_there_always_is_one() -> None:
    env = gym.make("Pendulum-v1")
    assert [step_limit(env, steps) for steps in (None, 50, 900)] == [200, 50, 200]
    assert step_limit(env.unwrapped.__class__()) == LONGEST
    assert play(env, uniform(env, 0), seed=0, limit=7).length == 7


def test_an_episode_does_not_depend_on_how_many_are_played() -> None:
    env = gym.make("CartPole-v1")
    few, many = (
        [contest.random for contest in contests(env, uniform(env, 0), count, seed=3, limit=500)]
        for count in (2, 5)
    )
    assert few == many[:2]
    assert len(set(many)) > 1


def test_means_come_with_their_standard_error() -> None:
    assert mean_of([1.0, 3.0]) == (2.0, 1.0)
    assert mean_of([4.0]) == (4.0, None)
    assert mean_of([1.0, 2.0, 3.0, 4.0]).stderr == pytest.approx(math.sqrt(5 / 3 / 4))


def test_planning_is_far_better_than_chance_and_says_so_in_json(plan) -> None:
    arguments = ("--env", "CartPole-v1", "--program", "cartpole.py", "--episodes", "3", "--json")
    options = ("-o", "simulations=12", "-o", "planner.rollout=30", "--max-steps", "80")
    done = plan(*arguments, *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["returns"] == [float(length) for length in result["lengths"]]
    assert result["mean"] == sum(result["returns"]) / 3 > 2 * result["random"]["mean"]
    assert result["mean"] > 60
    assert (result["oracle"], result["R"], result["failures"]) == (None, None, 0)
    assert result["model_steps_per_second"] > 12 * result["decisions_per_second"] > 12
    again = json.loads(plan(*arguments, *options).stdout)
    for name in ("returns", "lengths", "random"):
        assert again[name] == result[name]


def test_people_get_a_table(plan) -> None:
    done = plan(
        *("--env", "Pendulum-v1", "--program", "pendulum.py", "--planner", "cem"),
        *("--episodes", "2", "--max-steps", "10", "-o", "samples=20", "-o", "horizon=5"),
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["return", "length"] in lines
    assert any(line[:2] == ["world", "model"] and line[-1] == "10" for line in lines)
    assert any(line[:1] == ["random"] and "±" in line for line in lines)
    assert "decisions/s" in done.stdout


def test_failures_of_the_program_are_counted_and_shown(plan) -> None:
    arguments = ("--env", "CartPole-v1", "--program", "broken.py", "--episodes", "2", "--json")
    done = plan(*arguments, "--max-steps", "30", "-o", "simulations=4")
    result = json.loads(done.stdout)
    assert 0 < result["failures"] <= sum(result["lengths"])
    assert result["failure"]["kind"] == "step_error"
    assert "left of the middle" in done.stderr
    assert f"failed in {result['failures']} of" in done.stderr


def test_an_environment_without_a_limit_is_cut_where_the_user_says(plan) -> None:
    done = plan(
        *("--env", "Counter-v0", "--program", "counter.py", "--episodes", "1", "--json"),
        *("--max-steps", "5", "-o", "simulations=20", "-o", "rollout=2"),
    )
    result = json.loads(done.stdout)
    assert (result["returns"], result["lengths"], result["stderr"]) == ([5.0], [5], None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--program", "no.py"], "there is no no.py: name a .py file"),
        (["--program", "."], ". cannot be read"),
        ([], "name one world model: --program FILE, or --run DIR"),
        (["--program", "cartpole.py", "--run", "x"], "name one world model"),
        (["--run", "x"], "x is no run"),
        (
            ["--program", "cartpole.py", "--planner", "cem"],
            "cem needs continuous actions within finite bounds: choose --planner mcts",
        ),
        (["--program", "cartpole.py", "--planner", "mtcs"], "did you mean mcts?"),
        (["--program", "cartpole.py", "-o", "simulation=2"], "did you mean simulations?"),
        (["--program", "cartpole.py", "-o", "simulations=0"], "must be at least 1"),
        (["--program", "cartpole.py", "-o", "simulations=few"], "simulations=few is refused"),
        (
            ["--program", "pendulum.py", "--env", "Pendulum-v1", "--planner", "mcts"],
            "mcts needs discrete actions: choose --planner cem",
        ),
        (
            ["--program", "pendulum.py", "--env", "Pendulum-v1", "-o", "preset=slow"],
            "should be 'quick' or 'paper'",
        ),
    ],
)
def test_mistakes_are_named_in_one_line(plan, monkeypatch, tmp_path, arguments, words):
    from typer.testing import CliRunner

    from cwm_cli.cli import app

    monkeypatch.chdir(tmp_path / "work")
    env = [] if "--env" in arguments else ["--env", "CartPole-v1"]
    result = CliRunner().invoke(app, ["plan", *env, *arguments])
    assert result.exit_code == 1
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_actions_that_no_planner_serves_are_refused(plan) -> None:
    done = plan("--env", "Switches-v0", "--program", "counter.py")
    assert done.returncode == 1
    assert "no planner serves these actions: choose an environment with discrete" in done.stderr


def test_a_run_is_planned_with_its_best_program(cwm) -> None:
    short = ("--episodes", "1", "--max-steps", "60", "--json")
    made = cwm("synthesize", "--env", "CartPole-v1", "--run", "made")
    assert "cwm plan --env CartPole-v1 --run made" in made.stdout
    done = cwm("plan", "--env", "CartPole-v1", "--run", "made", *short)
    assert json.loads(done.stdout)["mean"] > 50
    other = cwm("plan", "--env", "Pendulum-v1", "--run", "made")
    assert (other.returncode, "name --env CartPole-v1" in other.stderr) == (1, True)


def test_an_interruption_leaves_nothing_running(cwm) -> None:
    (cwm.folder / "slow.py").write_text(
        CARTPOLE.replace("x, v, angle", "sum(range(9999))\n        x, v, angle", 1)
    )
    process = cwm.start("plan", "--env", "CartPole-v1", "--program", "slow.py")
    watched = psutil.Process(process.pid)
    deadline = time.monotonic() + 30
    while len(family := watched.children(recursive=True)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(family) >= 2, "a worker, and processes for programs"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "interrupted" in err
    assert "Traceback" not in err
    assert psutil.wait_procs(family, timeout=10)[1] == []
