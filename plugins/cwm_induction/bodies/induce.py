"""A program for a given body, from recorded transitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.bodies.layout import FittedLayout, Rows, clip_bounds, fit_layout, is_right
from cwm_induction.bodies.mechanism import Array, Mechanism, StepArrays
from cwm_induction.bodies.payoff import fit_ends, fit_reward
from cwm_induction.bodies.program import BodyFindings, write_program
from cwm_induction.bodies.readings import find_readings

MEMORY_GAIN = 0.02
"""Share of rows that a memory has to predict in addition to be worth its slower planning."""

READ_ROWS = 200
"""Rows that components besides the state are compared on."""


class BodyProgram(NamedTuple):
    """A program, "" if the body explains no row, and whether a memory would predict more rows."""

    program: str
    needs_memory: bool = False


@dataclass(frozen=True)
class _Simulated:
    """Simulated steps of all rows, and the mask of the rows whose state they predict."""

    steps: StepArrays
    right: Array

    def part(self, rows: Array) -> StepArrays:
        """Return the steps of some rows."""
        before, after = (
            {name: array[rows] for name, array in arrays.items()}
            for arrays in (self.steps.before, self.steps.after)
        )
        return StepArrays(before, after)


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
    mechanism, rows = Mechanism(xml), rows_of(data)
    found = fit_layout(mechanism, rows, np.random.default_rng(seed))
    if found is None:
        return BodyProgram("")
    rows = rows.with_bounds(found.layout)
    alone, chained = (_simulated(mechanism, rows, found, chained=c) for c in (False, True))
    gains = float(chained.right.mean() - alone.right.mean()) > MEMORY_GAIN
    simulated = chained if remembers or gains else alone
    if not simulated.right.any():
        return BodyProgram("")
    chosen = np.flatnonzero(simulated.right)
    right, steps = rows[chosen], simulated.part(chosen)
    some = np.flatnonzero(~right.ends)[:READ_ROWS]
    others = [c for c in range(rows.after.shape[1]) if c not in found.layout.used]
    arrays = {name: array[some] for name, array in steps.after.items()}
    findings = BodyFindings(
        mechanism,
        found.layout,
        found.timing,
        tuple(rows.bounds.tolist()),
        find_readings(mechanism, right[some], arrays, others) if others else {},
        fit_reward(mechanism, found.timing, found.layout, right, steps),
        fit_ends(mechanism, found.layout, right, steps.after),
        remembers,
        comment,
    )
    return BodyProgram(write_program(findings), gains and not remembers)


def rows_of(data: Dataset) -> Rows:
    """Return the transitions as matrices."""
    columns = data.columns
    seen, after = columns["observations"], columns["next_observations"]
    episodes, last = columns["episodes"], columns["truncations"] | columns["terminations"]
    follows = np.zeros(len(seen), bool)
    same = (episodes[1:] == episodes[:-1]) & (seen[1:] == after[:-1]).all(axis=1) & ~last[:-1]
    follows[1:] = same
    return Rows(
        seen.astype(float),
        columns["actions"].reshape(len(seen), -1).astype(float),
        columns["rewards"].astype(float),
        after.astype(float),
        columns["terminations"].astype(bool),
        follows,
        clip_bounds(after.astype(float)),
    )


def _simulated(
    mechanism: Mechanism, rows: Rows, found: FittedLayout, *, chained: bool
) -> _Simulated:
    """Simulate all rows: each alone, or in the order of an episode."""
    layout = found.layout
    starts = layout.starts(
        rows.observations,
        mechanism.model.qpos0,
        rows.bounds,
        rows.follows if chained else None,
    )
    steps = mechanism.simulate(starts, rows.actions, found.timing)
    seen = layout.expected(steps.after["qpos"], steps.after["qvel"], rows.after.shape[1])
    seen = np.clip(seen, -rows.bounds, rows.bounds)
    known = ~np.isnan(seen[0])
    right = np.asarray(is_right(seen, rows.after)[:, known].all(axis=1))
    return _Simulated(steps, right)
