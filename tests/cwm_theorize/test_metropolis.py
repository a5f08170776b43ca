"""Search strategies for rules: chains visit each rule in proportion to its likelihood."""

from collections import Counter
from math import log

import numpy as np
import pytest

from cwm_cli.data.dataset import Transition
from cwm_cli.envs.text_view import Change, TextView
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import EVIDENCE, GENERATE, ROOT, Backend, Completion, Request
from cwm_cli.search.loop import Search
from cwm_theorize.problem import TheoryProblem
from cwm_theorize.statistician import Statistician
from cwm_theorize.theories.strategies import BestOf, Importance, Metropolis
from cwm_theorize.theories.symbolic import Symbolic

COLOURS, SIZES = ("red", "green", "blue"), ("small", "large")


class KeyWords(TextView):
    """A key with a number from 0 to 5, and a door that opens or stays closed."""

    kinds = ("opened", "closed")
    vocabulary = {"colour": COLOURS, "size": SIZES}  # noqa: RUF012
    conclusions = {"opened": {}, "closed": {}}  # noqa: RUF012

    def guide(self):
        return "You hold a key up to a door."

    def state(self, observation):
        return f"You see a {SIZES[observation // 3]} {COLOURS[observation % 3]} key."

    def action(self, observation, action):
        return "You hold it up."

    def facts(self, observation, action):
        return {"colour": COLOURS[observation % 3], "size": SIZES[observation // 3]}

    def change(self, row):
        return self.candidates(row.observation)[row.next_observation]

    def candidates(self, observation):
        return [Change("The door opens.", "opened"), Change("The door stays closed.", "closed")]


def recorded(*keys):
    """Return rows of keys; all keys except the blue ones opened the door."""
    return [
        Transition(key, 0, int(key % 3 == 2), 0.0, True, episode=n) for n, key in enumerate(keys)
    ]


RULES = (
    "If colour is blue, then closed.\nOtherwise, opened.",
    "If colour is red, then closed.\nOtherwise, opened.",
    "If size is large, then closed.\nOtherwise, opened.",
    "Always, opened.",
    "Always, closed.",
)
FIRST = np.array([0.4, 0.1, 0.1, 0.1, 0.3])
"""The probability that each rule is proposed without a current rule."""

NEXT = np.array(
    [
        [0.05, 0.30, 0.10, 0.10, 0.45],
        [0.10, 0.10, 0.10, 0.20, 0.50],
        [0.15, 0.10, 0.05, 0.10, 0.60],
        [0.05, 0.05, 0.20, 0.10, 0.60],
        [0.10, 0.10, 0.10, 0.20, 0.50],
    ]
)
"""The probability that each rule (columns) is proposed from each rule (rows); most pairs of
rules are asymmetric."""


class Theorist(Backend):
    """Proposes one of the five rules with a known probability."""

    can_score = True

    def complete(self, request):
        chances = self._chances(request)
        place = np.random.default_rng(request.seed).choice(len(RULES), p=chances)
        return Completion(RULES[place], log_probability=log(chances[place]))

    def score(self, requests):
        return [[log(self._chances(each.question)[RULES.index(each.text)])] for each in requests]

    def _chances(self, request):
        assert isinstance(request, Request)
        return NEXT[RULES.index(request.move.program)] if request.move.program else FIRST


def run_search(strategy, steps, *, seed=0, noise=0.8, keys=(0, 1, 2, 3, 4, 5), parallel=1):
    problem = TheoryProblem(Statistician(KeyWords(), Symbolic(noise=noise)), simplicity=0)
    problem.observe(recorded(*keys))
    search = Search(problem, strategy, Theorist(), seed=seed, parallel=parallel)
    for _ in search.run(steps):
        pass
    return search


def likelihoods(keys=(0, 1, 2, 3, 4, 5), noise=0.8):
    """Return L of the five rules, computed from its definition."""
    said = [
        lambda key: key % 3 == 2,
        lambda key: key % 3 == 0,
        lambda key: key >= 3,
        lambda key: False,
        lambda key: True,
    ]
    right, wrong = log(1 - noise + noise / 2), log(noise / 2)
    return np.array(
        [sum(right if says(key) == (key % 3 == 2) else wrong for key in keys) for says in said]
    )


def posterior(**about):
    weights = np.exp(likelihoods(**about))
    return weights / weights.sum()


def visit_frequencies(search):
    """Return how often a chain was at each rule, counted after each proposal."""
    chain, counts = Metropolis(hastings=search.strategy.hastings), np.zeros(len(RULES))
    for node in search.nodes:
        chain.update(node)
        (place,) = chain.held()
        counts[RULES.index(search.nodes[place].program)] += 1
    return counts / counts.sum()


def total_variation(shares, others):
    """Return the total variation between two distributions."""
    return float(np.abs(shares - others).sum() / 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "bound"),
    [
        (1000, 0.1),
        pytest.param(6000, 0.05, marks=pytest.mark.long),
        pytest.param(50_000, 0.02, marks=pytest.mark.long),
    ],
)
def test_hastings_chain_samples_the_posterior(steps, bound):
    assert (
        total_variation(
            visit_frequencies(run_search(Metropolis(hastings=True), steps)), posterior()
        )
        < bound
    )


def test_uncorrected_chain_differs_from_the_posterior():
    assert total_variation(visit_frequencies(run_search(Metropolis(), 800)), posterior()) > 0.15


@pytest.mark.parametrize("hastings", [False, True])
def test_particle_moves_by_published_formula_with_its_own_draws(hastings):
    search = run_search(Metropolis(particles=2, hastings=hastings), 60)
    known, at = dict(zip(RULES, likelihoods(), strict=True)), {}
    for node in search.nodes:
        if node.parent == ROOT:
            at[node.id] = node.id
            continue
        particle = next(first for first, place in at.items() if place == node.parent)
        before = RULES.index(search.nodes[node.parent].program)
        weight = known[node.program] - known[RULES[before]]
        if hastings:
            after = RULES.index(node.program)
            weight += log(NEXT[after, before]) - log(NEXT[before, after])
        draw = np.random.default_rng([node.seed, 1]).random()
        moves = log(1 - draw) < weight
        assert (search.strategy.state(node.id) != "rejected") == moves
        at[particle] = node.id if moves else node.parent
    assert sorted(at.values()) == list(search.strategy.held())
    assert search.strategy.accepted == sum(
        search.strategy.state(node.id).startswith(("accepted", "held")) for node in search.nodes
    ) - len({*at} - {*at.values()})


def test_particles_take_turns_with_one_pending_proposal_each():
    search = run_search(Metropolis(particles=3), 60)
    assert [node.parent for node in search.nodes[:3]] == [ROOT] * 3
    moved = run_search(Metropolis(particles=3), 61, parallel=3)
    passed = [node.id for node in moved.nodes if moved.strategy.state(node.id) == "passed over"]
    assert not passed
    hasty = run_search(Metropolis(particles=1), 60, parallel=3)
    for node in hasty.nodes:
        if hasty.strategy.state(node.id) == "passed over":
            assert node.parent == ROOT or node.parent not in hasty.strategy.held()


class Mute(Theorist):
    """Gives empty answers at first."""

    def complete(self, request):
        return Completion("") if request.step < 2 else super().complete(request)


def test_particle_starts_at_first_scorable_rules():
    problem = TheoryProblem(Statistician(KeyWords(), Symbolic()), simplicity=0)
    problem.observe(recorded(0, 2))
    search = Search(problem, Metropolis(), Mute())
    assert [record.node.action for record in search.run(4)][:3] == [GENERATE] * 3
    assert search.nodes[2].id in search.strategy.held() or search.strategy.accepted


PHASES = ((0, 2), (1, 5), (3, 4))


def search_in_phases(strategy, *, seed=3, known=()):
    """Search in three phases, or continue from the nodes of an interrupted search."""
    problem = TheoryProblem(Statistician(KeyWords(), Symbolic(noise=0.8)), simplicity=0)
    search, left = Search(problem, strategy, Theorist(), seed=seed), list(known)
    for number, keys in enumerate(PHASES, 1):
        problem.observe(recorded(*keys))
        search.outdate()
        while left and search.completions < 8 * number:
            search.resume([left.pop(0)])
        if not left:
            list(search.renew())
            list(search.run(8 * number))
    return search


@pytest.mark.parametrize("make", [lambda: Metropolis(particles=2, hastings=True), Importance])
def test_interrupted_search_continues_identically(make):
    whole = search_in_phases(make())
    assert sum(node.action == EVIDENCE for node in whole.nodes) >= 4
    for cut in range(0, len(whole.nodes), 3):
        again = search_in_phases(make(), known=whole.nodes[:cut])
        assert again.nodes == whole.nodes, f"another search after {cut} nodes"
        assert again.strategy.held() == whole.strategy.held()
        assert again.strategy.accepted == whole.strategy.accepted


def test_new_evidence_rescores_current_and_best_rules():
    search = search_in_phases(Metropolis(particles=2))
    for phase in (1, 2):
        keys = [key for keys in PHASES[: phase + 1] for key in keys]
        known = dict(zip(RULES, likelihoods(keys=keys), strict=True))
        nodes = [n for n in search.nodes if n.action == EVIDENCE and n.step < 8 * phase]
        for node in nodes[-3:] if phase == 2 else []:
            assert node.verdict.log_likelihood == pytest.approx(known[node.program])
    assert search.best.program == RULES[int(np.argmax(likelihoods()))]


def weights_by_rules(strategy, nodes):
    """Return the total weight of each rule."""
    shares = Counter()
    for place, weight in strategy.weights.items():
        shares[nodes[place].program] += weight
    return np.array([shares[rules] for rules in RULES])


def test_importance_weights_correct_for_proposal_probabilities():
    search = run_search(Importance(), 400)
    expected = np.exp(likelihoods()) / FIRST
    drawn = Counter(node.program for node in search.nodes)
    shares = np.array([drawn[rules] for rules in RULES]) * expected
    np.testing.assert_allclose(
        weights_by_rules(search.strategy, search.nodes), shares / shares.sum()
    )
    assert total_variation(weights_by_rules(search.strategy, search.nodes), posterior()) < 0.03


@pytest.mark.parametrize("resampling", ["systematic", "multinomial"])
def test_resampling_keeps_distribution_and_reweights_on_new_evidence(resampling):
    problem = TheoryProblem(Statistician(KeyWords(), Symbolic(noise=0.8)), simplicity=0)
    problem.observe(recorded(0, 2))
    strategy = Importance(particles=200, resampling=resampling)
    search = Search(problem, strategy, Theorist())
    list(search.run(300))
    before = weights_by_rules(strategy, search.nodes)
    problem.observe(recorded(1, 3, 4, 5))
    search.outdate()
    list(search.renew())
    assert len(strategy.weights) <= 200
    assert set(strategy.weights) <= {n.id for n in search.nodes if n.action == EVIDENCE}
    grown = before * np.exp(likelihoods() - likelihoods(keys=(0, 2)))
    close = 0.03 if resampling == "systematic" else 0.1
    assert total_variation(weights_by_rules(strategy, search.nodes), grown / grown.sum()) < close
    list(search.run(600))
    assert total_variation(weights_by_rules(strategy, search.nodes), posterior()) < 0.05


def test_hastings_rejects_theorist_without_probabilities():
    class Silent(Theorist):
        can_score = False

        def complete(self, request):
            return super().complete(request)._replace(log_probability=None)

    problem = TheoryProblem(Statistician(KeyWords(), Symbolic()), simplicity=0)
    with pytest.raises(CwmError, match="log-probabilities") as refused:
        Search(problem, Metropolis(hastings=True), Silent())
    assert len(str(refused.value).splitlines()) == 1
    assert len(Search(problem, Metropolis(), Silent()).nodes) == 0


class Chatty(Theorist):
    """Adds text around the rules."""

    def complete(self, request):
        answer = super().complete(request)
        text = f"Of course! Here they are:\n```\n{answer.text}\n```"
        return answer._replace(text=text, log_probability=-100.0)


@pytest.mark.parametrize("strategy", [Metropolis(hastings=True), Importance()])
def test_text_around_rules_does_not_change_their_probability(strategy):
    problem = TheoryProblem(Statistician(KeyWords(), Symbolic(noise=0.8)), simplicity=0)
    problem.observe(recorded(0, 2))
    search = Search(problem, strategy, Chatty())
    for node in (record.node for record in search.run(12)):
        given = NEXT[RULES.index(search.nodes[node.parent].program)] if node.parent >= 0 else FIRST
        assert node.forward == pytest.approx(log(given[RULES.index(node.program)]))


def test_best_of_forgets_earlier_best_only_with_paper_preset():
    for preset, kept in (("default", True), ("paper", False)):
        search = search_in_phases(BestOf(preset=preset))
        last = [node for node in search.nodes if node.asked][-8:]
        best = max(node.verdict.log_likelihood for node in last)
        assert search.best.verdict.log_likelihood >= best
        assert any(node.action == EVIDENCE for node in search.nodes) == kept
