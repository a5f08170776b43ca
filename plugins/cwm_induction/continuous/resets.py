"""When a variable takes a value at which many rows meet, against its equation."""

from collections.abc import Sequence

import numpy as np

from cwm_induction.continuous.latents import Variable
from cwm_induction.continuous.rules import Feature, Tree, as_features, holds, learned
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import Column, product


def resets(
    variable: Variable,
    samples: Samples,
    change: Array,
    cases: Sequence[Column],
    features: Sequence[Feature],
) -> list[tuple[Tree, float]]:
    """Return rules for the values that a variable is reset to where the change is wrong.

    Rules may compare the values according to every case, and ask whether a
    case would change the sign.
    """
    own = [case for case in cases if case.text.startswith(f"{variable.name}_case_")]
    turned = [Column(product(variable.column, c), variable.now * c.values) for c in own]
    compared = [*as_features([*own, *turned], 0.9), *features]
    wrong = ~variable.matches(change) & samples.smooth
    found: list[tuple[Tree, float]] = []
    limits = (value for value in (variable.low, variable.high) if np.isfinite(value))
    for value in (*variable.piles, *limits):
        wanted = wrong & (variable.then == value)
        tree = learned(compared, wanted, depth=4 if own else 2)
        missed = (holds(tree, len(samples)) != wanted)[samples.smooth].sum()
        if not isinstance(tree, bool) and missed <= 0.2 * wanted.sum():
            found.append((tree, value))
    return found
