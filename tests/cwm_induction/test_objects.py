"""Rules over objects: the object in front of the agent, the carried one, and those in missions."""

from pathlib import Path

import numpy as np
import pytest

from cwm_cli.data.objects import ObjectField, ObjectSchema, relations
from cwm_induction.objects import Experience, program_of
from cwm_learn.learn import learn

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


class Doors:
    """A room of 5 x 3 places with a wall, a locked door, two keys and a goal, played at random."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def begin(self) -> np.ndarray:
        table = np.zeros((12, 7), np.int64)
        colors = self.rng.permutation([1, 2])
        x, y = self.rng.permutation(3)[:2], self.rng.integers(0, 3, 2)
        table[0] = 1, 2, self.rng.integers(0, 3), self.rng.integers(1, 5), 0, 0, 0
        table[1:3] = [(4, x[i], y[i], 0, colors[i], 0, 0) for i in range(2)]
        if self.rng.random() < 0.6:  # an episode may begin before the door, a key in hand
            table[0, 1:3] = 2, 1
            table[1 + self.rng.integers(2), [1, 2, 6]] = 2, 1, 1
        table[3:5] = [(2, 3, row, 0, 0, 0, 0) for row in (0, 2)]
        table[8], table[9] = (3, 3, 1, 0, colors[0], 3, 0), (5, 4, 1, 0, 0, 0, 0)
        return table

    def step(self, table: np.ndarray, action: int) -> tuple[np.ndarray, float, bool]:
        after = table.copy()
        way = np.array([(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1)])[after[0, 3]]
        place = after[0, 1:3] + way
        there = (after[1:, 1:3] == place).all(1) & (after[1:, 0] > 0) & (after[1:, 6] == 0)
        front = 1 + int(there.argmax()) if there.any() else None
        held = 1 + int(after[1:, 6].argmax()) if after[1:, 6].any() else None
        kind = after[front, 0] if front else 0
        inside = bool((place >= 0).all() and (place < (5, 3)).all())
        if action in (0, 1):
            after[0, 3] = (after[0, 3] - 1 + (1 if action else 3)) % 4 + 1
        elif action == 2 and inside and (kind in (0, 5) or (kind == 3 and after[front, 5] == 1)):
            after[0, 1:3] = place
        elif action == 3 and kind == 4 and held is None:
            after[front, 6] = 1
        elif action == 4 and kind == 3 and held and after[held, 4] == after[front, 4]:
            after[front, 5] = 1
        if held:
            after[held, 1:3] = after[0, 1:3]
        if action == 3 and kind == 4 and held is None:
            after[front, 1:3] = after[0, 1:3]
        at_goal = bool((after[0, 1:3] == after[9, 1:3]).all())
        return after, float(at_goal), at_goal

    def rows(self, count: int) -> list[tuple[str, np.ndarray, int, np.ndarray, float, bool]]:
        rows: list[tuple[str, np.ndarray, int, np.ndarray, float, bool]] = []
        table = self.begin()
        while len(rows) < count:
            front = (table[0, 1:3] + [(1, 0), (0, 1), (-1, 0), (0, -1)][table[0, 3] - 1]).tolist()
            told = [row[0] for row in table.tolist() if row[1:3] == front]
            likely = {4: 3, 3: 4}.get(told[0] if told else 0, 2)
            action = int(self.rng.choice([0, 1, 2, 3, 4, likely, likely]))
            after, reward, done = self.step(table, action)
            rows.append(("go to the goal", table, action, after, reward, done))
            table = self.begin() if done or len(rows) % 30 == 0 else after
        return rows


def wrong(program: str, rows: list[tuple[str, np.ndarray, int, np.ndarray, float, bool]]) -> int:
    """Count the rows that a program predicts otherwise."""
    space: dict[str, object] = {}
    exec(program, space)
    world = space["Environment"]()  # type: ignore[operator]
    count = 0
    for mission, table, action, after, reward, done in rows:
        world.set_state({"mission": mission, "objects": table})
        observation, *rest = world.step(action)
        count += not np.array_equal(observation["objects"], after) or rest != [reward, done]
    return count


def test_keys_and_doors_are_understood_from_rows() -> None:
    """A door opens to the key of its colour: rules say so, and hold in rooms never seen."""
    rows = Doors(np.random.default_rng(0)).rows(800)
    program = program_of(Experience.read(SCHEMA, rows))
    assert wrong(program, rows) == 0
    assert "RECALLED" not in program
    assert wrong(program, Doors(np.random.default_rng(1)).rows(800)) <= 2, program
    assert "here.kind == 'goal'" in program


@pytest.mark.slow
def test_a_key_is_taken_to_its_door_on_boards_that_differ(tmp_path: Path) -> None:
    """Without a language model the agent tries actions on objects, then plans."""
    pytest.importorskip("minigrid")
    found = learn("MiniGrid-DoorKey-5x5-v0", steps=130, stop="never", run=tmp_path / "run")
    played = [each["return"] for each in found.returns if each["aim"] in ("exploit", "verify")]
    assert len(played) >= 3
    assert set(played[1:-1]) == {1.0}, "except the one that the budget ends"


@pytest.mark.long
def test_boxes_come_onto_targets(tmp_path: Path) -> None:
    """Without a facing direction: pushed objects move, and the cell behind them counts, too."""
    found = learn("Sokoban-v0", steps=110, stop="never", run=tmp_path / "run")
    returns = [each["return"] for each in found.returns[:-1]]
    assert len([each for each in returns if each > 9]) >= 2, returns
