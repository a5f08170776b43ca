"""How every variable changes, as far as that was explained."""

from dataclasses import dataclass, field

from cwm_induction.continuous.mixture import Gate, Regimes
from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.rules import Tree
from cwm_induction.continuous.samples import Array
from cwm_induction.continuous.whole import chosen_values, names_read
from cwm_induction.flows.fitting import Flow
from cwm_induction.mechanics.kinematics import Kinematics
from cwm_induction.mechanics.motion import Mechanics


@dataclass
class Dynamics:
    """An explanation for every variable, by name."""

    formulas: dict[str, Formula] = field(default_factory=dict)
    rough: dict[str, Formula] = field(default_factory=dict)
    regimes: dict[str, tuple[Regimes, list[Gate]]] = field(default_factory=dict)
    resets: dict[str, list[tuple[Tree, float]]] = field(default_factory=dict)
    mechanics: Mechanics | None = None
    kinematics: Kinematics | None = None
    flow: Flow | None = None

    @property
    def families(self) -> set[str]:
        """Which families of explanations, beyond single equations, are in use."""
        used = {"mechanics": self.mechanics is not None, "regimes": bool(self.regimes)}
        return {name for name, is_used in used.items() if is_used}

    @property
    def reads(self) -> dict[str, set[str]]:
        """The names that every explanation other than an approximation reads."""
        moved = self.mechanics.names if self.mechanics else []
        flow = self.flow
        return {
            **{name: formula.names for name, formula in self.formulas.items()},
            **{name: names_read(found) for name, found in self.regimes.items()},
            **{name: set() for name in moved},
            **({name: flow.reads for name in flow.names} if flow else {}),
        }

    def change(self, name: str, count: int) -> Array | None:
        """Return the change that a formula, or several and the rules among them, predict."""
        if name in self.regimes:
            return chosen_values(*self.regimes[name], count)
        return self.formulas[name].values(count) if name in self.formulas else None

    @property
    def explained(self) -> set[str]:
        """Names of the variables that have an explanation so far."""
        return {*self.reads, *self.rough}
