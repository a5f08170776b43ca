"""Large counts that move between stocks, found in small generated data."""

from collections.abc import Callable

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_induction.chance.model import learn_model
from cwm_induction.chance.program import write
from cwm_induction.chance.quantities import OutcomeRows
from cwm_induction.chance.transfers import fit_transfers
from cwm_induction.effort import Effort

Law = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]


def recorded(law: Law, start: tuple[int, ...], episodes: int = 6, steps: int = 60) -> Dataset:
    """Record episodes from random states near a start, with two actions that change rarely."""
    rng, rows = np.random.default_rng(2), []
    for episode in range(episodes):
        state = np.array([rng.integers(n // 2, n + 2) for n in start])
        action = 0
        for _ in range(steps):
            action = int(rng.integers(2)) if rng.random() < 0.2 else action
            after = law(state, action, rng)
            rows.append(Transition(state, action, after, 0.0, False, False, episode))
            state = after
    box = Box(-100, 100_000, (len(start),), np.int64)
    spaces = {
        "observation_space": space_of(box),
        "action_space": space_of(Discrete(2)),
    }
    return Dataset.of(rows, **spaces)


def depots(state: np.ndarray, action: int, rng: np.random.Generator) -> np.ndarray:
    """Items arrive at a depot, move to a second one at two speeds, and leave."""
    arriving, moving = rng.poisson(150), rng.binomial(state[0], (0.1, 0.3)[action])
    leaving = rng.binomial(state[1], 0.2)
    return np.array([state[0] + arriving - moving, state[1] + moving - leaving])


def rumour(state: np.ndarray, action: int, rng: np.random.Generator) -> np.ndarray:
    """People who know a rumour tell it to others, and forget it."""
    told = rng.binomial(state[0], 1 - np.exp(-(4e-5, 1e-5)[action] * state[1]))
    forgotten = rng.binomial(state[1], 0.1)
    return np.array([state[0] - told + forgotten, state[1] + told - forgotten])


def test_transfers_are_found_with_their_rates() -> None:
    rows = OutcomeRows.of(recorded(depots, (1000, 800)))
    found = fit_transfers(rows, np.ones(len(rows), bool))
    assert found is not None and found.is_calibrated
    named = {t.name(["a", "b"]): r for t, r in zip(found.transfers, found.rates, strict=True)}
    assert named.keys() == {"a_arriving", "a_to_b", "b_leaving"}
    assert np.allclose(named["a_to_b"], [0.1, 0.3], rtol=0.05)
    assert np.allclose(named["a_arriving"], 150, rtol=0.05)


def test_program_draws_a_transfer_that_another_stock_drives() -> None:
    data = recorded(rumour, (9000, 2000))
    text = write(learn_model(data, np.ones(len(data), bool), Effort(2000, 30)))
    exec(text, scope := {})
    program = scope["Environment"]()
    program.rng, found = np.random.default_rng(0), []
    for _ in range(300):
        program.set_state([8000, 1500])
        found.append(program.step(0)[0])
    told = 8000 * (1 - np.exp(-4e-5 * 1500)) - 150
    assert np.allclose(np.mean(found, axis=0), [8000 - told, 1500 + told], atol=8)
    assert (np.sum(found, axis=1) == 9500).all()


@pytest.mark.slow
def test_exact_changes_are_no_transfers() -> None:
    def exact(state: np.ndarray, action: int, rng: np.random.Generator) -> np.ndarray:
        moving = state[0] // 10 * (1 + action)
        return np.array([state[0] - moving + 90, state[1] // 2 + moving])

    rows = OutcomeRows.of(recorded(exact, (1000, 800)))
    found = fit_transfers(rows, np.ones(len(rows), bool))
    assert found is None or not found.is_calibrated
