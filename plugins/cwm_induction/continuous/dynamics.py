"""Explain the changes of variables: equations, mechanisms, vector fields, laws, approximations.

The families of explanations are tried in order on the unexplained variables, the simplest first.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from cwm_induction.continuous.chains import Chains
from cwm_induction.continuous.inner_constants import Known, derived, equation
from cwm_induction.continuous.regression import Formula, approximate, by_cases, sparse
from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.terms import NamedColumn, Term, library, products
from cwm_induction.continuous.variables import (
    Reads,
    Variable,
    indicators,
    inputs_of,
    needed,
    settled,
)
from cwm_induction.effort import Effort
from cwm_induction.flows.atomic import AtomicFieldFit
from cwm_induction.flows.fields import FieldFit, Flow
from cwm_induction.laws.explaining import MAX_MODES, LawExplainer
from cwm_induction.laws.guarded import GuardedLaws
from cwm_induction.mechanics.fitting import again, fit
from cwm_induction.mechanics.kinematics import Kinematics
from cwm_induction.mechanics.motion import Mechanics, Motion, joints_of

MAX_TERMS = 8
"""A mechanism that predicts equally well replaces equations with more terms than this."""

LAWS_SHARE = 0.1
"""Share of the work units for one search for laws, because robust regressions need little work."""

INNER_CONSTANTS_SHARE = 0.3
"""Share of the work units for one search for laws with constants inside their terms."""

ALMOST = 0.9
"""Share of the check rows that laws must predict before other families are tried."""

FEWEST_EXCEPTIONS = 2
"""Minimum number of wrong rows of an equation that starts a search for further laws."""

MOST_CASES = 8
"""Cases of an approximation are split further only up to this number."""


@dataclass(frozen=True)
class Hypothesis:
    """The families of explanations to try, and the extent of each search.

    `level` is the largest library of terms. `deeper` and `plain` contain names
    of variables, "reward" and "terminated". Parts in `deeper` get larger
    libraries and more regimes. Parts in `plain` get the simplest explanation,
    which always runs.
    """

    level: int = 3
    mechanics: bool = True
    regimes: bool = True
    deeper: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()


@dataclass
class Explanations:
    """An explanation for every variable, by name."""

    formulas: dict[str, Formula] = field(default_factory=dict)
    rough: dict[str, Formula] = field(default_factory=dict)
    laws: dict[str, GuardedLaws] = field(default_factory=dict)
    mechanics: Mechanics | None = None
    kinematics: Kinematics | None = None
    flow: Flow | None = None
    is_known: bool = False
    """Whether the mechanism comes from a search in fewer rows."""

    @property
    def families(self) -> set[str]:
        """The families of explanations in use, without single equations."""
        used = {"mechanics": self.mechanics is not None, "regimes": bool(self.laws)}
        return {name for name, is_used in used.items() if is_used}

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

    def explain(self) -> Explanations:
        """Explain every variable."""
        self._known_mechanism()
        self._equations()
        if self.hypothesis.regimes:
            self._laws(least=ALMOST)
        if self.found.mechanics is not None:
            self._positions(self.found.mechanics)
        if self.hypothesis.mechanics:
            self.effort.tell("fitting equations of mechanics")
            self._simpler_mechanism()
        self._flow(FieldFit.flow)
        self._inner_constants()
        self._values()
        self._flow(lambda fit: AtomicFieldFit(fit).flow())
        if self.hypothesis.mechanics and self.found.mechanics is None:
            self._mechanism(least=0.2)
        if self.hypothesis.regimes:
            self._laws(least=0.0)
        self._approximations()
        self._exceptions()
        return self.found

    def _equations(self) -> None:
        """Explain variables by equations and whole numbers by laws, until neither finds more."""
        moving = [v for v in self.variables if v.name not in self.hypothesis.plain]
        effort = self.effort.share(0.5)
        known: set[str] = {""}
        while known != self.found.explained:
            known = self.found.explained
            chains = Chains(
                self.samples,
                moving,
                [*self._inputs, *self._modes],
                self.rng,
                effort,
                self.hypothesis.level,
                self.hypothesis.deeper,
                self.found.formulas,
                frozenset({*self.found.laws, *self._moved}),
            )
            self.found.formulas = chains.explain()
            self._laws(least=ALMOST, whole=True)

    def _laws(self, least: float, *, whole: bool = False) -> None:
        """Explain variables by laws that hold in parts of the rows.

        Laws must predict the share `least` of the check rows; if it is 0, they must predict more
        rows than an approximation. If `whole`, explain only variables that are whole numbers.
        """
        plain = self.hypothesis.plain
        names = [v.name for v in self._unexplained() if v.name not in plain]
        names = [v.name for v in self.variables if v.name in names and (v.is_whole or not whole)]
        if not names:
            return
        explainer = self._explainer()
        laws_by_name = explainer.explain(names, least)
        if least == 0:
            laws_by_name = self._with_inner_constants(explainer, names)
        for variable in self.variables:
            laws = laws_by_name.get(variable.name)
            if laws is not None and (least > 0 or self._beats_approximation(variable, laws)):
                self.found.laws[variable.name] = laws

    def _with_inner_constants(
        self, explainer: LawExplainer, names: Sequence[str]
    ) -> dict[str, GuardedLaws]:
        """Search for laws with inner constants for variables whose laws predict too few rows."""
        found = explainer.found
        rights = {v.name: explainer.right(v, found.get(v.name)) for v in self.variables}
        weak = [name for name in names if rights[name] < ALMOST]
        if not weak:
            return found
        kept = {name: laws for name, laws in found.items() if name not in weak}
        further = replace(
            explainer, bends=True, effort=self.effort.share(INNER_CONSTANTS_SHARE), found=dict(kept)
        )
        further.explain(weak, 0.0)
        gain = sum(
            further.right(v, further.found.get(v.name)) - rights[v.name]
            for v in self.variables
            if v.name in weak
        )
        return further.found if gain > 0 else found

    def _beats_approximation(self, variable: Variable, laws: GuardedLaws) -> bool:
        columns = [v.column for v in self.variables]
        rough = _approximation(variable, self.samples, columns, self._inputs) or Formula((), ())
        check, rows = self.samples.smooth & ~self.samples.learn, len(self.samples)
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
            if (~right).sum() < FEWEST_EXCEPTIONS:
                continue
            laws = self._explainer().laws(variable, [formula])
            if laws is not None and len(laws.formulas) > 1:
                now = variable.matches(laws.values(len(self.samples)))[self.samples.smooth]
                if now.sum() - right.sum() >= (~right).sum() / 2:
                    self.found.laws[variable.name] = laws
                    del self.found.formulas[variable.name]

    def _explainer(self) -> LawExplainer:
        return LawExplainer(
            self.samples,
            self.variables,
            self._inputs,
            self.found.reads,
            dict(self.found.formulas),
            self.rng,
            self.effort.share(LAWS_SHARE),
        )

    def _flow(self, search: Callable[[FieldFit], Flow | None]) -> None:
        """Search for a vector field and an integrator that explain all moving real variables."""
        moving = [v for v in self.variables if not v.still and not v.is_whole]
        if self._open() & {v.name for v in moving} and len(moving) <= 8:
            whole = [v.column for v in self.variables if not v.still and v.is_whole]
            others = [*self._inputs, *whole, *self._modes]
            flow = search(FieldFit(moving, others, self.samples, self.effort.share(0.4)))
            if flow is not None:
                self.found.flow = flow
                for name in flow.names:
                    self.found.formulas.pop(name, None)
                    self.found.laws.pop(name, None)

    def _inner_constants(self) -> None:
        """Explain variables by equations with inner constants, and then others by these."""
        effort = self.effort.share(0.3)
        columns = [variable.column for variable in self.variables]
        for steered in (True, False):
            before = self._open()
            for variable in self._unexplained():
                if variable.name in self.hypothesis.plain or not effort.spend(0):
                    continue
                known = Known(columns, self._settled(variable), self._inputs)
                formula = equation(variable, self.samples, known, effort, steered=steered)
                self.found.formulas.update({variable.name: formula} if formula else {})
            if self._open() != before:
                self._equations()

    def _values(self) -> None:
        """Explain variables whose next value is a function of other next values."""
        effort = self.effort.share(0.2)
        for variable in self._unexplained():
            if variable.name not in self.hypothesis.plain and not variable.is_whole:
                formula = derived(variable, self.samples, self._settled(variable), effort)
                self.found.formulas.update({variable.name: formula} if formula else {})

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
        """Search for a mechanism that explains more than the share `least` of the check rows."""
        joints, time = joints_of(self.samples, self.variables)
        joints = [j for j in joints if {j.position.name, j.velocity.name} & self._open()]
        if not joints:
            return
        for inputs in self._candidate_inputs():
            name = tuple(v.name for j in joints for v in j), tuple(c.text for c in inputs)
            motion = Motion.of(joints, inputs, time)
            search = partial(fit, self.samples, joints, inputs, motion, self.rng)
            mechanics = self.effort.share(0.5).once(name, self.rng, search)
            best = self.found.mechanics
            least = least if best is None else best.right
            if mechanics is not None and mechanics.right > least:
                self.found.mechanics = mechanics
            if self.found.mechanics is not None and self.found.mechanics.right > 0.9:
                break
        if self.found.mechanics is not None:
            for moved in self.found.mechanics.names:
                self.found.formulas.pop(moved, None)
            self._positions(self.found.mechanics)

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

    def _approximations(self) -> None:
        """Approximate each unexplained variable, or predict no change for it."""
        columns = [variable.column for variable in self.variables]
        for variable in self._unexplained():
            plain = variable.name in self.hypothesis.plain
            rough = None if plain else _approximation(variable, self.samples, columns, self._inputs)
            self.found.rough[variable.name] = rough or Formula((), ())

    @property
    def _moved(self) -> list[str]:
        return self.found.mechanics.names if self.found.mechanics else []

    @property
    def _modes(self) -> list[NamedColumn]:
        return modes(self.variables, self.found.reads, self.found.laws)

    @property
    def _inputs(self) -> list[NamedColumn]:
        return inputs_of(self.samples)

    def _open(self) -> set[str]:
        return {v.name for v in self._unexplained()} - self.hypothesis.plain

    def _unexplained(self) -> list[Variable]:
        return [v for v in self.variables if v.name not in self.found.explained]

    def _settled(self, variable: Variable) -> list[NamedColumn]:
        """Return the next values that can be computed before the variable's next value."""
        return settled(variable, self.variables, self.found.reads)


