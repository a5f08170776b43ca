"""Signs that the first rows of published episodes do not follow from their observations."""

from typing import Any

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.evaluation import AccuracyMetric, components
from cwm_cli.worlds import EnvironmentModel

FEW = 0.1
"""Share of first rows that may be off for other reasons, such as what an observation hides."""


def corrupt_first_rows(spec: EnvironmentSpec, dataset: Dataset) -> int:
    """Return how many first rows of episodes seem to be corrupt.

    They are where the second row starts elsewhere than the first one led to,
    or where the environment itself, stood at the observation, goes elsewhere,
    although it predicts second rows. What is observed is a state of real
    numbers there; in a game of chance the environment would say nothing.
    """
    episodes = dataset.columns["episodes"]
    firsts = np.flatnonzero(np.append(True, episodes[1:] != episodes[:-1]))
    firsts = firsts[np.append(firsts[1:], len(episodes)) - firsts > 1]
    if not len(firsts) or not all(
        leaf.space.is_float for leaf in dataset.observation_space.leaves("")
    ):
        return 0
    broken = int((~_goes_on(dataset, firsts)).sum())
    return max(broken, _mispredicted(spec, dataset, firsts))


def _goes_on(dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    """Return for each row whether the next one starts where it led to."""
    after: dict[str, Any] = {
        f"next_{name}": column[rows + 1] for name, column in dataset.select("observations").items()
    }
    right = components(after, dataset[rows])
    same: np.ndarray = np.all([leaf.all(axis=1) for leaf in right], axis=0)
    return same


def _mispredicted(spec: EnvironmentSpec, dataset: Dataset, rows: np.ndarray) -> int:
    """Return how many rows the environment itself gets wrong, if it gets the next ones right."""
    env_args = dataset.metadata.get("env_args", {})
    metric = AccuracyMetric.of(dataset)
    truth = EnvironmentModel(spec, env_args)
    reached = [metric.reach(truth, dataset[which]) for which in (rows, rows + 1)]
    first, second = (result.score.exact if result else 0.0 for result in reached)
    return round((1 - first) * len(rows)) if second - first > FEW else 0
