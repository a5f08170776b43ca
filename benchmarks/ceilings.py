"""The accuracy of an ideal program on recorded rows of the suites `hard` and `fresh`.

With chance, the ideal program predicts the most common outcome of each part. Without chance, its
accuracy is 1. With memory, 1 is an upper bound, because the state at the start may be random.
"""

from collections import Counter
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np

from benchmarks import fresh, hard
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.evaluation import AccuracyMetric

GROUPS = {**hard.GROUPS, **fresh.GROUPS}
"""The group of each environment with a ceiling: hybrid, chance, memory or objects."""

DRAWS = 200
"""Draws per row. The most common of two outcomes with probabilities 0.55 and 0.45 has the higher
count in 9 of 10 rows."""


def ceiling(env_id: str, data: Dataset) -> float:
    """Return the accuracy of an ideal program on the test rows of a dataset."""
    if GROUPS[env_id] != "chance":
        return 1.0
    test = data.test
    with closing(gymnasium.make(env_id)) as env:
        ideal = [_most_common_outcome(env.unwrapped, test.row(n)) for n in range(len(test))]
    spaces = {"observation_space": data.observation_space, "action_space": data.action_space}
    predictions = Dataset.of(ideal, **spaces).select("next_observations", "rewards", "terminations")
    return AccuracyMetric.of(data.train).score(predictions, test).accuracy


def _most_common_outcome(env: Any, row: Transition) -> Transition:
    """Draw outcomes of a row, and return the most common observation, reward and end.

    The attribute `state` of the environment is the observation, and its whole state.
    """
    outcomes: list[tuple[bytes, float, bool]] = []
    observations: dict[bytes, Any] = {}
    env.reset(seed=0)
    for _ in range(DRAWS):
        env.state = np.array(row.observation)
        after, reward, terminated, *_ = env.step(row.action)
        key = after.tobytes()
        observations[key] = after
        outcomes.append((key, float(reward), bool(terminated)))
    [(key, _)], [(reward, _)], [(terminated, _)] = (
        Counter(part).most_common(1) for part in zip(*outcomes, strict=True)
    )
    return row._replace(next_observation=observations[key], reward=reward, terminated=terminated)
