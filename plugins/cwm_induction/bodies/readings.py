"""Components of observations besides the state: places of bodies, their distances, and forces."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple

import numpy as np

from cwm_induction.bodies.mechanism import BodySimulation, StepRows
from cwm_induction.continuous.samples import Array
from cwm_induction.writing.rounding import literal

READ_SHARE = 0.9
"""Least share of rows with the right value."""


class Point(NamedTuple):
    """The origin of a body or a site: its array of `MjData`, its place there, label and code."""

    field: str
    place: int
    label: str
    code: str


class ArrayElement(NamedTuple):
    """An element of an array expression of the program, with its values after the steps."""

    array: str
    place: int
    size: int
    values: Array


def points_of(mechanism: BodySimulation) -> list[Point]:
    """Return all bodies except the fixed one, and all sites."""
    model = mechanism.model

    def point(kind: str, field: str, index: int, name: str) -> Point:
        code = f'data.{kind}("{name}").xpos' if name else f"data.{field}[{index}]"
        return Point(field, index, name or f"{kind}{index}", code)

    return [
        *(point("body", "xpos", i, model.body(i).name) for i in range(1, model.nbody)),
        *(point("site", "site_xpos", i, model.site(i).name) for i in range(model.nsite)),
    ]


def find_readings(
    mechanism: BodySimulation,
    rows: StepRows,
    arrays: dict[str, Array],
    components: list[int],
    sample: Array,
) -> dict[int, ArrayElement]:
    """Return the elements of arrays that components show.

    A component that never changes is the element next to the element of its neighbour, or a
    constant.

    Args:
        mechanism: The body.
        rows: The recorded steps.
        arrays: Arrays of `MjData` after the steps.
        components: The components that the state does not determine.
        sample: Indices of the rows that elements are compared on.
    """
    rows = rows[sample]
    candidates = [*_candidates(mechanism, {name: array[sample] for name, array in arrays.items()})]
    values = np.stack([each.values for each in candidates], axis=1)

    def is_next(place: int, step: int) -> bool:
        inside = 0 <= place + step < len(candidates)
        return inside and candidates[place + step].array == candidates[place].array

    found: dict[int, int] = {}
    constant = [c for c in components if np.ptp(rows.after[:, c]) == 0]
    for component in components:
        if component in constant:
            continue
        shares = rows.is_right(values, [component] * len(candidates)).mean(axis=0)
        previous = found.get(component - 1)
        if previous is not None and is_next(previous, 1):
            shares[previous + 1] += 1e-9  # the next element, if others are as good
        if shares.max() >= READ_SHARE:
            found[component] = int(shares.argmax())
    for step in (1, -1):
        for component in constant[::step]:
            near = found.get(component - step)
            if component not in found and near is not None and is_next(near, step):
                right = rows.is_right(values[:, [near + step]], [component])
                found.update({component: near + step} if right.mean() >= READ_SHARE else {})
    every = {
        place: element
        for place, element in enumerate(_candidates(mechanism, arrays))
        if place in found.values()
    }
    readings = {component: every[place] for component, place in found.items()}
    for component in set(constant) - readings.keys():
        value = float(rows.after[0, component])
        values = np.full(len(arrays["qpos"]), value)
        readings[component] = ArrayElement(f"np.full(1, {literal(value)})", 0, 1, values)
    return readings


def _candidates(mechanism: BodySimulation, arrays: dict[str, Array]) -> Iterator[ArrayElement]:
    """Yield elements, the simplest first: of points, other arrays and differences of points."""
    points = points_of(mechanism)
    for point in points:
        yield from _elements(point.code, arrays[point.field][:, point.place])
    for name, array in arrays.items():
        if name not in ("qpos", "qvel", "xpos", "site_xpos"):
            code = f"data.{name}" + (".ravel()" if array.ndim > 2 else "")
            yield from _elements(code, array.reshape(len(array), -1))
    for one, other in permutations(points, 2):
        ends = (arrays[point.field][:, point.place] for point in (one, other))
        yield from _elements(f"({one.code} - {other.code})", np.subtract(*ends))


def _elements(code: str, array: Array) -> Iterator[ArrayElement]:
    """Yield the elements of an array with values (rows, size)."""
    size = array.shape[1]
    yield from (ArrayElement(code, index, size, array[:, index]) for index in range(size))
