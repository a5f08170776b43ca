"""The choice of remembered real numbers: delayed actions, and changes of observed numbers.

A quantity is scored by how much it improves a quadratic regression of the outputs (Bayesian
information criterion, Schwarz, 1978). Equations are found later, by the search for plain systems.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, permutations
from typing import Literal, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.continuous.samples import Array
from cwm_induction.effort import Effort
from cwm_induction.memory.counting import counter, elapsed, latch
from cwm_induction.memory.history import RecordedHistory, RememberedQuantity, events_of
from cwm_induction.writing.rounding import literal

Kind = Literal["recent", "earlier", "events", "clock"]
KINDS: tuple[Kind, ...] = ("recent", "earlier", "clock", "events")
"""Which quantities to try, in this order."""

MAX_DELAY = 5
"""Maximum delay of actions, in steps."""

MAX_LAGS = 6
"""Remembered numbers in one program."""

MAX_DEPTH = 3
"""Steps at the start of an episode that the choice ignores: their history is not known."""

MIN_ROWS = 100
"""Rows that must be left without these steps; otherwise the choice ignores none."""

START_ERROR = 5.0
"""Fit start values if errors of the first steps exceed errors of later steps by this factor."""

MAX_EVENTS = 16
"""Maximum number of events; with more events, pairs of events would take too long."""

REGRESSION_WORK = 1000.0
"""Multiplications per row and regression."""

MAX_SQUARED = 10
"""Maximum number of columns for a regression with products of two columns."""

OWN_EFFECT = 5.0
"""Minimum gain in nats if the last action has an effect of its own, beside a delayed action."""

LEAST_GAIN = 20.0
"""Minimum gain of a quantity in nats, beyond the penalty for its weights."""


@dataclass(frozen=True)
class Regressions:
    """Outputs (rows, outputs) and the columns that explain them by a quadratic regression."""

    targets: Array
    columns: Array
    actions: Array
    rows: Array
    grain: Array

    @classmethod
    def of(cls, history: RecordedHistory, discrete: bool) -> Self:
        """Explain the changes of all components, and the rewards, by observation and action."""
        targets = np.column_stack([history.after - history.now, history.rewards])
        grain = 1e-6 * np.append(np.abs(history.after).max(0), np.abs(history.rewards).max()) + 1e-9
        rows = history.learn & ~history.terminated & (history.age >= MAX_DEPTH)
        rows = rows if rows.sum() > MIN_ROWS else history.learn & ~history.terminated
        actions = _columns(history.actions, discrete)
        moving = targets[rows].std(0) > grain
        return cls(targets[:, moving], history.now, actions, rows, grain[moving])

    def with_column(self, values: Array) -> Self:
        """Explain the outputs by one more column."""
        return replace(self, columns=np.column_stack([self.columns, values]))

    def loss(self, more: Sequence[Array] = (), actions: Array | None = None) -> Array:
        """Return the criterion of each output in nats, lower is better."""
        actions = self.actions if actions is None else actions
        matrix = self.matrix(more, actions)[self.rows]
        linear = 1 + self.columns.shape[1] + len(more) + actions.shape[1]
        options = [self._criterion(part) for part in (matrix[:, :linear], matrix)]
        loss: Array = np.minimum(*options)
        return loss

    def _criterion(self, matrix: Array) -> Array:
        basis, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
        basis = basis[:, sizes > 1e-7 * sizes[0]]
        targets, count = self.targets[self.rows], len(matrix)
        left = targets - basis @ (basis.T @ targets)
        error = (left**2).mean(0) + self.grain**2
        criterion: Array = 0.5 * count * np.log(error) + 0.5 * basis.shape[1] * np.log(count)
        return criterion

    def matrix(self, more: Sequence[Array], actions: Array) -> Array:
        """Return the terms of the regression (rows, terms)."""
        real = np.column_stack([self.columns, *more])
        real = (real - real[self.rows].mean(0)) / (real[self.rows].std(0) + 1e-12)
        parts = [np.ones((len(real), 1)), real, actions]
        every = np.column_stack([real, actions])
        if every.shape[1] <= MAX_SQUARED:
            pairs = combinations_with_replacement(range(every.shape[1]), 2)
            parts += [(every[:, i] * every[:, j])[:, None] for i, j in pairs if i < real.shape[1]]
            parts += [(values * np.abs(values))[:, None] for values in more]
        return np.concatenate(parts, 1)


def starts_unknown(
    history: RecordedHistory, regressions: Regressions, quantities: Sequence[RememberedQuantity]
) -> int:
    """Return the number of first steps that the start values get wrong, 0 if they fit."""
    steps = max((1 + quantity.name.count("earlier_") for quantity in quantities), default=0)
    early = (history.age < steps) & history.learn & ~history.terminated
    if not early.any():
        return 0
    matrix = regressions.matrix([quantity.values for quantity in quantities], regressions.actions)
    rows, targets = regressions.rows, regressions.targets
    weights = np.linalg.lstsq(matrix[rows], targets[rows], rcond=1e-7)[0]
    errors = np.abs(matrix @ weights - targets)
    usual = np.sqrt((errors[rows] ** 2).mean(0)) + regressions.grain
    return steps if (errors[early].mean(0) / usual).max() > START_ERROR else 0


def delayed_actions(
    history: RecordedHistory, regressions: Regressions, discrete: bool
) -> list[RememberedQuantity]:
    """Return the last actions, which wait for their effect; none if actions have no delay.

    The oldest one comes first: it is the action in effect.
    """
    best, least = list[RememberedQuantity](), float(regressions.loss().sum()) - LEAST_GAIN
    if history.actions.shape[1] != 1:
        return best
    for start in np.unique(history.actions).tolist() if discrete else [0.0]:
        sent, values = list[RememberedQuantity](), history.actions[:, 0]
        for ago in range(1, MAX_DELAY + 1):
            values = history.before(values, start)
            update = "action" if ago == 1 else f"sent_{ago - 1}"
            meaning = f"the action {ago} steps ago" if ago > 1 else "the last action"
            action = RememberedQuantity(f"sent_{ago}", literal(start), update, values, meaning)
            sent = [action, *sent]
            loss = float(regressions.loss(actions=_columns(values[:, None], discrete)).sum())
            if loss < least:
                best, least = sent, loss
    if best:
        delayed = _columns(best[0].values[:, None], discrete)
        alone = regressions.loss(actions=delayed)
        both = regressions.loss(actions=np.column_stack([delayed, regressions.actions]))
        if (alone - both).max() > OWN_EFFECT:
            return []  # the last action has an effect of its own
    return best


def lagged_quantities(
    history: RecordedHistory, regressions: Regressions, effort: Effort, kind: Kind
) -> list[RememberedQuantity]:
    """Return the remembered numbers that explain the outputs best, one after the other.

    The search tries changes and actions of the last step. The `kind` adds earlier steps or events.
    """

    def loss(quantities: Sequence[RememberedQuantity]) -> float:
        return float(regressions.loss([quantity.values for quantity in quantities]).sum())

    found: list[RememberedQuantity] = []
    latches = [[quantity] for quantity in _latches(history) if kind == "events"]
    while len(found) < MAX_LAGS:
        groups = [
            [*found, *group] for group in [*_proposals(history, found, kind == "earlier"), *latches]
        ]
        if not effort.spend(len(groups) * len(history) * REGRESSION_WORK):
            break
        best = min(groups, key=loss, default=found)
        if loss(best) > loss(found) - LEAST_GAIN:
            break
        found = best
    for quantity in reversed(found):
        others = [other for other in found if other is not quantity]
        read = any(other.update == quantity.name for other in others)
        if not read and loss(others) < loss(found) + LEAST_GAIN:
            found = others
    return found


def is_of(quantity: RememberedQuantity, kind: Kind) -> bool:
    """Whether only searches of a kind find a quantity; searches of all kinds find recent ones."""
    if kind == "events":
        return bool(quantity.events) or quantity.name.startswith("elapsed")
    return kind == "recent" or quantity.name.startswith("earlier_")


def _proposals(
    history: RecordedHistory, found: Sequence[RememberedQuantity], deep: bool
) -> Iterator[list[RememberedQuantity]]:
    """Yield changes and actions of the last step, and earlier values of found quantities."""
    single = []
    for index, now in enumerate(history.now.T):
        change, meaning = f"after[{index}] - now[{index}]", f"the last change of component {index}"
        values = now - history.before(now, now)
        single.append(RememberedQuantity(f"change_{index}", "0.0", change, values, meaning))
    for index in range(history.actions.shape[1]):
        action = "action" if history.actions.shape[1] == 1 else f"action[{index}]"
        values = history.before(history.actions[:, index], 0.0)
        meaning = f"{action} of the last step"
        single.append(RememberedQuantity(f"last_action_{index}", "0.0", action, values, meaning))
    for quantity in found if deep else ():
        values = history.before(quantity.values, float(quantity.values[history.first][0]))
        meaning = f"{quantity.name} one step earlier"
        name = f"earlier_{quantity.name}"
        single.append(RememberedQuantity(name, quantity.start, quantity.name, values, meaning))
    names = {quantity.name for quantity in found}
    single = [quantity for quantity in single if quantity.name not in names]
    earlier = [quantity for quantity in single if quantity.name.startswith("earlier_")]
    yield from ([quantity] for quantity in single)
    if len(earlier) > 1:
        yield earlier


def _latches(history: RecordedHistory) -> Iterator[RememberedQuantity]:
    """Yield what happened last, and since when, of actions and of steps with a special reward."""
    events = events_of(history)
    if len(events) > MAX_EVENTS:
        return
    for place, pair in enumerate(permutations(events, 2)):
        if not (pair[0].mask & pair[1].mask).any():
            yield latch(history, *pair).named(f"latch_{place}")
    for place, event in enumerate(events):
        yield elapsed(history, event).named(f"elapsed_{place}")
        yield counter(history, event, history.never).named(f"count_{place}")
        yield latch(history, event, history.never).named(f"seen_{place}")


def acting(data: Dataset, actions: Array) -> Dataset:
    """Return the rows with other actions, of the same space."""
    recorded = data.columns["actions"]
    changed = actions.reshape(recorded.shape).astype(recorded.dtype)
    return replace(data, columns={**data.columns, "actions": changed})


def _columns(actions: Array, discrete: bool) -> Array:
    """Return actions as numbers, or a column for each label but the first."""
    return (actions == np.unique(actions)[1:]).astype(float) if discrete else actions
