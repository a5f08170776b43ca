"""Families of vector fields beyond sums of terms: with inner constants, and behind a jump.

`AtomicFieldFit` fits fields with constants inside a term: the atoms are looked for in rows
that change little, where stages on the straight line are nearly right; then stages, constants
and weights are improved in turn, under one scheme after another.

`JumpFit` explains what an action changes at once before the state flows. The field is that of
the rows of one action, without a jump. Every other row is followed back along it to the state
after the jump, and the jumps are explained.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.atoms import Atom, atoms
from cwm_induction.continuous.inner_constants import Inner, Scan, factors
from cwm_induction.continuous.regression import Formula, SearchLimits, Target, exact, solve
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.terms import NamedColumn, Term, library
from cwm_induction.flows.fitting import FieldFit, FlowData, averages_of, evaluator, field_of
from cwm_induction.flows.flow import Flow, Scheme, SchemeStage, advanced, schemes

CALM = 0.6
"""Share of the rows, those that change least, in which atoms are looked for."""

ROUNDS = 3
"""Rounds of improvement under every scheme, and twice as many for every atom."""

MORE_ROUNDS = 10
"""Rounds under the schemes that leave least unexplained."""

PROMISING = 3
"""Schemes that are improved further."""

CANDIDATES = 8
"""Atoms of every variable that are tried in all variables together."""

STARTS = 2
"""Sets of atoms that all schemes are tried with."""

HOPELESS = 200
"""Errors of a set of atoms, in units of the tolerance, beyond which it is given up."""

NEAR = 0.02
"""Errors, in units of the tolerance, that need no further term."""

START = Scheme("runge-kutta", 1)
"""What atoms are looked for under: nearly right for every scheme of several stages."""

MOST_ACTIONS = 6
"""Actions beyond which there are too few rows of each."""

FEWEST_ROWS = 12
"""Rows of an action below which its jump would be a guess."""

NEWTON = 6
"""Steps of Newton's method towards the state before a flow."""

SEARCH = SearchLimits(size=3, beam=6, branch=6)
"""Jumps of up to three terms, which as few as a dozen rows have to determine."""


class _Guess(NamedTuple):
    """Atoms with constants for every variable, the stages that they lead to, and what is missed."""

    inners: list[Inner]
    stages: list[SchemeStage]
    off: float


