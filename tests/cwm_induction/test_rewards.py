"""Rewards and ends of small systems that no library was written for."""

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.envs.spec import space_of
from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.terms import Term
from cwm_induction.continuous.variables import inputs_of, latents
from cwm_induction.effort import Effort
from cwm_induction.laws.guarded import GuardedLaws
from cwm_induction.rewards import ending, reward_of
from cwm_induction.rules import Feature, learn_rule

BOX = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
CHOICE = gym.spaces.Discrete(3)


def over(x, u, y):
    return abs(y[0]) > 1.9


def samples(worth, *, seed, space=BOX, ends=over, rows=600):
    """Move a point with a flag for single steps, and pay for them."""
    rng = np.random.default_rng(seed)
    low, high = (-1.0, 1.0) if space is BOX else (0, 3)
    actions = rng.uniform(low, high, rows).astype(np.float32).astype(float)
    actions = actions if space is BOX else np.floor(actions)
    before = np.column_stack([rng.uniform(-2, 2, (rows, 3)), rng.integers(0, 2, rows)])
    after = before.copy()
    after[:, 2] += 0.1 * actions
    after[:, 1] += 0.1 * after[:, 2]
    after[:, 0] += 0.1 * after[:, 1]
    after[:, 3] = np.where(rng.random(rows) < 0.15, 1 - after[:, 3], after[:, 3])
    steps = list(zip(before, actions, after, strict=True))
    return Samples(
        before=before.astype(np.float32).astype(float),
        after=after.astype(np.float32).astype(float),
        actions=actions[:, None],
        rewards=np.array([worth(*step) for step in steps], dtype=float),
        terminated=np.array([ends(*step) for step in steps]),
        learn=rng.random(rows) > 0.2,
        low=np.full(4, -np.inf),
        high=np.full(4, np.inf),
        grain=float(np.finfo(np.float32).eps) / 2,
        shape=(4,),
        action_space=space_of(space),
    )


def found_in(seen):
    return reward_of(seen, latents(seen).variables, inputs_of(seen), Effort(20_000, 60).share(0.5))


def paid(found, row, seen):
    """Compute the reward of a row as the program would."""
    names = {"np": np, "terminated": bool(seen.terminated[row])}
    names["action"] = (
        int(seen.actions[row, 0]) if seen.action_space.kind == "discrete" else (seen.actions[row])
    )
    for index in range(4):
        names |= {f"x{index}": seen.before[row, index], f"x{index}_next": seen.after[row, index]}
    chosen = next((i for rule, i in found.laws.rules if eval(rule.text(), names)), 0)
    return eval(found.laws.formulas[chosen].text(), names)


def share_right(found, seen):
    """Return the share of rows that the written reward gets right."""
    values = np.array([paid(found, row, seen) for row in range(len(seen))])
    return (np.abs(values - seen.rewards) <= 1e-5 * (1 + np.abs(seen.rewards))).mean()


BOX_REWARDS = {
    "distance to a mark": lambda x, u, y: -0.1 * abs(y[0] - 0.8),
    "square around a mark": lambda x, u, y: -((y[0] - 0.7) ** 2) - 0.1 * y[1] ** 2 - 0.01 * u**2,
    "progress towards a point": lambda x, u, y: (
        np.hypot(x[0] - 0.5, x[1] + 0.3) - 0.99 * np.hypot(y[0] - 0.5, y[1] + 0.3) - 0.01
    ),
    "power": lambda x, u, y: y[0] - 0.05 * abs(u * y[1]),
    "penalty for a switch": lambda x, u, y: -0.2 * y[0] ** 2 - 0.3 * (x[3] != y[3]),
    "extra in half of the space": lambda x, u, y: -0.5 * y[0] ** 2 - 0.01 * u**2 + (y[1] > 0.1),
    "two formulas": lambda x, u, y: -(y[0] ** 2) if y[1] > 0.3 else 2 * y[0] - 0.1 * u,
    "largest of two": lambda x, u, y: -max(abs(y[0]), abs(y[1])),
    "limited cost": lambda x, u, y: max(-1.0, -(y[0] ** 2)),
}


