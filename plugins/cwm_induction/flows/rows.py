"""The rows that a vector field is fitted to and judged by."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cwm_induction.continuous.evaluation import Evaluator
from cwm_induction.continuous.latents import Variable
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import Column
from cwm_induction.effort import Share

LEARN_ROWS = 300
CHECK_ROWS = 100


@dataclass(frozen=True)
class Seen:
    """Some variables before and after steps; the other columns stand still during a step.

    `among` marks the rows to look at where not all are.
    """

    variables: Sequence[Variable]
    others: Sequence[Column]
    samples: Samples
    effort: Share
    among: Array | None = None

    def at(self, evaluate: "Evaluator", state: Array) -> Array:
        """Return the terms of the rows in use, at states no further off than data may be."""
        names = zip(self.names, np.clip(state, *self.range).T, strict=True)
        values = evaluate({**self.given, **dict(names)}, len(state))
        self.effort.spend(1.0 * values.size)
        return np.nan_to_num(values)

    @cached_property
    def usable(self) -> Array:
        """Mask of the rows that a field has to explain."""
        mask: Array = self.samples.smooth & np.all([v.free for v in self.variables], axis=0)
        return mask if self.among is None else mask & self.among

    @cached_property
    def learn(self) -> Array:
        """Rows to fit to."""
        rows = np.flatnonzero(self.usable & self.samples.learn)
        return rows[:: max(1, len(rows) // LEARN_ROWS)]

    @cached_property
    def check(self) -> Array:
        """Rows to judge by."""
        rows = np.flatnonzero(self.usable & ~self.samples.learn)
        return rows[:: max(1, len(rows) // CHECK_ROWS)]

    @cached_property
    def rows(self) -> Array:
        """The rows to fit to, then those to judge by."""
        return np.concatenate([self.learn, self.check])

    @cached_property
    def state(self) -> Array:
        """The variables before the step, in every row."""
        return np.stack([variable.now for variable in self.variables], 1)

    @cached_property
    def change(self) -> Array:
        """How much they change."""
        return np.stack([variable.change for variable in self.variables], 1)

    @cached_property
    def tolerance(self) -> Array:
        """A quarter of the errors that still count as right."""
        return np.stack([variable.quarter for variable in self.variables], 1)

    @cached_property
    def range(self) -> tuple[Array, Array]:
        """Bounds that the stages of a poor guess are kept within."""
        seen = np.concatenate([self.state, self.state + self.change])
        span = np.ptp(seen, axis=0)
        return seen.min(0) - span, seen.max(0) + span

    @property
    def names(self) -> list[str]:
        """Names of the variables."""
        return [variable.name for variable in self.variables]

    @cached_property
    def given(self) -> dict[str, object]:
        """The names that stand still during a step, in the rows in use."""
        rows, actions = self.rows, self.samples.actions[self.rows]
        discrete = self.samples.action_space.kind == "discrete"
        action: object = actions[:, 0] if discrete else list(actions.T)
        named = {c.text: c.values[rows] for c in self.others if c.text.isidentifier()}
        return {**named, "action": action, "inputs": action}
