"""Noise levels that are estimated from rows alone, and the residuals of programs."""

from dataclasses import replace

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.evaluation.explained import ExplainedMetric
from cwm_cli.evaluation.noise import noise_levels, rounding_unit
from cwm_cli.evaluation.residuals import component_scores
from cwm_cli.evaluation.verdicts import score_words
from cwm_cli.worlds import Predictions


def recorded(states: np.ndarray, actions: np.ndarray, episodes: int = 5) -> Dataset:
    """Return observations (rows + 1, components) with actions as episodes of equal length."""
    count, size = len(actions), states.shape[1]
    episode = np.arange(count) * episodes // count
    columns = {
        "observations": states[:-1],
        "actions": actions,
        "next_observations": states[1:],
        "rewards": np.zeros(count),
        "terminations": np.zeros(count, bool),
        "truncations": np.append(episode[1:] != episode[:-1], True),
        "episodes": episode,
        "split": np.where(episode == episodes - 1, 1, 0).astype(np.int8),
    }
    bound = (1e6,) * size
    space = Space("box", "float64", (size,), tuple(-b for b in bound), bound)
    names = [[f"part_{number}"] for number in range(size)]
    metadata = {"env": "data/test", "env_args": {"observed": names}}
    return Dataset(columns, space, Space("discrete", low=(0,), high=(1,)), metadata)


def linear(process: float, sensor: float, rows: int = 1500) -> Dataset:
    """Return rows of two coupled linear components with normal noise of the process and sensors."""
    rng = np.random.default_rng(0)
    actions, state = rng.integers(0, 2, rows), np.zeros((rows + 1, 2))
    matrix = np.array([[0.9, 0.1], [-0.2, 0.8]])
    for row, action in enumerate(actions):
        drive = np.array([action - 0.5, 0.0])
        state[row + 1] = matrix @ state[row] + drive + process * rng.standard_normal(2)
    return recorded(state + sensor * rng.standard_normal(state.shape), actions)


def test_noise_of_a_process_is_estimated_within_a_tenth() -> None:
    levels = noise_levels(linear(0.2, 0.0))
    assert [levels[number].level for number in (0, 1)] == pytest.approx([0.2, 0.2], rel=0.1)
    assert all(level.is_noisy for level in levels.values())


def test_earlier_rows_lower_the_noise_of_sensors() -> None:
    level = noise_levels(linear(0.02, 0.3))[0]
    assert level.window > 0
    assert level.level < 0.9 * level.plain


def test_exact_rows_have_no_noise() -> None:
    assert not any(level.is_noisy for level in noise_levels(linear(0.0, 0.0)).values())


@pytest.mark.parametrize(("digits", "unit"), [(0, 1.0), (2, 0.01), (4, 1e-4)])
def test_rounding_unit_is_the_last_digit(digits: int, unit: float) -> None:
    values = np.round(np.random.default_rng(0).normal(0, 30, 500), digits)
    assert rounding_unit(values) == unit


def test_numbers_with_all_digits_are_not_rounded() -> None:
    assert rounding_unit(np.random.default_rng(0).normal(0, 30, 500)) == 0


MATRIX = np.array([[0.9, 0.1], [-0.2, 0.8]])


def predicted(rows: Dataset, *, law: bool) -> dict[str, np.ndarray]:
    """Return the predictions of the true law of `linear`, or of "nothing changes"."""
    before, actions = rows.columns["observations"], rows.columns["actions"]
    drive = np.stack([actions - 0.5, 0.0 * actions], axis=1)
    after = before @ MATRIX.T + drive if law else before
    count = len(rows)
    return {
        "next_observations": after,
        "rewards": np.zeros(count),
        "terminations": np.zeros(count, bool),
    }


@pytest.mark.parametrize(("process", "sensor"), [(0.2, 0.0), (0.1, 0.05), (0.02, 0.3)])
def test_true_law_explains_all_but_noise(process: float, sensor: float) -> None:
    rows = linear(process, sensor)
    levels = noise_levels(rows.train)
    for part in (rows.train, rows.test):
        scores = component_scores(predicted(part, law=True), part, levels)
        assert all(score.is_explained and not score.exact for score in scores)


@pytest.mark.parametrize(("process", "sensor"), [(0.2, 0.0), (0.1, 0.05), (0.02, 0.3), (0.0, 0.0)])
def test_persistence_does_not_explain_an_action(process: float, sensor: float) -> None:
    rows = linear(process, sensor)
    level, _ = component_scores(predicted(rows, law=False), rows, noise_levels(rows.train))
    assert level.explained == 0
    assert not level.is_explained
    assert "the action" in level.depends_on


def test_constant_offset_is_found() -> None:
    rows = linear(0.2, 0.0)
    found = predicted(rows, law=True)
    found["next_observations"] = found["next_observations"] + 0.06
    level, _ = component_scores(found, rows, noise_levels(rows))
    assert level.depends_on == ("a constant offset",)


