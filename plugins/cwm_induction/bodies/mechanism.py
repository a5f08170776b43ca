"""A body in MuJoCo: it simulates recorded steps and keeps the arrays that programs may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray

INTEGRATORS = ("Euler", "RK4", "implicit", "implicitfast")
"""Names of the integrators of MuJoCo."""

FIELDS = ("qpos", "qvel", "xpos", "xipos", "site_xpos", "qfrc_constraint")
"""Arrays of `MjData` to keep by default."""

FORCE_FIELDS = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
"""Larger arrays of `MjData`, kept if they are needed; `mj_rnePostConstraint` computes them."""


@dataclass(frozen=True)
class Timing:
    """The number of simulation steps per action, and the name of the integrator."""

    frame_skip: int
    integrator: str


@dataclass(frozen=True)
class StartStates:
    """States to simulate from.

    Attributes:
        positions: Values of `qpos`, of shape (rows, nq).
        velocities: Values of `qvel`, of shape (rows, nv).
        shown: Mask of the positions that an observation shows, of shape (nq,).
        limits: Bounds of the shown velocities, of shape (nv,), infinity without a bound.
        angles: Mask of the positions that are shown up to full turns, of shape (nq,).
        follows: Mask of the rows that continue the simulation of the row before; None if each row
            is simulated alone.
    """

    positions: Array
    velocities: Array
    shown: Array
    limits: Array
    angles: Array
    follows: Array | None = None


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

    @cached_property
    def integrator(self) -> str:
        """The name of the integrator in the file."""
        chosen = int(self.model.opt.integrator)
        return next(name for name in INTEGRATORS if self._kind_of(name) == chosen)

    def _kind_of(self, integrator: str) -> int:
        return int(getattr(self._mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}"))

    @cached_property
    def scalar_joints(self) -> list[tuple[int, int, bool]]:
        """Index in `qpos`, index in `qvel` and whether it is a hinge, of slides and hinges.

        A free joint counts as three slides.
        """
        model, kinds, found = self.model, self._mujoco.mjtJoint, list[tuple[int, int, bool]]()
        for joint in range(model.njnt):
            kind = int(model.jnt_type[joint])
            position, velocity = int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
            if kind in (int(kinds.mjJNT_HINGE), int(kinds.mjJNT_SLIDE)):
                found.append((position, velocity, kind == int(kinds.mjJNT_HINGE)))
            elif kind == int(kinds.mjJNT_FREE):
                found += [(position + axis, velocity + axis, False) for axis in range(3)]
        return found

    @cached_property
    def bodies(self) -> list[str]:
        """Names of the bodies, "" for unnamed ones. The first body is the fixed one."""
        return [self.model.body(i).name for i in range(self.model.nbody)]

    @cached_property
    def sites(self) -> list[str]:
        """Names of the sites, "" for unnamed ones."""
        return [self.model.site(i).name for i in range(self.model.nsite)]

    def simulate(
        self, starts: StartStates, actions: Array, timing: Timing, fields: Sequence[str] = FIELDS
    ) -> SimulatedSteps:
        """Simulate one step of the environment from each row.

        Args:
            starts: The states to start from.
            actions: Values of `ctrl`, of shape (rows, nu).
            timing: Frame skip and integrator.
            fields: Names of the arrays to keep.
        """
        mujoco, model, data = self._mujoco, self.model, self.data
        forces, own = bool(set(fields) & set(FORCE_FIELDS)), model.opt.integrator
        model.opt.integrator = self._kind_of(timing.integrator)
        shapes = {name: (len(actions), *getattr(data, name).shape) for name in fields}
        before = {name: np.empty(shape) for name, shape in shapes.items()}
        after = {name: np.empty(shape) for name, shape in shapes.items()}
        for row in range(len(actions)):
            self._set_state(starts, row)
            for name, array in before.items():
                array[row] = getattr(data, name)
            data.ctrl[:] = actions[row]
            mujoco.mj_step(model, data, timing.frame_skip)
            if forces:
                mujoco.mj_rnePostConstraint(model, data)
            for name, array in after.items():
                array[row] = getattr(data, name)
        model.opt.integrator = own
        return SimulatedSteps(before, after)

    def _set_state(self, starts: StartStates, row: int) -> None:
        """Set the state of a row as a program does: in `correct`, in `reset` or in `set_state`."""
        mujoco, model, data = self._mujoco, self.model, self.data
        if starts.follows is None:
            data.qpos[:], data.qvel[:] = starts.positions[row], starts.velocities[row]
            data.qacc_warmstart[:] = 0.0
            mujoco.mj_kinematics(model, data)
            return
        follows, seen = bool(starts.follows[row]), starts.velocities[row]
        if not follows:
            mujoco.mj_resetData(model, data)
        hidden = (np.abs(seen) >= starts.limits) & (data.qvel * seen >= starts.limits**2)
        positions = np.where(starts.shown, starts.positions[row], data.qpos)
        turn = np.remainder(positions - data.qpos + np.pi, 2 * np.pi) - np.pi
        data.qpos[:] = np.where(starts.angles, data.qpos + turn, positions)
        data.qvel[:] = np.where(hidden, data.qvel, seen)
        if not follows:
            mujoco.mj_forward(model, data)
