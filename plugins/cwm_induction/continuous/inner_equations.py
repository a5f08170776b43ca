"""Equations of variables with constants inside a term."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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

Scanning = Callable[[Target, Share], Formula | None]
"""Looks for a formula for a target."""

FEWEST_ROWS = 20
MOST_FACTORS = 10


@dataclass(frozen=True)
class Known:
    """What an equation may read: values now, next values that are known already, and inputs."""

    columns: Sequence[Column]
    chain: Sequence[Column]
    inputs: Sequence[Column]

    def scan(self, target: Target, effort: Share) -> Formula | None:
        """Look for a constant inside any term."""
        terms = [t for t in library([*self.columns, *self.chain], self.inputs, 2) if t.cost <= 2]
        products = factors([*self.columns, *self.chain], self.inputs)
        arguments = [*self.columns, *self.inputs]
        return Scan(terms, products, target, effort).formula(_varied(arguments))

    def steered(self, target: Target, effort: Share) -> Formula | None:
        """Look for a constant inside a function of an input, times next values."""
        terms = library([*self.columns, *self.chain], self.inputs, 1)
        products = factors(self.chain or self.columns, [])
        return Scan(terms, products, target, effort).formula(_varied(self.inputs))


def equation(variable: Variable, samples: Samples, effort: Share, scan: Scanning) -> Formula | None:
    """Return a formula with few inner constants that also holds on the rows held back."""
    usable = samples.smooth & variable.free
    target = Target(variable.change, variable.quarter, usable & samples.learn)
    if target.rows.sum() < FEWEST_ROWS:
        return None
    formula = scan(target, effort)
    if formula is None:
        return None
    right = variable.matches(formula.values(len(samples)))[usable & ~samples.learn]
    return formula if right.size == 0 or right.mean() >= 0.98 else None


def _varied(columns: Sequence[Column]) -> list[Column]:
    return [column for column in columns if len(np.unique(column.values)) > 2]


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
