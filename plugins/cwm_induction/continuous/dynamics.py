"""How the variables change: equations, mechanisms, vector fields, regimes, approximations.

One family after another is tried on what is still unexplained, the simplest first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from cwm_induction.continuous.chains import Chains
from cwm_induction.continuous.inner_constants import Known, derived, equation
from cwm_induction.continuous.regimes import (
    Places,
    Regimes,
    compared,
    modes,
    regimes,
    whole_regimes,
)
from cwm_induction.continuous.regression import Formula, Target, approximate, by_cases, sparse
from cwm_induction.continuous.rules import Feature, Tree, as_features, holds, learned
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import (
    NamedColumn,
    Term,
    distinct,
    library,
    product_text,
    products,
)
from cwm_induction.continuous.variables import Variable, indicators, inputs_of, settled
from cwm_induction.effort import Effort
from cwm_induction.flows.families import FLOWS
from cwm_induction.flows.fitting import FlowData
from cwm_induction.flows.flow import Flow
from cwm_induction.mechanics.fitting import again, fit
from cwm_induction.mechanics.kinematics import Kinematics
from cwm_induction.mechanics.motion import Mechanics, Motion, joints_of

LONG = 8
"""Terms beyond which an equation is given up for a mechanism that predicts as well."""


MOST_CASES = 8
"""Cases of an approximation that are split further."""


@dataclass(frozen=True)
class Hypothesis:
    """Which families of explanations to try, and how far.

    `level` is the largest library of terms. Parts are variables by name,
    `reward` and `terminated`: those in `deeper` get larger libraries and more
    regimes, those in `plain` the simplest explanation that always runs.
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
    regimes: dict[str, Regimes] = field(default_factory=dict)
    resets: dict[str, list[tuple[Tree, float]]] = field(default_factory=dict)
    mechanics: Mechanics | None = None
    kinematics: Kinematics | None = None
    flow: Flow | None = None
    is_known: bool = False
    """Whether the mechanism is one that was found in fewer rows."""

    @property
    def families(self) -> set[str]:
        """Which families of explanations, beyond single equations, are in use."""
        used = {"mechanics": self.mechanics is not None, "regimes": bool(self.regimes)}
        return {name for name, is_used in used.items() if is_used}

    @property
    def reads(self) -> dict[str, set[str]]:
        """The names that every explanation other than an approximation reads."""
        flow = self.flow
        return {
            **{name: formula.names for name, formula in self.formulas.items()},
            **{name: found.names for name, found in self.regimes.items()},
            **{name: set() for name in (self.mechanics.names if self.mechanics else ())},
            **({name: flow.reads for name in flow.names} if flow else {}),
        }

    def change(self, name: str, count: int) -> Array | None:
        """Return the change that a formula, or several and the rules among them, predict."""
        found = self.regimes.get(name) or self.formulas.get(name)
        return found.values(count) if found else None

    @property
    def explained(self) -> set[str]:
        """Names of the variables that have an explanation so far."""
        return {*self.reads, *self.rough}


