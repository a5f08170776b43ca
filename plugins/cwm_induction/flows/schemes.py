"""Integrators of vector fields, as weighted sums of the rates at stages of a step."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array


class Scheme(NamedTuple):
    """A rule that advances time, into how many parts it divides a step, and in which order.

    `order` lists the variables that a semi-implicit rule advances one after another.
    """

    rule: str
    parts: int
    order: tuple[int, ...] = ()


class Rates(NamedTuple):
    """Changes per step if the rates stayed the same (rows, variables), their terms, the state."""

    change: Array
    terms: Array
    state: Array


Field = Callable[[Array], Rates]
"""From states (rows, variables) to rates."""


class Stage(NamedTuple):
    """Rates on the way through a step, and how much they count for each variable."""

    rates: Rates
    weights: Array


def schemes(variables: int) -> Iterator[Scheme]:
    """Yield schemes, the likeliest first."""
    forwards = tuple(range(variables))
    yield from (Scheme("runge-kutta", 1), Scheme("midpoint", 1), Scheme("heun", 1))
    for parts in (2, 4, 5, 10, 3, 8, 20):
        yield Scheme("euler", parts)
        if parts <= 5:
            yield Scheme("runge-kutta", parts)
        if parts <= 10 and variables > 1:
            yield Scheme("semi-implicit", parts, forwards[::-1])
            yield Scheme("semi-implicit", parts, forwards)


def advanced(scheme: Scheme, state: Array, field: Field) -> tuple[Array, list[Stage]]:
    """Return the states after a step, and the stages on the way."""
    stages: list[Stage] = []
    for _ in range(scheme.parts):
        part = list(_part(scheme, state, field))
        stages += part
        state = state + np.sum([stage.weights * stage.rates.change for stage in part], axis=0)
    return state, stages


def _part(scheme: Scheme, state: Array, field: Field) -> Iterator[Stage]:
    """Yield the stages of one part of a step."""
    size = 1 / scheme.parts
    every = np.full(state.shape[1], size)
    if scheme.rule == "semi-implicit":
        moved = state.copy()
        for index in scheme.order:
            rates = field(moved)
            yield Stage(rates, every * (np.arange(len(every)) == index))
            moved = moved.copy()
            moved[:, index] += size * rates.change[:, index]
        return
    first = field(state)
    if scheme.rule == "euler":
        yield Stage(first, every)
    elif scheme.rule == "midpoint":
        yield Stage(field(state + size / 2 * first.change), every)
    elif scheme.rule == "heun":
        yield Stage(first, every / 2)
        yield Stage(field(state + size * first.change), every / 2)
    else:
        yield Stage(first, every / 6)
        second = field(state + size / 2 * first.change)
        yield Stage(second, every / 3)
        third = field(state + size / 2 * second.change)
        yield Stage(third, every / 3)
        yield Stage(field(state + size * third.change), every / 6)
