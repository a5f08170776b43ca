"""Programs of equations with remembered numbers: delayed actions, changes, latches and clocks."""

from dataclasses import dataclass, replace

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.continuous.dynamics import Hypothesis
from cwm_induction.continuous.inducing import induce, write
from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Effort
from cwm_induction.flattening import Arrangement
from cwm_induction.memory.clocks import Clock, clock_of
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
    delay_of,
    is_of,
    lagged_quantities,
    starts_unknown,
)
from cwm_induction.memory.starting import fitted_starts
from cwm_induction.memory.wrapping import remembering


@dataclass(frozen=True)
class LaggedSystem:
    """Rows with the actions in effect, and the chosen memory.

    The last actions `sent` wait for their effect. `unknown` is the number of first steps that
    start values do not explain.
    """

    data: Dataset
    history: RecordedHistory
    sent: list[RememberedQuantity]
    quantities: list[RememberedQuantity]
    clock: Clock | None
    unknown: int


def lagged_program(
    data: Dataset,
    held_back: Array,
    view: Arrangement,
    kind: Kind,
    rng: np.random.Generator,
    effort: Effort,
) -> str:
    """Return a program with memory, "" if no memory of the kind helps."""
    system = _chosen(view.flat(data), held_back, kind, effort)
    if system is None:
        return ""
    history, quantities = system.history, system.quantities
    rows = (history.age >= system.unknown) | history.terminated
    given = [*quantities, *([system.clock.mode] if system.clock else [])]
    wide = with_quantities(system.data, given)[rows]
    samples = remembered_samples(wide, given, held_back[rows])
    program = write(induce(samples, Hypothesis(), rng, effort))
    if system.unknown:
        is_discrete = data.action_space.kind == "discrete"
        quantities = fitted_starts(program, quantities, history, system.unknown, is_discrete)
    return remembering(
        program, quantities, view.observations, view.actions, system.sent, system.clock
    )


def _chosen(data: Dataset, held_back: Array, kind: Kind, effort: Effort) -> LaggedSystem | None:
    """Choose the delay, the quantities and the clock; None if there are none of the kind."""
    is_discrete = data.action_space.kind == "discrete"
    history = RecordedHistory.of(data, held_back)
    delay = delay_of(history, Regressions.of(history, is_discrete), is_discrete)
    sent = delay.quantities(history)
    if sent:
        history = replace(history, actions=delay.actions(history))
        data = acting(data, history.actions)
    regressions = Regressions.of(history, is_discrete)
    quantities = lagged_quantities(history, regressions, effort, kind)
    if kind == "clock":
        clock = clock_of(history, regressions, quantities, effort)
        if clock is None:
            return None
        regressions = regressions.with_column(clock.mode.values)
        quantities = lagged_quantities(history, regressions, effort, kind)
        return LaggedSystem(data, history, sent, quantities, clock, 0)
    if kind == "recent":
        is_new = bool(sent or quantities)
    else:
        is_new = any(is_of(quantity, kind) for quantity in quantities)
    if not is_new:
        return None
    unknown = starts_unknown(history, regressions, quantities)
    return LaggedSystem(data, history, sent, quantities, None, unknown)
