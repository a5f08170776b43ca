"""Fits of vector fields with inner constants, and of vector fields after a jump.

`AtomicFieldFit` fits fields with constants inside terms (atoms). It searches atoms in rows with
small changes, because stages on a straight line are almost exact there. For each integration
scheme, it then alternates between stages, constants and weights.

`JumpFit` fits instantaneous effects of an action before the state flows. One action is assumed to
cause no jump, and its rows determine the field. In all other rows, Newton's method solves for the
state after the jump, at which the flow starts. Formulas are then fitted to the jumps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.inner_constants import Atom, Inner, Scan, atoms, factors
from cwm_induction.continuous.regression import Formula, SearchLimits, Target, exact, solve
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn, Term, library
from cwm_induction.flows.fitting import FieldFit, FlowData, averages_of, evaluator, field_of
from cwm_induction.flows.flow import Flow, Scheme, SchemeStage, advance, schemes

CALM = 0.6
"""Fraction of the rows, with the smallest changes, for the search of atoms."""

ROUNDS = 3
"""Iterations of each scheme; each atom gets twice this number."""

MORE_ROUNDS = 10
"""Iterations of the schemes with the smallest errors."""

PROMISING = 3
"""Number of schemes with further iterations."""

CANDIDATES = 8
"""Number of atoms per variable that are tested as a common atom of all variables."""

STARTS = 2
"""Number of sets of atoms that are tested with all schemes."""

HOPELESS = 200
"""Maximum error of a set of atoms for further iterations, in units of the tolerance."""

NEAR = 0.02
"""Errors up to this value, in units of the tolerance, need no atom."""

START = Scheme("runge-kutta", 1)
"""Scheme of the search for atoms: it approximates every scheme with several stages."""

MOST_ACTIONS = 6
"""Maximum number of actions: with more actions, each has too few rows."""

FEWEST_ROWS = 12
"""Minimum number of rows of an action to determine its jump."""

NEWTON = 6
"""Steps of Newton's method for the state before the flow."""

SEARCH = SearchLimits(size=3, beam=6, branch=6)
"""Limits of the search for a jump: up to three terms, because a dozen rows must suffice."""


class _Guess(NamedTuple):
    """The atoms of every variable with their constants, the stages and the error of the field."""

    inners: list[Inner]
    stages: list[SchemeStage]
    error: float


