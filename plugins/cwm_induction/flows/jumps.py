"""Vector fields that move what an action has changed at once: a jump, then a flow.

The field is that of the rows of one action, without a jump. Every other row is
followed back along it to the state after the jump, and the jumps are explained.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cwm_induction.continuous.regression import Formula, SearchLimits, exact
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn, Term, library
from cwm_induction.flows.fitting import FlowData, field_of
from cwm_induction.flows.schemes import Flow, advanced

MOST_ACTIONS = 6
FEWEST_ROWS = 12
NEWTON = 6
"""Steps of Newton's method towards the state before a flow."""
SEARCH = SearchLimits(size=3, beam=6, branch=6)


@dataclass(frozen=True)
class Jumping:
    """Looks for jumps by action that come before a flow of one of some families."""

    seen: FlowData
    families: Sequence[Callable[[FlowData], Flow | None]]

    def flow(self) -> Flow | None:
        """Return the first flow of the rows of one action that jumps extend to all others."""
        levels = np.unique(self._actions)
        discrete = self.seen.samples.action_space.kind == "discrete"
        if not discrete or not 2 <= len(levels) <= MOST_ACTIONS:
            return None
        for family in self.families:
            for level in levels.tolist():
                flow = family(self._own(level)) if self.seen.effort.spend(0) else None
                found = self._extended(flow, levels[levels != level]) if flow else None
                if found is not None:
                    return found
        return None

    @cached_property
    def _actions(self) -> Array:
        """The action in every row in use."""
        actions: Array = self.seen.samples.actions[self.seen.rows, 0]
        return actions

    def _own(self, level: float) -> FlowData:
        """Return the rows of one action, and the columns that differ among them."""
        among = self.seen.samples.actions[:, 0] == level
        others = [c for c in self.seen.others if np.ptp(c.values[among]) > 0]
        return replace(self.seen, among=among, others=others)

    def _extended(self, flow: Flow, others: Array) -> Flow | None:
        """Add the jumps of the other actions, if these are simple and right."""
        state = self.seen.state[self.seen.rows]
        jumped = self._followed_back(flow) - state
        jumps: list[list[Term]] = [[] for _ in flow.names]
        weights: list[list[float]] = [[] for _ in flow.names]
        for level in others.astype(int).tolist():
            for index in range(len(flow.names)):
                found = self._jump(jumped, index, self._actions == level)
                if found is None:
                    return None
                for term, weight in zip(found.terms, found.weights, strict=True):
                    text = f"(action == {level})"
                    text = text if term.text == "1" else f"{text} * {term.text}"
                    values = term.values * (self._actions == level)
                    jumps[index].append(Term(text, values, term.cost))
                    weights[index].append(weight)
        sums = zip(jumps, weights, strict=True)
        found_jumps = tuple(Formula(tuple(terms), tuple(own)) for terms, own in sums)
        return self._judged(replace(flow, jumps=found_jumps))

    def _followed_back(self, flow: Flow) -> Array:
        """Return the states from which the flow leads to those after every step."""
        state, field = self.seen.state[self.seen.rows], field_of(self.seen, flow.formulas)
        wanted = state + self.seen.change[self.seen.rows]
        size = 1e-6 * (np.abs(state).mean(0) + 1e-9)
        for _ in range(NEWTON):
            off = wanted - advanced(flow.scheme, state, field)[0]
            slopes = [
                (advanced(flow.scheme, state + step, field)[0] - wanted + off) / step.max()
                for step in np.diag(size)
            ]
            jacobian = np.stack(slopes, -1)
            singular = ~(np.abs(np.linalg.det(jacobian)) > 1e-12)
            jacobian[singular] = np.eye(len(size))
            state = state + np.linalg.solve(jacobian, off[..., None])[..., 0]
        found: Array = np.nan_to_num(state)
        return found

    def _jump(self, jumped: Array, index: int, rows: Array) -> Formula | None:
        """Return a short formula of how much an action changes a variable at once."""
        learn = np.flatnonzero(rows & (np.arange(len(rows)) < len(self.seen.learn)))
        if len(learn) < FEWEST_ROWS:
            return None
        tolerance = self.seen.tolerance[self.seen.rows][:, index]
        columns = [v.column for v in self.seen.variables]
        own = [NamedColumn(c.text, c.values[self.seen.rows], c.is_angle) for c in columns]
        terms = library(own, [], 2)
        return exact(terms, jumped[:, index], tolerance, learn, self.seen.effort, SEARCH)

    def _judged(self, flow: Flow) -> Flow | None:
        """Return the flow if it is right in the rows held back."""
        seen, rows = self.seen, self.seen.rows
        state = seen.state[rows]
        start = state + np.stack([jump.values(len(rows)) for jump in flow.jumps], 1)
        after = advanced(flow.scheme, start, field_of(seen, flow.formulas))[0]
        missed = np.abs(after - state - seen.change[rows]) / seen.tolerance[rows]
        return flow if (missed[len(seen.learn) :] <= 4).all(1).mean() >= 0.97 else None
