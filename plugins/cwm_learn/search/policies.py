"""Policies found in imagination: an action follows from a few sums over the observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cwm_cli.planning.model import Model
from cwm_learn.search.rollouts import FARTHEST, ImaginedLanes, doubted

POPULATION, ELITES, ROUNDS = 96, 14, 20
"""Policies of a round of the cross-entropy method, those that the next is drawn from, rounds."""

STARTS = 16
"""Starts that every policy is tried from: a quarter are those of episodes, the others places that
were visited, as a policy that was perfect from narrow starts fell from fresh ones."""

WORST = 0.5
"""Weight of the worst return beside the mean: it is the episode that fails which tells policies."""

LEAST = 0.05
"""Deviation that is kept up, as a cross-entropy method that has settled finds nothing more."""

ENOUGH = 1e-3
"""Share of the return that counts as nothing."""

SQUARES = 0.2
"""Deviation of the weights of squares at first: they take over far from the middle."""

STALE = 8
"""Rounds that may pass without a better policy."""


def features(observations: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return one, the components in units of the data, and their signed squares, before all."""
    shape = (len(centre), *[1] * (observations.ndim - 1))
    z = (observations - centre.reshape(shape)) / scale.reshape(shape)
    return np.concatenate([np.ones_like(z[:1]), z, z * np.abs(z)])


def act(
    weights: np.ndarray, observations: np.ndarray, arrays: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return what policies (policies, outputs, features) do at (components, policies, lanes).

    Where actions are numbered the output that is greatest names one; else outputs are actions, -1
    and 1 being their bounds.
    """
    seen = features(observations, arrays["centre"], arrays["scale"])
    outputs = np.einsum("pof,fpl->opl", weights, seen)
    options = arrays["options"]
    if options.ndim == 1:
        chosen: np.ndarray = options[outputs.argmax(0)]
        return chosen
    low, high = options.min(0)[:, None, None], options.max(0)[:, None, None]
    actions: np.ndarray = (high + low) / 2 + np.clip(outputs, -1, 1) * (high - low) / 2
    return actions


class TriedPolicy(NamedTuple):
    """What policies return (policies, starts), and what of that is not in doubt."""

    returns: np.ndarray
    sure: np.ndarray

    @property
    def score(self) -> np.ndarray:
        """What policies are chosen by: the mean and the worst of what is sure."""
        score: np.ndarray = (1 - WORST) * self.sure.mean(1) + WORST * self.sure.min(1)
        return score


def imagined(
    lanes: ImaginedLanes,
    weights: np.ndarray,
    starts: np.ndarray,
    arrays: Mapping[str, np.ndarray],
    horizon: int,
) -> TriedPolicy:
    """Try policies from starts (components, starts)."""
    now = np.repeat(starts[:, None, :], len(weights), 1)
    alive = np.ones(now.shape[1:], np.bool_)
    total, sure = np.zeros(alive.shape), np.zeros(alive.shape)
    for _ in range(horizon):
        actions = act(weights, now, arrays)[..., alive]
        after, rewards, ends, lost = lanes.step(now[:, alive], actions)
        total[alive] += np.where(lost, -FARTHEST, rewards)
        sure[alive] += np.where(lost, -FARTHEST, doubted(rewards, after, arrays))
        now[:, alive] = np.where(ends | lost, now[:, alive], after)
        alive[alive] = ~(ends | lost)
        if not alive.any():
            break
    return TriedPolicy(total, sure)


def improve(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    horizon: int,
    bound: float | None,
    most: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """Return the `weights` of a policy that does well from where episodes begin, its `returns`.

    Cross-entropy (Rubinstein, 1999) on linear policies. `arrays` has `starts` (episodes,
    components), `visited` places, `options`, `centre` and `scale`, and may have the `weights`
    of a policy that is to be bettered. `bound` is a return that no policy exceeds; `most` bounds
    the work.
    """
    rng = np.random.default_rng(seed)
    lanes = ImaginedLanes(model, tuple(arrays["shape"].tolist()))
    starts = _starts(arrays, rng)
    outputs = len(arrays["options"]) if arrays["options"].ndim == 1 else arrays["options"].shape[1]
    shape = (outputs, 2 * len(starts) + 1)
    widths = np.repeat([1.0, SQUARES], [len(starts) + 1, len(starts)])
    mean, deviation = np.zeros(shape), np.ones(shape) * widths
    best, value, alike, found = mean, -np.inf, 0, np.zeros(1)
    if "weights" in arrays:
        best = arrays["weights"]
        tried = imagined(lanes, best[None], starts, arrays, horizon)
        value, found = float(tried.score[0]), tried.returns[0]
    for _ in range(ROUNDS):
        if bound is not None and value >= bound - ENOUGH * abs(bound):
            break
        drawn = mean + deviation * rng.normal(size=(POPULATION, *shape))
        drawn[0] = mean
        tried = imagined(lanes, drawn, starts, arrays, horizon)
        score, first = tried.score, int(tried.score.argmax())
        alike = 0 if score[first] > value + ENOUGH * abs(value) else alike + 1
        if score[first] > value:
            best, value, found = drawn[first], float(score[first]), tried.returns[first]
        elite = drawn[np.argsort(-score, kind="stable")[:ELITES]]
        mean, deviation = elite.mean(0), elite.std(0) + LEAST
        if alike >= STALE or lanes.is_over(most):
            break
    # several may be as good: the one in their middle is farther from what ends episodes
    middle = imagined(lanes, mean[None], starts, arrays, horizon)
    if middle.score[0] >= value - ENOUGH * abs(value):
        best, found = mean, middle.returns[0]
    return {"weights": best, "returns": found, "work": np.array(lanes.work)}


def _starts(arrays: Mapping[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Return starts (components, starts): those seen, and places that were visited later."""
    seen, visited = arrays["starts"][-STARTS // 4 :], arrays["visited"]
    later = visited[rng.integers(len(visited), size=STARTS - len(seen))]
    return np.concatenate([seen, later]).T
