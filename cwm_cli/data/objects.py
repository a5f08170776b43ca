"""Observations as objects: a table of whole numbers, a row per object, and what they stand for.

An environment with an object view has the observation `{"mission": text, "objects": table}`. Each
object keeps its row for a whole episode, the agent the first. A row in which every number is 0
is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

MISSION, OBJECTS = "mission", "objects"
"""The keys of an observation: what is asked for, in words, and the objects."""


@dataclass(frozen=True)
class ObjectField:
    """A property of objects: a whole number, or one of some named `values`, counted from 0.

    The first value of a property that not every object has says so: "none".
    """

    name: str
    values: tuple[str, ...] = ()

    def read(self, number: int) -> int | str:
        """Return what a number stands for."""
        return self.values[number] if self.values else number

    def write(self, value: int | str) -> int:
        """Return the number that stands for a value; ValueError where there is none."""
        return self.values.index(str(value)) if self.values else int(value)


@dataclass(frozen=True)
class Thing:
    """An object: the name of its class, and its properties by name."""

    kind: str
    properties: Mapping[str, int | str]

    def __getitem__(self, name: str) -> int | str:
        return self.properties[name]


@dataclass(frozen=True)
class ObjectSchema:
    """What the numbers of an object table (slots, fields) stand for.

    The first field is the class, an index of `classes`, of which the first means that the row
    is free. The place of an object is in fields named x (to the right) and y (downwards).
    `directions` are the (dx, dy) of a field `direction` that is counted from 1, where
    there is one. The field `held` is 1 while an object is carried, by the agent.
    """

    classes: tuple[str, ...]
    fields: tuple[ObjectField, ...]
    directions: tuple[tuple[int, int], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of the table by name, the class first."""
        return "class", *(each.name for each in self.fields)

    def column(self, name: str) -> int:
        """Return the place of a field in the table."""
        return self.names.index(name)

    def decode(self, table: np.ndarray) -> list[Thing]:
        """Return the objects of a table (slots, fields), in the order of its rows."""
        return [
            Thing(
                self.classes[row[0]],
                {
                    each.name: each.read(number)
                    for each, number in zip(self.fields, row[1:], strict=True)
                },
            )
            for row in np.asarray(table).tolist()
            if row[0]
        ]

    def encode(self, things: Iterable[Thing], slots: int) -> np.ndarray:
        """Return the table (slots, fields) of some objects; ValueError where they do not fit."""
        table = np.zeros((slots, 1 + len(self.fields)), np.int64)
        for place, thing in enumerate(things):
            if place == slots:
                raise ValueError(f"more than {slots} objects")
            table[place, 0] = self.classes.index(thing.kind)
            table[place, 1:] = [each.write(thing[each.name]) for each in self.fields]
        return table

    def carried(self, tables: np.ndarray, into: ObjectSchema, slots: int) -> np.ndarray:
        """Return tables (rows, slots, fields) as another schema writes them, in so many slots.

        Objects keep their slots. ValueError where it has no place, class or value for them.
        """
        tables = np.asarray(tables)
        named = [{each.name: bool(each.values) for each in one.fields} for one in (self, into)]
        if named[0] != named[1] or self.directions != into.directions:
            raise ValueError("the objects have different properties")
        if tables[:, slots:].any():
            raise ValueError(f"more than {slots} objects")
        said = {"class": self.classes} | {each.name: each.values for each in self.fields}
        meant = {"class": into.classes} | {each.name: each.values for each in into.fields}
        tables = tables[:, :slots]
        there = tables[..., 0] > 0
        found = np.zeros((len(tables), slots, len(into.names)), np.int64)
        for place, name in enumerate(into.names):
            numbers = tables[..., self.column(name)]
            if said[name] != meant[name]:
                known = np.zeros(len(said[name]), np.int64)
                for number in np.unique(numbers[there]):
                    if (value := said[name][number]) not in meant[name]:
                        raise ValueError(f"{name} {value} is unknown in the other environment")
                    known[number] = meant[name].index(value)
                numbers = known[numbers]
            found[:, : tables.shape[1], place] = np.where(there, numbers, 0)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as the metadata of a dataset holds it."""
        return {
            "classes": list(self.classes),
            "fields": [[each.name, list(each.values)] for each in self.fields],
            "directions": [list(each) for each in self.directions],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned."""
        return cls(
            tuple(map(str, data["classes"])),
            tuple(
                ObjectField(str(name), tuple(map(str, values))) for name, values in data["fields"]
            ),
            tuple((int(dx), int(dy)) for dx, dy in data.get("directions", ())),
        )


