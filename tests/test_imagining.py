"""Functions that imagine in the process of a program; tables of objects."""

import numpy as np
import pytest

from cwm_cli.data.objects import ObjectField, ObjectSchema, Thing
from cwm_cli.worlds.confined_imagining import pack, unpack


def test_what_is_packed_is_unpacked_and_what_is_not_is_refused() -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "yz"]), "c": np.zeros((0, 2))}
    head, found = unpack(pack({"steps": 3}, arrays))
    assert head == {"steps": 3}
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    whole = pack({}, arrays)
    for damaged in (b"", whole[:7], whole[:-9], whole.replace(b"<f8", b"|O8")):
        with pytest.raises(ValueError):
            unpack(damaged)


def test_objects_are_read_from_a_table_and_written_back() -> None:
    schema = ObjectSchema(
        ("none", "Agent", "Key"),
        (ObjectField("x"), ObjectField("y"), ObjectField("color", ("none", "red"))),
    )
    things = [
        Thing("Agent", {"x": 1, "y": 2, "color": "none"}),
        Thing("Key", {"x": 3, "y": 1, "color": "red"}),
    ]
    table = schema.encode(things, 4)
    assert table.tolist() == [[1, 1, 2, 0], [2, 3, 1, 1], [0] * 4, [0] * 4]
    assert schema.decode(table) == things
    assert ObjectSchema.from_json(schema.to_json()) == schema
    with pytest.raises(ValueError):
        schema.encode(things, 1)
