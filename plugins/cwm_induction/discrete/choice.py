"""The choice between explanations by trajectories that they were not fitted to."""

from collections.abc import Callable, Sequence

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_induction.discrete.formulas import EXACT
from cwm_induction.discrete.transitions import Transitions

FOLDS = 3
MARGIN = 0.03
MOST_REWARDS = 20

Answer = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Next observations, rewards and ends."""

Predict = Callable[[np.ndarray, np.ndarray], Answer]
Explain = Callable[[Transitions], Predict | None]


def best(fit: Dataset, seen: Transitions, explanations: Sequence[Explain]) -> int:
    """Return the place of the explanation that predicts held-back trajectories best.

    The first is kept unless another is better by more than `MARGIN`.
    """
    episodes = np.unique(fit.columns["episodes"], return_inverse=True)[1].reshape(-1)
    scores = np.zeros(len(explanations))
    for fold in range(min(FOLDS, episodes.max() + 1)):
        held_back = episodes % FOLDS == fold
        if held_back.any() and not held_back.all():
            train, check = seen.part(~held_back), seen.part(held_back)
            for place, explain in enumerate(explanations):
                predict = explain(train)
                scores[place] += score(predict, check, seen) if predict else -1.0
    scores[0] += FOLDS * MARGIN
    return int(scores.argmax())


def score(predict: Predict, check: Transitions, seen: Transitions) -> float:
    """Return the share of what is right, with the weights that the rewards have in `seen`."""
    after, rewards, done = predict(check.before, check.action)
    right = (after == check.after).all(axis=1) * (check.done == 0)
    parts = 3 - check.done
    share = (right + (np.abs(rewards - check.paid) < EXACT) + (done == check.done)) / parts
    counts = np.bincount(seen.codes, weights=seen.count)
    weights = check.count / (counts[check.codes] if len(counts) <= MOST_REWARDS else 1.0)
    return float((share * weights).sum() / weights.sum())
