"""GIF-MCTS in numbers: visits, values and bounds of small trees, compared with hand computation.

Unless noted, c = 0.1 and epsilon = 1, so a bonus is 0.1 * sqrt(ln N / (n + 1)).
"""

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest

from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, ROOT, Move
from cwm_gif_mcts.tree import ActionEstimate, RunningMean
from gif_mcts_trees import BUG, Grown, published


def exactly(expected):
    if isinstance(expected, dict):
        return {key: exactly(value) for key, value in expected.items()}
    return pytest.approx(expected, rel=0, abs=1e-12)


def bonus(visits, tried, c=0.1, epsilon=1.0):
    return c * sqrt(log(visits) / (tried + epsilon))


def four_nodes(**options):
    """Grow node 0 (0.6) and node 1 (0.3), improve 0 to node 2 (0.9), continue that to 3 (0.2)."""
    tree = Grown(published(**options))
    tree.add(GENERATE, 0.6)
    tree.add(GENERATE, 0.3)
    tree.add(IMPROVE, 0.9, parent=0)
    tree.add(GENERATE, 0.2, parent=2)
    return tree


# Node 1 was generated where v_G = (1 + 0.6) / 3 and v_L = 0.6, so Q = (1.6 / 3 + 0.6) / 2, with
# the weights 0.5, and it scored 0.3. The second step of its kind has the rate 1 / (1 + 2 + 1).
Q = (1.6 / 3 + 0.6) / 2
W_G = 0.5 - 2 * (Q - 0.3) * (1.6 / 3 - Q) / 4
W_L = 0.5 - 2 * (Q - 0.3) * (0.6 - Q) / 4
V_0 = (0.6 + 0.9 + 0.2) / 3
V_2 = (0.9 + 0.2) / 2
GENERATED = (2 * 0.5 + 0.6 + 0.3 + 0.2) / 5
IMPROVED = (2 * 0.55 + 0.9) / 3


class TestSelection:
    def test_values_are_means_of_the_scores_at_and_below_a_node(self):
        tree = four_nodes()
        assert tree.values() == exactly({0: (3, V_0), 1: (1, 0.3), 2: (2, V_2), 3: (1, 0.2)})

    def test_bounds_follow_the_formulas(self):
        assert exactly(1.0) == W_G + W_L
        tree = four_nodes()
        assert tree.bounds() == exactly(
            {
                GENERATE: W_G * GENERATED + W_L * (V_0 + 0.3) / 2 + bonus(5, 2),
                0: V_0 + bonus(5, 3),
                1: 0.3 + bonus(5, 1),
            }
        )
        assert tree.bounds(0) == exactly(
            {
                GENERATE: GENERATED + bonus(3, 0),
                IMPROVE: (IMPROVED + V_2) / 2 + bonus(3, 1),
                2: V_2 + bonus(3, 2),
            }
        )
        assert tree.bounds(2) == exactly(
            {
                GENERATE: W_G * GENERATED + W_L * 0.2 + bonus(2, 1),
                IMPROVE: IMPROVED + bonus(2, 0),
                3: 0.2 + bonus(2, 1),
            }
        )
        assert tree.bounds(3) == exactly({GENERATE: GENERATED, IMPROVE: IMPROVED})

    def test_exploration_and_epsilon_are_options(self):
        tree = four_nodes(exploration=0.7, epsilon=0.25)
        assert tree.bounds(0)[2] == exactly(V_2 + bonus(3, 2, c=0.7, epsilon=0.25))
        assert tree.bounds(2)[IMPROVE] == exactly(IMPROVED + bonus(2, 0, c=0.7, epsilon=0.25))

    @pytest.mark.parametrize(
        ("exploration", "at_root", "below", "move"),
        [
            (0.1, {GENERATE: 0.500, 0: 0.630, 1: 0.390}, (0.525, 0.682, 0.611), (IMPROVE, 0)),
            (1.0, {GENERATE: 1.159, 0: 1.201, 1: 1.197}, (1.468, 1.349, 1.155), (GENERATE, 0)),
            (2.0, {GENERATE: 1.891, 0: 1.835, 1: 2.094}, (2.516, 2.091, 1.760), (IMPROVE, 1)),
        ],
    )
    def test_descent_takes_the_highest_bound_of_each_node(self, exploration, at_root, below, move):
        # `below` are the bounds of generate, improve and node 2 at node 0; at node 1, visited
        # once, nothing explores: generate 0.420, improve 0.667.
        tree = four_nodes(exploration=exploration)
        assert tree.bounds() == pytest.approx(at_root, abs=6e-4)
        below = dict(zip((GENERATE, IMPROVE, 2), below, strict=True))
        assert tree.bounds(0) == pytest.approx(below, abs=6e-4)
        assert tree.bounds(1) == exactly({GENERATE: GENERATED, IMPROVE: IMPROVED})
        assert tree.moves() == {move}

    def test_descent_continues_below_a_child(self):
        # Without exploration the means are followed: 0.833 at node 0, 0.95 at node 1 and 2, where
        # improve has v_G = (1.1 + 0.95 + 0.95) / 4 = 0.75 and generate v_G = 1.6 / 3.
        tree = Grown(published(exploration=0.0))
        tree.add(GENERATE, 0.6)
        tree.add(IMPROVE, 0.95, parent=0)
        tree.add(IMPROVE, 0.95, parent=1)
        for number, step in ((ROOT, 0), (0, 1), (1, 2), (2, IMPROVE)):
            bounds = tree.bounds(number)
            assert max(bounds, key=bounds.get) == step
        assert tree.moves() == {(IMPROVE, 2)}

    def test_three_equal_children_are_chosen_equally_often(self):
        tree = Grown()
        for _ in range(3):
            tree.add(GENERATE, 0.8)
        rngs = map(np.random.default_rng, range(1500))
        parents = [tree.strategy.select(rng, []).parent for rng in rngs]
        shares = np.bincount(parents, minlength=3) / 1500
        assert shares == pytest.approx([1 / 3] * 3, abs=0.05)


