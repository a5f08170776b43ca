"""Ask a program for every row of a dataset and score its answers."""

from typing import NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.evaluation.matching import match
from cwm_cli.evaluation.metric import Metric, Score
from cwm_cli.sandbox import Sandbox
from cwm_cli.sandbox.failure import Failure


class Evaluation(NamedTuple):
    """A program's predictions, the score of each row and of all; without predictions on failure."""

    predictions: Columns
    rows: np.ndarray
    score: Score
    failure: Failure | None


def evaluate(
    program: str, dataset: Dataset, sandbox: Sandbox, metric: Metric, seed: int = 0
) -> Evaluation:
    """Score a program on every row of a dataset; a program that fails scores 0."""
    predictions, failure = sandbox.predict(program, dataset, seed=seed)
    if failure is not None:
        return Evaluation({}, np.zeros(len(dataset)), metric.failed(dataset), failure)
    matches = match(predictions, dataset)
    losses = matches.losses(dataset.columns["terminations"])
    score = metric.score(predictions, dataset, matches)
    return Evaluation(predictions, 1.0 - losses, score, None)
