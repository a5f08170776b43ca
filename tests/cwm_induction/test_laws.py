"""Laws that hold in parts of the rows, found in generated data of switching systems."""

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.envs.spec import space_of
from cwm_induction.continuous.dynamics import Hypothesis
from cwm_induction.continuous.inducing import induce, write
from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.terms import ONE, Term
from cwm_induction.effort import Effort
from cwm_induction.laws.consensus import Library, Unknown, variants
from cwm_induction.laws.guarded import guarded
from cwm_induction.rules import Feature

ROWS = 300


def columns():
    """Return a constant and two quantities as terms."""
    x, y = np.random.default_rng(0).uniform(-2, 2, (2, ROWS))
    return [Term(ONE, np.ones(ROWS), 1.0), Term("x", x, 1.0), Term("y", y, 1.0)]


def unknown(values):
    every = np.ones(ROWS, bool)
    return Unknown(values, np.full(ROWS, 1e-7), every, every, np.ones(ROWS))


def share():
    return Effort(4_000, 60).share(1.0)


def parts(formula):
    return dict(zip([t.text for t in formula.terms], formula.weights, strict=True))


def test_law_of_the_majority_is_exact_whatever_the_other_rows_do():
    _, x, y = terms = columns()
    rng = np.random.default_rng(1)
    wild = rng.random(ROWS) < 0.35
    values = np.where(wild, rng.normal(size=ROWS), 0.25 * x.values - 3.0 * y.values)
    every = np.arange(ROWS)
    law = Library(terms, unknown(values)).law(every, every, share())
    assert parts(law.formula) == {"x": 0.25, "y": -3.0}
    assert (law.rows == ~wild).all()


def test_no_law_is_found_in_noise():
    values = np.random.default_rng(2).normal(size=ROWS)
    every = np.arange(ROWS)
    assert Library(columns(), unknown(values)).law(every, every, share()) is None


def test_variant_differs_by_one_term():
    one, x, y = terms = columns()
    law = unknown(2.0 * x.values).law(Formula((x,), (2.0,)))
    other = y.values > 0.5
    values = 2.0 * x.values + np.where(other, 0.7, 0.0)
    best, *_ = variants(law, unknown(values), terms, other)
    assert parts(best.formula) == {"x": 2.0, ONE: 0.7}
    assert best.price < unknown(values).law(best.formula).price
    assert one.text == ONE


def test_rows_that_two_laws_explain_do_not_lengthen_the_rule():
    _, x, y = columns()
    values = np.maximum(x.values, 0.0)  # both laws agree where x is almost 0
    target = unknown(values)
    laws = [target.law(Formula((), ())), target.law(Formula((x,), (1.0,)))]
    features = [Feature("x", x.values), Feature("y", y.values)]
    found = guarded(laws, features, target.rows, share())
    assert (found.values(ROWS) == values).all()
    assert [rule.text() for rule, _ in found.rules] == ["x > 0.0"]


def test_law_without_a_rule_is_left_out():
    _, x, _ = columns()
    rng = np.random.default_rng(3)
    values = np.where(rng.random(ROWS) < 0.3, 1.0, 0.5 * x.values)
    target = unknown(values)
    one = Term(ONE, np.ones(ROWS), 1.0)
    laws = [target.law(Formula((x,), (0.5,))), target.law(Formula((one,), (1.0,)))]
    assert guarded(laws, [Feature("x", x.values)], target.rows, share()).rules == ()


def friction(x, v, u):
    """Slide with friction that can hold, and stop at a wall."""
    force = 3.0 * u
    if v == 0.0 and abs(force) <= 0.9:
        return x, 0.0
    sign = np.sign(v if v != 0.0 else force)
    moved = v + 0.1 * (force - 0.6 * sign)
    moved = moved if moved * sign > 0 else 0.0
    return x + 0.1 * moved, moved


def rope(x, v, u):
    """Move freely, and be pulled back by a rope that is stretched from 1.0 on."""
    pull = 4.0 * max(x - 1.0, 0.0)
    moved = v + 0.1 * (2.0 * u - pull - 0.3 * v * abs(v))
    return x + 0.1 * moved, moved


def valve(x, v, u):
    """Fill a tank; an outlet (v) opens above 1.5 and closes below 0.5."""
    level = x + 0.2 * max(u, 0.0) - (0.25 * x if v else 0.0)
    return level, float(level > 1.5 or (v and level >= 0.5))


def recorded(step, seed, rows=700):
    """Record a system of two numbers and one action, kept in single precision."""
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1, 1, (rows, 1)).astype(np.float32).astype(float)
    state, before, after = np.array([0.4, 0.0], np.float32), [], []
    for action in actions[:, 0]:
        if len(before) % 40 == 39:
            state = np.array([rng.uniform(0.2, 1.4), 0.0], np.float32)
        before.append(state.astype(float))
        state = np.array(step(float(state[0]), float(state[1]), action), np.float32)
        after.append(state.astype(float))
    return Samples(
        before=np.array(before),
        after=np.array(after),
        actions=actions,
        rewards=np.zeros(rows),
        terminated=np.zeros(rows, bool),
        learn=np.arange(rows) % 200 < 160,
        low=np.full(2, -np.inf),
        high=np.full(2, np.inf),
        grain=float(np.finfo(np.float32).eps) / 2,
        shape=(2,),
        action_space=space_of(gym.spaces.Box(-1.0, 1.0, (1,), np.float32)),
    )


@pytest.mark.parametrize("step", [friction, rope, valve])
def test_switching_systems_are_predicted_in_new_episodes(step):
    seen = recorded(step, seed=1)
    findings = induce(seen, Hypothesis(), np.random.default_rng(0), Effort(4_000, 60))
    space: dict = {}
    exec(write(findings), space)
    env, new = space["Environment"](), recorded(step, seed=2, rows=200)
    right = []
    for before, action, after in zip(new.before, new.actions, new.after, strict=True):
        env.set_state(before)
        right.append(np.allclose(env.step(action)[0], after, rtol=1e-5, atol=1e-5))
    assert np.mean(right) >= 0.97
