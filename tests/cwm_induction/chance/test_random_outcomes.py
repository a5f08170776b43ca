"""Programs with random counts, events and noise, learned from small generated data."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_induction.attempts import has_rules, real
from cwm_induction.chance.counts import (
    BINOMIAL,
    GEOMETRIC,
    NORMAL,
    POISSON,
    CountKernel,
    Draw,
    Family,
    dice,
)
from cwm_induction.chance.kernels import OutcomeTarget
from cwm_induction.chance.model import RandomModel, learn_model
from cwm_induction.chance.program import MAX_PAIRS, write
from cwm_induction.chance.quantities import KnownQuantity
from cwm_induction.effort import Effort
from cwm_induction.flattening import Arrangement

State = list[Any]
Step = Callable[[State, int, np.random.Generator], tuple[State, float, bool]]


def record(step: Step, sizes: Sequence[int], actions: int, rows: int = 300) -> Dataset:
    """Record independent steps from uniform states of whole numbers."""
    rng, found = np.random.default_rng(5), []
    for row in range(rows):
        state, action = [int(rng.integers(size)) for size in sizes], int(rng.integers(actions))
        after, reward, done = step(list(state), action, rng)
        pair = np.array(state), np.array(after)
        found.append(Transition(pair[0], action, pair[1], reward, done, False, row))
    spaces = {
        "observation_space": space_of(MultiDiscrete(sizes)),
        "action_space": space_of(Discrete(actions)),
    }
    return Dataset.of(found, **spaces)


def learned(data: Dataset) -> tuple[RandomModel, Any]:
    view = Arrangement.of(data, "int64") if has_rules(data) else real(data)
    model = learn_model(view.flat(data), np.ones(len(data), bool), Effort(2000, 30))
    exec(view.nested(write(model)), scope := {})
    program = scope["Environment"]()
    program.rng = np.random.default_rng(0)
    return model, program


def distribution(program: Any, state: State, action: int) -> dict[Any, float]:
    program.set_state(np.array(state))
    found: dict[Any, float] = defaultdict(float)
    for chance, after, reward, done in program.outcomes(action):
        found[tuple(after.tolist()), round(reward, 6), done] += chance
    return found


def sampled(step: Step, state: State, action: int, draws: int = 4000) -> dict[Any, float]:
    rng, found = np.random.default_rng(1), defaultdict[Any, float](float)
    for _ in range(draws):
        after, reward, done = step(list(state), action, rng)
        found[tuple(after), round(reward, 6), done] += 1 / draws
    return found


def apart(one: dict[Any, float], other: dict[Any, float]) -> float:
    """Return the total variation between two distributions."""
    return sum(abs(one.get(k, 0) - other.get(k, 0)) for k in {*one, *other}) / 2


def queue(state: State, action: int, rng: np.random.Generator) -> tuple[State, float, bool]:
    served = min(state[0], int(rng.binomial(3, 0.6)))
    waiting = min(state[0] - served + int(rng.poisson(1.0 + action)), 12)
    return [waiting], 2.0 * served - 0.1 * waiting, False


def worn(state: State, action: int, rng: np.random.Generator) -> tuple[State, float, bool]:
    wear, broken = state
    if action == 1:
        return [max(wear - 3, 0), 0], -2.0, False
    broken = int(broken or rng.random() < 0.09 * wear)
    return [min(wear + 1, 9), broken], 1.0 - broken, False


def herd(state: State, action: int, rng: np.random.Generator) -> tuple[State, float, bool]:
    animals = max(state[0] - 2 * action, 0)
    died = int(rng.binomial(animals, 0.2))
    return [animals - died], 0.5 * animals, animals == died


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "sizes", "cases"),
    [
        (queue, [13], [([8], 0), ([1], 2), ([12], 1)]),
        (worn, [10, 2], [([2, 0], 0), ([8, 0], 0), ([5, 1], 1)]),
        (herd, [15], [([14], 0), ([9], 2), ([7], 1)]),
    ],
)
def test_probabilities_are_near_the_true_ones(
    step: Step, sizes: list[int], cases: list[tuple[State, int]]
) -> None:
    _, program = learned(record(step, sizes, 3, 500))
    for state, action in cases:
        true = sampled(step, state, action)
        assert apart(distribution(program, state, action), true) < 0.15, (state, action)


@pytest.mark.slow
def test_reward_shows_a_hidden_count() -> None:
    model, _ = learned(record(queue, [13], 3, 150))
    assert model.reward.exact.all()
    assert model.reward.text() == "-0.1 * x0_next + 2.0 * extra"
    assert len(write(model).splitlines()) < 100


def test_probability_that_grows_with_wear_is_one_formula() -> None:
    model, _ = learned(record(worn, [10, 2], 3, 500))
    assert "* x0" in write(model)
    assert model.bits < 350


def test_real_numbers_are_drawn_with_normal_noise() -> None:
    rng, found = np.random.default_rng(3), []
    for row in range(300):
        level, wet, action = rng.uniform(0, 5), int(rng.integers(2)), int(rng.integers(2))
        after = 0.8 * level + 0.5 * action + (0.3 if wet else 0.1) * rng.normal()
        wet_next = wet if rng.random() < 0.7 else 1 - wet
        states = np.array([level, wet], np.float32), np.array([after, wet_next], np.float32)
        states = tuple(np.append(state, 0.5 * state[0]).astype(np.float32) for state in states)
        found.append(Transition(states[0], action, states[1], float(wet), False, False, row))
    low, high = np.array([-9, 0, -9], np.float32), np.array([9, 1, 9], np.float32)
    spaces = {
        "observation_space": space_of(Box(low, high)),
        "action_space": space_of(Discrete(2)),
    }
    _, program = learned(Dataset.of(found, **spaces))
    draws = []
    for _ in range(400):
        program.set_state(np.array([2.0, 1.0, 1.0]))
        after, _, _ = program.step(1)
        assert after[2] == pytest.approx(0.5 * after[0], rel=1e-4)
        draws.append(after[0])
    assert np.mean(draws) == pytest.approx(2.1, abs=0.1)
    assert np.std(draws) == pytest.approx(0.3, abs=0.07)


def test_many_random_parts_are_drawn_instead_of_listed() -> None:
    def step(state: State, action: int, rng: np.random.Generator) -> tuple[State, float, bool]:
        return [int(rng.random() < 0.9) for _ in state], 0.0, False

    _, program = learned(record(step, [2] * 6, 1))
    assert not hasattr(program, "outcomes")
    program.set_state(np.zeros(6, int))
    drawn = [program.step(0)[0] for _ in range(300)]
    assert abs(np.mean(drawn) - 0.9) < 0.05


@pytest.mark.slow
def test_many_values_of_counts_are_drawn_instead_of_listed() -> None:
    def step(state: State, action: int, rng: np.random.Generator) -> tuple[State, float, bool]:
        return [min(int(rng.poisson(mean)), 60) for mean in (9, 12, 5)], 0.0, False

    _, program = learned(record(step, [61] * 3, 1))
    assert not hasattr(program, "outcomes")
    program.set_state(np.zeros(3, int))
    drawn = np.array([program.step(0)[0] for _ in range(1500)])
    assert drawn.mean(axis=0) == pytest.approx([9, 12, 5], rel=0.06)
    assert drawn.var(axis=0) == pytest.approx([9, 12, 5], rel=0.2)


def test_sum_of_two_counts_knows_how_many_pairs_its_list_has() -> None:
    rng = np.random.default_rng(4)
    cars = np.full(200, 87.0)
    values = cars - rng.binomial(87, 0.1, 200) + rng.binomial(87, 0.05, 200)
    target = OutcomeTarget("cars_next", values, np.full(200, -999.0), np.full(200, 999.0))
    trials = KnownQuantity("cars", cars)
    draws = Draw(BINOMIAL, -1, trials), Draw(BINOMIAL, 1, trials)
    leaf = CountKernel(target, trials, draws, 0.0).fit(np.ones(200, bool))
    assert leaf.pairs == 87 * 87 > MAX_PAIRS


@pytest.mark.parametrize(
    "family, parameter, trials, mean, variance",
    [
        (POISSON, "3.5", None, 3.5, 3.5),
        (GEOMETRIC, "0.4", None, 1.5, 3.75),
        (BINOMIAL, "0.3", 10, 3.0, 2.1),
        (BINOMIAL, "0.3 + 0.1 * 9", 10, 10.0, 0.0),
        (NORMAL, "2.0", None, 0.0, 4.08),
        (dice(2, 6), "", None, 7.0, 35 / 6),
    ],
)
def test_draws_follow_their_family(
    family: Family, parameter: str, trials: int | None, mean: float, variance: float
) -> None:
    count = None if trials is None else KnownQuantity("count", np.full(1, float(trials)))
    text = Draw(family, 1, count).drawn(parameter)
    names = {"self": SimpleNamespace(rng=np.random.default_rng(0)), "count": trials}
    code = compile(text, "draw", "eval")
    drawn = np.array([eval(code, names) for _ in range(4000)])
    assert drawn.mean() == pytest.approx(mean, abs=0.15)
    assert drawn.var() == pytest.approx(variance, rel=0.12, abs=1e-9)