SIDES = {"right": (1, 0), "down": (0, 1), "left": (-1, 0), "up": (0, -1)}
"""The neighbours of a place, as (dx, dy)."""

FEWEST, NEVER, FAR = 4, -1, 1 << 20
"""Objects that a class may have for its distances to be told: walls have more. The distance
of a class that has none, or more, and a place that no object has."""


def relations(schema: ObjectSchema, tables: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return what the objects of tables (rows, slots, fields) are to one another, in few numbers.

    A name for each of k relations, and whole numbers (rows, k): the class of what the agent
    carries, stands on and has before it (or on every side, where it faces no way), and behind that,
    whether it is like what is carried; for each class its properties together, and how far it is
    from the agent and from each other class. Which relations there are depends on the
    schema alone; many never vary.
    """
    tables = np.asarray(tables)
    kinds, x, y = tables[..., 0], tables[..., schema.column("x")], tables[..., schema.column("y")]
    rows = np.arange(len(tables))
    held = np.zeros(kinds.shape, np.bool_)
    if "held" in schema.names:
        held = (tables[..., schema.column("held")] == 1) & (kinds > 0)
    agent = np.arange(kinds.shape[1]) == 0
    lying = (kinds > 0) & ~held & ~agent
    named = [n for n, each in enumerate(schema.fields, 1) if each.values and each.name != "held"]
    named = [n for n in named if schema.names[n] != "direction"]
    found: dict[str, np.ndarray] = {}

    def tell(name: str, mask: np.ndarray) -> np.ndarray:
        """Tell the class and the properties of the last object in a mask; return these."""
        slot = mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
        chosen = np.where(mask.any(1, keepdims=True), tables[rows, slot], 0)
        found[name] = chosen[:, 0]
        for field in named:
            found[f"{name} {schema.names[field]}"] = chosen[:, field]
        return chosen

    carried = tell("held", held)
    tell("here", lying & (x == x[:, :1]) & (y == y[:, :1]))
    if schema.directions and "direction" in schema.names:
        ways = np.array([(0, 0), *schema.directions])[tables[:, 0, schema.column("direction")]]
        places = {"front": ways, "beyond": 2 * ways}
    else:
        ways = {name: np.tile(way, (len(tables), 1)) for name, way in SIDES.items()}
        places = ways | {f"beyond {name}": 2 * way for name, way in ways.items()}
    for name, way in places.items():
        there = (x == x[:, :1] + way[:, :1]) & (y == y[:, :1] + way[:, 1:])
        chosen = tell(name, lying & there)
        like = (chosen[:, named] == carried[:, named]) & (chosen[:, named] > 0)
        for field, same in zip(named, like.T, strict=True):
            found[f"{name} {schema.names[field]} as held"] = same
    for number, kind in enumerate(schema.classes[1:], 1):
        for field in named:  # a number for each set of values, whatever the order of the slots
            values = np.where(kinds[:, 1:] == number, tables[:, 1:, field], 0)
            found[f"{kind} {schema.names[field]}"] = (values**2).sum(1)
    found |= _distances(schema, kinds, np.stack([x, y], -1))
    return list(found), np.stack(list(found.values()), 1).astype(np.int64)


def _distances(
    schema: ObjectSchema, kinds: np.ndarray, places: np.ndarray
) -> dict[str, np.ndarray]:
    """Return how far the nearest objects of each two classes are apart, the agent a class too."""
    points = {"agent": places[:, :1]}
    for number, kind in enumerate(schema.classes[1:], 1):
        mask = kinds[:, 1:] == number
        order = np.argsort(~mask, axis=1, kind="stable")[:, :FEWEST]
        few = np.take_along_axis(mask, order, 1) & (mask.sum(1) <= FEWEST)[:, None]
        each = np.take_along_axis(places[:, 1:], order[..., None], 1)
        points[kind] = np.where(few[..., None], each, FAR)
    names, found = list(points), {}
    for index, one in enumerate(names):
        for two in names[:index]:
            apart = np.abs(points[one][:, :, None] - points[two][:, None]).sum(-1)
            either = (points[one][:, :, None] == FAR) | (points[two][:, None] == FAR)
            nearest = np.where(either.any(-1), FAR, apart).min((1, 2))
            found[f"{two} to {one}"] = np.where(nearest < FAR, nearest, NEVER)
    return found