@dataclass(frozen=True)
class AtomicFieldFit:
    """Fits a vector field with few inner constants to what was seen."""

    seen: FlowData

    def flow(self) -> Flow | None:
        """Return the flow of the scheme that leaves least unexplained, if it is exact."""
        if len(self.seen.learn) < 40 or len(self.seen.check) < 4:
            return None
        for inners in self._starts():
            flow = self._under_schemes(inners)
            if flow is not None:
                return flow
        return None

    def _under_schemes(self, inners: list[Inner]) -> Flow | None:
        """Try the schemes, and improve further under those that leave least unexplained."""
        tried = []
        for number, scheme in enumerate(schemes(len(self.seen.variables))):
            if not scheme.order and scheme.parts <= 10:
                guess = self._improved(scheme, inners, self._straight(scheme), ROUNDS)
                tried.append((guess.off, number, scheme, guess))
            if not self.seen.effort.spend(0):
                return None
        for _, _, scheme, guess in sorted(tried, key=lambda entry: entry[:2])[:PROMISING]:
            best = self._improved(scheme, guess.inners, guess.stages, MORE_ROUNDS)
            flow = self._written(scheme, best) if best.off <= 2 else None
            if flow is not None:
                return flow
        return None

    def _starts(self) -> list[list[Inner]]:
        """Return the atoms that do best when all variables share one, each with its constants."""
        stages = self._straight(START)
        shared: dict[str, Inner] = {}
        for index in range(len(self.seen.variables)):
            scan = self._scan(index, stages, calm=True)
            if scan.worst(Inner())[0] > NEAR:
                columns = [c for c in self._columns(stages) if len(np.unique(c.values)) > 2]
                for inner in scan.ranked(Inner(), atoms(columns), patient=True)[:CANDIDATES]:
                    shared.setdefault(inner.atoms[0].texts(0.5)[0], inner)
        tried = []
        for number, inner in enumerate(shared.values()):
            guess = self._improved(START, [inner] * len(self.seen.variables), stages, 2 * ROUNDS)
            if guess.off <= HOPELESS:
                tried.append((guess.off, number, guess.inners))
        return [inners for *_, inners in sorted(tried, key=lambda entry: entry[:2])[:STARTS]]

    def _improved(
        self, scheme: Scheme, inners: Sequence[Inner], stages: list[SchemeStage], rounds: int
    ) -> _Guess:
        """Improve constants, weights and stages in turn."""
        best = _Guess(list(inners), stages, np.inf)
        for _ in range(rounds):
            inners = [
                self._scan(index, stages, calm=True).refined(self._moved(inner, stages))
                for index, inner in enumerate(inners)
            ]
            weights, texts = self._weighed(inners, stages)
            field = self.seen.field(evaluator(texts), weights, len(self._terms))
            after, stages = advanced(scheme, self.seen.state[self.seen.rows], field)
            off = float(np.quantile(self.seen.missed(after).max(1), 0.8))
            if off < best.off:
                best = _Guess(list(inners), stages, off)
            if off > 3 * best.off:
                break
        return best

    def _weighed(
        self, inners: Sequence[Inner], stages: Sequence[SchemeStage]
    ) -> tuple[Array, list[str]]:
        """Return the weights of all terms (terms, variables), and their texts."""
        learn = self._calm
        texts = [term.text for term in self._terms]
        columns = []
        for index, inner in enumerate(inners):
            scan = self._scan(index, stages)
            own = [*scan.terms, *scan.expanded(inner)]
            matrix = np.nan_to_num(np.stack([term.values[learn] for term in own], 1))
            found = solve(matrix, self.seen.change[self.seen.rows][learn, index])
            columns.append(dict(zip((term.text for term in own), found.tolist(), strict=True)))
            texts += [term.text for term in own if term.text not in texts]
        return np.array([[own.get(text, 0.0) for own in columns] for text in texts]), texts

    def _written(self, scheme: Scheme, guess: _Guess) -> Flow | None:
        """Leave out what is not needed, shorten the numbers, and judge."""
        formulas = []
        for index, inner in enumerate(guess.inners):
            moved = self._moved(inner, guess.stages)
            formula = self._scan(index, guess.stages).written(moved)
            if formula is None:
                return None
            formulas.append(formula)
        return FieldFit(self.seen).polished(scheme, formulas)

    def _scan(self, index: int, stages: Sequence[SchemeStage], calm: bool = False) -> Scan:
        """Return a search for the atoms of a variable, given the stages."""
        averages = averages_of(START, stages)[0]
        terms = [t._replace(values=averages[:, i]) for i, t in enumerate(self._terms)]
        variable, rows = self.seen.variables[index], self.seen.rows
        usable = self._calm if calm else np.arange(len(rows)) < len(self.seen.learn)
        target = Target(variable.change[rows], variable.quarter[rows], usable)
        columns = self._columns(stages)
        count = len(self.seen.variables)
        products = factors(columns[:count], columns[count:])
        weights = np.array([stage.weights[0] for stage in stages])
        return Scan(terms, products, target, self.seen.effort, weights)

    def _moved(self, inner: Inner, stages: Sequence[SchemeStage]) -> Inner:
        """Return the same atoms at other stages."""
        columns = {column.text: column for column in self._columns(stages)}
        moved = tuple(Atom(atom.shape, columns[atom.column.text]) for atom in inner.atoms)
        return inner._replace(atoms=moved)

    def _columns(self, stages: Sequence[SchemeStage]) -> list[NamedColumn]:
        """Return the variables and inputs at all stages, one after another."""
        states = np.stack([stage.rates.state for stage in stages])
        states = np.clip(states, *self.seen.range)
        moving = [
            NamedColumn(variable.name, states[:, :, i].ravel(), variable.is_angle)
            for i, variable in enumerate(self.seen.variables)
        ]
        rows = self.seen.rows
        still = [
            NamedColumn(c.text, np.tile(c.values[rows], len(stages))) for c in self.seen.others
        ]
        return [*moving, *still]

    def _straight(self, scheme: Scheme) -> list[SchemeStage]:
        return self.seen.straight(scheme, evaluator([term.text for term in self._terms]))

    @cached_property
    def _terms(self) -> list[Term]:
        """The terms that stand beside atoms."""
        columns = [variable.column for variable in self.seen.variables]
        terms = [t for t in library(columns, self.seen.others, 2) if t.cost <= 2]
        room = len(self.seen.learn) // 4
        return sorted(terms, key=lambda term: term.cost)[:room]

    @cached_property
    def _calm(self) -> Array:
        """Mask of the rows to fit to that change little, relative to how much is usual."""
        change = np.abs(self.seen.change[self.seen.rows])
        largest = (change / (change.mean(0) + 1e-300)).max(1)
        count = len(self.seen.learn)
        mask: Array = largest <= np.quantile(largest[:count], CALM)
        mask[count:] = False
        return mask


@dataclass(frozen=True)
class JumpFit:
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
        start = state + np.stack([jump.values(len(state)) for jump in found_jumps], 1)
        after = advanced(flow.scheme, start, field_of(self.seen, flow.formulas))[0]
        return replace(flow, jumps=found_jumps) if self.seen.is_right(after) else None

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


FLOWS: tuple[Callable[[FlowData], Flow | None], ...] = (
    lambda seen: FieldFit(seen).flow(),
    lambda seen: AtomicFieldFit(seen).flow(),
    lambda seen: JumpFit(seen, FLOWS[:2]).flow(),
)
"""Ways to look for a vector field, the cheapest first."""
