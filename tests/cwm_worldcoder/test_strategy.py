"""Probabilities of Thompson sampling in WorldCoder, compared with exact values.

Beta(1, n) is the distribution of the smallest of n uniform samples, so a sample of Beta(1, a)
exceeds a sample of Beta(1, b) with probability b / (a + b).
"""

from dataclasses import dataclass, field

import numpy as np
import pytest

from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, read_options
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, ROOT, Move, Node, Usage, Verdict
from cwm_worldcoder.strategy import WorldCoder

DRAWS = 4000
BUG = Verdict(score=0.0, failure=Failure(kind="load_error", message="SyntaxError", line=2))


@dataclass
class Pool:
    """A strategy, and the nodes that it was updated with."""

    strategy: WorldCoder = field(default_factory=WorldCoder)
    nodes: list[Node] = field(default_factory=list)

    def add(self, score, parent=ROOT, *, asked=True):
        """Add a node and return its id; a score of None means an exception."""
        number = len(self.nodes)
        mismatch = None if score == 1 else Failure(kind="mismatch", message="row 1")
        action = GENERATE if parent == ROOT else self.refinement(parent).action
        node = Node(
            id=number,
            step=number,
            parent=parent,
            action=action,
            program=f"x = {number}\n",
            verdict=BUG if score is None else Verdict(score=score, failure=mismatch),
            prompt="",
            usage=Usage(),
            asked=asked,
        )
        self.nodes.append(node)
        self.strategy.update(node)
        return number

    def refinement(self, number):
        """Return the move that refines a node."""
        node = self.nodes[number]
        action = FIX if node.verdict.is_bug else IMPROVE
        return Move(action, number, node.program, node.verdict)

    def chances(self, *pending, draws=DRAWS):
        """Return the frequency of refinements per program."""
        rngs = map(np.random.default_rng, range(draws))
        picks = [self.strategy.select(rng, pending).parent for rng in rngs]
        return np.bincount(picks, minlength=len(self.nodes)) / draws


def sampled(*betas, draws=400_000):
    """Return how often each Beta variable is the largest, by simulation."""
    rng = np.random.default_rng(2024)
    draws_of = np.array([rng.beta(alpha, beta, draws) for alpha, beta in betas])
    return np.bincount(draws_of.argmax(axis=0), minlength=len(betas)) / draws


def near(chances):
    """Compare frequencies of DRAWS samples with probabilities, within four standard errors."""
    return pytest.approx(chances, abs=4 * 0.5 / DRAWS**0.5)


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("in_flight", [0, 1, 3])
def test_empty_pool_generates_programs(sequential, in_flight):
    strategy = WorldCoder(sequential=sequential)
    pending = [Move(GENERATE)] * in_flight
    assert strategy.select(np.random.default_rng(0), pending) == Move(GENERATE)


@pytest.mark.parametrize("sequential", [False, True])
def test_nonempty_pool_only_refines_programs(sequential):
    pool = Pool(WorldCoder(sequential=sequential))
    pool.add(0.5)
    for pending in ([], [Move(GENERATE)], [pool.refinement(0)]):
        assert pool.strategy.select(np.random.default_rng(0), pending) == pool.refinement(0)


@pytest.mark.parametrize(("score", "action"), [(None, FIX), (0.0, IMPROVE), (0.7, IMPROVE)])
def test_programs_with_exceptions_are_fixed_and_others_improved(score, action):
    pool = Pool()
    pool.add(score)
    move = pool.strategy.select(np.random.default_rng(0), [])
    assert move == Move(action, 0, "x = 0\n", pool.nodes[0].verdict)


def test_programs_with_high_scores_are_refined_more_often():
    # Beta(1 + 5 * 0.2, 1 + 5 * 0.8) = Beta(2, 5), and Beta(5.5, 1.5).
    pool = Pool()
    pool.add(0.2)
    pool.add(0.9)
    assert pool.chances() == near(sampled((2, 5), (5.5, 1.5)))
    assert 0 < pool.chances()[0] < 0.1


def test_failed_refinements_make_a_program_less_likely():
    # Node 1 was refined four times: Beta(5.5, 1.5 + 4); each result has Beta(1.5, 5.5).
    pool = Pool()
    pool.add(0.2)
    pool.add(0.9)
    before = pool.chances()[1]
    for _ in range(4):
        pool.add(0.1, parent=1)
    after = pool.chances()
    assert after == near(sampled((2, 5), (5.5, 5.5), *[(1.5, 5.5)] * 4))
    assert after[1] < before - 0.2


