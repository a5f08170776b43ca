"""Metrics on small data, compared with handwritten scores."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric, Matches, PaperMetric, close, match
from recordings import COUNTER, MOVES, POINT, dataset, predictions, truth


class TestTolerance:
    @pytest.mark.parametrize(
        ("predicted", "target", "right"),
        [
            (1.0, 1.0, True),
            (0.0000099, 0.0, True),
            (0.0000101, 0.0, False),
            (1000.01, 1000.0, True),
            (1000.02, 1000.0, False),
            (np.nan, 0.0, False),
            (np.nan, np.nan, False),
            (np.inf, 0.0, False),
            (np.inf, np.inf, False),
            (1.0, np.inf, False),
            (1e308, -1e308, False),
        ],
    )
    def test_close_has_absolute_and_relative_tolerance_of_1e_5(self, predicted, target, right):
        assert close(np.array([predicted]), np.array([target])).tolist() == [right]

    def test_close_compares_float32_data_in_double_precision(self):
        target = np.array([16777216.0], dtype=np.float32)
        assert close(np.array([16777216.0 + 160]), target).all()
        assert not close(np.array([16777216.0 + 170]), target).any()


class TestParts:
    def test_observation_scores_the_share_of_its_components(self):
        data = dataset([([1.0, 2.0], [3.0, 4.0], 0, False)], POINT)
        matches = match(predictions(data, next_observations=[[3.0, 5.0]]), data)
        assert matches.observation.tolist() == [0.5]

    def test_tuple_scores_the_unweighted_mean_over_its_leaves(self):
        space = Space("tuple", children=(POINT, COUNTER, Space("text", max_length=9)))
        before = ([0.0, 0.0], 0, "")
        data = dataset([(before, ([1.0, 2.0], 3, "up"), 0, False)], space)
        said = truth(data) | {
            "next_observations.0": np.array([[1.0, 9.0]]),
            "next_observations.2": np.array(["down"]),
        }
        assert match(said, data).observation.tolist() == [(0.5 + 1 + 0) / 3]

    def test_row_before_the_end_scores_the_mean_of_three_parts(self):
        data = dataset([(1, 2, 0, False)])
        wrong = match(predictions(data, next_observations=[3]), data)
        assert wrong.losses(data.columns["terminations"]).tolist() == [1 / 3]

    def test_terminal_observation_does_not_count(self):
        data = dataset([(1, 2, 0, True)])
        score = AccuracyMetric.of(data).score(predictions(data, next_observations=[50]), data)
        assert (score.accuracy, score.exact, score.observation) == (1.0, 1.0, None)

    def test_valid_actions_are_a_fourth_part_before_the_end(self):
        wrong, right = np.zeros(2), np.ones(2)
        matches = Matches(right, right, right, wrong)
        assert matches.losses(np.array([False, True])).tolist() == [0.25, 0.0]

    def test_terminal_row_scores_the_mean_of_reward_and_termination(self):
        data = dataset([(1, 2, 0, True)])
        score = AccuracyMetric.of(data).score(predictions(data, terminations=[False]), data)
        assert (score.accuracy, score.reward, score.terminated, score.exact) == (0.5, 1, 0, 0)

    def test_parts_are_unweighted_means_and_observations_exclude_terminal_rows(self):
        data = dataset([(1, 2, 0, False), (2, 3, 0, False), (3, 4, 0, False), (4, 5, 9, True)])
        said = predictions(data, next_observations=[2, 9, 9, 9], rewards=[0, 0, 0, 0])
        score = AccuracyMetric.of(data).score(said, data)
        assert score.observation == pytest.approx(1 / 3)
        assert (score.reward, score.terminated, score.exact) == (0.75, 1.0, 0.25)
        assert score.transitions == 4


class TestWeights:
    def test_each_reward_has_the_same_total_weight(self):
        data = dataset([(1, 1, 0, False)] * 9 + [(1, 1, 1, False)])
        said = predictions(data, next_observations=[1] * 9 + [2])
        assert AccuracyMetric.of(data).score(said, data).accuracy == pytest.approx(1 - 1 / 2 / 3)

    def test_rewards_within_the_tolerance_are_one_class(self):
        rewards = [0.1 + 0.2, 0.3, 0.300001, 5.0]
        metric = AccuracyMetric.of(dataset([(1, 1, reward, False) for reward in rewards]))
        assert metric.counts == (3, 1)
        assert metric.most_common_reward == pytest.approx(0.3, abs=1e-5)

    def test_unseen_reward_weighs_as_much_as_the_rarest_one(self):
        train = dataset([(1, 1, 0, False)] * 8 + [(1, 1, 1, False)] * 2)
        held_out = dataset([(1, 1, 0, False), (1, 1, 1, False), (1, 1, 7, False)])
        assert AccuracyMetric.of(train).weights(held_out).tolist() == [1 / 8, 1 / 2, 1 / 2]

    def test_held_out_rows_have_the_weights_of_the_train_rows(self):
        train = dataset([(1, 1, 0, False)] * 3 + [(1, 1, 1, False)])
        held_out = dataset([(1, 1, 0, False), (1, 1, 1, False)])
        said = predictions(held_out, next_observations=[1, 5])
        expected = 1 - (1 / 3) / (1 / 3 + 1)
        assert AccuracyMetric.of(train).score(said, held_out).accuracy == pytest.approx(expected)

    @pytest.mark.parametrize(("distinct", "equal"), [(20, False), (21, True)])
    def test_rows_weigh_equally_with_more_than_twenty_rewards(self, distinct, equal):
        data = dataset([(1, 1, 0, False)] * 5 + [(1, 1, n, False) for n in range(distinct)])
        weights = AccuracyMetric.of(data).weights(data)
        assert (len(set(weights.tolist())) == 1) is equal

    def test_metric_needs_train_rows(self):
        with pytest.raises(CwmError, match="no train rows"):
            AccuracyMetric.of(dataset([]))


class TestFloor:
    def test_floor_is_the_score_of_the_baseline(self):
        data = dataset([(1, 1, 0, False), (1, 2, 0, False), (2, 3, 1, True)])
        score = AccuracyMetric.of(data).score(truth(data), data)
        # classes 0 (two rows, half the weight) and 1 (one row, the other half)
        assert score.floor == pytest.approx(0.25 * 1 + 0.25 * 2 / 3 + 0.5 * 0)
        assert score.normalised == 1.0

    def test_reward_of_the_baseline_comes_from_the_train_rows(self):
        train = dataset([(1, 1, 0, False)] * 3 + [(1, 1, 1, False)])
        held_out = dataset([(1, 1, 1, False)])
        assert AccuracyMetric.of(train).score(truth(held_out), held_out).floor == pytest.approx(
            2 / 3
        )

    def test_normalised_is_null_if_the_floor_is_one(self):
        data = dataset([(1, 1, 0, False)] * 3)
        score = AccuracyMetric.of(data).score(predictions(data, rewards=[1, 1, 1]), data)
        assert (score.floor, score.normalised) == (1.0, None)

    def test_program_below_the_floor_has_a_negative_normalised_score(self):
        data = dataset([(1, 1, 0, False), (1, 2, 0, False)])
        score = AccuracyMetric.of(data).failed(data)
        assert score.accuracy == 0.0
        assert score.normalised == pytest.approx(-score.floor / (1 - score.floor))


class TestPaper:
    def test_exact_model_loses_rewards_that_float32_rounds(self):
        data = dataset([(1, 2, 0.1, False), (1, 2, 0.5, False)])
        score = PaperMetric.of(data).score(truth(data), data)
        assert score.accuracy == 1.0
        assert score.paper == pytest.approx((2 / 3 + 1) / 2)
        assert score.value == score.paper
        assert not score.refuted

    def test_time_limit_is_not_an_end(self):
        data = dataset([(1, 2, 0, False, True), (1, 2, 0, True, False)])
        score = PaperMetric.of(data).score(truth(data), data)
        assert (score.accuracy, score.paper) == (1.0, 1.0)

    def test_time_limit_in_the_dones_of_a_file_is_an_end(self):
        data = dataset([(1, 2, 0, False, True), (1, 2, 0, False, False)])
        data = replace(data, columns=data.columns | {"dones": np.array([True, False])})
        score = PaperMetric.of(data).score(truth(data), data)
        assert (score.accuracy, score.paper) == (1.0, 0.75)

    def test_element_of_a_tuple_is_correct_only_as_a_whole(self):
        word = Space("text", max_length=9)
        row = Space("tuple", children=(word, word, word))
        space = Space("tuple", children=(Space("tuple", children=(row, row)), word))
        board = (("you", "axe", "wall"), ("wall", "wall", "wall"))
        data = dataset([((board, "axe"), (board, "axe"), 0, False)], space)
        for name, share in (("next_observations.0.1.2", 1 / 2), ("next_observations.1", 1 / 2)):
            said = truth(data) | {name: np.array(["empty"])}
            score = PaperMetric.of(data).score(said, data)
            assert score.paper == pytest.approx((share + 1 + 1) / 3)
        assert PaperMetric.of(data).score(truth(data), data).paper == 1.0

    def test_vector_scores_the_share_of_its_components_as_published(self):
        data = dataset([([1.0, 2.0], [3.0, 4.0], 0, False)], POINT)
        said = predictions(data, next_observations=[[3.0, 5.0]])
        assert PaperMetric.of(data).score(said, data).paper == pytest.approx((0.5 + 1 + 1) / 3)

    def test_each_exact_reward_has_the_same_total_weight_as_published(self):
        data = dataset([(1, 2, 0, False)] * 30 + [(1, 2, n, False) for n in range(1, 31)])
        said = predictions(data, next_observations=[3] * 30 + [2] * 30)
        score = PaperMetric.of(data).score(said, data)
        assert score.accuracy == pytest.approx(1 - 1 / 2 / 3)
        assert score.paper == pytest.approx(1 - 1 / 31 / 3)

    def test_description_of_the_published_score_covers_many_rewards(self):
        data = dataset([(1, 2, n // 2, False) for n in range(60)])
        assert "All transitions weigh the same" in AccuracyMetric.of(data).words(data)
        assert "Every exact value" in PaperMetric.of(data).words(data)

    def test_only_the_published_metric_writes_the_published_score(self):
        data = dataset([(1, 2, 0, False)])
        keys = ["accuracy", "observation", "reward", "terminated", "exact", "floor"]
        plain = AccuracyMetric.of(data).score(truth(data), data).model_dump()
        assert [*plain] == [*keys, "normalised", "transitions", "weighed"]
        assert "paper" in json.loads(
            PaperMetric.of(data).score(truth(data), data).model_dump_json()
        )


floats = st.floats(-1e6, 1e6, width=32)


@st.composite
def random_datasets(draw):
    """Generate transitions of a dict of real numbers, whole numbers and text."""
    rows = draw(st.integers(1, 30))
    point = replace(POINT, dtype="float32")
    space = Space("dict", keys=("a.b", "c"), children=(point, COUNTER))
    flags = arrays(np.bool_, rows)
    columns = {
        "observations.a%2Eb": draw(arrays(np.float32, (rows, 2), elements=floats)),
        "observations.c": draw(arrays(np.int64, rows, elements=st.integers(0, 9))),
        "next_observations.a%2Eb": draw(arrays(np.float32, (rows, 2), elements=floats)),
        "next_observations.c": draw(arrays(np.int64, rows, elements=st.integers(0, 9))),
        "actions": np.zeros(rows, dtype=np.int64),
        "rewards": draw(arrays(np.float64, rows, elements=floats)),
        "terminations": draw(flags),
        "truncations": draw(flags),
        "episodes": np.arange(rows) // 3,
        "split": np.zeros(rows, dtype=np.int8),
    }
    return Dataset(columns, space, MOVES)


unhurried = settings(max_examples=40, deadline=None)


class TestForAllData:
    @unhurried
    @given(random_datasets())
    def test_perfect_predictions_score_exactly_one(self, data):
        score = AccuracyMetric.of(data).score(truth(data), data)
        assert (score.accuracy, score.exact, score.reward, score.terminated) == (1, 1, 1, 1)
        assert score.observation in (1.0, None)

    @unhurried
    @given(random_datasets(), random_datasets())
    def test_scores_are_between_zero_and_one(self, data, other):
        rows = np.arange(len(data)) % len(other)
        said = truth(other[rows])
        score = PaperMetric.of(other).score(said, data)
        assert score.weighed is not None
        parts = score.weighed.values()
        assert sum(one.right * one.weight for one in parts) == pytest.approx(score.accuracy)
        assert sum(one.weight for one in parts) == pytest.approx(1.0)
        besides = {"normalised", "transitions", "observation", "weighed"}
        shares = score.model_dump(exclude=besides)
        assert all(0.0 <= share <= 1.0 for share in shares.values())

    @unhurried
    @given(random_datasets(), st.data())
    def test_every_counted_error_reduces_the_score(self, data, choose):
        row = choose.draw(st.integers(0, len(data) - 1))
        ends = data.columns["terminations"].copy()
        ends[row] = ~ends[row]
        score = AccuracyMetric.of(data).score(truth(data) | {"terminations": ends}, data)
        assert score.accuracy < 1.0
        assert score.exact < 1.0

    @unhurried
    @given(random_datasets(), st.integers(0, 99))
    def test_the_order_of_rows_does_not_matter(self, data, seed):
        order = np.random.default_rng(seed).permutation(len(data))
        metric, said = AccuracyMetric.of(data), truth(data[np.roll(np.arange(len(data)), 1)])
        score = metric.score(said, data)
        shuffled = metric.score({name: c[order] for name, c in said.items()}, data[order])
        assert shuffled.accuracy == pytest.approx(score.accuracy)
        assert shuffled.floor == pytest.approx(score.floor)
