"""Equations with noise are induced: noisy components, their variance, and exact components."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.registry import environment
from cwm_induction import noise
from cwm_induction.attempts import real
from cwm_induction.continuous.samples import Samples
from cwm_induction.effort import Effort

Draw = Callable[[np.ndarray, np.ndarray, np.random.Generator], tuple[np.ndarray, float]]


def recorded(draw: Draw, *, rows: int = 600, seed: int = 0) -> Dataset:
    """Return transitions of a system of two numbers, in episodes of 20 steps."""
    rng, seen = np.random.default_rng(seed), []
    for episode in range(rows // 20):
        state = rng.uniform(-1, 1, 2)
        for _ in range(20):
            action = rng.uniform(-1, 1, 1)
            after, reward = draw(state, action, rng)
            seen.append(Transition(state, action, after, reward, False, episode=episode))
            state = after
    box = Space("box", "float64", (2,), (-np.inf,) * 2, (np.inf,) * 2)
    return Dataset.of(
        seen, observation_space=box, action_space=Space("box", "float64", (1,), (-1.0,), (1.0,))
    )


def found(data: Dataset) -> tuple[noise.NoisyFindings, Any]:
    """Return the findings on some rows, and the written class."""
    samples = Samples.of(real(data).flat(data), np.arange(len(data)) % 5 == 4)
    with np.errstate(all="ignore"):
        findings = noise.induce(samples, np.random.default_rng(0), Effort(500, 30.0))
    names: dict[str, Any] = {}
    exec(noise.write(findings), names)  # ours
    return findings, names["Environment"]


def draws(program: Any, state: Any, action: Any, count: int = 2000) -> np.ndarray:
    """Return draws of a program from a state: (count, numbers), with the reward last."""
    environment = program()
    environment.rng, answers = np.random.default_rng(1), []
    for _ in range(count):
        environment.set_state(np.array(state))
        after, reward, _ = environment.step(np.array(action))
        answers.append([*after, reward])
    return np.array(answers)


@pytest.mark.slow
def test_one_push_moves_several_numbers_together() -> None:
    def pushed(state: np.ndarray, action: np.ndarray, rng: Any) -> tuple[np.ndarray, float]:
        push = 0.3 * rng.normal()
        moved = 0.1 * state[1] + 0.5 * action[0] + push
        return state + np.array([moved, 0.2 - 0.5 * state[0] - 2 * push]), 1.0

    _, program = found(recorded(pushed))
    seen = draws(program, [0.4, -0.2], [0.6])
    mean, spread = seen.mean(axis=0), seen.std(axis=0)
    assert mean == pytest.approx([0.68, -0.2, 1.0], abs=0.05)
    assert spread == pytest.approx([0.3, 0.6, 0.0], rel=0.1)
    assert np.corrcoef(seen[:, 0], seen[:, 1])[0, 1] < -0.999


@pytest.mark.slow
def test_noise_may_depend_on_what_is_seen() -> None:
    def grows(state: np.ndarray, action: np.ndarray, rng: Any) -> tuple[np.ndarray, float]:
        shift = 0.05 * action[0] + 0.1 * state[1] * rng.normal()
        return np.array([0.5 * state[0] + shift, rng.uniform(1, 6)]), 0.0

    findings, _ = found(recorded(grows, rows=1000))
    assert findings.noise["x0"].scale.startswith("max(abs(x1), 0.1")
    assert findings.noise["x0"].deviation == pytest.approx(0.1, rel=0.1)
    assert findings.noise.keys() == {"x0", "x1"}


@pytest.mark.slow
def test_what_is_certain_stays_exact_beside_what_is_drawn() -> None:
    def half(state: np.ndarray, action: np.ndarray, rng: Any) -> tuple[np.ndarray, float]:
        after = np.array([state[0] + 0.05 * state[1], 0.9 * state[1] + 0.2 * rng.normal()])
        return after, float(-(after[0] ** 2))

    findings, program = found(recorded(half))
    seen = draws(program, [0.4, 0.5], [0.0], count=50)
    assert findings.noise.keys() == {"x1"}
    assert seen[:, 0] == pytest.approx(0.425)
    assert seen[:, 2] == pytest.approx(-(0.425**2))


def test_nothing_is_drawn_where_equations_hold() -> None:
    def plain(state: np.ndarray, action: np.ndarray, rng: Any) -> tuple[np.ndarray, float]:
        return np.array([state[0] + 0.1 * state[1], 0.9 * state[1] + action[0]]), 0.0

    assert not found(recorded(plain))[0].draws


@pytest.mark.slow
def test_what_acted_is_read_off_where_limits_cut_it_off() -> None:
    spec, rows = environment("Pendulum-v1"), []
    env = spec.make(noise={"action": 0.4})
    for episode in range(6):
        seen, _ = env.reset(seed=episode)
        env.action_space.seed(episode)
        for _ in range(100):
            action = env.action_space.sample()
            after, reward, *_ = env.step(action)
            rows.append(Transition(seen, action, after, float(reward), False, episode=episode))
            seen = after
    low = tuple(env.observation_space.low.tolist())
    high = tuple(env.observation_space.high.tolist())
    data = Dataset.of(
        rows,
        observation_space=Space("box", "float32", (3,), low, high),
        action_space=Space("box", "float32", (1,), (-2.0,), (2.0,)),
    )
    findings, program = found(data)
    assert findings.action is not None
    assert findings.action.deviation == pytest.approx(0.4, rel=0.12)
    assert not findings.noise
    seen = draws(program, [np.cos(0.5), np.sin(0.5), 1.0], [1.9])
    acted = (seen[:, 2] - 1.0 - 0.75 * np.sin(0.5)) / 0.15
    assert acted.max() == pytest.approx(2.0, abs=1e-4)
    assert (acted > 1.999).mean() == pytest.approx(0.4, abs=0.06)  # P(N(1.9, 0.4) > 2)
    assert seen[:, 3] == pytest.approx(-(0.25 + 0.1 + 0.001 * acted**2), abs=1e-4)
