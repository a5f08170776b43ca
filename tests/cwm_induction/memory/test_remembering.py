"""Programs that remember counters, delays, changes and clocks, on small generated systems."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import match
from cwm_cli.worlds import ProgramModel
from cwm_induction.attempts import CounterAttempt, InductionTask, LagAttempt, held_back
from cwm_induction.effort import Effort
from cwm_induction.memory.clocks import clock_of
from cwm_induction.memory.counting import balanced, chosen_quantities, counted
from cwm_induction.memory.history import RecordedHistory
from cwm_induction.memory.lagging import Regressions, delayed_actions

Episode = Iterator[tuple[Any, int, Any, float]]


def recorded(
    episode: Callable[[np.random.Generator], Episode], space: Space, actions: int, count: int = 14
) -> Dataset:
    """Record episodes that yield observation, action, next observation and reward."""
    rng = np.random.default_rng(0)
    rows = [
        Transition(now, action, after, reward, False, False, number, 0)
        for number in range(count)
        for now, action, after, reward in episode(rng)
    ]
    labels = Space("discrete", low=(0,), high=(actions - 1,))
    return Dataset.of(rows, observation_space=space, action_space=labels)


def share_right(attempt: Any, data: Dataset, sandbox: Any) -> float:
    """Return the share of rows that the program of an attempt predicts exactly."""
    mask = held_back(data, 0)
    task = InductionTask(data, mask, 0, Effort(2000, 60))
    program = attempt(task).program
    predictions = ProgramModel(program, sandbox).predict(data)
    assert predictions.failure is None, predictions.failure
    return float(
        (match(predictions.columns, data).losses(data.columns["terminations"]) == 0).mean()
    )


def stock(rng: np.random.Generator) -> Episode:
    """Collect up to two items at place 0, and sell one at place 3 if there is any."""
    place, items = int(rng.integers(4)), 0
    for _ in range(60):
        action, before, reward = int(rng.integers(3)), place, 0.0
        if action < 2:
            place = min(max(place + 2 * action - 1, 0), 3)
        elif place == 0:
            items = min(items + 1, 2)
        elif place == 3 and items:
            items, reward = items - 1, 1.0
        yield [before], action, [place], reward


def cart(rng: np.random.Generator) -> Episode:
    """Move by an action that takes effect two steps later."""
    place, speed, sent = rng.uniform(-1, 1), 0.0, [0, 0]
    for _ in range(40):
        action, before = int(rng.integers(3)), [place, speed]
        sent.append(action)
        speed = 0.9 * speed + 0.1 * (0, 1, -1)[sent.pop(0)]
        place += speed
        yield before, action, [place, speed], 0.0


def tide(rng: np.random.Generator) -> Episode:
    """Fill a pond for three steps and drain it for two, in turn, while the gate is open."""
    level, time = rng.uniform(1, 2), int(rng.integers(5))
    for _ in range(50):
        action, before = int(rng.integers(2)), level
        level += action * 0.3 * ((3.0 if time % 5 < 3 else 0.5) - level)
        time += 1
        yield [before], action, [level], 0.0


def oven(rng: np.random.Generator) -> Episode:
    """Heat after action 1 until action 2; action 3 opens the door."""
    heat, is_on = rng.uniform(15, 40), False
    for _ in range(40):
        action, before = int(rng.integers(4)), heat
        is_on = action == 1 or (is_on and action != 2)
        heat += 0.1 * ((80 if is_on else 15) - heat) - 3.0 * (action == 3)
        yield [before], action, [heat], 0.0


BOX = Space("box", "float64", (2,), (-99.0, -99.0), (99.0, 99.0))
POND = Space("box", "float64", (1,), (-99.0,), (99.0,))
LINE = Space("multidiscrete", "int64", (1,), (0.0,), (3.0,))


def test_counts_start_again_after_a_reset_and_in_each_episode() -> None:
    rows = np.zeros((6, 1))
    first = np.array([1, 0, 0, 0, 1, 0], bool)
    flags = np.zeros(6, bool)
    history = RecordedHistory(rows, rows, rows, np.zeros(6), flags, first, ~flags)
    event, reset = np.ones(6, bool), np.array([0, 0, 1, 0, 0, 0], bool)
    assert counted(history, event, reset).tolist() == [0, 1, 2, 0, 0, 1]
    assert balanced(history, event, reset, 1).tolist() == [0, 1, 1, 0, 0, 1]


def test_a_stock_that_events_raise_and_lower_is_exact(sandbox: Any) -> None:
    data = recorded(stock, LINE, 3)
    quantities = chosen_quantities(
        RecordedHistory.of(data, np.zeros(len(data), bool)), Effort(2000, 60)
    )
    assert [quantity.update.startswith("max(") for quantity in quantities] == [True]
    assert share_right(CounterAttempt(), data, sandbox) == 1.0


def test_a_delay_of_actions_is_found_and_exact(sandbox: Any) -> None:
    data = recorded(cart, BOX, 3)
    history = RecordedHistory.of(data, held_back(data, 0))
    assert len(delayed_actions(history, Regressions.of(history, True), True)) == 2
    assert share_right(LagAttempt(), data, sandbox) > 0.99


def test_a_latch_of_actions_is_found_and_exact(sandbox: Any) -> None:
    assert share_right(LagAttempt("events"), recorded(oven, POND, 4), sandbox) > 0.99


def test_a_clock_with_unknown_phase_is_found(sandbox: Any) -> None:
    data = recorded(tide, POND, 2)
    history = RecordedHistory.of(data, held_back(data, 0))
    clock = clock_of(history, Regressions.of(history, True), [], Effort(2000, 60))
    assert clock is not None
    assert clock.period == 5
    assert clock.length in (2, 3)
    assert share_right(LagAttempt("clock"), data, sandbox) > 0.9


@pytest.mark.parametrize("kind", ["clock", "events"])
def test_systems_without_memory_give_no_program(kind: Any) -> None:
    def plain(rng: np.random.Generator) -> Episode:
        place = rng.uniform(-1, 1)
        for _ in range(40):
            action, before = int(rng.integers(3)), place
            place = 0.9 * place + 0.1 * action
            yield [before], action, [place], 0.0

    data = recorded(plain, POND, 3)
    task = InductionTask(data, held_back(data, 0), 0, Effort(2000, 60))
    assert LagAttempt(kind)(task).program == ""
