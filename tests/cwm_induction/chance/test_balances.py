"""Outputs that are computed from drawn ones: balances, and events that several outputs share."""

from collections.abc import Callable

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_induction.chance.balances import balances
from cwm_induction.chance.events import find_event
from cwm_induction.chance.kernels import OutcomeTarget
from cwm_induction.chance.model import RandomModel, learn_model
from cwm_induction.chance.program import write
from cwm_induction.chance.quantities import OutcomeRows
from cwm_induction.effort import Effort

Law = Callable[[list[int], int, np.random.Generator], list[int]]


def recorded(law: Law, start: list[int], rows: int = 400) -> Dataset:
    """Record one episode with three random actions, in a space with a wide margin."""
    rng, state, found = np.random.default_rng(3), start, []
    for _ in range(rows):
        action = int(rng.integers(3))
        after = law(state, action, rng)
        found.append(Transition(np.array(state), action, np.array(after), 0.0, False, False, 0))
        state = after
    space = space_of(Box(-50, 200, (len(start),), np.int64))
    return Dataset.of(found, observation_space=space, action_space=space_of(Discrete(3)))


def learned(data: Dataset) -> tuple[RandomModel, str]:
    model = learn_model(data, np.ones(len(data), bool), Effort(1000, 20))
    return model, write(model)


def shop(state: list[int], action: int, rng: np.random.Generator) -> list[int]:
    """Sell from a stock; unmet demand is lost, and an order arrives a day later."""
    stock, due, _ = state
    demand = int(rng.poisson(5))
    return [max(stock + due - demand, 0), 5 * action, demand]


def belt(state: list[int], action: int, rng: np.random.Generator) -> list[int]:
    """Move a belt of four places: always, sometimes or never."""
    if rng.random() >= (1.0, 0.6, 0.0)[action]:
        return state
    return [int(rng.random() < 0.4), *state[:-1]]


@pytest.mark.slow
def test_stock_is_computed_from_the_drawn_demand() -> None:
    model, text = learned(recorded(shop, [10, 0, 0]))
    certain = {output.target.name for output in model.outputs if output.is_certain}
    assert certain == {"x0_next", "x1_next"}
    assert "max(x0 + x1 - x2_next, 0)" in text
    exec(text, scope := {})
    program = scope["Environment"]()
    program.set_state([3, 5, 4])
    stocks = {(after[0], after[2]) for _, after, *_ in program.outcomes(1)}
    assert all(stock == max(8 - demand, 0) for stock, demand in stocks)


def test_balance_needs_whole_weights() -> None:
    rows = OutcomeRows.of(recorded(shop, [10, 0, 0], 90))
    learn, limits = np.ones(90, bool), (-np.inf, np.inf)
    now = [part.values for part in rows.now]
    [found] = balances(2 * now[0] - now[1] + 4, limits, rows, [learn])
    assert np.array_equal(found.values, 2 * now[0] - now[1] + 4)
    assert balances(0.5 * now[0], limits, rows, [learn]) == []


@pytest.mark.slow
def test_places_of_a_belt_share_one_event() -> None:
    model, text = learned(recorded(belt, [0, 1, 0, 1]))
    outputs = {output.target.name: output for output in model.outputs}
    assert not outputs["event"].is_certain
    assert all(outputs[f"x{place}_next"].is_certain for place in (1, 2, 3))
    exec(text, scope := {})
    program = scope["Environment"]()
    program.set_state([1, 0, 1, 0])
    moved = sum(chance for chance, after, *_ in program.outcomes(1) if after[1] == 1)
    assert abs(moved - 0.6) < 0.12


def test_event_search_accepts_an_output_whose_expressions_all_have_limits() -> None:
    rows, learn = OutcomeRows.of(recorded(shop, [10, 0, 0])), np.ones(400, bool)
    limits = np.full(400, 40.5), np.full(400, 60.5)
    limited = OutcomeTarget("limited", np.full(400, 50.0), *limits, is_label=True)
    other = OutcomeTarget("due", rows.now[1].values, np.full(400, -np.inf), np.full(400, np.inf))
    assert find_event([limited, other], rows, learn, Effort(1000, 20)) is None
