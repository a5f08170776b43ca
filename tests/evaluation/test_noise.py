"""Noise levels that are estimated from rows alone, and the residuals of programs."""

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation.noise import noise_levels, rounding_unit


def recorded(states: np.ndarray, actions: np.ndarray, episodes: int = 5) -> Dataset:
    """Return observations (rows + 1, components) with actions as episodes of equal length."""
    count, size = len(actions), states.shape[1]
    episode = np.arange(count) * episodes // count
    columns = {
        "observations": states[:-1],
        "actions": actions,
        "next_observations": states[1:],
        "rewards": np.zeros(count),
        "terminations": np.zeros(count, bool),
        "truncations": np.append(episode[1:] != episode[:-1], True),
        "episodes": episode,
        "split": np.where(episode == episodes - 1, 1, 0).astype(np.int8),
    }
    bound = (1e6,) * size
    space = Space("box", "float64", (size,), tuple(-b for b in bound), bound)
    names = [[f"part_{number}"] for number in range(size)]
    metadata = {"env": "data/test", "env_args": {"observed": names}}
    return Dataset(columns, space, Space("discrete", low=(0,), high=(1,)), metadata)


def linear(process: float, sensor: float, rows: int = 1500) -> Dataset:
    """Return rows of two coupled linear components with normal noise of the process and sensors."""
    rng = np.random.default_rng(0)
    actions, state = rng.integers(0, 2, rows), np.zeros((rows + 1, 2))
    matrix = np.array([[0.9, 0.1], [-0.2, 0.8]])
    for row, action in enumerate(actions):
        drive = np.array([action - 0.5, 0.0])
        state[row + 1] = matrix @ state[row] + drive + process * rng.standard_normal(2)
    return recorded(state + sensor * rng.standard_normal(state.shape), actions)


def test_noise_of_a_process_is_estimated_within_a_tenth() -> None:
    levels = noise_levels(linear(0.2, 0.0))
    assert [levels[number].level for number in (0, 1)] == pytest.approx([0.2, 0.2], rel=0.1)
    assert all(level.is_noisy for level in levels.values())


def test_earlier_rows_lower_the_noise_of_sensors() -> None:
    level = noise_levels(linear(0.02, 0.3))[0]
    assert level.window > 0
    assert level.level < 0.9 * level.plain


def test_exact_rows_have_no_noise() -> None:
    assert not any(level.is_noisy for level in noise_levels(linear(0.0, 0.0)).values())


@pytest.mark.parametrize(("digits", "unit"), [(0, 1.0), (2, 0.01), (4, 1e-4)])
def test_rounding_unit_is_the_last_digit(digits: int, unit: float) -> None:
    values = np.round(np.random.default_rng(0).normal(0, 30, 500), digits)
    assert rounding_unit(values) == unit


def test_numbers_with_all_digits_are_not_rounded() -> None:
    assert rounding_unit(np.random.default_rng(0).normal(0, 30, 500)) == 0
