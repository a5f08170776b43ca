"""Observations as tables of objects, with a schema that gives the numbers their meaning.

An environment with an object view has the observation `{"mission": text, "objects": table}`. Each
object keeps its row (slot) for a whole episode; the agent has the first one. A row of zeros is
free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

MISSION, OBJECTS = "mission", "objects"
"""The keys of an observation: the goal in words, and the table of objects."""


@dataclass(frozen=True)
class ObjectField:
    """A property of objects: a whole number, or an index of named `values`, counted from 0.

    If not every object has the property, its first value is "none".
    """

    name: str
    values: tuple[str, ...] = ()

    def read(self, number: int) -> int | str:
        """Return the value that a number represents."""
        return self.values[number] if self.values else number

    def write(self, value: int | str) -> int:
        """Return the number that represents a value; `ValueError` for an unknown value."""
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
    """The meaning of the numbers of an object table (slots, fields).

    The first field is the class, an index of `classes`; class 0 is a free row. The position of an
    object is in fields named x (to the right) and y (downwards). If there is a field `direction`,
    it is an index of `directions`, counted from 1, which are pairs (dx, dy). The field `held` is 1
    while the agent carries the object.
    """

    classes: tuple[str, ...]
    fields: tuple[ObjectField, ...]
    directions: tuple[tuple[int, int], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields of the table, the class first."""
        return "class", *(field.name for field in self.fields)

    def column(self, name: str) -> int:
        """Return the index of a field in the table."""
        return self.names.index(name)

    def decode(self, table: np.ndarray) -> list[Thing]:
        """Return the objects of a table (slots, fields), in the order of its rows."""
        return [
            Thing(
                self.classes[row[0]],
                {
                    field.name: field.read(number)
                    for field, number in zip(self.fields, row[1:], strict=True)
                },
            )
            for row in np.asarray(table).tolist()
            if row[0]
        ]

    def encode(self, things: Iterable[Thing], slots: int) -> np.ndarray:
        """Return the table (slots, fields) of objects; `ValueError` if they do not fit."""
        table = np.zeros((slots, 1 + len(self.fields)), np.int64)
        for place, thing in enumerate(things):
            if place == slots:
                raise ValueError(f"more than {slots} objects")
            table[place, 0] = self.classes.index(thing.kind)
            table[place, 1:] = [field.write(thing[field.name]) for field in self.fields]
        return table

    def convert(self, tables: np.ndarray, into: ObjectSchema, slots: int) -> np.ndarray:
        """Convert tables (rows, slots, fields) to another schema and number of slots.

        Objects keep their slots.

        Raises:
            ValueError: The other schema has other properties, or lacks a class, value or slot.
        """
        tables = np.asarray(tables)
        ours, theirs = (
            {field.name: bool(field.values) for field in schema.fields} for schema in (self, into)
        )
        if ours != theirs or self.directions != into.directions:
            raise ValueError("the objects have different properties")
        if tables[:, slots:].any():
            raise ValueError(f"more than {slots} objects")
        old = {"class": self.classes} | {field.name: field.values for field in self.fields}
        new = {"class": into.classes} | {field.name: field.values for field in into.fields}
        tables = tables[:, :slots]
        exists = tables[..., 0] > 0
        found = np.zeros((len(tables), slots, len(into.names)), np.int64)
        for place, name in enumerate(into.names):
            numbers = tables[..., self.column(name)]
            if old[name] != new[name]:
                converted = np.zeros(len(old[name]), np.int64)
                # Only values that occur: the other schema may lack values that no object has.
                for number in np.unique(numbers[exists]):
                    if (value := old[name][number]) not in new[name]:
                        raise ValueError(f"{name} {value} is unknown in the other environment")
                    converted[number] = new[name].index(value)
                numbers = converted[numbers]
            found[:, : tables.shape[1], place] = np.where(exists, numbers, 0)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain data for the metadata of a dataset."""
        return {
            "classes": list(self.classes),
            "fields": [[field.name, list(field.values)] for field in self.fields],
            "directions": [list(direction) for direction in self.directions],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the schema that `to_json` wrote."""
        return cls(
            tuple(map(str, data["classes"])),
            tuple(
                ObjectField(str(name), tuple(map(str, values))) for name, values in data["fields"]
            ),
            tuple((int(dx), int(dy)) for dx, dy in data.get("directions", ())),
        )


