"""Trajectories that equations are not fitted to, so that they can tell which to believe."""

import numpy as np

from cwm_cli.data.dataset import Dataset

CHECK_SHARE = 0.2
"""Share of the fit part, in whole trajectories, that is held back to choose between programs."""

FEWEST_EPISODES = 4
"""Trajectories below which single rows are held back instead."""


def held_back(fit: Dataset, seed: int) -> np.ndarray:
    """Return the mask of the rows that equations are not fitted to: whole trajectories.

    One that is most of the data is not among them.
    """
    rng = np.random.default_rng([seed, len(fit)])
    episodes, sizes = np.unique(fit.columns["episodes"], return_counts=True)
    if len(episodes) < FEWEST_EPISODES:
        chosen = rng.permutation(len(fit))[: int(CHECK_SHARE * len(fit))]
        return np.isin(np.arange(len(fit)), chosen)
    held: list[int] = []
    count = 0
    for episode in rng.permutation(len(episodes)).tolist():
        fits = count + sizes[episode] <= 1.5 * CHECK_SHARE * len(fit)
        if count < CHECK_SHARE * len(fit) and fits:
            held.append(episodes[episode])
            count += int(sizes[episode])
    return np.isin(fit.columns["episodes"], held or episodes[sizes == sizes.min()][:1])
