"""Rewards of Gymnasium's own MuJoCo environments, versions 4 and 5, for batches of simulations.

The kinds of reward come first, then the formula of each environment. Weights and ranges are read
from the instance, because a shift or a subclass may have changed them. Some are constants in the
code of version 4; the functions below repeat these constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from cwm_cli.private_parts import private_part

View = Mapping[str, np.ndarray]
"""Arrays of `MjData` with a first axis for the simulation."""

Measure = Callable[[View], np.ndarray]
Effort = Callable[[np.ndarray], np.ndarray]
StepResult = tuple[np.ndarray, np.ndarray | None]
"""Rewards, and a mask of terminated simulations; None if none can terminate."""


class Rewards(Protocol):
    """The reward formula of an environment."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The arrays of `MjData` that the formula reads."""

    @property
    def forces(self) -> bool:
        """Whether the formula reads contact forces."""

    def measure(self, view: View) -> np.ndarray:
        """Return a value per simulation, which `compute` gets before and after a step."""

    def compute(
        self, view: View, before: np.ndarray, after: np.ndarray, actions: np.ndarray
    ) -> StepResult:
        """Return the rewards of a step that led to `view`, and the terminated simulations."""


VARIANTS = "cwm_gymnasium.shifted_mujoco"
"""The module of the subclasses that turn hard-coded constants into attributes."""


@dataclass(frozen=True)
class MovingRewards:
    """Rewards for forward speed and health, minus the costs of control and contact."""

    fields: tuple[str, ...]
    measure: Measure
    seconds: float
    speed_weight: float
    effort: Effort
    contact: Measure | None = None
    healthy: Measure | None = None
    health_reward: float = 0.0
    terminates: bool = False
    always_rewarded: bool = False

    @property
    def forces(self) -> bool:
        """Whether contact forces have a cost."""
        return self.contact is not None

    def compute(
        self, view: View, before: np.ndarray, after: np.ndarray, actions: np.ndarray
    ) -> StepResult:
        """Return the rewards of a step that led to `view`, and the terminated simulations."""
        rewards = self.speed_weight * ((after - before) / self.seconds) - self.effort(actions)
        if self.contact:
            rewards = rewards - self.contact(view)
        if self.healthy is None:
            return rewards, None
        healthy = self.healthy(view)
        rewarded = True if self.always_rewarded else healthy
        return rewards + self.health_reward * rewarded, ~healthy if self.terminates else None


@dataclass(frozen=True)
class ReachingRewards:
    """Negative distances between pairs of bodies, minus the cost of control.

    If `late`, the distances are measured after the step, otherwise before it. A pair is a weight
    and the numbers of two bodies.
    """

    pairs: tuple[tuple[float, int, int], ...]
    effort: Effort
    late: bool
    fields: tuple[str, ...] = ("xpos",)
    forces: bool = False

    def measure(self, view: View) -> np.ndarray:
        """Return the weighted sum of distances."""
        positions = view["xpos"]
        distances = (
            weight * np.linalg.norm(positions[:, one] - positions[:, other], axis=-1)
            for weight, one, other in self.pairs
        )
        return np.asarray(sum(distances))

    def compute(
        self, view: View, before: np.ndarray, after: np.ndarray, actions: np.ndarray
    ) -> StepResult:
        """Return the rewards of a step that led to `view`, and the terminated simulations."""
        return -(after if self.late else before) - self.effort(actions), None


@dataclass(frozen=True)
class StandingRewards:
    """Rewards computed by `reward` from the state after a step only."""

    fields: tuple[str, ...]
    reward: Callable[[View, np.ndarray], StepResult]
    forces: bool = False

    def measure(self, view: View) -> np.ndarray:
        """Return zeros, because the formula needs no measure."""
        return np.zeros(len(view[self.fields[0]]))

    def compute(
        self, view: View, before: np.ndarray, after: np.ndarray, actions: np.ndarray
    ) -> StepResult:
        """Return the rewards of a step that led to `view`, and the terminated simulations."""
        return self.reward(view, actions)