def test_noisy_labels_are_explained_at_their_error_rate() -> None:
    rows = linear(0.1, 0.0)
    rng = np.random.default_rng(2)
    true = (rows.columns["observations"][:, 0] > 0).astype(float)
    label = np.where(rng.random(len(true)) < 0.1, 1 - true, true)
    after = np.column_stack([label, rows.columns["next_observations"][:, 1]])
    observed = [["door", "open", "shut"], ["part_1"]]
    metadata = rows.metadata | {"env_args": {"observed": observed}}
    rows = replace(rows, columns=rows.columns | {"next_observations": after}, metadata=metadata)
    levels = noise_levels(rows)
    assert levels[0].level == pytest.approx(0.1, abs=0.05)
    for values, is_explained in ((true, True), (1 - true, False)):
        found = predicted(rows, law=True)
        found["next_observations"] = np.column_stack([values, after[:, 1]])
        door, _ = component_scores(found, rows, levels)
        assert door.is_label and door.rmse is None
        assert door.is_explained == is_explained


def test_the_most_frequent_of_drawn_labels_counts() -> None:
    rng = np.random.default_rng(3)
    label = (rng.random(201) < 0.5).astype(float)[:, None]
    rows = recorded(label, np.zeros(200, int))
    observed = [["door", "open", "shut"]]
    rows = replace(rows, metadata=rows.metadata | {"env_args": {"observed": observed}})
    after = rows.columns["next_observations"]
    wrong = np.arange(9) >= 6  # three of nine draws
    draws = np.where(wrong[None, :, None], 1 - after[:, None], after[:, None])
    columns = {
        "next_observations": draws,
        "rewards": np.zeros((200, 9)),
        "terminations": np.zeros((200, 9), bool),
    }
    [door] = component_scores(Predictions(columns, None, "draws"), rows, {})
    assert door.right == 1.0


def test_memory_is_wanted_if_it_filters_the_noise_of_a_sensor() -> None:
    rows = linear(0.02, 0.3)
    levels = noise_levels(rows)
    plain, _ = component_scores(predicted(rows, law=True), rows, levels)
    remembering, _ = component_scores(predicted(rows, law=True), rows, levels, remembers=True)
    assert plain.is_explained and not plain.is_complete
    assert not remembering.is_explained


def test_rounded_values_are_explained_by_the_law() -> None:
    rows = linear(0.0, 0.0)
    columns = {
        name: np.round(column, 3) if "observations" in name else column
        for name, column in rows.columns.items()
    }
    rows = replace(rows, columns=columns)
    scores = component_scores(predicted(rows, law=True), rows, noise_levels(rows))
    assert all(score.is_rounding and score.is_complete for score in scores)


def test_exact_law_keeps_its_accuracy_with_every_metric() -> None:
    rows = linear(0.0, 0.0)
    for kind in (AccuracyMetric, ExplainedMetric):
        score = kind.of(rows).score(predicted(rows, law=True), rows)
        assert (score.accuracy, score.exact, score.value) == (1.0, 1.0, 1.0)
        assert not score.refuted


def test_metric_of_noise_reaches_its_ceiling_with_the_law_only() -> None:
    rows = linear(0.1, 0.05)
    metric = ExplainedMetric.of(rows.train)
    law = metric.score(predicted(rows.test, law=True), rows.test)
    same = metric.score(predicted(rows.test, law=False), rows.test)
    assert law.reached and not law.refuted
    assert law.value == pytest.approx(law.explained_ceiling, abs=0.05)
    assert same.value == 0 and same.refuted
    assert "the action" in (same.open_gap or "")
    assert "all but sensor noise" in score_words(None, law)
    assert (metric.losses(predicted(rows, law=True), rows) > 0).mean() < 0.01


def test_tables_without_rewards_and_ends_score_observations_only() -> None:
    rows = linear(0.0, 0.0)
    rows = replace(rows, metadata=rows.metadata | {"rewards": False, "ends": False})
    found = predicted(rows, law=True)
    found["rewards"] = found["rewards"] + 1
    score = AccuracyMetric.of(rows).score(found, rows)
    assert (score.accuracy, score.exact) == (1.0, 1.0)
    assert (score.reward, score.terminated) == (None, None)
    assert score.weighed is not None and score.weighed.keys() == {"observation"}
    baseline = AccuracyMetric.of(rows).floor(rows)
    assert baseline < 0.05


def test_tolerance_of_a_component_replaces_the_usual_one() -> None:
    rows = linear(0.0, 0.0)
    found = predicted(rows, law=True)
    found["next_observations"] = found["next_observations"] + np.array([0.05, 0.0])
    assert AccuracyMetric.of(rows).score(found, rows).exact == 0
    wide = replace(rows, metadata=rows.metadata | {"tolerances": {"0": 0.06}})
    assert AccuracyMetric.of(wide).score(found, wide).exact == 1