@pytest.mark.slow
def test_rewards_are_found_that_hold_in_new_transitions():
    wrong = {}
    for name, worth in BOX_REWARDS.items():
        found = found_in(samples(worth, seed=1))
        shares = found.right, share_right(found, samples(worth, seed=2, rows=300))
        if shares[0] <= 0.99 or shares[1] <= 0.98:
            wrong[name] = shares
    assert not wrong


def test_ends_that_pay_differently_are_told_apart():
    def worth(x, u, y):
        return (10.0 if y[0] > 0 else -10.0) if over(x, u, y) else -0.1 * abs(y[0] - 0.8)

    found = found_in(samples(worth, seed=1))
    assert {formula.text() for formula in found.laws.formulas} >= {"10.0", "-10.0"}
    assert share_right(found, samples(worth, seed=2, rows=300)) > 0.98


def test_actions_have_prices():
    def worth(x, u, y):
        return (-0.1, 0.0, -0.35)[int(u)] - 0.3 * y[0] ** 2

    found = found_in(samples(worth, seed=1, space=CHOICE))
    assert share_right(found, samples(worth, seed=2, space=CHOICE, rows=300)) > 0.98


@pytest.mark.slow
def test_trades_have_a_price_that_changes_and_a_fee():
    def worth(x, u, y):
        traded = y[0] - x[0]
        return -traded * (4 + x[2]) * (1 if traded > 0 else 0.75)

    found = found_in(samples(worth, seed=1))
    assert share_right(found, samples(worth, seed=2, rows=300)) > 0.98
    assert found.laws.cost < 20


def test_terms_that_are_zero_in_their_branch_are_left_out():
    rows = np.arange(10.0)
    ends, ones = Term("(x > 5)", (rows > 5).astype(float), 1.0), Term("1", np.ones(10), 1.0)
    low = Formula((ends, ones), (4.0, 2.0))
    high = Formula((ends,), (3.0,))
    rules = ((learn_rule([Feature("x", rows, 1.0)], rows > 5), 1),)
    laws = GuardedLaws((low, high), rules)
    assert laws.simplified(10).formulas == (Formula((ones,), (2.0,)), high)
    assert (laws.simplified(10).values(10) == laws.values(10)).all()
    shared = GuardedLaws((low, Formula((ends,), (4.0,))), rules)
    assert shared.simplified(10) is shared  # the text of the term serves both formulas


@pytest.mark.slow
def test_an_approximation_is_short():
    found = found_in(samples(lambda x, u, y: np.sin(7 * y[0] * y[1]) * y[2] ** 3 + y[0], seed=1))
    assert found.right < 0.5
    assert len(found.formula.terms) <= 4
    assert not found.laws.rules


@pytest.mark.slow
def test_the_end_reads_the_distance_that_the_reward_reads():
    def arrived(x, u, y):
        return bool(np.hypot(y[0] - 0.5, y[1] + 0.3) < 0.45)

    def worth(x, u, y):
        return -np.hypot(y[0] - 0.5, y[1] + 0.3) + 5 * arrived(x, u, y)

    seen = samples(worth, seed=1, ends=arrived)
    terms = found_in(seen).places
    end = ending(seen, latents(seen).variables, terms)
    assert end.text().startswith("np.hypot(x0_next - 0.5, x1_next + 0.3) <= 0.4")


def test_alternatives_are_found_one_by_one():
    rng = np.random.default_rng(0)
    values = rng.uniform(-3, 3, (3, 900))
    wanted = (np.abs(values[0]) > 2.5) | ((np.abs(values[1]) < 0.6) & (np.abs(values[2]) < 0.8))
    rule = learn_rule([Feature(name, row) for name, row in zip("abc", values, strict=True)], wanted)
    assert (rule.holds(900) == wanted).all()


def test_rules_do_not_split_numbers_without_a_number_between_them():
    below = np.nextafter(1.0, 2.0)
    values = np.repeat([below, np.nextafter(below, 2.0)], 20)
    wanted = np.arange(40) < 20
    assert learn_rule([Feature("x", values)], wanted).is_constant