class TestEstimates:
    @pytest.mark.parametrize(("w_l", "clipped"), [(1.5, 1.0), (0.5, 0.0)])
    def test_estimates_outside_the_range_of_scores_are_clipped(self, w_l, clipped):
        # (-0.4 * 0.3 + 1.5 * 0.9) / 1.1 = 1.12; (-0.4 * 0.3 + 0.5 * 0.1) / 0.1 = -0.7.
        tree = Grown()
        tree.add(GENERATE, 0.9 if clipped else 0.1)
        tree.strategy._estimates[GENERATE] = ActionEstimate(RunningMean(2, 0.3), -0.4, w_l)
        assert tree.bounds()[GENERATE] == exactly(clipped + bonus(2, 1))

    @pytest.mark.parametrize(("count", "mean"), [(0, 0.9), (2, 1.7 / 3), (8, 4.1 / 9)])
    def test_prior_counts_as_a_number_of_values(self, count, mean):
        tree = Grown(published(prior_generate=0.4, prior_improve=0.2, prior_count=count))
        assert tree.bounds() == {GENERATE: 0.4}
        tree.add(GENERATE, 0.9)
        assert tree.bounds(0) == exactly({GENERATE: mean, IMPROVE: 0.2})

    @pytest.mark.parametrize("count", [0, 2, 8])
    def test_first_step_has_a_rate_of_one_over_one_and_the_prior_count(self, count):
        # Q = (0.4 + 0.6) / 2 = 0.5 and the value is 1: each weight moves by 2 * 0.5 * 0.1 / n.
        estimate = ActionEstimate(RunningMean(count, 0.4))
        estimate.learn(RunningMean(1, 0.6), 1.0)
        moved = 0.1 / (1 + count)
        assert estimate.weight_everywhere == exactly(0.5 - moved)
        assert estimate.weight_here == exactly(0.5 + moved)

    def test_steps_without_change_of_weights_still_lower_the_rate(self):
        estimate = ActionEstimate(RunningMean(2, 0.4))
        for _ in range(3):
            estimate.learn(RunningMean(), 0.4)
        estimate.learn(RunningMean(1, 0.6), 1.0)
        assert estimate.weight_here == exactly(0.5 + 0.1 / 6)

    def test_published_preset_counts_new_child_as_zero_in_updates_of_weights(self):
        tree = four_nodes(preset="paper")
        first = ActionEstimate(RunningMean(2, 0.5))
        for here, score in ((0.0, 0.6), (0.6 / 2, 0.3), (0.0, 0.2)):
            v_g, w_g, w_l = first.everywhere.mean, first.weight_everywhere, first.weight_here
            q = (w_g * v_g + w_l * here) / (w_g + w_l)
            step = 2 * (q - score) / (w_g + w_l) / (1 + first.everywhere.number)
            first = ActionEstimate(
                first.everywhere.plus(score), w_g - step * (v_g - q), w_l - step * (here - q)
            )
        learned = tree.strategy._estimates[GENERATE]
        assert learned.weight_everywhere == exactly(first.weight_everywhere)
        assert learned.weight_here == exactly(first.weight_here)
        assert learned.everywhere.mean == exactly(GENERATED)

    def test_each_action_has_its_own_weights_and_mean(self):
        # Improving node 0 a second time moves the weights of improve; generate knows one score.
        tree = Grown()
        tree.add(GENERATE, 0.6)
        tree.add(IMPROVE, 0.9, parent=0)
        tree.add(IMPROVE, 0.1, parent=0)
        estimates = tree.strategy._estimates
        assert estimates[IMPROVE].weight_here != 0.5
        assert estimates[GENERATE].weight_here == 0.5
        assert tree.bounds(0)[GENERATE] == exactly(1.6 / 3 + bonus(3, 0))

    def test_raising_program_teaches_zero_but_counts_here_by_its_provisional_value(self):
        # v_G = (2 * 0.55 + 0) / 3, v_L = 0.99; the first improvement finds no child to learn from.
        tree = Grown()
        tree.add(GENERATE, 0.6)
        tree.add(IMPROVE, None, parent=0)
        expected = (1.1 / 3 + 0.99) / 2 + bonus(2, 1)
        assert tree.bounds(0)[IMPROVE] == exactly(expected)

    def test_score_of_a_program_that_raised_in_part_counts_as_zero(self):
        tree, partly = Grown(), Grown()
        tree.add(GENERATE, None)
        verdict = replace(BUG, score=0.4)
        partly.strategy.update(replace(tree.nodes[0], verdict=verdict))
        assert partly.bounds() == tree.bounds()


