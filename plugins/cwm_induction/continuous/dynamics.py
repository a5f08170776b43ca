"""Explain the changes of variables: equations, mechanisms, vector fields, laws, approximations.

The families of explanations are tried in order on the unexplained variables, the simplest first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cwm_induction.continuous.cases import CasedFormula, formula_with_cases
from cwm_induction.continuous.chains import Chains
from cwm_induction.continuous.inner_constants import derived, equation
from cwm_induction.continuous.regression import Formula, sparse
from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.terms import ONE, NamedColumn, Term, library, products
from cwm_induction.continuous.variables import (
    Variable,
    indicators,
    inputs_of,
    settled,
)
from cwm_induction.effort import Effort
from cwm_induction.flows.atomic import AtomicFieldFit
from cwm_induction.flows.fields import FieldFit, Flow
from cwm_induction.laws.explaining import LawExplainer, case_columns, unknown_of
from cwm_induction.laws.guarded import GuardedLaws, guarded
from cwm_induction.mechanics.fitting import again, fit
from cwm_induction.mechanics.kinematics import Kinematics
from cwm_induction.mechanics.motion import Joint, Mechanics, Motion, joints_of
from cwm_induction.rules import Feature

MAX_TERMS = 8
"""A mechanism that predicts equally well replaces equations with more terms than this."""

LAWS_SHARE, LAST_LAWS_SHARE = 0.1, 0.9
"""Shares of the remaining work units for a search for laws: before other families, and after."""

ALMOST = 0.9
"""Share of the check rows that laws must predict before other families are tried."""

FEWEST_EXCEPTIONS = 2
"""Minimum number of wrong rows of an equation that starts a search for further laws."""

MOST_CASES = 8
"""Cases of an approximation are split further only up to this number."""


@dataclass(frozen=True)
class Hypothesis:
    """The families of explanations to try; `level` is the largest library of terms."""

    level: int = 3
    mechanics: bool = True
    laws: bool = True


@dataclass
class Explanations:
    """An explanation for every variable, by name."""

    formulas: dict[str, Formula] = field(default_factory=dict)
    rough: dict[str, Formula] = field(default_factory=dict)
    trees: dict[str, CasedFormula] = field(default_factory=dict)
    """Regression trees that replace approximate formulas."""
    laws: dict[str, GuardedLaws] = field(default_factory=dict)
    mechanics: Mechanics | None = None
    kinematics: Kinematics | None = None
    flow: Flow | None = None
    is_known: bool = False
    """Whether the mechanism comes from a search in fewer rows."""

    @property
    def reads(self) -> dict[str, set[str]]:
        """The names that each explanation reads, without approximations."""
        flow = self.flow
        return {
            **{name: formula.names for name, formula in self.formulas.items()},
            **{name: found.names for name, found in self.laws.items()},
            **{name: set() for name in (self.mechanics.names if self.mechanics else ())},
            **({name: flow.reads for name in flow.names} if flow else {}),
        }

    @property
    def explained(self) -> set[str]:
        """Names of the variables with an explanation."""
        return {*self.reads, *self.rough}


@dataclass
class Explainer:
    """A search that tries the families of explanations in order on unexplained variables."""

    samples: Samples
    variables: Sequence[Variable]
    hypothesis: Hypothesis
    rng: np.random.Generator
    effort: Effort
    found: Explanations = field(default_factory=Explanations)
    known: Mechanics | None = None
    """A mechanism from a search in fewer rows."""
    candidate: Mechanics | None = field(default=None, init=False)
    """The best mechanism of the search, which may be accepted later."""

    def explain(self) -> Explanations:
        """Explain every variable."""
        self._known_mechanism()
        self._equations()
        if self.hypothesis.laws:
            self._laws(least=ALMOST)
            if self.found.laws:
                self._equations()
        if self.found.mechanics is not None:
            self._positions(self.found.mechanics)
        if self.hypothesis.mechanics:
            self.effort.tell("fitting equations of mechanics")
            self._simpler_mechanism()
        self._flow(FieldFit.flow, 0.4)
        self._further_equations()
        self._flow(lambda fit: AtomicFieldFit(fit).flow(), 0.7)
        if self.found.mechanics is None:
            self._accept_mechanism(least=0.2)
        if self.hypothesis.laws:
            self._laws(least=0.0)
        for variable in self._unexplained():
            formula = self._approximation(variable)
            self.found.rough[variable.name] = formula
            if not self.samples.remembered:
                columns = [*(v.column for v in self.variables), *self._inputs]
                columns += self._settled(variable)
                cased = formula_with_cases(variable, formula, self.samples, columns)
                if cased is not None:
                    self.found.trees[variable.name] = cased
        self._exceptions()
        return self.found

    def _equations(self) -> None:
        """Explain variables by equations that hold in all rows."""
        formulas = self.found.formulas
        chains = Chains(
            self.samples,
            self.variables,
            self._inputs,
            self.effort.share(0.5),
            self.hypothesis.level,
            formulas,
            {name: read for name, read in self.found.reads.items() if name not in formulas},
        )
        self.found.formulas = chains.explain()

    def _laws(self, least: float) -> None:
        """Explain variables by laws that hold in parts of the rows.

        Laws must predict the share `least` of the check rows; if it is 0, they must predict more
        rows than an approximation.
        """
        names = [v.name for v in self._unexplained()]
        if not names:
            return
        explainer = self._explainer(LAWS_SHARE if least > 0 else LAST_LAWS_SHARE)
        laws_by_name = explainer.explain(names, least)
        for variable in self.variables:
            laws = laws_by_name.get(variable.name)
            if laws is not None and (least > 0 or self._beats_approximation(variable, laws)):
                self.found.laws[variable.name] = laws

    def _beats_approximation(self, variable: Variable, laws: GuardedLaws) -> bool:
        check, rows = self.samples.smooth & ~self.samples.learn, len(self.samples)
        rough = self._approximation(variable)
        changes = [explanation.values(rows) for explanation in (laws, rough)]
        if self.samples.remembered:  # programs with memory are scored by the sizes of errors
            errors = [float(np.abs(c - variable.change)[check].mean()) for c in changes]
            return errors[0] < errors[1]
        right = [int(variable.matches(change)[check].sum()) for change in changes]
        return right[0] > right[1]

    def _exceptions(self) -> None:
        """Add laws to an equation that is wrong in some rows, if they fix half of the errors."""
        for variable in self.variables:
            formula = self.found.formulas.get(variable.name)
            if formula is None:
                continue
            right = variable.matches(formula.values(len(self.samples)))[self.samples.smooth]
            if right.all():
                continue
            if (stops := self._stops(variable, formula)) is not None:
                self.found.laws[variable.name] = stops
                del self.found.formulas[variable.name]
                self._read_before_stop(variable, formula)
                continue
            if (~right).sum() < FEWEST_EXCEPTIONS:
                continue
            laws = self._explainer(LAWS_SHARE).laws(variable, [formula])
            if laws is not None and len(laws.formulas) > 1:
                now = variable.matches(laws.values(len(self.samples)))[self.samples.smooth]
                if now.sum() - right.sum() >= (~right).sum() / 2:
                    self.found.laws[variable.name] = laws
                    del self.found.formulas[variable.name]

    def _stops(self, variable: Variable, formula: Formula) -> GuardedLaws | None:
        """Add the law that a variable becomes 0 when another one reaches its limit, as at a wall.

        The law must correct every wrong prediction of the equation. Stops are common, so a single
        row is enough.
        """
        smooth = self.samples.smooth
        stopped = Formula((Term(variable.name, variable.now, 1.0),), (-1.0,))
        wrong = smooth & ~variable.matches(formula.values(len(self.samples)))
        others = [v for v in self.variables if v is not variable and not v.is_whole]
        at_wall = np.any([~other.free for other in others], axis=0) & np.ones_like(wrong)
        becomes_zero = variable.matches(stopped.values(len(self.samples)))
        if not (at_wall & becomes_zero)[wrong].all():
            return None
        unknown = unknown_of(variable, self.samples)
        laws = [unknown.law(each) for each in (formula, stopped)]
        [case] = case_columns(variable.column, [formula])
        moving = [v.column for v in self.variables if not v.still and v is not variable]
        features = [
            Feature(f"{column.text} + {case.text}", column.values + case.values, 1.0)
            for column in moving
        ]
        found = guarded(laws, features, smooth, self.effort.share(LAWS_SHARE))
        right = variable.matches(found.values(len(self.samples)))
        return found if found.rules and right[smooth].all() else None

    def _read_before_stop(self, variable: Variable, formula: Formula) -> None:
        """Make other equations read the value of a variable before it stopped at a wall.

        A position beyond its limit follows from the speed before the stop.
        """
        if any(name.endswith("_next") for name in formula.names):
            return
        [case] = case_columns(variable.column, [formula])
        before = Term(case.text, case.values, 1.2)
        for name, other in self.found.formulas.items():
            terms = tuple(before if term.text == variable.next else term for term in other.terms)
            self.found.formulas[name] = Formula(terms, other.weights)

    def _explainer(self, share: float) -> LawExplainer:
        return LawExplainer(
            self.samples,
            self.variables,
            self._inputs,
            self.found.reads,
            self.rng,
            self.effort.share(share),
        )

    def _flow(self, search: Callable[[FieldFit], Flow | None], share: float) -> None:
        """Search for a vector field and an integrator that explain all moving real variables."""
        moving = [v for v in self.variables if not v.still and not v.is_whole]
        if self._open() & {v.name for v in moving} and len(moving) <= 8:
            whole = [v.column for v in self.variables if not v.still and v.is_whole]
            others = [*self._inputs, *whole]
            flow = search(FieldFit(moving, others, self.samples, self.effort.share(share)))
            if flow is not None:
                self.found.flow = flow
                for name in flow.names:
                    self.found.formulas.pop(name, None)
                    self.found.laws.pop(name, None)

    def _further_equations(self) -> None:
        """Explain variables by equations with inner constants, or by functions of next values."""
        effort, before = self.effort.share(0.4), self._open()
        columns = [variable.column for variable in self.variables]
        for variable in self._unexplained():
            if not effort.spend(0):
                break
            chain = self._settled(variable)
            formula = equation(variable, self.samples, columns, chain, self._inputs, effort)
            if formula is None and not variable.is_whole:
                formula = derived(variable, self.samples, chain, effort)
            if formula is not None:
                self.found.formulas[variable.name] = formula
        if self._open() != before:
            self._equations()

    def _simpler_mechanism(self) -> None:
        """Search for a mechanism, which may also replace long equations that may be overfitted."""
        long = {n: f for n, f in self.found.formulas.items() if len(f.terms) > MAX_TERMS}
        for name in long:
            del self.found.formulas[name]
        self._mechanism(least=0.97 if long else 0.8)
        left = long.keys() - self.found.explained
        self.found.formulas |= {name: long[name] for name in left}

    def _known_mechanism(self) -> None:
        """Accept the mechanism from fewer rows if it still predicts equally well."""
        if self.known is None or not self.hypothesis.mechanics:
            return
        joints, _ = joints_of(self.samples, self.variables)
        inputs = {tuple(c.text for c in columns): columns for columns in self._candidate_inputs()}
        pushes = inputs.get(tuple(column.text for column in self.known.inputs))
        if pushes is not None:
            self.found.mechanics = again(self.known, self.samples, joints, pushes, self.effort)
            self.found.is_known = self.found.mechanics is not None

    def _mechanism(self, least: float) -> None:
        """Search for a mechanism, and accept it above the share `least` of right check rows.

        If the best one explains few rows, the fit may have ended in a local minimum: try again.
        """
        joints, time = joints_of(self.samples, self.variables)
        joints = [j for j in joints if {j.position.name, j.velocity.name} & self._open()]
        candidates = self._candidate_inputs() if joints else []
        self._fit_mechanism(joints, candidates, time)
        if self.candidate is not None and self.candidate.right <= 0.9:
            self._fit_mechanism(joints, candidates, time)
        self._accept_mechanism(least)

    def _fit_mechanism(
        self, joints: list[Joint], candidates: list[list[NamedColumn]], time: float
    ) -> None:
        """Keep the best mechanism over the candidate inputs; stop at a good one."""
        for inputs in candidates:
            motion, effort = Motion.of(joints, inputs, time), self.effort.share(0.5)
            mechanics = fit(self.samples, joints, inputs, motion, self.rng, effort)
            best = self.candidate
            if mechanics is not None and (best is None or mechanics.right > best.right):
                self.candidate = mechanics
            if self.candidate is not None and self.candidate.right > 0.9:
                return

    def _accept_mechanism(self, least: float) -> None:
        mechanics = self.candidate
        if mechanics is None or mechanics.right <= least or not self._open() & {*mechanics.names}:
            return
        self.found.mechanics = mechanics
        for moved in mechanics.names:
            self.found.formulas.pop(moved, None)
        self._positions(mechanics)

    def _positions(self, mechanics: Mechanics) -> None:
        """Explain variables by the positions of a mechanism's parts."""
        self.found.kinematics = kinematics = Kinematics.of(mechanics)
        still = [variable.column for variable in self.variables if variable.still]
        for variable in self._unexplained():
            effort = self.effort.share(0.1)
            formula = kinematics.component(self.samples, variable, still, effort)
            if formula is not None:
                self.found.formulas[variable.name] = formula

    def _candidate_inputs(self) -> list[list[NamedColumn]]:
        """Return candidate inputs of a mechanism: the action's number, or one indicator each."""
        if self.samples.action_space.kind != "discrete":
            return [self._inputs]
        single = indicators(self.samples.actions[:, 0])[1:]
        return [self._inputs[:1], single] if single else [self._inputs[:1]]

    def _approximation(self, variable: Variable) -> Formula:
        """Return a sum of few terms, or an empty one if no change predicts more rows.

        With memory, the sum has products and is always accepted, because programs with memory are
        scored by the sizes of errors.
        """
        samples, columns = self.samples, [v.column for v in self.variables]
        check, target = samples.smooth & ~samples.learn, variable.change
        rows = samples.smooth & samples.learn, check
        if samples.remembered:
            plain, cases = products(columns, []), _cases(samples, columns)
            crossed = [_crossed(case, term) for case in cases for term in plain]
            return sparse([*products(columns, self._inputs), *crossed], target, *rows)
        formula, none = sparse(library(columns, self._inputs, 1), target, *rows), Formula((), ())
        right = [variable.matches(f.values(len(samples)))[check].sum() for f in (formula, none)]
        return formula if right[0] >= right[1] else none

    @property
    def _inputs(self) -> list[NamedColumn]:
        return inputs_of(self.samples)

    def _open(self) -> set[str]:
        return {v.name for v in self._unexplained()}

    def _unexplained(self) -> list[Variable]:
        return [v for v in self.variables if v.name not in self.found.explained]

    def _settled(self, variable: Variable) -> list[NamedColumn]:
        """Return the next values that can be computed before the variable's next value."""
        return settled(variable, self.variables, self.found.reads)


def _crossed(case: Term, term: Term) -> Term:
    text = case.text if term.text == ONE else f"{case.text} * {term.text}"
    return Term(text, case.values * term.values, case.cost + term.cost)


def _cases(samples: Samples, columns: Sequence[NamedColumn]) -> list[Term]:
    """Return a case for every combination of a discrete action and of remembered flags.

    A case is a term that is 1 in its rows and 0 elsewhere.
    """
    cases = [Term(ONE, np.ones(len(samples)), 1.0)]
    if samples.action_space.kind == "discrete":
        values = samples.actions[:, 0]
        cases = [
            Term(f"(action == {label})", (values == label).astype(float), 1.0)
            for label in np.unique(values).astype(int).tolist()
        ]
    names = {unseen.name for unseen in samples.remembered.values()}
    for text, values, _ in columns:
        if text in names and np.isin(values, (0.0, 1.0)).all() and len(cases) <= MOST_CASES:
            flags = [Term(f"({text} == {level})", 1.0 * (values == level), 1.0) for level in (0, 1)]
            cases = [_crossed(flag, case) for case in cases for flag in flags]
    return cases if len(cases) > 1 else []
