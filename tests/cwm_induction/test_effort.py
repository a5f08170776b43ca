"""Searches that several attempts make alike are made once and charged every time."""

import numpy as np

from cwm_induction.effort import Effort

COST = 100e6


class Search:
    """Spends effort and random numbers on an answer, and counts how often."""

    def __init__(self, rng):
        self.rng, self.times = rng, 0

    def __call__(self, share):
        self.times += 1
        answer = self.rng.integers(1_000, size=3).tolist()
        return answer if share.spend(COST) and share.spend(COST) else "cut short"


def searched(effort, asked="who", seed=0, fraction=0.5):
    """Return the number of searches, the answer, the remaining effort and a random number."""
    rng = np.random.default_rng(seed)
    search = Search(rng)
    answer = effort.share(fraction).once(asked, rng, search)
    return search.times, answer, effort.units, int(rng.integers(10**9))


def test_a_search_that_was_made_is_charged_again_but_not_made_again():
    effort = Effort(1_000, 60)
    first, second = searched(effort), searched(effort)
    assert [first[0], second[0]] == [1, 0]
    assert second[1] == first[1] and second[3] == first[3]
    assert [first[2], second[2]] == [800, 600]


def test_what_is_asked_otherwise_is_searched_for():
    effort = Effort(1_000, 60)
    searched(effort)
    assert searched(effort, asked="what")[0] == 1
    assert searched(effort, seed=1)[0] == 1


def test_the_parts_of_an_effort_know_what_it_found_and_another_effort_does_not():
    effort = Effort(4_000, 60)
    searched(effort)
    assert searched(effort.part(2))[0] == 0
    assert searched(effort.alone())[0] == 0
    assert searched(Effort(4_000, 60))[0] == 1


def test_an_answer_is_not_taken_where_the_search_would_have_been_cut_short():
    effort = Effort(1_000, 60)
    searched(effort)
    times, answer, *_ = searched(effort, fraction=0.1)
    assert times == 1 and answer == "cut short"


def test_a_search_that_was_cut_short_is_made_again():
    effort = Effort(1_000, 60)
    assert searched(effort, fraction=0.15)[1] == "cut short"
    assert searched(effort)[0] == 1
