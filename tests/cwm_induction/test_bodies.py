"""Programs that simulate a given MuJoCo body, fitted to recorded transitions."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.envs.bodies import Body
from cwm_cli.evaluation import AccuracyMetric, match
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import environment
from cwm_cli.sandbox import Sandbox
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_cli.search.reading import extract_program
from cwm_cli.worlds import ProgramModel
from cwm_induction.backend import Induction
from cwm_induction.bodies.induce import induce_body
from cwm_induction.bodies.layout import fit_layout
from cwm_induction.bodies.mechanism import BodySimulation, StepRows

mujoco = pytest.importorskip("mujoco")

SHIPPED = files("data.cwm_data")

PENDULUM = """
<mujoco>
  <option timestep="0.02"/>
  <worldbody>
    <body name="arm">
      <joint name="swing" axis="0 1 0" damping="0.1"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.05"/>
      <site name="end" pos="0 0 -0.5"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="swing" gear="2"/>
  </actuator>
</mujoco>
"""

DRONE = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <geom type="plane" size="5 5 0.1"/>
    <body pos="0 0 0.1">
      <freejoint/>
      <geom type="box" size="0.2 0.2 0.05" mass="1"/>
      <site name="left" pos="0 0.2 0"/>
      <site name="right" pos="0 -0.2 0"/>
    </body>
  </worldbody>
  <actuator>
    <motor site="left" gear="0 0 1 0 0 0.1" ctrllimited="true" ctrlrange="0 9"/>
    <motor site="right" gear="0 0 1 0 0 -0.1" ctrllimited="true" ctrlrange="0 9"/>
  </actuator>
</mujoco>
"""


def shipped(name, train_rows=400):
    """Return train rows and held-out rows of a shipped dataset, and the model of its environment.

    The model comes from the file of the environment.
    """
    data = Dataset.load(SHIPPED / f"{name}.npz")
    made = environment(name).make()
    xml = Path(made.unwrapped.fullpath).read_text()
    made.close()
    return data.train[np.arange(min(train_rows, len(data.train)))], data.test, xml


def exact_share(program, data):
    """Return the share of rows that a program predicts exactly, each from its observation."""
    names = {}
    exec(program, names)
    env, columns = names["Environment"](), data.columns
    remembers = hasattr(env, "reset")
    right = 0
    follows = StepRows.of(data).follows
    for row in range(len(data)):
        seen = columns["observations"][row]
        if not remembers:
            env.set_state(seen)
        elif follows[row]:
            env.correct(seen, columns["rewards"][row - 1])
        else:
            env.reset(seen)
        after, reward, ends = env.step(columns["actions"][row])
        expected = np.append(columns["next_observations"][row], columns["rewards"][row])
        close = np.allclose(np.append(after, reward), expected, rtol=1e-5, atol=1e-5)
        right += bool(close and ends == columns["terminations"][row])
    return right / len(data)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("Swimmer-v5", 1.0),
        ("HalfCheetah-v5", 1.0),
        ("InvertedPendulum-v5", 1.0),
        ("InvertedDoublePendulum-v5", 0.98),
        ("Reacher-v5", 0.98),
        ("Hopper-v5", 0.95),
    ],
)
def test_a_program_of_the_given_body_predicts_held_out_rows(name, least):
    train, test, xml = shipped(name)
    assert exact_share(induce_body(xml, train).program, test) >= least


@pytest.mark.parametrize("name", ["Walker2d-v5", "Reacher-v5"])
def test_a_program_with_memory_knows_clipped_velocities_and_full_turns(name):
    train, test, xml = shipped(name, 600)
    assert exact_share(induce_body(xml, train, remembers=True).program, test) == 1.0


def test_a_memory_is_asked_for_if_velocities_are_clipped():
    train, _, xml = shipped("Walker2d-v5", 200)
    assert induce_body(xml, train).needs_memory
    train, _, xml = shipped("HalfCheetah-v5", 200)
    assert not induce_body(xml, train).needs_memory


def recorded(simulation, look, reward, frame_skip):
    """Record ten episodes of 20 steps with random actions, from random velocities."""
    model, data, rng = simulation.model, simulation.data, np.random.default_rng(0)
    low, high = model.actuator_ctrlrange.T if model.actuator_ctrllimited.all() else (-1.0, 1.0)
    seen, actions, after, rewards = [], [], [], []
    for row in range(200):
        if row % 20 == 0:
            mujoco.mj_resetData(model, data)
            data.qvel[:] = rng.normal(size=model.nv)
            mujoco.mj_forward(model, data)
        seen.append(look(data))
        actions.append(rng.uniform(low, high, model.nu))
        data.ctrl[:] = actions[-1]
        mujoco.mj_step(model, data, frame_skip)
        after.append(look(data))
        rewards.append(reward(data))
    count, size = len(seen), len(seen[0])
    columns = {
        "observations": np.array(seen),
        "actions": np.array(actions),
        "next_observations": np.array(after),
        "rewards": np.array(rewards),
        "terminations": np.zeros(count, bool),
        "truncations": np.arange(count) % 20 == 19,
        "episodes": np.arange(count) // 20,
        "split": np.zeros(count, np.int8),
    }

    def space(size, bound):
        return Space("box", "float64", (size,), (-bound,) * size, (bound,) * size)

    return Dataset(columns, space(size, np.inf), space(model.nu, 9.0))