def _approximation(
    variable: Variable,
    samples: Samples,
    columns: Sequence[NamedColumn],
    inputs: Sequence[NamedColumn],
) -> Formula | None:
    """Return a linear formula for a variable, or None if no change predicts more rows.

    With memory, the formula has products and is always accepted, because programs with memory are
    scored by the sizes of errors.
    """
    check = samples.smooth & ~samples.learn
    if samples.remembered:
        target, rows = variable.change, (samples.smooth & samples.learn, check)
        formula = sparse(products(columns, inputs), target, *rows)
        cases = cases_of(samples, columns)
        if len(cases) > 1:
            parts = by_cases(cases, products(columns, []), target, *rows)
            errors = [np.abs(f.values(len(samples)) - target)[check] for f in (parts, formula)]
            formula = parts if errors[0].mean() < errors[1].mean() else formula
        return formula
    terms = library(columns, inputs, 1)
    formula = approximate(terms, variable.change, samples.smooth & samples.learn, check)
    moved = variable.matches(formula.values(len(samples)))[check].sum()
    still = variable.matches(np.zeros(len(samples)))[check].sum()
    return formula if moved >= still else None


def cases_of(samples: Samples, columns: Sequence[NamedColumn]) -> list[Term]:
    """Return a case for every combination of a discrete action and of remembered flags."""
    if samples.action_space.kind != "discrete":
        cases = [Term("1.0", np.ones(len(samples)), 1.0)]
    else:
        values = samples.actions[:, 0]
        cases = [
            Term(f"(action == {label})", (values == label).astype(float), 1.0)
            for label in np.unique(values).astype(int).tolist()
        ]
    names = {unseen.name for unseen in samples.remembered.values()}
    for text, values, _ in columns:
        if text in names and np.isin(values, (0.0, 1.0)).all() and len(cases) <= MOST_CASES:
            cases = [
                Term(f"{case.text} * ({text} == {level})", case.values * (values == level), 2.0)
                for case in cases
                for level in (0, 1)
            ]
    return cases


def modes(variables: Sequence[Variable], reads: Reads, ruled: Iterable[str]) -> list[NamedColumn]:
    """Return next values explained by rules, and indicator columns of modes."""
    late = {v.name for v in variables if v.name not in reads}
    ready = {name for name in ruled if not late & needed(name, reads)}
    then = [v.next_column for v in variables if v.name in ready]
    whole = [v.column for v in variables if not v.still and v.is_whole]
    columns = [*then]
    for text, values, _ in [*whole, *then]:
        levels = np.unique(values)
        if 3 <= len(levels) <= MAX_MODES:
            columns += [
                NamedColumn(f"({text} == {level:g})", (values == level).astype(float))
                for level in levels.tolist()
            ]
    return columns
