"""Rewards and ends of episodes: a weighted sum of changes and a decision list for the rest."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import qr

from cwm_induction.continuous.samples import Array
from cwm_induction.decision_list import Bias, RelationFeature, RelationList, learn
from cwm_induction.relations.stages import BoardTerm, CellEffect, Names, Spend, branch_lines, define

EXACT = 1e-6
"""Difference of two rewards that are equal."""

MAX_VALUES = 24
"""Different rewards that a decision list may give; rarer ones are not predicted."""

DIGITS = 6
"""Decimal places of rewards and weights."""


class Payments(NamedTuple):
    """When the episode ends, and the reward: `weights` of terms plus one of `bonuses` by rules.

    The rules of the reward may also use `terminated`.
    """

    terms: tuple[BoardTerm, ...]
    ends: RelationList
    weights: tuple[tuple[str, float], ...]
    bonuses: tuple[float, ...]
    rules: RelationList

    @property
    def lines(self) -> list[str]:
        """Write the lines of `step`, apart from the variables that they use."""
        flags = (CellEffect("False"), CellEffect("True"))
        ends = branch_lines(self.ends, flags, lambda text: f"terminated = {text}")
        if len(ends) == 4 and ends[1].endswith("True"):
            ends = [f"terminated = {ends[0][3:-1]}"]
        effects = [CellEffect(repr(bonus)) for bonus in self.bonuses]
        lines = [*ends, *branch_lines(self.rules, effects, lambda text: f"reward = {text}")]
        for text, weight in self.weights:
            sign, size = "-" if weight < 0 else "+", abs(weight)
            factor = "" if size == 1 else f"{size!r} * "
            lines.append(f"reward {sign}= {factor}{text if text.isidentifier() else f'({text})'}")
        return lines

    def predict(self, names: Names, count: int) -> tuple[Array, Array]:
        """Return rewards and ends of `count` transitions."""
        found = dict(names)
        define([term for term in self.terms if term.name != "terminated"], found)
        done = self.ends.effects(found, count).astype(bool)
        found["terminated"] = done.astype(np.int64)
        reward = np.array(self.bonuses)[self.rules.effects(found, count)]
        for text, weight in self.weights:
            reward = reward + weight * found[text]
        return reward, done


def fit_payments(
    sums: Sequence[BoardTerm],
    terms: Sequence[BoardTerm],
    names: Names,
    rewards: Array,
    ends: Array,
    spend: Spend,
) -> Payments:
    """Fit rewards and ends of episodes.

    Args:
        sums: Terms that a weighted sum may have, the most general first.
        terms: Terms that conditions may compare.
        names: Values of variables, one entry per transition.
        rewards: Recorded rewards.
        ends: Mask of transitions that end the episode.
        spend: Takes multiplications.
    """
    found = dict(names)
    done = define(terms, found)
    features = [RelationFeature(t.name, t.kind, found[t.name], t.price) for t in done]
    correct = np.stack([~ends, ends], axis=1)
    stops = learn(features, correct, spend, Bias(default=0))
    features.append(RelationFeature("terminated", "flag", ends.astype(np.int64)))
    define(sums, found)
    table = np.stack([found[term.name] for term in sums], axis=1).astype(float)
    best: tuple[float, Payments] | None = None
    everything = (*terms, *sums, BoardTerm("terminated", "terminated", "flag"))
    for weights in _sums(table, rewards, ends):
        rest = rewards - table @ weights
        bonuses, codes = _values(rest)
        correct = codes[:, None] == np.arange(len(bonuses))
        rules = learn(features, correct, spend)
        chosen = tuple(
            (term.name, float(weight))
            for term, weight in zip(sums, weights.tolist(), strict=True)
            if weight
        )
        payments = Payments(everything, stops, chosen, bonuses, rules)
        values = {feature.name: feature.values for feature in features}
        wrong = (rules.effects(values, len(rewards)) != codes).sum()
        cost = 20.0 * wrong + 8.0 * sum(1 + len(rule.conditions) for rule in rules.rules)
        cost += 12.0 * len(chosen)
        if best is None or cost < best[0]:
            best = cost, payments
    assert best is not None
    return best[1]


def _values(rewards: Array) -> tuple[tuple[float, ...], Array]:
    """Return the most frequent rewards, and the number of each row's reward among these."""
    values, codes, counts = np.unique(
        rewards.round(DIGITS) + 0.0, return_inverse=True, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    kept = values[order[:MAX_VALUES]]
    return tuple(kept.tolist()), rank[codes.reshape(-1)]


def _sums(table: Array, rewards: Array, ends: Array) -> list[Array]:
    """Return candidate weights: zeros, and the weights of least absolute deviations.

    Few rows have a bonus, which least absolute deviations ignore (iteratively reweighted least
    squares). Terms are left out in turn while as many rows are explained.
    """
    nothing = np.zeros(table.shape[1])
    found = [nothing]
    for rows in (~ends, np.ones(len(ends), bool)):
        if rows.sum() < 20:
            continue
        weights = _sparse(table[rows], rewards[rows])
        if weights.any() and not any(np.array_equal(weights, other) for other in found):
            found.append(weights)
    return found


def _sparse(table: Array, rewards: Array) -> Array:
    """Return rounded weights of few columns, by least absolute deviations."""
    columns = _independent(table)
    weights = np.zeros(table.shape[1])
    if not columns:
        return weights
    design = np.column_stack([table[:, columns], np.ones(len(table))])
    solution = _deviations(design, rewards)
    commonest = _explained(design[:, :-1] @ solution[:-1], rewards)
    for place in range(len(columns)):
        if abs(solution[place]) < 1e-4:
            solution[place] = 0.0
    for place in np.argsort(np.abs(solution[:-1]), kind="stable").tolist():
        kept = [i for i in range(len(columns)) if solution[i] and i != place]
        if not solution[place]:
            continue
        part = np.zeros(len(columns) + 1)
        part[[*kept, len(columns)]] = _deviations(design[:, [*kept, len(columns)]], rewards)
        if _explained(design[:, :-1] @ part[:-1], rewards) >= 0.995 * commonest:
            solution = part
    weights[columns] = [float(f"{w:.6g}") for w in solution[:-1]]
    weights[np.abs(weights) < 1e-4] = 0.0
    return weights.round(4)


def _independent(table: Array) -> list[int]:
    """Return columns of full rank; earlier ones are preferred."""
    chosen: list[int] = []
    rank = 1
    for column in range(table.shape[1]):
        design = np.column_stack([np.ones(len(table)), table[:, [*chosen, column]]])
        diagonal = np.abs(np.diag(qr(design, mode="r")[0]))
        if (diagonal > 1e-9 * diagonal.max() * len(table)).sum() > rank:
            chosen.append(column)
            rank += 1
    return chosen


def _deviations(design: Array, rewards: Array, rounds: int = 60) -> Array:
    """Return the coefficients of the least absolute deviations."""
    importance = np.ones(len(rewards))
    solution = np.zeros(design.shape[1])
    for _ in range(rounds):
        root = np.sqrt(importance)[:, None]
        solution = np.linalg.lstsq(design * root, rewards * root[:, 0], rcond=None)[0]
        importance = 1 / np.maximum(np.abs(rewards - design @ solution), 1e-7)
        importance /= importance.max()
    return solution


def _explained(values: Array, rewards: Array) -> int:
    """Return how many rows differ from the sum by the same constant."""
    rest = (rewards - values).round(4)
    return int(np.unique(rest, return_counts=True)[1].max())
