"""Conditions, conclusions and lines of rules drawn by chance, and how likely each was to be drawn.

`Words` draws from all that a language can say. `Examples` draws what is so in recorded transitions:
a line whose conditions hold as one of them begins, and whose conclusion is the change that
followed, said by facts of equal value where there are any. How likely it was to be drawn from each
of them is known, for all transitions at once.
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

Thing = TypeVar("Thing")

HAS, SAME, OTHER, LACKS = 1.0, 0.5, 0.1, 0.1
"""How often a condition says that a fact has its value, that another fact has the same, that it
has another, and that it lacks a value: each as against the first. What a fact is tells more than
what it is not, and many pairs of facts differ by chance."""

OPEN, WORD, FACT = 0.25, 1.0, 3.0
"""How often a conclusion leaves a field open, says the word, or says it by a fact of that value:
what is said by a fact holds for more transitions, and what is left open says little."""

RARER = 0.5
"""The power of how much of a kind of change is unsaid that it is an example by: with 1 rare kinds
would wait until all else is said, with 0 they would keep what is common from being said."""

TELLING = 0.02
"""The least that a fact counts for which tells nothing of the kind of change: a line may need it
together with others."""

RARE = 0.05
"""How much evidence there is for a fact that tells nothing before any is seen, as a share of all:
a value that was met once seems to tell everything."""

SUREST = 0.9
"""How often a condition is about a fact at most, so that any line can do without."""


def drawn(chances: Mapping[Thing, float], rng: np.random.Generator) -> Thing:
    """Draw one of several things by their chances, which add up to 1."""
    point = rng.random()
    for each, chance in chances.items():
        point -= chance
        if point < 0:
            return each
    return each  # chances that are rounded add up to a little less


def shares(weights: Mapping[Thing, float]) -> dict[Thing, float]:
    """Return weights so that they add up to 1, leaving out what has none."""
    total = sum(weights.values())
    return {each: weight / total for each, weight in weights.items() if weight}


def conditions_of(line: RuleLine) -> dict[str, Comparison] | None:
    """Return the conditions by their facts, None where two are about one fact."""
    found = {each.fact: each for each in line.conditions}
    return found if len(found) == len(line.conditions) else None


class Words:
    """Draws from all that a language can say, whatever was recorded.

    Each fact has its condition in a line with the chance `share`; there is at least one.
    """

    def __init__(self, language: RuleLanguage, conditions: float) -> None:
        self.language, self.conditions = language, conditions
        self.share = min(0.5, conditions / len(language.values))
        self.comparisons = {fact: self._comparisons(fact) for fact in language.values}
        self.kinds = shares(dict.fromkeys(language.fields, 1.0))
        self.fields = {
            kind: {name: self._terms(words) for name, words in fields.items()}
            for kind, fields in language.fields.items()
        }

    def _comparisons(self, fact: str) -> dict[Comparison, float]:
        """Return all that can be said of a fact, and the chances."""
        words, shared = self.language.values[fact], self.language.shared[fact]
        weights = {Comparison(fact, word): HAS / len(words) for word in words}
        weights |= {Comparison(fact, word, False): LACKS / len(words) for word in words}
        for other in shared:
            weights[Comparison(fact, Reference(other))] = SAME / len(shared)
            weights[Comparison(fact, Reference(other), False)] = OTHER / len(shared)
        return shares(weights)

    def _terms(self, words: Sequence[str]) -> dict[Value | None, float]:
        """Return all that can be said of a field of a conclusion, and the chances."""
        facts = [fact for fact, known in self.language.values.items() if {*known} & {*words}]
        weights: dict[Value | None, float] = {None: OPEN}
        weights |= {word: WORD / len(words) for word in words}
        weights |= {Reference(fact): FACT / len(facts) for fact in facts}
        return shares(weights)

    def line(self, rng: np.random.Generator) -> RuleLine:
        """Draw a line."""
        found: list[Comparison] = []
        while not found:
            found = [
                drawn(self.comparisons[fact], rng)
                for fact in self.language.values
                if rng.random() < self.share
            ]
        return RuleLine(self.language.ordered(found), self.conclusion(rng))

    def line_chance(self, line: RuleLine) -> float:
        """Return how likely a line was to be drawn."""
        conditions = conditions_of(line)
        if not conditions:
            return 0.0
        facts = len(self.language.values)
        chances = [self.comparisons[fact].get(each, 0.0) for fact, each in conditions.items()]
        said = prod(chances) * self.share ** len(chances)
        unsaid = (1 - self.share) ** (facts - len(chances)) / (1 - (1 - self.share) ** facts)
        return said * unsaid * self.conclusion_chance(line.conclusion)

    def conclusion(self, rng: np.random.Generator) -> Conclusion:
        """Draw a conclusion."""
        kind = drawn(self.kinds, rng)
        said = [(name, drawn(terms, rng)) for name, terms in self.fields[kind].items()]
        return Conclusion(kind, tuple((name, value) for name, value in said if value is not None))

    def conclusion_chance(self, conclusion: Conclusion) -> float:
        """Return how likely a conclusion was to be drawn."""
        said = dict(conclusion.fields)
        terms = self.fields[conclusion.kind].items()
        return self.kinds[conclusion.kind] * prod(each.get(said.get(n), 0.0) for n, each in terms)


class Examples:
    """Draws what is so in recorded transitions, whose rows in the `table` are `rows`."""

    def __init__(
        self, words: Words, table: TransitionTable, transitions: Sequence[TextTransition]
    ) -> None:
        self.words, self.language, self.table = words, words.language, table
        self.transitions = transitions
        self.rows = table.rows(transitions)
        facts = table.facts[self.rows]
        self._there = facts != ABSENT
        self._same = np.zeros(facts.shape, dtype=np.int64)
        self._other = np.zeros(facts.shape, dtype=np.int64)
        for place, fact in enumerate(self.language.values):
            others = [table.places[other] for other in self.language.shared[fact]]
            self._same[:, place] = (facts[:, others] == facts[:, [place]]).sum(axis=1)
            self._other[:, place] = len(others) - self._same[:, place]
        words_of = np.array([len(known) for known in self.language.values.values()])
        self._totals = (
            HAS + SAME * (self._same > 0) + OTHER * (self._other > 0) + LACKS * (words_of > 1)
        )
        self._followed = table.followed[self.rows]
        _, self._kinds = np.unique(table.kinds[self._followed], return_inverse=True)
        self._fields = table.fields[self._followed]
        self._shares = self._telling(facts)
        self._by_fact, self._by_word = self._sayings(facts)
        self._something = 1 - np.prod(1 - self._shares, axis=1)

    def _telling(self, facts: np.ndarray) -> np.ndarray:
        """Return how often a condition is about each fact (transitions, facts).

        It is the more often the more likely the kind of change is where the fact has its value.
        """
        kinds, count = self._kinds, self._kinds.max() + 1
        weights = 1 / np.bincount(kinds)[kinds] / count
        telling = np.zeros(facts.shape)
        for place in range(facts.shape[1]):
            _, values = np.unique(facts[:, place], return_inverse=True)
            masses = np.full((values.max() + 1, count), RARE / count)
            np.add.at(masses, (values, kinds), weights)
            telling[:, place] = masses[values, kinds] / masses[values].sum(axis=1) - 1 / count
        telling = np.maximum(telling, TELLING) * self._there
        shares = self.words.conditions * telling / telling.sum(axis=1, keepdims=True)
        return np.asarray(np.minimum(shares, SUREST))

    def _sayings(self, facts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how often a field is said by each fact, and how often by its word.

        These are (transitions, fields, facts) and (transitions, fields), as against `OPEN`. It is
        the more often the more of the changes of that kind can be said in that way.
        """
        count, kinds = self._kinds.max() + 1, self._kinds
        sizes = np.bincount(kinds, minlength=count)
        same = facts[:, None, :] == self._fields[:, :, None]
        agreeing = np.zeros((count, *same.shape[1:]))
        np.add.at(agreeing, kinds, same)
        by_fact = FACT * same * (agreeing / sizes[:, None, None])[kinds]
        by_word = np.zeros(self._fields.shape)
        for slot in range(self._fields.shape[1]):
            pairs = np.stack([kinds, self._fields[:, slot]])
            _, alike, counts = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
            by_word[:, slot] = WORD * counts[alike] / sizes[kinds]
        return by_fact, by_word

    def weights(self, rules: Ruleset | None = None) -> np.ndarray:
        """Return how often each transition (transitions,) is taken for an example.

        Under rules those transitions count that the rules do not say, as far as they do not; all
        where they say everything. Kinds of change are more alike in number than they were met.
        """
        unsaid = np.ones(len(self.rows))
        if rules is not None:
            unsaid -= self.table.precision(rules, self.rows)
            if not unsaid.any():
                unsaid += 1
        totals = np.bincount(self._kinds, weights=unsaid)
        weights = unsaid * np.where(totals > 0, totals, 1)[self._kinds] ** (RARER - 1)
        return np.asarray(weights / weights.sum())

    def comparison(self, row: int, fact: str, rng: np.random.Generator) -> Comparison:
        """Draw what is so of a fact that a transition has."""
        facts, shared = self.transitions[row].facts, self.language.shared[fact]
        same = [other for other in shared if facts.get(other) == facts[fact]]
        other = [each for each in shared if facts.get(each) != facts[fact]]
        lacking = [word for word in self.language.values[fact] if word != facts[fact]]
        weights = {Comparison(fact, facts[fact]): HAS}
        weights |= {Comparison(fact, Reference(each)): SAME / len(same) for each in same}
        weights |= {Comparison(fact, Reference(each), False): OTHER / len(other) for each in other}
        weights |= {Comparison(fact, word, False): LACKS / len(lacking) for word in lacking}
        return drawn(shares(weights), rng)

    def comparison_chances(self, comparison: Comparison) -> np.ndarray:
        """Return how likely this was to be drawn of its fact, from each transition."""
        place = self.table.places[comparison.fact]
        if isinstance(comparison.value, Reference):
            weight = SAME if comparison.holds else OTHER
            among = (self._same if comparison.holds else self._other)[:, place]
        else:
            weight = HAS if comparison.holds else LACKS
            others = len(self.language.values[comparison.fact]) - 1
            among = np.array(1 if comparison.holds else others)
        holding = self.table.holding(comparison, self.rows) & self._there[:, place]
        return np.asarray(holding * weight / np.maximum(among, 1) / self._totals[:, place])

    def line(self, row: int, rng: np.random.Generator) -> RuleLine:
        """Draw a line that says what a transition shows."""
        found: list[Comparison] = []
        while not found:
            found = [
                self.comparison(row, fact, rng)
                for fact in self.language.values
                if rng.random() < self._shares[row, self.table.places[fact]]
            ]
        return RuleLine(self.language.ordered(found), self.conclusion(row, rng))

    def line_chances(self, line: RuleLine) -> np.ndarray:
        """Return how likely a line was to be drawn from each transition."""
        conditions = conditions_of(line)
        if not conditions:
            return np.zeros(len(self.rows))
        chances: np.ndarray = self.conclusion_chances(line.conclusion) / self._something
        for fact, place in self.table.places.items():
            share = self._shares[:, place]
            if fact in conditions:
                chances *= share * self.comparison_chances(conditions[fact])
            else:
                chances *= 1 - share
        return chances

    def conclusion(self, row: int, rng: np.random.Generator) -> Conclusion:
        """Draw what a transition shows to follow."""
        change, said = self.transitions[row].change, dict[str, Value]()
        for name, slot in self.table.slots[change.kind].items():
            by_fact = zip(self.language.values, self._by_fact[row, slot], strict=True)
            weights: dict[Value | None, float] = {None: OPEN}
            weights[change.fields[name]] = self._by_word[row, slot]
            weights |= {Reference(fact): weight for fact, weight in by_fact}
            value = drawn(shares(weights), rng)
            if value is not None:
                said[name] = value
        return Conclusion(change.kind, tuple(said.items()))

    def conclusion_chances(self, conclusion: Conclusion) -> np.ndarray:
        """Return how likely a conclusion was to be drawn from each transition."""
        said = dict(conclusion.fields)
        kinds = self.table.kinds[self._followed]
        chances: np.ndarray = (kinds == self.table.code(conclusion.kind)).astype(float)
        for name, slot in self.table.slots[conclusion.kind].items():
            by_fact, by_word = self._by_fact[:, slot], self._by_word[:, slot]
            match said.get(name):
                case None:
                    weights = np.full(len(chances), OPEN)
                case Reference(fact):
                    weights = by_fact[:, self.table.places[fact]]
                case word:
                    weights = by_word * (self._fields[:, slot] == self.table.code(word))
            chances *= weights / (OPEN + by_word + by_fact.sum(axis=1))
        return chances
