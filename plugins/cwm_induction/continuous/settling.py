"""Which next values are known before which: what equations and rules may read without a circle."""

from collections.abc import Mapping, Sequence

from cwm_induction.continuous.latents import Variable
from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.terms import Column

Reads = Mapping[str, set[str]]
"""The names that the explanation of every explained variable reads."""


def needed(name: str, reads: Reads) -> set[str]:
    """Return the variables whose next values are needed for this one's."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        names = reads.get(waiting.pop(), set())
        fresh = {n.removesuffix("_next") for n in names if n.endswith("_next")} - found
        waiting += fresh
        found |= fresh
    return found


def settled(variable: Variable, variables: Sequence[Variable], reads: Reads) -> list[Column]:
    """Return the next values that are known before this variable's."""
    late = {v.name for v in variables if v.name not in reads} | {variable.name}
    return [
        other.next_column
        for other in variables
        if not other.still and other.name not in late and not late & needed(other.name, reads)
    ]


def cases(variables: Sequence[Variable], formulas: Mapping[str, Sequence[Formula]]) -> list[Column]:
    """Return the next values according to every single formula of some variables."""
    return [
        Column(f"{v.name}_case_{index}", v.now + formula.values(len(v.now)))
        for v in variables
        for index, formula in enumerate(formulas.get(v.name, ()))
    ]
