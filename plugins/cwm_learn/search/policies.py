"""Linear policies, optimised in the model: each action is a weighted sum of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cwm_cli.planning.model import Model
from cwm_learn.search.regulators import find_regulators
from cwm_learn.search.rollouts import DIVERGED, LaneSimulator, discount_outside_data

POPULATION, ELITES, ROUNDS = 96, 14, 20
"""Policies per round of the cross-entropy method, policies that the next round is fitted to, and
the maximum number of rounds."""

STARTS = 16
"""Number of starts for each policy: a quarter are starts of episodes, and the rest are visited
observations. Policies that were perfect from a narrow range of starts failed from new starts."""

CERTAIN_SHARE = 0.98
"""A plan or a policy with this share of the maximum return ends the search. Rewards outside the
visited range are reduced first."""


class ScoredPolicy(NamedTuple):
    """The best of some policies, its score and returns, and the scores of all policies."""

    weights: np.ndarray
    score: float
    returns: np.ndarray
    scores: np.ndarray

    def pack(self, simulator: LaneSimulator) -> dict[str, np.ndarray]:
        """Return the policy as named arrays."""
        work = np.array(simulator.work)
        return {"weights": self.weights, "returns": self.returns, "work": work}


def act(
    weights: np.ndarray, observations: np.ndarray, arrays: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return the actions of policies at observations.

    The features are 1, the components in units of the data, and their signed squares. Discrete
    actions have one output each, and the action with the largest output is chosen. Otherwise an
    output is a component of the action, scaled so that its bounds are -1 and 1.

    Args:
        weights: Shape (policies, outputs, features).
        observations: Shape (components, policies, lanes).
        arrays: `centre` and `scale` of the components, and `options`, the possible actions.
    """
    centre, scale = arrays["centre"][:, None, None], arrays["scale"][:, None, None]
    z = (observations - centre) / scale
    features = np.concatenate([np.ones_like(z[:1]), z, z * np.abs(z)])
    outputs = np.einsum("pof,fpl->opl", weights, features)
    options = arrays["options"]
    if options.ndim == 1:
        chosen: np.ndarray = options[outputs.argmax(0)]
        return chosen
    low, high = options.min(0)[:, None, None], options.max(0)[:, None, None]
    actions: np.ndarray = (high + low) / 2 + np.clip(outputs, -1, 1) * (high - low) / 2
    return actions


def evaluate(
    simulator: LaneSimulator,
    weights: np.ndarray,
    starts: np.ndarray,
    arrays: Mapping[str, np.ndarray],
    horizon: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate policies from starts (components, starts).

    Returns:
        The returns (policies, starts), and scores (policies,): the weighted mean of the mean and
        the worst return, with rewards reduced outside the visited range.
    """
    now = np.repeat(starts[:, None, :], len(weights), 1)
    alive = np.ones(now.shape[1:], np.bool_)
    returns, cautious = np.zeros(alive.shape), np.zeros(alive.shape)
    for _ in range(horizon):
        actions = act(weights, now, arrays)[..., alive]
        after, rewards, ends, diverged = simulator.step(now[:, alive], actions)
        reduced = discount_outside_data(rewards, after, arrays)
        returns[alive] += np.where(diverged, -DIVERGED, rewards)
        cautious[alive] += np.where(diverged, -DIVERGED, reduced)
        over = ends | diverged
        now[:, alive] = np.where(over, now[:, alive], after)
        alive[alive] = ~over
        if not alive.any():
            break
    # weight of the worst return in a score, next to the mean; good policies differ in failures
    worst_weight = 0.5
    return returns, (1 - worst_weight) * cautious.mean(1) + worst_weight * cautious.min(1)


def improve(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    horizon: int,
    bound: float | None,
    budget: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """Return a regulator that is good enough, or the best linear policy of a search.

    The search is the cross-entropy method (Rubinstein, 1999). It keeps the best regulator or the
    earlier policy unless it finds a better one.

    Args:
        model: The model.
        arrays: `starts` (episodes, components), `visited` observations, `options`, `centre`,
            `scale`, and optionally `weights` of a policy to improve.
        horizon: Steps of an episode.
        bound: An upper bound of the return, at which the search stops.
        budget: Maximum work, in simulated steps.
        seed: Seed of the starts and policies.

    Returns:
        `weights` of the policy, its `returns` and the `work`.
    """
    rng = np.random.default_rng(seed)
    simulator = LaneSimulator(model, tuple(arrays["shape"].tolist()))
    options, visited = arrays["options"], arrays["visited"]

    def best_of(policies: Sequence[np.ndarray], starts: np.ndarray) -> ScoredPolicy:
        returns, scores = evaluate(simulator, np.array(policies), starts.T, arrays, horizon)
        top = int(scores.argmax())
        return ScoredPolicy(policies[top], float(scores[top]), returns[top], scores)

    initial = [arrays["weights"]] if "weights" in arrays else []
    if options.ndim > 1:
        middle = np.median(arrays["starts"], 0)
        regulators = list(find_regulators(simulator, arrays, middle))
        if regulators and bound is not None:
            best = best_of(regulators, arrays["starts"])
            if best.score >= CERTAIN_SHARE * bound:
                return best.pack(simulator)
        initial += regulators
    first = arrays["starts"][-STARTS // 4 :]
    later = visited[rng.integers(len(visited), size=STARTS - len(first))]
    starts, size = np.concatenate([first, later]), visited.shape[1]
    shape = (len(options) if options.ndim == 1 else options.shape[1], 2 * size + 1)
    # initial deviation of the weights of squares, which dominate far from the centre
    square_deviation = 0.2
    widths = np.repeat([1.0, square_deviation], [size + 1, size])
    mean, deviation = np.zeros(shape), np.ones(shape) * widths
    best = ScoredPolicy(mean, -np.inf, np.zeros(1), np.zeros(1))
    if initial:
        best = best_of(initial, starts)
    rounds_without_gain = 0
    # added to the deviation after each round, so that the method does not stop exploring
    min_deviation = 0.05
    tolerance = 1e-3  # relative difference of returns that does not count
    patience = 8  # rounds without a better policy after which the search stops
    for _ in range(ROUNDS):
        if bound is not None and best.score >= bound - tolerance * abs(bound):
            break
        policies = mean + deviation * rng.normal(size=(POPULATION, *shape))
        policies[0] = mean
        found = best_of(policies, starts)
        gained = found.score > best.score + tolerance * abs(best.score)
        rounds_without_gain = 0 if gained else rounds_without_gain + 1
        best = max(best, found, key=lambda policy: policy.score)
        elite = policies[np.argsort(-found.scores, kind="stable")[:ELITES]]
        mean, deviation = elite.mean(0), elite.std(0) + min_deviation
        if rounds_without_gain >= patience or simulator.is_exhausted(budget):
            break
    # if several policies are equally good, their mean is farthest from ending episodes
    found = best_of([mean], starts)
    if found.score >= best.score - tolerance * abs(best.score):
        best = found
    return best.pack(simulator)
