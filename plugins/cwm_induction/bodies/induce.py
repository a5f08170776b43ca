"""A program for a given body, from recorded transitions."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.bodies.layout import FittedLayout, find_readings, fit_layout
from cwm_induction.bodies.mechanism import FIELDS, FORCE_FIELDS, BodySimulation, StepRows
from cwm_induction.bodies.payoff import ExplainedSteps, fit_ends, fit_reward
from cwm_induction.bodies.program import BodyFindings, write_program

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
    mechanism, rows = BodySimulation(xml), StepRows.of(data)
    found = fit_layout(mechanism, rows, np.random.default_rng(seed))
    if found is None:
        return BodyProgram("")
    rows = rows.with_shared_bound(found.layout.speeds)
    alone, chained = (_fit_parts(mechanism, rows, found, remembers=each) for each in (False, True))
    needs_memory = not remembers and chained.right - alone.right > MEMORY_GAIN
    chosen = chained if remembers else alone
    if needs_memory:  # with memory, more rows show the reward and the end
        chosen = replace(alone, reward=chained.reward, ends=chained.ends)
    if not chosen.state_right:
        return BodyProgram("")
    return BodyProgram(write_program(chosen, comment), needs_memory)


def _fit_parts(
    mechanism: BodySimulation, rows: StepRows, found: FittedLayout, *, remembers: bool
) -> BodyFindings:
    """Fit the parts that the state does not determine, with or without a memory."""
    layout, size = found.layout, rows.after.shape[1]
    used, others = layout.used, [c for c in range(size) if c not in layout.used]
    fields = FIELDS + FORCE_FIELDS if len(others) >= FORCE_COMPONENTS else FIELDS
    steps = mechanism.simulate(layout, rows, found.timing, fields, remembers=remembers)
    seen = layout.expected(steps.after["qpos"], steps.after["qvel"], size)
    chosen = np.flatnonzero(rows.is_right(seen[:, used], used).all(axis=1))
    state_right = len(chosen) / len(rows)
    rows, steps = rows[chosen], steps[chosen]
    lasting = np.flatnonzero(~rows.ends)[:READ_ROWS]
    if not len(lasting):
        return BodyFindings(mechanism, found, tuple(rows.bounds.tolist()), remembers)
    readings = find_readings(mechanism, rows, steps.after, others, lasting)
    for array in {reading.array for reading in readings.values()}:
        rows = rows.with_shared_bound([c for c, each in readings.items() if each.array == array])
    explained = ExplainedSteps(mechanism, found, rows, steps)
    reward, read = fit_reward(explained), 1.0
    if readings:
        values = np.stack([reading.values for reading in readings.values()], axis=1)
        read = float(rows.is_right(values, list(readings)).all(axis=1).mean())
    return BodyFindings(
        mechanism,
        found,
        tuple(rows.bounds.tolist()),
        remembers,
        readings,
        reward,
        fit_ends(explained),
        state_right,
        state_right * reward.right * read,
    )
