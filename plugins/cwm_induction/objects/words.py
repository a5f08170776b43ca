"""Helper functions for programs of objects; the induction and the programs run the same text.

A state is a tuple of objects, each with a fixed slot. Rules refer to objects by their roles: the
agent, its load, the object in front of the agent, the object behind that one, and the object
beneath the agent.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from cwm_cli.data.objects import ObjectSchema

PRELUDE = '''\
from collections import namedtuple

import numpy as np

KINDS = {kinds!r}
FIELDS = {fields!r}
NAMES = {names!r}
DIRECTIONS = {directions!r}
FLAT = {flat!r}
NAMING = {naming!r}
SIZE = {size!r}

Thing = namedtuple("Thing", {thing!r})
NOTHING = Thing(-1, *(values[0] if values else 0 for values in (KINDS, *NAMES)))
OUTSIDE = NOTHING._replace(kind="outside")
NUMBERS = [{{value: number for number, value in enumerate(values)}} for values in (KINDS, *NAMES)]


def decoded(slot, row):
    """Return the object in a row of the table."""
    values = (KINDS, *NAMES)
    return Thing(slot, *(names[n] if names else n for names, n in zip(values, row)))


def encoded(thing):
    """Return the table row of an object."""
    return [numbers[v] if numbers else v for numbers, v in zip(NUMBERS, thing[1:])]


def at(state, x, y):
    """Return the object at a position, flat ones last; ignore the agent and its load."""
    found = NOTHING if 0 <= x < SIZE[0] and 0 <= y < SIZE[1] else OUTSIDE
    for thing in state:
        here = thing.x == x and thing.y == y and thing.slot
        if here and {lying}thing.kind != KINDS[0]:
            if thing.kind not in FLAT:
                return thing
            found = thing if found.slot < 0 else found
    return found


def carried(state):
    """Return the object that the agent carries."""
    return {carried}


def the(state, kind):
    """Return the only object of a kind."""
    found = [thing for thing in state if thing.kind == kind]
    return found[0] if len(found) == 1 else NOTHING


def twin(state, thing):
    """Return the only other object of the same kind."""
    found = [each for each in state if each.kind == thing.kind and each.slot != thing.slot]
    return found[0] if len(found) == 1 and thing.slot >= 0 else NOTHING


def on(state, thing):
    """Return another object at the same position."""
    for each in state[1:]:
        if each.x == thing.x and each.y == thing.y and each.slot != thing.slot >= 0:
            return each if each.kind != KINDS[0] else NOTHING
    return NOTHING


def count_on(state, kind, under):
    """Count the objects of a kind that share a position with another kind."""
    places = {{(each.x, each.y) for each in state if each.kind == under}}
    return sum(each.kind == kind and (each.x, each.y) in places for each in state)


def all_on(state, kind, under):
    """Return whether every object of a kind shares a position with another kind."""
    return count_on(state, kind, under) == sum(each.kind == kind for each in state)


def some(state, kind, /, **properties):
    """Return whether an object of a kind has the properties."""
    wanted = properties.items()
    return any(
        each.kind == kind and all(getattr(each, name) == value for name, value in wanted)
        for each in state
    )


def named(thing, mission):
    """Return whether a mission names an object by kind, without a different colour."""
    said = mission.lower().replace(",", " ").replace(".", " ").split()
    if thing.kind == KINDS[0] or thing.kind.lower() not in said:
        return False
    own = [getattr(thing, name) for name in NAMING]
    others = {{value for name in NAMING for value in NAMES[FIELDS.index(name)]}}.difference(own)
    kind = thing.kind.lower()
    return any(said[i] == kind and (i == 0 or said[i - 1] not in others) for i in range(len(said)))


def turned(direction, times):
    """Return the direction after some turns to the right."""
    names = NAMES[FIELDS.index("direction")] or range(len(DIRECTIONS) + 1)
    index = names.index(direction)
    return names[(index - 1 + times) % len(DIRECTIONS) + 1] if index else direction


def change(after, thing, /, **fields):
    """Change properties of an object."""
    if thing.slot >= 0:
        after[thing.slot] = after[thing.slot]._replace(**fields)


def remove(after, thing):
    """Remove an object."""
    if thing.slot >= 0:
        after[thing.slot] = NOTHING._replace(slot=thing.slot)
'''
"""Text at the beginning of every program; unused functions are removed."""

ROLES = {
    "agent": "state[0]",
    "held": "carried(state)",
    "front": "at(state, agent.x + dx, agent.y + dy)",
    "beyond": "at(state, agent.x + 2 * dx, agent.y + 2 * dy)",
    "here": "at(state, agent.x, agent.y)",
    "other": "twin(state, here)",
    "there": "on(state, other)",
}
"""Roles of objects; the expression of a role may use earlier roles."""

State = tuple[Any, ...]


class Language:
    """The helper functions for one object schema.

    Args:
        schema: Classes and fields of the objects.
        flat: Classes beneath other objects.
        naming: Fields that distinguish objects in missions: named values that never change.
        size: The largest x and y, plus 1.
    """

    def __init__(
        self,
        schema: ObjectSchema,
        flat: Iterable[str] = (),
        naming: Iterable[str] = (),
        size: tuple[int, int] = (0, 0),
    ) -> None:
        self.schema = schema
        self.flat, self.naming = tuple(sorted(flat)), tuple(sorted(naming))
        self.size = size
        self.carries = "held" in schema.names
        self.faces = "direction" in schema.names and bool(schema.directions)
        self.text = self._prelude()
        self.space: dict[str, Any] = {}
        exec(compile(self.text, "<prelude>", "exec"), self.space)  # noqa: S102  # ours, from a schema

    def _prelude(self) -> str:
        fields = tuple(each.name for each in self.schema.fields)
        names = tuple(each.values for each in self.schema.fields)
        held = [name for name in fields if name == "held"]
        counted: dict[str | int, tuple[int, int]] = {}
        if self.faces:
            values = self.schema.fields[fields.index("direction")].values
            for number, vector in enumerate(self.schema.directions, 1):
                counted[values[number] if values else number] = vector
        one = 1 if not held or not names[fields.index("held")] else names[fields.index("held")][1]
        return PRELUDE.format(
            kinds=self.schema.classes,
            fields=fields,
            names=names,
            directions=counted,
            flat=self.flat,
            naming=self.naming,
            size=self.size,
            thing=" ".join(("slot", "kind", *fields)),
            lying=f"thing.held != {one!r} and " if held else "",
            carried=f"next((thing for thing in state if thing.held == {one!r}), NOTHING)"
            if held
            else "NOTHING",
        )

    def state(self, table: np.ndarray) -> State:
        """Return the objects in a table."""
        decoded = self.space["decoded"]
        return tuple(decoded(slot, row) for slot, row in enumerate(np.asarray(table).tolist()))
