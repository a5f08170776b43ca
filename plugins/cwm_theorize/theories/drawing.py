"""Random conditions, conclusions and lines of rules, with the probability of each draw.

`Words` draws from all expressions of a language. `Examples` draws expressions that are true in
recorded transitions: the conditions of a line hold in the transition, and its conclusion is the
recorded change, expressed through facts of equal value if possible. The probability of a draw is
computed for all transitions together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeVar

import numpy as np

from cwm_theorize.statistician import TextTransition
from cwm_theorize.theories.language import (
    Comparison,
    Conclusion,
    Reference,
    RuleLanguage,
    RuleLine,
    Ruleset,
    Value,
)
from cwm_theorize.theories.symbolic import ABSENT, TransitionTable

T = TypeVar("T")

# Relative frequencies of conditions: a fact has its value, equals another fact, differs from
# another fact, or does not have a value. Positive conditions carry more information, and many
# pairs of facts differ by chance.
HAS_WEIGHT, SAME_WEIGHT, OTHER_WEIGHT, LACKS_WEIGHT = 1.0, 0.5, 0.1, 0.1

OPEN_WEIGHT, WORD_WEIGHT, FACT_WEIGHT = 0.25, 1.0, 3.0
"""Weights of a field in a conclusion: left open, set to a word, or set to a fact with that
value. A reference to a fact covers more transitions, and an open field predicts little."""

RARITY_POWER = 0.5
"""Power of the unexplained part of a kind of change, when an example is drawn. With 1, rare
kinds would be drawn last; with 0, they would keep common kinds from being explained."""


def draw(probabilities: Mapping[T, float], rng: np.random.Generator) -> T:
    """Draw an item by its probability; the probabilities add up to 1."""
    point = rng.random()
    for each, probability in probabilities.items():
        point -= probability
        if point < 0:
            return each
    return each  # rounded probabilities may add up to less than 1


def normalise(weights: Mapping[T, float]) -> dict[T, float]:
    """Return the weights divided by their sum, without zero weights."""
    total = sum(weights.values())
    return {each: weight / total for each, weight in weights.items() if weight}


def conditions_of(line: RuleLine) -> dict[str, Comparison] | None:
    """Return the conditions by fact; None if a fact has two conditions."""
    found = {each.fact: each for each in line.conditions}
    return found if len(found) == len(line.conditions) else None


class Words:
    """Draws from all expressions of a language, independent of recorded data.

    A line has a condition on each fact with probability `share`, and at least one condition.
    """

    def __init__(self, language: RuleLanguage, conditions: float) -> None:
        self.language, self.conditions = language, conditions
        self.share = min(0.5, conditions / len(language.values))
        self.comparisons = {fact: self._comparisons(fact) for fact in language.values}
        self.kinds = normalise(dict.fromkeys(language.fields, 1.0))
        self.fields = {
            kind: {name: self._terms(words) for name, words in fields.items()}
            for kind, fields in language.fields.items()
        }

    def _comparisons(self, fact: str) -> dict[Comparison, float]:
        """Return all conditions on a fact, with their probabilities."""
        words, shared = self.language.values[fact], self.language.shared[fact]
        weights = {Comparison(fact, word): HAS_WEIGHT / len(words) for word in words}
        weights |= {Comparison(fact, word, False): LACKS_WEIGHT / len(words) for word in words}
        for other in shared:
            weights[Comparison(fact, Reference(other))] = SAME_WEIGHT / len(shared)
            weights[Comparison(fact, Reference(other), False)] = OTHER_WEIGHT / len(shared)
        return normalise(weights)

    def _terms(self, words: Sequence[str]) -> dict[Value | None, float]:
        """Return all values of a field in a conclusion, with their probabilities."""
        facts = [fact for fact, known in self.language.values.items() if {*known} & {*words}]
        weights: dict[Value | None, float] = {None: OPEN_WEIGHT}
        weights |= {word: WORD_WEIGHT / len(words) for word in words}
        weights |= {Reference(fact): FACT_WEIGHT / len(facts) for fact in facts}
        return normalise(weights)

    def line(self, rng: np.random.Generator) -> RuleLine:
        """Draw a line with at least one condition."""
        found: list[Comparison] = []
        while not found:
            found = [
                draw(self.comparisons[fact], rng)
                for fact in self.language.values
                if rng.random() < self.share
            ]
        return RuleLine(self.language.ordered(found), self.conclusion(rng))

    def line_probability(self, line: RuleLine) -> float:
        """Return the probability of drawing this line."""
        conditions = conditions_of(line)
        if not conditions:
            return 0.0
        facts = len(self.language.values)
        probabilities = [self.comparisons[fact].get(each, 0.0) for fact, each in conditions.items()]
        included = prod(probabilities) * self.share ** len(probabilities)
        omitted = (1 - self.share) ** (facts - len(probabilities))
        not_empty = 1 - (1 - self.share) ** facts
        return included * omitted / not_empty * self.conclusion_probability(line.conclusion)

    def conclusion(self, rng: np.random.Generator) -> Conclusion:
        """Draw a conclusion: its kind, then its fields."""
        kind = draw(self.kinds, rng)
        said = [(name, draw(terms, rng)) for name, terms in self.fields[kind].items()]
        return Conclusion(kind, tuple((name, value) for name, value in said if value is not None))

    def conclusion_probability(self, conclusion: Conclusion) -> float:
        """Return the probability of drawing this conclusion."""
        said = dict(conclusion.fields)
        terms = self.fields[conclusion.kind].items()
        return self.kinds[conclusion.kind] * prod(each.get(said.get(n), 0.0) for n, each in terms)


class Examples:
    """Draws expressions that are true in recorded transitions.

    `rows` are the rows of the transitions in the `table`.
    """

    def __init__(
        self, words: Words, table: TransitionTable, transitions: Sequence[TextTransition]
    ) -> None:
        self.words, self.language, self.table = words, words.language, table
        self.transitions = transitions
        self.rows = table.rows(transitions)
        facts = table.facts[self.rows]
        self._present = facts != ABSENT
        self._same = np.zeros(facts.shape, dtype=np.int64)
        self._other = np.zeros(facts.shape, dtype=np.int64)
        for place, fact in enumerate(self.language.values):
            others = [table.places[other] for other in self.language.shared[fact]]
            self._same[:, place] = (facts[:, others] == facts[:, [place]]).sum(axis=1)
            self._other[:, place] = len(others) - self._same[:, place]
        words_of = np.array([len(known) for known in self.language.values.values()])
        self._totals = (
            HAS_WEIGHT
            + SAME_WEIGHT * (self._same > 0)
            + OTHER_WEIGHT * (self._other > 0)
            + LACKS_WEIGHT * (words_of > 1)
        )
        self._followed = table.followed[self.rows]
        _, self._kinds = np.unique(table.kinds[self._followed], return_inverse=True)
        self._fields = table.fields[self._followed]
        self._shares = self._condition_probabilities(facts)
        self._by_fact, self._by_word = self._field_weights(facts)
        self._any_condition = 1 - np.prod(1 - self._shares, axis=1)

    def _condition_probabilities(self, facts: np.ndarray) -> np.ndarray:
        """Return the probability of a condition on each fact (transitions, facts).

        The probability increases with the probability of the recorded kind of change, given the
        fact's value.
        """
        kinds, count = self._kinds, self._kinds.max() + 1
        weights = 1 / np.bincount(kinds)[kinds] / count
        gains = np.zeros(facts.shape)
        # pseudo-count of a fact's value, as a fraction of all evidence: a value that occurs once
        # seems to predict everything
        pseudo_count_fraction = 0.05
        for place in range(facts.shape[1]):
            _, values = np.unique(facts[:, place], return_inverse=True)
            masses = np.full((values.max() + 1, count), pseudo_count_fraction / count)
            np.add.at(masses, (values, kinds), weights)
            gains[:, place] = masses[values, kinds] / masses[values].sum(axis=1) - 1 / count
        # minimum weight of a fact that does not predict the kind of change; a line may need it
        # together with other facts
        min_fact_weight = 0.02
        gains = np.maximum(gains, min_fact_weight) * self._present
        shares = self.words.conditions * gains / gains.sum(axis=1, keepdims=True)
        # maximum probability of a condition on a fact, so that any line can omit it
        max_condition_probability = 0.9
        return np.asarray(np.minimum(shares, max_condition_probability))

    def _field_weights(self, facts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights of each fact and of the word as the value of a field.

        Shapes are (transitions, fields, facts) and (transitions, fields), relative to
        `OPEN_WEIGHT`. The weight of a value increases with the fraction of changes of that kind
        that it describes correctly.
        """
        count, kinds = self._kinds.max() + 1, self._kinds
        sizes = np.bincount(kinds, minlength=count)
        same = facts[:, None, :] == self._fields[:, :, None]
        agreeing = np.zeros((count, *same.shape[1:]))
        np.add.at(agreeing, kinds, same)
        by_fact = FACT_WEIGHT * same * (agreeing / sizes[:, None, None])[kinds]
        by_word = np.zeros(self._fields.shape)
        for slot in range(self._fields.shape[1]):
            pairs = np.stack([kinds, self._fields[:, slot]])
            _, alike, counts = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
            by_word[:, slot] = WORD_WEIGHT * counts[alike] / sizes[kinds]
        return by_fact, by_word

    def weights(self, rules: Ruleset | None = None) -> np.ndarray:
        """Return the probability (transitions,) of drawing each transition as an example.

        Under rules, the weight of a transition is the part that the rules do not predict. If they
        predict everything, all transitions have equal weight. Kinds of change are more balanced
        than in the data (see `RARITY_POWER`).
        """
        unexplained = np.ones(len(self.rows))
        if rules is not None:
            unexplained -= self.table.precision(rules, self.rows)
            if not unexplained.any():
                unexplained += 1
        totals = np.bincount(self._kinds, weights=unexplained)
        weights = unexplained * np.where(totals > 0, totals, 1)[self._kinds] ** (RARITY_POWER - 1)
        return np.asarray(weights / weights.sum())

    def comparison(self, row: int, fact: str, rng: np.random.Generator) -> Comparison:
        """Draw a condition on this fact that is true in a transition."""
        facts, shared = self.transitions[row].facts, self.language.shared[fact]
        same = [other for other in shared if facts.get(other) == facts[fact]]
        other = [each for each in shared if facts.get(each) != facts[fact]]
        lacking = [word for word in self.language.values[fact] if word != facts[fact]]
        weights = {Comparison(fact, facts[fact]): HAS_WEIGHT}
        weights |= {Comparison(fact, Reference(each)): SAME_WEIGHT / len(same) for each in same}
        weights |= {
            Comparison(fact, Reference(each), False): OTHER_WEIGHT / len(other) for each in other
        }
        weights |= {Comparison(fact, word, False): LACKS_WEIGHT / len(lacking) for word in lacking}
        return draw(normalise(weights), rng)

    def comparison_probabilities(self, comparison: Comparison) -> np.ndarray:
        """Return the probability (transitions,) of drawing this condition, given its fact."""
        place = self.table.places[comparison.fact]
        if isinstance(comparison.value, Reference):
            weight = SAME_WEIGHT if comparison.holds else OTHER_WEIGHT
            among = (self._same if comparison.holds else self._other)[:, place]
        else:
            weight = HAS_WEIGHT if comparison.holds else LACKS_WEIGHT
            others = len(self.language.values[comparison.fact]) - 1
            among = np.array(1 if comparison.holds else others)
        holding = self.table.holding(comparison, self.rows) & self._present[:, place]
        return np.asarray(holding * weight / np.maximum(among, 1) / self._totals[:, place])

    def line(self, row: int, rng: np.random.Generator) -> RuleLine:
        """Draw a line that is true in a transition."""
        found: list[Comparison] = []
        while not found:
            found = [
                self.comparison(row, fact, rng)
                for fact in self.language.values
                if rng.random() < self._shares[row, self.table.places[fact]]
            ]
        return RuleLine(self.language.ordered(found), self.conclusion(row, rng))

    def line_probabilities(self, line: RuleLine) -> np.ndarray:
        """Return the probability (transitions,) of drawing this line from each transition."""
        conditions = conditions_of(line)
        if not conditions:
            return np.zeros(len(self.rows))
        probabilities: np.ndarray = (
            self.conclusion_probabilities(line.conclusion) / self._any_condition
        )
        for fact, place in self.table.places.items():
            share = self._shares[:, place]
            if fact in conditions:
                probabilities *= share * self.comparison_probabilities(conditions[fact])
            else:
                probabilities *= 1 - share
        return probabilities

    def conclusion(self, row: int, rng: np.random.Generator) -> Conclusion:
        """Draw a conclusion that is true in a transition."""
        change, said = self.transitions[row].change, dict[str, Value]()
        for name, slot in self.table.slots[change.kind].items():
            by_fact = zip(self.language.values, self._by_fact[row, slot], strict=True)
            weights: dict[Value | None, float] = {None: OPEN_WEIGHT}
            weights[change.fields[name]] = self._by_word[row, slot]
            weights |= {Reference(fact): weight for fact, weight in by_fact}
            value = draw(normalise(weights), rng)
            if value is not None:
                said[name] = value
        return Conclusion(change.kind, tuple(said.items()))

    def conclusion_probabilities(self, conclusion: Conclusion) -> np.ndarray:
        """Return the probability (transitions,) of drawing this conclusion from each transition."""
        said = dict(conclusion.fields)
        kinds = self.table.kinds[self._followed]
        probabilities: np.ndarray = (kinds == self.table.code(conclusion.kind)).astype(float)
        for name, slot in self.table.slots[conclusion.kind].items():
            by_fact, by_word = self._by_fact[:, slot], self._by_word[:, slot]
            match said.get(name):
                case None:
                    weights = np.full(len(probabilities), OPEN_WEIGHT)
                case Reference(fact):
                    weights = by_fact[:, self.table.places[fact]]
                case word:
                    weights = by_word * (self._fields[:, slot] == self.table.code(word))
            probabilities *= weights / (OPEN_WEIGHT + by_word + by_fact.sum(axis=1))
        return probabilities
