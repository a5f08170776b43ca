"""Vector fields of a state, and integration schemes.

A step is a weighted sum of rates at its stages. `Flow.add_to` writes the field as a method of a
program and its integrator as statements.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.samples import Array
from cwm_induction.writing.statements import ProgramDraft, Statement, mentioned

_RUNGE_KUTTA = """k1 = {rates}
k2 = self.rates(state + k1 / {twice}{given})
k3 = self.rates(state + k2 / {twice}{given})
k4 = self.rates(state + k3{over}{given})
state = state + (k1 + 2 * k2 + 2 * k3 + k4) / {six}"""
_HEUN = """k1 = {rates}
k2 = self.rates(state + k1{over}{given})
state = state + (k1 + k2) / {twice}"""
_RULES = {
    "runge-kutta": _RUNGE_KUTTA,
    "heun": _HEUN,
    "midpoint": "state = state + self.rates(state + {rates} / {twice}{given}){over}",
    "euler": "state = state + {rates}{over}",
    "semi-implicit": "for index in {order}:\n    state[index] += {rates}[index]{over}",
}
_WORDS = {"runge-kutta": "Runge-Kutta", "heun": "Heun", "midpoint": "midpoint", "euler": "Euler"}


class Scheme(NamedTuple):
    """An integration rule, the number of equal parts of a step, and an order of variables.

    A semi-implicit rule advances the variables one after another in this `order`.
    """

    rule: str
    parts: int
    order: tuple[int, ...] = ()


class Rates(NamedTuple):
    """Rates per step (rows, variables), their terms (rows, terms), and the state."""

    change: Array
    terms: Array
    state: Array


Field = Callable[[Array], Rates]
"""Function from states (rows, variables) to rates."""


class SchemeStage(NamedTuple):
    """Rates at a stage of a step, and the weight of the stage for each variable."""

    rates: Rates
    weights: Array


@dataclass(frozen=True)
class Flow:
    """Rates per step as formulas of the state, and the integration scheme.

    `jumps` are instantaneous changes of the state before the step.
    """

    names: tuple[str, ...]
    formulas: tuple[Formula, ...]
    scheme: Scheme
    jumps: tuple[Formula, ...] = ()

    @property
    def reads(self) -> set[str]:
        """Names of other variables in the field."""
        return {name for f in self.formulas for name in f.names} - set(self.names)

    @property
    def cost(self) -> float:
        """Sum of the costs of the formulas."""
        return sum(formula.cost for formula in self.formulas)

    def add_to(self, program: ProgramDraft) -> None:
        """Add the method of the field, and the statement that advances `state` by a step."""
        texts = [formula.text() for formula in self.formulas]
        outside = sorted(mentioned(" ".join(texts)) - set(self.names) - {"np", "abs", "max", "min"})
        given = "".join(f", {name}" for name in outside)
        lines = [
            f"def rates(self, state{given}):",
            '    """Return the rates of change per step."""',
            f"    {', '.join(self.names)}{',' * (len(self.names) == 1)} = state",
            "    return np.array([",
            *(f"        {text}," for text in texts),
            "    ])",
        ]
        program.methods.append("\n".join(lines))
        program.statements.append(self._advance(given))

    def next_of(self, name: str) -> str:
        """Return the expression of a variable's next value."""
        return f"state[{self.names.index(name)}]"

    def _advance(self, given: str) -> Statement:
        parts = self.scheme.parts
        body = _RULES[self.scheme.rule].format(
            rates=f"self.rates(state{given})",
            given=given,
            over=f" / {parts}" if parts > 1 else "",
            twice=2 * parts,
            six=6 * parts,
            order=self.scheme.order,
        )
        starts = [jump.text(name) for jump, name in zip(self.jumps, self.names, strict=False)]
        lines = [f"state = np.array([{', '.join(starts or self.names)}])"]
        if parts > 1:
            lines += [f"for _ in range({parts}):", *(f"    {line}" for line in body.splitlines())]
        else:
            lines += body.splitlines()
        words = _WORDS.get(self.scheme.rule, self.scheme.rule)
        comment = f"{parts} {words} steps" if parts > 1 else f"one {words} step"
        jumps = " after the immediate effect of the action" if self.jumps else ""
        return Statement("\n".join(lines), f"Integrate {comment}{jumps}.")


def schemes(variables: int) -> Iterator[Scheme]:
    """Yield schemes, the most likely first."""
    forwards = tuple(range(variables))
    yield from (Scheme("runge-kutta", 1), Scheme("midpoint", 1), Scheme("heun", 1))
    for parts in (2, 4, 5, 10, 3, 8, 20):
        yield Scheme("euler", parts)
        if parts <= 5:
            yield Scheme("runge-kutta", parts)
        if parts <= 10 and variables > 1:
            yield Scheme("semi-implicit", parts, forwards[::-1])
            yield Scheme("semi-implicit", parts, forwards)


def advance(scheme: Scheme, state: Array, field: Field) -> tuple[Array, list[SchemeStage]]:
    """Return the states after a step, and the stages of the step."""
    stages: list[SchemeStage] = []
    for _ in range(scheme.parts):
        part = list(_part(scheme, state, field))
        stages += part
        state = state + np.sum([stage.weights * stage.rates.change for stage in part], axis=0)
    return state, stages


def _part(scheme: Scheme, state: Array, field: Field) -> Iterator[SchemeStage]:
    """Yield the stages of one part of a step."""
    size = 1 / scheme.parts
    every = np.full(state.shape[1], size)
    if scheme.rule == "semi-implicit":
        moved = state.copy()
        for index in scheme.order:
            rates = field(moved)
            yield SchemeStage(rates, every * (np.arange(len(every)) == index))
            moved = moved.copy()
            moved[:, index] += size * rates.change[:, index]
        return
    first = field(state)
    if scheme.rule == "euler":
        yield SchemeStage(first, every)
    elif scheme.rule == "midpoint":
        yield SchemeStage(field(state + size / 2 * first.change), every)
    elif scheme.rule == "heun":
        yield SchemeStage(first, every / 2)
        yield SchemeStage(field(state + size * first.change), every / 2)
    else:
        yield SchemeStage(first, every / 6)
        second = field(state + size / 2 * first.change)
        yield SchemeStage(second, every / 3)
        third = field(state + size / 2 * second.change)
        yield SchemeStage(third, every / 3)
        yield SchemeStage(field(state + size * third.change), every / 6)
