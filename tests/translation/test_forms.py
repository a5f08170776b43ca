"""Planning uses the fastest form that agrees with the program, and fails like the program."""

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest

from benchmarks.published import Copied, Entropy, ResetProgram, cem
from candidates import open_session
from cwm_cli.envs.spec import space_of
from cwm_cli.planning import Moment
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.worlds.model import Plan, PlannedWith
from folders import WORLD_MODELS

PROGRAMS = WORLD_MODELS
ENVIRONMENTS = {
    "acrobot_lists": "Acrobot-v1",
    "blackjack_random": "Blackjack-v1",
    "cartpole_cramer": "CartPole-v1",
    "cartpole_float32": "CartPole-v1",
    "cartpole_helpers": "CartPole-v1",
    "cliff_branches": "CliffWalking-v1",
    "cliff_grid": "CliffWalking-v1",
    "inverted_pendulum_slices": "InvertedPendulum-v5",
    "mountain_car_clip": "MountainCar-v0",
    "mountain_car_continuous": "MountainCarContinuous-v0",
    "mountain_car_scalars": "MountainCar-v0",
    "pendulum_math": "Pendulum-v1",
    "pendulum_numpy": "Pendulum-v1",
    "taxi_map": "Taxi-v4",
    "taxi_walls": "Taxi-v4",
}
TREE = ("mcts", {"preset": "paper"})
SAMPLES = ("cem", {"horizon": 12, "iterations": 2, "samples": 50, "elites": 5, "replan": 2})


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(), workers=1) as sandbox:
        yield sandbox


def rows(env: gym.Env, count: int = 509) -> dict[str, np.ndarray]:
    """Record observations and random actions."""
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    pairs = []
    for _ in range(count):
        pairs.append((observation, env.action_space.sample()))
        observation, _, terminated, truncated, _ = env.step(pairs[-1][1])
        if terminated or truncated:
            observation, _ = env.reset()
    spaces = (space_of(env.observation_space), space_of(env.action_space))
    observations, actions = zip(*pairs, strict=True)
    packed = spaces[0].pack("observations", observations)
    return packed | spaces[1].pack("actions", actions)


def plans(
    sandbox: Sandbox, text: str, name: str, *, together: bool = True, **options: object
) -> tuple[list[Plan], PlannedWith | None]:
    """Plan at the first observations of three episodes."""
    env = gym.make(name)
    spaces = (space_of(env.observation_space), space_of(env.action_space))
    planner = TREE if spaces[1].kind == "discrete" else SAMPLES
    moments = [Moment(number, 0, env.reset(seed=number)[0], 60) for number in range(3)]
    settings = {"rows": rows(env)} | options
    with open_session(sandbox, text, spaces, planners=[planner], **settings) as session:
        if together:
            return session.plan(moments), session.report
        return [plan for moment in moments for plan in session.plan([moment])], session.report


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_form_decides_like_the_program(sandbox: Sandbox, name: str) -> None:
    text, env = (PROGRAMS / f"{name}.py").read_text(), ENVIRONMENTS[name]
    found, report = plans(sandbox, text, env)
    plain, scalar = plans(sandbox, text, env, form="scalar")
    assert report is not None and scalar is not None
    assert scalar.forms == ("scalar",)
    draw = name == "blackjack_random"
    tree = gym.make(env).action_space.shape == ()
    fast = "scalar" if draw else "arithmetic" if tree else "batched"
    if name in ("cliff_branches", "taxi_map", "taxi_walls"):
        fast = "table"
    assert report.forms == (fast,), report
    assert all(plan.failure is None for plan in found)
    assert all(
        np.allclose(one.actions, other.actions) for one, other in zip(found, plain, strict=True)
    )


def test_report_explains_why_there_is_no_faster_form(sandbox: Sandbox) -> None:
    text = (PROGRAMS / "blackjack_random.py").read_text()
    _, report = plans(sandbox, text, "Blackjack-v1")
    assert report is not None and "draws random numbers" in report.note
    loops = (PROGRAMS / "cartpole_float32.py").read_text()
    loops = loops.replace("        force = ", "        np.sort(self.state)\n        force = ")
    found, report = plans(sandbox, loops, "CartPole-v1")
    assert all(plan.failure is None for plan in found)
    assert report is not None and report.forms == ("scalar",)
    assert "not traced: sort of an unknown value" in report.note


def test_program_that_remembers_earlier_calls_is_not_translated(sandbox: Sandbox) -> None:
    text = (PROGRAMS / "cartpole_helpers.py").read_text()
    text = text.replace("        self.steps = 0\n\n    def _get", "\n    def _get")
    assert text != (PROGRAMS / "cartpole_helpers.py").read_text()
    _, report = plans(sandbox, text, "CartPole-v1")
    assert report is not None and report.forms == ("scalar",)


def test_every_form_raises_the_error_of_the_program(sandbox: Sandbox) -> None:
    text = (PROGRAMS / "pendulum_numpy.py").read_text()
    fails = "        if self.state[1] > 3.0:\n            raise ValueError('too fast')\n"
    text = text.replace("        theta, theta_dot = self.state\n        u", fails + "        u")
    text = text.replace("        u = ", "        theta, theta_dot = self.state\n        u = ", 1)
    found, _ = plans(sandbox, text, "Pendulum-v1")
    failures = [plan.failure for plan in found if plan.failure]
    assert failures
    assert all("too fast" in failure.message for failure in failures)


def test_plans_for_a_batch_equal_single_plans(sandbox: Sandbox) -> None:
    for name in ("pendulum_numpy", "cartpole_helpers", "blackjack_random"):
        text, env = (PROGRAMS / f"{name}.py").read_text(), ENVIRONMENTS[name]
        together, _ = plans(sandbox, text, env)
        check_scalar, _ = plans(sandbox, text, env, together=False)
        assert [str(plan.actions) for plan in together] == [
            str(plan.actions) for plan in check_scalar
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "env_id"),
    [
        ("pendulum_numpy", "Pendulum-v1"),
        ("pendulum_math", "Pendulum-v1"),
        ("mountain_car_continuous", "MountainCarContinuous-v0"),
        ("inverted_pendulum_slices", "InvertedPendulum-v5"),
        ("cheetah_vectors", "HalfCheetah-v5"),
    ],
)
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_cem_plan_equals_the_published_implementation_exactly(
    sandbox: Sandbox, name: str, env_id: str, preset: str
) -> None:
    text, env = (PROGRAMS / f"{name}.py").read_text(), gym.make(env_id)
    names: dict = {}
    exec(text, names)
    options = {
        "preset": preset,
        "horizon": 20,
        "iterations": 4,
        "samples": 60,
        "elites": 6,
        "replan": 20,
    }
    bounds = tuple(
        np.asarray(bound, float) for bound in (env.action_space.low, env.action_space.high)
    )
    spaces = (space_of(env.observation_space), space_of(env.action_space))
    with open_session(
        sandbox, text, spaces, planners=[("cem", options)], rows=rows(env)
    ) as session:
        for episode in range(2):
            observation = env.reset(seed=episode)[0]
            [plan] = session.plan([Moment(episode, 0, observation, 100)])
            start = observation.astype(float)
            model = ResetProgram(names["Environment"](), start)
            if preset == "default":
                model = Copied(model.environment)
            model.environment.set_state(start)
            rng = np.random.default_rng([0, episode, 0])
            published = cem(model, bounds, rng, Entropy(20, 4, 60, 6)).actions
            assert np.array_equal(plan.actions, np.array(published, np.float32))
        assert session.report is not None and session.report.forms == ("batched",)
