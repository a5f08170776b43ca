"""Best known returns: exact optima, sources, and the conditions under which they compare."""

from functools import cache
from itertools import product

import gymnasium as gym
import numpy as np
import pytest

from cwm_benchmark.best_known import BEST_KNOWN, best_known
from cwm_benchmark.configuration import BenchmarkConfig
from cwm_cli.envs.tasks import LONGEST, SUITES, step_limit
from folders import ROOT

SIMPLE = BenchmarkConfig(environments=(), strategies=(), backend="b")
CARDS = {**dict.fromkeys(range(1, 10), 1 / 13), 10: 4 / 13}


def test_every_benchmark_environment_but_one_has_a_source() -> None:
    assert set(SUITES["cwmb"]) - set(BEST_KNOWN) == {"RTFM-v0"}
    for name, known in BEST_KNOWN.items():
        assert name in SUITES["cwmb"]
        assert "https://" in known.source or "by exact solution" in known.source, name
        with gym.make(name) as env:
            assert known.steps <= step_limit(env) <= LONGEST


def test_page_of_published_systems_lists_the_same_returns() -> None:
    page = (ROOT / "docs/reference/published.md").read_text()
    for name, known in BEST_KNOWN.items():
        assert f"| {name} | {known.value:g} | {known.source} |" in page


@pytest.mark.parametrize("name", ["CliffWalking-v1", "Taxi-v4"])
def test_optimum_of_a_finite_environment_is_exact(name) -> None:
    with gym.make(name) as env:
        table, start = env.unwrapped.P, np.asarray(env.unwrapped.initial_state_distrib)
    states, actions = len(table), len(table[0])
    ways = np.array([table[s][a][0] for s in range(states) for a in range(actions)])
    assert (ways[:, 0] == 1).all()  # nothing is random
    after, reward, over = ways[:, 1].astype(int), ways[:, 2], ways[:, 3]
    values = np.zeros(states)
    for _ in range(200):
        values = (reward + (1 - over) * values[after]).reshape(states, actions).max(1)
    assert start @ values == pytest.approx(BEST_KNOWN[name].value, abs=5e-4)


def test_optimum_of_blackjack_is_exact() -> None:
    def hand(total, ace):
        return total + 10 if ace and total <= 11 else total

    @cache
    def dealer(total, ace):
        """Return the probabilities of the final hands, 0 for more than 21."""
        if hand(total, ace) >= 17:
            return {0 if total > 21 else hand(total, ace): 1.0}
        ends = dict.fromkeys((0, *range(17, 22)), 0.0)
        for card, chance in CARDS.items():
            for end, then in dealer(total + card, ace or card == 1).items():
                ends[end] += chance * then
        return ends

    @cache
    def best(total, ace, shown):
        ends = [(c * p, end) for card, c in CARDS.items() for end, p in two(shown, card).items()]
        stand = sum(chance * np.sign(hand(total, ace) - end) for chance, end in ends)
        drawn = [
            chance * (-1 if total + card > 21 else best(total + card, ace or card == 1, shown))
            for card, chance in CARDS.items()
        ]
        return max(stand, sum(drawn))

    def two(first, second):
        return dealer(first + second, 1 in (first, second))

    def start(one, other, shown):
        """Return the value of a deal; 21 with two cards wins unless the dealer has it, too."""
        if {one, other} == {1, 10}:
            return 1 - CARDS.get({1: 10, 10: 1}.get(shown), 0)
        return best(one + other, 1 in (one, other), shown)

    deals = product(CARDS, repeat=3)
    value = sum(CARDS[a] * CARDS[b] * CARDS[c] * start(a, b, c) for a, b, c in deals)
    assert value == pytest.approx(BEST_KNOWN["Blackjack-v1"].value, abs=5e-5)


@pytest.mark.parametrize(
    ("change", "compares"),
    [
        ({}, True),
        ({"max_steps": 200}, True),
        ({"max_steps": 199}, False),
        ({"shift": 0}, False),
        ({"hide": ("velocity",)}, False),
        ({"noise": {"reward": 0.1}}, False),
    ],
)
def test_best_known_return_is_for_whole_unchanged_episodes(change, compares) -> None:
    found = best_known("Pendulum-v1", SIMPLE.model_copy(update=change))
    assert (found is not None) == compares
    assert best_known("Sokoban-v0", SIMPLE) is None
