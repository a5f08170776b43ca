"""Programs of equations with remembered numbers: delayed actions, changes, latches and clocks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from cwm_cli.data.dataset import Dataset
from cwm_induction.continuous.dynamics import Hypothesis
from cwm_induction.continuous.inducing import induce, write
from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Effort
from cwm_induction.flattening import Arrangement
from cwm_induction.memory.clocks import clock_of
from cwm_induction.memory.history import (
    RecordedHistory,
    RememberedQuantity,
    remembered_samples,
    with_quantities,
)
from cwm_induction.memory.lagging import (
    Kind,
    Regressions,
    acting,
    delayed_actions,
    is_of,
    lagged_quantities,
    starts_unknown,
)
from cwm_induction.memory.wrapping import remembering
from cwm_induction.writing.rounding import literal, rounded

MAX_EVALUATIONS = 12
"""Evaluations of the least squares for start values; each one has a gradient by differences."""

RIDGE = 0.03
"""Weight of the size of start values, in standard deviations: few episodes determine them."""


def lagged_program(
    data: Dataset,
    held_back: Array,
    view: Arrangement,
    kind: Kind,
    rng: np.random.Generator,
    effort: Effort,
) -> str:
    """Return a program with memory, "" if no memory of the kind helps."""
    data, is_discrete = view.flat(data), data.action_space.kind == "discrete"
    history = RecordedHistory.of(data, held_back)
    sent = delayed_actions(history, Regressions.of(history, is_discrete), is_discrete)
    if sent:
        history = replace(history, actions=sent[0].values[:, None])
        data = acting(data, history.actions)
    regressions, clock, unknown = Regressions.of(history, is_discrete), None, 0
    quantities = lagged_quantities(history, regressions, effort, kind)
    if kind == "clock":
        clock = clock_of(history, regressions, quantities, effort)
        if clock is None:
            return ""
        regressions = regressions.with_column(clock.mode.values)
        quantities = lagged_quantities(history, regressions, effort, kind)
    elif any(is_of(quantity, kind) for quantity in [*sent, *quantities]):
        unknown = starts_unknown(history, regressions, quantities)
    else:
        return ""
    rows = (history.age >= unknown) | history.terminated
    given = [*quantities, *([clock.mode] if clock else [])]
    samples = remembered_samples(with_quantities(data, given)[rows], given, held_back[rows])
    program = write(induce(samples, Hypothesis(), rng, effort))
    if unknown:
        quantities = _with_starts(program, quantities, history, unknown, is_discrete)
    return remembering(program, quantities, view.observations, view.actions, sent, clock)


def _with_starts(
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

    zeros = np.zeros(len(quantities) * (len(centre) + 1))
    found = least_squares(residuals, zeros, max_nfev=MAX_EVALUATIONS).x
    weights = found.reshape(len(quantities), -1) * sizes[:, None]
    slopes = weights[:, :-1] / spread
    offsets = weights[:, -1] - slopes @ centre
    return [
        replace(quantity, start=_linear_text(slope, float(offset)))
        for quantity, slope, offset in zip(quantities, slopes, offsets, strict=True)
    ]


def _linear_text(slopes: Array, offset: float) -> str:
    """Write a linear function of the first observation."""
    text = literal(rounded(offset, 5))
    for index, slope in enumerate(slopes.tolist()):
        sign = "-" if slope < 0 else "+"
        text += f" {sign} {literal(rounded(abs(slope), 4))} * now[{index}]"
    return text