class TestWidening:
    def test_node_offers_each_action_again(self):
        tree = Grown()
        tree.add(GENERATE, 0.9)
        for tried in range(4):
            for action in (GENERATE, IMPROVE):
                bounds = tree.bounds(0)
                assert {GENERATE, IMPROVE} <= bounds.keys()
                here = tree.strategy._tree[0].mean(action)
                assert here.number == tried
                tree.add(action, 0.5, parent=0)

    def test_bonus_of_an_action_shrinks_with_its_children(self):
        tree = Grown()
        tree.add(GENERATE, 0.5)
        for tried in range(1, 4):
            tree.add(GENERATE, 0.5, parent=0)
            visits = tree.values()[0][0]
            assert visits == 1 + tried
            assert tree.bounds(0)[GENERATE] == exactly(0.5 + bonus(visits, tried))
            assert tree.bounds(0)[IMPROVE] == exactly(0.55 + bonus(visits, 0))

    def test_root_offers_only_generate_and_raising_program_only_fix(self):
        tree = Grown()
        assert tree.bounds().keys() == {GENERATE}
        tree.add(GENERATE, None)
        assert tree.bounds(0).keys() == {FIX}
        tree.add(FIX, None, parent=0)
        assert tree.bounds(0).keys() == {1}


class TestBackup:
    def test_value_is_discounted_once_per_level(self):
        # Node 0: 0.4 + 0.5 * 0.6 + 0.25 * 0.8; node 1: 0.6 + 0.5 * 0.8.
        tree = Grown(published(discount=0.5))
        tree.add(GENERATE, 0.4)
        tree.add(IMPROVE, 0.6, parent=0)
        tree.add(IMPROVE, 0.8, parent=1)
        assert tree.values() == exactly({0: (3, 0.9 / 3), 1: (2, 1.0 / 2), 2: (1, 0.8)})

    def test_reward_of_an_end_is_discounted_from_the_node_above_its_parent(self):
        # Node 2 ends its branch: worth 0 itself, 0.8 to node 1 and 0.5 * 0.8 to node 0.
        tree = Grown(published(discount=0.5))
        tree.add(GENERATE, 0.4)
        tree.add(IMPROVE, 0.6, parent=0)
        tree.add(IMPROVE, 0.8, parent=1, lines=3)
        assert tree.strategy.state(2) == "terminal"
        assert tree.values() == exactly({0: (3, 1.1 / 3), 1: (2, 1.4 / 2), 2: (1, 0.0)})

    def test_end_counts_as_zero_among_the_children(self):
        # v_L = 0 beside v_G = (1.1 + 0.8) / 3; an end is no option itself.
        tree = Grown()
        tree.add(GENERATE, 0.4)
        tree.add(IMPROVE, 0.8, parent=0, lines=3)
        assert tree.bounds(0) == exactly(
            {GENERATE: 1.4 / 3 + bonus(2, 0), IMPROVE: 1.9 / 3 / 2 + bonus(2, 1)}
        )

    def test_raising_program_counts_as_a_visit_without_changing_means(self):
        tree = four_nodes()
        tree.add(IMPROVE, None, parent=2)
        values = {0: (4, V_0), 1: (1, 0.3), 2: (3, V_2), 3: (1, 0.2), 4: (1, 0.99)}
        assert tree.values() == exactly(values)
        assert tree.bounds()[1] == exactly(0.3 + bonus(6, 1))

    def test_move_in_flight_is_a_visit_of_value_zero_up_to_the_root(self):
        # V(0) = 3 V_0 / 4 and V(2) = 2 V_2 / 3; at node 2 improve has one child of value 0.
        tree = four_nodes()
        known = tree.values()
        flight = Move(IMPROVE, 2)
        anticipated = tree.strategy._anticipated([flight])
        found = {n: (anticipated[n].visits, anticipated[n].value) for n in (ROOT, 0, 2)}
        root = tree.strategy._tree[ROOT]
        assert found == exactly(
            {ROOT: (6, root.value * 5 / 6), 0: (4, V_0 * 3 / 4), 2: (3, V_2 * 2 / 3)}
        )
        assert anticipated[2].mean(IMPROVE) == RunningMean(1, 0.0)
        assert tree.values() == known


