"""A program for a given body, from recorded transitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.bodies.layout import FittedLayout, StepRows, clip_bounds, fit_layout, is_right
from cwm_induction.bodies.mechanism import (
    FIELDS,
    FORCE_FIELDS,
    Array,
    BodySimulation,
    SimulatedSteps,
)
from cwm_induction.bodies.payoff import EndCondition, FittedReward, fit_ends, fit_reward
from cwm_induction.bodies.program import BodyFindings, write_program
from cwm_induction.bodies.readings import ComponentReading, find_readings, shared_bounds

MEMORY_GAIN = 0.02
"""Share of rows that a memory has to predict in addition to be worth its slower planning."""

FORCE_COMPONENTS = 6
"""Number of components besides the state that may be forces: each body has six."""

READ_ROWS = 200
"""Rows that components besides the state are compared on."""


class BodyProgram(NamedTuple):
    """A program, "" if the body explains no row, and whether a memory would predict more rows."""

    program: str
    needs_memory: bool = False


@dataclass(frozen=True)
class _Simulated:
    """Simulated steps of all rows, and the mask of the rows whose state they predict."""

    steps: SimulatedSteps
    right: Array

    def part(self, rows: Array) -> SimulatedSteps:
        """Return the steps of some rows."""
        before, after = (
            {name: array[rows] for name, array in arrays.items()}
            for arrays in (self.steps.before, self.steps.after)
        )
        return SimulatedSteps(before, after)


def induce_body(
    xml: str, data: Dataset, *, seed: int = 0, remembers: bool = False, comment: str = ""
) -> BodyProgram:
    """Write a program that simulates a body.

    Args:
        xml: The text of the MJCF file.
        data: The transitions to explain, in the order of their recording.
        seed: Random seed of the sample that layouts are compared on.
        remembers: Whether the program has a memory.
        comment: Comment at the beginning of the program.
    """
    mechanism, rows = BodySimulation(xml), rows_of(data)
    found = fit_layout(mechanism, rows, np.random.default_rng(seed))
    if found is None:
        return BodyProgram("")
    rows = rows.with_bounds(found.layout)
    alone, chained = (_fit_parts(mechanism, rows, found, chained=c) for c in (False, True))
    needs_memory = chained.right - alone.right > MEMORY_GAIN
    parts = chained if remembers else alone
    if needs_memory and not remembers:  # more rows are simulated rightly
        parts = replace(alone, reward=chained.reward, ends=chained.ends)
    if not parts.state_right:
        return BodyProgram("")
    findings = BodyFindings(
        mechanism,
        found.layout,
        found.timing,
        parts.bounds,
        parts.readings,
        parts.reward,
        parts.ends,
        remembers,
        comment,
    )
    return BodyProgram(write_program(findings), needs_memory and not remembers)


@dataclass(frozen=True)
class _Parts:
    """Parts of a program, and the shares of rows with a right state, and with all parts right."""

    state_right: float
    right: float
    bounds: tuple[float, ...]
    readings: dict[int, ComponentReading]
    reward: FittedReward
    ends: tuple[EndCondition, ...]


def _fit_parts(
    mechanism: BodySimulation, rows: StepRows, found: FittedLayout, *, chained: bool
) -> _Parts:
    """Fit what the state does not determine, to rows simulated alone or in their order."""
    others = [c for c in range(rows.after.shape[1]) if c not in found.layout.used]
    fields = FIELDS + FORCE_FIELDS if len(others) >= FORCE_COMPONENTS else FIELDS
    simulated = _simulated(mechanism, rows, found, fields, chained=chained)
    chosen = np.flatnonzero(simulated.right)
    if not len(chosen):
        return _Parts(0.0, 0.0, tuple(rows.bounds.tolist()), {}, FittedReward((), 0.0), ())
    right, steps = rows[chosen], simulated.part(chosen)
    some = np.flatnonzero(~right.ends)[:READ_ROWS]
    arrays = {name: array[some] for name, array in steps.after.items()}
    readings = find_readings(mechanism, right[some], arrays, others) if others else {}
    bounds = shared_bounds(rows, readings)
    reward = fit_reward(mechanism, found.timing, found.layout, right, steps)
    ends = fit_ends(mechanism, found.layout, right, steps.after)
    share = float(simulated.right.mean())
    seen = np.array([readings[c].values(steps.after) for c in readings]).reshape(-1, len(right)).T
    limit = bounds[list(readings)]
    read = is_right(np.clip(seen, -limit, limit), right.after[:, list(readings)]).all(axis=1)
    return _Parts(
        share,
        share * reward.right * float(read.mean()),
        tuple(bounds.tolist()),
        readings,
        reward,
        ends,
    )


def rows_of(data: Dataset) -> StepRows:
    """Return the transitions as matrices."""
    columns = data.columns
    seen, after = columns["observations"], columns["next_observations"]
    episodes, last = columns["episodes"], columns["truncations"] | columns["terminations"]
    follows = np.zeros(len(seen), bool)
    same = (episodes[1:] == episodes[:-1]) & (seen[1:] == after[:-1]).all(axis=1) & ~last[:-1]
    follows[1:] = same
    return StepRows(
        seen.astype(float),
        columns["actions"].reshape(len(seen), -1).astype(float),
        columns["rewards"].astype(float),
        after.astype(float),
        columns["terminations"].astype(bool),
        follows,
        clip_bounds(after.astype(float)),
    )


def _simulated(
    mechanism: BodySimulation,
    rows: StepRows,
    found: FittedLayout,
    fields: Sequence[str],
    *,
    chained: bool,
) -> _Simulated:
    """Simulate all rows: each alone, or in the order of an episode."""
    layout = found.layout
    starts = layout.starts(
        rows.observations,
        mechanism.model.qpos0,
        rows.bounds,
        rows.follows if chained else None,
    )
    steps = mechanism.simulate(starts, rows.actions, found.timing, fields)
    seen = layout.expected(steps.after["qpos"], steps.after["qvel"], rows.after.shape[1])
    seen = np.clip(seen, -rows.bounds, rows.bounds)
    known = ~np.isnan(seen[0])
    right = np.asarray(is_right(seen, rows.after)[:, known].all(axis=1))
    return _Simulated(steps, right)
