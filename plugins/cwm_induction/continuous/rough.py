"""Linear approximations for variables that nothing explains."""

from collections.abc import Sequence

import numpy as np

from cwm_induction.continuous.latents import Variable
from cwm_induction.continuous.regression import Formula, approximate
from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.terms import Column, library


def rough(
    variable: Variable, samples: Samples, columns: Sequence[Column], inputs: Sequence[Column]
) -> Formula | None:
    """Return a linear formula for a variable, None where standing still predicts more rows."""
    check = samples.smooth & ~samples.learn
    terms = library(columns, inputs, 1)
    formula = approximate(terms, variable.change, samples.smooth & samples.learn, check)
    moved = variable.matches(formula.values(len(samples)))[check].sum()
    still = variable.matches(np.zeros(len(samples)))[check].sum()
    return formula if moved >= still else None
