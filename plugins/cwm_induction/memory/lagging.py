"""The choice of remembered real numbers: delayed actions, and changes of observed numbers.

A quantity is scored by how much it improves a quadratic regression of the outputs (Bayesian
information criterion, Schwarz, 1978). Equations are found later, by the search for plain systems.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Effort
from cwm_induction.memory.history import History, Quantity
from cwm_induction.writing.rounding import literal

MAX_DELAY = 5
"""Steps by which actions may be delayed."""

MAX_LAGS = 6
"""Remembered numbers in one program."""

MAX_SQUARED = 10
"""Columns up to which the regression has products of two columns."""

LEAST_GAIN = 30.0
"""Nats by which a quantity must improve the regressions, beyond the penalty for its weights."""


@dataclass(frozen=True)
class Delay:
    """The number of steps until actions take effect, and the action before the first one."""

    steps: int
    start: float

    def actions(self, history: History) -> Array:
        """Return the action (rows, 1) that takes effect in each row."""
        actions = history.actions[:, 0]
        for _ in range(self.steps):
            actions = history.before(actions, self.start)
        return actions[:, None]

    def quantities(self, history: History) -> list[Quantity]:
        """Return the quantities that hold the last actions, the oldest one first."""
        found = []
        for ago in range(self.steps, 0, -1):
            update = "action" if ago == 1 else f"sent_{ago - 1}"
            meaning = f"the action {ago} steps ago" if ago > 1 else "the last action"
            values = Delay(ago, self.start).actions(history)[:, 0]
            found.append(Quantity(f"sent_{ago}", literal(self.start), update, values, meaning))
        return found


@dataclass(frozen=True)
class Regressions:
    """Outputs (rows, outputs) and the columns that explain them by a quadratic regression."""

    targets: Array
    columns: Array
    actions: Array
    rows: Array
    grain: Array

    @classmethod
    def of(cls, history: History, discrete: bool) -> Self:
        """Explain the changes of all components, and the rewards, by observation and action."""
        targets = np.column_stack([history.after - history.now, history.rewards])
        grain = 1e-6 * np.append(np.abs(history.after).max(0), np.abs(history.rewards).max()) + 1e-9
        rows = history.learn & ~history.terminated
        actions = _columns(history.actions, discrete)
        moving = targets[rows].std(0) > grain
        return cls(targets[:, moving], history.now, actions, rows, grain[moving])

    def loss(self, more: Sequence[Array] = (), actions: Array | None = None) -> Array:
        """Return the criterion of each output in nats, lower is better."""
        rows, actions = self.rows, self.actions if actions is None else actions
        real = np.column_stack([self.columns, *more])[rows]
        real = (real - real.mean(0)) / (real.std(0) + 1e-12)
        given = actions[rows]
        parts = [np.ones((len(real), 1)), real, given]
        if real.shape[1] + given.shape[1] <= MAX_SQUARED:
            every = np.column_stack([real, given])
            pairs = combinations_with_replacement(range(every.shape[1]), 2)
            parts += [(every[:, i] * every[:, j])[:, None] for i, j in pairs if i < real.shape[1]]
        matrix = np.concatenate(parts, 1)
        basis, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
        basis = basis[:, sizes > 1e-7 * sizes[0]]
        targets = self.targets[rows]
        left = targets - basis @ (basis.T @ targets)
        count = len(real)
        error = (left**2).mean(0) + self.grain**2
        loss: Array = 0.5 * count * np.log(error) + 0.5 * basis.shape[1] * np.log(count)
        return loss


def delay_of(history: History, regressions: Regressions, discrete: bool) -> Delay:
    """Return the delay of actions that explains the outputs best."""
    best, least = Delay(0, 0.0), float(regressions.loss().sum()) - LEAST_GAIN
    if history.actions.shape[1] != 1:
        return best
    starts = np.unique(history.actions[:, 0]).tolist() if discrete else [0.0]
    for steps in range(1, MAX_DELAY + 1):
        for start in starts:
            delay = Delay(steps, start)
            columns = _columns(delay.actions(history), discrete)
            loss = float(regressions.loss(actions=columns).sum())
            if loss < least:
                best, least = delay, loss
    if best.steps:
        both = [*best.actions(history).T]
        given = regressions.loss(both)
        alone = regressions.loss(actions=_columns(best.actions(history), discrete))
        if (alone - given).max() > LEAST_GAIN:
            return Delay(0, 0.0)  # the last action has an effect of its own
    return best


def lagged_quantities(history: History, regressions: Regressions, effort: Effort) -> list[Quantity]:
    """Return the remembered numbers that explain the outputs best, one after the other."""
    found: list[Quantity] = []
    losses = regressions.loss()
    while len(found) < MAX_LAGS:
        best, most = None, LEAST_GAIN
        for quantity in _proposals(history, found):
            if not effort.spend(4.0 * len(history) * 40**2):
                break
            more = [*(q.values for q in found), quantity.values]
            gains = losses - regressions.loss(more)
            gain = float(np.maximum(gains, 0.0).sum())
            if gain > most:
                best, most = quantity, gain
        if best is None:
            break
        found.append(best)
        losses = np.minimum(losses, regressions.loss([q.values for q in found]))
    return found


def _proposals(history: History, found: Sequence[Quantity]) -> Iterator[Quantity]:
    """Yield changes and actions of the last step, and what the step before had of those found."""
    names = {quantity.name for quantity in found}
    for index in range(history.now.shape[1]):
        if f"change_{index}" not in names:
            yield change_of(history, index)
    for index in range(history.actions.shape[1]):
        if f"last_action_{index}" not in names:
            action = "action" if history.actions.shape[1] == 1 else f"action[{index}]"
            values = history.before(history.actions[:, index], 0.0)
            meaning = f"{action} of the last step"
            yield Quantity(f"last_action_{index}", "0.0", action, values, meaning)
    for quantity in found:
        name = f"earlier_{quantity.name}"
        if name not in names:
            values = history.before(quantity.values, float(quantity.values[history.first][0]))
            meaning = f"{quantity.name} one step earlier"
            yield Quantity(name, quantity.start, quantity.name, values, meaning)


def change_of(history: History, index: int) -> Quantity:
    """Return the last change of a component, 0 at the start of an episode."""
    now = history.now[:, index]
    values = now - history.before(now, now)
    meaning = f"the last change of component {index}"
    return Quantity(f"change_{index}", "0.0", f"after[{index}] - now[{index}]", values, meaning)


def acting(data: Dataset, actions: Array) -> Dataset:
    """Return the rows with other actions, of the same space."""
    recorded = data.columns["actions"]
    changed = actions.reshape(recorded.shape).astype(recorded.dtype)
    return replace(data, columns={**data.columns, "actions": changed})


def _columns(actions: Array, discrete: bool) -> Array:
    """Return actions as numbers, or a column for each label but the first."""
    return (actions == np.unique(actions)[1:]).astype(float) if discrete else actions
