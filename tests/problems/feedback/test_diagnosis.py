"""The diagnosis of wrong predictions, and the generated faults that measure it."""

import json

import numpy as np
import pytest

from benchmarks.faults import answers, faults, wrong
from benchmarks.faults.__main__ import holds_cause
from benchmarks.faults.generator import KINDS, MIN_WRONG_ROWS
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.feedback import diagnose, report
from cwm_cli.problems.feedback.separation import Quantity, separate, simplest

SOME_KINDS = ("clamp", "rule")


@pytest.fixture(scope="module")
def some_faults():
    return faults(5, SOME_KINDS)


class TestFaults:
    def test_the_seed_determines_the_faults(self):
        one, again, other = (faults(seed, ["order"]) for seed in (3, 3, 4))
        assert [fault.program for fault in one] == [fault.program for fault in again]
        assert [fault.dataset.digest for fault in one] == [fault.dataset.digest for fault in again]
        assert not {f.dataset.digest for f in one} & {f.dataset.digest for f in other}

    @pytest.mark.slow
    def test_a_fault_causes_mistakes_in_every_part_and_only_in_rows_of_its_guard(self, some_faults):
        assert len({fault.name for fault in some_faults}) == sum(KINDS[k] for k in SOME_KINDS)
        for fault in some_faults:
            train = fault.dataset.train
            for part in (train[train.fitted], fault.dataset.test):
                mistakes = wrong(fault.program, part)
                assert mistakes.sum() >= MIN_WRONG_ROWS, fault.name
                assert not (mistakes & ~fault.guard(part)).any(), fault.name
            assert fault.is_repaired_by(fault.truth)
            assert not fault.is_repaired_by(fault.program)


class TestConditions:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-2, 2, (2, 400))
    act = rng.integers(0, 3, 400)
    quantities = (Quantity("x", x), Quantity("y", y), Quantity("action", act, False, False))

    @pytest.mark.parametrize(
        ("target", "condition"),
        [
            (x > 0.5, "x > 0.5"),
            ((x > 0.5) & (act == 1), "x > 0.5 and action == 1"),
            ((x > -0.4) & (x < 0.9), "-0.4 < x < 0.9"),
            (act != 1, "action in (0, 2)"),
            ((x < -1.1) | (x > 0.7), "not -1.1 < x < 0.7"),
        ],
    )
    def test_a_condition_has_the_shortest_numbers_that_separate_the_rows(self, target, condition):
        assert separate(target, self.quantities).to_python(self.quantities) == condition

    @pytest.mark.parametrize(
        "target",
        [
            x + 0.7 * y > 0.9,
            (abs(x) < 1.1) & (y > -0.5) & (y < 1.2),
            (x - 0.6) ** 2 + (y + 0.4) ** 2 < 0.8,
            (x > -0.2) & (y < 0.3),
        ],
        ids=["half plane", "box", "disc", "corner"],
    )
    def test_regions_in_two_dimensions_are_found(self, target):
        found = separate(target, self.quantities).holds(self.quantities)
        assert (found == target).mean() > 0.98

    def test_random_rows_have_no_condition(self):
        for seed in range(10):
            target = np.random.default_rng([seed, 1]).random(400) < 0.3
            assert separate(target, self.quantities) is None, seed

    def test_the_simplest_number_between_two_numbers_has_the_fewest_digits(self):
        pairs = [(0.21, 0.26), (-3.0, 5.0), (99.2, 134.0), (0.98, 1.01), (1e-9, 2e-9)]
        assert [simplest(*pair) for pair in pairs] == [0.23, 0.0, 100.0, 1.0, 1.5e-9]


class TestDiagnosis:
    @pytest.mark.slow
    def test_the_first_group_contains_the_cause_of_most_faults(self, some_faults):
        missed = [fault.name for fault in some_faults if not holds_cause(fault)]
        assert len(missed) <= len(some_faults) / 10, missed

    def test_a_wrong_row_is_contrasted_with_the_most_similar_right_row(self):
        data = walk()
        guess = data.select("next_observations", "rewards", "terminations")
        wrong_rows = (data.columns["observations"] == 7) & (data.columns["actions"] == 1)
        guess["next_observations"] = np.where(wrong_rows, 0, guess["next_observations"])
        found = diagnose(data, guess, AccuracyMetric.of(data))
        group = found.groups[0]
        assert group.condition == "observation == 7 and action == 1"
        assert group.wrong == group.rows == wrong_rows.sum()
        wrong_row, right_row, differs = group.contrast
        assert wrong_rows[wrong_row]
        assert not wrong_rows[right_row]
        assert differs in (("action",), ("observation",))
        text = report(data, guess, AccuracyMetric.of(data))
        assert "predicted rightly" in text
        assert "integrator" not in text

    def test_each_missed_kind_of_end_and_reward_has_an_example_and_a_rule(self):
        data = walk()
        guess = data.select("next_observations") | {
            "rewards": np.full(len(data), -1.0),
            "terminations": data.columns["observations"] == 5,
        }
        found = diagnose(data, guess, AccuracyMetric.of(data))
        kinds = {(kind.part, kind.recorded, kind.predicted) for kind in found.kinds}
        assert kinds == {
            ("terminated", 1.0, 0.0),
            ("terminated", 0.0, 1.0),
            ("reward", 10.0, -1.0),
            ("reward", -5.0, -1.0),
        }
        rules = {rule.outcome: rule.condition for rule in found.rules}
        assert rules["the episode ends"] == "next_observation == 9"
        assert rules["the reward is -5.0"] == "next_observation == 2"
        text = report(data, guess, AccuracyMetric.of(data))
        assert "terminated        recorded  True, predicted False" in text
        assert "terminated        recorded  False, predicted True" in text
        assert "reward            recorded  -5.0, predicted -1.0" in text
        assert "reward            recorded  10.0, predicted -1.0" in text
        json.dumps(found.as_json(), allow_nan=False)

    def test_the_best_score_predicts_the_most_frequent_outcome(self):
        space = Space("discrete", low=(0,), high=(1,))
        rows = [Transition(0, 0, int(n % 4 == 0), 0.0, False) for n in range(40)]
        data = Dataset.of(rows, observation_space=space, action_space=space)
        guess = data.select("rewards", "terminations") | {"next_observations": np.ones(40, int)}
        found = diagnose(data, guess, AccuracyMetric.of(data))
        assert found.best_score == pytest.approx(1 - 0.25 / 3)

    @pytest.mark.slow
    def test_a_diagnosis_is_deterministic(self, some_faults):
        fault = some_faults[-1]
        rows = fault.dataset.train
        texts = {report(rows, answers(fault.program, rows), fault.metric) for _ in "ab"}
        assert len(texts) == 1


def walk():
    """Record a random walk from 0 to 9: at 9 it ends with reward 10, at 2 the reward is -5."""
    rng = np.random.default_rng(0)
    place, rows = 4, []
    for _ in range(400):
        action = int(rng.integers(2))
        after = max(place + 2 * action - 1, 0)
        reward = {9: 10.0, 2: -5.0}.get(after, -1.0)
        rows.append(Transition(place, action, after, reward, after == 9))
        place = int(rng.integers(1, 9)) if after == 9 else after
    return Dataset.of(
        rows,
        observation_space=Space("discrete", low=(0,), high=(9,)),
        action_space=Space("discrete", low=(0,), high=(1,)),
    )