def chain(fixes, failed, solved, **options):
    """Grow a program that raised, `failed` fixes that raised too, and one that scores `solved`."""
    tree = Grown(published(fixes=fixes, **options))
    tree.add(GENERATE, None)
    for parent in range(failed):
        tree.add(FIX, None, parent=parent)
    if solved is not None:
        tree.add(FIX, solved, parent=failed)
    return tree


class TestBugs:
    @pytest.mark.parametrize("fixes", [1, 2, 3, 5])
    def test_value_of_a_chain_follows_from_its_remaining_fixes(self, fixes):
        schedule = np.linspace(0, 0.99, fixes + 1)
        for failed in range(fixes):
            tree = chain(fixes, failed, None)
            left = schedule[fixes - failed]
            expected = {n: (1 + failed - n, left) for n in range(failed + 1)}
            assert tree.values() == exactly(expected)

    @pytest.mark.parametrize(("fixes", "failed"), [(1, 0), (3, 0), (3, 1), (3, 2), (5, 4)])
    def test_solved_chain_takes_the_score(self, fixes, failed):
        tree = chain(fixes, failed, 0.8)
        expected = {n: (2 + failed - n, 0.8) for n in range(failed + 2)}
        assert tree.values() == exactly(expected)
        assert tree.bounds(failed).keys() == {failed + 1}

    @pytest.mark.parametrize("fixes", [1, 2, 3, 5])
    def test_unsolved_chain_has_value_zero(self, fixes):
        tree = chain(fixes, fixes, None)
        expected = {n: (1 + fixes - n, 0.0) for n in range(fixes + 1)}
        assert tree.values() == exactly(expected)
        assert set(tree.states()) == {"terminal"}
        assert tree.bounds().keys() == {GENERATE}

    def test_chain_takes_the_score_before_the_visit_is_counted(self):
        # Node 0 takes 0.8 at one visit, then a value of 0.5 * 0.8 is backed up to it.
        tree = chain(3, 0, 0.8, discount=0.5)
        assert tree.values() == exactly({0: (2, (0.8 + 0.4) / 2), 1: (1, 0.8)})

    def test_chain_ends_at_the_first_program_that_is_not_a_fix(self):
        # Node 0 ran: the failed improvement and its failed fix leave its 0.6, the solution counts.
        tree = Grown()
        tree.add(GENERATE, 0.6)
        tree.add(IMPROVE, None, parent=0)
        tree.add(FIX, None, parent=1)
        assert tree.values() == exactly({0: (3, 0.6), 1: (2, 0.66), 2: (1, 0.66)})
        tree.add(FIX, 0.9, parent=2)
        expected = {0: (4, (3 * 0.6 + 0.9) / 4), 1: (3, 0.9), 2: (2, 0.9), 3: (1, 0.9)}
        assert tree.values() == exactly(expected)

    def test_end_of_a_branch_solves_a_chain_by_its_score_and_closes_it(self):
        tree = Grown()
        tree.add(GENERATE, None)
        tree.add(FIX, 0.8, parent=0, lines=3)
        assert tree.values() == exactly({0: (2, 0.8), 1: (1, 0.0)})
        assert tree.states() == ["", "terminal"]
        assert tree.bounds().keys() == {GENERATE}

    @pytest.mark.parametrize("options", [{"fixes": 0}, {"fix": False}])
    def test_raising_program_has_value_zero_without_fixes(self, options):
        tree = Grown(published(**options))
        tree.add(GENERATE, None)
        assert tree.values() == {0: (1, 0.0)}
        assert tree.bounds() == exactly({GENERATE: 1 / 3 / 2 + bonus(2, 1)})


