"""Conditions that separate the rows of a law from other rows."""

import numpy as np
import pytest

from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.refining.laws import find_guard

RNG = np.random.default_rng(0)
X, Y = RNG.uniform(-2, 2, (2, 500))
CELLS = RNG.integers(0, 4, 500)
QUANTITIES = [
    NamedColumn("x", X),
    NamedColumn("y", Y),
    NamedColumn("cell", CELLS.astype(float)),
]


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        (X > 0.5, "x > 0.5"),
        ((X > -0.8) & (X < 0.4) & (Y > 1), "-0.8 < x <= 0.4 and y > 1.0"),
        (Y - 2 * X > 1, "x - 0.5 * y <= -0.5"),
        ((X - 0.5) ** 2 + (Y + 0.5) ** 2 < 0.64, "(x - 0.5)**2 + (y + 0.5)**2 <= 0.64"),
        (CELLS == 2, "cell == 2"),
        ((CELLS == 3) & (Y < 0), "cell > 2 and y <= 0.0"),
    ],
)
def test_the_simplest_condition_is_found(inside, text):
    guard = find_guard(QUANTITIES, [], inside, ~inside)
    assert guard.text == text
    assert (guard.holds == inside).all()


def test_rows_that_are_neither_inside_nor_outside_do_not_matter():
    inside, outside = X > 1, X < 0
    guard = find_guard(QUANTITIES, [], inside, outside)
    assert guard.holds[inside].all()
    assert not guard.holds[outside].any()


def test_without_rows_outside_no_condition_is_needed():
    guard = find_guard(QUANTITIES, [], X > 0, np.zeros(500, bool))
    assert guard.text == ""
    assert guard.holds.all()
    assert find_guard(QUANTITIES, [], np.zeros(500, bool), X > 0) is None
