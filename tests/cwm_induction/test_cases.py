"""Regression trees for components without an exact equation."""

import numpy as np
import pytest

from cwm_cli.data.spaces import Space
from cwm_cli.evaluation.component_scores import ComponentScore
from cwm_cli.views.tables import component_grid
from cwm_cli.worlds.contract import declared_approximations
from cwm_induction.continuous.dynamics import Hypothesis
from cwm_induction.continuous.inducing import induce, write
from cwm_induction.continuous.samples import Samples
from cwm_induction.effort import Effort

LEVELS = np.array([0.7, -1.3, 2.9, 0.1, -2.2, 1.6])


def samples(seed: int = 0, rows: int = 600) -> Samples:
    """Return rows with an exact linear component and one that jumps without an order."""
    rng = np.random.default_rng(seed)
    before = rng.uniform(-3, 3, (rows, 2))
    actions = rng.choice([-1.0, 1.0], (rows, 1))
    x, u = before[:, 0], actions[:, 0]
    after = np.stack([0.9 * x + 0.25 * u + 0.01, LEVELS[np.floor(x + 3).astype(int)]], axis=1)
    after[:, 1] += 0.05 * rng.normal(size=rows)
    return Samples(
        before=before,
        after=after,
        actions=actions,
        rewards=np.zeros(rows),
        terminated=np.zeros(rows, bool),
        learn=rng.random(rows) < 0.8,
        low=np.full(2, -10.0),
        high=np.full(2, 10.0),
        grain=1e-16,
        shape=(2,),
        action_space=Space("box", "float64", (1,), (-1.0,), (1.0,)),
    )


@pytest.mark.slow
def test_a_component_without_an_equation_gets_a_tree_and_the_other_keeps_its_equation() -> None:
    hypothesis = Hypothesis(level=1, mechanics=False, laws=False)
    rng = np.random.default_rng(0)
    program = write(induce(samples(), hypothesis, rng, Effort(2_000, 60)))
    assert list(declared_approximations(program)) == [1]
    space: dict[str, object] = {}
    exec(compile(program, "program", "exec"), space)
    world, fresh = space["Environment"](), samples(seed=1)
    predicted = []
    for observation, action in zip(fresh.before, fresh.actions, strict=True):
        world.set_state(observation)
        predicted.append(world.step(action)[0])
    errors = np.array(predicted) - fresh.after
    assert np.abs(errors[:, 0]).max() < 1e-9
    assert (np.abs(errors[:, 1]) < 0.25).mean() > 0.9


@pytest.mark.parametrize(
    "text", ["APPROXIMATIONS = compute()", "APPROXIMATIONS = [1]", "class Environment(:", ""]
)
def test_unreadable_declarations_are_ignored(text: str) -> None:
    assert declared_approximations(text) == {}


def test_the_table_of_components_names_approximations() -> None:
    program = 'class Environment:\n    APPROXIMATIONS = {1: "regression tree of 6 cases"}\n'
    components = [
        ComponentScore(name=name, number=n, rows=9, rmse=0.1) for n, name in enumerate("ab")
    ]
    table = component_grid(components, program)
    assert [line[-1] for line in table.cells] == ["a law", "regression tree of 6 cases"]
    assert "predicted by" not in component_grid(components, "").heads
