"""Rewards and ends of episodes: a weighted sum of changes and a decision list for the rest."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.decision_list import Bias
from cwm_induction.relations.expressions import Names
from cwm_induction.relations.rules import (
    MAX_EFFECTS,
    EffectRules,
    RuleEffect,
    RuleTerm,
    RuleVocabulary,
    Spend,
    choose_effects,
    define,
    plain_effects,
    scalar,
    used_terms,
)

DIGITS = 6
"""Decimal places of rewards and weights."""

LEAST_STEPS = 20
"""Steps within episodes at least; fewer do not show the weights of a sum."""

ERROR_BITS, RULE_BITS, WEIGHT_BITS = 20.0, 8.0, 12.0
"""Costs that choose a weighted sum: of a wrong row, of a rule or condition, of a weight."""


class Payments(NamedTuple):
    """When the episode ends, and the reward: `weights` of terms plus a bonus by rules.

    The rules of the reward may also use `terminated`.
    """

    ends: EffectRules
    weights: tuple[tuple[str, float], ...]
    bonuses: EffectRules

    @property
    def lines(self) -> list[str]:
        """Write the lines of `step`, apart from the variables that they use."""
        ends = self.ends.lines(lambda text: f"terminated = {text}")
        if len(ends) == 4 and ends[1].endswith("True"):
            ends = [f"terminated = {ends[0][3:-1]}"]
        lines = [*ends, *self.bonuses.lines(lambda text: f"reward = {text}")]
        for name, weight in self.weights:
            sign, size = "-" if weight < 0 else "+", abs(weight)
            factor = "" if size == 1 else f"{size!r} * "
            text = name if name.isidentifier() else f"({name})"
            lines.append(f"reward {sign}= {factor}{text}")
        return lines

    @property
    def terms(self) -> tuple[RuleTerm, ...]:
        """Terms that the lines may use."""
        return (*self.ends.terms, *self.bonuses.terms)

    def predict(self, names: Names, count: int) -> tuple[Array, Array]:
        """Return rewards and ends of `count` transitions."""
        known = dict(names)
        done = self.ends.outcomes(known, count)
        known["terminated"] = done.astype(np.int64)
        reward = self.bonuses.outcomes(known, count).astype(float)
        define(used_terms(self.terms, "\n".join(dict(self.weights))), known, count)
        for name, weight in self.weights:
            reward += weight * scalar(name, known, count)
        return reward, done.astype(bool)


def fit_payments(
    sums: Sequence[RuleTerm],
    terms: list[RuleTerm],
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
    count = len(rewards)
    known = {**names, "terminated": ends.astype(np.int64)}
    define([*terms, *sums], known, count)
    flags = plain_effects(["False", "True"])
    correct = np.stack([~ends, ends], axis=1)
    stops = choose_effects(RuleVocabulary(terms, flags), correct, known, spend, Bias(default=0))
    table = np.stack([known[term.name] for term in sums], axis=1).astype(float)
    best: tuple[float, Payments] | None = None
    conditions = [*terms, RuleTerm("terminated", "terminated", "flag")]
    for weights in (np.zeros(len(sums)), _sparse_weights(table[~ends], rewards[~ends])):
        rest = (rewards - table @ weights).round(DIGITS) + 0.0
        values, counts = np.unique(rest, return_counts=True)
        values = values[np.argsort(-counts, kind="stable")[: MAX_EFFECTS + 1]]
        effects = [RuleEffect(repr(value)) for value in values.tolist()]
        vocabulary = RuleVocabulary(conditions, effects)
        bonuses = choose_effects(vocabulary, rest[:, None] == values, known, spend)
        chosen = [(term.name, w) for term, w in zip(sums, weights.tolist(), strict=True) if w]
        wrong = (bonuses.outcomes(known, count) != rest).sum()
        size = sum(1 + len(rule.conditions) for rule in bonuses.rules.rules)
        cost = ERROR_BITS * wrong + RULE_BITS * size + WEIGHT_BITS * len(chosen)
        if best is None or cost < best[0]:
            best = cost, Payments(stops, tuple(chosen), bonuses)
    assert best is not None
    return best[1]


def _sparse_weights(table: Array, rewards: Array) -> Array:
    """Return rounded weights of few columns, by least absolute deviations.

    Few rows have a bonus, which least absolute deviations ignore. Columns are left out in turn
    while as many rows are explained.
    """
    weights = np.zeros(table.shape[1])
    columns = _independent(table) if len(table) >= LEAST_STEPS else []
    if not columns:
        return weights
    table = table[:, columns]
    solution = _least_deviations(table, rewards)
    solution[np.abs(solution) < 1e-4] = 0.0
    most = _explained(table @ solution, rewards)
    for place in np.argsort(np.abs(solution), kind="stable").tolist():
        kept = [i for i in np.flatnonzero(solution).tolist() if i != place]
        if not solution[place]:
            continue
        fewer = np.zeros(len(columns))
        fewer[kept] = _least_deviations(table[:, kept], rewards)
        if _explained(table @ fewer, rewards) >= 0.995 * most:
            solution = fewer
    weights[columns] = solution
    weights[np.abs(weights) < 1e-4] = 0.0
    return weights.round(4)


def _independent(table: Array) -> list[int]:
    """Return columns that are independent of each other and of 1; earlier ones are preferred."""
    design, chosen = np.ones((len(table), 1)), list[int]()
    for number, column in enumerate(table.T):
        wider = np.column_stack([design, column])
        if np.linalg.matrix_rank(wider) == wider.shape[1]:
            design = wider
            chosen.append(number)
    return chosen


def _least_deviations(table: Array, rewards: Array, rounds: int = 60) -> Array:
    """Return the weights of the least absolute deviations from a sum and a constant.

    They result from iteratively reweighted least squares.
    """
    design = np.column_stack([table, np.ones(len(table))])
    importance, solution = np.ones(len(rewards)), np.zeros(design.shape[1])
    for _ in range(rounds):
        root = np.sqrt(importance)[:, None]
        solution = np.linalg.lstsq(design * root, rewards * root[:, 0], rcond=None)[0]
        importance = 1 / np.maximum(np.abs(rewards - design @ solution), 1e-7)
        importance /= importance.max()
    return np.asarray(solution[:-1])


def _explained(values: Array, rewards: Array) -> int:
    """Return how many rows differ from the sum by the same constant."""
    return int(np.unique((rewards - values).round(4), return_counts=True)[1].max())