@dataclass
class Explainer:
    """Tries one family of explanations after another on what is still unexplained."""

    samples: Samples
    variables: Sequence[Variable]
    hypothesis: Hypothesis
    rng: np.random.Generator
    effort: Effort
    found: Explanations = field(default_factory=Explanations)
    known: Mechanics | None = None
    """A mechanism that was found in fewer rows."""

    def explain(self) -> Explanations:
        """Explain every variable."""
        self._known_mechanism()
        self._equations()
        if self.found.mechanics is not None:
            self._places(self.found.mechanics)
        if self.hypothesis.mechanics:
            self.effort.tell("fitting equations of mechanics")
            self._simpler_mechanism()
        self._flow(FLOWS[0])
        self._inner_constants()
        self._values()
        self._flow(FLOWS[1])
        self._flow(FLOWS[2])
        self._rules()
        if self.hypothesis.regimes:
            self._regimes(level=1, least=0.97)
        if self.hypothesis.mechanics and self.found.mechanics is None:
            self._mechanism(least=0.2)
        if self.hypothesis.regimes:
            self._regimes(level=2, least=0.9)
        self._approximations()
        self._resets()
        return self.found

    def _equations(self) -> None:
        """Explain variables by equations, and whole numbers by rules, as long as that helps."""
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
                frozenset({*self.found.regimes, *self._moved}),
            )
            self.found.formulas = chains.explain()
            self._rules()

    def _rules(self) -> None:
        """Explain whole numbers by rules."""
        for variable in self._unexplained():
            if variable.is_whole and variable.name not in self.hypothesis.plain:
                now = [v.column for v in self.variables if not v.still]
                features = compared([*now, *self._settled(variable), *self._inputs])
                if not self.effort.spend(100.0 * len(features) * len(self.samples)):
                    return
                found = whole_regimes(variable, self.samples, features)
                self.found.regimes.update({variable.name: found} if found else {})

    def _flow(self, family: Callable[[FlowData], Flow | None]) -> None:
        """Look for a vector field and an integrator that move everything that moves."""
        moving = [v for v in self.variables if not v.still and not v.is_whole]
        if self._open() & {v.name for v in moving} and len(moving) <= 8:
            whole = [v.column for v in self.variables if not v.still and v.is_whole]
            others = [*self._inputs, *whole, *self._modes]
            found = family(FlowData(moving, others, self.samples, self.effort.share(0.3)))
            if found is not None:
                self.found.flow = found
                for name in found.names:
                    self.found.formulas.pop(name, None)
                    self.found.regimes.pop(name, None)

    def _inner_constants(self) -> None:
        """Explain variables by equations with constants inside a term, then others by these."""
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
        """Explain variables whose value follows from the next values of others."""
        effort = self.effort.share(0.2)
        for variable in self._unexplained():
            if variable.name not in self.hypothesis.plain and not variable.is_whole:
                formula = derived(variable, self.samples, self._settled(variable), effort)
                self.found.formulas.update({variable.name: formula} if formula else {})

    def _simpler_mechanism(self) -> None:
        """Look for a mechanism, also in place of equations so long that they may be a mere fit."""
        long = {n: f for n, f in self.found.formulas.items() if len(f.terms) > LONG}
        for name in long:
            del self.found.formulas[name]
        self._mechanism(least=0.97 if long else 0.8)
        left = long.keys() - self.found.explained
        self.found.formulas |= {name: long[name] for name in left}

    def _known_mechanism(self) -> None:
        """Take a mechanism that was found before, if it is as right as it was."""
        if self.known is None or not self.hypothesis.mechanics:
            return
        joints, _ = joints_of(self.samples, self.variables)
        inputs = {tuple(c.text for c in columns): columns for columns in self._pushes()}
        pushes = inputs.get(tuple(column.text for column in self.known.inputs))
        if pushes is not None:
            self.found.mechanics = again(self.known, self.samples, joints, pushes, self.effort)
            self.found.is_known = self.found.mechanics is not None

    def _mechanism(self, least: float) -> None:
        """Look for a mechanism that moves something unexplained."""
        joints, time = joints_of(self.samples, self.variables)
        joints = [j for j in joints if {j.position.name, j.velocity.name} & self._open()]
        if not joints:
            return
        for inputs in self._pushes():
            asked = tuple(v.name for j in joints for v in j), tuple(c.text for c in inputs)
            motion = Motion.of(joints, inputs, time)
            search = partial(fit, self.samples, joints, inputs, motion, self.rng)
            found = self.effort.share(0.5).once(asked, self.rng, search)
            best = self.found.mechanics
            least = least if best is None else best.right
            if found is not None and found.right > least:
                self.found.mechanics = found
            if self.found.mechanics is not None and self.found.mechanics.right > 0.9:
                break
        if self.found.mechanics is not None:
            for name in self.found.mechanics.names:
                self.found.formulas.pop(name, None)
            self._places(self.found.mechanics)

    def _places(self, mechanics: Mechanics) -> None:
        """Explain variables by where the parts of a mechanism are."""
        self.found.kinematics = kinematics = Kinematics.of(mechanics)
        still = [variable.column for variable in self.variables if variable.still]
        for variable in self._unexplained():
            effort = self.effort.share(0.1)
            formula = kinematics.component(self.samples, variable, still, effort)
            if formula is not None:
                self.found.formulas[variable.name] = formula

    def _pushes(self) -> list[list[NamedColumn]]:
        """Return what may push a mechanism: an action's number, or each action for itself."""
        if self.samples.action_space.kind != "discrete":
            return [self._inputs]
        single = indicators(self.samples.actions[:, 0])[1:]
        return [self._inputs[:1], single] if single else [self._inputs[:1]]

    def _regimes(self, level: int, least: float) -> None:
        """Explain variables by several equations and rules that choose among them."""
        effort = self.effort.share(0.15)
        for variable in self._unexplained():
            more = variable.name in self.hypothesis.deeper
            if not effort.spend(0):
                return
            columns = [v.column for v in self.variables] + self._settled(variable)
            terms = distinct(library(columns, self._inputs, min(3, level + more)))
            target = Target(variable.change, variable.quarter, self.samples.smooth & variable.free)
            places = Places(
                np.column_stack([self.samples.before, self.samples.actions]),
                [column.values > 0.5 for column in self._inputs[1:]],
            )
            size = 6 if more else 3 + level
            found = regimes(terms, target, places, self.rng, effort, size=size)
            if found.formulas and found.covered >= (0.6 if more else least):
                self.found.regimes[variable.name] = found  # its cases are what rules compare
                features = [*as_features(self._cases(), 0.9), *self._features(variable)]
                self.found.regimes[variable.name] = found.gated(target, features)

    def _approximations(self) -> None:
        """Give every other variable a linear approximation, or let it stand still."""
        columns = [variable.column for variable in self.variables]
        for variable in self._unexplained():
            plain = variable.name in self.hypothesis.plain
            found = None if plain else _rough(variable, self.samples, columns, self._inputs)
            self.found.rough[variable.name] = found or Formula((), ())

    def _resets(self) -> None:
        """Learn when a variable takes a value at which many rows meet, against its equation."""
        for variable in self.variables:
            change = self.found.change(variable.name, len(self.samples))
            if change is not None:
                features = self._features(variable)
                found = _resets(variable, self.samples, change, self._cases(), features)
                self.found.resets.update({variable.name: found} if found else {})

    @property
    def _moved(self) -> list[str]:
        return self.found.mechanics.names if self.found.mechanics else []

    @property
    def _modes(self) -> list[NamedColumn]:
        return modes(self.variables, self.found.reads, self.found.regimes)

    @property
    def _inputs(self) -> list[NamedColumn]:
        return inputs_of(self.samples)

    def _open(self) -> set[str]:
        return {v.name for v in self._unexplained()} - self.hypothesis.plain

    def _unexplained(self) -> list[Variable]:
        return [v for v in self.variables if v.name not in self.found.explained]

    def _settled(self, variable: Variable) -> list[NamedColumn]:
        """Return the next values that are known before this variable's."""
        return settled(variable, self.variables, self.found.reads)

    def _cases(self) -> list[NamedColumn]:
        """Return the next values according to every single regime, which rules may compare."""
        return [
            NamedColumn(f"{v.name}_case_{index}", v.now + formula.values(len(v.now)))
            for v in self.variables
            if v.name in self.found.regimes
            for index, formula in enumerate(self.found.regimes[v.name].formulas)
        ]

    def _features(self, variable: Variable) -> list[Feature]:
        """Return what rules about this variable may compare."""
        moving = [v.column for v in self.variables if not v.still]
        return as_features([*moving, *self._inputs, *self._settled(variable)])


