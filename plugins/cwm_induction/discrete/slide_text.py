"""The text of moves that go on until something is in the way."""

from cwm_induction.discrete.conditions import Constants
from cwm_induction.discrete.slides import Cell, Slide

LOOP = """\
new_{row}, new_{column} = {row}, {column}
down, right = {steps}.get(action, (0, 0))
while (down, right) != (0, 0):
    there = new_{row} + down, new_{column} + right
    inside = 0 <= there[0] <= {last_row} and 0 <= there[1] <= {last_column}
    if not inside{walls}:
        break
    new_{row}, new_{column} = there{stops}"""

STOP = """
    if there in {stops}:
        break"""


def slide_lines(constants: Constants, slide: Slide, names: list[str]) -> list[str]:
    """Write the loop that slides a place over a grid."""
    row, column = names
    steps = constants.add("SLIDES", str(slide.steps), f"by action: step of ({row}, {column})")
    walls = stops = ""
    if slide.walls:
        walls = constants.add("WALLS", _cells(slide.walls), "cells in front of which it stops")
        walls = f" or there in {walls}"
    if slide.stops:
        stops = constants.add("STOPS", _cells(slide.stops), "cells in which it stops")
        stops = STOP.format(stops=stops)
    last_row, last_column = (radix - 1 for radix in slide.radices)
    return LOOP.format(
        row=row,
        column=column,
        steps=steps,
        walls=walls,
        stops=stops,
        last_row=last_row,
        last_column=last_column,
    ).split("\n")


def _cells(cells: frozenset[Cell]) -> str:
    """Write a set of cells."""
    return "{" + ", ".join(map(str, sorted(cells))) + "}"
