"""How the variables change: equations, mechanisms, regimes, approximations for the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cwm_induction.chains import Chains, dependencies, indicators, inputs_of
from cwm_induction.effort import Effort
from cwm_induction.hypothesis import Hypothesis
from cwm_induction.latents import Variable
from cwm_induction.mechanics_fit import Mechanics, fit
from cwm_induction.mixture import Gate, Places, Regimes, Target, gates, regimes
from cwm_induction.motion import joints_of
from cwm_induction.regression import Formula, approximate
from cwm_induction.rules import Feature, Tree, as_features, holds, learned
from cwm_induction.samples import Samples
from cwm_induction.terms import Column, distinct, library


@dataclass
class Dynamics:
    """An explanation for every variable, by name."""

    formulas: dict[str, Formula] = field(default_factory=dict)
    rough: dict[str, Formula] = field(default_factory=dict)
    regimes: dict[str, tuple[Regimes, list[Gate]]] = field(default_factory=dict)
    resets: dict[str, list[tuple[Tree, float]]] = field(default_factory=dict)
    mechanics: Mechanics | None = None

    @property
    def families(self) -> set[str]:
        """Which families of explanations, beyond single equations, are in use."""
        used = {"mechanics": self.mechanics is not None, "regimes": bool(self.regimes)}
        return {name for name, is_used in used.items() if is_used}

    @property
    def explained(self) -> set[str]:
        """Names of the variables that have an explanation so far."""
        moved = self.mechanics.names if self.mechanics else []
        return {*self.formulas, *self.rough, *self.regimes, *moved}


@dataclass
class Explainer:
    """Tries one family of explanations after another on what is still unexplained."""

    samples: Samples
    variables: Sequence[Variable]
    hypothesis: Hypothesis
    rng: np.random.Generator
    effort: Effort
    found: Dynamics = field(default_factory=Dynamics)

    def explain(self) -> Dynamics:
        """Explain every variable."""
        self._equations()
        if self.hypothesis.regimes:
            self._regimes(level=1, least=0.97)
        if self.hypothesis.mechanics:
            self._mechanism()
        if self.hypothesis.regimes:
            self._regimes(level=2, least=0.9)
        self._approximations()
        self._resets()
        return self.found

    def _equations(self) -> None:
        moving = [v for v in self.variables if v.name not in self.hypothesis.plain]
        chains = Chains(
            self.samples,
            moving,
            self._inputs,
            self.rng,
            self.effort.share(0.5),
            self.hypothesis.level,
            self.hypothesis.deeper,
        )
        self.found.formulas = chains.explain()

    def _mechanism(self) -> None:
        """Look for a mechanism that moves something unexplained."""
        open_names = self._open()
        joints, time = joints_of(self.samples, self.variables)
        joints = [j for j in joints if {j.position.name, j.velocity.name} & open_names]
        if not joints:
            return
        for inputs in self._pushes():
            effort = self.effort.share(0.5)
            found = fit(self.samples, joints, inputs, time, self.rng, effort)
            best = self.found.mechanics
            if found is not None and (best is None or found.right > best.right):
                self.found.mechanics = found
            if self.found.mechanics is not None and self.found.mechanics.right > 0.9:
                break
        if self.found.mechanics is not None:
            for name in self.found.mechanics.names:
                self.found.formulas.pop(name, None)

    def _pushes(self) -> list[list[Column]]:
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
                self.found.regimes[variable.name] = (found, [])
                features = [*as_features(self._cases(), 0.9), *self._features(variable)]
                chosen = gates(found, target, features)
                self.found.regimes[variable.name] = (found, chosen)

    def _approximations(self) -> None:
        """Give every other variable a linear or quadratic approximation, or let it stand still."""
        columns = [variable.column for variable in self.variables]
        learn = self.samples.smooth & self.samples.learn
        check = self.samples.smooth & ~self.samples.learn
        for variable in self._unexplained():
            formula = Formula((), ())
            if variable.name not in self.hypothesis.plain:
                terms = library(columns, self._inputs, 1)
                formula = approximate(terms, variable.change, learn, check)
            self.found.rough[variable.name] = formula

    def _resets(self) -> None:
        """Learn when a variable takes a value at which many rows meet, against its equation."""
        for variable in self.variables:
            formula = self.found.formulas.get(variable.name)
            if formula is None:
                continue
            wrong = ~variable.matches(formula.values(len(self.samples))) & self.samples.smooth
            for value in variable.piles:
                wanted = wrong & (variable.then == value)
                tree = learned(self._features(variable), wanted, depth=2)
                right = holds(tree, len(self.samples)) == wanted
                if not isinstance(tree, bool) and (~right).sum() <= 0.2 * wanted.sum():
                    self.found.resets.setdefault(variable.name, []).append((tree, value))

    @property
    def _inputs(self) -> list[Column]:
        return inputs_of(self.samples)

    def _open(self) -> set[str]:
        return {v.name for v in self._unexplained()} - self.hypothesis.plain

    def _unexplained(self) -> list[Variable]:
        return [v for v in self.variables if v.name not in self.found.explained]

    def _settled(self, variable: Variable) -> list[Column]:
        """Return the next values that are known before this variable's."""
        return [
            other.next_column
            for other in self.variables
            if other.name in self.found.formulas
            and not other.still
            and not {variable.name, *self._unknown()}
            & dependencies(other.name, self.found.formulas)
        ]

    def _unknown(self) -> set[str]:
        return {v.name for v in self._unexplained()}

    def _cases(self) -> list[Column]:
        """Return the next values according to every single regime, which rules may compare."""
        return [
            Column(
                f"{variable.name}_case_{index}", variable.now + formula.values(len(self.samples))
            )
            for variable in self.variables
            if variable.name in self.found.regimes
            for index, formula in enumerate(self.found.regimes[variable.name][0].formulas)
        ]

    def _features(self, variable: Variable) -> list[Feature]:
        """Return what rules about this variable may compare."""
        moving = [v.column for v in self.variables if not v.still]
        return as_features([*moving, *self._inputs, *self._settled(variable)])
