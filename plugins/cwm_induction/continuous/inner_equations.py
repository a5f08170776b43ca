"""Equations of variables with constants inside a term."""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from cwm_induction.continuous.inner_constants import Scan
from cwm_induction.continuous.latents import Variable
from cwm_induction.continuous.mixture import Target
from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.terms import Column, library
from cwm_induction.effort import Share

CLIPPED = re.compile(r"np\.clip\(\w+\[\d+\], [^()]*\)")
"""How an input that is cut off at limits is written."""

FEWEST_ROWS = 20
MOST_FACTORS = 10


def equation(
    variable: Variable,
    samples: Samples,
    columns: Sequence[Column],
    chain: Sequence[Column],
    inputs: Sequence[Column],
    effort: Share,
) -> Formula | None:
    """Return a formula with few inner constants that also holds on the rows held back."""
    usable = samples.smooth & variable.free
    target = Target(variable.change, variable.quarter, usable & samples.learn)
    if target.rows.sum() < FEWEST_ROWS:
        return None
    terms = [t for t in library([*columns, *chain], inputs, 2) if t.cost <= 2]
    arguments = [c for c in [*columns, *inputs] if len(np.unique(c.values)) > 2]
    formula = Scan(terms, factors(columns, inputs), target, effort).formula(arguments)
    if formula is None:
        return None
    right = variable.matches(formula.values(len(samples)))[usable & ~samples.learn]
    return formula if right.size == 0 or right.mean() >= 0.98 else None


def factors(columns: Sequence[Column], inputs: Sequence[Column]) -> list[Column]:
    """Return what a term with a constant inside may be multiplied by."""
    found = []
    for text, values, is_angle in columns:
        if is_angle:
            found.append(Column(f"np.cos({text})", np.cos(values)))
            found.append(Column(f"np.sin({text})", np.sin(values)))
        elif np.ptp(values) > 1e-9:
            found.append(Column(text, values))
    return [*found, *inputs][:MOST_FACTORS]


def clipped(formulas: Iterable[Formula]) -> list[Column]:
    """Return what equations read of actions that are cut off at limits."""
    terms = [term for formula in formulas for term in formula.terms]
    return [Column(t.text, t.values) for t in terms if CLIPPED.fullmatch(t.text)]
