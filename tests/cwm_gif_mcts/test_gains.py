"""GIF-MCTS by default: whole programs, and the choice of the program to improve.

A bound is v + (1 - v) * (h + 0.1 * sqrt(ln N / (n + 1))). v is the score above the floor. h is the
mean share of the missing score that improvements closed, with two prior values of 0.55.
"""

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest

from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, ROOT, START, Move
from cwm_gif_mcts.strategy import NEAR, GifMcts
from gif_mcts_trees import BUG, Grown

FLOOR = 1 / 3


def grown(**options):
    return Grown(GifMcts(**options))


def test_search_begins_with_a_whole_program():
    assert grown().move() == Move(GENERATE)


def test_guess_at_the_floor_is_improved_instead_of_another_guess():
    tree = grown()
    tree.add(GENERATE, FLOOR, floor=FLOOR)
    assert tree.moves() == {(IMPROVE, 0)}


@pytest.mark.parametrize("score", [0.3, 0.7, 0.978, 0.9996])
def test_running_program_is_never_restarted_from_its_first_lines(score):
    tree = grown()
    tree.add(GENERATE, score)
    for _ in range(12):
        move = tree.move()
        assert move.prefix == ""
        assert move.action != GENERATE or move.parent == ROOT
        tree.add(move.action, score, move.parent)


def test_almost_right_program_is_improved_despite_worse_ones():
    tree = grown()
    for score in (0.4, 0.978, 0.6, 0.97):
        tree.add(GENERATE, score, floor=FLOOR)
    assert tree.moves() == {(IMPROVE, 1)}


def test_improvement_is_expected_to_score_at_least_as_its_program():
    tree = grown()
    tree.add(GENERATE, 0.9)
    for _ in range(8):
        tree.add(IMPROVE, 0.0, parent=0)
        assert tree.strategy._programs._bounds([], 1.0)[0] >= 0.9


def test_bounds_follow_the_formula():
    # Improvements closed shares of 0.5 and 0 of the missing score, so h = (2 * 0.55 + 0.5) / 4.
    tree = grown(exploration=0.3, epsilon=0.5)
    tree.add(GENERATE, 0.6)
    tree.add(IMPROVE, 0.8, parent=0)
    tree.add(IMPROVE, 0.1, parent=1)
    spread, everywhere = log(1 + 3), 1.6 / 4
    bounds = tree.strategy._programs._bounds([], spread)
    first = (2 * everywhere + 0.5) / 3 + 0.3 * sqrt(spread / 1.5)
    second = 2 * everywhere / 3 + 0.3 * sqrt(spread / 1.5)
    assert bounds[:2] == pytest.approx([0.6 + 0.4 * first, 0.8 + 0.2 * second])
    assert bounds[2] == -np.inf
    assert tree.strategy.state(2) == "worse"


def test_new_program_is_generated_if_improvements_gain_nothing():
    tree, actions = grown(), []
    tree.add(GENERATE, 0.5)
    for _ in range(8):
        move = tree.move()
        actions.append(move.action)
        tree.add(move.action, 0.4, move.parent)
    assert actions[:2] == [IMPROVE, IMPROVE]
    assert GENERATE in actions


def test_programs_of_almost_equal_score_are_ranked_by_error():
    tree = grown()
    for score, error in ((0.340, 0.2), (0.335, -3.0), (0.345, None)):
        tree.add(GENERATE, score, error=error)
    assert tree.moves() == {(IMPROVE, 1)}
    far = grown()
    for score, error in ((0.34 + 4 * NEAR, 0.2), (0.34, -3.0)):
        far.add(GENERATE, score, error=error)
    assert far.moves() == {(IMPROVE, 0)}


def test_ties_of_programs_are_drawn():
    tree = grown()
    for _ in range(3):
        tree.add(GENERATE, 0.5, error=-1.0)
    assert tree.moves() == {(IMPROVE, 0), (IMPROVE, 1), (IMPROVE, 2)}