def rewards_of(env: Any) -> Rewards | None:
    """Return the reward formula of an environment of Gymnasium or a variant in `VARIANTS`.

    Returns:
        None for other subclasses, which may have other rewards and terminations.

    Raises:
        MissingPartError: This version of Gymnasium has another name for a weight or a range.
    """
    own = (cls for cls in type(env).__mro__ if cls.__module__ != VARIANTS)
    package, _, module = next(own).__module__.rpartition(".")
    name, _, version = module.rpartition("_")
    known = package == "gymnasium.envs.mujoco" and name in _KNOWN and version in ("v4", "v5")
    return _KNOWN[name](env, version == "v5") if known else None


def _half_cheetah(env: Any, late: bool) -> Rewards:
    return MovingRewards(
        ("qpos",),
        _x,
        env.dt,
        private_part(env, "_forward_reward_weight"),
        _effort(private_part(env, "_ctrl_cost_weight")),
    )


def _alive(
    env: Any,
    late: bool,
    fields: tuple[str, ...],
    measure: Measure,
    healthy: Measure,
    contact: Measure | None = None,
) -> MovingRewards:
    """Return the reward formula of a body that has to stay healthy."""
    terminates = private_part(env, "_terminate_when_unhealthy")
    # Version 4 of Ant has no weight: it adds the velocity itself.
    has_constant_weight = type(env).__module__ == "gymnasium.envs.mujoco.ant_v4"
    return MovingRewards(
        fields,
        measure,
        env.dt,
        1.0 if has_constant_weight else private_part(env, "_forward_reward_weight"),
        _effort(private_part(env, "_ctrl_cost_weight")),
        contact,
        healthy,
        private_part(env, "_healthy_reward"),
        terminates,
        always_rewarded=terminates and not late,
    )


def _hopper(env: Any, late: bool) -> Rewards:
    least, most = private_part(env, "_healthy_state_range")
    upright = _upright(env)

    def healthy(view: View) -> np.ndarray:
        state = np.concatenate([view["qpos"][:, 2:], view["qvel"]], axis=1)
        return np.asarray(((least < state) & (state < most)).all(axis=1) & upright(view))

    return _alive(env, late, ("qpos", "qvel"), _x, healthy)


def _ant(env: Any, late: bool) -> Rewards:
    body = env.data.body(private_part(env, "_main_body") if late else "torso").id
    low, high = private_part(env, "_healthy_z_range")

    def healthy(view: View) -> np.ndarray:
        finite = np.isfinite(view["qpos"]).all(axis=1) & np.isfinite(view["qvel"]).all(axis=1)
        height = view["qpos"][:, 2]
        return np.asarray(finite & (low <= height) & (height <= high))

    def forward(view: View) -> np.ndarray:
        return view["xpos"][:, body, 0]

    fields = ("qpos", "qvel", "xpos")
    if not (late or private_part(env, "_use_contact_forces")):
        return _alive(env, late, fields, forward, healthy)
    least, most = private_part(env, "_contact_force_range")
    weight = private_part(env, "_contact_cost_weight")

    def contact(view: View) -> np.ndarray:
        forces = view["cfrc_ext"].clip(least, most)
        return np.asarray(weight * np.square(forces).sum(axis=(1, 2)))

    return _alive(env, late, (*fields, "cfrc_ext"), forward, healthy, contact)


def _humanoid(env: Any, late: bool) -> Rewards:
    masses = env.model.body_mass
    low, high = private_part(env, "_healthy_z_range")

    def centre(view: View) -> np.ndarray:
        return np.asarray(view["xipos"][:, :, 0] @ masses / masses.sum())

    def healthy(view: View) -> np.ndarray:
        height = view["qpos"][:, 2]
        return np.asarray((low < height) & (height < high))

    fields: tuple[str, ...] = ("qpos", "xipos")
    moving = _alive(env, late, fields, centre, healthy)
    moving = replace(moving, effort=_effort_of_controls(private_part(env, "_ctrl_cost_weight")))
    if not late:
        return moving
    weight = private_part(env, "_contact_cost_weight")
    least, most = private_part(env, "_contact_cost_range")

    def contact(view: View) -> np.ndarray:
        cost = weight * np.square(view["cfrc_ext"]).sum(axis=(1, 2))
        return np.asarray(cost.clip(least, most))

    return replace(moving, fields=(*fields, "cfrc_ext"), contact=contact)


