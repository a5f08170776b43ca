"""Start values of remembered numbers: what the first steps of the episodes reveal."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from cwm_induction.continuous.samples import Array
from cwm_induction.memory.history import RecordedHistory, RememberedQuantity
from cwm_induction.writing.rounding import literal, rounded

MAX_EVALUATIONS = 12
"""Evaluations of the least squares; each one has a gradient by differences."""

RIDGE = 0.03
"""Weight of the size of start values, in standard deviations: few episodes determine them."""


def fitted_starts(
    program: str,
    quantities: Sequence[RememberedQuantity],
    history: RecordedHistory,
    steps: int,
    discrete: bool,
) -> list[RememberedQuantity]:
    """Return quantities that start at linear functions of the first observation.

    The functions are fitted so that a plain program, which takes the quantities as further
    components, predicts the first `steps` of the episodes.
    """
    begins = np.flatnonzero(history.first & history.learn).tolist()
    centre, spread = history.now.mean(0), history.now.std(0) + 1e-12
    sizes = np.array([quantity.values.std() + 1e-12 for quantity in quantities])
    moved = (history.after - history.now)[~history.terminated].std(0) + 1e-12
    space: dict[str, Any] = {}
    exec(compile(program, "<program>", "exec"), space)  # noqa: S102  # written from the data
    environment = space["Environment"]()
    names = ", ".join(quantity.name for quantity in quantities)
    updates = ", ".join(quantity.update for quantity in quantities)
    update = eval(f"lambda {names}, now, after, action, reward: ({updates},)")  # noqa: S307

    def residuals(weights: Array) -> Array:
        parts = [RIDGE * weights]
        for begin in begins:
            scaled = np.append((history.now[begin] - centre) / spread, 1.0)
            memory = (weights.reshape(len(quantities), -1) @ scaled * sizes).tolist()
            for row in range(begin, min(begin + steps, len(history))):
                if (row > begin and history.first[row]) or history.terminated[row]:
                    break
                now, after, action = history.now[row], history.after[row], history.actions[row]
                environment.set_state(np.array([*now, *memory]))
                given = int(action[0]) if discrete else action
                predicted = np.asarray(environment.step(given)[0])[: len(after)]
                parts.append(np.clip((predicted - after) / moved, -20, 20))
                last = action if len(action) > 1 else action[0]
                memory = update(*memory, now, after, last, history.rewards[row])
        return np.concatenate(parts)

    start = np.zeros(len(quantities) * (history.now.shape[1] + 1))
    found = least_squares(residuals, start, max_nfev=MAX_EVALUATIONS).x
    weights = found.reshape(len(quantities), -1) * sizes[:, None]
    slopes = weights[:, :-1] / spread
    offsets = weights[:, -1] - slopes @ centre
    return [
        replace(quantity, start=_text(slope, float(offset)))
        for quantity, slope, offset in zip(quantities, slopes, offsets, strict=True)
    ]


def _text(slopes: Array, offset: float) -> str:
    """Write a linear function of the first observation."""
    text = literal(rounded(offset, 5))
    for index, slope in enumerate(slopes.tolist()):
        sign = "-" if slope < 0 else "+"
        text += f" {sign} {literal(rounded(abs(slope), 4))} * now[{index}]"
    return text