@dataclass(frozen=True)
class AtomicFieldFit:
    """A fit of a vector field with few inner constants."""

    data: FlowData

    def flow(self) -> Flow | None:
        """Return the first exact flow, or None; schemes with small errors come first."""
        if len(self.data.learn) < 40 or len(self.data.check) < 4:
            return None
        for inners in self._starts():
            flow = self._fit_schemes(inners)
            if flow is not None:
                return flow
        return None

    def _fit_schemes(self, inners: list[Inner]) -> Flow | None:
        """Fit all schemes, then iterate further with the schemes of the smallest errors."""
        fits = []
        for number, scheme in enumerate(schemes(len(self.data.variables))):
            if not scheme.order and scheme.parts <= 10:
                guess = self._improve(scheme, inners, self._straight_stages(scheme), ROUNDS)
                fits.append((guess.error, number, scheme, guess))
            if not self.data.effort.spend(0):
                return None
        for _, _, scheme, guess in sorted(fits, key=lambda entry: entry[:2])[:PROMISING]:
            best = self._improve(scheme, guess.inners, guess.stages, MORE_ROUNDS)
            flow = self._to_flow(scheme, best) if best.error <= 2 else None
            if flow is not None:
                return flow
        return None

    def _starts(self) -> list[list[Inner]]:
        """Return sets of atoms with small errors, found with one common atom in all variables."""
        stages = self._straight_stages(START)
        shared: dict[str, Inner] = {}
        for index in range(len(self.data.variables)):
            scan = self._scan(index, stages, calm=True)
            if scan.worst(Inner())[0] > NEAR:
                columns = [c for c in self._columns(stages) if len(np.unique(c.values)) > 2]
                for inner in scan.ranked(Inner(), atoms(columns), patient=True)[:CANDIDATES]:
                    shared.setdefault(inner.atoms[0].texts(0.5)[0], inner)
        fits = []
        for number, inner in enumerate(shared.values()):
            guess = self._improve(START, [inner] * len(self.data.variables), stages, 2 * ROUNDS)
            if guess.error <= HOPELESS:
                fits.append((guess.error, number, guess.inners))
        return [inners for *_, inners in sorted(fits, key=lambda entry: entry[:2])[:STARTS]]

    def _improve(
        self, scheme: Scheme, inners: Sequence[Inner], stages: list[SchemeStage], rounds: int
    ) -> _Guess:
        """Alternate between constants, weights and stages; return the best iteration."""
        best = _Guess(list(inners), stages, np.inf)
        for _ in range(rounds):
            inners = [
                self._scan(index, stages, calm=True).refined(self._at_stages(inner, stages))
                for index, inner in enumerate(inners)
            ]
            weights, texts = self._fit_weights(inners, stages)
            field = self.data.field(evaluator(texts), weights, len(self._terms))
            after, stages = advance(scheme, self.data.state[self.data.rows], field)
            error = float(np.quantile(self.data.errors(after).max(1), 0.8))
            if error < best.error:
                best = _Guess(list(inners), stages, error)
            if error > 3 * best.error:
                break
        return best

    def _fit_weights(
        self, inners: Sequence[Inner], stages: Sequence[SchemeStage]
    ) -> tuple[Array, list[str]]:
        """Return the weights of all terms (terms, variables), and the expressions of the terms."""
        learn = self._calm
        texts = [term.text for term in self._terms]
        columns = []
        for index, inner in enumerate(inners):
            scan = self._scan(index, stages)
            own = [*scan.terms, *scan.expanded(inner)]
            matrix = np.nan_to_num(np.stack([term.values[learn] for term in own], 1))
            solution = solve(matrix, self.data.change[self.data.rows][learn, index])
            columns.append(dict(zip((term.text for term in own), solution.tolist(), strict=True)))
            texts += [term.text for term in own if term.text not in texts]
        return np.array([[own.get(text, 0.0) for own in columns] for text in texts]), texts

    def _to_flow(self, scheme: Scheme, guess: _Guess) -> Flow | None:
        """Remove needless terms and round the numbers; return None if the flow is not exact."""
        formulas = []
        for index, inner in enumerate(guess.inners):
            moved = self._at_stages(inner, guess.stages)
            formula = self._scan(index, guess.stages).written(moved)
            if formula is None:
                return None
            formulas.append(formula)
        return FieldFit(self.data).polish(scheme, formulas)

    def _scan(self, index: int, stages: Sequence[SchemeStage], calm: bool = False) -> Scan:
        """Return a search for the atoms of a variable at given stages."""
        averages = averages_of(START, stages)[0]
        terms = [t._replace(values=averages[:, i]) for i, t in enumerate(self._terms)]
        variable, rows = self.data.variables[index], self.data.rows
        usable = self._calm if calm else np.arange(len(rows)) < len(self.data.learn)
        target = Target(variable.change[rows], variable.quarter[rows], usable)
        columns = self._columns(stages)
        count = len(self.data.variables)
        products = factors(columns[:count], columns[count:])
        weights = np.array([stage.weights[0] for stage in stages])
        return Scan(terms, products, target, self.data.effort, weights)

    def _at_stages(self, inner: Inner, stages: Sequence[SchemeStage]) -> Inner:
        """Return the same atoms, evaluated at other stages."""
        columns = {column.text: column for column in self._columns(stages)}
        moved = tuple(Atom(atom.shape, columns[atom.column.text]) for atom in inner.atoms)
        return inner._replace(atoms=moved)

    def _columns(self, stages: Sequence[SchemeStage]) -> list[NamedColumn]:
        """Return the variables and inputs at all stages, concatenated over the stages."""
        states = np.stack([stage.rates.state for stage in stages])
        states = np.clip(states, *self.data.range)
        moving = [
            NamedColumn(variable.name, states[:, :, i].ravel(), variable.is_angle)
            for i, variable in enumerate(self.data.variables)
        ]
        rows = self.data.rows
        still = [
            NamedColumn(c.text, np.tile(c.values[rows], len(stages))) for c in self.data.others
        ]
        return [*moving, *still]

    def _straight_stages(self, scheme: Scheme) -> list[SchemeStage]:
        return self.data.straight_stages(scheme, evaluator([term.text for term in self._terms]))

    @cached_property
    def _terms(self) -> list[Term]:
        """The library of terms without atoms."""
        columns = [variable.column for variable in self.data.variables]
        terms = [t for t in library(columns, self.data.others, 2) if t.cost <= 2]
        room = len(self.data.learn) // 4
        return sorted(terms, key=lambda term: term.cost)[:room]

    @cached_property
    def _calm(self) -> Array:
        """Mask of the training rows with small changes, relative to the mean change."""
        change = np.abs(self.data.change[self.data.rows])
        largest = (change / (change.mean(0) + 1e-300)).max(1)
        count = len(self.data.learn)
        mask: Array = largest <= np.quantile(largest[:count], CALM)
        mask[count:] = False
        return mask


