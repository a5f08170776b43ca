"""Tests of the strategy."""

import numpy as np
import pytest

from best_of_n.strategy import BestOfN
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, ROOT, Move, Node, Usage, Verdict


def search(strategy, scores):
    """Run a strategy with one program per score, and return its moves."""
    moves = []
    for number, score in enumerate(scores):
        move = strategy.select(np.random.default_rng(number), [])
        failure = Failure(kind="crash", message="a bug", line=1) if score == 0 else None
        verdict = Verdict(score=score, failure=failure)
        node = (number, number, move.parent, move.action, "x = 1", verdict, "", Usage())
        strategy.update(Node(*node))
        moves.append((move.action, move.parent))
    return moves


def test_strategy_writes_n_programs_and_improves_the_best():
    moves = search(BestOfN(n=3), [0.2, 0.6, 0.4, 0.5, 0.7, 0.1])
    assert moves[:3] == [(GENERATE, ROOT)] * 3
    assert moves[3:] == [(IMPROVE, 1), (IMPROVE, 1), (IMPROVE, 4)]


def test_strategy_restarts_without_improvements():
    strategy = BestOfN(n=2, patience=2)
    moves = search(strategy, [0.5, 0.1, 0.2, 0.3, 0.05, 0.1, 0.2])
    assert [action for action, _ in moves[2:6]] == [IMPROVE, IMPROVE, GENERATE, GENERATE]
    assert moves[6] == (IMPROVE, 5), "the best of this round, not of all"
    assert [strategy.state(number) for number in (0, 5, 99)] == ["round 1", "round 2", ""]


def test_failing_program_is_fixed():
    assert search(BestOfN(n=1), [0.0, 0.3])[1] == (FIX, 0)


def test_pending_programs_count_as_written():
    strategy = BestOfN(n=2)
    search(strategy, [0.5])
    assert strategy.select(np.random.default_rng(0), []).action == GENERATE
    assert strategy.select(np.random.default_rng(0), [Move(GENERATE)]).action == IMPROVE


@pytest.mark.parametrize("option", ["n=0", "patience=0"])
def test_options_below_one_are_errors(option):
    from cwm_cli.errors import CwmError
    from cwm_cli.registry import Owner, read_options

    with pytest.raises(CwmError, match="must be at least 1"):
        read_options([option], [Owner("strategy", BestOfN)])
