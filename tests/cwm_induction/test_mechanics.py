"""Mechanisms fitted to observations: an arm of two links, with a tip and a limit."""

import gymnasium
import numpy as np
import pytest

from cwm_cli.envs.spec import space_of
from cwm_induction.continuous.dynamics import Explainer, Hypothesis
from cwm_induction.continuous.inducing import SystemFindings, write
from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.continuous.variables import inputs_of, latents
from cwm_induction.effort import Effort
from cwm_induction.mechanics.fitting import fit, start
from cwm_induction.mechanics.kinematics import Kinematics
from cwm_induction.mechanics.mechanism import Limit, Mechanism, Parameter, Scheme, Stepping
from cwm_induction.mechanics.motion import Motion, joints_of
from cwm_induction.rewards import reward_of
from cwm_induction.rules import ThresholdRule

TIME = 0.05
ARM = Mechanism(2, (0, 1), 2)
WAVE_OF_1, WAVE_OF_0, WAVE_OF_SUM = 1, 3, 4
NUMBERS = {
    Parameter("mass", (0, 0, 0)): 1.0,
    Parameter("mass", (WAVE_OF_1, 0, 0)): 0.4,
    Parameter("mass", (0, 0, 1)): 0.3,
    Parameter("mass", (WAVE_OF_1, 0, 1)): 0.2,
    Parameter("mass", (0, 1, 1)): 0.3,
    Parameter("potential", (WAVE_OF_0,)): -6.0,
    Parameter("potential", (WAVE_OF_SUM,)): -2.0,
    Parameter("damping", (0,)): 0.1,
    Parameter("damping", (1,)): 0.1,
    Parameter("push", (0, 0)): 2.5,
    Parameter("push", (1, 1)): 1.5,
}
POINT = np.array([NUMBERS.get(parameter, 0.0) for parameter in ARM.parameters])
LIMIT = Limit(1, 2.5, 700.0, 50.0, 3.0)


def arm(rows=200, limits=(), seed=0):
    """Record steps of the arm: its angles, its speeds, where its tip is; costs of speed."""
    rng = np.random.default_rng(seed)
    q = rng.uniform((-3, -2.6), (3, 2.6), (rows, 2))
    v, u = rng.normal(0, 3, (rows, 2)), rng.uniform(-1, 1, (rows, 2))
    stepping = Stepping(TIME, Scheme("runge-kutta", 2), limits)
    moved = ARM.step(POINT[None], q, v, u, stepping)
    after, speed, stage = (part[0] for part in moved)
    space = space_of(gymnasium.spaces.Box(-1, 1, (2,)))
    return Samples(
        before=np.column_stack([np.cos(q), np.sin(q), v, tip(q)]),
        after=np.column_stack([np.cos(after), np.sin(after), speed, tip(stage)]),
        actions=u,
        rewards=-(tip(stage) ** 2).sum(1) - 0.1 * (speed**2).sum(1),
        terminated=np.zeros(rows, bool),
        learn=np.arange(rows) % 5 > 0,
        low=np.full(8, -np.inf),
        high=np.full(8, np.inf),
        grain=1e-16,
        shape=(8,),
        action_space=space,
    )


def tip(q):
    """Return where the links end, of lengths 0.5 and 0.7."""
    ends = np.cumsum(q, 1)
    return np.column_stack([np.cos(ends) @ (0.5, 0.7), np.sin(ends) @ (0.5, 0.7)])


def mechanism_of(samples):
    """Fit a mechanism to the detected joints."""
    joints, time = joints_of(samples, latents(samples).variables)
    effort = Effort(1000, 60).share(1)
    motion = Motion.of(joints, inputs_of(samples), time)
    return fit(samples, joints, inputs_of(samples), motion, np.random.default_rng(0), effort)


@pytest.fixture(scope="module")
def found_arm():
    """The mechanism of the plain arm."""
    return mechanism_of(arm())


def test_masses_and_forces_follow_from_momenta_although_some_rows_obey_other_laws():
    samples = arm()
    samples.after[::10, 4:6] += 5.0
    joints, time = joints_of(samples, latents(samples).variables)
    motion = Motion.of(joints, inputs_of(samples), time)
    begin = start(ARM, motion, motion, np.random.default_rng(0))
    assert np.abs(begin.point - POINT).max() < 0.05