@dataclass(frozen=True)
class JumpFit:
    """A fit of jumps that depend on the action, before a flow of one of the families."""

    data: FlowData
    families: Sequence[Callable[[FlowData], Flow | None]]

    def flow(self) -> Flow | None:
        """Return the first flow of one action that explains all other actions after jumps."""
        levels = np.unique(self._actions)
        discrete = self.data.samples.action_space.kind == "discrete"
        if not discrete or not 2 <= len(levels) <= MOST_ACTIONS:
            return None
        for family in self.families:
            for level in levels.tolist():
                flow = family(self._data_of(level)) if self.data.effort.spend(0) else None
                extended = self._add_jumps(flow, levels[levels != level]) if flow else None
                if extended is not None:
                    return extended
        return None

    @cached_property
    def _actions(self) -> Array:
        actions: Array = self.data.samples.actions[self.data.rows, 0]
        return actions

    def _data_of(self, level: float) -> FlowData:
        """Return the data of one action, with the columns that vary within its rows."""
        among = self.data.samples.actions[:, 0] == level
        others = [c for c in self.data.others if np.ptp(c.values[among]) > 0]
        return replace(self.data, among=among, others=others)

    def _add_jumps(self, flow: Flow, others: Array) -> Flow | None:
        """Add the jumps of the other actions, or return None without simple and exact jumps."""
        state = self.data.state[self.data.rows]
        jumped = self._states_before_flow(flow) - state
        jumps: list[list[Term]] = [[] for _ in flow.names]
        weights: list[list[float]] = [[] for _ in flow.names]
        for level in others.astype(int).tolist():
            for index in range(len(flow.names)):
                jump = self._jump(jumped, index, self._actions == level)
                if jump is None:
                    return None
                for term, weight in zip(jump.terms, jump.weights, strict=True):
                    text = f"(action == {level})"
                    text = text if term.text == "1" else f"{text} * {term.text}"
                    values = term.values * (self._actions == level)
                    jumps[index].append(Term(text, values, term.cost))
                    weights[index].append(weight)
        sums = zip(jumps, weights, strict=True)
        formulas = tuple(Formula(tuple(terms), tuple(own)) for terms, own in sums)
        start = state + np.stack([each.values(len(state)) for each in formulas], 1)
        after = advance(flow.scheme, start, field_of(self.data, flow.formulas))[0]
        return replace(flow, jumps=formulas) if self.data.is_right(after) else None

    def _states_before_flow(self, flow: Flow) -> Array:
        """Solve for the states at which the flow must start to reach the next states."""
        state, field = self.data.state[self.data.rows], field_of(self.data, flow.formulas)
        wanted = state + self.data.change[self.data.rows]
        size = 1e-6 * (np.abs(state).mean(0) + 1e-9)
        for _ in range(NEWTON):
            off = wanted - advance(flow.scheme, state, field)[0]
            slopes = [
                (advance(flow.scheme, state + step, field)[0] - wanted + off) / step.max()
                for step in np.diag(size)
            ]
            jacobian = np.stack(slopes, -1)
            singular = ~(np.abs(np.linalg.det(jacobian)) > 1e-12)
            jacobian[singular] = np.eye(len(size))
            state = state + np.linalg.solve(jacobian, off[..., None])[..., 0]
        start: Array = np.nan_to_num(state)
        return start

    def _jump(self, jumped: Array, index: int, rows: Array) -> Formula | None:
        """Return a short formula of the jump of a variable by an action, or None."""
        learn = np.flatnonzero(rows & (np.arange(len(rows)) < len(self.data.learn)))
        if len(learn) < FEWEST_ROWS:
            return None
        tolerance = self.data.tolerance[self.data.rows][:, index]
        columns = [v.column for v in self.data.variables]
        own = [NamedColumn(c.text, c.values[self.data.rows], c.is_angle) for c in columns]
        terms = library(own, [], 2)
        return exact(terms, jumped[:, index], tolerance, learn, self.data.effort, SEARCH)


FLOWS: tuple[Callable[[FlowData], Flow | None], ...] = (
    lambda data: FieldFit(data).flow(),
    lambda data: AtomicFieldFit(data).flow(),
    lambda data: JumpFit(data, FLOWS[:2]).flow(),
)
"""Searches for a vector field, the cheapest first."""
