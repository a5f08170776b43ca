"""A body in MuJoCo, simulated from recorded observations.

A `StateLayout` gives the components of the observation that are positions and velocities of joints.
`BodySimulation` simulates recorded steps from these states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.continuous.samples import Array

TOLERANCE = 1e-5
"""Absolute and relative tolerance of a right prediction, as in the metric."""

INTEGRATORS = ("Euler", "RK4", "implicit", "implicitfast")
"""Names of the integrators of MuJoCo."""

FIELDS = ("qpos", "qvel", "xpos", "xipos", "site_xpos", "qfrc_constraint")
"""Arrays of `MjData` to keep by default."""

FORCE_FIELDS = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
"""Larger arrays of `MjData`, kept if they are needed; `mj_rnePostConstraint` computes them."""


class PositionSource(NamedTuple):
    """Components of the observation that give a position: a number, or sine and cosine."""

    first: int
    cosine: int | None = None

    def read(self, observations: Array) -> Array:
        """Return the positions in observations (rows, components)."""
        if self.cosine is None:
            return np.asarray(observations[:, self.first])
        angles: Array = np.arctan2(observations[:, self.first], observations[:, self.cosine])
        return angles


@dataclass(frozen=True)
class StateLayout:
    """Sources of the positions in `qpos` and components of the velocities in `qvel`.

    A hidden position keeps its default value, a hidden velocity is zero.
    """

    positions: tuple[PositionSource | None, ...]
    velocities: tuple[int | None, ...]

    @property
    def used(self) -> list[int]:
        """The components of the observation that the state is set from."""
        found = [part for source in self.positions if source for part in source if part is not None]
        return found + self.speeds

    @property
    def speeds(self) -> list[int]:
        """The components of the visible velocities."""
        return [component for component in self.velocities if component is not None]

    def states(self, observations: Array, defaults: Array) -> tuple[Array, Array]:
        """Return positions and velocities; hidden positions have the values of `defaults`."""
        positions = np.tile(defaults, (len(observations), 1))
        for index, source in enumerate(self.positions):
            if source is not None:
                positions[:, index] = source.read(observations)
        velocities = np.zeros((len(observations), len(self.velocities)))
        for index, component in enumerate(self.velocities):
            if component is not None:
                velocities[:, index] = observations[:, component]
        return positions, velocities

    def expected(self, positions: Array, velocities: Array, size: int) -> Array:
        """Return the components that the state determines; other components are NaN."""
        seen = np.full((len(positions), size), np.nan)
        for index, source in enumerate(self.positions):
            if source is not None and source.cosine is not None:
                seen[:, source.first] = np.sin(positions[:, index])
                seen[:, source.cosine] = np.cos(positions[:, index])
            elif source is not None:
                seen[:, source.first] = positions[:, index]
        for index, component in enumerate(self.velocities):
            if component is not None:
                seen[:, component] = velocities[:, index]
        return seen


@dataclass(frozen=True)
class StepRows:
    """Recorded steps as matrices, with the bound of each clipped component (infinity if none)."""

    observations: Array
    actions: Array
    rewards: Array
    after: Array
    ends: Array
    follows: Array
    """Mask of the rows that continue the row before them."""
    bounds: Array

    @classmethod
    def of(cls, data: Dataset) -> StepRows:
        """Return the transitions of a dataset."""
        columns = data.columns
        seen, after = columns["observations"], columns["next_observations"]
        episodes, last = columns["episodes"], columns["truncations"] | columns["terminations"]
        follows = np.zeros(len(seen), bool)
        follows[1:] = (seen[1:] == after[:-1]).all(axis=1) & ~last[:-1]
        follows[1:] &= episodes[1:] == episodes[:-1]
        return cls(
            seen.astype(float),
            columns["actions"].reshape(len(seen), -1).astype(float),
            columns["rewards"].astype(float),
            after.astype(float),
            columns["terminations"].astype(bool),
            follows,
            _clip_bounds(after.astype(float)),
        )

    def __len__(self) -> int:
        return len(self.observations)

    def __getitem__(self, rows: Array) -> StepRows:
        names = ("observations", "actions", "rewards", "after", "ends", "follows")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def with_shared_bound(self, components: Sequence[int]) -> StepRows:
        """Return the rows with one bound for some components: their smallest bound.

        The components have no bound if a value is beyond this bound.
        """
        chosen, bounds = list(components), self.bounds.copy()
        bound = bounds[chosen].min(initial=math.inf)
        bounds[chosen] = bound if (np.abs(self.after[:, chosen]) <= bound).all() else math.inf
        return replace(self, bounds=bounds)

    def is_right(self, predicted: Array, components: Sequence[int]) -> Array:
        """Return where predictions (rows, components) of components are right after clipping."""
        chosen = list(components)
        bounds = self.bounds[chosen]
        return is_right(np.clip(predicted, -bounds, bounds), self.after[:, chosen])


def _clip_bounds(values: Array) -> Array:
    """Return the bound of each clipped component of values (rows, components), else infinity.

    A component is clipped if its largest absolute value occurs at least three times and other
    values occur, too.
    """
    size = np.abs(values)
    most = size.max(axis=0)
    at_most = size == most
    is_clipped = (at_most.sum(axis=0) >= 3) & (at_most.mean(axis=0) < 0.9) & (most >= 1)
    return np.where(is_clipped & (most == np.round(most, 6)), most, math.inf)


def is_right(predicted: Array, recorded: Array) -> Array:
    """Return where predictions are right within the tolerance."""
    return np.asarray(np.abs(predicted - recorded) <= TOLERANCE + TOLERANCE * np.abs(recorded))


class ScalarJoint(NamedTuple):
    """Index in `qpos`, index in `qvel` and direction of a slide, which is zero for a hinge."""

    position: int
    velocity: int
    direction: Array


class Timing(NamedTuple):
    """The number of simulation steps per action, and the name of the integrator."""

    frame_skip: int
    integrator: str


@dataclass(frozen=True)
class SimulatedSteps:
    """Arrays of `MjData` before and after the steps of rows, each with a first axis for the row."""

    before: dict[str, Array]
    after: dict[str, Array]

    def __getitem__(self, rows: Array) -> SimulatedSteps:
        before, after = (
            {name: array[rows] for name, array in arrays.items()}
            for arrays in (self.before, self.after)
        )
        return SimulatedSteps(before, after)


class BodySimulation:
    """A compiled body, and its joints.

    Args:
        xml: The text of the MJCF file.
    """

    def __init__(self, xml: str) -> None:
        import mujoco

        self.xml = xml
        self._mujoco: Any = mujoco
        self.model: Any = mujoco.MjModel.from_xml_string(xml)
        self.data: Any = mujoco.MjData(self.model)
        mujoco.mj_forward(self.model, self.data)
        chosen = int(self.model.opt.integrator)
        self.integrator = next(name for name in INTEGRATORS if self._kind_of(name) == chosen)

    def _kind_of(self, integrator: str) -> int:
        return int(getattr(self._mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}"))

    @cached_property
    def scalar_joints(self) -> list[ScalarJoint]:
        """The hinges and slides; a free joint counts as three slides."""
        model, kinds, found = self.model, self._mujoco.mjtJoint, list[ScalarJoint]()
        for joint in range(model.njnt):
            kind = int(model.jnt_type[joint])
            position, velocity = int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
            if kind == int(kinds.mjJNT_HINGE):
                found.append(ScalarJoint(position, velocity, np.zeros(3)))
            elif kind == int(kinds.mjJNT_SLIDE):
                found.append(ScalarJoint(position, velocity, model.jnt_axis[joint].copy()))
            elif kind == int(kinds.mjJNT_FREE):
                found += [ScalarJoint(position + i, velocity + i, np.eye(3)[i]) for i in range(3)]
        return found

    def simulate(
        self,
        layout: StateLayout,
        rows: StepRows,
        timing: Timing,
        fields: Sequence[str] = FIELDS,
        *,
        remembers: bool = False,
    ) -> SimulatedSteps:
        """Simulate one step of the environment from each row.

        Args:
            layout: The state in the observations.
            rows: The recorded steps.
            timing: Frame skip and integrator.
            fields: Names of the arrays to keep.
            remembers: Whether a row that follows another one continues its simulation.
        """
        mujoco, model, data = self._mujoco, self.model, self.data
        forces, own = bool(set(fields) & set(FORCE_FIELDS)), model.opt.integrator
        model.opt.integrator = self._kind_of(timing.integrator)
        before, after = (
            {name: np.empty((len(rows), *getattr(data, name).shape)) for name in fields}
            for _ in range(2)
        )
        positions, velocities = layout.states(rows.observations, model.qpos0)
        for row, states in enumerate(zip(positions, velocities, strict=True)):
            if remembers:
                self._continue(layout, rows, row, *states)
            else:
                data.qpos[:], data.qvel[:] = states
                data.qacc_warmstart[:] = 0.0
                mujoco.mj_kinematics(model, data)
            for name, array in before.items():
                array[row] = getattr(data, name)
            data.ctrl[:] = rows.actions[row]
            mujoco.mj_step(model, data, timing.frame_skip)
            if forces:
                mujoco.mj_rnePostConstraint(model, data)
            for name, array in after.items():
                array[row] = getattr(data, name)
        model.opt.integrator = own
        return SimulatedSteps(before, after)

    def _continue(
        self, layout: StateLayout, rows: StepRows, row: int, positions: Array, speeds: Array
    ) -> None:
        """Set the visible part of the state as a program does in `correct` or in `reset`."""
        mujoco, model, data = self._mujoco, self.model, self.data
        if not rows.follows[row]:
            mujoco.mj_resetData(model, data)
        for index, source in enumerate(layout.positions):
            if source is not None and source.cosine is not None:
                turn = positions[index] - data.qpos[index]  # sine and cosine do not show full turns
                data.qpos[index] += np.remainder(turn + np.pi, 2 * np.pi) - np.pi
            elif source is not None:
                data.qpos[index] = positions[index]
        bounds = [math.inf if c is None else rows.bounds[c] for c in layout.velocities]
        limits = np.array(bounds)
        is_beyond = (np.abs(speeds) >= limits) & (data.qvel * speeds >= limits**2)
        data.qvel[:] = np.where(is_beyond, data.qvel, speeds)
        if not rows.follows[row]:
            mujoco.mj_forward(model, data)