def test_failure_adds_one_to_the_second_parameter():
    # Both raised: Beta(1, 1 + 5 + 1) against Beta(1, 1 + 5).
    pool = Pool()
    pool.add(None)
    pool.add(None, parent=0)
    assert pool.chances() == near([6 / 13, 7 / 13])


def test_success_adds_one_to_the_first_parameter():
    # Without a prior: Beta(2, 1) is the largest of two uniform draws, Beta(1, 1) is a third.
    pool = Pool(WorldCoder(prior_weight=0))
    pool.add(0.5)
    pool.add(1.0, parent=0)
    assert pool.chances() == near([2 / 3, 1 / 3])


@pytest.mark.parametrize(("weight", "chance"), [(0, 1 / 10), (1, 2 / 12), (10, 11 / 30)])
def test_prior_has_the_weight_of_the_option(weight, chance):
    # Beta(1, 1 + C + 1 + 7) against Beta(1, 1 + C): (1 + C) / (10 + 2 C).
    pool = Pool(WorldCoder(prior_weight=weight))
    pool.add(None)
    pool.add(None, parent=0)
    assert pool.chances(*[pool.refinement(0)] * 7) == near([chance, 1 - chance])


@pytest.mark.parametrize("in_flight", [1, 2, 7])
def test_refinement_in_flight_counts_as_a_failure(in_flight):
    # Beta(1, 7 + the ones in flight) against Beta(1, 6).
    pool = Pool()
    pool.add(None)
    pool.add(None, parent=0)
    awaited = [pool.refinement(0)] * in_flight
    assert pool.chances(*awaited) == near([6 / (13 + in_flight), 1 - 6 / (13 + in_flight)])
    assert pool.chances() == near([6 / 13, 7 / 13])


def test_single_program_is_refined_several_times_in_parallel():
    pool = Pool()
    pool.add(0.4)
    assert pool.chances(*[pool.refinement(0)] * 5, draws=50) == pytest.approx([1.0])


def test_sequential_refines_the_newest_program():
    pool = Pool(WorldCoder(sequential=True))
    pool.add(0.9)
    for score in (0.1, None, 0.4):
        newest = pool.add(score, parent=len(pool.nodes) - 1)
        assert pool.chances(draws=30)[newest] == 1
        assert pool.chances(pool.refinement(newest), draws=30)[newest] == 1


def test_equal_seeds_choose_the_same_program():
    pool = Pool()
    for score in (0.3, 0.4, 0.5):
        pool.add(score)
    picks = [pool.strategy.select(np.random.default_rng(8), []).parent for _ in range(30)]
    assert len(set(picks)) == 1


def test_state_contains_the_number_of_refinements():
    pool = Pool()
    pool.add(0.5)
    for score in (0.2, 1.0, None):
        pool.add(score, parent=0)
    pool.add(0.1, parent=3)
    states = [pool.strategy.state(node.id) for node in pool.nodes]
    assert states == ["refined 3x", "", "", "refined 1x", ""]


def test_options_are_parsed_and_validated():
    owners = [Owner("strategy", WorldCoder)]
    read = read_options(["prior_weight=2.5", "sequential=true"], owners)
    assert WorldCoder(**read["strategy"]) == WorldCoder(prior_weight=2.5, sequential=True)
    for wrong in ("prior_weight=-1", "prior_weight=inf", "sequential=perhaps"):
        with pytest.raises(CwmError, match="invalid option"):
            read_options([wrong], owners)


def test_largest_prior_weight_has_finite_samples():
    pool = Pool(WorldCoder(prior_weight=1e6))
    for score in (0.0, 0.5, 0.999):
        pool.add(score)
    assert pool.chances(draws=50) == pytest.approx([0, 0, 1])


def test_programs_without_a_completion_join_the_pool_but_do_not_count():
    pool = Pool()
    pool.add(0.2, asked=False)
    assert pool.strategy.select(np.random.default_rng(0), []) == pool.refinement(0)
    pool.add(0.9, parent=0, asked=False)
    assert [pool.strategy.state(number) for number in (0, 1)] == ["", ""]
    assert pool.chances() == near(sampled((2, 5), (5.5, 1.5)))
    pool.add(0.1, parent=0)
    assert pool.strategy.state(0) == "refined 1x"


def test_only_the_paper_preset_repeats_prompts():
    assert [WorldCoder(preset=name).repeats for name in ("default", "paper")] == [False, True]
