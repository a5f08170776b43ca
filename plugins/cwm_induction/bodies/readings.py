"""Components of observations besides the state: places of bodies, their distances, and forces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cwm_induction.bodies.layout import StepRows, is_right
from cwm_induction.bodies.mechanism import Array, BodySimulation

AXES = 3

READ_SHARE = 0.9
"""Least share of rows with the right value."""


@dataclass(frozen=True)
class Point:
    """The origin of a body or a site, with its index in `xpos` or `site_xpos`."""

    kind: str
    index: int
    name: str

    @property
    def field(self) -> str:
        """The array of `MjData` with its place."""
        return "site_xpos" if self.kind == "site" else "xpos"

    @property
    def code(self) -> str:
        """An expression for its place."""
        if self.name:
            return f'data.{self.kind}("{self.name}").xpos'
        return f"data.{self.field}[{self.index}]"


@dataclass(frozen=True)
class ComponentReading:
    """A component: an element of an array of `MjData`, or of the difference of two points.

    Attributes:
        field: The array of `MjData`, "" for a difference of points, "constant" for a constant.
        index: Index in the flat array, or the axis of the difference.
        points: The points whose difference it is.
        value: The value of a constant.
    """

    field: str
    index: int
    points: tuple[Point, ...] = ()
    value: float = 0.0

    def values(self, arrays: dict[str, Array]) -> Array:
        """Return the values in all rows."""
        if self.field == "constant":
            return np.full(len(arrays["qpos"]), self.value)
        if not self.points:
            array = arrays[self.field]
            return np.asarray(array.reshape(len(array), -1)[:, self.index])
        one, other = (arrays[p.field][:, p.index, self.index] for p in self.points)
        return np.asarray(one - other)

    def next(self, steps: int = 1) -> ComponentReading:
        """Return the reading of the next element."""
        return ComponentReading(self.field, self.index + steps, self.points, self.value)


def points_of(mechanism: BodySimulation) -> list[Point]:
    """Return all bodies except the fixed one, and all sites."""
    bodies = [Point("body", i, name) for i, name in enumerate(mechanism.bodies) if i]
    return bodies + [Point("site", i, name) for i, name in enumerate(mechanism.sites)]


def find_readings(
    mechanism: BodySimulation,
    rows: StepRows,
    arrays: dict[str, Array],
    components: list[int],
) -> dict[int, ComponentReading]:
    """Return the readings of components; constants and components without one come last.

    Args:
        mechanism: The body.
        rows: The recorded steps.
        arrays: Arrays of `MjData` after the steps.
        components: The components that the state does not determine.
    """
    candidates = list(_candidates(mechanism, arrays))
    places = {reading: place for place, reading in enumerate(candidates)}
    values = np.stack([reading.values(arrays) for reading in candidates], axis=1)
    found: dict[int, ComponentReading] = {}
    constant = {c for c in components if np.ptp(rows.after[:, c]) == 0}
    for component in components:
        if component in constant:
            continue
        shares = _right_shares(values, rows, component)
        previous = found.get(component - 1)
        if previous is not None and previous.next() in places:
            shares[places[previous.next()]] += 1e-9  # the next element, if others are as good
        best = int(shares.argmax())
        if shares[best] >= READ_SHARE:
            found[component] = candidates[best]
    for order in (components, components[::-1]):
        steps = 1 if order is components else -1
        for component in order:
            near = found.get(component - steps)
            if component in found or near is None or near.next(steps) not in places:
                continue
            place = places[near.next(steps)]
            if _right_shares(values[:, [place]], rows, component)[0] >= READ_SHARE:
                found[component] = near.next(steps)
    for component in constant - found.keys():
        found[component] = ComponentReading("constant", 0, value=float(rows.after[0, component]))
    return found


def shared_bounds(rows: StepRows, readings: dict[int, ComponentReading]) -> Array:
    """Return the bounds of components, one bound for all components from one array.

    They have none if a value is beyond the bound of another component.
    """
    shared = rows.bounds.copy()
    fields = {reading.field for reading in readings.values()} - {"", "constant"}
    for name in fields:
        components = [c for c, reading in readings.items() if reading.field == name]
        bound = rows.bounds[components].min()
        is_shared = (np.abs(rows.after[:, components]) <= bound).all()
        shared[components] = bound if is_shared else np.inf
    return shared


def _right_shares(values: Array, rows: StepRows, component: int) -> Array:
    """Return the share of rows with the right value, for each column of values."""
    bound = rows.bounds[component]
    recorded = rows.after[:, [component]]
    return np.asarray(is_right(np.clip(values, -bound, bound), recorded).mean(axis=0))


def _candidates(mechanism: BodySimulation, arrays: dict[str, Array]) -> Iterator[ComponentReading]:
    """Yield readings, the simplest first: elements of arrays, then differences of points."""
    fields = [name for name in arrays if name not in ("qpos", "qvel")]
    for name in fields:
        size = arrays[name][0].size
        yield from (ComponentReading(name, index) for index in range(size))
    points = points_of(mechanism)
    for one in points:
        for other in points:
            if one is not other:
                yield from (ComponentReading("", axis, (one, other)) for axis in range(AXES))
