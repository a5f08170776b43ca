"""GIF-MCTS chooses by its formulas; important bounds are computed manually.

With the defaults, a bonus is 0.1 * sqrt(ln N(node) / (n + 1)).
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, ROOT, Move
from cwm_gif_mcts.tree import ActionEstimate, RunningMean
from gif_mcts_reference import Reference
from gif_mcts_trees import BUG, Grown, published


def test_search_begins_by_generating_a_whole_program():
    assert Grown().move() == Move(GENERATE)


def test_good_program_is_improved_first():
    # At the root ln N = ln 2, and both bonuses are 0.1 * sqrt(ln 2 / 2) = 0.059.
    # U(node 0) = 0.6 + 0.059; U(generate) = (v_G + v_L) / 2 + 0.059 with v_G = (2 * 0.5 + 0.6) / 3
    # = 0.533 and v_L = 0.6: 0.567 + 0.059. At node 0, ln 1 = 0: generate 0.533, improve 0.55.
    tree = Grown()
    tree.add(GENERATE, 0.6)
    assert tree.moves() == {(IMPROVE, 0)}


def test_child_with_higher_bound_than_improve_is_continued():
    # v_G(generate) = (2 * 0.5 + 0.9) / 3 = 0.633 at node 0, against 0.55 for improve.
    tree = Grown()
    tree.add(GENERATE, 0.9)
    assert tree.moves() == {(GENERATE, 0)}


def test_another_program_is_generated_after_a_poor_one():
    # U(node 0) = 0.4 + 0.059; v_G = (1 + 0.4) / 3 = 0.467, U(generate) = (0.467 + 0.4) / 2 + 0.059.
    tree = Grown()
    tree.add(GENERATE, 0.4)
    assert tree.moves() == {(GENERATE, ROOT)}


def test_ties_are_drawn():
    # v_G = v_L = V(node 0) = 0.5, so U(generate) = U(node 0) at the root.
    tree = Grown()
    tree.add(GENERATE, 0.5)
    assert tree.moves() == {(GENERATE, ROOT), (IMPROVE, 0)}
    again = Grown()
    again.add(GENERATE, 0.9)
    again.add(GENERATE, 0.9)
    assert again.moves() == {(GENERATE, 0), (GENERATE, 1)}


def test_equal_generators_choose_equally():
    tree = Grown()
    for _ in range(5):
        tree.add(GENERATE, 0.5)
    assert all(tree.move() == tree.move() for _ in range(20))


def test_exploration_prefers_options_with_fewer_visits():
    # Node 0 has V = (0.8 + 0.8 + 0.8) / 3 = 0.8 at N = 3, node 1 has V = 0.76 at N = 1, root N = 5.
    # c = 0.1: U(0) = 0.8 + 0.1 * sqrt(1.609 / 4) = 0.863, U(1) = 0.76 + 0.090 = 0.850.
    # c = 1.0: U(0) = 0.8 + 0.634 = 1.434, U(1) = 0.76 + 0.897 = 1.657; U(generate) is about
    # (0.64 + 0.78) / 2 + c * sqrt(1.609 / 3): 0.783 and 1.442.
    for exploration, subtree in ((0.1, {0, 2, 3}), (1.0, {1})):
        tree = Grown(published(exploration=exploration))
        tree.add(GENERATE, 0.8)
        tree.add(GENERATE, 0.76)
        tree.add(IMPROVE, 0.8, parent=0)
        tree.add(IMPROVE, 0.8, parent=0)
        assert {parent for _, parent in tree.moves()} <= subtree


def test_values_are_discounted_on_the_way_up():
    # With discount 0.5, node 0 (0.7) falls to (0.7 + 0.5 * 0.7) / 2 = 0.525 when its child scores
    # 0.7: below node 1 (0.6), which is 0.6 + 0.1 * sqrt(ln 4 / 2) = 0.683 against
    # 0.525 + 0.1 * sqrt(ln 4 / 3) = 0.593. U(generate) = ((1 + 1.3) / 4 + 0.56) / 2 + 0.068 = 0.64.
    tree = Grown(published(discount=0.5))
    tree.add(GENERATE, 0.7)
    tree.add(GENERATE, 0.6)
    tree.add(IMPROVE, 0.7, parent=0)
    assert {parent for _, parent in tree.moves()} == {1}


def test_every_running_node_offers_both_actions_again():
    tree = Grown()
    tree.add(GENERATE, 0.9)
    for _ in range(4):
        tree.add(GENERATE, 0.1, parent=0)
    # improve: 0.55 + bonus with k = 0; generate: below 0.4 + bonus with k = 4.
    assert (IMPROVE, 0) in tree.moves(*[Move(GENERATE)] * 3)
    for _ in range(6):
        tree.add(IMPROVE, 0.0, parent=0)
    assert {action for action, _ in tree.moves()} == {GENERATE}


def test_weights_follow_the_gradient_of_the_squared_error():
    # Q = (0.5 * 0.5 + 0.5 * 0.6) / 1 = 0.55, 2 * (Q - 1) = -0.9, rate 1 / (1 + 2).
    # dQ/dw_G = 0.5 - 0.55 = -0.05, dQ/dw_L = 0.6 - 0.55 = 0.05: each step is 0.9 * 0.05 / 3.
    estimate = ActionEstimate(RunningMean(2, 0.5))
    estimate.learn(RunningMean(1, 0.6), 1.0)
    assert estimate.weight_everywhere == pytest.approx(0.485)
    assert estimate.weight_here == pytest.approx(0.515)
    assert estimate.everywhere.mean == pytest.approx((0.5 + 0.5 + 1.0) / 3)
    # Now Q = 0.485 * 2/3 + 0.515 * 0.6 = 0.632333, 2 * Q = 1.264667, rate 1 / 4.
    estimate.learn(RunningMean(1, 0.6), 0.0)
    assert estimate.weight_everywhere == pytest.approx(0.485 - 1.264667 / 4 * (2 / 3 - 0.632333))
    assert estimate.weight_here == pytest.approx(0.515 - 1.264667 / 4 * (0.6 - 0.632333))


def test_weights_do_not_change_without_values_at_the_node():
    estimate = ActionEstimate(RunningMean(2, 0.5))
    estimate.learn(RunningMean(), 1.0)
    assert (estimate.weight_everywhere, estimate.weight_here) == (0.5, 0.5)
    assert estimate.mix(RunningMean()) == pytest.approx(2 / 3)


def test_program_that_raised_is_fixed_next():
    # V(node 0) = 0.99 for all fixes left, U(generate) = ((1 + 0) / 3 + 0.99) / 2 + 0.059.
    tree = Grown()
    tree.add(GENERATE, None)
    assert tree.states() == ["fix pending"]
    move = tree.move()
    assert move == Move(FIX, 0, tree.nodes[0].program, BUG, prefix="")


def test_each_failed_fix_lowers_the_value_of_the_chain():
    # 2 left: U(0) = 0.66 + 0.1 * sqrt(ln 3 / 3) = 0.721, U(generate) = (0.333 + 0.66) / 2 + 0.074.
    tree = Grown()
    tree.add(GENERATE, None)
    tree.add(FIX, None, parent=0)
    assert tree.states() == ["", "fix pending"]
    assert tree.moves() == {(FIX, 1)}
    # 1 left: U(0) = 0.33 + 0.1 * sqrt(ln 4 / 4) = 0.389, U(generate) = (0.333 + 0.33) / 2 + 0.083.
    tree.add(FIX, None, parent=1)
    assert tree.moves() == {(GENERATE, ROOT)}


@pytest.mark.parametrize("fixes", [1, 3, 7])
def test_chain_without_fixes_left_is_given_up(fixes):
    tree = Grown(published(fixes=fixes, exploration=10.0))
    tree.add(GENERATE, None)
    for parent in range(fixes):
        assert tree.strategy.state(parent) == "fix pending"
        tree.add(FIX, None, parent=parent)
    assert tree.states() == ["terminal"] * (fixes + 1)
    assert tree.moves() == {(GENERATE, ROOT)}


def test_given_up_chain_has_value_zero():
    # v_G = (2 * 0.5 + 0 + 0.3) / 4 = 0.325, v_L = (0 + 0.3) / 2: U(generate) at the root is about
    # 0.24 + 0.1 * sqrt(ln 6 / 3) = 0.31 and U(node 4) = 0.3 + 0.1 * sqrt(ln 6 / 2) = 0.39; if the
    # value of the chain were still 0.33 or more, v_L would be too, and U(generate) at least 0.39.
    tree = Grown()
    tree.add(GENERATE, None)
    for parent in range(3):
        tree.add(FIX, None, parent=parent)
    tree.add(GENERATE, 0.3)
    assert {parent for _, parent in tree.moves()} == {4}


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_solved_chain_takes_the_value_of_the_solution(failed):
    # The chain has the value 0.8 of its solution; at the solution generate has v_G = 1 / 3 and
    # improve 0.55. Lines are fixed along the chain, two per node.
    tree = Grown()
    tree.add(GENERATE, None)
    for parent in range(failed):
        tree.add(FIX, None, parent=parent)
    solution = tree.add(FIX, 0.8, parent=failed)
    assert tree.states() == [""] * (failed + 2)
    assert tree.moves() == {(IMPROVE, solution)}
    tree.add(GENERATE, 0.79)
    assert {parent for _, parent in tree.moves()} == {solution + 1}  # it has fewer visits
    tree.add(GENERATE, 0.3, parent=solution + 1)
    assert {parent for _, parent in tree.moves()} == {solution}


def test_bug_below_a_solved_chain_begins_a_new_chain():
    tree = Grown(published(fixes=1))
    tree.add(GENERATE, None)
    tree.add(FIX, 0.9, parent=0)
    tree.add(IMPROVE, None, parent=1)
    assert tree.states() == ["", "", "fix pending"]
    tree.add(FIX, None, parent=2)
    assert tree.states() == ["", "", "terminal", "terminal"]
    assert {parent for _, parent in tree.moves()} == {1}


def test_bug_does_not_change_the_means_above_it():
    # Node 0 keeps V = 0.6 at N = 2: U(0) = 0.6 + 0.1 * sqrt(ln 3 / 3) = 0.660 and
    # U(generate) = (0.533 + 0.6) / 2 + 0.1 * sqrt(ln 3 / 2) = 0.641. With 0.6 / 2 it would lose.
    tree = Grown()
    tree.add(GENERATE, 0.6)
    tree.add(IMPROVE, None, parent=0)
    assert tree.moves() == {(FIX, 1)}


def test_every_level_fixes_two_more_lines():
    tree = Grown(published(improve=False))
    parent = ROOT
    for level in range(3):
        parent = tree.add(GENERATE, 0.9, parent=parent, lines=20)
        move = tree.move()
        assert move.prefix == "".join(f"x{level} = {n}\n" for n in range(2 * level + 2))
        assert move == Move(GENERATE, parent, tree.nodes[-1].program, move.verdict, move.prefix)


def test_published_preset_counts_an_empty_line_at_every_level():
    tree, parent, kept = Grown(published(preset="paper", improve=False)), ROOT, []
    for _ in range(4):
        parent = tree.add(GENERATE, 0.9, parent=parent, lines=20)
        kept.append(tree.move().prefix.count("\n"))
    assert kept == [4, 7, 10, 13]
    ends = [tree.add(GENERATE, 0.1, parent=parent, lines=lines) for lines in (15, 16)]
    assert [tree.strategy.state(end) for end in ends] == ["terminal", ""]
    at_root = [tree.add(GENERATE, 0.1, lines=lines) for lines in (3, 4)]
    assert [tree.strategy.state(end) for end in at_root] == ["terminal", ""]


def test_improve_and_fix_may_change_the_prefix():
    tree = Grown(published(lines=5))
    tree.add(GENERATE, 0.6)
    assert tree.move().prefix == ""
    tree.add(IMPROVE, None, parent=0)
    assert tree.move().action == FIX
    assert tree.move().prefix == ""


@pytest.mark.parametrize(("lines", "state"), [(1, "terminal"), (3, "terminal"), (4, "")])
def test_program_with_too_few_new_lines_ends_its_branch(lines, state):
    tree = Grown()
    tree.add(GENERATE, 0.9)
    child = tree.add(IMPROVE, 0.9, parent=0, lines=lines)
    assert tree.strategy.state(child) == state
    assert any(parent == child for _, parent in tree.moves()) == (state == "")


def test_end_of_a_branch_passes_its_score_to_its_ancestors():
    # Node 0: (0.6 + 0.9) / 2 = 0.75 at N = 2. Node 2: 0.72 at N = 1. Root N = 4.
    # U(0) = 0.75 + 0.1 * sqrt(ln 4 / 3) = 0.818; U(2) = 0.72 + 0.1 * sqrt(ln 4 / 2) = 0.803.
    tree = Grown()
    tree.add(GENERATE, 0.6)
    tree.add(GENERATE, 0.9, parent=0, lines=3)
    tree.add(GENERATE, 0.72)
    assert {parent for _, parent in tree.moves()} == {0}


def test_short_program_that_raised_is_still_fixed():
    tree = Grown()
    tree.add(GENERATE, None, lines=0)
    assert tree.moves() == {(FIX, 0)}
    tree.add(FIX, 0.8, parent=0)
    assert tree.moves() == {(IMPROVE, 1)}
    assert tree.strategy.state(1) == ""


def test_root_generates_if_all_branches_are_closed():
    tree = Grown(published(exploration=5.0))
    for _ in range(4):
        tree.add(GENERATE, 1e-9, lines=1)
    bug = tree.add(GENERATE, None)
    tree.add(FIX, 0.9, parent=bug, lines=3)
    assert tree.moves() == {(GENERATE, ROOT)}


def test_move_in_flight_counts_as_a_visit_of_value_zero():
    # With improve of node 0 in flight: V(0) = 0.9 / 2, U(0) = 0.45 + 0.1 * sqrt(ln 3 / 3) = 0.511,
    # and U(generate) = (0.633 + 0.45) / 2 + 0.1 * sqrt(ln 3 / 2) = 0.616.
    tree = Grown()
    tree.add(GENERATE, 0.9)
    flight = tree.move()
    assert flight.parent == 0
    assert tree.moves(flight) == {(GENERATE, ROOT)}
    assert tree.moves() == {(GENERATE, 0)}


def test_moves_in_flight_spread_over_the_tree():
    tree = Grown()
    for score in (0.7, 0.72, 0.74):
        tree.add(GENERATE, score)
    flights = []
    for _ in range(4):
        flights.append(tree.move(*flights))
    assert {flight.parent for flight in flights} == {ROOT, 0, 1, 2}


def test_fix_in_flight_is_not_requested_twice():
    tree = Grown()
    tree.add(GENERATE, None)
    tree.add(FIX, None, parent=0)
    flight = tree.move()
    assert (flight.action, flight.parent) == (FIX, 1)
    assert tree.moves(flight) == {(GENERATE, ROOT)}
    assert tree.move() == flight


def test_programs_are_only_continued_without_improve():
    tree = Grown(published(improve=False))
    tree.add(GENERATE, 0.6)
    assert tree.moves() == {(GENERATE, 0)}


def test_programs_are_only_improved_without_generate():
    tree = Grown(published(generate=False))
    assert tree.moves() == {(GENERATE, ROOT)}
    tree.add(GENERATE, 0.9)
    assert tree.moves() == {(IMPROVE, 0)}


def test_root_without_generate_generates_once_and_if_exhausted():
    tree = Grown(published(generate=False))
    tree.add(GENERATE, 0.01)
    for parent in range(6):
        tree.add(IMPROVE, 0.01, parent=parent)
        assert all(action == IMPROVE for action, _ in tree.moves())
    bugs = Grown(published(generate=False))
    bugs.add(GENERATE, None)
    assert bugs.moves() == {(FIX, 0)}
    assert bugs.moves(Move(FIX, 0)) == {(GENERATE, ROOT)}
    for parent in range(3):
        bugs.add(FIX, None, parent=parent)
    assert bugs.moves() == {(GENERATE, ROOT)}


def test_program_that_raised_is_given_up_without_fix():
    tree = Grown(published(fix=False))
    tree.add(GENERATE, None)
    assert tree.states() == ["terminal"]
    assert tree.moves() == {(GENERATE, ROOT)}


def test_only_root_continues_without_generate_and_improve():
    tree = Grown(published(generate=False, improve=False))
    tree.add(GENERATE, 0.9)
    assert tree.moves() == {(GENERATE, ROOT)}


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([0.0, 0.2, 0.6]))
def test_every_choice_agrees_with_the_formulas(seed, parallel, bugs):
    world = np.random.default_rng(seed)
    tree, reference, flights = Grown(), Reference(), []
    for _ in range(60):
        while len(flights) < parallel:
            flights.append(tree.strategy.select(world, flights))
            move = flights[-1]
            assert (move.action, move.parent) in reference.moves(flights[:-1])
        move = flights.pop(int(world.integers(parallel)))
        score = None if world.random() < bugs else float(world.choice([0.2, 0.5, world.random()]))
        tree.add(move.action, score, move.parent, lines=int(world.integers(1, 25)))
        reference.update(tree.nodes[-1])


def test_selection_does_not_change_the_tree():
    world = np.random.default_rng(3)
    asked, quiet = Grown(), Grown()
    for _ in range(200):
        move = quiet.move()
        asked.moves(move, Move(GENERATE), draws=3)
        assert asked.move() == move
        score = None if world.random() < 0.3 else float(world.random())
        for tree in (asked, quiet):
            tree.add(move.action, score, move.parent)
