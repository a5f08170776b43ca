"""Regression trees for variables without an exact equation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.samples import Array, Samples
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.continuous.variables import Variable
from cwm_induction.noisy.cases import (
    CaseInputs,
    case_lines,
    grow_tree,
    is_clearly_better,
    mean_of_case,
)
from cwm_induction.noisy.laws import CaseTree, Condition
from cwm_induction.noisy.series import GivenQuantity
from cwm_induction.writing.statements import mentioned


@dataclass(frozen=True)
class CasedFormula:
    """A regression tree, whose number is the next value or is added to a formula.

    `base` is the formula of the change, or None if the tree gives the next value.
    """

    base: Formula | None
    tree: CaseTree

    def change(self, variable: Variable) -> Array:
        """Return the predicted change of the variable in each row."""
        numbers = self.tree.on(lambda each: each.quantity.values if each.quantity else variable.now)
        if self.base is None:
            return np.asarray(numbers - variable.now)
        return np.asarray(self.base.values(len(variable.now)) + numbers)

    def call(self, name: str) -> str:
        """Return the expression of the next value; `name` is the variable."""
        call = f"self.{name}_by_case({', '.join(self._arguments)})"
        return call if self.base is None else f"{self.base.text(name)} + {call}"

    def method(self, name: str) -> str:
        """Return the method that chooses the number; `name` is the variable."""
        returned = f"the next {name}" if self.base is None else f"an addition to {name}"
        lines = [
            f"def {name}_by_case({', '.join(['self', *self._arguments])}):",
            f'    """Return {returned}, by case: no exact equation was found."""',
            *(f"    {line}" for line in case_lines(self.tree, name)),
        ]
        return "\n".join(lines)

    @property
    def _arguments(self) -> list[str]:
        texts = [c.quantity.text for c in self.tree.conditions() if c.quantity is not None]
        names = {name for text in texts for name in mentioned(text)}
        return sorted(names - {"np", "observation"})


def formula_with_cases(
    variable: Variable, formula: Formula, samples: Samples, columns: Sequence[NamedColumn]
) -> CasedFormula | None:
    """Return a regression tree that predicts a variable clearly better than a formula, or None.

    Args:
        variable: A variable of real numbers without an exact equation.
        formula: The best approximation of its change; empty for "nothing changes".
        samples: The transitions. Trees grow on the rows for fitting, and held-out rows choose.
        columns: Quantities that splits may compare.
    """
    fitted, check = samples.smooth & samples.learn, samples.smooth & ~samples.learn
    if variable.is_angle or variable.cycle is not None or not check.any():
        return None
    given = [
        GivenQuantity(c.text, c.values, c.text, is_flag=bool(np.isin(c.values, (0.0, 1.0)).all()))
        for c in columns
    ]
    matrix = np.stack([each.values for each in given], axis=1)[fitted]
    rounding = float(np.sqrt(np.mean(variable.rounding[fitted] ** 2)))

    def read(condition: Condition) -> Array:
        quantity = condition.quantity
        return np.asarray((variable.now if quantity is None else quantity.values)[fitted])

    found: list[tuple[CasedFormula, Array]] = []
    bases = [None, Formula((), ()), *([formula] if formula.terms else [])]
    for base in bases:
        left = variable.then if base is None else variable.change - base.values(len(samples))
        tree = grow_tree(CaseInputs(given, matrix, left[fitted][:, None]), rounding**2)
        tree = tree.filled(read, left[fitted], partial(mean_of_case, rounding=rounding))
        cased = CasedFormula(base, tree)
        found.append((cased, cased.change(variable)))
    plain = formula.values(len(samples))
    losses = [
        ((change - variable.change)[check]) ** 2 for change in (plain, *(c for _, c in found))
    ]
    best = int(np.argmin([float(each.mean()) for each in losses[1:]]))
    cased, change = found[best]
    # A formula that is exact in more rows stays, even if its other errors are large.
    if variable.matches(change)[check].sum() < variable.matches(plain)[check].sum():
        return None
    return cased if is_clearly_better(losses[1 + best], losses[0]) else None