class TestPrefixes:
    def test_chain_of_fixes_fixes_more_lines_at_every_program(self):
        tree = chain(3, 2, 0.9, improve=False)
        move = tree.move()
        assert (move.action, move.parent) == (GENERATE, 3)
        assert move.prefix == "".join(f"x3 = {number}\n" for number in range(8))

    @pytest.mark.parametrize("per_node", [1, 2, 5])
    @pytest.mark.parametrize("missing", [-1, 0, 1, 2])
    def test_program_ends_its_branch_with_fewer_new_lines_than_a_node_fixes(
        self, per_node, missing
    ):
        tree = Grown(published(lines=per_node))
        tree.add(GENERATE, 0.5)
        tree.add(GENERATE, 0.7, parent=0, lines=max(2 * per_node - missing, 0))
        assert tree.strategy.state(1) == ("terminal" if missing > 0 else "")
        assert tree.values()[1] == (1, 0.0 if missing > 0 else 0.7)

    def test_rewritten_program_provides_its_own_lines(self):
        tree = Grown(published(improve=False, exploration=0.0))
        tree.add(GENERATE, 0.5)
        tree.add(GENERATE, 0.95, parent=0)
        move = tree.move()
        assert (move.action, move.parent) == (GENERATE, 1)
        assert move.prefix == "x1 = 0\nx1 = 1\nx1 = 2\nx1 = 3\n"


class TestAblations:
    def offers(self, **options):
        """Return the actions that a root, a program that runs and one that raised offer."""
        tree = Grown(published(**options))
        tree.add(GENERATE, 0.5)
        tree.add(GENERATE, None)
        return [set(tree.strategy._tree[n].offers) for n in (ROOT, 0, 1)]

    def test_each_switch_removes_one_action(self):
        assert self.offers() == [{GENERATE}, {GENERATE, IMPROVE}, {FIX}]
        assert self.offers(generate=False) == [set(), {IMPROVE}, {FIX}]
        assert self.offers(improve=False) == [{GENERATE}, {GENERATE}, {FIX}]
        assert self.offers(fix=False) == [{GENERATE}, {GENERATE, IMPROVE}, set()]
