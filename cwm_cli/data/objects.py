"""Observations as objects: a table of whole numbers, a row per object, and what they stand for.

An environment with an object view has the observation `{"mission": text, "objects": table}`. Each
object keeps its row for a whole episode, the agent the first. A row in which every number is 0
is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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

    def _properties(self, numbers: Iterable[int]) -> Iterator[tuple[str, int | str]]:
        for each, number in zip(self.fields, numbers, strict=True):
            yield each.name, each.read(number)

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
