"""Rules over objects: what stands before the agent, what it carries, and what a mission names."""

import numpy as np

from cwm_cli.data.objects import ObjectField, ObjectSchema, relations

COLORS = ("none", "red", "blue")
SCHEMA = ObjectSchema(
    ("nothing", "agent", "wall", "door", "key", "goal"),
    (
        ObjectField("x"),
        ObjectField("y"),
        ObjectField("direction", ("none", "right", "down", "left", "up")),
        ObjectField("color", COLORS),
        ObjectField("state", ("none", "open", "closed", "locked")),
        ObjectField("held"),
    ),
    ((1, 0), (0, 1), (-1, 0), (0, -1)),
)


def test_relations_say_what_meets_what() -> None:
    """A key that is carried before a door of its colour is another situation than any other."""
    agent, key = [1, 1, 1, 1, 0, 0, 0], [4, 1, 1, 0, 1, 0, 1]
    red, blue = [3, 2, 1, 0, 1, 3, 0], [3, 2, 1, 0, 2, 3, 0]
    away, free = [3, 3, 1, 0, 1, 3, 0], [0] * 7
    tables = np.array([[agent, key, red], [agent, red, key], [agent, key, blue],
                       [agent, key, away], [agent, free, red]])  # fmt: skip
    names, values = relations(SCHEMA, tables)
    told = [dict(zip(names, row, strict=True)) for row in values.tolist()]
    assert told[0] == told[1], "the order of the slots says nothing"
    assert [row["front"] for row in told] == [3, 3, 3, 0, 3]
    assert [row["front color as held"] for row in told] == [1, 1, 0, 0, 0]
    assert [row["held"] for row in told] == [4, 4, 4, 4, 0]
    assert [row["beyond"] for row in told] == [0, 0, 0, 3, 0]
    assert [row["door to key"] for row in told] == [1, 1, 1, 2, -1]
    assert relations(SCHEMA, tables[:0])[1].shape == (0, len(names))
