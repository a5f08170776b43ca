"""Programs of many like parts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_induction import relations
from cwm_induction.decision_list import Bias, RelationFeature, learn
from cwm_induction.effort import Effort
from cwm_induction.relations.consequences import StageConsequence
from cwm_induction.relations.payments import fit_payments
from cwm_induction.relations.rules import plain_terms

UNITS, SECONDS = 100_000, 60.0

State = np.ndarray
Step = Callable[[State, int], tuple[State, float, bool]]


def record(start: Callable[[np.random.Generator], State], step: Step, actions: int) -> Dataset:
    """Record 40 random episodes of at most 12 steps; the later half is for testing."""
    rng, rows = np.random.default_rng(0), []
    for episode in range(40):
        state = start(rng)
        for _ in range(12):
            action = int(rng.integers(actions))
            following, reward, done = step(state, action)
            ends = done, False, episode, int(episode >= 20)
            rows.append(Transition(state, action, following, reward, *ends))
            state = following
            if done:
                break
    shape, top = state.shape, float(max(row.observation.max() for row in rows))
    size = int(np.prod(shape))
    observations = Space("box", "int64", shape, (0.0,) * size, (top,) * size)
    numbers = Space("discrete", "int64", (), (0.0,), (actions - 1.0,))
    return Dataset.of(rows, observation_space=observations, action_space=numbers)


def wrong_rows(program: str, data: Dataset) -> int:
    """Count the rows that a program does not predict in every part."""
    namespace: dict[str, Any] = {}
    exec(program, namespace)
    environment, wrong = namespace["Environment"](), 0
    for row in data:
        environment.set_state(row.observation)
        observation, reward, done = environment.step(row.action)
        same = np.array_equal(observation, row.next_observation) and done == row.terminated
        wrong += not (same and abs(reward - row.reward) < 1e-6)
    return wrong


def lit(rng: np.random.Generator) -> State:
    """Return a board with some lit lamps."""
    return (rng.random((4, 5)) < 0.4).astype(np.int64)


def press(board: State, action: int) -> tuple[State, float, bool]:
    """Toggle a lamp and its horizontal neighbours on a ring; full columns go dark."""
    after = board.copy()
    row, column = divmod(action, 5)
    for right in (-1, 0, 1):
        after[row, (column + right) % 5] ^= 1
    full = after.all(axis=0)
    reward = 0.5 * (int(board.sum()) - int(after.sum())) + 2.0 * int(full.sum())
    after[:, full] = 0
    return after, reward, not after.any()


def belt(rng: np.random.Generator) -> State:
    """Return a belt with eight places and a hand."""
    return rng.integers(0, 3, 9) * (rng.random(9) < 0.7)


def turn(state: State, action: int) -> tuple[State, float, bool]:
    """Swap the hand with the first place, or wait; then the belt turns unless 2 is in front."""
    places, hand = state[:8].copy(), int(state[8])
    if action == 1:
        hand, places[0] = int(places[0]), hand
    moves = places[0] != 2
    places = np.roll(places, 1) if moves else places
    return np.array([*places, hand]), float(moves), False


def yard(rng: np.random.Generator) -> State:
    """Return walls (1), crates (2), marked cells (3: empty, 4: crate) and an agent (5, 6)."""
    board = np.zeros((5, 5), np.int64)
    board[2, 2], board[1, 3] = 1, 3
    free = [(y, x) for y in range(5) for x in range(5) if board[y, x] == 0]
    crate, other, agent = (free[i] for i in rng.permutation(len(free))[:3])
    board[crate] = board[other] = 2
    board[agent] = 5
    return board


def walk(board: State, action: int) -> tuple[State, float, bool]:
    """Move the agent, which pushes one crate onto free cells."""
    board, marked = board.copy(), (1, 3)
    things = np.where(board == 3, 0, np.where(board == 4, 2, np.where(board == 6, 5, board)))
    row, column = (int(place[0]) for place in np.nonzero(things == 5))
    down, right = ((-1, 0), (1, 0), (0, -1), (0, 1))[action]
    cells = [(row + k * down, column + k * right) for k in range(3)]
    inside = [0 <= y < 5 and 0 <= x < 5 for y, x in cells]
    codes = [int(things[c]) if ok else 1 for c, ok in zip(cells, inside, strict=True)]
    before = int((board == 4).sum())
    if codes[1] == 0 or (codes[1] == 2 and codes[2] == 0):
        if codes[1] == 2:
            things[cells[2]] = 2
        things[cells[1]], things[cells[0]] = 5, 0
    shown = things.copy()
    shown[marked] = {0: 3, 2: 4, 5: 6}[int(things[marked])]
    return shown, float(int((shown == 4).sum()) - before) - 0.1, False


def field(rng: np.random.Generator) -> State:
    """Return the places of a cat and two mice."""
    return (rng.permutation(25)[:3, None] // np.array([5, 1]) % 5).ravel()


def chase(state: State, action: int) -> tuple[State, float, bool]:
    """Move the cat; mice in reach flee along the longer distance if the cell is free."""
    places = [[int(row), int(column)] for row, column in state.reshape(3, 2)]

    def move(number: int, down: int, right: int) -> bool:
        cell = [places[number][0] + down, places[number][1] + right]
        free = 0 <= cell[0] < 5 and 0 <= cell[1] < 5 and cell not in places
        places[number] = cell if free else places[number]
        return free

    moved = move(0, *((-1, 0), (1, 0), (0, -1), (0, 1))[action])
    for mouse in (1, 2):
        down, right = (places[0][axis] - places[mouse][axis] for axis in (0, 1))
        if abs(down) + abs(right) > 2:
            continue
        if abs(down) >= abs(right):
            move(mouse, 1 if down < 0 else -1, 0)
        else:
            move(mouse, 0, 1 if right < 0 else -1)
    return np.array(places).ravel(), -0.1 if moved else -1.0, False


def stacks(rng: np.random.Generator) -> State:
    """Return a queue of up to five items, an empty stack of three, and the last item out."""
    count = int(rng.integers(2, 6))
    return np.array([*rng.integers(1, 4, count), *[0] * (9 - count)])


def sort(state: State, action: int) -> tuple[State, float, bool]:
    """Move an item from queue to stack (0), or from queue (1) or stack (2) to the exit."""
    queue, stack = ([int(i) for i in part if i] for part in (state[:5], state[5:8]))
    last = int(state[8])
    if action == 0 and queue and len(stack) < 3:
        stack.append(queue.pop(0))
    elif action == 1 and queue:
        last = queue.pop(0)
    elif action == 2 and stack:
        last = stack.pop()
    else:
        return state, -1.0, False
    shown = [*queue, *[0] * (5 - len(queue)), *stack, *[0] * (3 - len(stack)), last]
    return np.array(shown), float(action > 0), not queue and not stack


def dirty(rng: np.random.Generator) -> State:
    """Return floor (0), dirt (1), a wall (2) and a robot (3, or 4 on dirt)."""
    board = (rng.random((4, 5)) < 0.3).astype(np.int64)
    board[2, 2] = 2
    free = np.argwhere(board == 0)
    board[tuple(free[rng.integers(len(free))])] = 3
    return board


def clean(board: State, action: int) -> tuple[State, float, bool]:
    """Move the robot, or clean the cell below it (4)."""
    board = board.copy()
    row, column = (int(place[0]) for place in np.nonzero(board >= 3))
    dirt = board[row, column] == 4
    if action == 4:
        board[row, column] = 3
        return board, float(dirt), bool(((board == 1) | (board == 4)).sum() == 0)
    down, right = ((-1, 0), (1, 0), (0, -1), (0, 1))[action]
    y, x = row + down, column + right
    if not (0 <= y < 4 and 0 <= x < 5) or board[y, x] == 2:
        return board, -0.3, False
    board[row, column], board[y, x] = int(dirt), 3 + int(board[y, x] == 1)
    return board, -0.1, False


def trees(rng: np.random.Generator) -> State:
    """Return a board with some fires (1) and an agent (2)."""
    board = (rng.random((5, 5)) < 0.2).astype(np.int64)
    free = np.argwhere(board == 0)
    board[tuple(free[rng.integers(len(free))])] = 2
    return board


def burn(board: State, action: int) -> tuple[State, float, bool]:
    """Move the agent or put out the fire in its way; then fire spreads downwards."""
    board = board.copy()
    row, column = (int(place[0]) for place in np.nonzero(board == 2))
    down, right = ((-1, 0), (1, 0), (0, -1), (0, 1))[action]
    y, x = row + down, column + right
    if 0 <= y < 5 and 0 <= x < 5:
        if board[y, x] == 1:
            board[y, x] = 0
        else:
            board[row, column], board[y, x] = 0, 2
    above = np.vstack([np.zeros((1, 5), np.int64), board[:-1]])
    return np.where((board == 0) & (above == 1), 1, board), 0.0, False


def rest(board: State, action: int) -> tuple[State, float, bool]:
    """Change no cell, with a reward for the first lamp."""
    return board, float(board[0, 0]), False


@pytest.mark.parametrize(
    ("start", "step", "actions"),
    [
        (lit, press, 20),
        (lit, rest, 20),
        (belt, turn, 2),
        (yard, walk, 4),
        (field, chase, 4),
        (stacks, sort, 3),
        (dirty, clean, 5),
        (trees, burn, 4),
    ],
)
def test_rules_of_cells_predict_new_boards(start: Any, step: Step, actions: int) -> None:
    data = record(start, step, actions)
    train = data.train
    program, _, exact = relations.induce(
        train, train.columns["episodes"] > 15, Effort(UNITS, SECONDS)
    )
    assert exact > 0.97
    assert wrong_rows(program, data.test) <= 0.03 * len(data.test)


def test_numbers_without_like_parts_give_no_program() -> None:
    def start(rng: np.random.Generator) -> State:
        return rng.integers(0, 50, 2)

    def step(state: State, action: int) -> tuple[State, float, bool]:
        return np.array([(state[0] + action) % 50, state[0]]), 0.0, False

    data = record(start, step, 3)
    assert (
        relations.induce(data, data.columns["episodes"] > 15, Effort(UNITS, SECONDS)).program == ""
    )


def test_a_decision_list_prefers_short_rules() -> None:
    rng = np.random.default_rng(0)
    columns = [RelationFeature(f"x{i}", "code", rng.integers(0, 4, 500)) for i in range(6)]
    first, second = columns[0].values, columns[1].values
    label = np.where(first == 2, 1, np.where(second == 3, 2, 0))
    rules = learn(columns, label[:, None] == np.arange(3), lambda _: True)
    assert [len(rule.conditions) for rule in rules.rules] == [1, 1]
    values = {column.name: column.values for column in columns}
    assert (rules.effects(values, 500) == label).all()


def test_a_decision_list_ignores_noise_if_errors_are_cheap() -> None:
    rng = np.random.default_rng(1)
    columns = [RelationFeature(f"x{i}", "code", rng.integers(0, 4, 500)) for i in range(6)]
    label = (columns[0].values == 1).astype(int)
    label[rng.random(500) < 0.05] = 2
    rules = learn(columns, label[:, None] == np.arange(3), lambda _: True, Bias(1.0))
    assert rules.features == {"x0"}


@pytest.mark.parametrize(
    "consequence",
    [
        StageConsequence(("full_rows", "full_columns"), "", False),
        StageConsequence(("full_rows",), "down", True),
        StageConsequence((), "left", True, 3, (-1, -2)),
        StageConsequence((), "up", False),
    ],
)
def test_programs_have_the_consequences_of_the_model(consequence: StageConsequence) -> None:
    boards = np.random.default_rng(0).integers(0, 3, (40, 4, 5))
    boards[:20] = np.minimum(boards[:20] + 1, 2)
    expected, events = consequence.apply(boards)
    for number, board in enumerate(boards):
        names: dict[str, Any] = {"np": np, "board": board}
        exec("\n".join([consequence.function, *consequence.lines]), names)
        assert np.array_equal(names["board"], expected[number])
        assert all(names[name] == events[name][number] for name in consequence.events)


def test_least_absolute_deviations_find_the_weights_of_changes() -> None:
    rng = np.random.default_rng(0)
    names = {
        "a": rng.integers(-2, 3, 300),
        "b": rng.integers(0, 4, 300),
        "c": rng.integers(0, 9, 300),
    }
    rewards = 1.5 * names["a"] - 0.1 + np.where(names["c"] == 4, 5.0, 0.0)
    terms = plain_terms("number", names)
    ends = names["c"] == 8
    payments = fit_payments(terms, terms, names, rewards, ends, lambda _: True)
    assert payments.weights == (("a", 1.5),)
    found, done = payments.predict(names, 300)
    assert np.allclose(found, rewards)
    assert (done == ends).all()
