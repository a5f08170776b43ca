"""How environments of Gymnasium are shifted: what of each class is drawn anew, and in what way.

The kinds of change come first, then the table. Numbers become 5 to 25 % larger or smaller, equal
ones of a kind alike, as one line of a model's file would have it, and have three digits. A rule
that is written into the code of a class is changed by a class that takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any
from weakref import WeakSet

import numpy as np

from cwm_cli.private_parts import private_part

Change = Callable[[Any, np.random.Generator], None]
"""Changes an environment, without its wrappers, in place."""

LEAST, MOST = 0.05, 0.25
"""By what share numbers change: enough to matter, not so much that a task loses its sense."""

DIGITS = 3
"""Digits of a number that was drawn: those that a person would have written down."""

_SHIFTED: WeakSet[Any] = WeakSet()


def is_shifted(env: Any) -> bool:
    """Whether an environment was shifted."""
    return env.unwrapped in _SHIFTED


def shifting(*changes: Change) -> Change:
    """Make some changes, one after the other."""

    def change(env: Any, rng: np.random.Generator) -> None:
        for each in changes:
            each(env, rng)
        _SHIFTED.add(env)

    return change


def scaled(*names: str) -> Change:
    """Make numbers larger or smaller."""
    return _drawn(names, _factor)


def smaller(*names: str) -> Change:
    """Make numbers smaller: bounds, so that the spaces still hold what is observed."""
    return _drawn(names, lambda rng: 1 - rng.uniform(LEAST, MOST))


def _drawn(names: tuple[str, ...], factor: Callable[[np.random.Generator], float]) -> Change:
    def change(env: Any, rng: np.random.Generator) -> None:
        for name in names:
            setattr(env, name, _times(private_part(env, name), rng, factor))

    return change


def _times(
    value: Any, rng: np.random.Generator, factor: Callable[[np.random.Generator], float]
) -> Any:
    """Return numbers times a factor for each size that occurs; zero and infinity stay."""
    array = np.asarray(value, dtype=np.float64)
    found = array.copy()
    for size in np.unique(np.abs(array[np.isfinite(array) & (array != 0)])):
        new = float(f"{size * factor(rng):.{DIGITS}g}")
        found[array == size], found[array == -size] = new, -new
    if isinstance(value, tuple | list):
        return type(value)(found.tolist())
    return found if isinstance(value, np.ndarray) else found.item()


def wider(name: str) -> Change:
    """Make a range of positive numbers wider at both ends, for what starts near one of them."""

    def change(env: Any, rng: np.random.Generator) -> None:
        low, high = private_part(env, name)
        down, up = 1 - rng.uniform(LEAST, MOST), 1 + rng.uniform(LEAST, MOST)
        setattr(env, name, tuple(float(f"{n:.{DIGITS}g}") for n in (low * down, high * up)))

    return change


def chosen(name: str, *values: Any) -> Change:
    """Choose one of some values."""

    def change(env: Any, rng: np.random.Generator) -> None:
        private_part(env, name)
        setattr(env, name, values[rng.integers(len(values))])

    return change


def following(name: str, rule: Callable[[Any], Any]) -> Change:
    """Let a number follow from others that were changed."""

    def change(env: Any, rng: np.random.Generator) -> None:
        private_part(env, name)
        setattr(env, name, rule(env))

    return change


def becoming(address: str) -> Change:
    """Let a class of another module, made for it, take the place of that of the environment."""

    def change(env: Any, rng: np.random.Generator) -> None:
        env.__class__ = _found(address)

    return change


def drawing(address: str) -> Change:
    """Let a function of another module, imported when it is needed, draw what is no number."""
    return lambda env, rng: _found(address)(env, rng)


def _found(address: str) -> Any:
    module, _, name = address.partition(":")
    return getattr(import_module(module), name)


INTEGRATORS = ("mjINT_EULER", "mjINT_RK4", "mjINT_IMPLICITFAST")
"""The integrators of MuJoCo; the fourth, fully implicit one differs too little to be told apart."""

FIELDS = ("dof_damping", "dof_armature", "jnt_stiffness", "jnt_range", "actuator_gear")
"""Arrays of a MuJoCo model that are drawn anew, with the friction of its surfaces."""


def simulation(env: Any, rng: np.random.Generator) -> None:
    """Draw the constants of a MuJoCo model, its integrator, time step and frame skip.

    All masses change alike, as the density of what bodies are made of does. Lengths stay: what is
    seen of an environment says where its parts are.
    """
    import mujoco

    model = env.model
    for name in FIELDS:
        field = getattr(model, name)
        field[:] = _times(field, rng, _factor)
    model.geom_friction[:, 0] = _times(model.geom_friction[:, 0], rng, _factor)
    density = round(_factor(rng), 2)
    model.body_mass *= density
    model.body_inertia *= density
    model.opt.gravity[:] = _times(model.opt.gravity, rng, _factor)
    for name in ("timestep", "density", "viscosity"):
        setattr(model.opt, name, _times(getattr(model.opt, name), rng, _factor))
    kind = INTEGRATORS[rng.integers(len(INTEGRATORS))]
    model.opt.integrator = getattr(mujoco.mjtIntegrator, kind)
    env.frame_skip = max(1, env.frame_skip + int(rng.integers(-1, 2)))
    env.metadata = {**env.metadata, "render_fps": round(1 / env.dt)}
    mujoco.mj_setConst(model, env.data)
    mujoco.mj_resetData(model, env.data)


def _factor(rng: np.random.Generator) -> float:
    return float(1 + rng.choice((-1, 1)) * rng.uniform(LEAST, MOST))


_MUJOCO = "gymnasium.envs.mujoco"
_BODIES = "cwm_gymnasium.shifted_mujoco"
_RULES = "cwm_gymnasium.shifted_rules"
_CONTROL = "gymnasium.envs.classic_control"
_TEXT = "gymnasium.envs.toy_text"
_EFFORT = "_ctrl_cost_weight"
_WALKING = ("_forward_reward_weight", _EFFORT, "_healthy_reward")

SHIFTED: Mapping[str, Change] = {
    f"{_TEXT}.blackjack:BlackjackEnv": shifting(
        becoming(f"{_RULES}:Blackjack"),
        chosen("limit", 20, 21),  # below, two cards may exceed it
        chosen("margin", 2, 3, 5, 6),
        scaled("win", "loss"),
    ),
    f"{_TEXT}.cliffwalking:CliffWalkingEnv": shifting(
        drawing(f"{_RULES}:cliff"), drawing(f"{_RULES}:rewards")
    ),
    f"{_TEXT}.taxi:TaxiEnv": shifting(drawing(f"{_RULES}:streets"), drawing(f"{_RULES}:rewards")),
    f"{_TEXT}.frozen_lake:FrozenLakeEnv": shifting(
        drawing(f"{_RULES}:lake"), drawing(f"{_RULES}:rewards")
    ),
    f"{_CONTROL}.cartpole:CartPoleEnv": shifting(
        scaled("gravity", "masscart", "masspole", "length", "force_mag", "tau"),
        scaled("theta_threshold_radians", "x_threshold"),
        following("total_mass", lambda env: env.masspole + env.masscart),
        following("polemass_length", lambda env: env.masspole * env.length),
        chosen("kinematics_integrator", "euler", "semi-implicit euler"),
    ),
    f"{_CONTROL}.mountain_car:MountainCarEnv": shifting(
        becoming(f"{_RULES}:MountainCar"),
        scaled("force", "charge"),
        smaller("gravity", "min_position", "max_speed", "goal_position"),
    ),
    f"{_CONTROL}.continuous_mountain_car:Continuous_MountainCarEnv": shifting(
        scaled("power"),
        smaller("min_position", "max_speed", "goal_position"),
    ),
    f"{_CONTROL}.pendulum:PendulumEnv": shifting(
        becoming(f"{_RULES}:Pendulum"),
        scaled("g", "m", "l", "dt", "angle_weight", "speed_weight", "torque_weight"),
        smaller("max_torque", "max_speed"),
        chosen("explicit", False, True),
    ),
    f"{_CONTROL}.acrobot:AcrobotEnv": shifting(
        becoming(f"{_RULES}:Acrobot"),
        scaled("LINK_MASS_1", "LINK_MASS_2", "LINK_LENGTH_1", "LINK_COM_POS_1", "LINK_COM_POS_2"),
        scaled("LINK_MOI", "AVAIL_TORQUE", "dt", "height"),
        smaller("MAX_VEL_1", "MAX_VEL_2"),
    ),
    f"{_MUJOCO}.reacher_v5:ReacherEnv": shifting(
        simulation, scaled("_reward_dist_weight", "_reward_control_weight")
    ),
    f"{_MUJOCO}.pusher_v5:PusherEnv": shifting(
        simulation,
        scaled("_reward_near_weight", "_reward_dist_weight", "_reward_control_weight"),
    ),
    f"{_MUJOCO}.inverted_pendulum_v5:InvertedPendulumEnv": shifting(
        simulation, becoming(f"{_BODIES}:LeaningPendulum"), scaled("lean")
    ),
    f"{_MUJOCO}.inverted_double_pendulum_v5:InvertedDoublePendulumEnv": shifting(
        simulation,
        becoming(f"{_BODIES}:LoweredDoublePendulum"),
        smaller("lowest"),
        scaled("_healthy_reward"),
    ),
    f"{_MUJOCO}.half_cheetah_v5:HalfCheetahEnv": shifting(
        simulation, scaled("_forward_reward_weight", _EFFORT)
    ),
    f"{_MUJOCO}.hopper_v5:HopperEnv": shifting(
        simulation, scaled(*_WALKING, "_healthy_z_range", "_healthy_angle_range")
    ),
    f"{_MUJOCO}.swimmer_v5:SwimmerEnv": shifting(
        simulation, scaled("_forward_reward_weight", _EFFORT)
    ),
    f"{_MUJOCO}.walker2d_v5:Walker2dEnv": shifting(
        simulation, scaled(*_WALKING, "_healthy_z_range", "_healthy_angle_range")
    ),
    f"{_MUJOCO}.ant_v5:AntEnv": shifting(
        simulation, scaled(*_WALKING, "_contact_cost_weight"), wider("_healthy_z_range")
    ),
    f"{_MUJOCO}.humanoid_v5:HumanoidEnv": shifting(
        simulation, scaled(*_WALKING, "_contact_cost_weight"), wider("_healthy_z_range")
    ),
    f"{_MUJOCO}.humanoidstandup_v5:HumanoidStandupEnv": shifting(
        simulation, scaled(_EFFORT, "_impact_cost_weight")
    ),
}
"""What of an environment changes, by the entry point under which Gymnasium registers its class."""