def swings(integrator, frame_skip, order):
    """Record a pendulum whose observation is velocity, sine, cosine and height of its end."""
    simulation = BodySimulation(PENDULUM)
    simulation.model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}")

    def look(data):
        angle, speed = data.qpos[0], data.qvel[0]
        parts = {"v": speed, "s": np.sin(angle), "c": np.cos(angle), "z": data.site_xpos[0, 2]}
        return np.array([parts[letter] for letter in order])

    def reward(data):
        return 2.0 * data.site_xpos[0, 2] - 0.25 * float(data.ctrl @ data.ctrl)

    return recorded(simulation, look, reward, frame_skip)


@pytest.mark.parametrize("integrator", ["Euler", "RK4", "implicitfast"])
@pytest.mark.parametrize("frame_skip", [1, 3])
def test_integrator_and_frame_skip_are_found_in_the_rows(integrator, frame_skip):
    data = swings(integrator, frame_skip, "scv")
    found = fit_layout(BodySimulation(PENDULUM), StepRows.of(data), np.random.default_rng(0))
    assert found.timing.frame_skip == frame_skip
    if integrator == "RK4":
        assert found.timing.integrator == "RK4"
    assert found.right == 1.0


@pytest.mark.parametrize("remembers", [False, True])
def test_a_free_body_with_contacts_is_simulated(remembers):
    data = recorded(
        BodySimulation(DRONE),
        lambda data: np.concatenate([data.qvel, data.qpos]),
        lambda data: data.qpos[2] - 0.01 * float(data.ctrl @ data.ctrl),
        4,
    )
    program = induce_body(DRONE, data, remembers=remembers).program
    assert exact_share(program, data) == 1.0
    assert '"control_weight": 0.01' in program


@pytest.mark.parametrize("order", ["scv", "csv", "vsc", "vzcs"])
def test_observation_and_reward_are_found_in_any_order(order):
    data = swings("RK4", 2, order)
    program = induce_body(PENDULUM, data).program
    assert exact_share(program, data) == 1.0
    assert '"control_weight": 0.25' in program
    assert '"end_z_weight": 2.0' in program


def test_a_program_with_an_unknown_reward_predicts_the_observation():
    data = swings("Euler", 2, "scv")
    data.columns["rewards"][:] = np.random.default_rng(0).normal(size=len(data))
    program = induce_body(PENDULUM, data).program
    assert exact_share(program, data) == 0.0
    data.columns["rewards"][:] = 0.0
    constant = induce_body(PENDULUM, data).program
    assert exact_share(constant, data) == 1.0
    lines = [[line for line in text.splitlines() if "qpos" in line] for text in (program, constant)]
    assert lines[0] == lines[1]


def test_the_backend_uses_the_body_of_the_problem():
    data = swings("Euler", 2, "scv")
    with Sandbox(tools=["mujoco"]) as sandbox:
        problem = WorldModelProblem(
            "", data, sandbox, AccuracyMetric.of(data), body=Body(PENDULUM, "pendulum.xml")
        )
        completion = Induction().complete(Request((), 3, Move(GENERATE), problem))
        predictions = ProgramModel(extract_program(completion.text), sandbox).predict(data)
    assert predictions.failure is None
    assert not match(predictions.columns, data).losses(data.columns["terminations"]).any()


def test_a_body_that_explains_no_row_leaves_the_usual_induction():
    data = swings("Euler", 2, "scv")
    other = PENDULUM.replace('axis="0 1 0"', 'axis="0 0 1"').replace("hinge", "slide")
    data.columns["next_observations"] = data.columns["observations"].copy()
    data.columns["rewards"][:] = 1.0
    assert induce_body(other, data).program == ""
    with Sandbox(tools=["mujoco"]) as sandbox:
        problem = WorldModelProblem(
            "", data, sandbox, AccuracyMetric.of(data), body=Body(other, "other.xml")
        )
        completion = Induction().complete(Request((), 3, Move(GENERATE), problem))
    assert "mujoco" not in extract_program(completion.text)