def _rough(
    variable: Variable,
    samples: Samples,
    columns: Sequence[NamedColumn],
    inputs: Sequence[NamedColumn],
) -> Formula | None:
    """Return a linear formula for a variable, None where standing still predicts more rows.

    With a memory the formula has products and is always taken: programs with memory are scored by
    the sizes of their errors.
    """
    check = samples.smooth & ~samples.learn
    if samples.remembered:
        target, rows = variable.change, (samples.smooth & samples.learn, check)
        found = sparse(products(columns, inputs), target, *rows)
        cases = cases_of(samples, columns)
        if len(cases) > 1:
            parts = by_cases(cases, products(columns, []), target, *rows)
            errors = [np.abs(f.values(len(samples)) - target)[check] for f in (parts, found)]
            found = parts if errors[0].mean() < errors[1].mean() else found
        return found
    terms = library(columns, inputs, 1)
    formula = approximate(terms, variable.change, samples.smooth & samples.learn, check)
    moved = variable.matches(formula.values(len(samples)))[check].sum()
    still = variable.matches(np.zeros(len(samples)))[check].sum()
    return formula if moved >= still else None


def cases_of(samples: Samples, columns: Sequence[NamedColumn]) -> list[Term]:
    """Return the cases of a discrete action and of flags that are remembered."""
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


def _resets(
    variable: Variable,
    samples: Samples,
    change: Array,
    cases: Sequence[NamedColumn],
    features: Sequence[Feature],
) -> list[tuple[Tree, float]]:
    """Return rules for the values that a variable is reset to where the change is wrong.

    Rules may compare the values according to every case, and ask whether a
    case would change the sign.
    """
    own = [case for case in cases if case.text.startswith(f"{variable.name}_case_")]
    turned = [NamedColumn(product_text(variable.column, c), variable.now * c.values) for c in own]
    compared = [*as_features([*own, *turned], 0.9), *features]
    wrong = ~variable.matches(change) & samples.smooth
    found: list[tuple[Tree, float]] = []
    limits = (value for value in (variable.low, variable.high) if np.isfinite(value))
    for value in (*variable.piles, *limits):
        wanted = wrong & (variable.then == value)
        tree = learned(compared, wanted, depth=4 if own else 2)
        missed = (holds(tree, len(samples)) != wanted)[samples.smooth].sum()
        if not isinstance(tree, bool) and missed <= 0.2 * wanted.sum():
            found.append((tree, value))
    return found
