"""Imagined episodes in the process of a program, their messages, and tables of objects."""

from itertools import pairwise

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.objects import ObjectField, ObjectSchema, Thing
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds.messages import pack, unpack
from cwm_cli.worlds.model import ImaginedStep
from cwm_cli.worlds.program import ProgramModel


def test_packed_arrays_are_unpacked_and_malformed_bytes_are_refused() -> None:
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


MOVING = """
class Environment:
    def set_state(self, observation):
        self.place = observation
    def step(self, action):
        if self.place[0] > 90:
            raise ValueError("no data for distant places")
        moved = self.place + {speed} * (2 * action - 1)
        return moved, float(action), bool(moved[0] > 5)
"""


def moved(program: str, sandbox: Sandbox, places: list[float], actions: list[int]) -> ImaginedStep:
    """Imagine one step of an episode from each place."""
    line = Space("box", "float64", (1,), (-100.0,), (100.0,))
    sides = Space("discrete", low=(0,), high=(1,))
    seen = [np.array([place]) for place in range(9)]
    rows = Dataset.of(
        [Transition(a, 1, b, 1.0, bool(b[0] > 5)) for a, b in pairwise(seen)],
        observation_space=line,
        action_space=sides,
    )
    starts = [EpisodeHistory((np.array([place]),)) for place in places]
    episodes = ProgramModel(program, sandbox).imagine(starts, rows, seed=3)
    return episodes.step({"actions": np.array(actions)})


def test_episodes_continue_in_parallel_inside_a_program(sandbox: Sandbox) -> None:
    step = moved(MOVING.format(speed=1), sandbox, [0.0, 4.5, 5.0, 95.0], [0, 1, 1, 1])
    assert step.observations["observations"].ravel().tolist() == [-1.0, 5.5, 6.0, 95.0]
    assert step.rewards.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert step.terminated.tolist() == [
        False,
        True,
        True,
        True,
    ]  # the program raised in the last episode
    with pytest.raises(CwmError, match="no data for distant places"):
        moved(MOVING.format(speed=1), sandbox, [95.0, 96.0], [1, 1])


def test_random_steps_of_imagined_episodes_follow_from_the_seed(sandbox: Sandbox) -> None:
    program = MOVING.format(speed="self.rng.random()")
    steps = [moved(program, sandbox, [0.0] * 6, [1] * 6).observations for _ in range(2)]
    assert steps[0]["observations"].tolist() == steps[1]["observations"].tolist()
    assert len(set(steps[0]["observations"].ravel().tolist())) == 6
