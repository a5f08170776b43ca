"""Computing expressions of a program for all rows at once."""

from collections.abc import Callable, Sequence

import numpy as np

from cwm_induction.continuous.samples import Array

Evaluator = Callable[[dict[str, object], int], Array]
"""From names and a number of rows to the values of some expressions (rows, expressions)."""


def evaluator(texts: Sequence[str]) -> Evaluator:
    """Compile expressions of a program so that they can be computed for all rows at once."""
    codes = [compile(text, "<term>", "eval") for text in texts]

    def evaluate(names: dict[str, object], rows: int) -> Array:
        scope = {"np": np, "abs": np.abs, "max": np.maximum, "min": np.minimum, **names}
        values = np.empty((rows, len(codes)))
        with np.errstate(all="ignore"):
            for index, code in enumerate(codes):
                values[:, index] = eval(code, {}, scope)  # noqa: S307
        return values

    return evaluate