def test_repeated_program_is_not_improved_again():
    tree = grown()
    tree.add(GENERATE, 0.5, name="x")
    tree.add(IMPROVE, 0.5, parent=0, name="x")
    assert tree.states() == ["", "repeated"]
    assert tree.moves() == {(IMPROVE, 0)}


@pytest.mark.parametrize("action", ["calibrate", "patch", "join"])
def test_program_improved_by_a_refiner_is_not_improved_again(action):
    tree = grown()
    tree.add(GENERATE, 0.5)
    estimates = tree.strategy._programs.improved, tree.strategy._programs.generated
    tree.add(action, 0.6, parent=0, asked=False)
    assert tree.states() == ["improved", ""]
    assert tree.moves() == {(IMPROVE, 1)}
    assert (tree.strategy._programs.improved, tree.strategy._programs.generated) == estimates


def test_search_with_initial_program_improves_it():
    tree = grown()
    tree.add(START, 0.852, asked=False, floor=FLOOR)
    assert tree.moves() == {(IMPROVE, 0)}
    raised = grown()
    raised.add(START, None, asked=False)
    assert raised.moves() == {(FIX, 0)}


def test_prefix_tree_accepts_nodes_without_completion():
    tree = Grown(GifMcts(preset="paper"))
    tree.add(START, 0.6, asked=False)
    tree.add("calibrate", 0.9, parent=0, asked=False)
    assert [estimate.everywhere.number for estimate in tree.strategy._estimates.values()] == [2, 2]
    assert {parent for _, parent in tree.moves()} == {1}


@pytest.mark.parametrize("score", [0.0, 0.7, 0.9996])
def test_program_that_raised_is_fixed_first_and_finally_given_up(score):
    tree = grown()
    tree.add(GENERATE, score, error=-4.0)
    tree.add(IMPROVE, None, parent=0)
    assert tree.moves() == {(FIX, 1)}
    assert tree.move() == Move(FIX, 1, tree.nodes[1].program, BUG)
    for parent in (1, 2, 3):
        tree.add(FIX, None, parent=parent)
    assert tree.states()[1:] == ["", "", "", "terminal"]
    assert tree.moves() == {(IMPROVE, 0)}


def test_fix_that_runs_is_compared_with_the_improved_program():
    tree = grown()
    tree.add(GENERATE, 0.7)
    tree.add(IMPROVE, None, parent=0)
    tree.add(FIX, 0.4, parent=1)
    assert tree.states() == ["", "", "worse"]
    assert tree.moves() == {(IMPROVE, 0)}


def test_moves_in_flight_spread_over_programs():
    tree, flights = grown(), []
    for score in (0.70, 0.71, 0.72):
        tree.add(GENERATE, score)
    tree.add(GENERATE, None)
    for _ in range(5):
        flights.append(tree.move(*flights))
    assert flights[0].action == FIX
    assert {flight.parent for flight in flights[1:4]} == {0, 1, 2}


def test_ablations_leave_out_what_they_say():
    once = grown(generate=False)
    assert once.moves() == {(GENERATE, ROOT)}
    once.add(GENERATE, 0.1)
    for _ in range(6):
        assert once.moves() == {(IMPROVE, 0)}
        once.add(IMPROVE, 0.05, parent=0)
    never = grown(improve=False)
    never.add(GENERATE, 0.9)
    assert never.moves() == {(GENERATE, ROOT)}
    given_up = grown(fix=False)
    given_up.add(GENERATE, None)
    assert given_up.moves() == {(GENERATE, ROOT)}


def test_only_published_preset_repeats_a_prompt():
    assert GifMcts(preset="paper").repeats
    assert not GifMcts().repeats


def test_verdict_that_raised_in_part_counts_as_zero():
    tree, partly = grown(), grown()
    for one in (tree, partly):
        one.add(GENERATE, 0.2)
    tree.add(IMPROVE, None, parent=0)
    partly.strategy.update(replace(tree.nodes[1], verdict=replace(BUG, score=0.4)))
    assert partly.moves() == tree.moves()
