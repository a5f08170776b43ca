"""Rules for valid actions: conjunctions, their negations, and the most common actions."""

import numpy as np
import pytest
from gymnasium import spaces

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_induction.legality import find_legality

CELLS = space_of(spaces.MultiDiscrete([3, 3, 3]))
ACTIONS = space_of(spaces.Discrete(3), "actions")


def rows(rule, count=200, seed=0):
    """Return rows of random states, whose valid actions follow a rule."""
    states = np.random.default_rng(seed).integers(0, 3, (count, 3))
    steps = [
        Transition(state, 0, state, 0.0, n % 7 == 6, episode=n // 7, valid=rule(state))
        for n, state in enumerate(states)
    ]
    return Dataset.of(steps, observation_space=CELLS, action_space=ACTIONS)


def decided(found, state):
    """Return the valid actions of a state by the rules."""
    return tuple(a for a, rule in found.rules.items() if eval(rule, {"observation": state}))


@pytest.mark.parametrize(
    "rule",
    [
        lambda state: tuple(a for a in range(3) if state[a] == 0),
        lambda state: tuple(a for a in range(3) if a == 2 or state[0] != 1 or state[2] != 2),
        lambda state: (0, 2),
        lambda state: tuple(a for a in range(3) if a == 2 or 1 not in state),
    ],
    ids=["conjunctions", "negations", "constant", "inequalities"],
)
def test_rules_are_exact_and_hold_in_other_states(rule):
    found, other = find_legality(rows(rule)), rows(rule, seed=1)
    assert found.right == 1.0
    for row in other:
        assert row.terminated or decided(found, row.next_observation) == rule(row.next_observation)


def test_most_common_actions_are_valid_if_no_rule_is_exact():
    def parity(state):
        return (0, 1) if int(state.sum()) % 3 else (1, 2)

    found = find_legality(rows(parity))
    assert found.rules == {0: "True", 1: "True", 2: "False"}
    assert 0.5 < found.right < 0.8


def test_no_state_leaves_all_actions_valid():
    data = rows(lambda state: (0,))
    ends = data[data.columns["terminations"]]
    assert find_legality(ends).rules == dict.fromkeys(range(3), "True")


def test_values_that_occur_once_make_no_rule():
    valid = np.random.default_rng(0).random(200) < 0.9
    space = space_of(spaces.Discrete(200))
    steps = [
        Transition(n, 0, n, 0.0, False, valid=(0, 1) if valid[n] else (0,)) for n in range(200)
    ]
    found = find_legality(Dataset.of(steps, observation_space=space, action_space=ACTIONS))
    assert found.rules == {0: "True", 1: "True", 2: "False"}
