import csv
import json
import random
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm_apps.report import PUBLISHED, coding_report
from cwm_apps.scoring import ProblemOutcome, interval, pass_at, pass_at_k, summary


def outcome(
    number, passed=2, tests=4, difficulty="interview", public=(3, 3), **known
) -> ProblemOutcome:
    return ProblemOutcome(
        id=number,
        difficulty=difficulty,
        passed=passed,
        tests=tests,
        public_passed=public[0],
        public_tests=public[1],
        **known,
    )


def random_outcomes(count, seed=0) -> list[ProblemOutcome]:
    draws = random.Random(seed)
    levels = ("competition", "introductory", "interview", "olympiad")
    return [
        outcome(
            number,
            passed=draws.randint(0, 7),
            tests=7,
            difficulty=draws.choice(levels),
            completions=draws.randint(1, 20),
            cost=draws.random(),
            seconds=draws.random() * 100,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    "solved, low, high", [(8, 0.4902, 0.9433), (0, 0.0, 0.2775), (10, 0.7225, 1.0)]
)
def test_interval_of_a_share_is_wilson_interval(solved, low, high):
    found = interval([1.0] * solved + [0.0] * (10 - solved))
    assert found == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    "draw",
    [
        lambda draws: float(draws.random() < 0.28),
        lambda draws: draws.random(),
        lambda draws: draws.choice([0.0, 0.0, 1.0, draws.random()]),
        lambda draws: draws.betavariate(0.3, 0.9),
    ],
    ids=["solved or not", "any share", "all or nothing in most", "mostly little"],
)
@pytest.mark.parametrize("count", [12, 100])
def test_intervals_contain_true_mean_in_95_of_100_samples(draw, count):
    draws = random.Random(5)
    mean = fmean(draw(draws) for _ in range(50_000))
    found = [interval([draw(draws) for _ in range(count)]) for _ in range(1500)]
    assert fmean(low <= mean <= high for low, high in found) > 0.935
    assert all(0 <= low < high <= 1 for low, high in found)


def test_more_problems_narrow_the_interval():
    low, high = interval([0.0, 1.0] * 2000)
    assert high - low < 0.032
    assert interval([0.5] * 4000) == pytest.approx((low, high))


def test_solved_problem_needs_public_tests_too():
    assert outcome(0, passed=4).strict
    assert not outcome(0, passed=3).strict
    assert not outcome(0, passed=4, public=(2, 3)).strict


def test_problem_with_single_test_is_judged_by_it_and_counted():
    lone, failed = outcome(0, 0, 0, public=(1, 1)), outcome(1, 0, 0, public=(0, 1))
    assert (lone.strict, lone.share, lone.has_hidden) == (True, 1.0, False)
    assert (failed.strict, failed.share) == (False, 0.0)
    found = summary([lone, failed, outcome(2)])
    assert (found.no_hidden, found.solved) == (2, 1)
    assert found.test_case_average == pytest.approx(0.5)


def test_difficulties_are_ordered_and_sum_to_all():
    found = summary(random_outcomes(200))
    parts = found.by_difficulty
    assert list(parts) == ["introductory", "interview", "competition", "olympiad"]
    for name in ("problems", "solved", "completions", "no_hidden", "tokens"):
        assert sum(getattr(part, name) for part in parts.values()) == getattr(found, name)
    assert sum(part.cost for part in parts.values()) == pytest.approx(found.cost)


def test_unknown_cost_makes_sums_unknown():
    found = summary([outcome(0, cost=1.5), outcome(1, cost=None, difficulty="competition")])
    assert found.cost is None
    assert found.by_difficulty["interview"].cost == 1.5


@given(st.randoms(use_true_random=False), st.integers(0, 60))
def test_summary_ignores_order_and_split_of_outcomes(shuffler, cut):
    every = random_outcomes(60)
    whole = summary(every)
    shuffler.shuffle(every)
    halves = [*every[cut:], *every[:cut]]
    assert summary(halves) == whole == summary(every)


def test_summary_of_no_outcomes_has_no_accuracy():
    found = summary([])
    assert (found.problems, found.strict_accuracy, found.test_case_average_95) == (0, None, None)
    assert (found.cost, found.by_difficulty) == (0.0, {})


def test_pass_at_k_is_share_of_draws_with_a_right_program():
    for n in range(1, 8):
        for c in range(n + 1):
            programs = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                drawn = [any(some) for some in combinations(programs, k)]
                assert pass_at_k(n, c, k) == pytest.approx(fmean(drawn), abs=1e-15)
    assert pass_at_k(100_000, 1, 10) == 1e-4


@pytest.mark.parametrize("n, c, k", [(3, 1, 4), (3, 4, 1), (3, 1, 0), (3, -1, 1)])
def test_pass_at_k_rejects_more_programs_than_exist(n, c, k):
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(n, c, k)


def test_pass_at_k_counts_only_problems_with_k_programs():
    verdicts = [[True, False], [False], [False, False, False, True]]
    found = list(pass_at(verdicts, (1, 2, 4, 100)))
    assert [(one.k, one.problems) for one in found] == [(1, 3), (2, 2), (4, 1)]
    assert [one.value for one in found] == pytest.approx([(0.5 + 0.25) / 3, 0.75, 1.0])
    assert all(one.interval.low <= one.value <= one.interval.high for one in found)


def test_report_is_written_as_tables_and_json(tmp_path):
    every = random_outcomes(30)
    passes = tuple(pass_at([[True, False]], (1, 2)))
    skipped = {7: "no\ntests\x1b"}
    report = coding_report("a model", every, passes=passes, skipped=skipped, is_published=True)
    report.save(tmp_path)
    known = json.loads((tmp_path / "result.json").read_text())
    assert known["strict_accuracy"] == report.summary.strict_accuracy
    assert known["by_difficulty"]["interview"]["problems"] > 0
    assert (known["pass_at"][1]["k"], known["skipped"]) == (2, {"7": "no\ntests\x1b"})
    lines = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [int(line["id"]) for line in lines] == list(range(30))
    assert sum(line["solved"] == "True" for line in lines) == known["solved"]
    words = (tmp_path / "table.md").read_text()
    assert "| all | 30 |" in words
    assert "| pass@2 | 1.000 [" in words
    assert "- 7: no tests\ufffd" in words
    assert "| GIF-MCTS, Llama 3 70B | 20 | 0.283 |" in words


def test_published_figures_are_shown_only_on_request():
    report = coding_report("a model", random_outcomes(3))
    assert len(report.grids) == 1
    assert report.as_json()["published"] is None
    quoting = coding_report("a model", random_outcomes(3), is_published=True)
    assert len(quoting.as_json()["published"]["figures"]) == len(PUBLISHED)
    assert any("differ" in note and "tests" in note for note in quoting.notes)


def test_run_without_judgements_can_be_reported(tmp_path):
    coding_report("nothing", (), skipped={1: "no tests"}).save(tmp_path)
    assert json.loads((tmp_path / "result.json").read_text())["strict_accuracy"] is None