@pytest.mark.parametrize(("parts", "time"), [(1, 0.0232), (2, 0.0123), (3, 0.0168)])
def test_the_time_of_a_step_has_the_digits_that_it_takes(parts, time):
    samples = arm()
    stepping = Stepping(time, Scheme("semi-implicit", parts), ())
    q, v = samples.before[:, :2], samples.before[:, 4:6]
    q = np.arctan2(samples.before[:, 2:4], q)
    after, speed, _ = (part[0] for part in ARM.step(POINT[None], q, v, samples.actions, stepping))
    samples.after[:, :6] = np.column_stack([np.cos(after), np.sin(after), speed])
    assert joints_of(samples, latents(samples).variables)[1] == time


def test_fitting_through_the_integrator_finds_the_very_numbers_and_no_limit(found_arm):
    assert found_arm.right == 1.0
    assert (found_arm.stepping.time, found_arm.stepping.limits) == (TIME, ())
    assert found_arm.point == pytest.approx(POINT, abs=1e-5)


def test_a_limit_that_pushes_back_is_found_with_its_spring():
    found = mechanism_of(arm(400, limits=(LIMIT,)))
    assert found.right == 1.0
    assert found.stepping.limits[0] == pytest.approx(LIMIT, rel=1e-3)


def test_noise_is_no_mechanism():
    samples = arm()
    samples.after[:, 4:6] = np.random.default_rng(1).normal(0, 3, (200, 2))
    assert mechanism_of(samples) is None


def test_a_tip_is_the_place_at_the_last_evaluation(found_arm):
    samples = arm()
    kinematics = Kinematics.of(found_arm)
    variable = next(v for v in latents(samples).variables if v.name == "x6")
    formula = kinematics.component(samples, variable, [], Effort(1000, 60).share(1))
    text = formula.text(variable.name)
    assert text == "0.5 * np.cos(stage[0]) + 0.7 * np.cos(stage[0] + stage[1])"


def test_two_targets_determine_the_place_of_a_tip_relative_to_a_target(found_arm):
    samples = arm()
    kinematics = Kinematics.of(found_arm)
    targets = np.array([[0.11, -0.04], [-0.06, 0.15]])[np.arange(len(samples)) // 100]
    for part in (samples.before, samples.after):
        part[:, 7] -= targets[:, 1]
    variable = next(v for v in latents(samples).variables if v.name == "x7")
    columns = [NamedColumn(f"target_{axis}", targets[:, n]) for n, axis in enumerate("xy")]
    formula = kinematics.component(samples, variable, columns, Effort(1000, 60).share(1))
    text = formula.text(variable.name)
    assert text == "-target_y + 0.5 * np.sin(stage[0]) + 0.7 * np.sin(stage[0] + stage[1])"


def test_a_cost_of_places_and_speeds_is_found(found_arm):
    samples = arm()
    variables = latents(samples).variables
    kinematics = Kinematics.of(found_arm)
    effort = Effort(1000, 60).share(1)
    worth = reward_of(samples, variables, inputs_of(samples), effort, kinematics=kinematics)
    assert worth.right == 1.0


@pytest.mark.slow
def test_the_program_of_an_arm_with_a_limit_steps_as_the_arm_does():
    samples = arm(400, limits=(LIMIT,))
    behind, effort = latents(samples), Effort(4000, 60)
    explainer = Explainer(samples, behind.variables, Hypothesis(), np.random.default_rng(0), effort)
    dynamics = explainer.explain()
    given = (samples, behind.variables, inputs_of(samples), effort.share(1))
    worth = reward_of(*given, kinematics=dynamics.kinematics)
    namespace = {}
    program = write(SystemFindings(samples, behind, dynamics, ThresholdRule(), worth, False))
    exec(program, namespace)
    world = namespace["Environment"]()
    fresh = arm(50, limits=(LIMIT,), seed=1)
    for before, after, action, paid in zip(
        fresh.before, fresh.after, fresh.actions, fresh.rewards, strict=True
    ):
        world.set_state(before)
        observation, worth, _ = world.step(action)
        assert observation == pytest.approx(after, abs=1e-4)
        assert worth == pytest.approx(paid, abs=1e-3)
