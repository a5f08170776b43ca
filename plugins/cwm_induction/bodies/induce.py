"""A program for a given body, from recorded transitions."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.bodies.layout import FittedLayout, StepRows, clip_bounds, fit_layout, is_right
from cwm_induction.bodies.mechanism import FIELDS, FORCE_FIELDS, BodySimulation
from cwm_induction.bodies.payoff import ExplainedSteps, fit_ends, fit_reward
from cwm_induction.bodies.program import BodyFindings, write_program
from cwm_induction.bodies.readings import find_readings, shared_bounds

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
    alone, chained = (
        replace(_fit_parts(mechanism, rows, found, remembers=each), comment=comment)
        for each in (False, True)
    )
    needs_memory = not remembers and chained.right - alone.right > MEMORY_GAIN
    chosen = chained if remembers else alone
    if needs_memory:  # with memory, more rows show the reward and the end
        chosen = replace(alone, reward=chained.reward, ends=chained.ends)
    if not chosen.state_right:
        return BodyProgram("")
    return BodyProgram(write_program(chosen), needs_memory)


def _fit_parts(
    mechanism: BodySimulation, rows: StepRows, found: FittedLayout, *, remembers: bool
) -> BodyFindings:
    """Fit the parts that the state does not determine, with or without a memory."""
    layout, timing = found.layout, found.timing
    parts = BodyFindings(mechanism, layout, timing, tuple(rows.bounds.tolist()), remembers)
    others = [c for c in range(rows.after.shape[1]) if c not in layout.used]
    fields = FIELDS + FORCE_FIELDS if len(others) >= FORCE_COMPONENTS else FIELDS
    follows = rows.follows if remembers else None
    starts = layout.starts(rows.observations, mechanism.model.qpos0, rows.bounds, follows)
    steps = mechanism.simulate(starts, rows.actions, timing, fields)
    seen = layout.expected(steps.after["qpos"], steps.after["qvel"], rows.after.shape[1])
    used = list(layout.used)
    bounds = rows.bounds[used]
    is_state_right = is_right(np.clip(seen[:, used], -bounds, bounds), rows.after[:, used])
    chosen = np.flatnonzero(is_state_right.all(axis=1))
    lasting = chosen[~rows.ends[chosen]][:READ_ROWS]
    if not len(lasting):
        return parts
    readings = find_readings(mechanism, rows[lasting], steps[lasting].after, others)
    bounds = shared_bounds(rows, readings)
    rows, steps, share = rows[chosen], steps[chosen], len(chosen) / len(rows)
    explained = ExplainedSteps(mechanism, layout, timing, rows, steps)
    reward = fit_reward(explained)
    if readings:
        read = np.stack([reading.values(steps.after) for reading in readings.values()], axis=1)
        components = list(readings)
        limits = bounds[components]
        right = is_right(np.clip(read, -limits, limits), rows.after[:, components]).all(axis=1)
    else:
        right = np.ones(len(rows), bool)
    return replace(
        parts,
        bounds=tuple(bounds.tolist()),
        readings=readings,
        reward=reward,
        ends=fit_ends(explained),
        state_right=share,
        right=share * reward.right * float(right.mean()),
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