SIDES = {"right": (1, 0), "down": (0, 1), "left": (-1, 0), "up": (0, -1)}
"""Offsets (dx, dy) of the neighbours of a cell."""


def relations(schema: ObjectSchema, tables: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return spatial relations of the objects of tables (rows, slots, fields) as whole numbers.

    Relations describe the carried object, the object in the agent's cell, and the objects one and
    two cells ahead (on all four sides if the agent has no direction): class, properties, and
    whether each property equals that property of the carried object. Further relations are a
    number for the properties of all objects of each class, and the distances between the agent
    and each class and between each two classes.

    Returns:
        The names of k relations, which depend on the schema only, and their values (rows, k).
        Many relations are constant.
    """
    tables = np.asarray(tables)
    kinds, x, y = tables[..., 0], tables[..., schema.column("x")], tables[..., schema.column("y")]
    rows = np.arange(len(tables))
    held = np.zeros(kinds.shape, np.bool_)
    if "held" in schema.names:
        held = (tables[..., schema.column("held")] == 1) & (kinds > 0)
    agent = np.arange(kinds.shape[1]) == 0
    on_floor = (kinds > 0) & ~held & ~agent
    named = [
        number
        for number, field in enumerate(schema.fields, 1)
        if field.values and field.name not in ("held", "direction")
    ]
    found: dict[str, np.ndarray] = {}

    def add_object(name: str, mask: np.ndarray) -> np.ndarray:
        """Add class and properties of the last object in a mask; return its table row."""
        slot = mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
        chosen = np.where(mask.any(1, keepdims=True), tables[rows, slot], 0)
        found[name] = chosen[:, 0]
        for field in named:
            found[f"{name} {schema.names[field]}"] = chosen[:, field]
        return chosen

    carried = add_object("held", held)
    add_object("here", on_floor & (x == x[:, :1]) & (y == y[:, :1]))
    if schema.directions and "direction" in schema.names:
        ahead = np.array([(0, 0), *schema.directions])[tables[:, 0, schema.column("direction")]]
        offsets = {"front": ahead, "beyond": 2 * ahead}
    else:
        sides = {name: np.tile(side, (len(tables), 1)) for name, side in SIDES.items()}
        offsets = sides | {f"beyond {name}": 2 * side for name, side in sides.items()}
    for name, offset in offsets.items():
        is_there = (x == x[:, :1] + offset[:, :1]) & (y == y[:, :1] + offset[:, 1:])
        chosen = add_object(name, on_floor & is_there)
        equal = (chosen[:, named] == carried[:, named]) & (chosen[:, named] > 0)
        for field, same in zip(named, equal.T, strict=True):
            found[f"{name} {schema.names[field]} as held"] = same
    for number, kind in enumerate(schema.classes[1:], 1):
        for field in named:
            values = np.where(kinds[:, 1:] == number, tables[:, 1:, field], 0)
            # The sum of squares does not depend on the order of the slots.
            found[f"{kind} {schema.names[field]}"] = (values**2).sum(1)
    found |= _distances(schema, kinds, np.stack([x, y], -1))
    return list(found), np.stack(list(found.values()), 1).astype(np.int64)


def _distances(
    schema: ObjectSchema, kinds: np.ndarray, places: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the Manhattan distance between the nearest objects of each two classes.

    The agent is a class of its own. The distance is -1 if a class has no objects, or more than 4,
    as walls have.
    """
    max_objects, nowhere = 4, 1 << 20
    points = {"agent": places[:, :1]}
    for number, kind in enumerate(schema.classes[1:], 1):
        mask = kinds[:, 1:] == number
        # A stable sort of the inverted mask moves the slots of the class to the front, in order.
        order = np.argsort(~mask, axis=1, kind="stable")[:, :max_objects]
        counts = np.take_along_axis(mask, order, 1) & (mask.sum(1) <= max_objects)[:, None]
        positions = np.take_along_axis(places[:, 1:], order[..., None], 1)
        points[kind] = np.where(counts[..., None], positions, nowhere)
    names, found = list(points), {}
    for index, one in enumerate(names):
        for two in names[:index]:
            distance = np.abs(points[one][:, :, None] - points[two][:, None]).sum(-1)
            missing = (points[one][:, :, None] == nowhere) | (points[two][:, None] == nowhere)
            nearest = np.where(missing.any(-1), nowhere, distance).min((1, 2))
            found[f"{two} to {one}"] = np.where(nearest < nowhere, nearest, -1)
    return found
