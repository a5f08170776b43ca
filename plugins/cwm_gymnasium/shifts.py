"""Shifts of Gymnasium's environments: the changes of each class.

The kinds of change come first, then the table `SHIFTED`. Numbers become 5 to 25 % larger or
smaller, with three digits. Equal numbers of an array change equally, because one line of a model
file sets them. A subclass replaces a class with hard-coded rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any
from weakref import WeakSet

import numpy as np

from cwm_cli.private_parts import private_part

Change = Callable[[Any, np.random.Generator], None]
"""A function that changes an environment, without its wrappers, in place."""

MIN_CHANGE, MAX_CHANGE = 0.05, 0.25
"""Relative change of numbers: large enough to matter, small enough to keep the task."""

DIGITS = 3
"""Significant digits of new numbers, so that they look like constants in code."""

_SHIFTED: WeakSet[Any] = WeakSet()


def is_shifted(env: Any) -> bool:
    """Return whether an environment was shifted."""
    return env.unwrapped in _SHIFTED


def combine(*changes: Change) -> Change:
    """Return a shift that applies some changes in order."""

    def change(env: Any, rng: np.random.Generator) -> None:
        for each in changes:
            each(env, rng)
        _SHIFTED.add(env)

    return change


def scale(*names: str) -> Change:
    """Return a change that makes attributes larger or smaller."""
    return _multiply(names, _factor)


def reduce(*names: str) -> Change:
    """Return a change that makes attributes smaller, so that observations stay in their space."""
    return _multiply(names, lambda rng: 1 - rng.uniform(MIN_CHANGE, MAX_CHANGE))


def _multiply(names: tuple[str, ...], factor: Callable[[np.random.Generator], float]) -> Change:
    def change(env: Any, rng: np.random.Generator) -> None:
        for name in names:
            setattr(env, name, _times(private_part(env, name), rng, factor))

    return change


def _times(
    value: Any, rng: np.random.Generator, factor: Callable[[np.random.Generator], float]
) -> Any:
    """Multiply numbers, with one factor per absolute value; zero and infinity stay."""
    array = np.asarray(value, dtype=np.float64)
    found = array.copy()
    for size in np.unique(np.abs(array[np.isfinite(array) & (array != 0)])):
        new = float(f"{size * factor(rng):.{DIGITS}g}")
        found[array == size], found[array == -size] = new, -new
    if isinstance(value, tuple | list):
        return type(value)(found.tolist())
    return found if isinstance(value, np.ndarray) else found.item()


def widen(name: str) -> Change:
    """Return a change that widens a range of positive numbers at both ends.

    It is used if episodes start near one end of the range.
    """

    def change(env: Any, rng: np.random.Generator) -> None:
        low, high = private_part(env, name)
        down, up = 1 - rng.uniform(MIN_CHANGE, MAX_CHANGE), 1 + rng.uniform(MIN_CHANGE, MAX_CHANGE)
        setattr(env, name, tuple(float(f"{n:.{DIGITS}g}") for n in (low * down, high * up)))

    return change


def choose(name: str, *values: Any) -> Change:
    """Return a change that sets an attribute to one of some values."""

    def change(env: Any, rng: np.random.Generator) -> None:
        private_part(env, name)
        setattr(env, name, values[rng.integers(len(values))])

    return change


def derive(name: str, rule: Callable[[Any], Any]) -> Change:
    """Return a change that computes an attribute from attributes changed before."""

    def change(env: Any, rng: np.random.Generator) -> None:
        private_part(env, name)
        setattr(env, name, rule(env))

    return change


def replace_class(address: str) -> Change:
    """Return a change that replaces the class of an environment by a subclass."""

    def change(env: Any, rng: np.random.Generator) -> None:
        env.__class__ = _import(address)

    return change


def redraw(address: str) -> Change:
    """Return a change by a function of another module, which is imported on first use."""
    return lambda env, rng: _import(address)(env, rng)


def _import(address: str) -> Any:
    module, _, name = address.partition(":")
    return getattr(import_module(module), name)


def shift_simulation(env: Any, rng: np.random.Generator) -> None:
    """Change the constants of a MuJoCo model, its integrator, time step and frame skip.

    All masses change by one factor, as if the density changed. Lengths stay, because observations
    contain positions of parts.
    """
    import mujoco

    model = env.model
    # arrays of a MuJoCo model that a shift changes, in addition to the friction of its surfaces
    fields = ("dof_damping", "dof_armature", "jnt_stiffness", "jnt_range", "actuator_gear")
    for name in fields:
        field = getattr(model, name)
        field[:] = _times(field, rng, _factor)
    model.geom_friction[:, 0] = _times(model.geom_friction[:, 0], rng, _factor)
    density = round(_factor(rng), 2)
    model.body_mass *= density
    model.body_inertia *= density
    model.opt.gravity[:] = _times(model.opt.gravity, rng, _factor)
    for name in ("timestep", "density", "viscosity"):
        setattr(model.opt, name, _times(getattr(model.opt, name), rng, _factor))
    # integrators of MuJoCo, except the fully implicit one, which differs too little from these
    integrators = ("mjINT_EULER", "mjINT_RK4", "mjINT_IMPLICITFAST")
    kind = integrators[rng.integers(len(integrators))]
    model.opt.integrator = getattr(mujoco.mjtIntegrator, kind)
    env.frame_skip = max(1, env.frame_skip + int(rng.integers(-1, 2)))
    env.metadata = {**env.metadata, "render_fps": round(1 / env.dt)}
    mujoco.mj_setConst(model, env.data)
    mujoco.mj_resetData(model, env.data)


def _factor(rng: np.random.Generator) -> float:
    return float(1 + rng.choice((-1, 1)) * rng.uniform(MIN_CHANGE, MAX_CHANGE))


_MUJOCO = "gymnasium.envs.mujoco"
_BODIES = "cwm_gymnasium.shifted_mujoco"
_RULES = "cwm_gymnasium.shifted_rules"
_CONTROL = "gymnasium.envs.classic_control"
_TEXT = "gymnasium.envs.toy_text"
_EFFORT = "_ctrl_cost_weight"
_WALKING = ("_forward_reward_weight", _EFFORT, "_healthy_reward")

SHIFTED: Mapping[str, Change] = {
    f"{_TEXT}.blackjack:BlackjackEnv": combine(
        replace_class(f"{_RULES}:Blackjack"),
        choose("limit", 20, 21),  # below, two cards may exceed it
        choose("margin", 2, 3, 5, 6),
        scale("win", "loss"),
    ),
    f"{_TEXT}.cliffwalking:CliffWalkingEnv": combine(
        redraw(f"{_RULES}:cliff"), redraw(f"{_RULES}:rewards")
    ),
    f"{_TEXT}.taxi:TaxiEnv": combine(redraw(f"{_RULES}:streets"), redraw(f"{_RULES}:rewards")),
    f"{_TEXT}.frozen_lake:FrozenLakeEnv": combine(
        redraw(f"{_RULES}:lake"), redraw(f"{_RULES}:rewards")
    ),
    f"{_CONTROL}.cartpole:CartPoleEnv": combine(
        scale("gravity", "masscart", "masspole", "length", "force_mag", "tau"),
        scale("theta_threshold_radians", "x_threshold"),
        derive("total_mass", lambda env: env.masspole + env.masscart),
        derive("polemass_length", lambda env: env.masspole * env.length),
        choose("kinematics_integrator", "euler", "semi-implicit euler"),
    ),
    f"{_CONTROL}.mountain_car:MountainCarEnv": combine(
        replace_class(f"{_RULES}:MountainCar"),
        scale("force", "charge"),
        reduce("gravity", "min_position", "max_speed", "goal_position"),
    ),
    f"{_CONTROL}.continuous_mountain_car:Continuous_MountainCarEnv": combine(
        scale("power"),
        reduce("min_position", "max_speed", "goal_position"),
    ),
    f"{_CONTROL}.pendulum:PendulumEnv": combine(
        replace_class(f"{_RULES}:Pendulum"),
        scale("g", "m", "l", "dt", "angle_weight", "speed_weight", "torque_weight"),
        reduce("max_torque", "max_speed"),
        choose("explicit", False, True),
    ),
    f"{_CONTROL}.acrobot:AcrobotEnv": combine(
        replace_class(f"{_RULES}:Acrobot"),
        scale("LINK_MASS_1", "LINK_MASS_2", "LINK_LENGTH_1", "LINK_COM_POS_1", "LINK_COM_POS_2"),
        scale("LINK_MOI", "AVAIL_TORQUE", "dt", "height"),
        reduce("MAX_VEL_1", "MAX_VEL_2"),
    ),
    f"{_MUJOCO}.reacher_v5:ReacherEnv": combine(
        shift_simulation, scale("_reward_dist_weight", "_reward_control_weight")
    ),
    f"{_MUJOCO}.pusher_v5:PusherEnv": combine(
        shift_simulation,
        scale("_reward_near_weight", "_reward_dist_weight", "_reward_control_weight"),
    ),
    f"{_MUJOCO}.inverted_pendulum_v5:InvertedPendulumEnv": combine(
        shift_simulation, replace_class(f"{_BODIES}:LeaningPendulum"), scale("lean")
    ),
    f"{_MUJOCO}.inverted_double_pendulum_v5:InvertedDoublePendulumEnv": combine(
        shift_simulation,
        replace_class(f"{_BODIES}:LoweredDoublePendulum"),
        reduce("lowest"),
        scale("_healthy_reward"),
    ),
    f"{_MUJOCO}.half_cheetah_v5:HalfCheetahEnv": combine(
        shift_simulation, scale("_forward_reward_weight", _EFFORT)
    ),
    f"{_MUJOCO}.hopper_v5:HopperEnv": combine(
        shift_simulation, scale(*_WALKING, "_healthy_z_range", "_healthy_angle_range")
    ),
    f"{_MUJOCO}.swimmer_v5:SwimmerEnv": combine(
        shift_simulation, scale("_forward_reward_weight", _EFFORT)
    ),
    f"{_MUJOCO}.walker2d_v5:Walker2dEnv": combine(
        shift_simulation, scale(*_WALKING, "_healthy_z_range", "_healthy_angle_range")
    ),
    f"{_MUJOCO}.ant_v5:AntEnv": combine(
        shift_simulation, scale(*_WALKING, "_contact_cost_weight"), widen("_healthy_z_range")
    ),
    f"{_MUJOCO}.humanoid_v5:HumanoidEnv": combine(
        shift_simulation, scale(*_WALKING, "_contact_cost_weight"), widen("_healthy_z_range")
    ),
    f"{_MUJOCO}.humanoidstandup_v5:HumanoidStandupEnv": combine(
        shift_simulation, scale(_EFFORT, "_impact_cost_weight")
    ),
}
"""The shift of an environment by the entry point of its class in Gymnasium's registry."""