def _humanoidstandup(env: Any, late: bool) -> Rewards:
    effort = _effort_of_controls(private_part(env, "_ctrl_cost_weight") if late else 0.1)
    weight = private_part(env, "_impact_cost_weight") if late else 0.5e-6
    low, high = private_part(env, "_impact_cost_range") if late else (-np.inf, 10)
    seconds = env.model.opt.timestep

    def reward(view: View, actions: np.ndarray) -> StepResult:
        impact = (weight * np.square(view["cfrc_ext"]).sum(axis=(1, 2))).clip(low, high)
        return view["qpos"][:, 2] / seconds - effort(actions) - impact + 1, None

    return StandingRewards(("qpos", "cfrc_ext"), reward, forces=True)


def _inverted_pendulum(env: Any, late: bool) -> Rewards:
    lean = getattr(env, "lean", 0.2)

    def reward(view: View, actions: np.ndarray) -> StepResult:
        finite = np.isfinite(view["qpos"]).all(axis=1) & np.isfinite(view["qvel"]).all(axis=1)
        upright = finite & ~(np.abs(view["qpos"][:, 1]) > lean)
        return np.where(upright, 1.0, 0.0 if late else 1.0), ~upright

    return StandingRewards(("qpos", "qvel"), reward)


def _inverted_double_pendulum(env: Any, late: bool) -> Rewards:
    bonus = private_part(env, "_healthy_reward") if late else 10.0
    lowest = getattr(env, "lowest", 1.0)

    def reward(view: View, actions: np.ndarray) -> StepResult:
        x, y = view["site_xpos"][:, 0, 0], view["site_xpos"][:, 0, 2]
        terminated = y <= lowest
        distance = 0.01 * x**2 + (y - 2) ** 2
        speed = 1e-3 * view["qvel"][:, 1] ** 2 + 5e-3 * view["qvel"][:, 2] ** 2
        return bonus * (~terminated if late else 1.0) - distance - speed, terminated

    return StandingRewards(("site_xpos", "qvel"), reward)


def _reacher(env: Any, late: bool) -> Rewards:
    weight = private_part(env, "_reward_dist_weight") if late else 1.0
    effort = _effort(private_part(env, "_reward_control_weight") if late else 1.0)
    return ReachingRewards((_pair(env, weight, "fingertip", "target"),), effort, late)


def _pusher(env: Any, late: bool) -> Rewards:
    near = private_part(env, "_reward_near_weight") if late else 0.5
    goal = private_part(env, "_reward_dist_weight") if late else 1.0
    effort = _effort(private_part(env, "_reward_control_weight") if late else 0.1)
    pairs = (_pair(env, near, "object", "tips_arm"), _pair(env, goal, "object", "goal"))
    return ReachingRewards(pairs, effort, late)


def _x(view: View) -> np.ndarray:
    return view["qpos"][:, 0]


def _upright(env: Any) -> Measure:
    """Return a measure that checks whether height and angle are in their healthy ranges."""
    (lowest, highest), (least, most) = (
        private_part(env, "_healthy_z_range"),
        private_part(env, "_healthy_angle_range"),
    )

    def upright(view: View) -> np.ndarray:
        height, angle = view["qpos"][:, 1], view["qpos"][:, 2]
        inside = (lowest < height) & (height < highest) & (least < angle) & (angle < most)
        return np.asarray(inside)

    return upright


def _effort(weight: float) -> Effort:
    """Return the control cost of actions, in the precision of the actions."""
    return lambda actions: weight * np.square(actions).sum(axis=1)


def _effort_of_controls(weight: float) -> Effort:
    """Return the control cost of MuJoCo's controls, which have double precision."""
    return lambda actions: weight * np.square(actions.astype(float)).sum(axis=1)


def _pair(env: Any, weight: float, one: str, other: str) -> tuple[float, int, int]:
    return weight, env.data.body(one).id, env.data.body(other).id


_KNOWN: Mapping[str, Callable[[Any, bool], Rewards]] = {
    "ant": _ant,
    "half_cheetah": _half_cheetah,
    "hopper": _hopper,
    "humanoid": _humanoid,
    "humanoidstandup": _humanoidstandup,
    "inverted_double_pendulum": _inverted_double_pendulum,
    "inverted_pendulum": _inverted_pendulum,
    "pusher": _pusher,
    "reacher": _reacher,
    "swimmer": _half_cheetah,
    "walker2d": lambda env, late: _alive(env, late, ("qpos",), _x, _upright(env)),
}
