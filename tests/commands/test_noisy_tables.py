"""`cwm evaluate` and `cwm synthesize` on tables of transitions with noise."""

import json
from pathlib import Path

import numpy as np
import pytest

import cwm_cli as cwm
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.verdicts import score_words

LAW = """
class Environment:
    def set_state(self, observation):
        [self.level] = observation

    def step(self, action):
        return [0.9 * self.level + action], 0.0, False
"""

SAME = LAW.replace("0.9 * self.level + action", "self.level")


def table(noise: float, *, outlier: float = 0.0) -> Dataset:
    """Return 600 transitions of a tank with a pump, as a table without rewards."""
    rng = np.random.default_rng(1)
    actions, level = rng.integers(0, 2, 600), np.zeros(601)
    for row, action in enumerate(actions):
        level[row + 1] = 0.9 * level[row] + action + noise * rng.standard_normal()
    after = level[1:, None].copy()
    after[100] += outlier
    episodes = np.arange(600) // 120
    columns = {
        "observations": level[:-1, None],
        "actions": actions,
        "next_observations": after,
        "rewards": np.zeros(600),
        "terminations": np.zeros(600, bool),
        "truncations": np.append(episodes[1:] != episodes[:-1], True),
        "episodes": episodes,
        "split": (episodes == 4).astype(np.int8),
    }
    observations = Space("box", "float64", (1,), (-5.0,), (20.0,))
    pump = Space("discrete", low=(0,), high=(1,))
    arguments = {
        "observations": observations.to_json(),
        "actions": pump.to_json(),
        "observed": [["level_m"]],
        "acted": [["pump", "off", "on"]],
        "source": "tank.csv",
        "step": "",
    }
    return Dataset(columns, observations, pump, {"env": "data/tank", "env_args": arguments})


def test_true_law_of_noisy_rows_is_a_success() -> None:
    result = cwm.evaluate(LAW, dataset=table(0.1))
    assert result.is_good
    score = result.scores.test
    assert score is not None and score.reached and score.reward is None
    assert score.exact < 1
    assert "Explains all but noise: level_m" in score_words(None, score).capitalize()
    [component] = result.as_json()["test"]["components"]
    assert component["name"] == "level_m" and component["is_explained"]
    assert component["noise"] == pytest.approx(0.1, rel=0.15)
    json.dumps(result.as_json(), allow_nan=False)


def test_persistence_on_noisy_rows_is_no_success() -> None:
    result = cwm.evaluate(SAME, dataset=table(0.1))
    assert not result.is_good
    assert result.scores.test is not None
    assert "errors depend on pump" in score_words(None, result.scores.test)


def test_outliers_have_a_row_a_name_and_labels() -> None:
    rows = table(0.1, outlier=5.0)
    result = cwm.evaluate(LAW, dataset=rows)
    [words] = result.worst("train", 3)
    assert words.startswith("row 100 (episode 0, step 100): level_m is ")
    assert "pump = on" in words or "pump = off" in words
    assert "without 1 outlier" in score_words(result.scores.train, None)


def test_exact_rows_keep_accuracy() -> None:
    result = cwm.evaluate(LAW, dataset=table(0.0))
    assert result.scores.test is not None
    assert result.scores.test.explained is None
    assert (result.scores.test.accuracy, result.scores.test.exact) == (1.0, 1.0)


@pytest.mark.slow
def test_tolerances_count_near_values_as_exact() -> None:
    rows, near = table(0.0), LAW.replace("+ action", "+ action + 0.01")
    assert not cwm.evaluate(near, dataset=rows).is_good
    assert cwm.evaluate(near, dataset=rows, tolerance=["level_m=0.02"]).is_good
    for wrong in ("levl_m=1", "level_m=", "level_m=-1", "nan"):
        with pytest.raises(CwmError):
            cwm.evaluate(near, dataset=rows, tolerance=[wrong])


@pytest.mark.slow
def test_synthesis_reports_noise_and_keeps_tolerances(tmp_path: Path) -> None:
    first = cwm.synthesize(
        dataset=table(0.1), budget=1, run=tmp_path / "run", tolerance=["0.5"], new=True
    )
    assert first.finding is not None and first.finding.noise[0].is_noisy
    assert first.scores.test is not None and first.scores.test.components
    with pytest.raises(CwmError, match="other settings"):
        cwm.synthesize(dataset=table(0.1), budget=2, run=tmp_path / "run")
    stored = Dataset.load(tmp_path / "run" / "dataset.npz")
    assert stored.tolerances["0"] == 0.5
